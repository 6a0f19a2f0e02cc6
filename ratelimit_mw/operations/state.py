"""The state that the live page and `top --watch` show: a value of JSON, made of what processes have reported.

* `domain`, `version`, `switch`: The domains of the rules, their version (None if it is unknown), and the kill switch.
* `at`: The time of the state. This and all other times are epoch seconds.
* `store`: Its `kind`, whether it is `up`, and the time of a round trip in `latency_ms` (None if it is unknown).
* `load`: The load of the busiest process, from 0 to 1. None if the rules do not measure it.
* `processes`, `shared`: The number of processes. Without `shared`, only this process is shown.
* `rates`: The `requests` and `denials` a second, as the mean of 10 seconds.
* `series`: The number of `requests` and `denials` in each `step` of so many seconds. The last step ended at `end`.
* `limited`: The clients that are limited now, the most denied first, at most 50. `until` is None if the limit never
  opens.
* `rules`: All rules of the file, and then those that the file no longer has. `rates` are requests a second by how the
  rule decided. `bans` and `denials` (a series as above, empty if there were none) are those of the last 15 minutes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ratelimit_mw.decision.explanation import limit_in_words
from ratelimit_mw.operations.activity import STEP, STEPS, Activity, RuleActivity, RuleId, Series
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.tally import OUTCOMES

LiveState = dict[str, Any]


class StoreState(NamedTuple):
    """What a process knows of its store.

    Attributes:
        kind: The scheme of its URL, or the class of a store object.
        up: False if it did not answer the last time.
        latency_ms: How long a round trip takes, in milliseconds. None if there is none.
    """

    kind: str
    up: bool
    latency_ms: float | None


class Shown(NamedTuple):
    """A rule as the file has it: its limits in words, and whether it is a shadow rule."""

    limits: tuple[str, ...]
    shadow: bool


class Outline:
    """The rules of a file, as they are shown. Made once for each version of the rules, because it takes a while."""

    def __init__(self, rules: Rules) -> None:
        self.rules_of = rules
        self.domain = ", ".join(part.domain for part in rules.parts)
        self.rules: dict[RuleId, Shown] = {}
        for part in rules.parts:
            for rule in part.compiled:
                words = [limit_in_words(quota) for quota in rule.limits]
                if rule.read_limit is not None:
                    words = ["set by a function"]
                self.rules[part.domain, rule.rule.name] = Shown(tuple(dict.fromkeys(words)), rule.rule.shadow)
            for limit in part.descriptors.limits if part.descriptors else ():
                words = [] if limit.quota is None else [limit_in_words(limit.quota)]
                self.rules[part.domain, limit.rule.name] = Shown(tuple(words), limit.rule.shadow)


def state_of(
    activity: Activity,
    outline: Outline,
    *,
    version: str | None,
    switch: str,
    at: float,
    store: StoreState,
    processes: int,
    shared: bool,
) -> LiveState:
    """Return the state.

    Args:
        activity: What the processes did together.
        outline: The rules in force.
        version: The version of the rules in force.
        switch: The setting of the kill switch.
        at: The time in epoch seconds.
        store: What is known of the store.
        processes: The number of processes that the state is about.
        shared: True if the state is about all processes, not only about this one.
    """
    end = int(at // STEP)  # the step that has not ended is left out: its counts would look like a fall
    return {
        "domain": outline.domain,
        "version": version or None,
        "switch": switch,
        "at": at,
        "store": {"kind": store.kind, "up": store.up, "latency_ms": store.latency_ms},
        "load": None if activity.load is None else round(activity.load, 3),
        "processes": processes,
        "shared": shared,
        "rates": {"requests": round(activity.requests, 2), "denials": round(activity.denials, 2)},
        "series": {
            "step": STEP,
            "end": end * STEP,
            "requests": _numbers(activity.steps[0], end, _first(activity, end)),
            "denials": _numbers(activity.steps[1], end, _first(activity, end)),
        },
        "limited": [client._asdict() for client in activity.limited if client.until is None or client.until > at],
        "rules": _rules(activity, outline.rules, end),
    }


def _first(activity: Activity, end: int) -> int:
    """Return the number of the first step that is shown: that of the first request, at most 90 before the end."""
    return max(min(activity.steps[0], default=end), end - STEPS)


def _rules(activity: Activity, outline: Mapping[RuleId, Shown], end: int) -> list[LiveState]:
    first = _first(activity, end)
    known = list(outline)
    return [
        _rule(rule, outline.get(rule, _UNKNOWN), activity, end, first)
        for rule in (*known, *(rule for rule in activity.rules if rule not in outline))
    ]


_UNKNOWN = Shown((), shadow=False)
_NOTHING = RuleActivity((0.0,) * len(OUTCOMES), {}, 0)


def _rule(rule: RuleId, shown: Shown, activity: Activity, end: int, first: int) -> LiveState:
    did = activity.rules.get(rule, _NOTHING)
    return {
        "domain": rule[0],
        "name": rule[1],
        "limits": list(shown.limits),
        "shadow": shown.shadow,
        "rates": {name: rate and round(rate, 2) for name, rate in zip(OUTCOMES, did.rates, strict=True)},
        "bans": did.bans,
        "denials": _numbers(did.denials, end, first) if did.denials else [],
    }


def _numbers(series: Series, end: int, first: int) -> list[int]:
    """Return the counts of the steps from `first` up to `end`, exclusive."""
    return [series.get(step, 0) for step in range(first, end)]
