"""The table of algorithms. Everything that depends on the algorithm of a limit looks it up here.

An algorithm is two files and one line. `X.py` describes the algorithm and decides for the memory store. `X.lua`
beside it decides for Redis. The line in the table names the module. The guide is docs/add-an-algorithm.md.

This package is internal: its names may change in any release.
"""

import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, reduce
from importlib import import_module
from operator import or_
from typing import Any, NamedTuple

from ratelimit_mw.algorithms.algorithm import Admit, Algorithm, Decide
from ratelimit_mw.model import OVERDRAFT, SECOND, Outcome, Quota

ALGORITHMS: dict[str, Algorithm] = {}
"""All algorithms by name. Rules may name those in `for_rules()`."""

DECIDE_ALL: dict[str, Decide] = {}
"""The decision functions by `Quota.decided_by`. Each algorithm has two: the usual one and the one with an overdraft.
A table of its own saves a look-up on the hot path."""


class LuaPart(NamedTuple):
    """The part of the Redis script that belongs to one algorithm."""

    number: int
    """Identifies the algorithm on the wire. A process never gives one number to two algorithms."""
    constant: str
    """The name of this number in Lua."""
    lua: str
    """The Lua source."""
    deciding: str
    """Its beginning, which defines `algorithms[number]`. A script that only takes from counters has no more of it."""
    bits: int
    """A bit mask: `1 << number`, and the bits of the parts whose functions this part calls."""


LUA_PARTS: dict[str, LuaPart] = {}
"""The parts of the algorithms, by name."""

_next_number = itertools.count(1)


def add(module: str) -> None:
    """Add the algorithm that `module` describes in `ALGORITHM`. The algorithm has the name of the module.

    Raises:
        ImportError, AttributeError, OSError: The module, its `ALGORITHM` or its Lua file is missing.
        KeyError: An algorithm that it requires does not stand before it in the table.
        ValueError: The name or the code is taken, the Lua file does not define the functions, or the algorithm denies
            the first request of a counter.
    """
    package, _, name = module.rpartition(".")
    algorithm: Algorithm = import_module(module).ALGORITHM
    if name in LUA_PARTS:
        raise ValueError(f"{module}: there is already an algorithm called {name}")
    other = next((known for known, each in ALGORITHMS.items() if each.code == algorithm.code), None)
    if other is not None:
        raise ValueError(f"{module}: its code {algorithm.code!r} is already the code of {other}")
    constant = name.upper()
    text, deciding = _lua_of(package, name, constant)
    if algorithm.count_denial is None:
        _check_admission(name, algorithm)
    number = next(_next_number)
    bits = reduce(or_, [LUA_PARTS[other].bits for other in algorithm.requires], 1 << number)
    LUA_PARTS[name] = LuaPart(number, constant, text, deciding, bits)
    ALGORITHMS[name] = algorithm
    DECIDE_ALL[name] = algorithm.decide
    DECIDE_ALL[name + OVERDRAFT] = _overdrawing(algorithm.decide)


def lua(name: str, beside: str = __name__) -> str:
    """Return the Lua source of this name in the folder of an imported module. Raises OSError if there is none."""
    module = sys.modules[beside]
    loader: Any = module.__loader__  # it also reads zip files. importlib.resources takes long to import
    source: bytes = loader.get_data(os.path.join(os.path.dirname(str(module.__file__)), f"{name}.lua"))  # noqa: PTH118, PTH120
    return source.decode()


def _check_admission(name: str, algorithm: Algorithm) -> None:
    """Raise ValueError for a bucket without `has_burst=True`: its burst would be 0, and it would deny every client."""
    first, _ = algorithm.decide(b"", Quota(name, 1, SECOND, int(algorithm.has_burst)), 1, SECOND)
    if not first.allowed:
        raise ValueError(f"{name} denies the first request of a counter; a bucket is described with has_burst=True")


