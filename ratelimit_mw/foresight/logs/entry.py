"""One request as a log tells it, the names of what a log may tell, and how its times are read.

Times are in microseconds since the epoch. Their forms are that of the Common Log Format, ISO 8601, and numbers since
the epoch. A time without a time zone is UTC.
"""

import re
from collections.abc import Callable, Container, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from ratelimit_mw.errors import near
from ratelimit_mw.identity.address import canonical
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


_MOST_TIMES = 8192
"""The most texts of times that are remembered."""


def duration(text: str, unit: float) -> int:
    """Read a duration in a unit of so many microseconds. -1 if the text is not a number, as "-" where it is unknown."""
    try:
        length = float(text.removesuffix("s")) * unit
    except ValueError:
        return -1
    return round(length) if 0 <= length < _LATEST else -1


class LogEntry(NamedTuple):
    """One request of a log.

    The texts are as on the wire: each character is one byte (latin-1), as servers pass headers to apps.

    Attributes:
        at: When the request began, in microseconds since the epoch.
        ip: The address that connected, as the log has it. "" if there is none.
        method: The method.
        target: The path and the query, percent-encoded.
        status: The status of the response. 0 if the log does not have it.
        duration: How long the request took, in microseconds. -1 if the log does not have it.
        extra: The further values that were wanted, in their order (see `PatternFormat.reader`). None stands for absent.
        agent: The user agent, if "agent" was wanted. "" if there is none.
    """

    at: int
    ip: str
    method: str
    target: str
    status: int = 0
    duration: int = -1
    extra: tuple[str | None, ...] = ()
    agent: str = ""


AGENT = "header:user-agent"
"""The field for `LogEntry.agent`."""

TIMES = ("time", "end")
"""The fields for the time of a request: when it began, and when it ended. A log has one of them."""

DURATIONS = {"duration": 1_000_000.0, "duration_ms": 1_000.0, "duration_us": 1.0, "duration_ns": 0.001}
"""The fields for the duration of a request, with their unit in microseconds."""

REQUEST = ("request", "method", "target", "path", "query")
"""The fields that tell what was requested. `request` is the whole request line, `target` the path with the query."""

FIELDS = (*TIMES, "ip", *REQUEST, "status", "host", "user", "tier", *DURATIONS)
"""The fields that `--field` can name, without `header:N`, `cookie:N` and the attributes of the rules."""

BASIC = frozenset((*TIMES, "ip", *REQUEST, "status", *DURATIONS, "header:*", "agent"))
"""The fields that have a place of their own in a `LogEntry`, and the word for all headers. All others are extras."""


def check_fields(names: Iterable[str], custom: Sequence[str] = ()) -> None:
    """Raise ValueError for a field of `--field` that no log can have.

    Args:
        names: The fields.
        custom: The attributes of the rules that are known, too.
    """
    known = (*FIELDS, *custom)
    for name in names:
        if name not in known and not name.startswith(("header:", "cookie:")):
            hint = near(name, known) or f"known: {', '.join(known)}, header:NAME and cookie:NAME"
            raise ValueError(f"--field: there is no field {name!r} ({hint})")


_SHOWN = 3
"""How many unreadable lines are kept to be shown."""

_LONGEST = 200
"""The most characters of an unreadable line that are kept."""


class Unreadable:
    """Counts the lines that could not be read, and keeps the first three.

    Attributes:
        count: The number of unreadable lines.
        shown: The first three of them, cut to 200 characters.
        without_request: Lines that have no request line that can be read, as for a TLS handshake on a port for HTTP.
            They are not counted as unreadable, because the log is right: no app has seen these requests.
    """

    def __init__(self) -> None:
        self.count = 0
        self.shown: list[str] = []
        self.without_request = 0

    @property
    def lines(self) -> int:
        """The number of lines that are no requests."""
        return self.count + self.without_request

    def add(self, line: str) -> None:
        """Count a line, unless it is empty."""
        if line and not line.isspace():
            self.count += 1
            if len(self.shown) < _SHOWN:
                self.shown.append(line.strip("\r\n")[:_LONGEST])


Text = Callable[[str], str | None]
"""Returns the text of a field of one line. None if the line does not have it."""


