"""Reads lines of a format with variables: that of nginx's `log_format` or of Apache's `LogFormat`.

The variables are those of both servers. A format is compiled to a regular expression that captures only the fields that
are needed.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from ratelimit_mw.foresight.logs.entry import (
    AGENT,
    DURATIONS,
    REQUEST,
    TIMES,
    EntryMaker,
    LogEntry,
    TimeReader,
    Unreadable,
    any_time,
    common_time,
    epoch_time,
    iso_time,
    nearest,
    strftime_time,
)


class Variable(NamedTuple):
    """One variable of a format.

    Attributes:
        name: How the format writes it, as "$remote_addr" or "%h".
        field: What it tells, see `entry.FIELDS`. "" for what no rule needs.
        pattern: The regular expression of its text. "": anything up to the text that follows it.
        read: Reads a time.
    """

    name: str
    field: str = ""
    pattern: str = ""
    read: TimeReader | None = None


_DATE = r"[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
_DAY = rf"{_DATE} [+-][0-9]{{4}}"
_ISO = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]++(?:Z|[+-][0-9:]{4,6})?"
_NUMBER = r"[0-9.]++|-"
_STATUS = r"[0-9]{3}|-"
_USER = r"[^\n]*?"  # may have spaces; only one variable of a format is so free, so the search stays linear
_UPSTREAM = r"[0-9., :-]*?"  # one number for each server that was tried
_PATH = r'[^? "\\\n]*+'
_QUERY = r'(?:\?[^ "\\\n]*+)?'

_NGINX = {
    variable.name: variable
    for variable in (
        Variable("$remote_addr", "ip"),
        Variable("$realip_remote_addr"),
        Variable("$proxy_protocol_addr"),
        Variable("$remote_user", "user", _USER),
        Variable("$time_local", "end", _DAY, common_time),
        Variable("$time_iso8601", "end", _ISO, iso_time),
        Variable("$msec", "end", r"[0-9.]++", epoch_time),
        Variable("$request", "request"),
        Variable("$request_method", "method"),
        Variable("$request_uri", "target"),
        Variable("$uri", "path"),
        Variable("$document_uri", "path"),
        Variable("$args", "query"),
        Variable("$query_string", "query"),
        Variable("$status", "status", _STATUS),
        Variable("$host", "host"),
        Variable("$http_host", "host"),
        Variable("$request_time", "duration", _NUMBER),
        Variable("$body_bytes_sent", "", _NUMBER),
        Variable("$bytes_sent", "", _NUMBER),
        Variable("$request_length", "", _NUMBER),
        # Those of other proxies. Their own names for these values are no names of variables.
        Variable("$begin_local", "time", _DAY, common_time),
        Variable("$begin_iso8601", "time", _ISO, iso_time),
        Variable("$begin_haproxy", "time", _DATE, common_time),
        Variable("$forwarded_for", "ip"),
        Variable("$milliseconds", "duration_ms", _NUMBER),
        Variable("$queues", "", r"[0-9]++/[0-9]++"),
        Variable("$phases", "", r"(?:[0-9+-]++/){4}"),
        Variable("$captured", "", r"(?: \{[^}\n]*+\}){0,2}"),
        Variable("$syslog", "", r"(?:[^\[\n]*+\[[0-9]++\]: )?"),
    )
}
_NGINX_FAMILIES = (("$http_", "header:"), ("$cookie_", "cookie:"))

_APACHE = {
    variable.name: variable
    for variable in (
        Variable("%h", "ip"),
        Variable("%a", "ip"),
        Variable("%u", "user", _USER),
        Variable("%t", "time", rf"\[(?:{_DAY})\]", lambda text: common_time(text[1:-1])),
        Variable("%r", "request"),
        Variable("%m", "method"),
        Variable("%U", "path", _PATH),
        Variable("%q", "query", _QUERY),
        Variable("%s", "status", _STATUS),
        Variable("%v"),
        Variable("%V", "host"),
        Variable("%D", "duration_us", _NUMBER),
        Variable("%T", "duration", _NUMBER),
        Variable("%b", "", _NUMBER),
        Variable("%B", "", _NUMBER),
        Variable("%O", "", _NUMBER),
        Variable("%I", "", _NUMBER),
    )
}
_APACHE_UNITS = {"s": "duration", "ms": "duration_ms", "us": "duration_us"}

_NGINX_TOKEN = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_APACHE_TOKEN = re.compile(r"%(?:%|[!0-9,]*([<>]?)(?:\{([^}]*)\})?(\^?[A-Za-z]{1,2}?))")


def parts_of(text: str) -> list[str | Variable]:
    """Return the texts and the variables of a format, in order.

    Args:
        text: The format.

    Raises:
        ValueError: The text has no variables of either server.
    """
    text = text.strip()
    token, variable = _NGINX_TOKEN, _nginx_variable
    if "$" not in text:
        token, variable = _APACHE_TOKEN, _apache_variable
        text = text.replace('\\"', '"').replace("\\t", "\t")
    texts, variables, end = [""], list[Variable](), 0  # the text before each variable, and that behind the last one
    for found in token.finditer(text):
        texts[-1] += text[end : found.start()]
        end = found.end()
        if found[0] == "%%":
            texts[-1] += "%"
        else:
            variables.append(variable(found))
            texts.append("")
    texts[-1] += text[end:]
    if not variables:
        raise ValueError(f"{text!r:.200} is no format: it has no variables such as $remote_addr or %h")
    return [part for pair in zip_longest(texts, variables) for part in pair if part]


def _nginx_variable(found: re.Match[str]) -> Variable:
    name = f"${found[1] or found[2]}"
    known = _NGINX.get(name)
    if known is not None:
        return known
    for prefix, field in _NGINX_FAMILIES:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return Variable(name, field + (rest.replace("_", "-") if prefix == "$http_" else rest))
    return Variable(name, "", _UPSTREAM if name.startswith("$upstream_") and name.endswith("_time") else "")


def _apache_variable(found: re.Match[str]) -> Variable:
    written, argument, letter = found[0], found[2], found[3]
    if argument is None:
        known = _APACHE.get(f"%{letter}", Variable(written))
        return known._replace(name=written)
    if letter == "i":
        name = argument.lower()
        return Variable(written, "host" if name == "host" else f"header:{name}")
    if letter == "C":
        return Variable(written, f"cookie:{argument}")
    if letter == "t":
        return _apache_time(written, argument)
    if letter == "T":
        return Variable(written, _APACHE_UNITS.get(argument, ""), _NUMBER)
    return Variable(written)  # also %{c}a, the address of the proxy


def _apache_time(written: str, argument: str) -> Variable:
    """Return the variable of `%{argument}t`. Apache logs the start of a request, unless the argument says `end:`."""
    ends = argument.startswith("end:")
    field, form = "end" if ends else "time", argument.removeprefix("end:").removeprefix("begin:")
    if form in ("sec", "msec", "usec"):
        return Variable(written, field, r"[0-9]++", epoch_time)
    if form in ("msec_frac", "usec_frac"):  # a part of a time that another variable has
        return Variable(written, "", r"[0-9]++")
    texts = [re.escape(text) for text in re.split("%[A-Za-z]", form)]
    return Variable(written, field, r"[A-Za-z0-9:/+.-]+?".join(texts), strftime_time(form))


_QUOTED = r'(?:[^"\\\n]++|\\.)*+'  # servers write a quote in a value as \" or \x22
_REQUEST_LINE = r'([A-Za-z]++) ([^ "\\\n]++) HTTP/[0-9.]++'
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "f": "\f", "b": "\b", "a": "\a"}

_new = tuple.__new__  # makes a LogEntry in a third of the time of a call


def unescaped(text: str) -> str:
    """Return a value without the escapes that servers write in logs."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _CONTROLS.get(found[2], found[2]), text)


