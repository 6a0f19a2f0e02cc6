"""Shares the reports of processes: sends the one of this process once a second, and reads those of the others.

Over Redis, they are on a board: each process has a key, which it writes once a second. If it stops writing, the key
expires. A set has the names of the keys, so no command has to search for them. All have one hash tag, so a cluster has
them on one node, and one MGET reads the board. Over `lmdb://`, the board is in files, see
`stores.shared.records.FileBoard`.
"""

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ratelimit_mw.errors import ErrorReply, PermanentFault, StoreUnavailable
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.operations.activity import Activity, ProcessReport, decode_report, encode_report, together
from ratelimit_mw.process_local import event, lazy
from ratelimit_mw.rules.compiled import key_of_domain
from ratelimit_mw.stores import kind_of

if TYPE_CHECKING:
    from ratelimit_mw.stores.shared.records import FileBoard


MOST = 128
"""The most reports of other processes that are read."""

LASTS = 8
"""A text that is not written again disappears after so many seconds."""

_WITHIN = 1.0
"""The seconds that a call may take. No request waits for it."""

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
        self._names = f"{tag}:~live:{{{tag}}}"
        self._own = f"{self._names}:{secrets.token_hex(8)}"

    def put(self, text: str) -> None:
        """Write the text of this process."""
        self._ask(
            ("SET", self._own, text, "EX", LASTS), ("SADD", self._names, self._own), ("EXPIRE", self._names, LASTS)
        )

    def read(self) -> list[bytes]:
        """Return the texts of the other processes. The names of those that have ended are removed."""
        (names,) = self._ask(("SMEMBERS", self._names))
        others = sorted(name for name in names if name != self._own.encode())[:MOST]
        if not others:
            return []
        (texts,) = self._ask(("MGET", *others))
        if ended := [name for name, text in zip(others, texts, strict=True) if text is None]:
            self._ask(("SREM", self._names, *ended))
        return [text for text in texts if text is not None]

    def withdraw(self) -> None:
        """Remove the text of this process."""
        self._ask(("DEL", self._own), ("SREM", self._names, self._own))

    def close(self) -> None:
        """Close the connection. The next call connects again."""
        self._client.close()

    def _ask(self, *commands: _Command) -> list[Any]:
        return self._client.ask_all(self._names, commands, _WITHIN)


def open_board(url: str, domain: str) -> "Board | FileBoard":
    """Return the board of a storage that processes share. See `Board` for the arguments."""
    if kind_of(url).server:
        return Board(url, domain)
    from ratelimit_mw.stores.shared.records import FileBoard  # it needs the package lmdb

    return FileBoard(url)


EVERY = 1.0
"""Seconds between two exchanges."""

_PATIENCE = 0.2
"""The seconds that a viewer waits for the reports of others. The page answers within 0.3 seconds without the server."""

_VIEWED = 5.0
"""The seconds after a look for which the thread reads the reports of others. The page looks every two seconds."""


class Others(NamedTuple):
    """The reports of the other processes.

    Attributes:
        reports: One for each limiter of another process.
        together: What these processes did together. None if there are none.
    """

    reports: Sequence[ProcessReport]
    together: Activity | None


class Sharing:
    """Exchanges the reports of one limiter with other processes.

    One thread calls `exchange`, `wait` and `end`. Any thread may call the other methods.

    Args:
        url: The URL of the storage.
        domain: The first domain of the rules.
    """

    _due = lazy(event)
    _read = lazy(event)

    def __init__(self, url: str, domain: str) -> None:
        kind = kind_of(url)
        self.possible = bool(kind.records)
        """True if the processes share the storage."""
        self.server = kind.server
        """True if the storage is a server, so that an exchange shows whether it is up."""
        self.away = False
        """True if the server did not answer the last time."""
        self.latency_ms: float | None = None
        """The time of the last round trip, in milliseconds: of the first, with connecting. None if there was none."""
        self._url, self._domain = url, domain
        self._board: Board | FileBoard | None = None
        self._others: Others | None = None
        self._looked_at = self._read_at = float("-inf")
        self._ended = False
        self._once = Once()

    def others(self) -> Others | None:
        """Return the reports of the other processes, about a second old. None if they are not known.

        The thread reads them while viewers look. The first look waits for it for 0.2 seconds at most, and not while the
        server is away.
        """
        if self.away or not self.possible or self._ended:
            return None
        self._looked_at = time.monotonic()
        if self._others is None and self._looked_at - self._read_at >= EVERY:
            self._read.clear()
            self._due.set()
            self._read.wait(_PATIENCE)
        return self._others

    def exchange(self, report: ProcessReport) -> None:
        """Send the report of this process. While viewers look, read those of the others.

        They are also read the first time, because this removes what killed processes have left.
        """
        viewed = self._board is None or time.monotonic() - self._looked_at < _VIEWED
        board = self._board = self._board or open_board(self._url, self._domain)
        began = time.perf_counter()
        found: Others | None = None
        try:
            board.put(encode_report(report))
            self.latency_ms = round((time.perf_counter() - began) * 1_000, 2)
            if viewed:
                reports = [each for each in map(decode_report, board.read()) if each is not None]
                found = Others(reports, together([each.activity for each in reports]) if reports else None)
        except StoreUnavailable as error:
            self._note(error)
        else:
            self.away = False
        self._others = found
        if viewed:
            self._read_at = time.monotonic()
            self._read.set()

    def wait(self) -> bool:
        """Wait until the next exchange is due. Return False if the thread must end."""
        self._due.wait(EVERY)
        self._due.clear()
        return not self._ended

    def stop(self) -> None:
        """Make the thread end."""
        self._ended = True
        self._due.set()

    def end(self) -> None:
        """Remove the report of this process, and close the connection."""
        if self._board is not None:
            with suppress(StoreUnavailable):  # it expires
                self._board.withdraw()
            self._board.close()

    def _note(self, error: StoreUnavailable) -> None:
        refused = isinstance(error.__cause__, ErrorReply)
        self.away = not refused
        if refused:
            self._once(logger.warning, "the server refuses the reports of the live page: %s", error, about=str(error))
        elif isinstance(error, PermanentFault) and not self.server:
            message = "the live page shows only this process: %s: %s"
            self._once(logger.warning, message, error, error.remedy, about=str(error))
