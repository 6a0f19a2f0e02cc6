"""Shares: what a process may admit of a counter without asking the store. No I/O and no lock; time is a parameter.

A share is good for the window or slice that it was taken in, and for an interval or two at most. A `lease` is
charged before it is spent, and what is left of it goes back. A share on account (`write_back`) is what the store
last knew to remain, and what was spent of it is charged afterwards.

Two clocks meet here. Local time is when a request came; the store's is then at most `offset` later, for that is
counted from before the store was asked. So a share ends early rather than late.
"""

from typing import NamedTuple
from weakref import WeakSet, ref

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.model import Ask, Outcome, Quota

PART = 8
"""A lease takes one in so many of what remains at most, so that it does not starve other processes."""


def shareable(quota: Quota) -> bool:
    """May a process decide by itself? With `consistency`, and where the algorithm can be kept so."""
    if quota.consistency == "strict":
        return False
    algorithm = ALGORITHMS[quota.algorithm]
    return not (algorithm.no_lease if quota.consistency == "lease" else algorithm.no_write_back)


class Share:
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

    def __init__(self, ask: Ask, share: Share | None) -> None:
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
