"""The data file: how it is checked, created and opened.

LMDB writes two meta pages at the beginning of the file and leaves the end of each page unused. The header of this
package is in the unused part of the first page. It says which program wrote the file, how large it is, and since which
boot of the machine. LMDB does not sync the file, so after a reboot its content is not trusted: a new file replaces it.

A file is created under another name, complete, and then linked to its path. No process can therefore see a part of it.
The file is sparse and has its full size from the beginning. A shorter file was truncated. It is not used, because
reading the missing part would end the process (SIGBUS).
"""

import errno
import os
import secrets
import stat
import time
from contextlib import suppress
from ctypes import CDLL, byref, c_size_t, create_string_buffer
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import cache
from glob import escape
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import lmdb

from ratelimit_mw.errors import ConfigurationError, Problem, StoreUnavailable
from ratelimit_mw.stores.shared.location import Location

_HEADER = Struct("<16sQ36s")
_HEADER_AT = 2048  # within the first page of every system, and behind the meta data of LMDB
_MAGIC = b"ratelimit_mw 1\n"  # with the version of the format
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # O_NONBLOCK: opening a fifo must not wait
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
_TRIES = 20
_RANDOM = 8  # bytes in the name of a file that is not complete yet
_ABANDONED = 60.0  # seconds after which such a file is one of a process that was killed

_OTHER_FILE = "name another file, as in lmdb:///run/app/limits"
_DELETE = "delete it; the counters start from zero"


class DataFile(NamedTuple):
    """The open data file. `identity` is its device and its inode."""

    fd: int
    size: int
    identity: tuple[int, int]

    def complete(self) -> bool:
        """Whether the file still has its full size."""
        return os.fstat(self.fd).st_size >= self.size

    def close(self) -> None:
        """Close the descriptor, unless other code has closed it and it is that of another file by now."""
        try:
            found = os.fstat(self.fd)
            if (found.st_dev, found.st_ino) == self.identity:
                os.close(self.fd)
        except OSError:
            pass


def check(location: Location) -> None:
    """Raise ConfigurationError if the file exists and cannot be used.

    A process of root may check the file of another user, because servers load an app as root and change the user of
    their workers.
    """
    path = location.path
    try:
        fd = open_checked(path, location.mode, any_owner=os.geteuid() == 0, header=True)
    except FileNotFoundError:  # the first decision creates it
        if not Path(path).parent.is_dir():
            raise refused(f"the folder of {path} does not exist") from None
    except StoreUnavailable:
        pass
    else:
        os.close(fd)


def open_data(location: Location) -> DataFile:
    """Open the file, and create it if it does not exist or is older than the last boot.

    Raises:
        BlockingIOError: another process has locked the old file.
        ConfigurationError: the file cannot be used.
        StoreUnavailable: the file cannot be created now, for lack of space, for example.
    """
    path = location.path
    for _ in range(_TRIES):
        try:
            fd = open_checked(path, location.mode, header=True)
        except FileNotFoundError:
            _create(location, replace=False)
            continue
        usable = False
        try:
            size, boot = _read_header(fd, path)
            usable = boot == boot_id()
            if usable:
                found = os.fstat(fd)
                return DataFile(fd, size, (found.st_dev, found.st_ino))
            flock(fd, LOCK_EX | LOCK_NB)  # of several processes that find the old file, one replaces it
            if names(path, fd):
                _create(location, replace=True)
        finally:
            if not usable:
                os.close(fd)
    raise StoreUnavailable(f"{path} is replaced again and again")


def open_environment(data: DataFile, path: str) -> lmdb.Environment:
    """Open LMDB on an open file. The path, which may name another file, is used only if there is no `/proc`."""
    own = f"/proc/self/fd/{data.fd}"
    if not Path(own).exists():
        own = path
        if not names(path, data.fd):
            raise StoreUnavailable(f"{path} was replaced")
    return _environment(own, data.size)


