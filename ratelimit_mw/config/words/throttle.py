"""`throttle`, `max_wait` and `max_waiting`: how far clients may exceed a limit, and how long requests may wait."""

import re
from dataclasses import replace
from typing import Literal, NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Invalid, Map, Node, Problems, Scalar, kind
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.limit import ALGORITHM, algorithm_hint
from ratelimit_mw.errors import nearest, quoted
from ratelimit_mw.model import Elastic, Quota, Rule

_PERCENT = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,2}))?\s*%")
_HUNDRED_PERCENT = 10_000  # percentages are in hundredths of a percent
_MOST = 10 * _HUNDRED_PERCENT
_STEPS = 20  # an elastic limit grows in this many steps, for which all quotas are made at the start
_FORM = "write hard, {soft: 10%} or {elastic: {up_to: 200%, below: 0.7}}"
_ELASTIC_FORM = "for example {up_to: 200%, below: 0.7}"


class Throttle(NamedTuple):
    """A throttle that admits more than the limit.

    Attributes:
        over: `soft` always admits more. `elastic` does so while the load is below `below`.
        extra: How much more, in hundredths of a percent of the limit.
        below: The load below which an elastic limit grows.
    """

    over: Literal["soft", "elastic"]
    extra: int
    below: float = 1.0


def read_throttle(node: Node) -> Throttle | None:
    """Read a throttle. None for `hard`. Raises `Invalid`."""
    if isinstance(node, Scalar) and node.text == "hard":
        return None
    if not isinstance(node, Map) or len(node) != 1:
        raise Invalid.at(None, f"must be a throttle, not {kind(node)}", _FORM)
    ((word, value),) = node.items()
    if word == "soft":
        extra = _percent(value)
        if not 0 < extra <= _MOST:
            raise Invalid.at(value.place, f"{quoted(_text(value))} is out of range", "from 0.01% to 1000%")
        return Throttle("soft", extra)
    if word == "elastic":
        return _elastic(value)
    raise Invalid.at(node.keys_at[word], f"unknown key {quoted(word)}", nearest(word, ("soft", "elastic")))


