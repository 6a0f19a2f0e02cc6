"""Units: the grammar of durations, that of sizes, how messages show a duration, and whole costs.

Inside the package a duration is a whole number of microseconds. A rules file writes `500ms`, `2 seconds`, `1h`, `1 day`
or `minute`, and every word that takes a duration reads it with `parse_duration`.

This module is internal: its names may change in any release.
"""

import math
import re

from ratelimit_mw.errors import Invalid, nearest, quoted

MILLISECOND = 1_000
SECOND = 1_000_000
"""Microseconds in a second."""

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

UNITS = {
    "millisecond": MILLISECOND,
    "second": SECOND,
    "minute": MINUTE,
    "hour": HOUR,
    "day": DAY,
    "week": 7 * DAY,
    "month": 30 * DAY,
    "year": 365 * DAY,
}
"""The units by name, in microseconds. A month is 30 days, a year is 365 days."""

SHORT_UNITS = {
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "hr": "hour",
    "d": "day",
    "w": "week",
}
"""Abbreviations of the units. Each may also have a plural s, such as `mins`."""

LONGEST_NUMBER = 18
"""The most digits of a number. A longer number is out of every range."""

DURATION_FORM = "write a number and a unit, for example 100ms or 2 hours"
"""The hint for a text that is not a duration."""

_DURATION = re.compile(r"\s*(?:([0-9]+)(?:\.([0-9]{1,6}))?\s*)?([a-z]+)\s*", re.IGNORECASE)


def parse_duration(text: str) -> int:
    """Return a duration in microseconds.

    Args:
        text: The duration, such as "100ms", "1.5 seconds", "2 hours" or "minute".

    Raises:
        Invalid: The text is not a duration, or the duration is zero.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise Invalid(f"{quoted(text.strip())} is not a duration", DURATION_FORM)
    whole, fraction, word = match.groups()
    unit = unit_of(word)
    if whole is None:
        return unit
    if len(whole) > LONGEST_NUMBER:
        raise Invalid(f"the number {quoted(whole)} is too large", "at most 1000000000")
    duration = int(whole) * unit
    if fraction is not None:
        from decimal import Decimal  # few durations need it

        # A fraction of a microsecond is rounded up, so that a window is never shorter than the file says.
        duration = math.ceil(Decimal(f"{whole}.{fraction}") * unit)
    if not duration:
        raise Invalid("the duration is zero", "the number before the unit must be above 0")
    return duration


_SIZE = re.compile(r"([0-9]{1,9})\s*(?:([KMG])i?)?B?", re.IGNORECASE)
_PREFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int | None:
    """Return a size in bytes, such as "64KiB" or "64MB". With and without the i, a prefix is a power of 1024.

    None if the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    return None if match is None else int(match[1]) * _PREFIXES[(match[2] or "").upper()]


def unit_of(word: str) -> int:
    """Return a unit in microseconds. It may be a full name, an abbreviation or a plural. Raises `Invalid`."""
    lower = word.lower()
    name = next(
        (name for form in (lower, lower.removesuffix("s")) if (name := SHORT_UNITS.get(form, form)) in UNITS), ""
    )
    if not name:
        raise Invalid(f"{quoted(word)} is not a unit of time", nearest(lower.removesuffix("s"), UNITS))
    return UNITS[name]


def spell_period(period: int) -> str:
    """Return a period (microseconds) as text after "per": "minute", "2 hours"."""
    for name, unit in reversed(UNITS.items()):
        if name not in ("month", "year") and period % unit == 0:
            return name if period == unit else f"{period // unit} {name}s"
    return f"{period} microseconds"


def spell_duration(duration: int) -> str:
    """Return a duration (microseconds) as text: "1 minute", "2 hours"."""
    words = spell_period(duration)
    return words if " " in words else f"1 {words}"


_MAX_COST = 10**15
"""A greater cost is reduced to this number. It is above every limit, and every store represents it exactly."""


def whole(cost: object) -> int:
    """The cost as a plain int, at most 10^15. Raises ValueError unless it is a whole number of at least 0."""
    if not isinstance(cost, int) or cost < 0:
        raise ValueError(f"cost is {cost!r}: it must be a whole number of at least 0")
    return min(int(cost), _MAX_COST)
