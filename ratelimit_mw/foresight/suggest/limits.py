"""The limits that ordinary clients need, and what limits deny in the traffic that they are proposed for.

All numbers are whole, so the result does not depend on how a machine rounds.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple
from urllib.parse import quote, unquote

from ratelimit_mw.algorithms import sliding_window
from ratelimit_mw.config.words.limit import DEFAULT
from ratelimit_mw.foresight.logs.entry import LogEntry
from ratelimit_mw.foresight.requests import Requests, readings_of
from ratelimit_mw.foresight.simulation import Decider, Simulation, quiet
from ratelimit_mw.foresight.suggest.traffic import INT, UUID, Traffic, by_time, route_of, status_of, user_of
from ratelimit_mw.foresight.wording import written_numbers
from ratelimit_mw.model import Quota
from ratelimit_mw.units import DAY, HOUR, MINUTE

LEAST_CLIENTS = 20
"""Fewer clients say too little."""

CONVENTION = {MINUTE: 5, HOUR: 10, DAY: 20}
"""The limits where no number can be taken from the log. They are also the smallest limits."""

LEAST_GROUP = 5
"""The least clients that decide together. One client does not decide alone."""

_LONGER = 2
"""A limit is at least so many times the limit for the shorter period."""

HEADROOM = Fraction(3, 2)
"""A limit is so many times what ordinary clients need."""

_ROUND = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)
"""The first two digits of round numbers."""

_GAP = 2
"""The ratio of two neighboring peaks above a limit, from which on the larger one is far beyond."""

_QUANTILES = ((10_000, 999), (1_000, 995), (0, 980))
"""The thousandths of the clients that a limit covers, by the least number of clients."""


def busiest(times: Sequence[int], period: int) -> int:
    """Return the number of requests in the busiest period, as the algorithm `sliding_window` counts them.

    This is the smallest limit per period that denies none of these requests.

    Args:
        times: The times of a client's requests in ascending order, in microseconds since the epoch.
        period: The period in microseconds.
    """
    quota = Quota(DEFAULT, 0, period)
    used = sliding_window.used
    window = most = previous = current = 0
    for at in times:
        if at // period != window:
            previous = current if at // period == window + 1 else 0
            window, current = at // period, 0
        number = used(quota, (current, current + previous), at) + 1 if previous else current + 1
        current += 1
        most = max(most, number)
    return most


def denied(times: Iterable[int], limit: int, period: int) -> int:
    """Return how many requests at these times a limit denies."""
    quota, state, number = Quota(DEFAULT, limit, period), b"", 0
    for at in times:
        outcome, after = sliding_window.decide(state, quota, 1, at)
        number += not outcome.allowed
        state = state if after is None else after
    return number


def quantile(ascending: Sequence[int], thousandths: int) -> int:
    """Return the smallest value that at least so many thousandths of the values do not exceed (nearest rank)."""
    rank = -(-len(ascending) * thousandths // 1000)
    return ascending[max(rank, 1) - 1]


def covered(clients: int) -> int:
    """Return how many thousandths of so many clients a limit covers. With fewer clients, the last few say less."""
    return next(thousandths for least, thousandths in _QUANTILES if clients >= least)


def reached(edge: int, ascending: Iterable[int]) -> int:
    """Return the largest peak that is reached from `edge` without a gap: each is at most twice the one before.

    The requests of clients often follow Zipf's law, and the busiest clients are then far above a quantile. They are
    still the end of one distribution. What is far beyond comes after a gap.

    Args:
        edge: The limit that most clients need.
        ascending: The peaks in ascending order.
    """
    for peak in ascending:
        if peak > _GAP * edge:
            break
        edge = max(edge, peak)
    return edge


def round_limit(number: Fraction) -> int:
    """Return the round number next to this one, such as 60, 80, 100, 120 or 150. The larger one if both are as near."""
    return min(written_numbers(_ROUND, number), key=lambda each: (abs(each - number), -each))


def next_round(number: int) -> int:
    """Return the smallest round number that is at least this number."""
    return written_numbers(_ROUND, number)[-1]


@dataclass
class Uses:
    """How clients use the requests of one rule, in columns: there may be a million clients.

    Attributes:
        periods: The periods of the limits.
        times: Returns the times of a client's requests.
        clients: The indexes of the clients.
        peaks: The busiest periods of each, by period.
        requests: The requests of each.
    """

    periods: Sequence[int]
    times: Callable[[int], Sequence[int]]
    clients: "array[int]" = field(default_factory=lambda: array("I"))
    requests: "array[int]" = field(default_factory=lambda: array("I"))
    peaks: "list[array[int]]" = field(default_factory=list)

    def __post_init__(self) -> None:
        self.peaks = [array("I") for _ in self.periods]

    def add(self, client: int, times: Sequence[int]) -> None:
        """Add the times of a client's requests."""
        self.clients.append(client)
        self.requests.append(len(times))
        for peaks, period in zip(self.peaks, self.periods, strict=True):
            peaks.append(busiest(times, period))

    def above(self, limits: Iterable[tuple[int, int]]) -> set[int]:
        """Return the clients that one of these limits would deny. A limit is a number and a period."""
        return {
            client
            for limit, period in limits
            for client, peak in zip(self.clients, self.peaks[self.periods.index(period)], strict=True)
            if peak > limit
        }