def _lua_of(package: str, name: str, constant: str) -> tuple[str, str]:
    """Read the Lua file of an algorithm: its text, and what comes before `denials` and `refunds`."""
    text = lua(name, f"{package}.{name}")
    start, separator, _ = text.partition(f"\nrefunds[{constant}] =")
    start = start.partition(f"\ndenials[{constant}] =")[0]
    if not separator or f"\nalgorithms[{constant}] =" not in f"\n{start}":
        raise ValueError(
            f"{package}: {name}.lua must define algorithms[{constant}] and then refunds[{constant}], each at the"
            " beginning of a line"
        )
    return text, start


def for_rules() -> dict[str, Algorithm]:
    """Return the algorithms that rules may name."""
    return {name: algorithm for name, algorithm in ALGORITHMS.items() if algorithm.count_denial is None}


def algorithm_names(able: Callable[[Algorithm], bool]) -> str:
    """Return the names of the algorithms for which `able` is true, as a list in a sentence: "a, b or c"."""
    *names, last = [name for name, algorithm in for_rules().items() if able(algorithm)]
    return f"{', '.join(names)} or {last}" if names else last


@lru_cache(maxsize=1024)
def widened(quota: Quota) -> Quota:
    """Return the quota for a charge that must not be denied. What it charges beyond `quota` is a debt.

    A debt is paid back within two windows.
    """
    return replace(ALGORITHMS[quota.algorithm].widened(quota), overdraft=False)


@lru_cache(maxsize=1024)
def with_overdraft(quota: Quota) -> Quota:
    """Return the quota for a cost that is known only after the fact. See `Quota.overdraft`."""
    return replace(quota, overdraft=True)


def admitting(quota: Quota, cost: int) -> Admit:
    """Return the function that decides on most requests of this cost. See `Admit`."""
    make = ALGORITHMS[quota.algorithm].admitting
    fits = quota.limit and 0 < cost <= (quota.burst or quota.limit)
    return _never if make is None or quota.overdraft or not fits else make(quota, cost)


def _never(_value: bytes, _now: int) -> None:
    """The `Admit` of what `decide` alone decides."""


def _overdrawing(decide: Decide) -> Decide:
    """Return the decision function of an algorithm for quotas with an `overdraft`.

    It charges with the `widened` quota, and charges as much as fits. A cost that does not fit is charged, and denied by
    the debt that it makes. The counterpart in Lua is `overdraw` in several.lua.
    """

    def decide_with_overdraft(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
        outcome, uncharged = decide(state, quota, 0, now)
        if not cost or not outcome.allowed:
            return outcome, uncharged
        wide = widened(quota)
        room = decide(state, wide, 0, now)[0].remaining
        if not room:  # the clock stepped back, and `uncharged` is the clamped state
            return outcome, uncharged
        charged, state_after = decide(state, wide, min(cost, room), now)
        if not charged.allowed:  # refunds have emptied a queue whose next turn is still too far away
            return charged, state_after
        if cost > outcome.remaining:
            after, clamped = decide(state_after or state, quota, 0, now)
            if not after.allowed:  # with a `longest_wait`, it may have gone into what requests wait for
                return after, clamped or state_after
        # The cost is known after the fact, so it waits for nothing: the delay is 0.
        return Outcome(True, max(outcome.remaining - cost, 0), charged.reset_after), state_after

    return decide_with_overdraft


# The table. Its order gives the numbers on the wire, so add a new line at the end.
for _module in (
    "ratelimit_mw.algorithms.fixed_window",
    "ratelimit_mw.algorithms.sliding_log",
    "ratelimit_mw.algorithms.sliding_window",
    "ratelimit_mw.algorithms.bucketed_window",
    "ratelimit_mw.algorithms.token_bucket",
    "ratelimit_mw.algorithms.leaky_bucket",
    "ratelimit_mw.algorithms.concurrency",
    "ratelimit_mw.algorithms.ban",
):
    add(_module)

IN_FLIGHT = next(name for name, algorithm in ALGORITHMS.items() if algorithm.in_flight)
"""The algorithm of limits such as `20 concurrent`, whatever `algorithm` the rule has."""

NOTHING = Quota(next(iter(ALGORITHMS)), 0, 1)
"""A quota that admits nothing. It is a placeholder in asks whose quota is never read."""
