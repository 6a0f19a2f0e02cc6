"""Reads the reports of all processes, for `top --watch`. The process that reads does not report itself."""

import time
from collections import Counter
from collections.abc import Iterable

from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.operations.activity import together
from ratelimit_mw.operations.board import Board
from ratelimit_mw.operations.report_codec import decode_report
from ratelimit_mw.operations.state import LiveState, Outline, StoreState, state_of


class Viewer:
    """Reads what the processes of a limiter's storage report. One thread may use it. Close it after use.

    Args:
        limiter: A limiter with the rules. It need not decide anything.

    Raises:
        ValueError: The storage is not Redis, Sentinels or a cluster.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        rules = limiter.rules
        self._board = Board(limiter.storage_url, rules.parts[0].domain)
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
