"""The data file: how it is checked, created, opened and replaced.

LMDB writes two meta pages at the beginning of the file and leaves the end of each page unused. The header of this
package is in the unused part of the first page. It says which program wrote the file, how large it is, how much of that
is reserved on the disk, and since which boot of the machine. LMDB does not sync the file, so after a reboot its content
is not trusted: a new file replaces it.

A file is created under another name, complete, and then linked to its path. No process can therefore see a part of it.
The file is sparse and has its full size from the beginning. A shorter file was truncated. It is not used, because
reading the missing part would end the process (SIGBUS).

Space on the disk is reserved before LMDB needs it. As a result, a disk that others fill stops only the growth.
"""

import errno
import logging
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

from ratelimit_mw.errors import NameTaken, PermanentFault, StoreUnavailable
from ratelimit_mw.stores.shared.location import FORMAT, Location

_log = logging.getLogger("ratelimit_mw")

_HEADER = Struct("<16s36sQQ")
_HEADER_AT = 2048  # within the first page of every system, and behind the meta data of LMDB
_RESERVED = Struct("<Q")
_RESERVED_AT = _HEADER_AT + _HEADER.size - _RESERVED.size
_NAME = b"ratelimit_mw "
_MAGIC = _NAME + b"%d\n" % FORMAT
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # O_NONBLOCK: opening a fifo must not wait
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
_TRIES = 20
_RANDOM = 8  # bytes in the name of a file that is not complete yet
_ABANDONED = 60.0  # seconds after which such a file is one of a process that was killed
_FULL = 0.8  # of the file that the pages in use may take, if that leaves `_FREE`
_FREE = 512 << 10  # bytes for the copies of the pages that transactions change
_STEP = 64 << 10  # bytes that are reserved at once
_fallocate = getattr(os, "posix_fallocate", None)  # not on macOS: there, a full disk concerns known counters, too

_OTHER_FILE = "name another file in storage.url, as in lmdb:///run/app/limits"
_DELETE = "delete it: the counters start from zero"


class DataFile(NamedTuple):
    """The open data file. `identity` is its device and its inode."""

    fd: int
    size: int
    identity: tuple[int, int]

    def complete(self) -> bool:
        """Whether the file still has its full size."""
        return os.fstat(self.fd).st_size >= self.size

    @property
    def most_written(self) -> int:
        """The bytes that one transaction may write in large values: three transactions need free pages at a time."""
        return max(_FREE, self.size - int(self.size * _FULL)) // 4

    def usable(self) -> int:
        """The bytes that the pages in use may take."""
        (reserved,) = _RESERVED.unpack(os.pread(self.fd, _RESERVED.size, _RESERVED_AT))
        return min(int(reserved), self._most) - _FREE

    def grow(self) -> bool:
        """Reserve more of the disk, if the file may grow and the disk has room. The caller holds the lock."""
        reserved = self.usable() + _FREE
        try:
            if reserved < self._most:
                _reserve(self.fd, reserved, min(_STEP, self._most - reserved))
                return True
        except OSError:
            pass
        return False

    @property
    def _most(self) -> int:
        return min(self.size, int(self.size * _FULL) + _FREE)

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
    path = location.path
    try:
        with suppress(FileNotFoundError):
            os.close(_open_data(location, any_owner=os.geteuid() == 0 and not location.named)[0])
            return
    except PermanentFault as fault:
        raise _taken(location) or fault from None
    if not Path(path).parent.is_dir():
        raise _no_folder(path)


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
            fd, size, reason = _open_data(location)
        except FileNotFoundError:
            _create(location, replace=False)
            continue
        except PermanentFault as fault:
            raise _taken(location) or fault from None
        usable = False
        try:
            if not reason:
                found = os.fstat(fd)
                usable = True
                return DataFile(fd, size, (found.st_dev, found.st_ino))
            flock(fd, LOCK_EX | LOCK_NB)  # of several processes that find the old file, one replaces it
            if reason != _OLD:
                set_aside(location.path, fd, reason)
            elif names(location.path, fd):
                _create(location, replace=True)
        finally:
            if not usable:
                os.close(fd)
    raise StoreUnavailable(f"{location.path} is replaced again and again")


def set_aside(path: str, fd: int, reason: str) -> None:
    """Rename a file of ours that is damaged, so that the next attempt creates a new one. The caller holds its lock."""
    if not names(path, fd):
        return
    try:
        Path(path).replace(f"{path}.bad")
    except OSError as error:
        raise PermanentFault(f"{path} {reason}, and can't be renamed: {error.strerror}", _DELETE) from None
    _log.error("store %s %s: it is now %s.bad, and the counters start from zero", path, reason, path)


def open_environment(data: DataFile, path: str) -> lmdb.Environment:
    """Open LMDB on an open file. The path, which may name another file, is used only if there is no `/proc`."""
    own = f"/proc/self/fd/{data.fd}"
    if not Path(own).exists():
        own = path
        if not names(path, data.fd):
            raise StoreUnavailable(f"{path} was replaced")
    return _environment(own, data.size)


_OLD = "is older than the last boot"


