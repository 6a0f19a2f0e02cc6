"""`throttle`, `max_wait` and `max_waiting`: what happens at the limit, short of a denial."""

import re
from dataclasses import replace
from typing import Literal, NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Invalid, Map, Node, Problems, Scalar, kind
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.limit import ALGORITHM, write_one_that
from ratelimit_mw.errors import nearest, quoted
from ratelimit_mw.model import Elastic, Quota, Rule

_PERCENT = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,2}))?\s*%")
_WHOLE = 10_000  # hundredths of a percent
_MOST = 10 * _WHOLE
_STEPS = 20
_FORM = "write hard, {soft: 10%} or {elastic: {up_to: 200%, below: 0.7}}"
_ELASTIC_FORM = "as {up_to: 200%, below: 0.7}"


class Throttle(NamedTuple):
    """`extra` more than the limit, in hundredths of a percent of it; elastic: while the load is below `below`."""

    over: Literal["soft", "elastic"]
    extra: int
    below: float = 1.0


def read_throttle(node: Node) -> Throttle | None:
    """The throttle that `node` states, None for `hard`. Raises `Invalid`."""
    if isinstance(node, Scalar) and node.text == "hard":
        return None
    if not isinstance(node, Map) or len(node) != 1:
        raise Invalid.at(None, f"must be a throttle, not {kind(node)}", _FORM)
    ((word, how),) = node.items()
    if word == "soft":
        extra = _percent(how)
        if not 0 < extra <= _MOST:
            raise Invalid.at(how.place, f"{quoted(_text(how))} is out of range", "from 0.01% to 1000%")
        return Throttle("soft", extra)
    if word == "elastic":
        return _elastic(how)
    raise Invalid.at(node.keys_at[word], f"unknown key {quoted(word)}", nearest(word, ("soft", "elastic")))


def raised(quota: Quota, throttle: Throttle | None) -> Quota:
    """`quota` with what `throttle` adds to its limit, or to the burst of a bucket; rounded down."""
    if throttle is None:
        return quota
    spare = (quota.burst or quota.limit) * throttle.extra // _WHOLE
    if throttle.over == "soft":
        return _with_spare(quota, spare, "soft")
    steps = min(spare, _STEPS)
    if not steps:
        return quota
    quotas = tuple(_with_spare(quota, spare * step // steps, "elastic") for step in range(steps + 1))
    return replace(quotas[0], elastic=Elastic(throttle.below, quotas))


def widest(quota: Quota) -> Quota:
    """What `quota` is when it is wide open."""
    return quota.elastic.quotas[-1] if quota.elastic else quota


def _with_spare(quota: Quota, spare: int, over: Literal["soft", "elastic"]) -> Quota:
    if not spare and over == "soft":
        return quota
    if quota.burst:
        return replace(quota, burst=quota.burst + spare, spare=spare, over=over)
    return replace(quota, limit=quota.limit + spare, spare=spare, over=over)


def _elastic(node: Node) -> Throttle:
    if not isinstance(node, Map):
        raise Invalid.at(node.place, f"must be a mapping, not {kind(node)}", _ELASTIC_FORM)
    invalid = Invalid()
    for key in node:
        if key not in ("up_to", "below"):
            invalid.add(node.keys_at[key], f"unknown key {quoted(key)}", nearest(key, ("up_to", "below")))
    missing = [key for key in ("up_to", "below") if key not in node and key not in node.dropped]
    if missing:
        invalid.add(node.place, f"{' and '.join(map(repr, missing))} missing", _ELASTIC_FORM)
    up_to, below = 2 * _WHOLE, 1.0
    with invalid.gathering():
        up_to = _percent(node["up_to"]) if "up_to" in node else up_to
        if not _WHOLE < up_to <= _MOST:
            hint = "of the limit, so from 101% to 1000%"
            raise Invalid.at(node["up_to"].place, f"{quoted(_text(node['up_to']))} is out of range", hint)
    with invalid.gathering():
        below = readers.share(node["below"]) if "below" in node else below
    invalid.finish()
    return Throttle("elastic", up_to - _WHOLE, below)


def _percent(node: Node) -> int:
    """Hundredths of a percent."""
    found = _PERCENT.fullmatch(_text(node).strip())
    if found is None:
        raise Invalid.at(node.place, f"must be a percentage, not {kind(node)}", "as 10% or 12.5%")
    return int(found[1]) * 100 + int((found[2] or "").ljust(2, "0"))


def _text(node: Node) -> str:
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
    about="How far above its limit a rule lets a client: hard, soft by a share, or elastic while the load is low.",
    alter=_alter,
)


def _waiting_alter(quota: Quota, rule: Values, _prefix: str) -> Quota:
    if not quota.limit or not ALGORITHMS[quota.algorithm].can_wait:
        return quota
    stated = rule[MAX_WAIT]
    if stated is not None:
        return replace(quota, max_wait=stated)
    if ALGORITHMS[quota.algorithm].queue:
        # A queue's requests may wait as long as the whole queue takes to drain.
        longest = widest(raised(quota, rule[THROTTLE]))
        return replace(quota, max_wait=longest.burst * -(-quota.period // quota.limit))
    return quota


def _validate_max_wait(rule: Values, problems: Problems) -> None:
    if rule[MAX_WAIT] is not None and not ALGORITHMS[rule[ALGORITHM]].can_wait:
        problems.add(rule.place("max_wait"), _never_waits(rule), write_one_that(lambda other: other.can_wait))


def _validate_max_waiting(rule: Values, problems: Problems) -> None:
    algorithm = ALGORITHMS[rule[ALGORITHM]]
    if rule[MAX_WAITING] is not None and rule[MAX_WAIT] is None and not algorithm.queue:
        waits = f"{rule[ALGORITHM]} waits where max_wait says for how long"
        hint = waits if algorithm.can_wait else write_one_that(lambda other: other.queue)
        problems.add(rule.place("max_waiting"), _never_waits(rule), hint)


def _never_waits(rule: Values) -> str:
    return f"with {rule[ALGORITHM]} no request waits"


MAX_WAIT: Word[int | None] = Word(
    key="max_wait",
    read=readers.duration("1ms", "1m"),
    default=None,
    schema={**kinds.TEXT, "examples": ["500ms", "10s"]},
    about="How long a request may wait for its turn instead of being denied.",
    validate=_validate_max_wait,
    alter=_waiting_alter,
)

MAX_WAITING: Word[int | None] = kinds.optional_number(
    "max_waiting",
    0,
    10_000,
    "How many threads of a process may wait for a turn at once.",
    validate=_validate_max_waiting,
    fields=lambda rule, _file: {
        "max_waiting": Rule("").max_waiting if rule[MAX_WAITING] is None else rule[MAX_WAITING]
    },
)
