"""`cost` and `count`: how much a request is charged, and for which responses.

A cost is a number, or it is read from the request (an attribute or a `python:` function), or from a header of the
response. In the last case, the request is charged 1 at first. With `count`, it is charged first and refunded if its
response is not one of those that count. `decision.settlement` corrects the charge when the response is known.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Items, Node, Problems, Scalar, kind
from ratelimit_mw.config.word import Conflict, Section, Values, Word
from ratelimit_mw.config.words.limit import LIMIT, MOST, SPLIT, is_concurrent, no_concurrent
from ratelimit_mw.config.words.selection import CHARGED_AT_ONCE, ON_DEMAND
from ratelimit_mw.errors import Invalid, near, quoted
from ratelimit_mw.identity.attributes import Attributes, Reader
from ratelimit_mw.identity.fields import TOO_MANY
from ratelimit_mw.identity.sources import SOURCES, compiled, described, imported
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.model import CostAfter, Counts
from ratelimit_mw.rules.compiled import CostReader

_NAME = re.compile("[A-Za-z_]")
_RESPONSE = "response:"
_FORM = "write a whole number, an attribute, python:package.module:function or response:X-Cost"


class Cost(NamedTuple):
    """The cost of a request: `fixed`, or the value of `source`.

    With a source, `fixed` is 1: the cost of a request without a value.
    """

    fixed: int = 1
    source: str = ""

    @property
    def header(self) -> str:
        """The response header that contains the cost, in lower case. Empty if the cost is not in a response."""
        return self.source.removeprefix(_RESPONSE).strip().lower() if self.source.startswith(_RESPONSE) else ""


def read_cost(node: Node) -> Cost:
    """Read a cost. Raises `Invalid`."""
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not _NAME.match(node.text.strip()):
        return Cost(kinds.whole_between(0, MOST)(node))
    cost = Cost(1, node.text.strip())
    if cost.source.startswith(_RESPONSE) and not kinds.TOKEN.fullmatch(cost.header):
        raise Invalid(f"{quoted(cost.header)} is not a header name", "for example response:X-Cost")
    if cost.source.partition(":")[0] in SOURCES:
        compiled(cost.source)
    return cost


def compile_cost(rule: Values, attributes: Attributes, problems: Problems) -> CostReader | None:
    """Return a function from a request to its cost. None if the cost is fixed, or known only from the response."""
    cost = rule[COST]
    source = cost.source
    if not source or cost.header:
        return None
    if attributes.known(source) and not source.startswith("path:"):
        return _cost_reader(attributes.reader(source), source)
    if source.partition(":")[0] in SOURCES:
        return _cost_reader(attributes.source(source), source)
    names = [name for name in attributes.names() if name != "path:N"]
    problems.add(rule.place("cost"), f"there is no attribute {quoted(source)}", near(source, names) or _FORM)
    return None


def cost_after(cost: Cost) -> CostAfter | None:
    """Return a function from a response's headers to the cost. None if the cost does not depend on the response."""
    header = cost.header
    if not header:
        return None
    parse = _number_of(cost.source)
    return lambda read: parse(read(header))


def _cost_reader(read: Reader, source: str) -> CostReader:
    """Return a function that reads the cost of a request from an attribute."""
    parse = _number_of(source)
    return lambda request: parse(read(request))


def _number_of(source: str) -> Callable[[str | None], int]:
    """Return a function from a text to the cost in it: 1 if there is none, or if it is invalid.

    The first invalid cost of the source is logged, without its text, because it may be secret.
    """
    once = Once()

    def parse(text: str | None) -> int:
        if text is None:
            return 1
        if text in TOO_MANY:
            return MOST + 1  # which of them the app reads is unknown, and no limit admits this cost
        digits = text.strip()
        if digits.isascii() and digits.isdigit():
            # No limit admits more than MOST, so a larger cost is cut to one that is denied.
            return min(int(digits.lstrip("0")[:11] or "0"), MOST + 1)
        message = "cost: the value of %s is not a whole number of at least 0, so it counts as 1 (logged once)"
        once(logger.warning, message, source)
        return 1

    return parse


COST: Word[Cost] = Word(
    key="cost",
    read=read_cost,
    default=Cost(),
    shown_default=1,
    schema={
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": MOST},
            {**kinds.TEXT, "examples": ["header:X-Cost", "python:package.module:function", "response:X-Cost"]},
        ]
    },
    about="The cost of a request: a whole number, an attribute, a python: function, or a header of its response.",
    compared=True,
    conflicts=(
        Conflict(
            LIMIT,
            "it is charged before the response, which has the cost",
            SPLIT,
            lambda rule: rule[COST].header and is_concurrent(rule),
            "a concurrent limit",
        ),
        Conflict(
            ON_DEMAND,
            f"{CHARGED_AT_ONCE}, before the response, which has the cost",
            when=lambda rule: rule[COST].header and rule[ON_DEMAND],
        ),
    ),
    fields=lambda cost: {"cost_after": cost_after(cost)},
)


