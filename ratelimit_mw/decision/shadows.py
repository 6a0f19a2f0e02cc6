"""What shadow rules would have denied: counted, and said in the log."""

import logging
from collections import Counter

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.late import late, lock
from ratelimit_mw.model import SECOND

_log = logging.getLogger("ratelimit_mw")

_PAUSE = 60 * SECOND
"""Between two lines about one shadow rule: no client can flood the log."""


class Shadows:
    """Counts the would-be denials of each shadow rule; `denials` has them by its name."""

    _counting = late(lock)

    def __init__(self) -> None:
        self.denials: Counter[str] = Counter()
        self._said: dict[str, int] = {}

    def count(self, verdict: Verdict) -> None:
        """Count what `verdict` says of shadow rules; those that deny only together (`Rule.quota`) are none."""
        for (rule, ask), outcome in zip(verdict.charges, verdict.outcomes, strict=True):
            if ask.shadow and not outcome.allowed and not rule.quota:
                self.add(rule.name, verdict.now)

    def add(self, rule: str, now: int) -> None:
        """Count one would-be denial by the rule of that name."""
        with self._counting:
            self.denials[rule] += 1
            so_far = self.denials[rule]
            if abs(now - self._said.get(rule, -_PAUSE)) < _PAUSE:
                return
            self._said[rule] = now
        _log.info("shadow rule %s would have denied a request (%d so far)", rule, so_far)
