"""The data file: how a URL names it, and how it is checked, created, opened and replaced.

LMDB writes two meta pages at the beginning of the file and leaves the end of each page unused. The header of this
package is in the unused part of the first page. It says which program wrote the file, how large it is, and since which
boot of the machine. LMDB does not sync the file, so after a reboot its content is not trusted: a new file replaces it.

A file is created under another name, complete, and then linked to its path. No process can therefore see a part of it.
The file is sparse and has its full size from the beginning. A shorter file was truncated. It is not used, because
reading the missing part would end the process (SIGBUS).

The first half megabyte is written at once. As a result, LMDB has pages for the changes of known counters when others
fill the disk.
"""

import errno
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from ctypes import CDLL, byref, c_size_t, create_string_buffer
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import cache
from glob import escape
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import lmdb

from ratelimit_mw.errors import NameTaken, PermanentFault, StoreUnavailable
from ratelimit_mw.logs import logger
from ratelimit_mw.units import parse_size

DEFAULT_SIZE = 256 << 20
"""The size of the map in bytes. A counter takes about 106 bytes, so it holds the default of a million counters."""

FORMAT = 2
"""The version of the format of the file."""

FREE = 512 << 10
"""The bytes of the file that are on the disk from the beginning, and stay free for copies of pages."""

_MIN_SIZE = 1 << 20
_MAX_SIZE = 1 << 40
_GRANULE = 1 << 16  # a multiple of the page size of all systems
_MODES = {"600": 0o600, "660": 0o660}
_MAX_NAME = 150  # bytes; the names of files end with more
_MEMORY = Path("/dev/shm")  # noqa: S108  the files in it are checked before they are used


class Location(NamedTuple):
    """A data file.

    Attributes:
        file: The absolute path, without its end if `named`.
        mode: The permissions: 0o600, or 0o660 to share it with the group.
        size: The largest size in bytes.
        named: Whether the file is in a folder of all users. Its path then ends with the id of its owners and the
            version of the format, so that neither two users nor two versions of the package want the same file.
    """

    file: str
    mode: int = 0o600
    size: int = DEFAULT_SIZE
    named: bool = False

    @classmethod
    def parse(cls, url: str) -> "Location":
        """Read `lmdb://name`, `lmdb:///absolute/path` or `lmdb://`, with the options `?mode=660&size=64MB`.

        Raises:
            ValueError: the URL is malformed.
        """
        parts = urlsplit(url)
        name, path = unquote(parts.netloc), unquote(parts.path)
        if "\0" in name + path or path.endswith("/") or (name and path) or parts.fragment:
            raise ValueError("an lmdb URL has the name or the path of a file: lmdb://name or lmdb:///run/app/limits")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        mode, size = options.get("mode", "600"), _size(options["size"]) if "size" in options else DEFAULT_SIZE
        if not options.keys() <= {"mode", "size"} or mode not in _MODES or size is None:
            raise ValueError(
                "the options of an lmdb URL are mode=600, or mode=660 to share the file with the group, and size=64MB, "
                f"from 1MB to 1024GB, not {parts.query!r}"
            )
        file = Path(path) if path else _folder() / _file_name(name)
        path = str(file.parent.resolve() / file.name)  # a symbolic link may lead to the folder, but not to the file
        return cls(path, _MODES[mode], size, not parts.path)

    @property
    def path(self) -> str:
        """The absolute path for the present user, which a server may change after the URL was parsed."""
        if not self.named:
            return self.file
        owner = f"g{os.getegid()}" if self.mode & 0o060 else f"u{os.geteuid()}"
        return f"{self.file}.{owner}.v{FORMAT}.lmdb"

    @property
    def records(self) -> str:
        """The path of the second file, which has the overrides and the kill switch."""
        return f"{self.path}.overrides"