class EntryMaker:
    """Makes requests of the texts of their fields, whatever the format of the lines.

    Args:
        has: The fields that the lines have.
        wanted: The fields to read, in addition to those of every request.
        read: Reads a time.
        unreadable: Counts the lines without a request.

    Attributes:
        extras: The fields in `LogEntry.extra`.
        time: Reads a time. Lines that follow each other have equal times, so the last ones are remembered.
        clock: The field with the time.
        unit: The field with the duration, and its unit in microseconds. None without one.
    """

    def __init__(self, has: Container[str], wanted: Sequence[str], read: TimeReader, unreadable: Unreadable) -> None:
        self.time = lru_cache(_MOST_TIMES)(read)
        self.clock = next(field for field in reversed(TIMES) if field in has)
        self.unit = next(((field, unit) for field, unit in DURATIONS.items() if field in has), None)
        self.extras = [field for field in wanted if field not in BASIC]
        self._agent = "agent" in wanted
        self._unreadable = unreadable

    def make(self, text: Text) -> LogEntry | None:
        """Return the request of a line. A line without one is counted.

        Raises:
            ValueError: The line cannot be read.
        """
        at = self.time(text(self.clock) or "")
        request = _request(text)
        if request is None:
            self._unreadable.without_request += 1
            return None
        lasted = -1
        if self.unit is not None:
            lasted = duration(text(self.unit[0]) or "", self.unit[1])
            if self.clock == "end" and lasted > 0:
                at = max(at - lasted, 0)
        status = text("status") or ""
        code = int(status) if status.isascii() and status.isdigit() and len(status) == 3 else 0
        extra = tuple([None if (found := text(field)) in ("", "-") else found for field in self.extras])
        ip = text("ip") or ""
        agent = text(AGENT) or "" if self._agent else ""
        return LogEntry(at, nearest(ip) if "," in ip else ip, *request, code, lasted, extra, agent)


def _request(text: Text) -> tuple[str, str] | None:
    """Return the method and the target of a line. None if they are those of no request."""
    line, target = text("request"), text("target")
    if line:
        found = split_request(line)
        return found and (found[0], origin_form(found[1]))
    if target is None and (path := text("path")) is not None:
        query = (text("query") or "").removeprefix("?").removeprefix("-")
        target = f"{path}?{query}" if query else path
    if line is None and target is None:
        raise ValueError("the line has no request")
    method = text("method")
    method = "GET" if method is None else method
    if not (method.isascii() and method.isalpha() and target and target != "-"):
        return None
    return method, origin_form(target)


def origin_form(target: str) -> str:
    """Return the path and the query of a target. Proxies and load balancers write the whole URL."""
    if target.startswith("/"):
        return target
    scheme, found, rest = target.partition("://")
    if not found or not scheme.isalpha():
        return target
    host = rest.partition("?")[0].partition("/")[0]
    rest = rest.removeprefix(host)
    return rest if rest.startswith("/") else f"/{rest}"


def split_request(line: str) -> tuple[str, str] | None:
    """Return the method and the target of a request line. None if it is not one."""
    method, _, rest = line.partition(" ")
    target, _, version = rest.rpartition(" ")
    if not target:  # HTTP/0.9 had no version
        target, version = version, "HTTP/0.9"
    if not method.isalpha() or not method.isascii() or not target or not version.startswith("HTTP/"):
        return None
    return method, target


def nearest(addresses: str) -> str:
    """Return the address of the client in a list to which each proxy appends: the last one that is not private.

    If all are private, it is the first one.
    """
    found = [each.strip() for each in addresses.split(",")]
    return next((each for each in reversed(found) if not is_private(each)), found[0])


_PRIVATE = tuple(
    ip_network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "fc00::/7", "::1")
)


def is_private(text: str) -> bool:
    """Return True if a text is an address of a private network, as that of a proxy before the app."""
    address = canonical(text)
    return address is not None and any(ip_address(address) in network for network in _PRIVATE)


def wire(text: str) -> str:
    """Return a text that was decoded as UTF-8 as it is on the wire: one character for each byte."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("latin-1")


def from_wire(text: str) -> str:
    """Return the text of bytes that are UTF-8. Bytes that are not become U+FFFD."""
    return text if text.isascii() else text.encode("latin-1", "replace").decode("utf-8", "replace")
