"""What a replay collects for its what-if curves: the arrivals at all counters, and the replays of one rule.

The curve of a limit that decides by itself is calculated from the arrivals. If its decisions are coupled, further
simulations replay the log at other limits, in the same pass, because standard input cannot be read twice. They take as
long as seven more replays. So this is done for one rule only, which the user names.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.foresight.logs.entry import Entry
from ratelimit_mw.foresight.results import RuleResult
from ratelimit_mw.foresight.simulation import Simulation
from ratelimit_mw.foresight.what_if.arrivals import Arrivals
from ratelimit_mw.foresight.what_if.curve import Curve
from ratelimit_mw.foresight.what_if.replays import Replays
from ratelimit_mw.foresight.what_if.subjects import decides_alone, subjects_of
from ratelimit_mw.model import Charge
from ratelimit_mw.rules.domains import Rules

NEEDS_NUMPY = "the what-if needs numpy: pip install 'ratelimit_mw[foresight]'"


class Collection:
    """Collects what the curves of one set of rules need.

    Args:
        rules: The rules of the replay.
        name: The only rule to make curves of. It is replayed at other limits, unless its curve can be calculated for
            certain. None: all rules, and none is replayed.
        simulation: Returns a new simulation of the rules, for a replay at another limit.
    """

    def __init__(self, rules: Rules, name: str | None, simulation: Callable[[], Simulation]) -> None:
        self.arrivals = Arrivals([rule for part in rules.parts for rule in part.rules])
        self._subjects = [each for each in subjects_of(rules) if name in (None, each.rule.name)]
        replayed = [] if name is None or decides_alone(rules) else self._subjects
        variants = [variant for subject in replayed for variant in subject.variants()]
        self._replays = Replays(variants, simulation) if variants else None

    def add(self, entry: Entry, charges: Sequence[Charge], verdict: Verdict) -> None:
        """Add the request of a line, what it asked, and what the rules decided. Requests must be in order of time."""
        self.arrivals.add(entry[0], charges, verdict)
        if self._replays is not None:
            self._replays.add(entry, charges)

    def close(self) -> None:
        """Release the simulations."""
        if self._replays is not None:
            self._replays.close()

    def curves(self, results: Mapping[int, RuleResult]) -> tuple[list[Curve], list[str]]:
        """Return the curves, in the order of the files, and why there are no others, as sentences.

        Args:
            results: What each rule did, by its place in the order of the files.
        """
        from ratelimit_mw.foresight.what_if.curves import find_curves  # imported late: it needs numpy

        found = find_curves(self._subjects, results, self.arrivals, self._replays)
        return found.curves, found.without


def collection_of(rules: Rules, name: str | None, simulation: Callable[[], Simulation]) -> Collection | None:
    """Return a new collection. None if numpy is not installed. See `Collection` for the arguments."""
    return Collection(rules, name, simulation) if find_spec("numpy") is not None else None