class PatternFormat:
    """A format of lines with variables: that of nginx, of Apache, or a named one.

    Args:
        name: The name of the format.
        text: The format, see `parts_of`.
        places: Where further fields are: the name of a variable for each field.

    Raises:
        ValueError: The format cannot be compiled, or has no time or no request.
    """

    def __init__(self, name: str, text: str, places: Mapping[str, str] | None = None) -> None:
        self.name = name
        parts = parts_of(text)
        for field, place in (places or {}).items():
            parts = _placed(parts, field, place)
        self._parts = parts
        self._fields = frozenset(part.field for part in parts if isinstance(part, Variable) and part.field)
        if not self._fields.intersection(TIMES):
            raise ValueError("the format has no known variable for the time ($time_local, $msec, %t …)")
        if not self._fields.intersection(("request", "target", "path")):
            raise ValueError("the format has no known variable for the request ($request, $request_uri, %r …)")
        self._line = re.compile(_expression(parts, frozenset())[0] + r"(?:[ \t][^\n]*+)?\r?")

    def fits(self, line: str) -> bool:
        """Return True if a line is in this format. It may have further fields at its end."""
        return self._line.fullmatch(line.rstrip("\n")) is not None

    def names_in(self, _block: bytes) -> bytes:
        """Return the first lines of a log, which name its values. This format has none."""
        return b""

    def has(self, field: str) -> bool:
        """Return True if the format tells a field: one of `FIELDS`, `header:N`, `cookie:N`, or one of `--field`."""
        return field in self._fields

    def place(self, field: str) -> str:
        """Return the name of the variable that tells a field, as `--field` takes it. "" if none does."""
        return next((part.name for part in self._parts if isinstance(part, Variable) and part.field == field), "")

    def reader(self, wanted: Sequence[str], unreadable: Unreadable) -> "PatternReader":
        """Return a reader of one input.

        Args:
            wanted: The fields to read, in addition to those that every request needs. Those that are not in `BASIC`
                are in `LogEntry.extra`, in this order. A field that the format does not tell is always absent.
            unreadable: Counts what cannot be read.
        """
        chosen = self._fields & _ALWAYS.union(wanted)
        # The time of nginx is that of the end, so the duration is needed for the beginning.
        if "end" in self._fields or "duration" in wanted:
            chosen |= self._fields.intersection(DURATIONS)
        if "agent" in wanted:
            chosen |= self._fields.intersection((AGENT,))
        return PatternReader(self._parts, chosen, wanted, unreadable)


