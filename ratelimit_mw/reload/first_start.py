"""The first start of a server, which fails if its store is required and away. Later starts of its workers do not.

An empty file beside the last good rules notes that a worker has started.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from ratelimit_mw.errors import PermanentFault, StoreUnavailable
from ratelimit_mw.process_local import server_of_worker
from ratelimit_mw.reload.last_good import FOLDER

_FIRST_STARTS = 60.0
"""Seconds from the start of a server after which a worker that starts is one that is started again."""


@contextlib.contextmanager
def starting(url: str, *, required: bool) -> Iterator[None]:
    """Ignore that a store is away when a server starts, unless it is required and the server starts for the first time.

    A process that is no worker is the server itself, so each of its starts is the first. A worker starts for the first
    time if its server is less than a minute old and no other worker has started. Where a worker cannot be told from a
    server, or its start cannot be noted, no start fails.

    Args:
        url: The URL of the store.
        required: Whether the store is required.

    Raises:
        StoreUnavailable: The store is away, and the start must fail.
    """
    if not required:
        with contextlib.suppress(StoreUnavailable):
            yield
        return
    server = server_of_worker()
    try:
        yield
    except StoreUnavailable as error:
        if _starts_first(server, url):
            remedy = f": {error.remedy}" if isinstance(error, PermanentFault) else ""
            raise StoreUnavailable(f"storage.required is true, and the store is away ({error}){remedy}") from error
    if server is not None:
        with contextlib.suppress(OSError):
            os.close(os.open(_mark(server, url), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def _starts_first(server: str | None, url: str) -> bool:
    if server is None:
        return Path("/proc/self/stat").exists()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(server.split("-")[2]) / os.sysconf("SC_CLK_TCK")
    return age < _FIRST_STARTS and os.access(FOLDER, os.W_OK) and not _mark(server, url).exists()


def _mark(server: str, url: str) -> Path:
    digest = blake2b(url.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return FOLDER / f"ratelimit_mw-{os.geteuid()}-{server}-{digest}.started"
