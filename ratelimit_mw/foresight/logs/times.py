"""Reads the times in logs, as microseconds since the epoch.

The forms are that of the Common Log Format, ISO 8601, and numbers since the epoch. A time without a time zone is UTC.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

from ratelimit_mw.model import SECOND

TimeReader = Callable[[str], int]
"""Reads a time. Raises ValueError if the text is not one."""

_LATEST = 253_402_300_800 * SECOND
"""The first microsecond of the year 10 000."""

_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: f"{number:02}" for number, name in enumerate(_MONTH_NAMES, 1)}
_NUMBER = re.compile(r"\d{1,19}(?:\.\d{1,9})?", re.ASCII)

_UNITS = ((10**11, SECOND), (10**14, SECOND // 1000), (10**17, 1), (10**19, Decimal("0.001")))
"""The first numbers that are too large for a unit, and its microseconds. Seconds are from before the year 5138."""


def common_time(text: str) -> int:
    """Read a time of the Common Log Format, as "17/May/2015:10:05:03 +0000". A fraction of the second may follow it.

    Raises:
        ValueError: The text is not such a time.
    """
    month = _MONTHS.get(text[3:6])
    if month is None:
        raise ValueError(f"{text!r:.80} is not a time")
    return iso_time(f"{text[7:11]}-{month}-{text[:2]}T{text[12:].replace(' ', '')}")


def iso_time(text: str) -> int:
    """Read a time of ISO 8601, as "2015-05-17T10:05:03.123Z". Raises ValueError if the text is not such a time."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    past = at - _EPOCH
    return _checked((past.days * 86_400 + past.seconds) * SECOND + past.microseconds)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def epoch_time(text: str) -> int:
    """Read a number since the epoch: seconds, or milli-, micro- or nanoseconds, which are told by their size.

    Raises:
        ValueError: The text is not such a number.
    """
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text!r:.80} is not a time")
    number = Decimal(text)
    unit = next(unit for most, unit in _UNITS if number < most)
    return _checked(int(number * unit))


def any_time(text: str) -> int:
    """Read a time in any of the forms. Raises ValueError if the text is not a time."""
    text = text.strip().removeprefix("[").removesuffix("]")
    if text[2:3] == "/":
        return common_time(text)
    try:
        return epoch_time(text)
    except ValueError:
        return iso_time(text)


def strftime_time(form: str) -> TimeReader:
    """Return a function that reads the times that `strftime` writes in this form, as Apache's `%{form}t`."""

    def read(text: str) -> int:
        at = datetime.strptime(text, form)  # noqa: DTZ007 - a form may have no time zone
        return iso_time(at.isoformat())

    return read


def _checked(at: int) -> int:
    if not 0 <= at < _LATEST:
        raise ValueError("the time is before 1970 or after 9999")
    return at


_MOST = 8192
"""How many texts are remembered. Lines that follow each other have equal times."""


class KnownTimes(dict[str, int]):
    """The times that were read, by their texts. A text that is not known is read.

    Looking a text up raises ValueError if it is not a time.
    """

    def __init__(self, read: TimeReader) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, text: str) -> int:
        """Read a text, and remember it."""
        at = self._read(text)
        if len(self) >= _MOST:
            self.clear()
        self[text] = at
        return at


def duration(text: str, unit: float) -> int:
    """Read a duration in a unit of so many microseconds. -1 if the text is not a number, as "-" where it is unknown."""
    try:
        length = float(text.removesuffix("s")) * unit
    except ValueError:
        return -1
    return round(length) if 0 <= length < _LATEST else -1