def open_checked(path: str, mode: int, *, any_owner: bool = False, header: bool = False) -> int:
    """Open a regular file that this user, or the group where `mode` grants it access, owns. Returns the descriptor.

    With `header`, it must be a complete data file.

    Raises:
        FileNotFoundError: there is no file.
        ConfigurationError: the file must not be used.
        StoreUnavailable: the file cannot be opened now.
    """
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "is a symbolic link, which is not followed" if error.errno == errno.ELOOP else f"({error.strerror})"
        raise _failed(error, path, f"{path} can't be opened: it {why}" if why[0] == "i" else None) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise refused(f"{path} is not a regular file")
        if header:  # first, so that no message recommends to change or delete the file of another program
            _read_header(fd, path)
        reason, hint = _refusal(found, mode, any_owner=any_owner)
        if reason:
            raise refused(f"{path} {reason}", hint)
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


def refused(message: str, hint: str = _OTHER_FILE) -> ConfigurationError:
    """The error for a file that cannot be used."""
    return ConfigurationError([Problem(f"storage: {message}", hint=hint)])


def create_beside(path: str, mode: int) -> tuple[str, int]:
    """Create an empty file beside `path`. Returns its path and its descriptor.

    Raises:
        ConfigurationError: it cannot be created.
        StoreUnavailable: it cannot be created now.
    """
    _remove_abandoned(path)
    beside = f"{path}.{secrets.token_hex(_RANDOM)}.new"
    try:
        fd = os.open(beside, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise _failed(error, path) from None
    os.fchmod(fd, mode)  # whatever the umask
    return beside, fd


def _remove_abandoned(path: str) -> None:
    """Remove the files beside `path` that processes had not completed when they were killed."""
    folder, name = os.path.split(path)
    for beside in Path(folder).glob(f"{escape(name)}.{'[0-9a-f][0-9a-f]' * _RANDOM}.new"):
        with suppress(OSError):
            if time.time() - beside.lstat().st_mtime > _ABANDONED:
                beside.unlink()


def _failed(error: OSError, path: str, message: str | None = None) -> ConfigurationError | StoreUnavailable:
    """The error for a file that cannot be opened or created."""
    if error.errno in _NO_SPACE:
        return StoreUnavailable(f"{path}: {error.strerror}")
    return refused(message or f"{path} can't be opened or created: {error.strerror}", "name another file")


def _refusal(found: os.stat_result, mode: int, *, any_owner: bool) -> tuple[str, str]:
    """Why a file must not be used, and a hint; empty if it may be."""
    if found.st_uid != os.geteuid() and not any_owner:
        groups = {os.getegid(), *os.getgroups()}
        if not (mode & 0o060 == 0o060 and found.st_gid in groups):
            owner = f"belongs to the user {found.st_uid}, but this process runs as the user {os.geteuid()}"
            return owner, "run it as that user, or set ?mode=660 to share the file with a group"
    if found.st_mode & 0o066 & ~mode:
        return f"has the mode {stat.S_IMODE(found.st_mode):o}, which is wider than {mode:o}", _DELETE
    return "", ""


def _read_header(fd: int, path: str) -> tuple[int, bytes]:
    """The size of the map and the boot of the machine. Raises ConfigurationError for a file of another program."""
    raw = os.pread(fd, _HEADER.size, _HEADER_AT)
    if len(raw) < _HEADER.size or not raw.startswith(_MAGIC):
        raise refused(f"{path} is not a file of this store")
    _, size, boot = _HEADER.unpack(raw)
    if os.fstat(fd).st_size < size:
        raise refused(f"{path} is truncated", _DELETE)
    return size, boot


def _create(location: Location, *, replace: bool) -> None:
    """Create the file. Without `replace`, a file that another process has just created stays."""
    path, mode, size = location
    beside, fd = create_beside(path, mode)
    try:
        _environment(beside, size).close()  # writes the first pages
        os.pwrite(fd, _HEADER.pack(_MAGIC, size, boot_id()), _HEADER_AT)
        os.ftruncate(fd, size)
        if replace:
            Path(beside).replace(path)
        else:
            os.link(beside, path)
    except FileExistsError:
        pass
    except lmdb.Error as error:
        raise StoreUnavailable(f"{path} can't be created: {error}") from None
    except OSError as error:
        raise _failed(error, path) from None
    finally:
        os.close(fd)
        Path(beside).unlink(missing_ok=True)


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
