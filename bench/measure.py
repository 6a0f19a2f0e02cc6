"""How a number is taken: the contestants in turn, round after round, and the median of each.

Machines are noisy, and the noise drifts. Contestants that take turns meet the same noise, so that the ratio of
their medians means more than either figure.
"""

import gc
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: what was measured, on whom, and beside which bar of the contract."""

    case: str
    who: str
    value: float
    unit: str
    beside: str = ""
    """How it stands to another: "0.21 x slowapi (bar: 0.25)"."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def in_turn(contestants: Mapping[str, Callable[[], float]], rounds: int = 7) -> dict[str, float]:
    """The median of what each contestant returns, over `rounds` rounds after one that warms up."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            gc.collect()
            value = run()
            if number:
                taken[name].append(value)
    return {name: statistics.median(values) for name, values in taken.items()}
