"""Leases: what a process may decide by itself. `LeaseLedger` keeps all leases of a process. It calls no store.

With `consistency: lease`, a process takes a part of what remains from the store in advance and returns the rest.
With `consistency: write_back`, it decides on its own ("on account") and charges the store later.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.model import Ask, Outcome, Quota, Reply

_new = tuple.__new__
"""Makes a NamedTuple without a call of its Python-level `__new__`."""

PART = 8
"""A lease takes 1/PART of what remains at most, so that it does not starve other processes."""

HOT = 32
"""The requests in an interval from which a process takes a lease. A claim takes as long as several requests, and a
lease needs some of them to get the right size, so it would save nothing for a counter that is asked less often."""

LONGEST_WAIT = 2.0
"""The seconds that a request waits for the call of another at most. A thread that was killed may never end its own."""


class Lease:
    """The lease of one counter.

    Attributes:
        key: the key of the counter.
        quota: the quota of the counter.
        room: what can still be spent.
        uncharged: what the store had not charged of the room when the lease began. 0 unless on account.
        in_store: what remains in the store in addition to `room`.
        spent: what was spent since the last turn, by the store's decision or here.
        before: what was spent in the interval before.
        cost, amount: the cost of the newest request that the lease did not cover, and what the store was asked for.
        flying: the cost of the requests that wait for the store's decision.
        uncertain: what was flying when the store was asked. Its reply may not include it.
        since, until: the local times between which it is valid, in microseconds.
        start, resets: the store's times at which its window or slice starts and at which the counter is as if unused.
        offset: the store's time minus the local time.
        owed: what must be refunded to the counter, by the start of the window. A negative amount is a charge.
        busy: the call under way that settles or fills the lease. No other may begin before it ends.
        closed: whether the lease is not filled before the next turn, because the store has too little left, or because
            a call takes so long that the window may end before its reply.
    """

    def __init__(self, key: str, quota: Quota) -> None:
        self.key = key
        self.quota = quota
        self.room = self.uncharged = self.in_store = self.spent = self.before = 0
        self.cost = self.amount = self.flying = self.uncertain = 0
        self.since = self.until = self.start = self.resets = self.offset = 0
        self.owed: Counter[int] = Counter()
        self.busy: UnderWay | None = None
        self.closed = False

    @property
    def on_account(self) -> bool:
        """Whether it is a `write_back` lease, which charges the store afterwards."""
        return self.quota.consistency == "write_back"

    @property
    def owes(self) -> bool:
        """Whether the lease must be settled before the store decides on what it does not cover."""
        return bool(self.room or self.uncharged or self.owed)

    def fits(self, quota: Quota, cost: int, now: int) -> bool:
        """Whether the lease covers `cost` at the local time `now`."""
        return cost <= self.room and self.since <= now < self.until and (quota is self.quota or quota == self.quota)

    def outcome(self, store_now: int) -> Outcome:
        """The outcome of the counter, at the store's time `store_now`."""
        return _new(Outcome, (True, self.in_store + self.room, max(self.resets - store_now, 0), 0, 0))

    def spend(self, cost: int) -> None:
        """Spend `cost`. A negative cost is put back."""
        self.room -= cost
        self.spent += cost

    def ask_for(self, ask: Ask, now: int) -> int:
        """What to ask the store for at the local time `now`, so that the lease covers `ask` and some more.

        The lease must owe nothing. The caller passes the reply to `fill`.
        """
        self.end()
        self.quota, self.since, self.cost, self.amount = ask.quota, now, ask.cost, ask.cost
        self.uncertain = self.flying
        if not self.on_account:
            self.amount += min(max(self.spent, self.before, 0), max(self.in_store - ask.cost, 0) // PART)
        return self.amount

    def fill(self, outcome: Outcome, now: int, took: int, most: int) -> None:
        """Take up the outcome of what `ask_for` has asked for. `now` is the time of the store, which `took` so long.

        The lease is valid until its window ends, and for the time `most` at most.
        """
        self.in_store = 0 if self.on_account else outcome.remaining
        if not outcome.allowed:
            self.closed = not self.cost <= outcome.remaining < self.amount
            return
        self.owe(self.start, self.room)  # what was put back since the store was asked
        self.start, end = unit(self.quota, now)
        self.until = self.since + min(end - now, most)
        self.offset, self.resets = now - self.since, now + outcome.reset_after
        self.closed = 2 * took > end - self.start
        if self.on_account:
            self.uncharged = max(outcome.remaining - self.uncertain, 0)
        elif outcome.remaining < PART:
            self.closed = True
        self.room = self.amount + self.uncharged

    def end(self) -> None:
        """End the lease. What must be settled becomes owed."""
        self.owe(self.start, self.room - self.uncharged)
        self.room = self.uncharged = self.since = self.until = 0

    def owe(self, start: int, amount: int) -> None:
        """Record that `amount` is owed in the window that starts at `start`."""
        if amount:
            self.owed[start] += amount

    def take_owed(self, now: int, late: int) -> Iterable[tuple[int, int]]:
        """Remove and return what is owed, with the starts of the windows, if it still matters at the local time `now`.

        It matters in its window, and also in the next one if the algorithm uses the previous window, and for the time
        `late` after that, because the estimate of the store's time may be wrong by the duration of a call.
        """
        owed, self.owed = self.owed, Counter()
        earliest = now + self.offset - late - ALGORITHMS[self.quota.algorithm].windows * self.quota.period
        return [(start, amount) for start, amount in owed.items() if start > earliest and amount]


class UnderWay(Future[None]):
    """A call to the store that settles or fills leases. It makes them busy."""

    def __init__(self, leases: Iterable[Lease]) -> None:
        super().__init__()
        self.leases = list(leases)
        for lease in self.leases:
            lease.busy = self

    def end(self) -> None:
        """Wake all that wait for the call. May be called twice."""
        for lease in self.leases:
            if lease.busy is self:
                lease.busy = None
        if not self.done():
            self.set_result(None)

    def result(self, timeout: float | None = LONGEST_WAIT) -> None:
        """Block until the call has ended, but no event loop, which may have to end the call itself."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            timeout = 0
        with contextlib.suppress(TimeoutError):
            super().result(timeout)

    async def awaited(self) -> None:
        """The awaitable twin of `result`."""
        await asyncio.wait([asyncio.wrap_future(self)], timeout=LONGEST_WAIT)


class Claim(NamedTuple):
    """One ask of a request, and the lease of its counter, if there is one.

    If it is `covered`, its cost was spent from the lease of the window that starts at `start`. Otherwise the store
    decides.
    """

    ask: Ask
    lease: Lease | None
    covered: bool
    start: int


def unit(quota: Quota, now: int) -> tuple[int, int]:
    """The start and end of the window or slice in which a request at `now` counts."""
    width = -(-quota.period // quota.buckets) if ALGORITHMS[quota.algorithm].has_buckets else quota.period
    start = now - now % width
    return start, start + width


class LeaseLedger:
    """All leases of a process. Callers must hold the guard of `Leases`.

    Args:
        interval: microseconds between two settlements with the store.
        most: the most counters that may have a lease.
    """

    def __init__(self, interval: int, most: int) -> None:
        self.leases: dict[str, Lease] = {}
        self._interval = interval
        self._most = most
        self._asked: dict[str, int] = {}
        """How often the store was asked for a counter without a lease in this interval."""
        self._asked_until = 0

    def spend(self, asks: Sequence[Ask], now: int) -> Reply | None:
        """Spend from the leases and return the reply; None, with nothing spent, unless all asks are covered."""
        leases, outcomes, store_now = self.leases, [], 0
        for place, (key, quota, cost, _) in enumerate(asks):
            lease = leases.get(key)
            if lease is None or not lease.fits(quota, cost, now):
                for ask in asks[:place]:
                    leases[ask.key].spend(-ask.cost)
                return None
            lease.room -= cost
            lease.spent += cost
            store_now = store_now or now + lease.offset
            outcomes.append(lease.outcome(store_now))
        return _new(Reply, (store_now, outcomes, None)) if outcomes else None

    def none_is_hot(self, asks: Sequence[Ask], now: int) -> bool:
        """Whether the store alone decides, because none of these counters is hot. Needs no guard.

        It counts how often each counter without a lease is asked for. Two threads at once may count once.
        """
        if now >= self._asked_until:
            self._asked, self._asked_until = {}, now + self._interval
        cold, asked, leases = True, self._asked, self.leases
        for key, quota, _, _ in asks:
            if key in leases or quota.consistency == "write_back":
                cold = False
            elif quota.consistency == "lease":
                asked[key] = times = asked.get(key, 0) + 1
                cold = cold and times < HOT
        return cold

    def claim(self, asks: Sequence[Ask], now: int, filled: Collection[Lease]) -> tuple[list[Claim], dict[Lease, Ask]]:
        """Spend from the leases what they cover. The caller must pass the claims to `conclude`.

        If a lease can be filled or must be settled first, nothing is spent, and all such leases are returned with
        their asks. The leases in `filled` are not filled again: a lease may have ended before its reply, or may not
        cover all that a request asks of one counter, and the request would never end.
        """
        claims: list[Claim] = []
        lacking: dict[Lease, Ask] = {}
        for ask in asks:
            lease = self._lease_of(ask)
            covered = lease is not None and lease.fits(ask.quota, ask.cost, now)
            if lease and covered:
                lease.spend(ask.cost)
            elif lease and (lease.busy or lease.owes or not (lease.closed or lease in filled)):
                lacking[lease] = ask
            if lease:
                lease.flying += ask.cost
            claims.append(Claim(ask, lease, covered, lease.start if lease else 0))
        if lacking:
            self.conclude(claims, admitted=False)
            return [], lacking
        return claims, lacking

    def conclude(self, claims: Sequence[Claim], admitted: bool) -> None:
        """End the claims. If the request was not admitted, what was spent here is put back."""
        for (_, _, cost, _), lease, covered, start in claims:
            if lease is None:
                continue
            lease.flying -= cost
            if admitted:
                lease.spent += 0 if covered else cost
            elif covered and lease.start == start:
                lease.spend(-cost)
            elif covered:
                lease.owe(start, cost)

    def turn(self, lease: Lease) -> None:
        """Begin another interval of a lease, which ends unless it is just filled. Drop it if it is not hot."""
        if not lease.busy:
            lease.end()
        cold = lease.on_account or lease.spent < HOT * lease.cost
        lease.before, lease.spent, lease.closed = lease.spent, 0, False
        if cold and not (lease.busy or lease.flying or lease.owed) and self.leases.get(lease.key) is lease:
            del self.leases[lease.key]

    def _lease_of(self, ask: Ask) -> Lease | None:
        """The lease of a counter; None if the store alone decides. A hot counter gets one.

        A counter with a penalty gets none, because each of its requests asks the store for the penalty.
        """
        key, quota, cost, _ = ask
        if not cost or quota.consistency == "strict" or quota.overdraft or quota.penalty:
            return None
        lease = self.leases.get(key)
        asked = self._asked.get(key, 0)
        if lease is None and len(self.leases) < self._most and (asked >= HOT or quota.consistency == "write_back"):
            lease = self.leases[key] = Lease(key, quota)
            lease.spent = max(asked - 1, 0) * cost
        return lease
