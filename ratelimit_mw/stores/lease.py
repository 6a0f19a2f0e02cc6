"""Leases: what a process may decide by itself. `LeaseLedger` keeps all leases of a process. No I/O happens here.

With `consistency: lease`, a process takes a part of what remains from the store in advance and returns the rest.
With `consistency: write_back`, it decides on its own ("on account") and charges the store later.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
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


def leasable(quota: Quota) -> bool:
    """Whether a process may decide by itself: neither strict nor with an overdraft, and supported by the algorithm."""
    if quota.consistency == "strict" or quota.overdraft:
        return False
    algorithm = ALGORITHMS[quota.algorithm]
    return not (algorithm.no_lease if quota.consistency == "lease" else algorithm.no_write_back)


class Lease:
    """The lease of one counter.

    Attributes:
        key: the key of the counter.
        quota: the quota of the counter.
        room: what can still be spent.
        spent: what was spent since the last turn, by the store's decision or here. On account, only what was spent
            here since the last charge.
        before: what was spent in the interval before.
        cost: the cost of the newest request that was asked of the store.
        in_store: what remains in the store in addition to `room`.
        since, until: the local times between which it is valid, in microseconds.
        start, resets: the store's times at which its window or slice starts and at which the counter is as if unused.
        offset: the store's time minus the local time.
        asker: the claim that asks the store for more than its cost; None if no claim does.
        flying: on account, the cost that was sent to the store or is owed, and that a reply may not include.
        moved: the number of costs that were flying and no longer are, and of parts of `room` that went back.
        forgotten: whether the counter was reset since.
    """

    def __init__(self, key: str, quota: Quota) -> None:
        self.key = key
        self.quota = quota
        self.room = self.spent = self.before = self.cost = self.in_store = 0
        self.since = self.until = self.start = self.resets = self.offset = 0
        self.flying = self.moved = 0
        self.asker: Claim | None = None
        self.forgotten = False

    @property
    def on_account(self) -> bool:
        """Whether it is a `write_back` lease, which charges the store afterwards."""
        return self.quota.consistency == "write_back"

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

    def begin(self, claim: "Claim", outcome: Outcome, reply_now: int, asked_at: int, interval: int) -> None:
        """Start the lease at the local time `asked_at`, with what the reply to a claim grants in its window."""
        self.start, end = unit(self.quota, reply_now)
        self.offset = reply_now - asked_at
        self.resets = reply_now + outcome.reset_after
        self.since = asked_at
        self.until = asked_at + min(end - reply_now, 2 * interval)
        if self.on_account:
            self.room = outcome.remaining - self.spent - (self.flying - claim.ask.cost)
            self.in_store = 0
        else:
            self.room, self.in_store = self.room + claim.extra, outcome.remaining


class Claim:
    """One ask of a request that is being decided.

    If it is `covered`, its cost was spent from `lease`. Otherwise the store is asked for its cost plus `extra`, which
    is added to the lease. `lease` is None if the store alone decides.
    """

    def __init__(self, ask: Ask, lease: Lease | None, *, covered: bool = False) -> None:
        self.ask = ask
        self.lease = lease
        self.covered = covered
        self.extra = self.moved = 0
        self.start = lease.start if lease else 0

    @property
    def on_account(self) -> bool:
        """Whether the cost is flying while the store is asked."""
        return self.lease is not None and self.ask.quota.consistency == "write_back"

    @property
    def room_went_back(self) -> bool:
        """Whether a part of the lease went back since the store was asked, so that it may have denied too early."""
        return self.lease is not None and not self.on_account and self.lease.moved != self.moved

    def outcome(self, answer: Outcome | None, now: int) -> Outcome:
        """The outcome for the client: the store's `answer` plus what is leased here, or that of the lease alone."""
        lease = self.lease
        if lease is None:
            return answer or Outcome(True, 0, 0)
        if answer is None:
            return lease.outcome(now)
        return answer if self.on_account else answer._replace(remaining=answer.remaining + lease.room)


class Due(NamedTuple):
    """A refund of `amount` to a counter, which was charged at `start`. A negative amount is a charge."""

    lease: Lease
    quota: Quota
    start: int
    amount: int
    until: int
    """The local time from which it no longer matters."""


