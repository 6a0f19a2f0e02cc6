"""The board: keys in Redis to which processes write their reports as text, and from which they read those of others.

Over `lmdb://`, the board is in files, see `stores.shared.records.FileBoard`.

The board has a fixed number of places. Each place is a key, so no command has to search for keys. A process occupies a
free place and writes its text there once a second. If it stops writing, the key expires. All keys have one hash tag, so
a cluster has them on one node, and one MGET reads the board.

A `Viewer` reads the board for `top --watch`.
"""

import random
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.operations.activity import together
from ratelimit_mw.operations.report_codec import decode_report
from ratelimit_mw.operations.state import LiveState, Outline, StoreState, state_of
from ratelimit_mw.rules.compiled import key_of_domain
from ratelimit_mw.stores import kind_of

if TYPE_CHECKING:
    from ratelimit_mw.stores.shared.records import FileBoard

PLACES = 128
"""The most limiters of all processes that can report at the same time."""

LASTS = 8
"""A text that is not written again disappears after so many seconds."""

_MINE = 5.0
"""For so many seconds after a write, this process relies on its place. It is less than `LASTS`, because a write may
arrive a second late. The place may then belong to another process already."""

_WITHIN = 1.0
"""The seconds that a call may take. No request waits for it."""

_TRIES = 3

_chance = random.Random()  # separate, so that the app's seeded random numbers are not disturbed


_Command = tuple[str | bytes | int, ...]


class Board:
    """The board of a domain. One thread writes, and any thread reads. Methods block, and may raise StoreUnavailable.

    Args:
        url: The URL of a server, of Sentinels or of a cluster.
        domain: The first domain of the rules.

    Raises:
        ValueError: The URL is malformed.
    """

    def __init__(self, url: str, domain: str) -> None:
        from ratelimit_mw.stores.redis.records import CommandClient  # imported late: redis-py is slow to import

        self._client = CommandClient(url)
        # The key of a counter has the name of a rule after the domain. In such a name, a tilde is escaped.
        tag = key_of_domain(domain)
        self._keys = [f"{tag}:~live:{{{tag}}}:{place}" for place in range(PLACES)]
        self.leave()

    def leave(self) -> None:
        """Give up the place without removing its text. The child of a fork must call this."""
        self._place: int | None = None
        self._written = 0.0
        self._text = b""

    @property
    def has_place(self) -> bool:
        """True if this process occupies a place, so that each call takes one round trip."""
        return self._mine() is not None

    def put(self, text: str) -> bool:
        """Write the text of this process. Return False if all places are occupied."""
        place, before = self._mine(), self._text
        if place is None:
            return self._occupy(text)
        (found,) = self._ask((*self._write(place, text), "GET"))
        if found not in (None, before):
            # The server has lost its keys, and another process was first to occupy the place.
            self.leave()
        return True

    def read(self) -> list[bytes]:
        """Return the texts of the other processes."""
        (texts,) = self._ask(self._read())
        return [text for place, text in enumerate(texts) if text is not None and place != self._place]

    def withdraw(self) -> None:
        """Remove the text of this process."""
        place = self._mine()
        self.leave()
        if place is not None:
            self._ask(("DEL", self._keys[place]))

    def close(self) -> None:
        """Close the connection. The next call connects again."""
        self._client.close()

    def _mine(self) -> int | None:
        """Return the place of this process. None if it has none, or may have lost it because it did not run."""
        return self._place if time.monotonic() - self._written < _MINE else None

    def _occupy(self, text: str) -> bool:
        for _ in range(_TRIES):
            (texts,) = self._ask(self._read())
            free = [place for place, found in enumerate(texts) if found is None]
            if not free:
                return False
            place = _chance.choice(free)
            if self._ask((*self._write(place, text), "NX"))[0] is not None:
                self._place = place
                return True
        return False  # other processes were faster

    def _write(self, place: int, text: str) -> _Command:
        self._text = text.encode()
        self._written = time.monotonic()
        return "SET", self._keys[place], self._text, "EX", LASTS

    def _read(self) -> _Command:
        return "MGET", *self._keys

    def _ask(self, *commands: _Command) -> list[Any]:
        return self._client.ask_all(self._keys[0], commands, _WITHIN)


def open_board(url: str, domain: str) -> "Board | FileBoard | None":
    """Return the board of a storage. None if each process has a storage of its own. See `Board` for the arguments."""
    kind = kind_of(url)
    if kind.server:
        return Board(url, domain)
    if not kind.records:
        return None
    from ratelimit_mw.stores.shared.records import FileBoard  # it needs the package lmdb

    return FileBoard(url)


class Viewer:
    """Reads what the processes of a limiter's storage report. It does not report itself. One thread may use it.

    Args:
        limiter: A limiter with the rules. It need not decide anything.

    Raises:
        ValueError: The processes do not share their storage.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        rules = limiter.rules
        board = open_board(limiter.storage_url, rules.parts[0].domain)
        if board is None:
            raise ValueError("the processes do not share their storage")
        self._board = board
        self._outline = Outline(rules)
        self._kind = limiter.storage_url.partition(":")[0]

    def state(self) -> LiveState | None:
        """Return the state of all processes, as `Live.state` does. None if no process reports.

        It takes one command. Raises StoreUnavailable.
        """
        began = time.perf_counter()
        texts = self._board.read()
        latency = round((time.perf_counter() - began) * 1_000, 2)
        reports = [found for found in map(decode_report, texts) if found is not None]
        if not reports:
            return None
        return state_of(
            together([each.activity for each in reports]),
            self._outline,
            version=_usual(each.version for each in reports),
            switch=_usual(each.switch for each in reports),
            at=time.time(),
            store=StoreState(self._kind, up=True, latency_ms=latency),
            processes=len({each.process for each in reports}),
            shared=True,
        )

    def close(self) -> None:
        """Close the connection."""
        self._board.close()


def _usual(values: Iterable[str]) -> str:
    """Return the value that most processes have. They differ for a moment, while one of them has newer rules."""
    return Counter(values).most_common(1)[0][0]
