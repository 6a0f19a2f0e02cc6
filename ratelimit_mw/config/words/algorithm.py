"""`algorithm` and `buckets`: how a rule counts."""

from collections.abc import Callable

from ratelimit_mw.algorithms import ALGORITHMS, named
from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Node, Problems
from ratelimit_mw.config.word import Values, Word

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


def _check_buckets(rule: Values, problems: Problems) -> None:
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
    check=_check_buckets,
)
