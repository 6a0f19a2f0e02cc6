"""A lease: what a process may decide by itself; and the ledger of all leases of a process."""

from collections.abc import Container, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple
from weakref import WeakSet, ref

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.model import Ask, Outcome, Quota, Reply

PART = 8
"""A lease takes one in so many of what remains at most, so that it does not starve other processes."""


def shareable(quota: Quota) -> bool:
    """May a process decide by itself? With `consistency`, and where the algorithm can be kept so."""
    if quota.consistency == "strict":
        return False
    algorithm = ALGORITHMS[quota.algorithm]
    return not (algorithm.no_lease if quota.consistency == "lease" else algorithm.no_write_back)


class LeaseShare:
    """The share of one counter: `room` can still be spent, `spent` was."""

    __slots__ = (
        "_asker",
        "asking",
        "at",
        "beyond",
        "charges",
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
        "turn",
        "until",
        "wanted",
    )

    def __init__(self, key: str, quota: Quota) -> None:
        self.key = key
        self.quota = quota
        self.on_account = quota.consistency == "write_back"
        self.room = self.spent = 0
        self.beyond = 0  # what remains besides
        self.size = 0  # how much this process is thought to spend in an interval
        self.wanted = 0  # how much of it there was time for
        self.since = self.until = 0  # local time
        self.start = self.resets = self.offset = 0  # the store's: its window or slice, and when it is as if unused
        self.at: tuple[int, int] = (0, 0)  # the newest reply: its time, and less what remained
        self.turn = 0  # rises when the share ends
        self.charges = 0  # rises when a charge is owed, and when it has arrived
        # What is being asked of the store, and which of that asks for a lease. Both are known weakly: what an exception
        # from elsewhere has interrupted is asked no more.
        self.asking: WeakSet[Claim] = WeakSet()
        self._asker: ref[Claim] | None = None

    def fits(self, quota: Quota, cost: int, now: int) -> bool:
        """May it spend `cost`?"""
        return cost <= self.room and self.since <= now < self.until and (quota is self.quota or quota == self.quota)

    def outcome(self, store_now: int) -> Outcome:
        """What there is to say of the counter."""
        return Outcome(True, self.beyond + self.room, max(self.resets - store_now, 0))

    @property
    def asker(self) -> "Claim | None":
        """Which claim asks for a lease."""
        return None if self._asker is None else self._asker()

    @asker.setter
    def asker(self, claim: "Claim | None") -> None:
        self._asker = None if claim is None else ref(claim)

    @property
    def asked(self) -> int:
        """The cost of what is being asked of the store."""
        return sum(claim.ask.cost for claim in self.asking)

    def spend(self, cost: int) -> None:
        """Take `cost`; below 0 it is put back."""
        self.room -= cost
        self.spent += cost

    def more(self, cost: int, now: int, interval: int) -> int:
        """How much to lease beyond `cost`: twice as much as last time where that was used up before its time."""
        if not self.start:
            return 0  # seen for the first time
        if now < self.until and self.spent >= self.wanted:
            self.size = 2 * self.size + cost
        store_now = now + self.offset
        life = min(unit(self.quota, store_now)[1] - store_now, interval)
        self.wanted = -(-self.size * life // interval)
        return min(self.wanted, (self.beyond + self.room) // PART)

    def heeds(self, claim: "Claim", reply_now: int, remaining: int) -> bool:
        """May the reply to a claim begin it anew?"""
        if not self.on_account:
            return self.asker is claim
        # A charge that was owed or on its way meanwhile may or may not be in what remains.
        unmoved = self.turn == claim.turn and self.charges == claim.charges
        return unmoved and (reply_now, -remaining) >= self.at

    def begin(self, claim: "Claim", outcome: Outcome, reply_now: int, asked_at: int, interval: int) -> None:
        """Be good from `asked_at` on, for what the reply to a claim says of the window that it came in."""
        self.start, end = unit(self.quota, reply_now)
        self.at = reply_now, -outcome.remaining
        self.offset = reply_now - asked_at
        self.resets = reply_now + outcome.reset_after
        self.since = asked_at
        self.until = asked_at + min(end - reply_now, interval * (1 + self.on_account))
        if self.on_account:
            # What others of this process are asking for at this moment may not be charged yet.
            self.room, self.beyond = outcome.remaining - self.spent - (self.asked - claim.ask.cost), 0
        else:
            self.room, self.beyond, self.spent = self.room + claim.extra, outcome.remaining, 0

    @property
    def owes(self) -> int:
        """What goes back to the store as it ends; below 0 it is to be charged."""
        return -self.spent if self.on_account else self.room

    def end(self, now: int, interval: int) -> None:
        """Be good for nothing any more."""
        if not self.on_account:
            rate = self.spent * interval // max(min(now, self.until) - self.since, 1)
            self.size = min(rate, 2 * self.size + 1)
        self.room = self.spent = self.since = self.until = 0
        self.at = (0, 0)
        self.turn += 1

    def due(self, start: int, amount: int, interval: int) -> "Due":
        """What the store has to hear of its window at `start`, as long as it matters.

        That is in its own window, and in the next where that one looks back. One interval longer, for the store's
        time may be less than thought by as much as a call takes.
        """
        windows = ALGORITHMS[self.quota.algorithm].windows
        until = start + windows * self.quota.period - self.offset + interval
        return Due(start, self.key, self.quota, amount, until)


class Claim:
    """One ask on its way: `here` it was spent from `share`, else the store is asked for its cost and `extra`."""

    __slots__ = ("__weakref__", "ask", "charges", "extra", "here", "share", "start", "turn")

    def __init__(self, ask: Ask, share: LeaseShare | None) -> None:
        self.ask = ask
        self.share = share
        self.here = False
        self.extra = self.charges = 0
        self.start, self.turn = (share.start, share.turn) if share else (0, 0)

    @property
    def enlarged(self) -> Ask:
        """What is asked of the store."""
        return self.ask._replace(cost=self.ask.cost + self.extra)

    def outcome(self, said: Outcome | None, now: int) -> Outcome:
        """What is said of its counter: by the store, or by the share; and what is held here remains too."""
        share = self.share
        if share is None:
            return said or Outcome(True, 0, 0)
        if said is None:
            return share.outcome(now)
        return said if share.on_account else said._replace(remaining=said.remaining + share.room)


class Due(NamedTuple):
    """What the store has to hear: `amount` goes back to `key` as charged at `start`; below 0 it is charged."""

    start: int
    key: str
    quota: Quota
    amount: int
    until: int
    """The local time from which on it matters no more."""


def unit(quota: Quota, now: int) -> tuple[int, int]:
    """The window or slice in which a request at `now` counts: its start and its end."""
    width = -(-quota.period // quota.buckets) if ALGORITHMS[quota.algorithm].has_buckets else quota.period
    start = now - now % width
    return start, start + width


_UNSETTLED = -1
"""In place of a claim's `charges`: the store was asked before it knew of all charges, and its reply opens nothing."""


class LeaseLedger:
    """The shares of a process, of `most` counters at most. `interval` is in microseconds."""

    def __init__(self, interval: int, most: int) -> None:
        self.owed: list[Due] = []
        self.due_at = 0
        """No share has to be looked after before then."""
        self._interval = interval
        self._most = most
        self._shares: dict[str, LeaseShare] = {}
        self._queue: list[tuple[int, int, LeaseShare]] = []
        self._numbers = count()

    def __len__(self) -> int:
        """How many counters have a share."""
        return len(self._shares)

    def spend(self, asks: Sequence[Ask], now: int) -> Reply | None:
        """The reply where every ask can be decided here; else nothing is spent."""
        shares, outcomes, store_now = self._shares, [], 0
        for place, (key, quota, cost, _) in enumerate(asks):
            share = shares.get(key)
            if share is None or not share.fits(quota, cost, now):
                for ask in asks[:place]:
                    shares[ask.key].spend(-ask.cost)
                return None
            share.room -= cost
            share.spent += cost
            store_now = store_now or now + share.offset
            outcomes.append(share.outcome(store_now))
        return Reply(store_now, outcomes) if outcomes else None

    def look(self, asks: Sequence[Ask], now: int) -> Reply | None:
        """As `spend`, with nothing spent."""
        reply = self.spend(asks, now)
        if reply is None:
            return None
        for ask in asks:
            self._shares[ask.key].spend(-ask.cost)
        return reply._replace(outcomes=[self._shares[ask.key].outcome(reply.now) for ask in asks])

    def claim(self, asks: Sequence[Ask], now: int, claims: list[Claim]) -> None:
        """Spend here where that can be, else say what to ask of the store: in `claims`, for `conclude` to end.

        An exception may come from elsewhere at any line: what is in `claims` can be concluded then, too.
        """
        for ask in asks:
            self._claim(ask, now, claims)

    def _claim(self, ask: Ask, now: int, claims: list[Claim]) -> None:
        key, quota, cost, _ = ask
        if not cost or not shareable(quota):
            claims.append(Claim(ask, None))
            return
        share = self._shares.get(key)
        if share is None:
            if len(self._shares) >= self._most:
                claims.append(Claim(ask, None))
                return
            share = self._shares[key] = LeaseShare(key, quota)
            self._watch(share, now)
        elif share.fits(quota, cost, now):
            share.spend(cost)
            claim = Claim(ask, share)
            claim.here = True
            claims.append(claim)
            return
        elif share.on_account or share.quota != quota or not share.since <= now < share.until:
            self._end(share, now)
            share.quota, share.on_account = quota, quota.consistency == "write_back"
        claim = Claim(ask, share)
        claims.append(claim)
        share.asking.add(claim)
        if not share.on_account and share.asker is None:
            share.asker = claim
            claim.extra = share.more(cost, now, self._interval)

    def begin_asking(self, claims: Iterable[Claim], under_way: Container[str]) -> None:
        """Note which charges are still to arrive as the store is asked: those owed, and those `under_way`."""
        owed = {due.key for due in self.owed if due.amount < 0}
        for claim in claims:
            share = claim.share
            if share:
                unsettled = share.key in owed or share.key in under_way
                claim.charges = _UNSETTLED if unsettled else share.charges

    def learn(self, claim: Claim, outcome: Outcome, reply_now: int, asked_at: int) -> None:
        """Open the share that a reply gives. Its ask was charged, or cost nothing."""
        share, quota = claim.share, claim.ask.quota
        if share is None or self._shares.get(share.key) is not share or share.quota != quota:
            return
        if not share.heeds(claim, reply_now, outcome.remaining):
            return
        if share.start != unit(quota, reply_now)[0]:
            self._end(share, asked_at)
            if not claim.ask.cost:  # a look: what no decision has charged yet can't be charged afterwards
                return
            if share.on_account and share.charges != claim.charges:  # a sliding window weighs what is owed now
                return
        share.begin(claim, outcome, reply_now, asked_at, self._interval)

    def conclude(self, claims: Sequence[Claim], admitted: bool, now: int) -> None:
        """End the claims; what was spent here for a request that another counter denied is as if never spent."""
        for claim in claims:
            share = claim.share
            if share is None:
                continue
            if share.asker is claim:
                share.asker = None
            if not claim.here:
                share.asking.discard(claim)
            elif not admitted:
                if share.turn == claim.turn:
                    share.spend(-claim.ask.cost)
                else:
                    self._owe(share, claim.start, claim.ask.cost, now)

    def due(self, now: int, most: int) -> list[LeaseShare]:
        """End the leases that are due. Those on account that are, and go on: what they spent is owed now."""
        going_on = []
        for _ in range(most):
            if not self._queue or self._queue[0][0] > now:
                break
            share = self._queue[0][2]
            if self._shares.get(share.key) is share:
                if not share.on_account and now < share.until:
                    self._watch(share, share.until - self._interval)
                elif share.on_account and share.spent and now < share.until:
                    self._owe(share, share.start, -share.spent, now)
                    share.spent = 0
                    going_on.append(share)
                    self._watch(share, now)
                else:
                    active = share.until and share.spent
                    self._end(share, now)
                    if active or share.asking:
                        self._watch(share, now)
                    else:
                        del self._shares[share.key]
            heappop(self._queue)  # last: where an exception from elsewhere comes before, the share is still in it
        self.due_at = self._queue[0][0] if self._queue else 0
        return going_on

    def is_due(self, now: int) -> bool:
        """Whether a share has to be looked after."""
        return bool(self._queue) and self._queue[0][0] <= now

    def owing(self, keys: Sequence[str], now: int) -> set[str]:
        """Those of the counters of which something is owed, their shares once ended."""
        self.end(keys, now)
        wanted = set(keys)
        return {due.key for due in self.owed if due.key in wanted}

    def take_owed(
        self, now: int, keys: Iterable[str] | None = None, *, but: Container[str] = (), into: list[Due] | None = None
    ) -> list[Due]:
        """What is owed to `keys` (None: to all) `but` those, `into` that list; it is owed no longer."""
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
        """Charges to these counters have arrived, or been lost."""
        for key in keys:
            if share := self._shares.get(key):
                share.charges += 1

    def end(self, keys: Sequence[str], now: int) -> None:
        """End the shares of these counters: what has to be settled is owed."""
        for key in keys:
            if share := self._shares.get(key):
                self._end(share, now)

    def end_all(self, now: int) -> None:
        """End every share."""
        self.end(list(self._shares), now)
        self._shares.clear()
        self._queue.clear()

    def forget(self, keys: Sequence[str]) -> None:
        """Drop the shares of these counters, and what is owed: the store has forgotten them."""
        for key in keys:
            self._shares.pop(key, None)
        self.take_owed(0, keys)

    def _watch(self, share: LeaseShare, now: int) -> None:
        heappush(self._queue, (now + self._interval, next(self._numbers), share))
        self.due_at = self._queue[0][0]

    def _end(self, share: LeaseShare, now: int) -> None:
        if share.until:
            owes = share.owes
            # An exception from elsewhere may come between the two. So a charge is noted before, which may be twice, and
            # what goes back is noted afterwards, which may be never: both are the safe side.
            if owes < 0:
                self._owe(share, share.start, owes, now)
            share.end(now, self._interval)
            if owes > 0:
                self._owe(share, share.start, owes, now)

    def _owe(self, share: LeaseShare, start: int, amount: int, now: int) -> None:
        """Owe it to the store, if it still matters."""
        due = share.due(start, amount, self._interval)
        if amount and now < due.until:
            self.owed.append(due)
            share.charges += amount < 0