def no_cost_of_response(why: str) -> Conflict:
    """Return the conflict of a word with a cost that is in the response."""
    return Conflict(COST, why, when=lambda rule: rule[COST].header, what="a cost from the response")


class Statuses(frozenset[int]):
    """The statuses of the responses that are charged, see `model.Counts`."""

    def __call__(self, status: int, _header: Callable[[str], str | None]) -> bool:
        """Return True if a response with this status is charged."""
        return status in self


class CountedBy:
    """A function of the app that says which responses are charged, see `model.Counts`.

    It gets the status and a function that reads a response header. If it raises an exception, or returns anything but
    True or False, the response is charged. The first such error is logged.

    Args:
        function: The function.
        source: Its name in the rules file.
    """

    def __init__(self, function: Callable[..., object], source: str) -> None:
        self._function = function
        self._source = source
        self._once = Once()

    def __reduce__(self) -> tuple[Any, ...]:
        return _counted_by, (self._source,)  # the values of a rule are copied; the function is not

    def __call__(self, status: int, header: Callable[[str], str | None]) -> bool:
        """Return True if a response is charged."""
        try:
            counted: object = self._function(status, lambda name: header(name.lower()))
            if isinstance(counted, bool):
                return counted
            problem = f"it returned {type(counted).__name__}, not True or False"
        except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
            problem = described(error)
        self._once(logger.error, "count: %s: %s; the response is charged (logged once)", self._source, problem)
        return True


def _counted_by(source: str) -> CountedBy:
    return CountedBy(imported(source.partition(":")[2].strip()), source)


# 4xx, a class of statuses of RFC 9110, or 401, or 500-599
_STATUSES = re.compile(r"([1-5])[xX]{2}|([0-9]{3})(?:\s*-\s*([0-9]{3}))?")
_LEAST, _MOST = 100, 599


def _read_status(node: Node) -> frozenset[int]:
    """Read one value or a list."""
    if isinstance(node, Items) and not node:
        raise Invalid("the list must not be empty: no request would be charged")
    return frozenset(chain(*kinds.each(_statuses)(node)))


def _statuses(node: Node) -> range:
    """Read one status, a class of statuses (`4xx`) or a range (`500-599`)."""
    hundred, begin, end = kinds.read_match(node, _STATUSES, "a status", "for example 401, 4xx or 500-599").groups()
    if hundred is not None:
        return range(int(hundred) * 100, int(hundred) * 100 + 100)
    first, last = int(begin), int(end or begin)
    if not _LEAST <= first <= last <= _MOST:
        raise Invalid(f"{kind(node)} is out of range", f"statuses go from {_LEAST} to {_MOST}")
    return range(first, last + 1)


_STATUS: Word[frozenset[int]] = Word(
    key="status",
    read=_read_status,
    default=frozenset(),
    schema=kinds.or_list(
        {
            "anyOf": [
                {"type": "integer", "minimum": 100, "maximum": 599},
                {**kinds.TEXT, "examples": ["4xx", "500-599"]},
            ]
        }
    ),
    about="The statuses of the responses that are charged, such as 401, 4xx or 500-599.",
    required=True,
)

_SECTION = Section(
    "Count",
    "Which responses are charged, by their status.",
    (_STATUS,),
    make=lambda status: Statuses(status),  # noqa: PLW0108  a set takes no argument by name
    example="for example {status: [401, 403]}, {status: 4xx} or {status: 500-599}",
    whole=True,
)

COUNT: Word[Counts | None] = Word(
    key="count",
    read=kinds.function_or(_SECTION, CountedBy),
    default=None,
    schema=lambda shared: {
        "anyOf": [
            _SECTION.as_schema(shared),
            kinds.FUNCTION,
        ]
    },
    about="Which responses are charged, by their status or by a function. The charge of all others is refunded.",
    unset="all responses",
    section=_SECTION,
    conflicts=(
        no_concurrent("a request in flight has no status yet"),
        Conflict(ON_DEMAND, f"{CHARGED_AT_ONCE}, before the status is known"),
    ),
    alter=lambda quota, _rule, _prefix: replace(quota, refundable=True),
    fields=lambda counts: {"counts": counts},
)
