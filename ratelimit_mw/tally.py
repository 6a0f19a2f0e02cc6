"""Counts what a limiter does: requests by their outcome, rules by theirs, denials, failures of the store, bans.

The path of a request only adds 1 to plain attributes (cells). It exports nothing, and takes no lock. `snapshot` reads
the cells, and `ratelimit_mw.telemetry` exports what it returns.

`tally.allowed += 1` reads, adds and writes. It is exact under the GIL all the same: since Python 3.10 the interpreter
switches threads only where a function begins and where a loop jumps back, and there is neither between the three
steps. A build of Python without the GIL would lose some of the additions that happen at the same moment in two
threads: the counts would be a little too low, and nothing else.

The number of cells is bounded. A cell belongs to a rule of the file or of the code, never to a client. Rules beyond
the first 1 000 names are counted together, as `other`. A rule that a reload brings again keeps its cell.

Apps get the `Tally` from `RateLimiter.tally`, and read it by `snapshot`. All other names of this module are internal.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle
from types import MappingProxyType

from ratelimit_mw.model import SECOND, Charge, Decision, Outcome, Row, Rule
from ratelimit_mw.process_local import lazy, lock, reset_after_fork
from ratelimit_mw.snapshots import Histogram, HitsSnapshot, RuleSnapshot, Snapshot, Totals

MOST_RULES = 1_000
"""The most rules that are counted one by one."""

OTHER = "other"
"""The name under which all further rules are counted."""

SAMPLED = 16
"""One request in this number is measured: the time of its decision, and how much of each limit is used."""

NEAR = 0.8
"""The share of a limit from which hits are near it, as in envoyproxy/ratelimit."""

USED_BOUNDS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
"""The upper bounds of the histogram of the used share of a limit."""

SECONDS_BOUNDS = (1e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""The upper bounds of the histogram of the time of a decision, in seconds."""

OUTCOMES = ("allowed", "over", "delayed", "denied", "shadow_denied")
"""How a rule may decide. If several counters of a rule decide differently, the last of these counts."""

ALLOWED, OVER, DELAYED, DENIED, SHADOW_DENIED = range(5)
"""The indices of `OUTCOMES`, and of the counts of a cell."""

TOTAL_HITS, OVER_LIMIT, NEAR_LIMIT, WITHIN_LIMIT, SHADOW_MODE, OVER_LIMIT_WITH_LOCAL_CACHE = HITS = range(6)
"""The indices of the counts of a descriptor, in hits, by the names of envoyproxy/ratelimit: see `HitsSnapshot`."""

REASONS: tuple[str, ...] = ("limited", "banned", "blocked", "shed", "unavailable")
"""Why a request is denied, as in `Decision.reason`."""


class Cell:
    """The counts of one rule. The path of a request increments the attributes.

    Attributes:
        domain: The domain of the rule.
        name: The name of the rule.
        counts: How many requests the rule decided in each way, in the order of `OUTCOMES`.
        reasons: How many requests were denied because of this rule, by the reason.
        delay: The sum of the delays of delayed requests, in microseconds.
        used: The histogram of the used share of the limit.
    """

    __slots__ = ("counts", "delay", "domain", "name", "reasons", "used")

    def __init__(self, domain: str, name: str) -> None:
        self.domain = domain
        self.name = name
        self.clear()

    def clear(self) -> None:
        """Set all counts to 0."""
        self.counts = [0] * len(OUTCOMES)
        self.delay = 0
        self.reasons = dict.fromkeys(REASONS, 0)
        self.used = Histogram(USED_BOUNDS, [0] * (len(USED_BOUNDS) + 1))


class Passes:
    """Counts the requests that a set of rules simply allowed: each of them, below its limit and at once.

    It is what the path of most requests increments: one attribute, for any number of rules.
    """

    __slots__ = ("cells", "number")

    def __init__(self, cells: tuple[Cell, ...]) -> None:
        self.cells = cells
        self.number = 0


Labels = str | tuple[str, ...]
"""The labels of the rules of a plan. That of the only rule is plain, because most plans have one."""

Hits = tuple[list[int], int, int, int, bool]
"""What a request hits of one descriptor: the counts of the descriptor, the index of the charge, the hits, what must
remain so that they are not near the limit, and whether the limit is in shadow."""

