"""Shares the reports of processes: sends the one of this process once a second, and reads those of the others."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ratelimit_mw.errors import ErrorReply, StoreUnavailable
from ratelimit_mw.operations.activity import Activity, together
from ratelimit_mw.operations.report_codec import ProcessReport, decode_report, encode_report
from ratelimit_mw.process_local import condition, event, lazy
from ratelimit_mw.stores import kind_of

if TYPE_CHECKING:
    from ratelimit_mw.operations.board import Board

_log = logging.getLogger("ratelimit_mw")

EVERY = 1.0
"""Seconds between two reports."""

_FRESH = 2.5
"""Seconds for which the reports of others are shown. They are sent once a second, and a call may take a second."""

_WATCHED = 5.0
"""Seconds for which this process goes on reading the reports of others after a viewer has asked for them."""

_PATIENCE = 0.2
"""Seconds that the first viewer waits until the reports of others are read."""


class Others(NamedTuple):
    """The reports of the other processes.

    Attributes:
        at: When they were read, in seconds of the monotonic clock.
        reports: One for each limiter of another process.
        together: What these processes did together. None if there are none.
    """

    at: float
    reports: Sequence[ProcessReport]
    together: Activity | None


class Seen(NamedTuple):
    """What the last exchange has shown. It is one value, so that a state is about one moment.

    Attributes:
        others: The reports of the other processes, at most 2.5 seconds old. None if they are not known.
        away: True if the server did not answer the last time.
    """

    others: Others | None = None
    away: bool = False


class _Exchange(NamedTuple):
    """The outcome of one exchange. `failed`: the reports of others could not be read."""

    others: Others | None = None
    failed: bool = False
    away: bool = False

    def is_fresh(self) -> bool:
        return self.others is not None and time.monotonic() - self.others.at < _FRESH


class Sharing:
    """Exchanges the reports of one limiter with other processes.

    One thread calls `exchange` and `end`. Any thread may call the other methods.

    Args:
        url: The URL of the storage.
        domain: The first domain of the rules.
    """

    _news = lazy(condition)
    _wake = lazy(event)

    def __init__(self, url: str, domain: str) -> None:
        self.possible = kind_of(url).server
        """True if the storage can be shared: it is a server."""
        self.stopped = False
        """True if the thread has to end."""
        self._url, self._domain = url, domain
        self._board: Board | None = None
        self._latest = _Exchange()
        self._looked = float("-inf")
        self._due = float("-inf")
        self._latencies: deque[float] = deque(maxlen=9)
        self._logged: set[str] = set()

    @property
    def latency_ms(self) -> float | None:
        """The median time of the last round trips, in milliseconds. None if there was none."""
        if not self._latencies:
            return None
        return round(sorted(self._latencies)[len(self._latencies) // 2], 2)

    @property
    def seen(self) -> Seen:
        """What the last exchange has shown."""
        latest = self._latest
        return Seen(latest.others if latest.is_fresh() else None, latest.away)

    @property
    def watched(self) -> bool:
        """True if a viewer has asked in the last 5 seconds."""
        return time.monotonic() - self._looked < _WATCHED

    def look(self) -> Seen:
        """Return what is `seen`, for a viewer. The first call waits for it, at most 0.2 seconds."""
        self._looked = time.monotonic()
        if not self.possible or self.stopped:
            return Seen()
        if not self._known():
            self._wake.set()
            with self._news:
                self._news.wait_for(self._known, _PATIENCE)
        return self.seen

    def stop(self) -> None:
        """Make the thread end."""
        self.stopped = True
        self._wake.set()

    def wait(self) -> None:
        """Wait until the next exchange. It comes after a second, or as soon as a viewer needs it."""
        self._wake.wait(max(self._due - time.monotonic(), 0.0))
        self._wake.clear()

    def exchange(self, make_report: Callable[[], ProcessReport]) -> None:
        """Send the report of this process if a second has passed, and read those of the others if there is a viewer.

        Args:
            make_report: Returns the report of this process.
        """
        now = time.monotonic()
        due, wanted = now >= self._due, self.watched
        if due:
            self._due = now + EVERY
        if not self.possible or not (due or (wanted and not self._latest.is_fresh())):
            return
        text = encode_report(make_report()) if due else None
        try:
            texts = self._carried(text, wanted=wanted)
        except StoreUnavailable as error:
            refused = isinstance(error.__cause__, ErrorReply)
            if refused:
                self._log_once(f"the server refuses the reports of the live page: {error}")
            self._note(_Exchange(failed=True, away=not refused))
        else:
            if wanted:
                reports = [found for found in map(decode_report, texts) if found is not None]
                activities = [each.activity for each in reports]
                self._note(_Exchange(Others(time.monotonic(), reports, together(activities) if activities else None)))
            else:
                self._note(_Exchange(self._latest.others))

    def end(self) -> None:
        """Remove the report of this process, and close the connection."""
        if self._board is not None:
            with suppress(StoreUnavailable):  # it expires
                self._board.withdraw()
            self._board.close()

    def _carried(self, text: str | None, *, wanted: bool) -> Sequence[bytes]:
        """Write the text, and return those of the others if they are wanted."""
        if self._board is None:
            from ratelimit_mw.operations.board import Board  # imported late: redis-py is slow to import

            self._board = Board(self._url, self._domain)
        has_place, began = self._board.has_place, time.perf_counter()
        if text is None:
            texts = self._board.read()
        elif wanted:
            texts = self._board.put_and_read(text)
        else:
            texts = []
            if not self._board.put(text):
                self._log_once("too many processes report to the live page; it does not show this one")
        if has_place:  # otherwise it took several round trips
            self._latencies.append((time.perf_counter() - began) * 1_000)
        return texts

    def _note(self, latest: _Exchange) -> None:
        with self._news:
            self._latest = latest
            self._news.notify_all()

    def _known(self) -> bool:
        """Return True if a viewer need not wait: the reports are known, or the last exchange has failed."""
        latest = self._latest
        return latest.failed or latest.is_fresh()

    def _log_once(self, message: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            _log.warning("%s", message)