def raised(quota: Quota, throttle: Throttle | None) -> Quota:
    """Return `quota` with the part that `throttle` adds to its limit, or to the burst of a bucket. Rounded down."""
    if throttle is None:
        return quota
    spare = (quota.burst or quota.limit) * throttle.extra // _HUNDRED_PERCENT
    if throttle.over == "soft":
        return _with_spare(quota, spare, "soft")
    steps = min(spare, _STEPS)
    if not steps:
        return quota
    quotas = tuple(_with_spare(quota, spare * step // steps, "elastic") for step in range(steps + 1))
    return replace(quotas[0], elastic=Elastic(throttle.below, quotas))


def widest(quota: Quota) -> Quota:
    """Return the largest quota that an elastic `quota` may become. Return any other quota itself."""
    return quota.elastic.quotas[-1] if quota.elastic else quota


def _with_spare(quota: Quota, spare: int, over: Literal["soft", "elastic"]) -> Quota:
    if not spare and over == "soft":
        return quota
    if quota.burst:
        return replace(quota, burst=quota.burst + spare, spare=spare, over=over)
    return replace(quota, limit=quota.limit + spare, spare=spare, over=over)


def _elastic(node: Node) -> Throttle:
    """Read the settings of an elastic throttle. `up_to` is a percentage of the limit, so 100% is the limit itself."""
    if not isinstance(node, Map):
        raise Invalid.at(node.place, f"must be a mapping, not {kind(node)}", _ELASTIC_FORM)
    invalid = Invalid()
    readers.report_unknown_keys(node, ("up_to", "below"), invalid)
    missing = [key for key in ("up_to", "below") if key not in node and key not in node.dropped]
    if missing:
        invalid.add(node.place, readers.missing_keys(missing), _ELASTIC_FORM)
    up_to, below = 2 * _HUNDRED_PERCENT, 1.0
    with invalid.gathering():
        up_to = _percent(node["up_to"]) if "up_to" in node else up_to
        if not _HUNDRED_PERCENT < up_to <= _MOST:
            hint = "from 101% to 1000% of the limit"
            raise Invalid.at(node["up_to"].place, f"{quoted(_text(node['up_to']))} is out of range", hint)
    with invalid.gathering():
        below = readers.load(node["below"]) if "below" in node else below
    invalid.finish()
    return Throttle("elastic", up_to - _HUNDRED_PERCENT, below)


def _percent(node: Node) -> int:
    """Read a percentage, in hundredths of a percent."""
    found = _PERCENT.fullmatch(_text(node).strip())
    if found is None:
        raise Invalid.at(node.place, f"must be a percentage, not {kind(node)}", "for example 10% or 12.5%")
    return int(found[1]) * 100 + int((found[2] or "").ljust(2, "0"))


def _text(node: Node) -> str:
    """Return the text of a scalar. Empty for a list or a mapping, which no pattern matches."""
    return node.text if isinstance(node, Scalar) else ""


def _alter(quota: Quota, rule: Values, _prefix: str) -> Quota:
    return raised(quota, rule[THROTTLE])


_PERCENTAGE = {"type": "string", "pattern": r"^[0-9]{1,4}(\.[0-9]{1,2})?\s*%$", "examples": ["10%", "200%"]}

THROTTLE: Word[Throttle | None] = Word(
    key="throttle",
    read=read_throttle,
    default=None,
    shown_default="hard",
    schema={
        "anyOf": [
            {"const": "hard"},
            {
                "type": "object",
                "properties": {"soft": _PERCENTAGE},
                "required": ["soft"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {
                    "elastic": {
                        "type": "object",
                        "properties": {
                            "up_to": _PERCENTAGE,
                            "below": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                        },
                        "required": ["up_to", "below"],
                        "additionalProperties": False,
                    }
                },
                "required": ["elastic"],
                "additionalProperties": False,
            },
        ]
    },
    about="How far clients may exceed the limit: hard (not at all), soft (by a share), elastic (at low load).",
    alter=_alter,
)


def _waiting_alter(quota: Quota, rule: Values, _prefix: str) -> Quota:
    if not quota.limit or not ALGORITHMS[quota.algorithm].can_wait:
        return quota
    max_wait = rule[MAX_WAIT]
    if max_wait is not None:
        return replace(quota, max_wait=max_wait)
    if ALGORITHMS[quota.algorithm].queue:
        # A queue's requests may wait as long as the whole queue takes to drain.
        longest = widest(raised(quota, rule[THROTTLE]))
        return replace(quota, max_wait=longest.burst * -(-quota.period // quota.limit))
    return quota


def _validate_max_wait(rule: Values, problems: Problems) -> None:
    """Report a `max_wait` that no request would use."""
    if rule[MAX_WAIT] is not None and not ALGORITHMS[rule[ALGORITHM]].can_wait:
        problems.add(
            rule.place("max_wait"), _never_waits(rule), algorithm_hint(lambda other: other.can_wait, "max_wait")
        )


def _validate_max_waiting(rule: Values, problems: Problems) -> None:
    algorithm = ALGORITHMS[rule[ALGORITHM]]
    if rule[MAX_WAITING] is not None and rule[MAX_WAIT] is None and not algorithm.queue:
        place = rule.place("max_waiting")
        if algorithm.can_wait:
            problems.add(
                place, f"has no effect: with {rule[ALGORITHM]}, requests wait only if max_wait is set", "add max_wait"
            )
        else:
            problems.add(place, _never_waits(rule), algorithm_hint(lambda other: other.queue, "max_waiting"))


def _never_waits(rule: Values) -> str:
    return f"can't be combined with {rule[ALGORITHM]}: its requests never wait"


MAX_WAIT: Word[int | None] = Word(
    key="max_wait",
    read=readers.duration("1ms", "1m"),
    default=None,
    schema={**kinds.TEXT, "examples": ["500ms", "10s"]},
    about="How long a request may wait for its turn instead of being denied.",
    unset="a leaky_bucket: for the whole queue. Otherwise: not at all",
    validate=_validate_max_wait,
    alter=_waiting_alter,
)

MAX_WAITING: Word[int | None] = kinds.optional_number(
    "max_waiting",
    0,
    10_000,
    "How many threads of a process may wait for their turn at the same time. The only thread of a server never waits.",
    shown_default=Rule("").max_waiting,
    validate=_validate_max_waiting,
    fields=lambda rule, _file: {
        "max_waiting": Rule("").max_waiting if rule[MAX_WAITING] is None else rule[MAX_WAITING]
    },
)
