"""`limit`, `algorithm`, `burst` and `buckets`: how many requests a rule admits, and how they are counted.

A limit has one of these forms:

* a text: `N per [M] unit`, `N/unit`, `N concurrent` or `unlimited`
* several limits in one text, separated by `;`, `,` or `|`
* a mapping `{requests:, per:, burst:}`
* a list of these
* a mapping by tier, whose values are any of these
* `python:package.module:function`, see `words.overrides.with_function`
"""

import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS, IN_FLIGHT, algorithm_names, for_rules
from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Items, Map, Node, Place, Problems, Scalar, unlike
from ratelimit_mw.config.word import Conflict, Schema, Section, Values, Word
from ratelimit_mw.errors import Invalid, quoted
from ratelimit_mw.identity.sources import compiled
from ratelimit_mw.units import DAY, DURATION_FORM, LONGEST_NUMBER, parse_duration, spell_period

DEFAULT = "sliding_window"
"""The algorithm of a rule that does not set one."""

DEFAULT_BUCKETS = 60
"""The number of slices of a `bucketed_window` that does not set `buckets`."""


def algorithm_hint(able: Callable[[Algorithm], bool], key: str) -> str:
    """Return the hint for a `key` that the algorithm does not support. It names the algorithms that are `able`."""
    return f"use algorithm: {algorithm_names(able)}, or remove {key}"


def read_algorithm(node: Node) -> str:
    """Read the name of an algorithm. Raises `Invalid`."""
    other_names = {other: name for name, algorithm in for_rules().items() for other in algorithm.also_called}
    return kinds.one_of(*for_rules(), other_names=other_names)(node)


def needs_algorithm(key: str, able: Callable[[Algorithm], bool], message: str) -> Callable[[Values, Problems], None]:
    """Return the check of a `key` that not all algorithms support. `message` has a place for the name of the other."""

    def validate(rule: Values, problems: Problems) -> None:
        name = rule[ALGORITHM]
        if not able(ALGORITHMS[name]):
            problems.add(rule.place(key), message.format(name), algorithm_hint(able, key))

    return validate


ALGORITHM: Word[str] = Word(
    key="algorithm",
    read=read_algorithm,
    default=DEFAULT,
    shown_default=DEFAULT,
    schema=lambda _: {"enum": list(for_rules())},
    about="How requests are counted.",
    compared=True,
)

BUCKETS = kinds.number(
    "buckets",
    1,
    1_000,
    None,
    "The number of slices of a bucketed_window.",
    shown_default=DEFAULT_BUCKETS,
    compared=True,
    validate=needs_algorithm("buckets", attrgetter("has_buckets"), "{} has no buckets"),
)


MOST = 1_000_000_000
"""The largest limit, burst and cost."""

FORM = (
    "write N per [M] millisecond, second, minute, hour, day, week, month or year, for example 100 per minute; or"
    " unlimited"
)
"""The hint for a text that is not a limit."""

_OTHER_KEYS = ("rate", "period", "window", "interval", "unit")  # in other limiters; here the mapping is not by tier
_FUNCTION = "python:"
_LONGEST_WINDOW = 10 * 365 * DAY

# 100 per minute, 10/2s
_LIMIT = re.compile(r"\s*([0-9]+)\s*(?:per\s|/)(.*)", re.IGNORECASE | re.DOTALL)
_CONCURRENT = re.compile(r"\s*([0-9]+)\s+([a-z]+)\s*", re.IGNORECASE)
_SEPARATOR = re.compile(r"[;,|]")
# 1,000: a comma within a number. Commas separate limits, so this would be read as the limits 1 and 000.
_THOUSANDS = re.compile(r"\b[0-9]{1,3}(?:,[0-9]{3})+\b")


class Window(NamedTuple):
    """One limit, as it is written.

    Attributes:
        limit: The number of requests.
        period: The period in microseconds. 0 for a concurrent limit, which has none.
        burst: The burst, if the limit itself sets it. None: the rule's `burst`.
        place: Its place in the file.
    """

    limit: int
    period: int
    burst: int | None = None
    place: Place = Place()