def _size(text: str) -> int | None:
    """The size in bytes, rounded up to whole pages. None if it is out of range."""
    size = parse_size(text)
    return None if size is None or not _MIN_SIZE <= size <= _MAX_SIZE else -(-size // _GRANULE) * _GRANULE


def _folder() -> Path:
    """A folder in memory, or that of temporary files."""
    return _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _file_name(name: str) -> str:
    quoted = quote(name, safe="")
    if len(quoted) > _MAX_NAME:
        quoted = blake2b(name.encode(), digest_size=16).hexdigest()
    return f"ratelimit_mw-{quoted}" if quoted else "ratelimit_mw"


_HEADER = Struct("<16s36sQ")
_HEADER_AT = 2048  # within the first page of every system, and behind the meta data of LMDB
_NAME = b"ratelimit_mw "
_MAGIC = _NAME + b"%d\n" % FORMAT
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # O_NONBLOCK: opening a fifo must not wait
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
_TRIES = 20
_RANDOM = 8  # bytes in the name of a file that is not complete yet
_ABANDONED = 60.0  # seconds after which such a file is one of a process that was killed
_OLD = "is older than the last boot"
_OTHER_FILE = "name another file in storage.url, as in lmdb:///run/app/limits"
_DELETE = "delete it: the counters start from zero"


class DataFile(NamedTuple):
    """The open data file. `identity` is its device and its inode."""

    fd: int
    size: int
    identity: tuple[int, int]

    def close(self) -> None:
        """Close the descriptor, unless other code has closed it and it is that of another file by now."""
        try:
            found = os.fstat(self.fd)
            if (found.st_dev, found.st_ino) == self.identity:
                os.close(self.fd)
        except OSError:
            pass


def check(location: Location) -> None:
    """Raise PermanentFault if the file exists and cannot be used, or if there is no folder for it.

    A process of root may check the file of another user, because servers load an app as root and change the user of
    their workers.
    """
    try:
        _open_data(location, any_owner=os.geteuid() == 0)[0].close()
    except FileNotFoundError:
        if not Path(location.path).parent.is_dir():
            raise _no_folder(location.path) from None


def open_data(location: Location) -> DataFile:
    """Open the file. Create it if it does not exist, and replace it if it is older than the last boot or truncated.

    Raises:
        BlockingIOError: another process has locked the old file.
        NameTaken: another user has the file, in a folder of all users.
        PermanentFault: the file cannot be used.
        StoreUnavailable: the file cannot be created now, for lack of space, for example.
    """
    for _ in range(_TRIES):
        try:
            data, reason = _open_data(location)
        except FileNotFoundError:
            _create(location)
            continue
        if not reason:
            return data
        try:
            flock(data.fd, LOCK_EX | LOCK_NB)  # of several processes that find the old file, one removes it
            set_aside(location.path, data.fd, reason)
        finally:
            data.close()
    raise StoreUnavailable(f"{location.path} is replaced again and again")


def set_aside(path: str, fd: int, reason: str) -> None:
    """Free the path of a file of ours, so that the next attempt creates a new one. The caller holds its lock.

    A damaged file is renamed. It is deleted if it is older than the last boot, or if its new name is not free.
    """
    if not names(path, fd):
        return
    bad = f"{path}.bad"
    try:
        with suppress(OSError):  # a folder, or a file of another user in a folder of all users
            if reason != _OLD:
                Path(path).replace(bad)
        if names(path, fd):
            Path(path).unlink()
    except OSError as error:
        raise PermanentFault(f"{path} {reason}, and can't be renamed: {error.strerror}", _DELETE) from None
    if reason != _OLD:
        now = f"now {bad}" if names(bad, fd) else f"deleted, because {bad} can't be replaced"
        logger.error("store %s %s: it is %s, and the counters start from zero", path, reason, now)


def open_environment(data: DataFile, path: str) -> lmdb.Environment:
    """Open LMDB on an open file. The path, which may name another file, is used only if there is no `/proc`."""
    own = f"/proc/self/fd/{data.fd}"
    if not Path(own).exists():
        own = path
        if not names(path, data.fd):
            raise StoreUnavailable(f"{path} was replaced")
    return _environment(own, data.size)


def _open_data(location: Location, *, any_owner: bool = False) -> tuple[DataFile, str]:
    """Open a file of ours, and tell why it must be replaced, or "".

    Raises:
        FileNotFoundError: there is no file.
        PermanentFault: the file must neither be used nor replaced.
        StoreUnavailable: the file cannot be opened now.
    """
    path = location.path
    fd = open_permitted(path, location, _examine, any_owner=any_owner)
    found = os.fstat(fd)
    raw = os.pread(fd, _HEADER.size, _HEADER_AT)
    _, boot, size = _HEADER.unpack(raw.ljust(_HEADER.size, b"\0"))
    reason = "" if boot == boot_id() else _OLD
    if len(raw) < _HEADER.size or found.st_size < size:
        reason = "is truncated" if found.st_size else "is empty"
    return DataFile(fd, size, (found.st_dev, found.st_ino)), reason


def _examine(fd: int, location: Location) -> None:
    """Raise PermanentFault for a file that is not one of this store and version."""
    path, raw = location.path, os.pread(fd, len(_MAGIC), _HEADER_AT)
    if raw == _MAGIC or (location.named and not os.fstat(fd).st_size):
        return
    if raw.startswith(_NAME):
        raise PermanentFault(f"{path} is of another version of this package", f"{_OTHER_FILE}, or delete it")
    raise PermanentFault(f"{path} is not a file of this store", _OTHER_FILE)


def open_permitted(
    path: str,
    location: Location,
    examine: Callable[[int, Location], object] = lambda *_: None,
    *,
    any_owner: bool = False,
) -> int:
    """Open a regular file that this user, or the group where the mode grants it access, owns. Returns the descriptor.

    Args:
        path: its path.
        location: who may use it.
        examine: raises PermanentFault for the file of another program. It comes before the permissions, so that no
            message recommends to change or delete such a file.
        any_owner: whether any user may own it.

    Raises:
        FileNotFoundError: there is no file.
        NameTaken: another user has the file, in a folder of all users.
        PermanentFault: the file must not be used.
        StoreUnavailable: the file cannot be opened now.
    """
    try:
        found = Path(path).lstat()
        if location.named and not _ours(found, location):
            raise NameTaken(f"{path} belongs to the user {found.st_uid}", f"delete it as root, or {_OTHER_FILE}")
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _failed(error, path) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise PermanentFault(f"{path} is not a regular file", _OTHER_FILE)
        examine(fd, location)
        if not any_owner and not _ours(found, location):
            raise PermanentFault(
                f"{path} belongs to the user {found.st_uid}, but this process runs as the user {os.geteuid()}",
                "run it as that user, or set ?mode=660 to share the file with a group",
            )
        if found.st_mode & 0o066 & ~location.mode:
            wide = f"{path} has the mode {stat.S_IMODE(found.st_mode):o}, which is wider than {location.mode:o}"
            raise PermanentFault(wide, f"chmod {location.mode:o} it, or {_DELETE}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def names(path: str, fd: int) -> bool:
    """Whether the path names the file that is open as `fd`."""
    try:
        return os.path.samestat(Path(path).lstat(), os.fstat(fd))
    except OSError:
        return False


def create(path: str, mode: int, fill: Callable[[str, int], object], *, replace: bool = False) -> None:
    """Create a file, complete. Without `replace`, one that another process has just created stays.

    Files that processes had not completed when they were killed are removed.

    Args:
        path: its path.
        mode: its permissions, whatever the umask.
        fill: writes the content, given the path of the new file until it is complete, and its descriptor.
        replace: whether to replace a file that exists.

    Raises:
        PermanentFault: it cannot be created.
        StoreUnavailable: it cannot be created now.
    """
    folder, name = os.path.split(path)
    for left in Path(folder).glob(f"{escape(name)}.{'[0-9a-f][0-9a-f]' * _RANDOM}.new"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > _ABANDONED:
                left.unlink()
    beside = f"{path}.{secrets.token_hex(_RANDOM)}.new"
    try:
        fd = os.open(beside, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.fchmod(fd, mode)
            fill(beside, fd)
            if replace:
                Path(beside).replace(path)
            else:
                os.link(beside, path)
        finally:
            os.close(fd)
            Path(beside).unlink(missing_ok=True)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise _no_folder(path) from None
    except OSError as error:
        raise _failed(error, path) from None


def _failed(error: OSError, path: str) -> StoreUnavailable:
    """The error for a file that cannot be opened or created."""
    if error.errno in _PASSING:
        return StoreUnavailable(f"{path}: {error.strerror}")
    if error.errno == errno.ELOOP:
        return PermanentFault(f"{path} is a symbolic link, which is not followed", _OTHER_FILE)
    return PermanentFault(f"{path} can't be opened or created: {error.strerror}", _OTHER_FILE)


def _no_folder(path: str) -> PermanentFault:
    return PermanentFault(f"the folder of {path} does not exist", f"create it, or {_OTHER_FILE}")


def _ours(found: os.stat_result, location: Location) -> bool:
    """Whether this user or the group that shares the file owns it. A default name is that of one group only."""
    groups = {os.getegid()} if location.named else {os.getegid(), *os.getgroups()}
    return found.st_uid == os.geteuid() or (location.mode & 0o060 == 0o060 and found.st_gid in groups)


def _create(location: Location) -> None:
    def fill(beside: str, fd: int) -> None:
        _environment(beside, location.size).close()  # writes the first pages
        end = os.fstat(fd).st_size
        os.pwrite(fd, bytes(FREE - end), end)
        os.pwrite(fd, _HEADER.pack(_MAGIC, boot_id(), location.size), _HEADER_AT)
        os.ftruncate(fd, location.size)

    try:
        create(location.path, location.mode, fill)
    except lmdb.Error as error:
        raise StoreUnavailable(f"{location.path}: {error}") from None


def _environment(path: str, size: int) -> lmdb.Environment:
    """Open LMDB without its own lock, and without writing through the map: a full disk would end the process."""
    return lmdb.open(
        path,
        map_size=size,
        subdir=False,
        lock=False,
        sync=False,
        metasync=False,
        writemap=False,
        readahead=False,
        meminit=False,
    )


@cache
def boot_id() -> bytes:
    """A text of 36 bytes that is another one after each boot of the machine; zeros if the system has none."""
    try:
        with Path("/proc/sys/kernel/random/boot_id").open("rb") as file:
            return file.read(36).ljust(36, b"\0")
    except OSError:
        pass
    text = create_string_buffer(64)  # macOS
    sysctl = getattr(CDLL(None), "sysctlbyname", None)
    if sysctl is not None:
        sysctl(b"kern.bootsessionuuid", text, byref(c_size_t(64)), None, c_size_t(0))
    return text.raw[:36]
