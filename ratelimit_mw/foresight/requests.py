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
        never_asked: True if the rule was never asked because of it.
    """

    rule: str
    text: str
    never_asked: bool = False


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
            gaps = list(_gaps(rule, has, absent))
            if not asked.get(rule.rule.name) and not any(gap.never_asked for gap in gaps):
                gaps.insert(
                    0, Gap(rule.rule.name, f"rule {quoted(rule.rule.name)} matched no request", never_asked=True)
                )
            # One reason is enough for a rule that was never asked.
            found += next(([gap] for gap in gaps if gap.never_asked), gaps)
        described = {rule.name for rule in part.rules} - {rule.rule.name for rule in part.compiled}
        for name in sorted(described - {name for name, number in asked.items() if number}):
            found.append(Gap(name, f"descriptor {quoted(name)} matched no request", never_asked=True))
        for exempt in part.exempt:
            for exact in exempt.exact:
                if absent(exact.name):
                    found.append(Gap("", f"an exemption by {exact.name}, which this log does not have, never applied"))
    if rules.shedding:
        found.append(Gap("", "requests are shed by the load of the process, which a log does not have: none was shed"))
    return found


def _gaps(rule: CompiledRule, has: Has, absent: Callable[[str], bool]) -> Iterator[Gap]:
    name = rule.rule.name
    begins = f"rule {quoted(name)}"
    if rule.on_demand:
        yield Gap(name, f"{begins} applies only where the app asks for it, which a log does not have", never_asked=True)
    if rule.rule.messages:
        yield Gap(name, f"{begins} counts the messages of WebSockets, which a log does not have", never_asked=True)
    if rule.rule.counts is not None and not has("status"):
        yield _without(name, f"{begins} counts by status", "status")
    in_flight = [ALGORITHMS[quota.algorithm].in_flight for quota in rule.quotas]
    if any(in_flight) and not has("duration"):
        if all(in_flight):
            yield _without(name, f"{begins} counts requests in flight and needs their duration", "duration")
        else:
            text = f"the concurrent limit of {begins} needs durations, which this log does not have"
            yield Gap(name, f"{text}: the replay ignores it. {_hint('duration')}")
    for exact in rule.match.exact:
        if absent(exact.name):
            yield _without(name, f"{begins} applies by {exact.name}", exact.name)
    yield from _gaps_of_by(rule, begins, absent)
    yield from (Gap(name, f"{begins} {text}") for text in _differences(rule, has, absent))


def _differences(rule: CompiledRule, has: Has, absent: Callable[[str], bool]) -> Iterator[str]:
    """Yield how a rule that was asked may have decided differently than in production."""
    by_function = rule.rule.counts is not None and not isinstance(rule.rule.counts, Statuses)
    differs = {
        f"has limits by tier, which this log does not have: all had the default limit. {_hint('tier')}": (
            rule.tiers is not None and absent("tier")
        ),
        "has a limit from a function of the app, which saw only what the log has": rule.read_limit is not None,
        "reads the cost from the request: a request costs 1 where the log does not have it": rule.read_cost is not None,
        "reads the cost from the response, which a log does not have: each request cost 1": (
            rule.rule.cost_after is not None
        ),
        "counts by a function of the app, which saw the status and no header": by_function and has("status"),
        "is elastic by the load of the process, which a log does not have: it had its base limit": (
            any(quota.elastic for quota in rule.quotas)
        ),
        "defers requests, which are shown as denied": rule.rule.defers,
    }
    yield from (text for text, holds in differs.items() if holds)


def _gaps_of_by(rule: CompiledRule, begins: str, absent: Callable[[str], bool]) -> Iterator[Gap]:
    name = rule.rule.name
    usable = 0
    gaps: list[Gap] = []
    for entry in rule.by:
        choices = choices_of(entry)
        unread = {"route"} if rule.needs_routes else set[str]()
        lacking = [[part for part in parts if part in unread or absent(part)] for parts in choices]
        missing = list(dict.fromkeys(part for parts in lacking for part in parts))
        if all(lacking):
            gaps.append(_without(name, f"{begins} counts by {entry}", missing[0]))
            continue
        usable += 1
        if missing:
            left = "|".join("+".join(parts) for parts, lack in zip(choices, lacking, strict=True) if not lack)
            text = f"{begins} counts by {entry}, but this log has no {' and no '.join(missing)}: it counted by {left}"
            gaps.append(Gap(name, f"{text}. {_hint(missing[0])}"))
    if usable:  # only some counters of the rule were left out
        texts = [gap.text.replace(": the replay ignores it", ": the replay ignores that counter") for gap in gaps]
        gaps = [Gap(name, text) for text in texts]
    yield from gaps


def _without(name: str, need: str, field: str) -> Gap:
    lacking = "which this log does not have: the replay ignores it"
    return Gap(name, f"{need}, {lacking}. {_hint(field)}", never_asked=True)


def _hint(field: str) -> str:
    return "Add match.path to replay it" if field == "route" else f"`--field {field}=…` says where it is"
