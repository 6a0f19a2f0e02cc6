"""Reads logs whose values have names: JSON, one object for each line, CSV with a line of names, and W3C's format.

In W3C's format, that of IIS and CloudFront, a line begins with `#Fields:` and names the values of the lines behind it.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

from ratelimit_mw.foresight.logs.entry import (
    DURATIONS,
    REQUEST,
    TIMES,
    EntryMaker,
    LogEntry,
    Unreadable,
    any_time,
    wire,
)

Places = Mapping[str, tuple[str, ...]]
"""Where each field is: the names of its value, of which the first that a line has counts. A name may be a path with
dots, as "request.headers". A field that ends with a star stands for all headers, as "header:*"."""

PRODUCTS: Mapping[str, Places] = {
    "Caddy": {
        "end": ("ts",),
        "ip": ("request.remote_ip", "request.remote_addr"),
        "method": ("request.method",),
        "target": ("request.uri",),
        "host": ("request.host",),
        "status": ("status",),
        "duration": ("duration",),
        "user": ("user_id",),
        "header:*": ("request.headers.",),
    },
    "Traefik": {
        "time": ("StartUTC", "StartLocal"),
        "ip": ("ClientHost", "ClientAddr"),
        "method": ("RequestMethod",),
        "target": ("RequestPath",),
        "host": ("RequestHost", "RequestAddr"),
        "status": ("DownstreamStatus",),
        "duration_ns": ("Duration",),
        "user": ("ClientUsername",),
        "header:*": ("request_",),
    },
    "Envoy": {
        "time": ("start_time",),
        "ip": ("downstream_remote_address",),
        "method": ("method", ":method"),
        "target": ("path", "x-envoy-origin-path", "x-envoy-original-path", ":path"),
        "host": ("authority", ":authority"),
        "status": ("response_code",),
        "duration_ms": ("duration",),
        "header:x-forwarded-for": ("x_forwarded_for", "x-forwarded-for"),
        "header:user-agent": ("user_agent", "user-agent"),
    },
    "Google Cloud": {
        "time": ("timestamp",),
        "ip": ("httpRequest.remoteIp",),
        "method": ("httpRequest.requestMethod",),
        "target": ("httpRequest.requestUrl",),
        "status": ("httpRequest.status",),
        "duration": ("httpRequest.latency",),
        "header:user-agent": ("httpRequest.userAgent",),
    },
    "Cloudflare": {
        "time": ("EdgeStartTimestamp",),
        "ip": ("ClientIP",),
        "method": ("ClientRequestMethod",),
        "target": ("ClientRequestURI", "ClientRequestPath"),
        "host": ("ClientRequestHost",),
        "status": ("EdgeResponseStatus",),
        "header:user-agent": ("ClientRequestUserAgent",),
    },
    "nginx": {
        "end": ("msec", "time_iso8601", "time_local", "time", "timestamp", "@timestamp"),
        "ip": ("remote_addr",),
        "request": ("request",),
        "method": ("request_method", "method"),
        "target": ("request_uri", "uri"),
        "host": ("host", "http_host"),
        "status": ("status",),
        "duration": ("request_time",),
        "user": ("remote_user",),
        "header:x-forwarded-for": ("http_x_forwarded_for",),
        "header:user-agent": ("http_user_agent",),
        "header:authorization": ("http_authorization",),
    },
}
"""The JSON that servers and proxies write if they are not told otherwise. nginx has no JSON of its own: these are the
names that most people give, the variables without "$"."""

_OWN = {
    **{name: (name,) for name in (*TIMES, *REQUEST, "ip", "status", "host", "user", "tier", *DURATIONS)},
    "ip": ("ip", "remote_addr", "client_ip", "remote_address"),
    "time": ("time", "timestamp", "ts", "date"),
    "target": ("target", "request_uri", "uri", "url"),
    "method": ("method", "request_method"),
}
"""The columns of CSV that are known: the names of the fields, and a few others that are in use."""

_ABSENT = ("", "-", "REDACTED")
"""Values that stand for an absent one. Caddy writes the last for cookies and credentials."""

_MOST_HEADERS = 64
"""How many values of one header are joined."""


class NamedFormat:
    """A format whose lines name their values.

    Args:
        name: The name of the format.
        places: Where each field is.
        delimiter: The text between two values of a line of CSV. None: the lines are JSON.
        commented: The lines are in W3C's format.
    """

    def __init__(self, name: str, places: Places, delimiter: str | None = None, *, commented: bool = False) -> None:
        self.name = name
        self._places = places
        self._delimiter = delimiter
        self._commented = commented

    def fits(self, line: str) -> bool:
        """See `PatternFormat`."""
        unreadable = Unreadable()
        NamedReader(self._places, (), unreadable, None).read(line.encode())
        return not unreadable.count

    def names_in(self, block: bytes) -> bytes:
        """See `PatternFormat`."""
        lines = block.splitlines(keepends=True)
        if self._commented:
            comments = list(takewhile(lambda line: line.startswith(b"#"), lines))
            return b"".join(comments)
        return lines[0] if self._delimiter is not None else b""

    def has(self, field: str) -> bool:
        """See `PatternFormat`."""
        return field in self._places or (field.startswith("header:") and "header:*" in self._places)

    def place(self, field: str) -> str:
        """See `PatternFormat`."""
        places: Sequence[str] = self._places.get(field, ())
        if not places and self.has(field):
            return f"{self._places['header:*'][0]}{_titled(field.removeprefix('header:'))}"
        return places[0] if places else ""

    def reader(self, wanted: Sequence[str], unreadable: Unreadable) -> "NamedReader":
        """See `PatternFormat`."""
        reader = CommentedReader if self._commented else NamedReader
        return reader(self._places, wanted, unreadable, self._delimiter)


class NamedReader:
    """Reads lines whose values have names.

    The first line of CSV names the columns. A column may also be named by its number, counted from 1.

    Args:
        places: Where each field is.
        wanted: The fields to read, in addition to those that every request needs.
        unreadable: Counts what cannot be read.
        delimiter: The text between two values. None: the lines are JSON.
    """

    def __init__(self, places: Places, wanted: Sequence[str], unreadable: Unreadable, delimiter: str | None) -> None:
        self._places = places
        self._unreadable = unreadable
        self._delimiter = delimiter
        self._columns: list[str] | None = None
        self._headers = places.get("header:*", ("",))[0]
        self._maker = EntryMaker(places, wanted, any_time, unreadable)

    def read(self, block: bytes) -> list[LogEntry]:
        """See `PatternReader`."""
        entries: list[LogEntry] = []
        for line in block.decode("utf-8", "replace").split("\n"):
            if self._delimiter is not None and self._columns is None:
                self._columns = columns_of(line, self._delimiter)
            elif line and not line.isspace():
                try:
                    entry = self.entry_of(line)
                except (ValueError, RecursionError, csv.Error):
                    self._unreadable.add(line)
                else:
                    entries += [] if entry is None else [entry]
        return entries

    def entry_of(self, line: str) -> LogEntry | None:
        """Return the request of a line. None if it has no request.

        Raises:
            ValueError, RecursionError, csv.Error: The line cannot be read.
        """
        return self._maker.make(partial(self._text, self._values(line)))

    def _values(self, line: str) -> Any:
        """Return the values of a line by their names."""
        if self._delimiter is None:
            return json.loads(line)
        cells = next(csv.reader((line,), delimiter=self._delimiter), [])
        columns = self._columns or ()
        if len(cells) < len(columns):
            raise ValueError("the line has too few values")
        numbers = {str(number): cell for number, cell in enumerate(cells, 1)}
        return {**numbers, **dict(zip(columns, cells, strict=False))}

    def _text(self, values: Any, field: str) -> str | None:
        places: Sequence[str] = self._places.get(field, ())
        name, prefix = field.removeprefix("header:"), self._headers
        if prefix and not places and name != field:  # one of all headers
            if prefix.endswith("."):
                headers = value_at(values, prefix[:-1])
                held = headers if isinstance(headers, dict) else {}
                return _text_of(next((value for key, value in held.items() if key.lower() == name), None))
            places = (f"{prefix}{_titled(name)}", f"{prefix}{name}")
        texts = (_text_of(value_at(values, place)) for place in places)
        return next((text for text in texts if text is not None), None)


FIELDS_LINE = "#Fields:"

_W3C = {
    "ip": ("c-ip",),
    "method": ("cs-method",),
    "path": ("cs-uri-stem",),
    "query": ("cs-uri-query",),
    "status": ("sc-status",),
    "host": ("x-host-header", "cs-host", "cs(Host)"),
    "user": ("cs-username",),
    "header:x-forwarded-for": ("x-forwarded-for", "cs(X-Forwarded-For)"),
    "header:user-agent": ("cs(User-Agent)",),
}
_MOMENT = "date time"


def w3c_places(columns: Sequence[str]) -> Places:
    """Return where the fields are among columns in W3C's format. CloudFront takes the time in seconds, IIS in ms."""
    found = {field: names for field, names in _W3C.items() if not set(names).isdisjoint(columns)}
    if {"date", "time"} <= set(columns):
        found["end"] = (_MOMENT,)
    if "time-taken" in columns:
        found["duration" if "x-edge-location" in columns else "duration_ms"] = ("time-taken",)
    return found


