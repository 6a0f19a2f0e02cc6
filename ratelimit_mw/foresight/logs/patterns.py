"""Compiles a format with variables to a regular expression that captures only the fields that are needed."""

import re
from collections.abc import Mapping, Sequence

from ratelimit_mw.foresight.logs.entry import (
    BASIC,
    DURATIONS,
    REQUEST,
    TIMES,
    Entry,
    Unreadable,
    split_request,
    target_of,
)
from ratelimit_mw.foresight.logs.times import KnownTimes, any_time, duration
from ratelimit_mw.foresight.logs.variables import Variable, parts_of

_QUOTED = r'(?:[^"\\\n]++|\\.)*+'  # servers write a quote in a value as \" or \x22
_REQUEST_LINE = r'([A-Za-z]++) ([^ "\\\n]++) HTTP/[0-9.]++'
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "f": "\f", "b": "\b", "a": "\a"}

_new = tuple.__new__  # makes an Entry in a third of the time of a call


def unescaped(text: str) -> str:
    """Return a value without the escapes that servers write in logs."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _CONTROLS.get(found[2], found[2]), text)


class PatternFormat:
    """A format of lines with variables: that of nginx, of Apache, or a named one.

    Args:
        name: The name of the format.
        text: The format, see `variables.parts_of`.
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
        self._line = re.compile(_expression(parts, frozenset())[0] + r"\r?")

    def fits(self, line: str) -> bool:
        """See `Format`."""
        return self._line.fullmatch(line.rstrip("\n")) is not None

    def has(self, field: str) -> bool:
        """See `Format`."""
        return field in self._fields

    def reader(self, wanted: Sequence[str], unreadable: Unreadable) -> "PatternReader":
        """See `Format`."""
        chosen = self._fields & _ALWAYS.union(wanted)
        # The time of nginx is that of the end, so the duration is needed for the beginning.
        if "end" in self._fields or "duration" in wanted:
            chosen |= self._fields.intersection(DURATIONS)
        return PatternReader(self._parts, chosen, [field for field in wanted if field not in BASIC], unreadable)


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
    """Reads lines by one regular expression, many at once. See `LineReader`.

    Args:
        parts: The parts of the format.
        fields: The fields to read.
        extras: The fields in `Entry.extra`.
        unreadable: Counts what cannot be read.
    """

    def __init__(
        self, parts: Sequence[str | Variable], fields: frozenset[str], extras: Sequence[str], unreadable: Unreadable
    ) -> None:
        expression, caught = _expression(parts, fields)
        self._search = re.compile(rf"^{expression}[^\n]*+$", re.MULTILINE)
        self._unreadable = unreadable
        self._group: dict[str, int] = {}
        number = 0
        for variable in caught:
            self._group[variable.field] = number
            number += 3 if variable.field == "request" else 1
        (clock,) = [variable for variable in caught if variable.field in TIMES][:1]
        self._times = KnownTimes(clock.read or any_time)
        self._time = self._group[clock.field]
        self._unit = next(((field, unit) for field, unit in DURATIONS.items() if field in self._group), None)
        self._from_end = clock.field == "end" and self._unit is not None
        self._extra_groups = [self._group.get(field, -1) for field in extras]
        self._plain = not (extras or self._unit)

    def read(self, block: bytes) -> list[Entry]:
        """See `LineReader`."""
        text = block.decode("latin-1")
        rows = self._search.findall(text)
        if len(rows) != text.count("\n"):
            self._count_unmatched(text)
        entries: list[Entry] = []
        add, times, time = entries.append, self._times, self._time
        ip, request, status = (self._group.get(field, -1) for field in ("ip", "request", "status"))
        for row in rows:
            method = row[request] if request >= 0 else ""
            try:
                at = times[row[time]]
                target = row[request + 1] if method else ""
                if not method:
                    found = self._request(row)
                    if found is None:
                        continue
                    method, target = found
                address = row[ip] if ip >= 0 else ""
                if self._plain:
                    code = int(row[status]) if status >= 0 and row[status] != "-" else 0
                    add(_new(Entry, (at, address, method, target, code, -1, ())))
                else:
                    add(self._entry(row, at, address, method, target))
            except ValueError:
                self._unreadable.add(" ".join(row))
        return entries

    def _entry(self, row: Sequence[str], at: int, address: str, method: str, target: str) -> Entry:
        group = self._group
        lasted = -1
        if self._unit is not None:
            lasted = duration(row[group[self._unit[0]]], self._unit[1])
            if self._from_end and lasted > 0:
                at = max(at - lasted, 0)
        status = row[group["status"]] if "status" in group else "-"
        extra = tuple([_value(row[number]) if number >= 0 else None for number in self._extra_groups])
        return _new(Entry, (at, address, method, target, 0 if status == "-" else int(status), lasted, extra))

    def _request(self, row: Sequence[str]) -> tuple[str, str] | None:
        """Return the method and the target of a row whose request line is not a plain one."""
        group = self._group
        if "request" in group:
            found = split_request(unescaped(row[group["request"] + 2]))
        else:
            method = unescaped(row[group["method"]]) if "method" in group else "GET"
            if "target" in group:
                target = unescaped(row[group["target"]])
            else:
                target = unescaped(row[group["path"]])
                query = unescaped(row[group["query"]]) if "query" in group else ""
                target = target_of(target, "" if query == "-" else query)
            found = (method, target) if method.isalpha() and target not in ("", "-") else None
        if found is None:
            self._unreadable.without_request += 1
        return found

    def _count_unmatched(self, text: str) -> None:
        end = 0
        for found in self._search.finditer(text):
            for line in text[end : found.start()].split("\n"):
                self._unreadable.add(line)
            end = found.end() + 1
        for line in text[end:].split("\n"):
            self._unreadable.add(line)


def _value(text: str) -> str | None:
    """Return a value without escapes. None if the server wrote that it is absent."""
    return None if text in ("", "-") else unescaped(text)
