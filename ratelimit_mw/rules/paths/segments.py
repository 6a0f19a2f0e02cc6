"""One segment of a path against one of a template's: what the parameters are, in time linear in the segment."""

import re
from collections.abc import Callable

from ratelimit_mw.rules.paths.templates import Segment

_UUID = re.compile("[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")
_DIGITS = "0123456789"

Matcher = Callable[[str], tuple[str, ...] | None]


def matcher(segment: Segment) -> Matcher:
    """A function from a segment of a path to the parameters' values, or to None where it does not match."""
    if not segment.kinds:
        text = segment.texts[0]
        return lambda given: () if given == text else None
    if len(segment.kinds) == 2:
        return _pair(segment)
    before, after = segment.texts
    holds = _CHECKS[segment.kinds[0]]
    if not before and not after:
        return lambda given: (given,) if holds(given) else None
    shortest = len(before) + len(after)

    def match(given: str) -> tuple[str, ...] | None:
        if len(given) > shortest and given.startswith(before) and given.endswith(after):
            value = given[len(before) : len(given) - len(after)]
            return (value,) if holds(value) else None
        return None

    return match


def _pair(segment: Segment) -> Matcher:
    before, between, after = segment.texts
    first, second = segment.kinds

    def match(given: str) -> tuple[str, str] | None:
        if given.startswith(before) and given.endswith(after) and len(given) > len(before) + len(after):
            return _divided(given[len(before) : len(given) - len(after)], first, between, second)
        return None

    return match


def _divided(given: str, first: str, between: str, second: str) -> tuple[str, str] | None:
    """Two parameters and the text between them, the first as long as it can be.

    Where one of them is a number or a UUID there are at most five places to try, for that text begins with no digit.
    """
    if first == second == "str":
        at = given.rfind(between, 1, len(given) - 1)
        return (given[:at], given[at + len(between) :]) if at > 0 else None
    if second == "str":
        ends = _leading(first, given)
    else:
        digits = len(between) - len(between.rstrip(_DIGITS))
        ends = [len(given) - size - len(between) for size in _trailing(second, given, digits)]
    for end in ends:
        if (
            given.startswith(between, end)
            and _CHECKS[first](given[:end])
            and _CHECKS[second](given[end + len(between) :])
        ):
            return given[:end], given[end + len(between) :]
    return None


def _leading(kind: str, given: str) -> list[int]:
    """How long a value of that kind at the start can be, the longest first."""
    if kind == "uuid":
        return [36, 35, 34, 33, 32]
    run = len(given) - len(given.lstrip(_DIGITS))
    if kind == "float" and given[run : run + 1] == ".":
        return [len(given) - len(given[run + 1 :].lstrip(_DIGITS)), run]
    return [run]


def _trailing(kind: str, given: str, taken: int) -> list[int]:
    """How long a value of that kind at the end can be, the shortest first; `taken` digits before it are not its own."""
    if kind == "uuid":
        return [32, 33, 34, 35, 36]
    head = given.rstrip(_DIGITS)
    run = len(given) - len(head)
    if kind == "float" and head[-1:] == ".":
        return [run - taken, len(given) - len(head[:-1].rstrip(_DIGITS)) - taken]
    return [run - taken]


def _is_whole(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _is_float(value: str) -> bool:
    whole, dot, fraction = value.partition(".")
    return _is_whole(whole) and (not dot or _is_whole(fraction))


_CHECKS: dict[str, Callable[[str], object]] = {
    "str": bool,
    "int": _is_whole,
    "float": _is_float,
    "uuid": _UUID.fullmatch,
}


def canonical(kind: str, value: str) -> str:
    """The one spelling of a parameter's value: 007 and 7 are one item to the app, and so one to a counter."""
    if kind == "int":
        return value.lstrip("0") or "0"
    if kind == "float":
        whole, _, fraction = value.partition(".")
        return f"{whole.lstrip('0') or '0'}.{fraction.rstrip('0')}".rstrip(".")
    if kind == "uuid":
        return value.replace("-", "").lower()
    return value
