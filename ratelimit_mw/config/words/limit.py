"""`limit` and `burst`: how much a rule admits, in every form that a file may write it.

A limit is `N per [M] unit`, `N/unit`, `N concurrent`, `unlimited`, a mapping `{requests:, per:, burst:}`, several of
them in a list or in one text separated by `;`, `,` or `|`, or a mapping of these by tier.
"""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS, IN_FLIGHT, named
from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Invalid, Items, Map, Node, Place, Problems, Scalar, kind
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.errors import DurationError, nearest, quoted
from ratelimit_mw.process_local import checkpoint
from ratelimit_mw.units import DAY, DURATION_FORM, LONGEST_NUMBER, SHORT_UNITS, UNITS, parse_duration, spell_period

DEFAULT = "sliding_window"
"""The algorithm of a rule that names none."""

DEFAULT_BUCKETS = 60
"""The slices of a window that does not say how many."""


def write_one_that(able: Callable[[Algorithm], bool]) -> str:
    """The hint that names the algorithms which are `able`."""
    return f"write algorithm: {named(able)}, or leave it out"


def _read(node: Node) -> str:
    other_names = {other: name for name, algorithm in ALGORITHMS.items() for other in algorithm.also_called}
    return readers.one_of(*ALGORITHMS, other_names=other_names)(node)


def _validate_buckets(rule: Values, problems: Problems) -> None:
    if rule[BUCKETS] is not None and not ALGORITHMS[rule[ALGORITHM]].has_buckets:
        hint = write_one_that(lambda other: other.has_buckets)
        problems.add(rule.place("buckets"), f"{rule[ALGORITHM]} has no buckets", hint)


ALGORITHM: Word[str] = Word(
    key="algorithm",
    read=_read,
    default=DEFAULT,
    shown_default=DEFAULT,
    schema=lambda: {"enum": list(ALGORITHMS)},
    about="How requests are counted.",
    compared=True,
)

BUCKETS = kinds.optional_number(
    "buckets",
    1,
    1_000,
    "Into how many slices a bucketed_window is cut; 60 if it is not set.",
    compared=True,
    validate=_validate_buckets,
)


MOST = 1_000_000_000
"""The largest limit, burst and cost."""

FORM = "write N per [M] second, minute, hour, day, week, month or year, as in 100 per minute; or unlimited"

_KEYS = ("requests", "per", "burst")
_LONGEST_WINDOW = 10 * 365 * DAY
_LONGEST_REFILL = 50 * 365 * DAY

_LIMIT = re.compile(r"\s*([0-9]+)\s*(?:per\s|/)(.*)", re.IGNORECASE | re.DOTALL)
_NEARLY = re.compile(
    r"\s*([0-9]{1,9})\s*(?:r|reqs?|requests?|hits?|calls?|times?)?\s*(?:per|/|an?\b|every|each|in)\s*([a-z]+)",
    re.IGNORECASE,
)
_CONCURRENT = re.compile(r"\s*([0-9]+)\s+([a-z]+)\s*", re.IGNORECASE)
_SEPARATOR = re.compile(r"[;,|]")
_THOUSANDS = re.compile(r"\b[0-9]{1,3}(?:,[0-9]{3})+\b")


class Window(NamedTuple):
    """`limit` requests per `period` (microseconds; 0: at a time), `burst` where the limit states its own."""

    limit: int
    period: int
    burst: int | None = None


class Stated(NamedTuple):
    """One window, and where it is stated."""

    window: Window
    place: Place


class Limits(NamedTuple):
    """The windows of a client without a tier or with one that is not named, and those of each tier. None: unlimited."""

    default: tuple[Stated, ...]
    tiers: Mapping[str, tuple[Stated, ...]] | None = None

    def all(self) -> list[Stated]:
        """Every window that some client is held to."""
        return [stated for several in (self.default, *(self.tiers or {}).values()) for stated in several]


def parse_limit(text: str) -> tuple[Window, ...] | None:
    """The windows that `text` states; None for `unlimited`. Raises `DurationError`."""
    if text.strip().lower() == "unlimited":
        return None
    thousands = _THOUSANDS.search(text)
    if thousands is not None:
        raise DurationError(f"{quoted(text)} is not a limit", f"write {thousands[0].replace(',', '')} without a comma")
    pieces = _SEPARATOR.split(text)
    if len(pieces) > 1 and not pieces[-1].strip():
        pieces.pop()  # a separator at the end
    return tuple(_window(piece) for piece in pieces)


def _window(text: str) -> Window:
    match = _LIMIT.fullmatch(text)
    try:
        concurrent = _CONCURRENT.fullmatch(text)
        if concurrent is not None and concurrent[2].lower() == "concurrent":
            return Window(_whole(concurrent[1]), 0)
        if match is None:
            raise DurationError(f"{quoted(text.strip())} is not a limit", FORM)
        return Window(_whole(match[1]), parse_period(match[2]))
    except DurationError as error:
        if error.hint in (FORM, DURATION_FORM):
            error.hint = _meant(text) or FORM
        raise


