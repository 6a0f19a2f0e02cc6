"""The table of algorithms. Everything that depends on the algorithm of a limit looks it up here.

An algorithm is two files and one line: `X.py` decides for the memory store and describes the algorithm, `X.lua`
beside it decides for Redis, and the line in the table names the module. The guide is docs/add-an-algorithm.md.

This package is internal: its names may change in any release.
"""

import itertools
from collections.abc import Callable
from functools import lru_cache, reduce
from importlib import import_module
from importlib.resources import files
from operator import or_
from typing import NamedTuple

from ratelimit_mw.algorithms.algorithm import Algorithm, Decide, Refund
from ratelimit_mw.model import SECOND, Quota

ALGORITHMS: dict[str, Algorithm] = {}
"""The algorithms that rules may name."""

DECIDE: dict[str, Decide] = {}
"""Their decision functions: one look-up on the hot path."""

REFUND: dict[str, Refund] = {}
"""Their refund functions."""

ANSWER: dict[str, Decide] = {}
"""The decision functions of everything that a store may be asked: the algorithms, and whether a ban stands."""


class Part(NamedTuple):
    """What the script that runs on Redis needs of an algorithm."""

    number: int
    """Its number on the wire. A process never gives a number to two algorithms."""
    constant: str
    """The name of that number in Lua."""
    lua: str
    """The source."""
    bits: int
    """`1 << number`, and the bits of the parts whose functions it calls."""


PARTS: dict[str, Part] = {}
"""The parts of the algorithms, and of bans."""

_next_number = itertools.count(1)


def add(module: str) -> None:
    """Add the algorithm that `module` describes in `ALGORITHM`. Its name is the module's own.

    Raises:
        ImportError: The module, its `ALGORITHM` or its Lua file is missing.
        ValueError: The name or the code is taken, what it requires is missing, the Lua file does not define it,
            or it denies the first request of a counter.
    """
    package, _, name = module.rpartition(".")
    algorithm: Algorithm | None = getattr(import_module(module), "ALGORITHM", None)
    if algorithm is None:
        raise ImportError(f"{module} has no ALGORITHM, the description of the algorithm")
    if name in PARTS:
        raise ValueError(f"{module}: there is already an algorithm called {name}")
    missing = [other for other in algorithm.requires if other not in PARTS]
    if missing:
        raise ValueError(f"{module} requires {missing[0]}, which must stand before it in the table")
    other = next((known for known, each in ALGORITHMS.items() if each.code == algorithm.code), None)
    if other is not None:
        raise ValueError(f"{module}: its code {algorithm.code!r} is that of {other}")
    constant = name.upper()
    text = _lua_of(package, name, constant)
    if algorithm.in_rules:
        _check_admission(name, algorithm)
    number = next(_next_number)
    bits = reduce(or_, [PARTS[other].bits for other in algorithm.requires], 1 << number)
    PARTS[name] = Part(number, constant, text, bits)
    ANSWER[name] = algorithm.decide
    if algorithm.in_rules:
        ALGORITHMS[name] = algorithm
        DECIDE[name] = algorithm.decide
        REFUND[name] = algorithm.refund


def remove(name: str) -> None:
    """Undo `add`, for tests."""
    for table in (ALGORITHMS, DECIDE, REFUND, ANSWER, PARTS):
        table.pop(name, None)
    widened.cache_clear()


def lua(name: str) -> str:
    """The Lua source of that name in this folder."""
    return files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _check_admission(name: str, algorithm: Algorithm) -> None:
    """A bucket that is not described as one has a burst of 0, and would deny every client without a message."""
    first, _ = algorithm.decide(b"", Quota(name, 1, SECOND, int(algorithm.has_burst)), 1, SECOND)
    if not first.allowed:
        raise ValueError(f"{name} denies the first request of a counter; a bucket is described with has_burst=True")


def _lua_of(package: str, name: str, constant: str) -> str:
    try:
        text = files(package).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    except OSError:
        raise ImportError(f"{name}.lua is missing beside {name}.py in {package}: Redis decides by it") from None
    start, separator, _ = text.partition(f"\nrefunds[{constant}] =")
    if not separator or f"\nalgorithms[{constant}] =" not in f"\n{start}":
        raise ValueError(
            f"{package}: {name}.lua must define algorithms[{constant}] and then refunds[{constant}], each at the"
            " beginning of a line"
        )
    return text


def named(able: Callable[[Algorithm], bool]) -> str:
    """The names of the algorithms that are `able`, as a sentence lists them: "a, b or c"."""
    *names, last = [name for name, algorithm in ALGORITHMS.items() if able(algorithm)]
    return f"{', '.join(names)} or {last}" if names else last


@lru_cache(maxsize=1024)
def widened(quota: Quota) -> Quota:
    """The quota for a charge that must not be denied: what it charges beyond `quota` itself is a debt.

    A debt is paid back within two windows, as is everything that a counter holds.
    """
    return ALGORITHMS[quota.algorithm].widened(quota)


# The table. Numbers on the wire go by its order, so a new line belongs at its end.
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
"""The algorithm of `20 concurrent`, whatever the rule's own."""

BUCKET = next(name for name, algorithm in ALGORITHMS.items() if algorithm.has_burst and not algorithm.queue)
"""The algorithm of a bucket whose requests need not wait for their turn."""

NOTHING = Quota(next(iter(ALGORITHMS)), 0, 1)
"""A quota that admits nothing, for asks whose quota is not looked at."""