_ALWAYS = frozenset((*TIMES, "ip", *REQUEST))


def _placed(parts: Sequence[str | Variable], field: str, place: str) -> list[str | Variable]:
    """Return the parts, in which the variable with the name `place` tells `field`, and no other variable does."""
    names = [part.name for part in parts if isinstance(part, Variable)]
    wanted = place if place in names else f"${place.lstrip('$')}"
    if wanted not in names:
        raise ValueError(f"the format has no {place!r}; it has {', '.join(names)}")
    found: list[str | Variable] = []
    for part in parts:
        if isinstance(part, Variable) and part.name == wanted:
            found.append(part._replace(field=field, read=part.read or (any_time if field in TIMES else None)))
        elif isinstance(part, Variable) and part.field == field:
            found.append(part._replace(field=""))
        else:
            found.append(part)
    return found


def _expression(parts: Sequence[str | Variable], captured: frozenset[str]) -> tuple[str, list[Variable]]:
    """Return the regular expression of a line, and the variables that it captures, in order.

    With nothing to capture, it is that of the whole line. Otherwise it ends after the last variable that is captured,
    and the text that follows it. A field that two variables tell is captured once.
    """
    caught: list[Variable] = []
    seen: set[str] = set()
    places = [place for place, part in enumerate(parts) if isinstance(part, Variable) and part.field in captured]
    last = places[-1] if places else len(parts)
    found: list[str] = []
    for place, part in enumerate(parts[: last + 2]):
        if isinstance(part, str):
            found.append(re.escape(part))
            continue
        if place > last:
            break
        before, after = parts[place - 1] if place else "", parts[place + 1] if place + 1 < len(parts) else ""
        quoted = isinstance(before, str) and before.endswith('"') and isinstance(after, str) and after.startswith('"')
        pattern = part.pattern if part.pattern and not quoted else _pattern(part, after, quoted=quoted)
        if part.field not in captured or part.field in seen:
            found.append(f"(?:{pattern})")
        elif part.field == "request":
            found.append(f"(?:{_REQUEST_LINE}|({pattern}))")
        else:
            found.append(f"({pattern})")
        if part.field in captured and part.field not in seen:
            seen.add(part.field)
            caught.append(part)
    return "".join(found), caught


