"""Shares: what a process may admit of a counter without asking the store. No I/O and no lock; time is a parameter.

A share is good for the window or slice that it was taken in, and for an interval or two at most. A `lease` is
charged before it is spent, and what is left of it goes back. A share on account (`write_back`) is what the store
last knew to remain, and what was spent of it is charged afterwards.

Two clocks meet here. Local time is when a request came; the store's is then at most `offset` later, for that is
counted from before the store was asked. So a share ends early rather than late.
"""

from collections.abc import Container, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from ratelimit_mw.model import Ask, Outcome, Quota, Reply

PART = 8
"""A lease takes one in so many of what remains at most, so that it does not starve other processes."""

KINDS = {
    "lease": frozenset({"fixed_window", "sliding_window", "bucketed_window"}),
    "write_back": frozenset({"fixed_window", "sliding_window"}),
}
"""The algorithms that can be kept so: those by which a request counts the same wherever in its window it comes."""


_UNSETTLED = -1
"""In place of a claim's `charges`: the store was asked before it knew of all charges, and its reply opens nothing."""


class Share:
    """The share of one counter: `room` can still be spent, `spent` was."""

    __slots__ = (
        "asked",
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
        self.asking = False  # a lease is being asked for
        self.asked = 0  # the cost of what is being asked of the store

    def fits(self, quota: Quota, cost: int, now: int) -> bool:
        """May it spend `cost`?"""
        return cost <= self.room and self.since <= now < self.until and (quota is self.quota or quota == self.quota)

    def outcome(self, store_now: int) -> Outcome:
        """What there is to say of the counter."""
        return Outcome(True, self.beyond + self.room, max(self.resets - store_now, 0))


class Claim:
    """One ask on its way: `here` it was spent from `share`, else the store is asked for its cost and `extra`."""

    __slots__ = ("ask", "asker", "charges", "extra", "here", "share", "start", "turn")

    def __init__(self, ask: Ask, share: Share | None) -> None:
        self.ask = ask
        self.share = share
        self.here = self.asker = False
        self.extra = self.charges = 0
        self.start, self.turn = (share.start, share.turn) if share else (0, 0)

    @property
    def enlarged(self) -> Ask:
        """What is asked of the store."""
        return self.ask._replace(cost=self.ask.cost + self.extra)


class Due(NamedTuple):
    """What the store has to hear: `amount` goes back to `key` as charged at `start`; below 0 it is charged."""

    start: int
    key: str
    quota: Quota
    amount: int
    until: int
    """The local time from which on it matters no more."""


class Book:
    """The shares of a process, of `most` counters at most. `interval` is in microseconds."""

    def __init__(self, interval: int, most: int) -> None:
        self.owed: list[Due] = []
        self.due_at = 0
        """No share has to be looked after before then."""
        self._interval = interval
        self._most = most
        self._shares: dict[str, Share] = {}
        self._queue: list[tuple[int, int, Share]] = []
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
                    _put_back(shares[ask.key], ask.cost)
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
            _put_back(self._shares[ask.key], ask.cost)
        return reply._replace(outcomes=[self._shares[ask.key].outcome(reply.now) for ask in asks])

    def claim(self, ask: Ask, now: int) -> Claim:
        """Spend here where that can be, else say what to ask of the store."""
        key, quota, cost, _ = ask
        if not cost or quota.algorithm not in KINDS.get(quota.consistency, ()):
            return Claim(ask, None)
        share = self._shares.get(key)
        if share is None:
            if len(self._shares) >= self._most:
                return Claim(ask, None)
            share = self._shares[key] = Share(key, quota)
            self._watch(share, now)
        elif share.fits(quota, cost, now):
            claim = Claim(ask, share)
            claim.here = True
            share.room -= cost
            share.spent += cost
            return claim
        elif share.on_account or share.quota != quota or not share.since <= now < share.until:
            self._end(share, now)
            share.quota, share.on_account = quota, quota.consistency == "write_back"
        share.asked += cost
        claim = Claim(ask, share)
        if not share.on_account and not share.asking:
            claim.asker = share.asking = True
            claim.extra = self._extra(share, cost, now)
        return claim

    def _extra(self, share: Share, cost: int, now: int) -> int:
        """How much to lease beyond `cost`: twice as much as last time where that was used up before its time."""
        if not share.start:
            return 0  # seen for the first time
        if now < share.until and share.spent >= share.wanted:
            share.size = 2 * share.size + cost
        store_now = now + share.offset
        life = min(_unit(share.quota, store_now)[1] - store_now, self._interval)
        share.wanted = -(-share.size * life // self._interval)
        return min(share.wanted, (share.beyond + share.room) // PART)

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
        share, quota, remaining = claim.share, claim.ask.quota, outcome.remaining
        if share is None or self._shares.get(share.key) is not share or share.quota != quota:
            return
        if share.on_account:
            # A charge that was owed or on its way meanwhile may or may not be in what remains.
            moved = share.turn != claim.turn or share.charges != claim.charges
            if moved or (reply_now, -remaining) < share.at:
                return
        elif not claim.asker:
            return
        start, end = _unit(quota, reply_now)
        if share.start != start:
            self._end(share, asked_at)
            if not claim.ask.cost:  # a look: what no decision has charged yet can't be charged afterwards
                return
            if share.on_account and share.charges != claim.charges:  # a sliding window weighs what is owed now
                return
        share.start = start
        share.at = reply_now, -remaining
        share.offset = reply_now - asked_at
        share.resets = reply_now + outcome.reset_after
        share.since = asked_at
        share.until = asked_at + min(end - reply_now, self._interval * (1 + share.on_account))
        if share.on_account:
            # What others of this process are asking for at this moment may not be charged yet.
            share.room, share.beyond = remaining - share.spent - (share.asked - claim.ask.cost), 0
        else:
            share.room, share.beyond, share.spent = share.room + claim.extra, remaining, 0

    def conclude(self, claims: Sequence[Claim], admitted: bool, now: int) -> None:
        """End the claims; what was spent here for a request that another counter denied is as if never spent."""
        for claim in claims:
            share = claim.share
            if share is None:
                continue
            if claim.asker:
                share.asking = False
            if not claim.here:
                share.asked -= claim.ask.cost
            elif not admitted:
                if share.turn == claim.turn:
                    _put_back(share, claim.ask.cost)
                else:
                    self._owe(share, claim.start, claim.ask.cost, now)

    def due(self, now: int, most: int) -> list[Share]:
        """End the leases that are due. Those on account that are, and go on: what they spent is owed now."""
        going_on = []
        for _ in range(most):
            if not self._queue or self._queue[0][0] > now:
                break
            share = heappop(self._queue)[2]
            if self._shares.get(share.key) is not share:
                continue
            if not share.on_account and now < share.until:
                self._watch(share, share.until - self._interval)
                continue
            if share.on_account and share.spent and now < share.until:
                self._owe(share, share.start, -share.spent, now)
                share.spent = 0
                going_on.append(share)
            else:
                active = share.until and share.spent
                self._end(share, now)
                if not active and not share.asked:
                    del self._shares[share.key]
                    continue
            self._watch(share, now)
        self.due_at = self._queue[0][0] if self._queue else 0
        return going_on

    def owing(self, keys: Sequence[str], now: int) -> set[str]:
        """Those of the counters of which something is owed, their shares once ended."""
        self.end(keys, now)
        wanted = set(keys)
        return {due.key for due in self.owed if due.key in wanted}

    def take_owed(self, now: int, keys: Iterable[str] | None = None, *, but: Container[str] = ()) -> list[Due]:
        """What is owed to `keys` (None: to all) `but` those; it is owed no longer."""
        wanted = None if keys is None else set(keys)
        taken: list[Due] = []
        left: list[Due] = []
        for due in self.owed:
            (taken if (wanted is None or due.key in wanted) and due.key not in but else left).append(due)
        self.owed = left
        return [due for due in taken if now < due.until]

    def charged(self, keys: Iterable[str]) -> None:
        """Charges to these counters have arrived, or been lost."""
        for key in keys:
            share = self._shares.get(key)
            if share:
                share.charges += 1

    def end(self, keys: Sequence[str], now: int) -> None:
        """End the shares of these counters: what has to be settled is owed."""
        for key in keys:
            share = self._shares.get(key)
            if share:
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

    def _watch(self, share: Share, now: int) -> None:
        heappush(self._queue, (now + self._interval, next(self._numbers), share))
        self.due_at = self._queue[0][0]

    def _end(self, share: Share, now: int) -> None:
        if not share.until:
            return
        if share.on_account:
            self._owe(share, share.start, -share.spent, now)
        else:
            self._owe(share, share.start, share.room, now)
            lived = min(now, share.until) - share.since
            rate = share.spent * self._interval // max(lived, 1)
            share.size = min(rate, 2 * share.size + 1)
        share.room = share.spent = share.since = share.until = 0
        share.at = (0, 0)
        share.turn += 1

    def _owe(self, share: Share, start: int, amount: int, now: int) -> None:
        """Owe it to the store as long as it matters: in its own window, and in the next where that one looks back.

        One interval longer, for the store's time may be less than thought by as much as a call takes.
        """
        windows = 1 if share.quota.algorithm == "fixed_window" else 2
        until = start + windows * share.quota.period - share.offset + self._interval
        if amount and now < until:
            self.owed.append(Due(start, share.key, share.quota, amount, until))
            share.charges += amount < 0


def _put_back(share: Share, cost: int) -> None:
    share.room += cost
    share.spent -= cost


def _unit(quota: Quota, now: int) -> tuple[int, int]:
    """The window or slice in which a request at `now` counts: its start and its end."""
    width = -(-quota.period // quota.buckets) if quota.algorithm == "bucketed_window" else quota.period
    start = now - now % width
    return start, start + width