class Limits(NamedTuple):
    """The limits of a rule.

    Attributes:
        default: The windows of all clients, or of the clients whose tier is not listed. Empty for `unlimited`.
        tiers: The windows of each listed tier. None if the limit does not depend on the tier.
        function: The source that returns the limit of a request, as "python:module:function". "" if the file has it.
    """

    default: tuple[Window, ...]
    tiers: Mapping[str, tuple[Window, ...]] | None = None
    function: str = ""

    def by_tier(self) -> list[tuple[Window, ...]]:
        """Return the windows of each tier."""
        return [self.default, *(self.tiers or {}).values()]

    def all(self) -> list[Window]:
        """Return the windows of all tiers."""
        return [window for windows in self.by_tier() for window in windows]


def parse_limit(text: str) -> tuple[Window, ...] | None:
    """Return the windows in `text`. None for `unlimited`. Raises `Invalid`."""
    if text.strip().lower() == "unlimited":
        return None
    thousands = _THOUSANDS.search(text)
    if thousands is not None:
        raise Invalid(f"{quoted(text)} is not a limit", f"write {thousands[0].replace(',', '')} without a comma")
    pieces = [piece for piece in _SEPARATOR.split(text) if piece.strip()]
    try:
        return tuple(_window(piece) for piece in pieces or [text])
    except Invalid as error:
        if error.hint in (FORM, DURATION_FORM):
            error.hint = correction(text) or FORM
        raise


def _window(text: str) -> Window:
    concurrent = _CONCURRENT.fullmatch(text)
    if concurrent is not None and concurrent[2].lower() == "concurrent":
        return Window(_whole(concurrent[1]), 0)
    match = _LIMIT.fullmatch(text)
    if match is None:
        if text.strip().lower() == "unlimited":
            raise Invalid("'unlimited' can't be combined with other limits", "remove it, or the other limits")
        raise Invalid(f"{quoted(text.strip())} is not a limit", FORM)
    return Window(_whole(match[1]), parse_period(match[2]))


def parse_period(text: str) -> int:
    """Return the period of a limit in microseconds. It must be a whole number of units. Raises `Invalid`."""
    if "." in text:
        raise Invalid(
            f"{quoted(text.strip())} is not a whole number of units",
            "use a smaller unit, for example 1500ms instead of 1.5s",
        )
    return parse_duration(text)


