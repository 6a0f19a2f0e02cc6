"""The keys on a server, found by SCAN, which holds it up for no longer than a page takes."""

import re
import time
from collections.abc import Iterator
from typing import Any

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.stores.redis.blocking import Blocking

_PAGE = 500
"""Keys that the server looks at in one step."""

_PATIENCE = 5.0
"""Seconds for one step. No request waits for it."""


def scan(connection: Blocking, prefix: str) -> Iterator[str]:
    """The keys that begin with `prefix`, each once. Closes the connection. Raises StoreUnavailable."""
    pattern = (re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + "*").encode()
    seen: set[bytes] = set()
    cursor = b"0"
    try:
        while True:
            # A conversation may come to anything; those of decisions come to replies.
            page: Any = connection.carry(_page(cursor, pattern), time.monotonic() + _PATIENCE)
            cursor, keys = page
            for key in keys:
                if key not in seen:  # SCAN may say one twice
                    seen.add(key)
                    yield key.decode(errors="replace")
            if cursor == b"0":
                return
    finally:
        connection.close()


def _page(cursor: bytes, pattern: bytes) -> Any:
    (reply,) = yield ((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % _PAGE),)
    if isinstance(reply, Exception):
        raise StoreUnavailable(str(reply))
    return reply
