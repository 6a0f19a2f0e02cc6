"""Leases: what a process may decide by itself. `LeaseLedger` keeps all leases of a process. No I/O happens here.

With `consistency: lease`, a process takes a part of what remains from the store in advance and returns the rest.
With `consistency: write_back`, it decides on its own ("on account") and charges the store later.
"""

from collections.abc import Container, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple
from weakref import WeakSet, ref

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.model import Ask, Outcome, Quota, Reply

PART = 8
"""A lease takes 1/PART of what remains at most, so that it does not starve other processes."""


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
        on_account: whether it is a `write_back` lease, which charges the store afterwards.
        room: what can still be spent.
        spent: what was spent since the last settlement.
        in_store: what remains in the store in addition to `room`.
        size: an estimate of what this process spends in an interval.
        expected: an estimate of what this process spends in the lifetime of the lease.
        since, until: the local times between which it is valid, in microseconds.
        start, resets: the store's times at which its window or slice starts and at which the counter is as if unused.
        offset: the store's time minus the local time.
        at: the newest reply, as its time and the negated remaining amount.
        generation: the number of times that the lease has ended.
        charges: a number that grows when a charge becomes owed, and again when the store has it.
        asking: the claims for which the store is being asked.
    """

    __slots__ = (
        "_asker",
        "asking",
        "at",
        "charges",
        "expected",
        "generation",
        "in_store",
        "key",
        "offset",
        "on_account",
        "quota",
        "resets",
        "room",
        "since",
        "size",
        "spent",
        "start",
        "until",
    )

    def __init__(self, key: str, quota: Quota) -> None:
        self.key = key
        self.quota = quota
        self.on_account = quota.consistency == "write_back"
        self.room = self.spent = 0
        self.in_store = self.size = self.expected = 0
        self.since = self.until = 0
        self.start = self.resets = self.offset = 0
        self.at: tuple[int, int] = (0, 0)
        self.generation = self.charges = 0
        # Weak references, so that a claim whose thread was interrupted by an asynchronous exception disappears.
        self.asking: WeakSet[Claim] = WeakSet()
        self._asker: ref[Claim] | None = None

    def fits(self, quota: Quota, cost: int, now: int) -> bool:
        """Whether the lease covers `cost` at the local time `now`."""
        return cost <= self.room and self.since <= now < self.until and (quota is self.quota or quota == self.quota)

    def outcome(self, store_now: int) -> Outcome:
        """The outcome of the counter, at the store's time `store_now`."""
        return Outcome(True, self.in_store + self.room, max(self.resets - store_now, 0))

    @property
    def asker(self) -> "Claim | None":
        """The claim that asks the store for more than its cost, to get a new lease; None if no claim does."""
        return None if self._asker is None else self._asker()

    @asker.setter
    def asker(self, claim: "Claim | None") -> None:
        self._asker = None if claim is None else ref(claim)

    @property
    def asked(self) -> int:
        """The total cost of the claims that are being asked of the store."""
        return sum(claim.ask.cost for claim in self.asking)

    def spend(self, cost: int) -> None:
        """Spend `cost`. A negative cost is put back."""
        self.room -= cost
        self.spent += cost

    def more(self, cost: int, now: int, interval: int) -> int:
        """The amount to lease in addition to `cost`. It doubles if the last lease was used up before its end."""
        if not self.start:
            return 0  # the first request for this counter
        if now < self.until and self.spent >= self.expected:
            self.size = 2 * self.size + cost
        store_now = now + self.offset
        life = min(unit(self.quota, store_now)[1] - store_now, interval)
        self.expected = -(-self.size * life // interval)
        return min(self.expected, (self.in_store + self.room) // PART)

    def accepts(self, claim: "Claim", reply_now: int, remaining: int) -> bool:
        """Whether the reply to a claim may start the lease again."""
        if not self.on_account:
            return self.asker is claim
        # It is unknown whether `remaining` includes a charge that was owed or under way during the claim.
        unmoved = self.generation == claim.generation and self.charges == claim.charges
        return unmoved and (reply_now, -remaining) >= self.at

    def begin(self, claim: "Claim", outcome: Outcome, reply_now: int, asked_at: int, interval: int) -> None:
        """Start the lease at the local time `asked_at`, with what the reply to a claim grants in its window."""
        self.start, end = unit(self.quota, reply_now)
        self.at = reply_now, -outcome.remaining
        self.offset = reply_now - asked_at
        self.resets = reply_now + outcome.reset_after
        self.since = asked_at
        self.until = asked_at + min(end - reply_now, interval * (1 + self.on_account))
        if self.on_account:
            # The other claims of this process may not be charged yet.
            self.room, self.in_store = outcome.remaining - self.spent - (self.asked - claim.ask.cost), 0
        else:
            self.room, self.in_store, self.spent = self.room + claim.extra, outcome.remaining, 0

    @property
    def owes(self) -> int:
        """The amount to return to the store at the end; negative for an amount to charge."""
        return -self.spent if self.on_account else self.room

    def end(self, now: int, interval: int) -> None:
        """End the lease, and update the estimate of what the process spends."""
        if not self.on_account:
            rate = self.spent * interval // max(min(now, self.until) - self.since, 1)
            self.size = min(rate, 2 * self.size + 1)
        self.room = self.spent = self.since = self.until = 0
        self.at = (0, 0)
        self.generation += 1

    def due(self, start: int, amount: int, interval: int) -> "Due":
        """What the store must be charged or refunded for the window at `start`.

        It matters in this window, and also in the next one if the algorithm uses the previous window. One interval is
        added, because the estimate of the store's time may be wrong by the duration of a call.
        """
        windows = ALGORITHMS[self.quota.algorithm].windows
        until = start + windows * self.quota.period - self.offset + interval
        return Due(start, self.key, self.quota, amount, until)


class Claim:
    """One ask of a request that is being decided.

    If it is `covered`, its cost was spent from `lease`. Otherwise the store is asked for its cost plus `extra`, which
    becomes a new lease. `lease` is None if the counter is strict.
    """

    __slots__ = ("__weakref__", "ask", "charges", "covered", "extra", "generation", "lease", "start")

    def __init__(self, ask: Ask, lease: Lease | None) -> None:
        self.ask = ask
        self.lease = lease
        self.covered = False
        self.extra = self.charges = 0
        self.start, self.generation = (lease.start, lease.generation) if lease else (0, 0)

    @property
    def enlarged(self) -> Ask:
        """The ask for the store: its cost and `extra`."""
        return self.ask._replace(cost=self.ask.cost + self.extra)

    def outcome(self, answer: Outcome | None, now: int) -> Outcome:
        """The outcome for the client: the store's `answer` plus what is leased here, or that of the lease alone."""
        lease = self.lease
        if lease is None:
            return answer or Outcome(True, 0, 0)
        if answer is None:
            return lease.outcome(now)
        return answer if lease.on_account else answer._replace(remaining=answer.remaining + lease.room)


class Due(NamedTuple):
    """A refund of `amount` to the counter `key`, which was charged at `start`. A negative amount is a charge."""

    start: int
    key: str
    quota: Quota
    amount: int
    until: int
    """The local time from which it no longer matters."""


def unit(quota: Quota, now: int) -> tuple[int, int]:
    """The start and end of the window or slice in which a request at `now` counts."""
    width = -(-quota.period // quota.buckets) if ALGORITHMS[quota.algorithm].has_buckets else quota.period
    start = now - now % width
    return start, start + width


_UNSETTLED = -1
"""The `charges` of a claim if charges were owed or under way when the store was asked. Its reply starts no lease."""


class LeaseLedger:
    """All leases of a process, and what it owes to the store. Callers must hold the guard of `LeaseSync`.

    Args:
        interval: microseconds between two settlements with the store.
        most: the most counters that may have a lease.
    """

    def __init__(self, interval: int, most: int) -> None:
        self.owed: list[Due] = []
        self.due_at = 0
        """The local time at which the next lease is due; 0 if there is none."""
        self._interval = interval
        self._most = most
        self._leases: dict[str, Lease] = {}
        self._queue: list[tuple[int, int, Lease]] = []
        self._numbers = count()

    def __len__(self) -> int:
        """The number of counters with a lease."""
        return len(self._leases)

    def spend(self, asks: Sequence[Ask], now: int) -> Reply | None:
        """Spend from the leases and return the reply; None, with nothing spent, unless all asks are covered."""
        leases, outcomes, store_now = self._leases, [], 0
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
        return Reply(store_now, outcomes) if outcomes else None

    def peek(self, asks: Sequence[Ask], now: int) -> Reply | None:
        """Return the reply to a look at the counters. Nothing is spent. None unless all asks are covered."""
        reply = self.spend(asks, now)
        if reply is None:
            return None
        for ask in asks:
            self._leases[ask.key].spend(-ask.cost)
        return reply._replace(outcomes=[self._leases[ask.key].outcome(reply.now) for ask in asks])

    def claim(self, asks: Sequence[Ask], now: int, claims: list[Claim]) -> None:
        """Append one claim for each ask to `claims`. A claim is spent here if a lease covers it.

        The caller must pass the claims to `conclude` in the end. They are appended to a list of the caller, so that
        the caller has them even after an asynchronous exception at any line.
        """
        for ask in asks:
            self._claim(ask, now, claims)

    def _claim(self, ask: Ask, now: int, claims: list[Claim]) -> None:
        key, quota, cost, _ = ask
        if not cost or not leasable(quota):
            claims.append(Claim(ask, None))
            return
        lease = self._leases.get(key)
        if lease is None:
            if len(self._leases) >= self._most:
                claims.append(Claim(ask, None))
                return
            lease = self._leases[key] = Lease(key, quota)
            self._watch(lease, now)
        elif lease.fits(quota, cost, now):
            lease.spend(cost)
            claim = Claim(ask, lease)
            claim.covered = True
            claims.append(claim)
            return
        elif lease.on_account or lease.quota != quota or not lease.since <= now < lease.until:
            self._end(lease, now)
            lease.quota, lease.on_account = quota, quota.consistency == "write_back"
        claim = Claim(ask, lease)
        claims.append(claim)
        lease.asking.add(claim)
        if not lease.on_account and lease.asker is None:
            lease.asker = claim
            claim.extra = lease.more(cost, now, self._interval)

    def begin_asking(self, claims: Iterable[Claim], under_way: Container[str]) -> None:
        """Record which claims have charges that are owed or `under_way`. Must be called before the store is asked."""
        owed = {due.key for due in self.owed if due.amount < 0}
        for claim in claims:
            lease = claim.lease
            if lease:
                unsettled = lease.key in owed or lease.key in under_way
                claim.charges = _UNSETTLED if unsettled else lease.charges

    def learn(self, claim: Claim, outcome: Outcome, reply_now: int, asked_at: int) -> None:
        """Start the lease that a reply grants. The ask of the claim was charged or has no cost."""
        lease, quota = claim.lease, claim.ask.quota
        if lease is None or self._leases.get(lease.key) is not lease or lease.quota != quota:
            return
        if not lease.accepts(claim, reply_now, outcome.remaining):
            return
        if lease.start != unit(quota, reply_now)[0]:
            self._end(lease, asked_at)
            if not claim.ask.cost:  # a peek does not start a lease in a window without charges
                return
            if lease.on_account and lease.charges != claim.charges:  # the end of the lease has added a charge
                return
        lease.begin(claim, outcome, reply_now, asked_at, self._interval)

    def conclude(self, claims: Sequence[Claim], admitted: bool, now: int) -> None:
        """End the claims. If the request was not admitted, what was spent here is put back."""
        for claim in claims:
            lease = claim.lease
            if lease is None:
                continue
            if lease.asker is claim:
                lease.asker = None
            if not claim.covered:
                lease.asking.discard(claim)
            elif not admitted:
                if lease.generation == claim.generation:
                    lease.spend(-claim.ask.cost)
                else:
                    self._owe(lease, claim.start, claim.ask.cost, now)

    def due(self, now: int, most: int) -> list[Lease]:
        """Handle up to `most` leases that are due. They end, except the leases on account that are still valid.

        Returns the leases on account that continue. What they spent is now owed.
        """
        continuing = []
        for _ in range(most):
            if not self._queue or self._queue[0][0] > now:
                break
            lease = self._queue[0][2]
            if self._leases.get(lease.key) is lease:
                if not lease.on_account and now < lease.until:
                    self._watch(lease, lease.until - self._interval)
                elif lease.on_account and lease.spent and now < lease.until:
                    self._owe(lease, lease.start, -lease.spent, now)
                    lease.spent = 0
                    continuing.append(lease)
                    self._watch(lease, now)
                else:
                    active = lease.until and lease.spent
                    self._end(lease, now)
                    if active or lease.asking:
                        self._watch(lease, now)
                    else:
                        del self._leases[lease.key]
            heappop(self._queue)  # last, so that after an asynchronous exception the lease is still in the queue
        self.due_at = self._queue[0][0] if self._queue else 0
        return continuing

    def is_due(self, now: int) -> bool:
        """Whether a lease is due."""
        return bool(self._queue) and self._queue[0][0] <= now

    def owing(self, keys: Sequence[str], now: int) -> set[str]:
        """End the leases of these counters. Returns the keys of those for which something is owed."""
        self.end(keys, now)
        wanted = set(keys)
        return {due.key for due in self.owed if due.key in wanted}

    def take_owed(
        self, now: int, keys: Iterable[str] | None = None, *, but: Container[str] = (), into: list[Due] | None = None
    ) -> list[Due]:
        """Remove and return what is owed.

        Args:
            now: the local time. What no longer matters at this time is dropped.
            keys: the counters to take; None for all.
            but: the counters not to take.
            into: the list to append to; None for a new one.
        """
        wanted = None if keys is None else set(keys)
        taken: list[Due] = [] if into is None else into
        left: list[Due] = []
        for due in self.owed:
            if (wanted is not None and due.key not in wanted) or due.key in but:
                left.append(due)
            elif now < due.until:
                taken.append(due)
        self.owed = left
        return taken

    def charged(self, keys: Iterable[str]) -> None:
        """Record that charges to these counters have arrived or are lost."""
        for key in keys:
            if lease := self._leases.get(key):
                lease.charges += 1

    def end(self, keys: Sequence[str], now: int) -> None:
        """End the leases of these counters. What must be settled becomes owed."""
        for key in keys:
            if lease := self._leases.get(key):
                self._end(lease, now)

    def end_all(self, now: int) -> None:
        """End all leases."""
        self.end(list(self._leases), now)
        self._leases.clear()
        self._queue.clear()

    def forget(self, keys: Sequence[str]) -> None:
        """Drop the leases of these counters and what is owed, because the store has forgotten the counters."""
        for key in keys:
            self._leases.pop(key, None)
        self.take_owed(0, keys)

    def _watch(self, lease: Lease, now: int) -> None:
        heappush(self._queue, (now + self._interval, next(self._numbers), lease))
        self.due_at = self._queue[0][0]

    def _end(self, lease: Lease, now: int) -> None:
        if lease.until:
            owes = lease.owes
            # An asynchronous exception may be raised between the steps. A charge is recorded before the lease ends, so
            # it may be made twice. A refund is recorded afterwards, so it may be lost. Neither admits too much.
            if owes < 0:
                self._owe(lease, lease.start, owes, now)
            lease.end(now, self._interval)
            if owes > 0:
                self._owe(lease, lease.start, owes, now)

    def _owe(self, lease: Lease, start: int, amount: int, now: int) -> None:
        """Record that `amount` is owed to the store, if it still matters."""
        due = lease.due(start, amount, self._interval)
        if amount and now < due.until:
            self.owed.append(due)
            lease.charges += amount < 0