def _open_data(location: Location, *, any_owner: bool = False) -> tuple[int, int, str]:
    """Open a file of ours: its descriptor, the size of its map, and why it must be replaced, or "".

    Raises:
        FileNotFoundError: there is no file.
        PermanentFault: the file must neither be used nor replaced.
        StoreUnavailable: the file cannot be opened now.
    """
    path = location.path
    fd = _open_regular(path)
    try:
        found = os.fstat(fd)
        raw = os.pread(fd, _HEADER.size, _HEADER_AT)
        # First, so that no message recommends to change or delete the file of another program.
        if not raw.startswith(_MAGIC) and (found.st_size or not location.named):
            if raw.startswith(_NAME):
                raise PermanentFault(f"{path} is of another version of this package", f"{_OTHER_FILE}, or delete it")
            raise PermanentFault(f"{path} is not a file of this store", _OTHER_FILE)
        _permit(path, found, location.mode, any_owner=any_owner)
        if not found.st_size:
            return fd, 0, "is empty"
        _, boot, size, _ = _HEADER.unpack(raw.ljust(_HEADER.size, b"\0"))
        if len(raw) < _HEADER.size or found.st_size < size:
            return fd, size, "is truncated"
    except BaseException:
        os.close(fd)
        raise
    return fd, size, "" if boot == boot_id() else _OLD


def open_permitted(path: str, mode: int) -> int:
    """Open a regular file that this user, or the group where `mode` grants it access, owns. Returns the descriptor.

    Raises:
        FileNotFoundError: there is no file.
        PermanentFault: the file must not be used.
        StoreUnavailable: the file cannot be opened now.
    """
    fd = _open_regular(path)
    try:
        _permit(path, os.fstat(fd), mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_regular(path: str) -> int:
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        link = error.errno == errno.ELOOP
        raise _failed(error, path, "is a symbolic link, which is not followed" if link else "") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PermanentFault(f"{path} is not a regular file", _OTHER_FILE)
    return fd


def names(path: str, fd: int) -> bool:
    """Whether the path names the file that is open as `fd`."""
    try:
        return os.path.samestat(Path(path).lstat(), os.fstat(fd))
    except OSError:
        return False


def create_beside(path: str, mode: int) -> tuple[str, int]:
    """Create an empty file beside `path`. Returns its path and its descriptor.

    Raises:
        PermanentFault: it cannot be created.
        StoreUnavailable: it cannot be created now.
    """
    _remove_abandoned(path)
    beside = f"{path}.{secrets.token_hex(_RANDOM)}.new"
    try:
        fd = os.open(beside, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    except FileNotFoundError:
        raise _no_folder(path) from None
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


def _failed(error: OSError, path: str, reason: str = "") -> StoreUnavailable:
    """The error for a file that cannot be opened or created."""
    if error.errno in _PASSING:
        return StoreUnavailable(f"{path}: {error.strerror}")
    reason = reason or f"can't be opened or created: {error.strerror}"
    return PermanentFault(f"{path} {reason}", _OTHER_FILE)


def _no_folder(path: str) -> PermanentFault:
    return PermanentFault(f"the folder of {path} does not exist", f"create it, or {_OTHER_FILE}")


def _taken(location: Location) -> NameTaken | None:
    """The error if another user has the name of the file, in a folder where every user can create files."""
    path = location.path
    try:
        owner = Path(path).lstat().st_uid
    except OSError:
        return None
    if not location.named or owner == os.geteuid():
        return None
    return NameTaken(f"{path} belongs to the user {owner}", f"delete it as root, or {_OTHER_FILE}")


def _permit(path: str, found: os.stat_result, mode: int, *, any_owner: bool = False) -> None:
    """Raise PermanentFault for a file of another user, or with wider permissions."""
    if found.st_uid != os.geteuid() and not any_owner:
        groups = {os.getegid(), *os.getgroups()}
        if not (mode & 0o060 == 0o060 and found.st_gid in groups):
            raise PermanentFault(
                f"{path} belongs to the user {found.st_uid}, but this process runs as the user {os.geteuid()}",
                "run it as that user, or set ?mode=660 to share the file with a group",
            )
    if found.st_mode & 0o066 & ~mode:
        wide = f"{path} has the mode {stat.S_IMODE(found.st_mode):o}, which is wider than {mode:o}"
        raise PermanentFault(wide, f"chmod {mode:o} it, or {_DELETE}")


def _reserve(fd: int, start: int, length: int) -> None:
    """Reserve a part of the disk behind the part that is reserved. Raises OSError if there is no room."""
    if _fallocate is not None:
        _fallocate(fd, start, length)
    os.pwrite(fd, _RESERVED.pack(start + length), _RESERVED_AT)


def _create(location: Location, *, replace: bool) -> None:
    """Create the file. Without `replace`, a file that another process has just created stays."""
    path, mode, size = location.path, location.mode, location.size
    beside, fd = create_beside(path, mode)
    try:
        _environment(beside, size).close()  # writes the first pages
        os.pwrite(fd, _HEADER.pack(_MAGIC, boot_id(), size, 0), _HEADER_AT)
        os.ftruncate(fd, size)
        _reserve(fd, 0, min(_FREE + _STEP, size))
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