class Limit(NamedTuple):
    """One limit, and how it was found.

    Attributes:
        limit: The number of requests.
        period: The period in microseconds.
        clients: The number of clients that the percentiles are taken of. 0 for a convention.
        half: The median of their busiest periods.
        most: What nearly all of them do not exceed, see `covered`.
        plain: The limit before it was raised, because it would deny too many requests of ordinary clients.
        raised_for: The clients that it was raised for.
        beyond: The clients above the limit that it was not raised for, each with its busiest period, the busiest first.
    """

    limit: int
    period: int
    clients: int
    half: int
    most: int
    plain: int
    raised_for: Sequence[int]
    beyond: Sequence[tuple[int, int]]

    def times(self, factor: Fraction) -> int:
        """Return a multiple of the limit. It is rounded, unless it is the limit itself."""
        return self.limit if factor == 1 else round_limit(self.limit * factor)


def limits_of(
    uses: Uses,
    left_out: Container[int],
    trusted: Container[int],
    spare: int,
    *,
    convention: bool = False,
    least: int = LEAST_CLIENTS,
) -> list[Limit]:
    """Return the limits that ordinary clients need, the shortest period first. None if they are fewer than `least`.

    Args:
        uses: How clients use the requests.
        left_out: The clients that no percentile is taken from.
        trusted: The clients that need room, however busy they are.
        spare: The requests of ordinary clients that one limit may deny.
        convention: Take no percentile.
        least: The least clients that a percentile is taken of.
    """
    found: list[Limit] = []
    for peaks, period in zip(uses.peaks, uses.periods, strict=True):
        rows = sorted(zip(peaks, uses.clients, strict=True))
        kept = [peak for peak, client in rows if client not in left_out]
        plain, half, most = CONVENTION[period], 0, 0
        if not convention:
            if len(kept) < least:
                return []
            half, most = quantile(kept, 500), quantile(kept, covered(len(kept)))
            plain = max(round_limit(most * HEADROOM), plain)
        if found:  # who has used a shorter limit can still do something in the longer period
            plain = max(plain, _LONGER * found[-1].limit)
        doubtful = [row for row in rows if row[0] > plain and row[1] not in left_out and row[1] not in trusted]
        alone = len(doubtful) < LEAST_GROUP
        edge = int(plain * HEADROOM) if alone else reached(plain, [peak for peak, _ in doubtful])
        above = [row for row in rows if row[0] > plain and row[1] in trusted]
        above += [row for row in doubtful if row[0] <= edge]
        limit = plain
        while above and _loss(uses, above, limit, period) > spare:
            limit = next_round(limit + 1)
        if found and 2 * limit * found[-1].period > found[-1].limit * period:
            continue  # the shorter period binds
        raised_for = [client for _, client in above] if limit > plain else []
        room = {client for _, client in above}
        beyond = [(client, peak) for peak, client in reversed(rows) if peak > limit and client not in room]
        found.append(Limit(limit, period, 0 if convention else len(kept), half, most, plain, raised_for, beyond))
    return found


def _loss(uses: Uses, above: Sequence[tuple[int, int]], limit: int, period: int) -> int:
    """Return how many requests a limit denies to some clients."""
    return sum(denied(uses.times(client), limit, period) for peak, client in above if peak > limit)


_VALUES = {INT: "1", UUID: "0" * 32}
"""A value for each kind of segment. One of the kind `ANY` is no name of a route, and stands for itself."""


class Consequence(NamedTuple):
    """What one rule denies.

    Attributes:
        limits: The limits, as in a rules file.
        denied: The requests that it denies.
        requests: Those that it applies to.
        limited: The clients that it denies.
        clients: Those that it applies to.
    """

    limits: tuple[str, ...] = ()
    denied: int = 0
    requests: int = 0
    limited: int = 0
    clients: int = 0


Denials = Mapping[str, Counter[str]]
"""The denied requests of each client, such as "ip=192.0.2.1", by the name of the rule."""


def denials(traffic: Traffic, config: Mapping[str, object], clients: Container[str], users: Container[str]) -> Denials:
    """Return what rules deny, as `replay` counts it.

    Only counters that reach their limit can deny. A request whose counters all stay below their limits is admitted, and
    what it is charged to denies nothing. The engine therefore decides on the other requests only.

    Args:
        traffic: The traffic.
        config: The rules.
        clients: The clients of which a counter may reach its limit.
        users: The users of which a counter may reach its limit.
    """
    targets = ["/" + "/".join(quote(_VALUES.get(each, each), safe="") for each in path) for _, path in traffic.routes]
    entries = []
    for client in ("", *traffic.clients):
        chosen = not client or client in clients
        address = client.partition("/")[0]
        for at, packed in traffic.of(client):
            user = traffic.users[user_of(packed)]
            if chosen or user in users:
                route = route_of(packed)
                method = traffic.routes[route].method
                extra = (user or None,)
                entries.append(LogEntry(at, address, method, targets[route], status_of(packed), -1, extra))
    entries.sort(key=by_time)
    with quiet(), closing(Simulation(config)) as simulation:
        readings = readings_of(simulation.rules, ("ip", "user").__contains__, ())
        decider = Decider(simulation, Requests(readings.values(), ["user"]), hashed=False)
        for entry in entries:
            decider.decide(entry)
    outcome = decider.outcome
    found: dict[str, Counter[str]] = {rule.name: Counter() for rule in outcome.rules.values()}
    names = {place: rule.name for place, rule in outcome.rules.items()}
    for (place, identity), seen in outcome.clients.most(len(outcome.clients)):
        found[names[place]][unquote(identity)] = seen.total
    return found
