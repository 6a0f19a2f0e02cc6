"""Makes requests of the lines of a log, in the form that the middlewares use.

The rules then read a request as they read any other: behind the same proxies, with the same prefix for IPv6, and with
the same sources of the user and the tier.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from ratelimit_mw.foresight.logs.entry import Entry, from_wire
from ratelimit_mw.identity.attributes import canonical_name
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet

Has = Callable[[str], bool]
"""Returns True if a log has a field."""

_IN_EVERY_LOG = ("method", "path", "global", "route")


class Reading(NamedTuple):
    """How the rules get one attribute from a log.

    Attributes:
        attribute: The canonical name of the attribute.
        field: The field of the log. "" if the attribute needs none of its own, as a path or a query parameter.
        header: The header of the request that gets the value. "" if the value is the attribute itself.
        cookie: The cookie that gets the value, in the header "cookie".
    """

    attribute: str
    field: str = ""
    header: str = ""
    cookie: str = ""


def readings_of(rules: Rules, has: Has, given: Collection[str]) -> dict[str, Reading]:
    """Return how the attributes that the rules use are read from a log. Those that it does not have are left out.

    Args:
        rules: The rules.
        has: Returns True if the log has a field.
        given: The fields that the user has named: they are preferred to the source in the rules.
    """
    found: dict[str, Reading] = {}
    for part in rules.parts:
        for name in part.attributes.used:
            if not name.startswith(" "):  # the source of a cost or a limit, which is a function
                reading = _reading(name, part, has, given)
                if reading is not None:
                    found[name] = reading
        header = part.attributes.client_address.header
        if header is not None and has(f"header:{header}"):
            found[f"header:{header}"] = Reading(f"header:{header}", f"header:{header}", header)
    return found


def _reading(name: str, part: RuleSet, has: Has, given: Collection[str]) -> Reading | None:
    if name in _IN_EVERY_LOG or name.startswith(("path:", "query:")):
        return Reading(name)
    if name == "ip":
        return Reading(name) if has("ip") else None
    if name in given and not name.startswith(("header:", "cookie:")):
        return Reading(name, name)
    if name == "host":
        return Reading(name, "host", "host") if has("host") else None
    own = {"user": part.client.user, "tier": part.client.tier}
    named = {canonical_name(each): source for each, source in part.client.attributes.items()}
    source = {**own, **named}.get(name, name)
    read = _by_source(name, source or "", has)
    if read is None and not name.startswith(("header:", "cookie:")) and has(name):
        return Reading(name, name)
    return read


def _by_source(name: str, source: str, has: Has) -> Reading | None:
    kind, _, argument = source.partition(":")
    kind, argument = kind.strip(), argument.strip()
    if kind == "query":
        return Reading(name)
    if kind == "header":
        header = argument.lower()
        field = "host" if header == "host" else f"header:{header}"
        return Reading(name, field, header) if has(field) else None
    if kind == "cookie":
        if has(f"cookie:{argument}"):
            return Reading(name, f"cookie:{argument}", cookie=argument)
        return Reading(name, "header:cookie", "cookie") if has("header:cookie") else None
    return None


class Requests:
    """Makes the requests of one set of rules.

    Args:
        readings: How the attributes are read, see `readings_of`.
        fields: The fields in `Entry.extra`, in order.
    """

    def __init__(self, readings: Collection[Reading], fields: Sequence[str]) -> None:
        self.seen: set[str] = set()
        """The fields that at least one line had."""
        unique = list({(each.field, each.header, each.cookie): each for each in readings if each.field}.values())
        self._given = [(fields.index(each.field), each) for each in unique]

    def make(self, entry: Entry) -> AsgiRequest:
        """Return the request of a line."""
        _, ip, method, target, _, _, extra = entry
        path, _, query = target.partition("?")
        raw = path
        if "%" in path or not path.isascii():
            path = unquote_to_bytes(path.encode("latin-1")).decode("utf-8", "replace")
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path or "/",
            "raw_path": raw.encode("latin-1"),
            "query_string": query.encode("latin-1") if query else b"",
            "headers": [],
            "client": (ip, 0) if ip else None,
        }
        if self._given:
            return self._with_values(scope, extra)
        return AsgiRequest(scope)

    def _with_values(self, scope: dict[str, Any], extra: Sequence[str | None]) -> AsgiRequest:
        values: dict[str, str | None] = {}
        cookies: list[str] = []
        for place, reading in self._given:
            value = extra[place]
            if value is not None:
                self.seen.add(reading.field)
                if reading.header:
                    scope["headers"].append((reading.header.encode("latin-1", "replace"), value.encode("latin-1")))
                elif reading.cookie:
                    cookies.append(f"{reading.cookie}={value}")
            if not (reading.header or reading.cookie):
                values[reading.attribute] = from_wire(value) if value is not None else None
        if cookies:
            scope["headers"].append((b"cookie", "; ".join(cookies).encode("latin-1", "replace")))
        request = AsgiRequest(scope)
        request.values.update(values)
        return request