class CommentedReader(NamedReader):
    """Reads lines in W3C's format. A line with names may come again, as after a restart."""

    _names: Sequence[str] = ()

    def entry_of(self, line: str) -> LogEntry | None:
        """See `NamedReader`. A comment has no request, and is not counted."""
        if not line.startswith("#"):
            return super().entry_of(line)
        if line.startswith(FIELDS_LINE):
            self._names = line.removeprefix(FIELDS_LINE).split()
        return None

    def _values(self, line: str) -> Any:
        cells = line.rstrip("\r").split("\t" if "\t" in line else " ")
        values = dict(zip(self._names, cells, strict=True))
        values[_MOMENT] = f"{values.get('date')}T{values.get('time')}Z"
        return {name: unquote(cell.replace("+", " ")) if "(" in name else cell for name, cell in values.items()}


def columns_of(line: str, delimiter: str) -> list[str]:
    """Return the names in the first line of CSV."""
    try:
        return [name.strip() for name in next(csv.reader((line.strip("\r\n\ufeff"),), delimiter=delimiter), [])]
    except csv.Error:
        return []


def csv_places(columns: Sequence[str]) -> Places:
    """Return where the fields are among columns of these names."""
    known = {column.lower(): column for column in columns}
    found = {
        field: tuple([known[name] for name in names if name in known])
        for field, names in _OWN.items()
        if not known.keys().isdisjoint(names)
    }
    for lower, column in known.items():
        if lower.startswith(("header:", "cookie:")):
            found[lower if lower.startswith("header:") else column] = (column,)
    return {field: places for field, places in found.items() if places}


