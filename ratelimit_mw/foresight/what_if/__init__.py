"""What a replay keeps for its what-if curves: the limits that have one, and each request in three to eight bytes.

The requests are kept with the counters that they asked, because only the end of a log tells which rules deny most, and
standard input cannot be read twice. Neither the limits nor the requests need numpy here.
"""

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, count
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.foresight.clients import agent_of
from ratelimit_mw.foresight.logs.entry import LogEntry
from ratelimit_mw.foresight.simulation import identity_of
from ratelimit_mw.foresight.wording import written_numbers
from ratelimit_mw.model import Ask, Charge, Quota, Rule
from ratelimit_mw.rules.compiled import BLOCKED, CompiledRule
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.units import spell_period

MOST_LIMITS = 50
"""The most limits of an exact curve."""

_DIGITS = (10, 12, 15, 18, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90)
"""The numbers of each decade that people write, see `written_numbers`."""

_FACTORS = (1 / 4, 1 / 2, 3 / 4, 3 / 2, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One limit of one rule: that of clients without a tier, and of tiers that have the same limit.

    Attributes:
        rule: The rule.
        place: The place of the rule in the order of the files.
        quota: The quota in force.
        coupled: True if the decisions depend on more than the counter itself, as far as the rule tells it.
        with_number: Returns the quota with another number of requests. Raises ValueError if the rule cannot have it.
    """

    rule: Rule
    place: int
    quota: Quota
    coupled: bool
    with_number: Callable[[int], Quota]

    @property
    def limit(self) -> int:
        """The number of requests."""
        return self.quota.shown_limit

    @property
    def spelled(self) -> str:
        """The limit as a person writes it."""
        in_flight = ALGORITHMS[self.quota.algorithm].in_flight
        return f"{self.limit} concurrent" if in_flight else f"{self.limit} per {spell_period(self.quota.period)}"

    def quotas(self, limits: Iterable[int]) -> Iterator[tuple[int, Quota]]:
        """Yield the quota with each of these numbers, in their order, after the number."""
        for limit in limits:
            with suppress(ValueError):  # the rule cannot have this limit
                yield limit, self.quota if limit == self.limit else self.with_number(limit)


def subjects_of(rules: Rules) -> list[Subject]:
    """Return the limits of all rules, in the order of the files, except those that a function of the app returns.

    The burst of a bucket stays as it is if the file sets it. Otherwise it is the number of the limit.
    """
    found: list[Subject] = []
    place = 0
    for part in rules.parts:
        for compiled in part.compiled:
            found += _of_rule(part, compiled, place)
            place += 1
        for limit in part.descriptors.limits if part.descriptors is not None else ():
            quota = limit.quota
            if quota is not None:
                coupled = _coupled(limit.rule, quota)
                number = partial(_of_descriptor, quota)
                found.append(Subject(rule=limit.rule, place=place, quota=quota, coupled=coupled, with_number=number))
            place += 1
    return found


def _of_rule(part: RuleSet, compiled: CompiledRule, place: int) -> Iterator[Subject]:
    if compiled.read_limit is not None:
        return
    for index, quota in enumerate(compiled.limits):
        number = partial(part.recompiler.with_number, compiled.rule.name, index)
        coupled = _coupled(compiled.rule, quota)
        yield Subject(rule=compiled.rule, place=place, quota=quota, coupled=coupled, with_number=number)


def _of_descriptor(quota: Quota, number: int) -> Quota:
    """Return the quota of a descriptor with another number. A burst that is equal to the number follows it."""
    algorithm = ALGORITHMS[quota.algorithm]
    largest = algorithm.largest
    if largest is not None and number > largest.limit:
        raise ValueError(f"at most {largest.limit}")
    burst = number if quota.burst == quota.limit else quota.burst
    return algorithm.in_turn(replace(quota, limit=number, burst=burst))


def _coupled(rule: Rule, quota: Quota) -> bool:
    """Return True if responses, bans or the requests in flight decide, too."""
    by_response = rule.cost_after is not None or rule.counts is not None or quota.overdraft
    return by_response or quota.penalty is not None or ALGORITHMS[quota.algorithm].in_flight


def candidates(limit: int, peaks: Sequence[tuple[int, int]]) -> list[int]:
    """Return the limits of an exact curve, ascending: numbers that people write, from half a usual client to all.

    Args:
        limit: The limit in force, which is one of them.
        peaks: How many clients have how many requests in their busiest window, see `Curve.peaks`. The highest is one of
            the limits, because a window with this limit denies nothing.
    """
    highest = peaks[-1][0] if peaks else 1
    lowest = min(_median(peaks), max(limit, 1), highest) // 2
    found = [each for each in written_numbers(_DIGITS, max(highest, limit)) if each >= lowest]
    fixed = {limit, highest}
    free = [each for each in found if each not in fixed]
    most = MOST_LIMITS - len(fixed)
    if len(free) > most:  # evenly: the numbers are about as far apart as their size demands
        free = [free[place * (len(free) - 1) // (most - 1)] for place in range(most)]
    return sorted(fixed.union(free))


def replayed_candidates(limit: int) -> list[int]:
    """Return the limits at which the engine replays a log, ascending, without the limit in force."""
    found: list[int] = []
    for factor in _FACTORS:
        wanted = max(round(limit * factor), 1)
        found.append(next(each for each in count(wanted) if each != limit and each not in found))
    return sorted(found)


def _median(peaks: Sequence[tuple[int, int]]) -> int:
    seen = list(accumulate(number for _, number in peaks))
    return peaks[bisect_left(seen, seen[-1] / 2)][0] if peaks else 1


NEEDS_NUMPY = "the what-if needs numpy: pip install 'ratelimit_mw[foresight]'"

MOST_REQUESTS = 10_000_000
"""The most requests that are kept."""

MOST_COUNTERS = 1_000_000
"""The most counters whose requests are kept."""

_BLOCK = 1 << 16
"""The requests that are compressed together."""

_MOST_PATHS = 1 << 16
_MOST_AGENTS = 1000
_MOST_TEXTS = 1 << 14
"""The most texts whose numbers are remembered. Clients may write many more."""

OTHERS = "(others)"
"""Stands for what came when a table was full."""

COLUMNS = {"times": "q", "plans": "i", "paths": "H", "marks": "I", "durations": "q"}
"""What is kept of each request, with the types of `array`.

* `times`: When it began, in microseconds since the epoch.
* `plans`: The number of its plan. It is ~number if the request was denied.
* `paths`: The number of its path in `Recording.path_names`.
* `marks`: Its status, and the number of its user agent, see `STATUS`.
* `durations`: How long it took, in microseconds. -1 if this is not known.
"""

STATUS = 10
"""The bits of the status in `marks`. The number of the agent is in the bits above it."""


Named = Callable[[str, LogEntry | None], str]
"""(identity of a client, a request of it) → its name. Without a request, what only requests tell is missing."""


class Series(NamedTuple):
    """The counters of one limit: the place of its rule in the order of the files, its quota, and if it is a shadow."""

    rule: int
    quota: Quota
    shadow: bool


class Numbers(dict[str, int]):
    """Numbers texts by what they have in common, in the order of their appearance.

    Args:
        shared: What a text has in common with others.
        most: The most different numbers. Number 0 stands for all others.
    """

    def __init__(self, shared: Callable[[str], str], most: int) -> None:
        super().__init__()
        self.names = [OTHERS]
        """What each number stands for."""
        self._shared, self._most = shared, most
        self._known: dict[str, int] = {}

    def __missing__(self, text: str) -> int:
        """Return the number of a text that is not remembered."""
        name = self._shared(text)
        number = self._known.get(name, 0)
        if not number and len(self.names) < self._most:
            number = self._known[name] = len(self.names)
            self.names.append(name)
        if len(self) >= _MOST_TEXTS:
            self.clear()
        self[text] = number
        return number


class Recording:
    """The requests of a log that asked at least one counter, in order of time, as columns.

    Blocks of them are compressed, to about a fifth.

    The counters that a request asks are its plan. A plan has a number, as each counter has.

    Args:
        rules: The rules, in the order of the files.
        named: Names a client.

    Attributes:
        blocks: The columns of each block of requests, compressed, by the names in `COLUMNS`.
        columns: The requests that are not compressed yet. Columns are filled faster than tuples are made and divided.
        keys: The numbers of the counters, by their keys.
        series: The limits whose counters were asked.
        series_of: The number of the series of each counter.
        members: The counters of all plans, one plan after the other.
        ends: The end of each plan in `members`.
        unusual: The charges of plans that are not told by their counters: they have a cost, or another limit than most.
        names: The names of the clients of counters, where the key does not have it.
        coupled: The places of the rules whose decisions depended on more than one counter in the log. A rule may also
            be coupled by its own words.
        too_many: Why no requests are kept, as a sentence. "" if they are.
    """

    def __init__(self, rules: Sequence[Rule], named: Named) -> None:
        self.blocks: list[dict[str, bytes]] = []
        self.columns = {name: array(kind) for name, kind in COLUMNS.items()}
        self._appends = [column.append for column in self.columns.values()]
        self._requests, self._room = 0, min(_BLOCK, MOST_REQUESTS + 1)
        self.path_names = Numbers(lambda target: target.partition("?")[0], _MOST_PATHS)
        self.agents = Numbers(agent_of, _MOST_AGENTS)
        self.keys: dict[str, int] = {}
        self.series: list[Series] = []
        self.series_of = array("i")
        self.members, self.ends = array("i"), array("i")
        self.unusual: dict[int, Sequence[Charge]] = {}
        self.names: dict[int, str] = {}
        self.coupled: set[int] = set()
        self.too_many = ""
        self.named = named
        self.rules = rules
        self._places = {id(rule): place for place, rule in enumerate(rules)}
        self._known_series: dict[Series, int] = {}
        self._alone = array("i")  # the plan of each counter that asks nothing else
        self._known: dict[tuple[object, ...], int] = {}

    def add(self, entry: LogEntry, plan: int, allowed: bool) -> None:
        """Add a request, its plan (see `plan_of`), and if it was allowed. Requests must be in order of time."""
        if self.too_many:
            return
        at, _, _, target, status, lasted, _, agent = entry
        add_time, add_plan, add_path, add_mark, add_duration = self._appends
        add_time(at)
        add_plan(plan if allowed else ~plan)
        add_path(self.path_names[target])
        add_mark(self.agents[agent] << STATUS | status)
        add_duration(lasted)
        if len(self.columns["times"]) >= self._room:
            self.pack()

    def pack(self) -> None:
        """Compress the requests that are not compressed yet."""
        self._requests += len(self.columns["times"])
        if self._requests > MOST_REQUESTS or len(self.keys) > MOST_COUNTERS:
            self._stop()
        else:
            self.blocks.append({name: zlib.compress(column, 1) for name, column in self.columns.items()})
            self._room = min(_BLOCK, MOST_REQUESTS + 1 - self._requests)
        for column in self.columns.values():
            del column[:]

    def plan_of(self, entry: LogEntry, charges: Sequence[Charge]) -> int:
        """Return the number of what a request asks: its plan. Equal plans have one number."""
        if self.too_many:
            return 0
        asked = () if charges is BLOCKED else charges
        numbers = [self._numbered(ask, self._places[id(rule)], entry) for rule, ask in asked]
        quotas = [self.series[self.series_of[number]].quota for number in numbers]
        pairs = list(zip(asked, quotas, strict=True))
        unusual = [self._places[id(rule)] for (rule, ask), quota in pairs if ask.cost != 1 or ask.quota != quota]
        self.coupled.update(unusual)
        if len(numbers) == 1 and not unusual:
            plan = self._alone[numbers[0]]
            if plan < 0:
                plan = self._alone[numbers[0]] = self._new(numbers)
        else:
            asks = tuple((ask.cost, ask.quota) for _, ask in asked) if unusual else ()
            key = (*numbers, *asks)
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._new(numbers)
                self._couple(asked)
                if unusual:
                    self.unusual[found] = asked
            plan = found
        return plan

    def _new(self, numbers: Iterable[int]) -> int:
        self.members.extend(numbers)
        self.ends.append(len(self.members))
        return len(self.ends) - 1

    def _stop(self) -> None:
        many = self._requests > MOST_REQUESTS
        what = f"more than {MOST_REQUESTS:,} requests at rules" if many else f"more than {MOST_COUNTERS:,} counters"
        for column in (self.blocks, self.members, self.ends):
            del column[:]
        for table in (self.keys, self.unusual, self.names, self._known):
            table.clear()
        self.too_many = f"there is no what-if: the log has {what}"

    def _couple(self, charges: Sequence[Charge]) -> None:
        """Note which rules of a request depend on each other, or ask several counters for it."""
        places = [self._places[id(rule)] for rule, _ in charges]
        grouped = any(rule.quota_group for rule, _ in charges)
        deciding = [place for place, (_, ask) in zip(places, charges, strict=True) if grouped or not ask.shadow]
        self.coupled.update(deciding if len(deciding) > 1 else ())
        self.coupled.update(place for place in places if places.count(place) > 1)

    def _numbered(self, ask: Ask, rule: int, entry: LogEntry) -> int:
        """Return the number of a counter."""
        key, quota, _, shadow = ask
        number = self.keys.get(key)
        if number is None:
            number = self.keys[key] = len(self.keys)
            if number >= MOST_COUNTERS:
                self._room = 0  # it is one too many
            series = Series(rule, quota, shadow)
            place = self._known_series.get(series)
            if place is None:
                place = self._known_series[series] = len(self.series)
                self.series.append(series)
            self.series_of.append(place)
            self._alone.append(-1)
            if "user=" in key or "path=" in key:  # the key has a hash, or the text in another spelling
                self.names[number] = self.named(identity_of(key), entry)
        return number
