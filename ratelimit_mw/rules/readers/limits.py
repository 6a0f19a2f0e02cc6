"""The small languages of limits and times: "100 per minute", "10/2s", "100ms"."""

import re
from difflib import get_close_matches
from typing import NamedTuple

from ratelimit_mw.model import SECOND
from ratelimit_mw.rules.documents.tree import quoted

DAY = 86_400 * SECOND

MOST = 1_000_000_000
"""The largest limit, burst and cost."""

UNITS = {
    "second": SECOND,
    "minute": 60 * SECOND,
    "hour": 3_600 * SECOND,
    "day": DAY,
    "week": 7 * DAY,
    "month": 30 * DAY,
    "year": 365 * DAY,
}
_SHORT = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week"}
_LIMIT = re.compile(r"\s*([0-9]+)\s*(?:per\s|/)(.*)", re.IGNORECASE | re.DOTALL)
_NEARLY = re.compile(
    r"\s*([0-9]{1,9})\s*(?:r|reqs?|requests?|hits?|calls?|times?)?\s*(?:per|/|an?\b|every|each|in)\s*([a-z]+)",
    re.IGNORECASE,
)
_CONCURRENT = re.compile(r"\s*([0-9]+)\s+([a-z]+)\s*", re.IGNORECASE)
_PERIOD = re.compile(r"\s*(?:([0-9]+)\s*)?([a-z]+)\s*", re.IGNORECASE)
_DURATION = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m)\s*")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_LONGEST_NUMBER = 18

FORM = "write N per [M] second, minute, hour, day, week, month or year, as in 100 per minute; or unlimited"


class Malformed(ValueError):
    """A text that can't be read; `hint` says what could be."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Window(NamedTuple):
    """`limit` requests per `period` (microseconds; 0: at a time), `burst` where the limit states its own."""

    limit: int
    period: int
    burst: int | None = None


def parse_limit(text: str) -> Window | None:
    """The window that `text` states, and None for `unlimited`. Raises `Malformed`."""
    if text.strip().lower() == "unlimited":
        return None
    match = _LIMIT.fullmatch(text)
    try:
        at_once = _CONCURRENT.fullmatch(text)
        if at_once is not None and at_once[2].lower() == "concurrent":
            return Window(_whole(at_once[1]), 0)
        if match is None:
            raise Malformed(f"{quoted(text)} is not a limit", FORM)
        return Window(_whole(match[1]), parse_period(match[2]))
    except Malformed as error:
        error.hint = (error.hint == FORM and _meant(text)) or error.hint
        raise


def _meant(text: str) -> str:
    """The hint for what is nearly a limit, if it is."""
    parts = text.split(",")
    if len(parts) > 1 and all(map(_LIMIT.fullmatch, parts)):
        return f"several limits are a list: [{', '.join(part.strip() for part in parts)}]"
    at_once = _CONCURRENT.fullmatch(text)
    if at_once is not None and get_close_matches(at_once[2].lower(), ("concurrent", "concurrently")):
        return f"did you mean '{at_once[1]} concurrent'?"
    nearly = _NEARLY.match(text)
    if nearly is None or (nearly[2].lower() not in _SHORT and nearly[2].lower().removesuffix("s") not in UNITS):
        return ""
    return f"did you mean '{nearly[1]} per {nearly[2]}'?"


def parse_period(text: str) -> int:
    """The microseconds in "minute", "2 hours", "10s" … Raises `Malformed`."""
    match = _PERIOD.fullmatch(text)
    if match is None:
        raise Malformed(f"{quoted(text.strip())} is not a time", FORM)
    word = match[2].lower()
    unit = _SHORT.get(word) or word.removesuffix("s")
    if unit not in UNITS:
        near = get_close_matches(unit, UNITS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(UNITS)}"
        raise Malformed(f"{quoted(match[2])} is not a unit of time", hint)
    many = _whole(match[1] or "1")
    if many == 0:
        raise Malformed("a limit over no time at all", "the number before the unit is 1 or more")
    return many * UNITS[unit]


def parse_duration(text: str) -> float:
    """The seconds in "100ms", "2s", "1m". Raises `Malformed`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise Malformed(f"{quoted(text)} is not a duration", "write it with its unit, as 100ms, 2s or 1m")
    return float(match[1]) * _DURATION_UNITS[match[2]]


def spell(period: int) -> str:
    """A period in words, as messages show it: "minute", "2 hours"."""
    for name, unit in reversed(UNITS.items()):
        if name not in ("month", "year") and period % unit == 0:
            return name if period == unit else f"{period // unit} {name}s"
    return f"{period} microseconds"


def spell_time(period: int) -> str:
    """A period in words where it stands by itself: "1 minute", "2 hours"."""
    words = spell(period)
    return words if " " in words else f"1 {words}"


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise Malformed(f"the number {quoted(digits)} is too large", "at most 1000000000")
    return int(digits)