def value_at(values: Any, place: str) -> object:
    """Return the value at a path of names, with dots between them. None for no value."""
    if not isinstance(values, dict):
        return None
    if place in values:
        return values[place]
    first, dot, rest = place.partition(".")
    return value_at(values.get(first), rest) if dot else None


def _text_of(value: object) -> str | None:
    """Return a value as text on the wire. None for an absent value. Several values of a header are joined."""
    if isinstance(value, list):
        texts = [text for text in map(_text_of, value[:_MOST_HEADERS]) if text is not None]
        return ", ".join(texts) or None
    if isinstance(value, str):
        return None if value in _ABSENT else wire(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return None


def _titled(name: str) -> str:
    """Return the name of a header as Go writes it: "X-Forwarded-For"."""
    return "-".join(word.capitalize() for word in name.split("-"))


def looks_like_json(lines: Sequence[str]) -> bool:
    """Return True if most lines begin as JSON objects do."""
    return 2 * sum(1 for line in lines if line.lstrip().startswith("{")) > len(lines)


def product_of(lines: Sequence[str]) -> str | None:
    """Return the name in `PRODUCTS` whose places most of these lines of JSON have. None if there is none."""
    fitting = {name: sum(map(NamedFormat(name, places).fits, lines)) for name, places in PRODUCTS.items()}
    best = max(fitting, key=fitting.__getitem__)
    return best if 10 * fitting[best] >= 9 * len(lines) else None


def delimiter_of(line: str) -> str:
    """Return the text between the values of CSV, by its first line: a comma, a semicolon or a tab."""
    return next((character for character in line if character in ",;\t"), ",")