def unit(quota: Quota, now: int) -> tuple[int, int]:
    """The start and end of the window or slice in which a request at `now` counts."""
    width = -(-quota.period // quota.buckets) if ALGORITHMS[quota.algorithm].has_buckets else quota.period
    start = now - now % width
    return start, start + width


class LeaseLedger:
    """All leases of a process, and what it owes to the store. Callers must hold the guard of `Leases`.

    Args:
        interval: microseconds between two settlements with the store.
        most: the most counters that may have a lease.
    """

    def __init__(self, interval: int, most: int) -> None:
        self.leases: dict[str, Lease] = {}
        self.owed: dict[str, list[Due]] = {}
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

    def claim(self, ask: Ask, now: int) -> Claim:
        """The claim of one ask. It is spent here if a lease covers it. The caller must pass it to `conclude`."""
        key, quota, cost, _ = ask
        if not cost or not leasable(quota):
            return Claim(ask, None)
        lease = self.leases.get(key)
        if lease is None:
            asked = self._asked.get(key, 0)
            if len(self.leases) >= self._most or (quota.consistency == "lease" and asked < HOT):
                return Claim(ask, None)
            lease = self.leases[key] = Lease(key, quota)
            lease.spent = 0 if lease.on_account else (asked - 1) * cost
        if lease.fits(quota, cost, now):
            lease.spend(cost)
            return Claim(ask, lease, covered=True)
        if lease.on_account or lease.quota != quota or not lease.since <= now < lease.until:
            self._end(lease, now)
            lease.quota = quota
        claim = Claim(ask, lease)
        lease.cost = cost
        if claim.on_account:
            lease.flying += cost
            return claim
        if lease.asker is None:
            lease.asker = claim
            claim.extra = min(max(lease.spent, lease.before), (lease.in_store + lease.room) // PART)
        lease.spent += cost
        return claim

    def learn(self, claim: Claim, outcome: Outcome, reply_now: int, asked_at: int) -> None:
        """Start the lease that a reply grants. The ask of the claim was charged."""
        lease, quota = claim.lease, claim.ask.quota
        if lease is None or lease.forgotten:
            return
        start = unit(quota, reply_now)[0]
        if lease.quota != quota:
            self._owe(lease, start, claim.extra, asked_at)
            return
        # On account, `outcome.remaining` includes what was charged before the call, but maybe not what moved during it.
        if lease.moved != claim.moved if lease.on_account else lease.asker is not claim:
            return
        if lease.start != start:
            self._end(lease, asked_at)
        lease.begin(claim, outcome, reply_now, asked_at, self._interval)

    def conclude(self, claims: Sequence[Claim], admitted: bool, now: int) -> None:
        """End the claims. If the request was not admitted, what was spent here is put back."""
        for claim in claims:
            lease, cost = claim.lease, claim.ask.cost
            if lease is None:
                continue
            if lease.asker is claim:
                lease.asker = None
            if not claim.covered:
                if claim.on_account:
                    lease.flying -= cost
                    lease.moved += 1
            elif not admitted and not lease.forgotten:
                if self.leases.get(lease.key) is lease and lease.start == claim.start:
                    lease.spend(-cost)
                else:
                    self._owe(lease, claim.start, cost, now)

    def turn(self, leases: Iterable[Lease], now: int) -> None:
        """End these leases after an interval, and drop those that are not hot. What must be settled becomes owed."""
        for lease in leases:
            self._end(lease, now)
            cold = lease.on_account or lease.spent < HOT * lease.cost
            lease.before, lease.spent = lease.spent, 0
            if cold and not lease.flying and lease.asker is None and self.leases.get(lease.key) is lease:
                del self.leases[lease.key]

    def end(self, keys: Iterable[str], now: int) -> None:
        """End the leases of these counters. What must be settled becomes owed."""
        for key in keys:
            if lease := self.leases.get(key):
                self._end(lease, now)

    def take_owed(self, now: int, keys: Iterable[str] | None, most: int | None = None) -> list[Due]:
        """Remove and return what is owed for these counters (None for all, or the first `most`).

        What no longer matters at the local time `now` is dropped.
        """
        taken: list[Due] = []
        for key in list(islice(self.owed, most)) if keys is None else keys:
            owed = self.owed.pop(key, ())
            taken += [due for due in owed if now < due.until]
            self.paid([due for due in owed if due.until <= now])
        return taken

    def paid(self, dues: Iterable[Due]) -> None:
        """Record that the store has what was owed, or that it no longer matters."""
        for due in dues:
            due.lease.flying += min(due.amount, 0)
            due.lease.moved += 1

    def unpaid(self, dues: Iterable[Due]) -> None:
        """Record that a payment failed. A charge is owed again, because to repeat it admits no more than the limit.

        A refund is dropped, because it may have arrived.
        """
        for due in dues:
            if due.amount < 0:
                self.owed.setdefault(due.lease.key, []).append(due)

    def forget(self, keys: Iterable[str]) -> None:
        """Drop the leases of these counters and what is owed, because the store has forgotten the counters."""
        for key in keys:
            if lease := self.leases.pop(key, None):
                lease.forgotten = True
            self.owed.pop(key, None)

    def _end(self, lease: Lease, now: int) -> None:
        owes = lease.room
        if lease.on_account:
            owes, lease.spent = -lease.spent, 0
        lease.room = lease.since = lease.until = 0
        self._owe(lease, lease.start, owes, now)

    def _owe(self, lease: Lease, start: int, amount: int, now: int) -> None:
        """Record that `amount` is owed to the store, if it still matters.

        It matters in its window, and also in the next one if the algorithm uses the previous window. One interval is
        added, because the estimate of the store's time may be wrong by the duration of a call.
        """
        quota = lease.quota
        until = start + ALGORITHMS[quota.algorithm].windows * quota.period - lease.offset + self._interval
        if amount and now < until:
            self.owed.setdefault(lease.key, []).append(Due(lease, quota, start, amount, until))
            lease.flying += max(-amount, 0)
