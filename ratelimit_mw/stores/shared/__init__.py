"""The store for `lmdb://`: counters in a file, exact for all processes of one machine, without a server.

* `file` reads the URL, and checks, creates and opens the data file.
* `table` decides about counters in the file, in a transaction of LMDB.
* `store` is the store, with the lock that processes and threads share.
* `records` keeps overrides and the kill switch in a second file.

No module of the package except these imports `lmdb`, and only a storage URL that begins with lmdb:// loads them.
"""

import os

from ratelimit_mw.clock import Clock
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.base import Store


def open_store(settings: StorageSettings, clock: Clock | None) -> Store:
    """The store for `lmdb://`. The first decision creates or opens the file.

    Raises:
        ValueError: the URL is malformed, the platform is Windows, or the package `lmdb` is not installed.
    """
    if os.name == "nt":
        raise ValueError("lmdb:// does not work on Windows: use memory:// or redis://")
    try:
        import lmdb  # noqa: F401
    except ImportError as error:
        raise ValueError(f"lmdb:// needs the package lmdb: pip install 'ratelimit_mw[shared]' ({error})") from None
    from ratelimit_mw.stores.shared.file import Location
    from ratelimit_mw.stores.shared.store import SharedStore

    return SharedStore(
        Location.parse(settings.url), max_counters=settings.max_counters, timeout=settings.timeout, clock=clock
    )