def _whole(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise Invalid(f"the number {quoted(digits)} is too large", f"at most {MOST}")
    return int(digits)


# What people write after a limit, instead of the key `by`: 100 per minute per ip.
_BY = {"ip": "ip", "client": "ip", "address": "ip", "user": "user", "host": "host", "path": "path", "method": "method"}
_WHOSE = re.compile(rf"(?:per|by|for|from|/)\s*(?:(?:an?|each|every)\s+)?({'|'.join(_BY)})\b", re.IGNORECASE)

_RESPELT = tuple(
    (re.compile(pattern, re.IGNORECASE), limit)
    for pattern, limit in (
        (_WHOSE.pattern, " "),
        (r"\band\b|[,|&+]", ";"),
        (r"([0-9])\s*rp([smhd])\b", r"\1 per \2"),
        (r"([0-9]{1,9})\s*con?c+ur+[ea]nt(?:ly|s)?\b(?:\s*requests?\b)?", r"\1 concurrent;"),
        (
            (
                r"([0-9]{1,9})\s*(?:r|reqs?|requests?|hits?|calls?|times?)?\s*(?:per|/|an?\b|every|each|in)"
                r"\s*([0-9]{1,9}\s*)?([a-z]+)"
            ),
            r"\1 per \2\3;",
        ),
    )
)
"""What limits look like elsewhere (5r/s, 100 requests a minute), and how they are written here."""


def correction(text: str) -> str:
    """Return the hint for a text that is similar to one or several limits. "" if it is not.

    The hint repeats all of the text: a user who follows it must not lose one of two limits.
    """
    text = " ".join(text.split())  # the patterns would try each of many spaces
    whose = {_BY[owner.lower()] for owner in _WHOSE.findall(text)}
    for pattern, limit in _RESPELT:
        text = pattern.sub(limit, text)
    limits = [piece.strip() for piece in text.split(";") if piece.strip()]
    try:
        understood = [_window(limit) for limit in limits]
    except Invalid:
        return ""
    by = "".join(f", and by: {name}" for name in whose)
    return f"did you mean '{'; '.join(limits)}'{by}?" if understood and len(whose) < 2 else ""


def read_limits(node: Node) -> Limits:
    """Read the limits of a rule, in any form."""
    if isinstance(node, Scalar) and isinstance(node.value, str) and node.text.strip().startswith(_FUNCTION):
        return Limits((), function=node.text.strip())
    by_tier = isinstance(node, Map) and ("default" in node or not {*_MAPPING.words, *_OTHER_KEYS} & node.keys())
    if not isinstance(node, Map) or not by_tier:
        return Limits(_read_windows(node))
    problems = Problems()
    tiers = {tier: problems.read(_read_windows, limit, ()) for tier, limit in node.items()}
    for tier in tiers:
        if not tier.strip():
            problems.add(node[tier].place, "the name of a tier must not be blank")
    if "default" not in node:
        message = "a limit by tier needs the key 'default', for all tiers that are not listed"
        problems.add(node.place, message, "" if node else FORM)
    problems.refuse()
    return Limits(tiers.pop("default"), tiers)


def _read_windows(node: Node) -> tuple[Window, ...]:
    """Read one limit or a list of limits, for one tier."""
    problems = Problems()
    if isinstance(node, Items):
        if not node:
            raise Invalid("the list must not be empty", "write unlimited, or remove the rule")
        windows: list[Window] = []
        for item in node:
            found = problems.read(_read_one, item, ())
            if found is None:
                problems.add(item.place, "'unlimited' must not be in a list")
            windows += found or ()
    else:
        windows = list(_read_one(node) or ())
    for n, window in enumerate(windows):
        if any(window.period == other.period for other in windows[:n]):
            problems.add(window.place, "two limits have the same window", "keep only the lower one")
    problems.refuse()
    return tuple(windows)


def _read_one(node: Node) -> tuple[Window, ...] | None:
    """Read a mapping, or a text with one or several limits. None for `unlimited`."""
    if isinstance(node, Map) and "default" in node:
        raise Invalid("a mapping by tier must not be in a tier or in a list")
    if isinstance(node, Map):
        return (_MAPPING.read(node)._replace(place=node.place),)
    if isinstance(node, Items):
        raise Invalid("must be a limit, not a list")
    if not isinstance(node.value, str):
        raise unlike(node, "a limit", FORM)
    windows = parse_limit(node.text)
    return None if windows is None else tuple(window._replace(place=node.place) for window in windows)


def _read_per(node: Node) -> int:
    """Read the period of a limit in microseconds."""
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        raise unlike(node, "a time", "for example minute, 2 hours or 10s")
    return parse_period(node.text)


def burst_of(rule: Values, window: Window) -> int:
    """Return the size of a bucket in requests. 0 if the algorithm has no bucket, or if the limit is 0 or concurrent."""
    limit, period, own_burst, _ = window
    return (own_burst or rule[BURST] or limit) if ALGORITHMS[rule[ALGORITHM]].has_burst and limit and period else 0


def window_fault(rule: Values, window: Window) -> tuple[str, str] | None:
    """Return the error in one window of a rule, and its hint. None if it has no error."""
    limit, period, own_burst, _ = window
    name = rule[ALGORITHM]
    algorithm = ALGORITHMS[name]
    if own_burst is not None and not algorithm.has_burst:
        return f"{name} has no burst", algorithm_hint(attrgetter("has_burst"), "burst")
    if limit > MOST:
        return f"a limit of {limit} is too large", f"at most {MOST}"
    if not period:
        return None
    if period > _LONGEST_WINDOW:
        return f"a window of {spell_period(period)} is too long", "at most 10 years"
    largest = algorithm.largest
    if largest is not None and limit > largest.limit:
        return f"{name} {largest.why}, so its limit is at most {largest.limit}, not {limit}", largest.hint
    return _bucket_fault(rule, window) if algorithm.has_burst else None


def _bucket_fault(rule: Values, window: Window) -> tuple[str, str] | None:
    limit, period, *_ = window
    name = rule[ALGORITHM]
    if limit > period:
        return f"{limit} per {spell_period(period)} is too much for {name}", "at most one request per microsecond"
    burst = burst_of(rule, window)
    if limit and burst * -(-period // limit) > _LONGEST_WINDOW:
        return f"a burst of {burst} would take more than 10 years to refill", "write a lower burst"
    return None


def _validate_limit(rule: Values, problems: Problems) -> None:
    """Report a limit that its algorithm cannot count: `N concurrent` is for requests in flight, `N per M` is not."""
    windows = [window for window in rule[LIMIT].all() if window.period]
    concurrent = [window for window in rule[LIMIT].all() if not window.period]
    name = rule[ALGORITHM]
    if ALGORITHMS[name].in_flight:
        for window in windows:
            hint = f"write {window.limit} concurrent, or use another algorithm"
            problems.add(window.place, f"{name} counts requests in flight, not requests per time", hint)
    elif concurrent and not windows and "algorithm" in rule and rule.has_key("algorithm"):
        message = f"a concurrent limit needs algorithm: {IN_FLIGHT}, not {name}"
        problems.add(rule.place("algorithm"), message, "remove algorithm")


def is_concurrent(rule: Values) -> bool:
    """Return True if one of the rule's limits counts requests in flight."""
    return any(not window.period for window in rule[LIMIT].all())


SPLIT = "remove one of the two, or split the rule into two"
"""The hint for a rule that may have limits of both kinds."""


def no_concurrent(why: str) -> Conflict:
    """Return the conflict of a word with concurrent limits."""
    return Conflict(LIMIT, why, SPLIT, is_concurrent, "a concurrent limit")


_MAPPING = Section(
    "Limit",
    "One limit.",
    (
        kinds.number("requests", 0, MOST, 0, "The number of requests.", required=True),
        Word(
            key="per",
            read=_read_per,
            default=0,
            schema=kinds.TEXT,
            about="The time in which they are admitted, such as minute or 10s.",
            required=True,
        ),
        kinds.number("burst", 1, MOST, None, "How many requests a bucket holds.", unset="the `burst` of the rule"),
    ),
    make=lambda requests, per, burst: Window(limit=requests, period=per, burst=burst),
    example="for example {requests: 100, per: minute}",
    whole=True,
)


def _read_limit(node: Node) -> Limits:
    """Read the limit of a rule, and import its function. Texts of other origin must import nothing."""
    limits = read_limits(node)
    if limits.function:
        compiled(limits.function)
    return limits


def limit_schema(shared: dict[str, Any]) -> Schema:
    """Return the JSON Schema of a limit."""
    texts = ["100 per minute", "10/2s", "20 concurrent", "5/s; 100/hour", "unlimited"]
    several = kinds.or_list({"anyOf": [{**kinds.TEXT, "examples": texts}, _MAPPING.as_schema(shared)]})
    by_tier = {"type": "object", "required": ["default"], "additionalProperties": several}
    return {"anyOf": [*several["anyOf"], by_tier]}


LIMIT: Word[Limits] = Word(
    key="limit",
    read=_read_limit,
    default=Limits(()),
    schema=limit_schema,
    about="How much is admitted: 100 per minute, 20 concurrent, unlimited, a list of limits, a mapping by tier, or"
    " python:package.module:function.",
    required=True,
    compared=True,
    section=_MAPPING,
    validate=_validate_limit,
    fields=lambda limits: {"several": any(len(windows) > 1 for windows in limits.by_tier())},
)

BURST = kinds.number(
    "burst",
    1,
    MOST,
    None,
    "How many requests a bucket holds.",
    unset="the number of the limit",
    compared=True,
    validate=needs_algorithm("burst", attrgetter("has_burst"), "{} has no burst"),
)
