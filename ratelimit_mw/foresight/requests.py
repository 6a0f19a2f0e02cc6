"""Makes requests of the lines of a log, in the form that the middlewares use, and finds what a log does not have.

The rules then read a request as they read any other: behind the same proxies, with the same prefix for IPv6, and with
the same sources of the user and the tier. What they need and the log does not have is reported.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.config.words.charging import Statuses
from ratelimit_mw.errors import quoted
from ratelimit_mw.foresight.logs.entry import LogEntry, from_wire
from ratelimit_mw.identity.address import UNKNOWN_ADDRESS
from ratelimit_mw.identity.attributes import canonical_name
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.identity.identifier import choices_of
from ratelimit_mw.model import Charge
from ratelimit_mw.rules.compiled import CompiledRule
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
            if part.attributes.known(name):  # otherwise it is the source of a cost or a limit, which is a function
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
        fields: The fields in `LogEntry.extra`, in order.
    """

    def __init__(self, readings: Collection[Reading], fields: Sequence[str]) -> None:
        self.seen: set[str] = set()
        """The fields that at least one line had."""
        unique = list({(each.field, each.header, each.cookie): each for each in readings if each.field}.values())
        self._given = [(fields.index(each.field), each) for each in unique]

    def make(self, entry: LogEntry) -> AsgiRequest:
        """Return the request of a line."""
        _, ip, method, target, _, _, extra, _ = entry
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


class Gap(NamedTuple):
    """One thing that could not be replayed.

    Attributes:
        rule: The name of the rule. "" for all rules.
        text: What could not be replayed and why, as a sentence.
    """

    rule: str
    text: str


def answerable(has: Has) -> Callable[[Charge], bool]:
    """Return a function that says whether a log has what is needed to decide a charge.

    A rule that counts by status needs a status, a concurrent limit needs durations, and an address must be known.
    """
    addresses, statuses = has("ip"), has("status")
    durations = has("duration")

    def known(charge: Charge) -> bool:
        rule, ask = charge
        return (
            (addresses or UNKNOWN_ADDRESS not in ask.key)
            and (statuses or rule.counts is None)
            and (durations or not ALGORITHMS[ask.quota.algorithm].in_flight)
        )

    return known


def find_gaps(
    rules: Rules, has: Has, readings: Mapping[str, Reading], seen: Callable[[str], bool], asked: Mapping[str, int]
) -> list[Gap]:
    """Return what could not be replayed, in the order of the file.

    Args:
        rules: The rules.
        has: Returns True if the log has a field.
        readings: How the attributes were read.
        seen: Returns True if a line had a value of this field.
        asked: How many requests each rule was asked, by its name.
    """

    def absent(name: str) -> bool:
        canonical = canonical_name(name)
        if canonical in ("global", "route"):
            return False
        reading = readings.get(canonical)
        return reading is None or bool(reading.field and not seen(reading.field))

    found: list[Gap] = []
    for part in rules.parts:
        for rule in part.compiled:
            name = rule.rule.name
            was_asked = bool(asked.get(name))
            needs, differences = list(_needs(rule, has, absent, was_asked)), list(_differences(rule, has))
            end = "the replay goes without it"
            if not was_asked:
                needs, differences = needs[:1], []  # one reason is enough
                end = "it was never asked"
            texts = [f"{need}, which this log does not have: {end}{_hint(field)}" for need, field in needs]
            texts += differences
            if not (texts or was_asked):
                texts = ["matched no request"]
            found += [Gap(name, f"rule {quoted(name)} {text}") for text in texts]
        described = {rule.name for rule in part.rules} - {rule.rule.name for rule in part.compiled}
        for name in sorted(described - {name for name, number in asked.items() if number}):
            found.append(Gap(name, f"descriptor {quoted(name)} matched no request"))
        for exempt in part.exempt:
            for exact in exempt.exact:
                if absent(exact.name):
                    found.append(Gap("", f"an exemption by {exact.name}, which this log does not have, never applied"))
    if rules.shedding:
        found.append(Gap("", "requests are shed by the load of the process, which a log does not have: none was shed"))
    return found


def _needs(rule: CompiledRule, has: Has, absent: Callable[[str], bool], asked: bool) -> Iterator[tuple[str, str]]:
    """Yield what a rule needs and the log does not have, each with the field for it. The field is "" if no log has it.

    Of a rule that was not asked, only what may be the reason is yielded.
    """
    in_flight = [ALGORITHMS[quota.algorithm].in_flight for quota in rule.quotas]
    needs_duration = any(in_flight) and (asked or all(in_flight))
    choices = [names for entry in rule.by for names in choices_of(entry)]
    lacking = {name: absent(name) or (name == "route" and rule.needs_routes) for names in choices for name in names}
    needs_all = asked or all(any(lacking[name] for name in names) for names in choices)
    needs = {
        ("applies only where the app asks for it", ""): rule.on_demand,
        ("counts the messages of WebSockets", ""): rule.rule.messages,
        ("counts by status", "status"): rule.rule.counts is not None and not has("status"),
        ("counts requests in flight and needs their duration", "duration"): needs_duration and not has("duration"),
        **{(f"applies by {exact.name}", exact.name): absent(exact.name) for exact in rule.match.exact},
        **{(f"counts by {name}", name): needs_all and lacks for name, lacks in lacking.items()},
        ("has limits by tier", "tier"): asked and rule.tiers is not None and absent("tier"),
        ("reads the cost from the response", ""): asked and rule.rule.cost_after is not None,
        ("is elastic by the load of the process", ""): asked and any(quota.elastic for quota in rule.quotas),
    }
    yield from (need for need, lacks in needs.items() if lacks)


def _differences(rule: CompiledRule, has: Has) -> Iterator[str]:
    """Yield how a rule that was asked may have decided differently than in production."""
    by_function = rule.rule.counts is not None and not isinstance(rule.rule.counts, Statuses)
    differs = {
        "has a limit from a function of the app, which saw only what the log has": rule.read_limit is not None,
        "reads the cost from the request: a request costs 1 where the log does not have it": rule.read_cost is not None,
        "counts by a function of the app, which saw the status and no header": by_function and has("status"),
        "defers requests, which are shown as denied": rule.rule.defers,
    }
    yield from (text for text, holds in differs.items() if holds)


def _hint(field: str) -> str:
    hint = "Add match.path to replay it" if field == "route" else f"`--field {field}=…` says where it is"
    return f". {hint}" if field else ""
