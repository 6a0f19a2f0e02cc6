"""What a log says of bans: each once, but never more lines than an operator can read."""

import logging
from collections import Counter
from urllib.parse import unquote

from ratelimit_mw.identity.digest import digester
from ratelimit_mw.late import late, lock
from ratelimit_mw.model import SECOND, Ask
from ratelimit_mw.units import spell_duration

_log = logging.getLogger("ratelimit_mw")

_LINES = 10
"""Bans of one rule that are told in a minute. How many more there were is said with the first of the next."""


class BanLog:
    """Tells of the bans that begin, their clients as hashes; those that shadow rules would begin it also counts."""

    _counting = late(lock)

    def __init__(self, secret: str) -> None:
        self.shadows: Counter[str] = Counter()
        self._secret = secret
        self._told: dict[str, tuple[int, int]] = {}

    def begun(self, ask: Ask, row: int, lasts: int, now: int) -> None:
        """A ban has begun at `now` that lasts so many microseconds, the `row`th of a row."""
        stem, _, identity = ask.key.partition("{")
        domain, rule = map(unquote, stem.split(":")[:2])
        with self._counting:
            if ask.shadow:
                self.shadows[rule] += 1
            told, unsaid = self._count(rule, now // (60 * SECOND))
        if told <= _LINES:
            _log.warning(
                "rule %s %s client %s for %s%s%s",
                rule,
                "would have banned" if ask.shadow else "bans",
                digester(self._secret, domain)(identity),
                spell_duration(lasts),
                f" (ban {row} in a row)" if row > 1 else "",
                f"; {unsaid} more bans were not logged" if unsaid else "",
            )

    def _count(self, rule: str, minute: int) -> tuple[int, int]:
        """How many bans of this minute there are, and how many of the one before were not said."""
        before, told = self._told.get(rule, (minute, 0))
        unsaid = 0
        if before != minute:
            told, unsaid = 0, max(told - _LINES, 0)
        self._told[rule] = minute, told + 1
        return told + 1, unsaid
