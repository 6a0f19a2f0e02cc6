"""`throttle`, `max_wait` and `max_waiting`: how far clients may exceed a limit, and how long requests may wait."""

import re
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Literal, NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Map, Node, Problems, Scalar, unlike
from ratelimit_mw.config.word import Section, Values, Word, section_word
from ratelimit_mw.config.words.limit import ALGORITHM, algorithm_hint, needs_algorithm
from ratelimit_mw.errors import Invalid, quoted
from ratelimit_mw.model import SECOND, Elastic, Quota, Rule

_PERCENT = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,2}))?\s*%")
_HUNDRED_PERCENT = 10_000  # percentages are in hundredths of a percent
_MOST = 10 * _HUNDRED_PERCENT
_STEPS = 20  # an elastic limit grows in this many steps, for which all quotas are made at the start
_FORM = "write hard, {soft: 10%} or {elastic: {up_to: 200%, below: 0.7}}"


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


def _percentage(above: int, hint: str) -> Callable[[Node], int]:
    """Return a reader of percentages above `above`, in hundredths of a percent."""

    def read(node: Node) -> int:
        found = kinds.read_match(node, _PERCENT, "a percentage", "for example 10% or 12.5%")
        percentage = int(found[1]) * 100 + int((found[2] or "").ljust(2, "0"))
        if not above < percentage <= _MOST:
            raise Invalid(f"{quoted(found[0])} is out of range", hint)
        return percentage

    return read


def _read_throttle(node: Node) -> Throttle | None:
    """Read a throttle. None for `hard`."""
    if isinstance(node, Scalar) and node.text == "hard":
        return None
    if not isinstance(node, Map) or len(node.keys_at) != 1:
        raise unlike(node, "a throttle", _FORM)
    throttle: Throttle = _SECTION.read(node)
    return throttle


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


def _with_spare(quota: Quota, spare: int, over: Literal["soft", "elastic"]) -> Quota:
    if not spare and over == "soft":
        return quota
    if quota.burst:
        return replace(quota, burst=quota.burst + spare, spare=spare, over=over)
    return replace(quota, limit=quota.limit + spare, spare=spare, over=over)


_PERCENTAGE = {"type": "string", "pattern": r"^[0-9]{1,4}(\.[0-9]{1,2})?\s*%$", "examples": ["10%", "200%"]}

_ELASTIC = section_word(
    "elastic",
    Section(
        "Elastic",
        "The limit grows while the load is low.",
        (
            Word(
                key="up_to",
                read=_percentage(_HUNDRED_PERCENT, "from 101% to 1000% of the limit"),
                default=2 * _HUNDRED_PERCENT,
                schema=_PERCENTAGE,
                about="The largest limit, in percent of the limit.",
                required=True,
            ),
            kinds.load("below", 1.0, "The load below which the limit grows.", required=True),
        ),
        make=lambda up_to, below: Throttle("elastic", up_to - _HUNDRED_PERCENT, below),
        example="for example {up_to: 200%, below: 0.7}",
        whole=True,
    ),
    default=None,
)

_SECTION = Section(
    "Throttle",
    "How far clients may exceed the limit: soft or elastic.",
    (
        Word(
            key="soft",
            read=_percentage(0, "from 0.01% to 1000%"),
            default=None,
            schema=_PERCENTAGE,
            about="How much more than the limit is always admitted.",
        ),
        _ELASTIC,
    ),
    make=lambda soft, elastic: elastic if soft is None else Throttle("soft", soft),
    whole=True,
)

THROTTLE: Word[Throttle | None] = Word(
    key="throttle",
    read=_read_throttle,
    default=None,
    shown_default="hard",
    schema=lambda shared: {
        "anyOf": [{"const": "hard"}, {**_SECTION.as_schema(shared), "minProperties": 1, "maxProperties": 1}]
    },
    about="How far clients may exceed the limit: hard (not at all), soft (by a share), elastic (at low load).",
    section=_SECTION,
    alter=lambda quota, rule, _prefix: raised(quota, rule[THROTTLE]),
)


def _alter_max_wait(quota: Quota, rule: Values, _prefix: str) -> Quota:
    waits = quota.limit and ALGORITHMS[quota.algorithm].can_wait
    return replace(quota, longest_wait=round((rule[MAX_WAIT] or 0) * SECOND)) if waits else quota


def _validate_max_waiting(rule: Values, problems: Problems) -> None:
    algorithm = ALGORITHMS[rule[ALGORITHM]]
    if algorithm.queue or rule.has_key("max_wait"):
        return
    place = rule.place("max_waiting")
    if algorithm.can_wait:
        message = f"has no effect: with {rule[ALGORITHM]}, requests wait only if max_wait is set"
        problems.add(place, message, "add max_wait")
    else:
        hint = algorithm_hint(lambda other: other.queue, "max_waiting")
        problems.add(place, _NEVER_WAITS.format(rule[ALGORITHM]), hint)


_NEVER_WAITS = "can't be combined with {}: its requests never wait"


MAX_WAIT: Word[float | None] = Word(
    key="max_wait",
    read=kinds.seconds("1ms", "1m"),
    default=None,
    schema={**kinds.TEXT, "examples": ["500ms", "10s"]},
    about="How long a request may wait for its turn instead of being denied.",
    unset="a leaky_bucket: for the whole queue. Otherwise: not at all",
    validate=needs_algorithm("max_wait", attrgetter("can_wait"), _NEVER_WAITS),
    alter=_alter_max_wait,
)

MAX_WAITING: Word[int | None] = kinds.number(
    "max_waiting",
    0,
    10_000,
    None,
    "How many threads of a process may wait for their turn at the same time. The only thread of a server never waits.",
    shown_default=Rule("").max_waiting,
    validate=_validate_max_waiting,
    fields=lambda most: {"max_waiting": most},
)
