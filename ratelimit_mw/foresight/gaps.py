"""Finds what the rules need and a log does not have, so that the output can say it."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.config.words.charging import Statuses
from ratelimit_mw.errors import quoted
from ratelimit_mw.foresight.requests import Has, Reading
from ratelimit_mw.identity.address import UNKNOWN_ADDRESS
from ratelimit_mw.identity.attributes import canonical_name
from ratelimit_mw.model import Charge
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.domains import Rules


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


def needs_filter(rules: Rules, has: Has) -> bool:
    """Return True if the log lacks something that `answerable` looks for."""
    return not (has("ip") and (not rules.settling or (has("status") and has("duration"))))


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
            text = f"the concurrent limit of {begins} needs durations, which this log does not have: it was never asked"
            yield Gap(name, f"{text}. {_hint('duration')}")
    for exact in rule.match.exact:
        if absent(exact.name):
            yield _without(name, f"{begins} applies by {exact.name}", exact.name)
    yield from _gaps_of_by(rule, begins, absent)
    yield from (Gap(name, f"{begins} {text}") for text in _differences(rule, has, absent))


def _differences(rule: CompiledRule, has: Has, absent: Callable[[str], bool]) -> Iterator[str]:
    """Yield how a rule that was asked may have decided differently than in production."""
    if rule.tiers is not None and absent("tier"):
        yield f"has limits by tier, which this log does not have: all had the default limit. {_hint('tier')}"
    if rule.read_limit is not None:
        yield "has a limit from a function of the app, which saw only what the log has"
    if rule.read_cost is not None:
        yield "reads the cost from the request: a request costs 1 where the log does not have it"
    if rule.rule.cost_after is not None:
        yield "reads the cost from the response, which a log does not have: each request cost 1"
    if rule.rule.counts is not None and not isinstance(rule.rule.counts, Statuses) and has("status"):
        yield "counts by a function of the app, which saw the status and no header"
    if any(quota.elastic for quota in rule.quotas):
        yield "is elastic by the load of the process, which a log does not have: it had its base limit"
    if rule.rule.defers:
        yield "defers requests, which are shown as denied"


def _gaps_of_by(rule: CompiledRule, begins: str, absent: Callable[[str], bool]) -> Iterator[Gap]:
    name = rule.rule.name
    usable = 0
    gaps: list[Gap] = []
    for entry in rule.by:
        choices = [[part.strip() for part in choice.split("+")] for choice in entry.split("|")]
        lacking = [[part for part in parts if absent(part)] for parts in choices]
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
        texts = [gap.text.replace(": it was never asked", ": that counter was never asked") for gap in gaps]
        gaps = [Gap(name, text) for text in texts]
    yield from gaps


def _without(name: str, need: str, field: str) -> Gap:
    lacking = "which this log does not have: it was never asked"
    return Gap(name, f"{need}, {lacking}. {_hint(field)}", never_asked=True)


def _hint(field: str) -> str:
    return f"`--field {field}=…` says where it is"