Watcher = Callable[[Cell | None, float], None]
"""Is called with the cell of a rule and the used share of its limit, or with None and the seconds of a decision."""


class Tally:
    """The cells of one limiter.

    Attributes:
        allowed, over, delayed, denied, unlimited, unchecked: The number of requests with this outcome, without those
            in `passes`.
        store: The kind of the store: the scheme of its URL, or the class of a store object.
        counters: Returns the number of counters in the memory of the process. None if they are elsewhere.
        late: Returns the number of requests that the store did not answer in time, while it answered others.
        near: The share of a limit from which hits are near it. It may be set before the first request.
        shed: The number of shed requests by priority.
        due: Returns True for each request that is measured.
        watchers: The functions that are called with the measures of one request in 16, on the path of the request.
        tracers: The functions that are called with each decision, on the path of the request. See `trace`.
        passes: The requests that rules simply allowed, by the labels of the rules.
    """

    _counting = lazy(lock)

    def __init__(self) -> None:
        self.store = ""
        self.counters: Callable[[], int | None] = lambda: None
        self.late: Callable[[], int] = lambda: 0
        self.near = NEAR
        self.shed: Counter[str] = Counter()
        self._turn = _turns()
        self.due = self._turn
        self.watchers: list[Watcher] = []
        self.tracers: list[Callable[[Decision], None]] = []
        self._cells: dict[str, Cell] = {}
        self.passes: dict[Labels, Passes] = {}
        self._further = Passes(())
        self._hits: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        self._begin()
        reset_after_fork(self)

    def _begin(self) -> None:
        self.allowed = self.over = self.delayed = self.denied = self.unlimited = self.unchecked = 0
        self.store_up = True
        self.store_failures = self.local_denials = 0
        self.denials = dict.fromkeys(REASONS, 0)
        self.bans: Counter[tuple[str, str, bool]] = Counter()
        self.deferrals: Counter[tuple[str, str, str]] = Counter()
        self.decisions = Histogram(SECONDS_BOUNDS, [0] * (len(SECONDS_BOUNDS) + 1))

    def reset(self) -> None:
        """Count from 0. Plans refer to the cells, so the same cells go on."""
        self._begin()
        self.shed.clear()
        for counts in self._hits.values():
            counts[:] = [0] * len(HITS)
        for cell in self._cells.values():
            cell.clear()
        for passes in (*self.passes.values(), self._further):
            passes.number = 0

    after_fork = reset

    def trace(self, tracer: Callable[[Decision], None]) -> None:
        """Call `tracer` with each decision from now on."""
        self.tracers.append(tracer)
        self.due = _always

    def snapshot(self) -> Snapshot:
        """Return all counts of this moment. It reads the cells one by one, and does not stop the requests."""
        hits, (simply, passed) = tuple(self._hits.items()), self._passed()
        with self._counting:
            bans, deferred, shed = dict(self.bans), dict(self.deferrals), dict(self.shed)
        queued = sum(number for (_, _, fate), number in deferred.items() if fate == "queued")
        return Snapshot(
            requests=MappingProxyType(
                {
                    "allowed": self.allowed + simply,
                    "over": self.over,
                    "delayed": self.delayed,
                    "denied": self.denied,
                    "deferred": queued,
                    "unlimited": self.unlimited,
                    "unchecked": self.unchecked,
                }
            ),
            rules=tuple([_snapshot_of(cell, number) for cell, number in passed.items()]),
            denials=MappingProxyType(dict(self.denials)),
            decisions=self.decisions.read(),
            store_up=self.store_up,
            store_failures=self.store_failures,
            late=self.late(),
            local_denials=self.local_denials,
            bans=MappingProxyType(bans),
            shed=MappingProxyType(shed),
            deferred=MappingProxyType(deferred),
            hits=tuple([HitsSnapshot(*place, *counts) for place, counts in hits]),
        )

    def totals(self) -> Totals:
        """Return the counts that change most. It takes a tenth of the time of `snapshot`."""
        simply, passed = self._passed()
        requests = self.allowed + simply + self.over + self.delayed + self.denied + self.unlimited + self.unchecked
        rules = {
            (cell.domain, cell.name): (cell.counts[ALLOWED] + number, *cell.counts[OVER:])
            for cell, number in passed.items()
        }
        with self._counting:
            bans = dict(self.bans)
        return Totals(requests, self.denied, rules, bans)

    def _passed(self) -> tuple[int, dict[Cell, int]]:
        """Return the number of requests that rules simply allowed, in all and by the rule."""
        simply, passed = 0, dict.fromkeys(tuple(self._cells.values()), 0)
        for passes in (*tuple(self.passes.values()), self._further):
            number = passes.number
            simply += number
            for cell in passes.cells:
                passed[cell] = passed.get(cell, 0) + number
        return simply, passed

    def cell(self, rule: Rule) -> Cell:
        """Return the cell of a rule. It is the one of all further rules if there are too many."""
        cell = self._cells.get(rule.label)
        return self._made(rule.domain, rule.logged) if cell is None else cell

    def _made(self, domain: str, name: str) -> Cell:
        label = f"{domain}/{name}"
        if label not in self._cells and len(self._cells) >= MOST_RULES:
            return self._cells.setdefault("", Cell("", OTHER))  # no rule has an empty label
        return self._cells.setdefault(label, Cell(domain, name))

    def passes_of(self, labels: Labels, charges: Sequence[Charge]) -> Passes:
        """Return what counts the requests that all rules of a plan simply allow. `labels` are those of the rules.

        There are at most 1 000. The request is counted for the rules of further plans, and the caller counts it once
        more in what is returned, which then belongs to no rule.
        """
        found = self.passes.get(labels)
        if found is not None:
            return found
        cells = tuple(dict.fromkeys([self.cell(rule) for rule, _ in charges]))
        if len(self.passes) < MOST_RULES:
            return self.passes.setdefault(labels, Passes(cells))
        for cell in cells:
            cell.counts[ALLOWED] += 1
        return self._further

    def passed(self, charges: Sequence[Charge], outcomes: Sequence[Outcome], over: frozenset[int], delay: int) -> None:
        """Count an allowed request that was not simply allowed by all its counters.

        Args:
            charges: What it asked.
            outcomes: One for each charge.
            over: The indices of the counters that admitted it above their limit.
            delay: How long it waits for its turn, in microseconds.
        """
        if delay:
            self.delayed += 1
        elif over:
            self.over += 1
        else:
            self.allowed += 1
        self._count(charges, outcomes, over, allowed=True)

    def refused(
        self,
        charges: Sequence[Charge],
        outcomes: Sequence[Outcome],
        over: frozenset[int],
        *,
        rule: Rule | None,
        reason: str,
    ) -> None:
        """Count a denied request.

        Args:
            charges: What it asked.
            outcomes: One for each charge.
            over: The indices of the counters that would have admitted it above their limit.
            rule: The rule that denies it. None if no rule has decided.
            reason: Why it is denied.
        """
        self.denied += 1
        if rule is None:
            self.denials[reason] += 1
        else:
            self.cell(rule).reasons[reason] += 1
        self._count(charges, outcomes, over, allowed=False)

    def _count(
        self, charges: Sequence[Charge], outcomes: Sequence[Outcome], over: frozenset[int], *, allowed: bool
    ) -> None:
        """Count how each rule decided. Of several counters of a rule, the last in the order of `OUTCOMES` counts."""
        found: dict[str, tuple[int, int, Rule]] = {}
        for place, ((rule, ask), outcome) in enumerate(zip(charges, outcomes, strict=True)):
            delay = outcome.delay if allowed and outcome.allowed and not ask.shadow else 0
            if outcome.allowed:
                decided = DELAYED if delay else OVER if place in over else ALLOWED
            elif not ask.shadow or (rule.quota_group and not allowed):
                decided = DENIED
            else:  # of rules that only deny together, one admits the request above the limits of the others
                decided = OVER if rule.quota_group else SHADOW_DENIED
            before = found.get(rule.label)
            if before is not None:
                decided, delay = max(decided, before[0]), max(delay, before[1])
            found[rule.label] = decided, delay, rule
        for decided, delay, rule in found.values():
            cell = self.cell(rule)
            cell.counts[decided] += 1
            if decided == DELAYED:
                cell.delay += delay

    def failed(self) -> None:
        """Count a decision without the store."""
        self.store_failures += 1
        self.lost()

    def lost(self) -> None:
        """Note that the store is unavailable. All decisions are then measured until it answers again."""
        self.store_up = False
        self.due = _always

    def measured(self, seconds: float, charges: Sequence[Charge], rows: Sequence[Row]) -> None:
        """Count the measures of a request.

        Args:
            seconds: How long the decision took.
            charges: What the request asked.
            rows: The outcomes, one for each charge.
        """
        if self.due is _always and not self._turn():
            return
        histogram = self.decisions
        histogram.counts[bisect_left(SECONDS_BOUNDS, seconds)] += 1
        histogram.total += seconds
        cells = self._cells
        for (rule, (_, quota, _, _)), (_, remaining, _, _, _) in zip(charges, rows, strict=False):
            cell = cells.get(rule.label) or self.cell(rule)
            size = quota.shown_size
            share = (size - remaining) / size if size else 1.0
            histogram = cell.used
            histogram.counts[bisect_left(USED_BOUNDS, share)] += 1
            histogram.total += share
            for watch in self.watchers:
                watch(cell, share)
        for watch in self.watchers:
            watch(None, seconds)

    def traced(self, decision: Decision) -> None:
        """Pass a decision to the tracers."""
        for trace in self.tracers:
            trace(decision)

    def answered(self) -> None:
        """Note that the store has answered."""
        if not self.store_up:
            self.store_up = True
            self.due = _always if self.tracers else self._turn

    def banned(self, domain: str, rule: str, *, enforced: bool) -> None:
        """Count a ban that begins."""
        cell = self._made(domain, rule)
        with self._counting:
            self.bans[cell.domain, cell.name, enforced] += 1

    def deferred(self, rule: Rule | None, fate: str) -> None:
        """Count what happened to a deferred request."""
        cell = None if rule is None else self.cell(rule)
        with self._counting:
            self.deferrals["" if cell is None else cell.domain, "" if cell is None else cell.name, fate] += 1

    def hits_of(self, charges: Sequence[Charge]) -> list[Hits]:
        """Return what requests with these charges hit: the limits of descriptors."""
        found: list[Hits] = []
        for place, (rule, (_, quota, hits, shadow)) in enumerate(charges):
            if rule.descriptor:
                name = rule.domain, rule.descriptor
                if name not in self._hits and len(self._hits) >= MOST_RULES:
                    name = "", (OTHER,)
                size = quota.shown_size
                counts = self._hits.setdefault(name, [0] * len(HITS))
                found.append((counts, place, hits, size - int(size * self.near), shadow))
        return found

    @staticmethod
    def hit(found: Sequence[Hits], rows: Sequence[Row | None], *, cached: bool = False) -> None:
        """Count the hits of a request.

        Args:
            found: What it hits, see `hits_of`.
            rows: What the counters decided. None: it was not asked, because another one denied the request.
            cached: The denial was known without a call to the store.
        """
        for counts, place, hits, near_below, shadow in found:
            counts[TOTAL_HITS] += hits
            row = rows[place]
            if row is None:
                continue
            if row[0]:
                counts[WITHIN_LIMIT] += hits
                if row[1] < near_below:
                    counts[NEAR_LIMIT] += min(near_below - row[1], hits)
            else:
                counts[OVER_LIMIT] += hits
                if shadow:
                    counts[SHADOW_MODE] += hits
                if cached:
                    counts[OVER_LIMIT_WITH_LOCAL_CACHE] += hits


def _snapshot_of(cell: Cell, passed: int) -> RuleSnapshot:
    counts = (cell.counts[ALLOWED] + passed, *cell.counts[OVER:])
    return RuleSnapshot(
        domain=cell.domain,
        name=cell.name,
        outcomes=MappingProxyType(dict(zip(OUTCOMES, counts, strict=True))),
        denials=MappingProxyType(dict(cell.reasons)),
        delay=cell.delay / SECOND,
        used=cell.used.read(),
    )


def _turns() -> Callable[[], bool]:
    """Return a function that returns True at the first of each 16 calls. It is an iterator of C: 0.03 µs a call."""
    return cycle([True] + [False] * (SAMPLED - 1)).__next__


def _always() -> bool:
    return True