def _pattern(variable: Variable, after: str | Variable, *, quoted: bool) -> str:
    if quoted:
        return _QUOTED
    if isinstance(after, Variable):
        if after.field == "query" and variable.field in ("path", "target"):
            return r'[^? "\n]*+'
        raise ValueError(f"{variable.name} and {after.name} have no text between them: their values can't be separated")
    if not after:
        return r"[^\n]*+"
    if variable.field == "request":
        return r"[^\n]*?"
    if variable.field == "ip" and after[0] == ":":  # an address of IPv6 has colons, too
        return r"[^ \n]*(?=:)"
    return rf"[^{re.escape(after[0])}\n]*+"


class PatternReader:
    """Reads lines by one regular expression, many at once.

    Args:
        parts: The parts of the format.
        fields: The fields to read.
        wanted: The fields that were asked for, see `PatternFormat.reader`.
        unreadable: Counts what cannot be read.
    """

    def __init__(
        self, parts: Sequence[str | Variable], fields: frozenset[str], wanted: Sequence[str], unreadable: Unreadable
    ) -> None:
        expression, caught = _expression(parts, fields)
        if AGENT in fields and AGENT not in wanted:  # a line that is cut within its user agent is still a request
            needed, _ = _expression(parts, fields - {AGENT})
            if expression.startswith(needed):
                expression = f"{needed}(?:{expression.removeprefix(needed)})?"
        self._search = re.compile(rf"^{expression}[^\n]*+$", re.MULTILINE)
        self._unreadable = unreadable
        self._group: dict[str, int] = {}
        number = 0
        for variable in caught:
            if variable.field == "request":  # a plain request line has its parts in groups of their own
                self._group |= {"method": number, "target": number + 1}
                number += 2
            self._group[variable.field] = number
            number += 1
        (clock,) = [variable for variable in caught if variable.field in TIMES][:1]
        self._maker = EntryMaker(self._group, wanted, clock.read or any_time, unreadable)
        self._plain = "request" in self._group and not (self._maker.extras or self._maker.unit)
        self._agent = self._group.get(AGENT, -1) if "agent" in wanted else -1

    def read(self, block: bytes) -> list[LogEntry]:
        """Read whole lines. The block ends with a newline. What cannot be read is counted."""
        text = block.decode("latin-1")
        rows = self._search.findall(text)
        if len(rows) != text.count("\n"):
            self._count_unmatched(text)
        entries: list[LogEntry] = []
        add, read_time, time = entries.append, self._maker.time, self._group[self._maker.clock]
        ip, method, status = (self._group.get(field, -1) for field in ("ip", "method", "status"))
        plain, agent = self._plain, self._agent
        for row in rows:
            try:
                if plain and row[method] and row[method + 1][0] == "/":  # the usual case, in a third of the time
                    code = int(row[status]) if status >= 0 and row[status] != "-" else 0
                    address = row[ip] if ip >= 0 else ""
                    if "," in address:
                        address = nearest(address)
                    said = row[agent] if agent >= 0 and row[agent] != "-" else ""
                    add(
                        _new(
                            LogEntry, (read_time(row[time]), address, row[method], row[method + 1], code, -1, (), said)
                        )
                    )
                elif (entry := self._maker.make(partial(self._text, row))) is not None:
                    add(entry)
            except ValueError:
                self._unreadable.add(" ".join(row))
        return entries

    def _text(self, row: Sequence[str], field: str) -> str | None:
        place = self._group.get(field)
        return None if place is None else unescaped(row[place])

    def _count_unmatched(self, text: str) -> None:
        end = 0
        for found in [*self._search.finditer(text), None]:
            for line in text[end : found.start() if found else None].split("\n"):
                self._unreadable.add(line)
            end = found.end() + 1 if found else end