def parse_period(text: str) -> int:
    """The microseconds in the period of a limit, a whole number of units. Raises `DurationError`."""
    if "." in text:
        raise DurationError(f"{quoted(text.strip())} is not a whole number of units", "write 1500ms instead of 1.5s")
    return parse_duration(text)


def _meant(text: str) -> str:
    """The hint for a text that is nearly a limit, or ""."""
    concurrent = _CONCURRENT.fullmatch(text)
    if concurrent is not None and get_close_matches(concurrent[2].lower(), ("concurrent", "concurrently")):
        return f"did you mean '{concurrent[1]} concurrent'?"
    nearly = _NEARLY.match(text)
    if nearly is None or (nearly[2].lower() not in SHORT_UNITS and nearly[2].lower().removesuffix("s") not in UNITS):
        return ""
    return f"did you mean '{nearly[1]} per {nearly[2]}'?"


def _whole(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise DurationError(f"the number {quoted(digits)} is too large", f"at most {MOST}")
    return int(digits)


def read_limits(node: Node) -> Limits:
    """The limits that `node` states. Raises `Invalid` with everything that is wrong in it."""
    checkpoint()
    if not isinstance(node, Map) or ("default" not in node and ("requests" in node or "per" in node)):
        return Limits(_several(node))
    invalid = Invalid()
    tiers: dict[str, tuple[Stated, ...]] = {}
    for tier, limit in node.items():
        if not tier.strip():
            invalid.add(limit.place, "a tier without a name, which no request has")
        with invalid.gathering():
            tiers[tier] = _several(limit)
    if "default" not in node:
        message = "a limit by tier needs 'default', for the tiers that are not named"
        invalid.add(node.place, message, "" if node else FORM)
    invalid.finish()
    return Limits(tiers.pop("default"), tiers)


def _several(node: Node) -> tuple[Stated, ...]:
    if not isinstance(node, Items):
        return _without_twins(_one(node) or ())
    invalid = Invalid()
    windows: list[Stated] = []
    if not node:
        invalid.add(node.place, "an empty list limits nothing", "write unlimited, or leave the rule out")
    for item in node:
        with invalid.gathering():
            stated = _one(item)
            if stated is None:
                invalid.add(item.place, "'unlimited' stands alone, not in a list")
            else:
                windows += stated
    with invalid.gathering():
        _without_twins(tuple(windows))
    invalid.finish()
    return tuple(windows)


def _without_twins(windows: tuple[Stated, ...]) -> tuple[Stated, ...]:
    for n, stated in enumerate(windows):
        if any(stated.window.period == other.window.period for other in windows[:n]):
            raise Invalid.at(stated.place, "two limits of one list have the same window", "keep the lower one")
    return windows


def _one(node: Node) -> tuple[Stated, ...] | None:
    if isinstance(node, Map) and "default" in node:
        raise Invalid.at(node.place, "tiers stand at the top of a limit, not within a tier or a list")
    if isinstance(node, Map):
        return (Stated(_spelled_out(node), node.place),)
    if isinstance(node, Items):
        raise Invalid.at(node.place, "must be a limit, not a list")
    if not isinstance(node.value, str):
        raise Invalid.at(node.place, f"must be a limit, not {kind(node)}", FORM)
    try:
        windows = parse_limit(node.text)
    except DurationError as error:
        raise Invalid.at(node.place, str(error), error.hint) from None
    return None if windows is None else tuple(Stated(window, node.place) for window in windows)


def _spelled_out(node: Map) -> Window:
    invalid = Invalid()
    for key in node:
        if key not in _KEYS:
            invalid.add(node.keys_at[key], f"unknown key {quoted(key)}", nearest(key, _KEYS))
    missing = [key for key in ("requests", "per") if key not in node]
    if missing:
        invalid.add(node.place, f"{' and '.join(map(repr, missing))} missing", "as {requests: 100, per: minute}")
    requests = burst = period = 0
    with invalid.gathering():
        requests = _number(node["requests"]) if "requests" in node else 0
    with invalid.gathering():
        burst = _number(node["burst"]) if "burst" in node else 0
    with invalid.gathering():
        period = _period(node["per"]) if "per" in node else 0
    invalid.finish()
    return Window(requests, period, burst if "burst" in node else None)


def _number(node: Node) -> int:
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise Invalid.at(node.place, f"must be a whole number from 0 on, not {kind(node)}")


def _period(node: Node) -> int:
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        raise Invalid.at(node.place, f"must be a time, not {kind(node)}", "as minute, 2 hours or 10s")
    try:
        return parse_period(node.text)
    except DurationError as error:
        raise Invalid.at(node.place, str(error), error.hint) from None


def burst_of(rule: Values, window: Window) -> int:
    """What a bucket holds; 0 where the algorithm has no bucket, and where nothing ever passes."""
    limit, period, own_burst = window
    return (own_burst or rule[BURST] or limit) if ALGORITHMS[rule[ALGORITHM]].has_burst and limit and period else 0


def window_fault(rule: Values, window: Window) -> tuple[str, str] | None:
    """What is wrong with one window of a rule, and the hint; None where nothing is."""
    limit, period, own_burst = window
    name = rule[ALGORITHM]
    algorithm = ALGORITHMS[name]
    if own_burst is not None and not algorithm.has_burst:
        return no_burst(rule)
    if limit > MOST:
        return f"a limit of {limit} is too large", f"at most {MOST}"
    if not period:
        return None
    if period > _LONGEST_WINDOW:
        return f"a window of {spell_period(period)} is too long", "at most 10 years"
    largest = algorithm.largest
    if largest is not None and limit > largest.limit:
        return f"{name} {largest.why}, and so at most {largest.limit}, not {limit}", largest.hint
    return _bucket_fault(rule, window) if algorithm.has_burst else None


def _bucket_fault(rule: Values, window: Window) -> tuple[str, str] | None:
    limit, period, own_burst = window
    name = rule[ALGORITHM]
    if limit > period:
        return f"{name} admits at most one request per microsecond, not {limit} per {spell_period(period)}", ""
    if own_burst is not None and not 1 <= own_burst <= MOST:
        return f"a burst of {own_burst} is out of range", f"from 1 to {MOST}"
    burst = burst_of(rule, window)
    if limit and burst * -(-period // limit) > _LONGEST_REFILL:
        return f"a burst of {burst} would take more than 50 years to refill", ""
    if ALGORITHMS[name].queue and limit and burst * -(-period // limit) > _LONGEST_WINDOW:
        return f"a queue of {burst} would take more than 10 years to empty", ""
    return None


def _validate_burst(rule: Values, problems: Problems) -> None:
    if rule[BURST] is not None and not ALGORITHMS[rule[ALGORITHM]].has_burst:
        problems.add(rule.place("burst"), *no_burst(rule))


def no_burst(rule: Values) -> tuple[str, str]:
    """The problem of a burst that the rule's algorithm does not have, and its hint."""
    return f"{rule[ALGORITHM]} has no burst", write_one_that(lambda other: other.has_burst)


def _validate_limit(rule: Values, problems: Problems) -> None:
    """Report an algorithm and a limit that do not go together: one counts over a time, one what is in flight."""
    windows = [stated for stated in rule[LIMIT].all() if stated.window.period]
    concurrent = [stated for stated in rule[LIMIT].all() if not stated.window.period]
    name = rule[ALGORITHM]
    if ALGORITHMS[name].in_flight:
        for window, place in windows:
            hint = f"write {window.limit} concurrent, or another algorithm"
            problems.add(place, f"{name} counts what is in flight, not over a time", hint)
    elif concurrent and not windows and ALGORITHM in rule and rule.states("algorithm"):
        message = f"what is concurrent is counted by {IN_FLIGHT}, not by {name}"
        problems.add(rule.place("algorithm"), message, "leave it out")


def is_concurrent(rule: Values) -> bool:
    """True where one of the rule's limits counts what is in flight."""
    return any(not stated.window.period for stated in rule[LIMIT].all())


def is_concurrent_only(rule: Values) -> bool:
    """True where all limits of a rule count what is in flight."""
    return not any(stated.window.period for stated in rule[LIMIT].all())


_ONE = {
    "anyOf": [
        {"type": "string", "examples": ["100 per minute", "10/2s", "20 concurrent", "5/s; 100/hour", "unlimited"]},
        {
            "type": "object",
            "properties": {
                "requests": {"type": "integer", "minimum": 0},
                "per": kinds.TEXT,
                "burst": {"type": "integer"},
            },
            "required": ["requests", "per"],
            "additionalProperties": False,
        },
    ]
}

LIMIT_SCHEMA = {
    "anyOf": [
        *kinds.or_list(_ONE)["anyOf"],
        {"type": "object", "required": ["default"], "additionalProperties": kinds.or_list(_ONE)},
    ]
}
"""The JSON Schema of a limit."""

LIMIT: Word[Limits] = Word(
    key="limit",
    read=read_limits,
    default=Limits(()),
    schema=LIMIT_SCHEMA,
    about="How much is admitted: 100 per minute, 20 concurrent, unlimited, a list of limits, or a mapping by tier.",
    required=True,
    compared=True,
    validate=_validate_limit,
    fields=lambda rule, _file: {
        "several": any(len(held) > 1 for held in (rule[LIMIT].default, *(rule[LIMIT].tiers or {}).values()))
    },
)

BURST = kinds.optional_number(
    "burst",
    1,
    MOST,
    "How many requests a bucket holds; the limit's number if it is not set.",
    compared=True,
    validate=_validate_burst,
)
