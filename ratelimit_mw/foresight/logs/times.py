"""Reads the times in logs, as microseconds since the epoch.

The forms are that of the Common Log Format, ISO 8601, and numbers since the epoch. A time without a time zone is UTC.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime

from ratelimit_mw.model import SECOND

TimeReader = Callable[[str], int]
"""Reads a time. Raises ValueError if the text is not one."""

_LATEST = 253_402_300_800 * SECOND
"""The first microsecond of the year 10 000."""

_MONTH_NAMES = "JanFebMarAprMayJunJulAugSepOctNovDec"
_MONTHS = {_MONTH_NAMES[place : place + 3]: place // 3 + 1 for place in range(0, 36, 3)}
_COMMON = re.compile(
    r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):([01]\d|2[0-3]):([0-5]\d):([0-5]\d|60)(\.\d{1,9})? ([+-])(\d\d)(\d\d)", re.ASCII
)
_NUMBER = re.compile(r"(\d{1,19})(?:\.(\d{1,9}))?", re.ASCII)


def common_time(text: str) -> int:
    """Read a time of the Common Log Format, as "17/May/2015:10:05:03 +0000". A fraction of the second may follow it.

    Raises:
        ValueError: The text is not such a time.
    """
    found = _COMMON.fullmatch(text)
    if found is None or found[2] not in _MONTHS:
        raise ValueError(f"{text!r:.80} is not a time")
    day, month, year, hour, minute, second, fraction, sign, zone_hours, zone_minutes = found.groups()
    midnight = int(datetime(int(year), _MONTHS[month], int(day), tzinfo=UTC).timestamp())
    offset = int(zone_hours) * 3600 + int(zone_minutes) * 60
    past = int(hour) * 3600 + int(minute) * 60 + int(second)  # the second may be 60, a leap second
    at = midnight + past + (offset if sign == "-" else -offset)
    return _checked(at * SECOND + _micros(fraction))


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
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.80} is not a time")
    number = int(found[1])
    if number < 100_000_000_000:  # seconds until the year 5138
        return _checked(number * SECOND + _micros("." + (found[2] or "0")))
    if number < 100_000_000_000_000:
        return _checked(number * 1000 + int(((found[2] or "") + "000")[:3]))
    return _checked(number if number < 100_000_000_000_000_000 else number // 1000)


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


def _micros(fraction: str | None) -> int:
    """Return the microseconds in the fraction of a second, which begins with its point."""
    return int((fraction[1:] + "000000")[:6]) if fraction else 0


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
        try:
            at = self._read(text)
        except (OverflowError, RecursionError) as error:
            raise ValueError(f"{text!r:.80} is not a time") from error
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
