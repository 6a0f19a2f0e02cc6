"""The book of a process's shares: which there are, when to look after them, what is owed. No I/O and no lock."""

from collections.abc import Container, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count

from ratelimit_mw.model import Ask, Outcome, Reply
from ratelimit_mw.stores.leases.share import Claim, Due, Share, shareable, unit

_UNSETTLED = -1
"""In place of a claim's `charges`: the store was asked before it knew of all charges, and its reply opens nothing."""


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
            share = self._shares[key] = Share(key, quota)
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

    def due(self, now: int, most: int) -> list[Share]:
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

    def _watch(self, share: Share, now: int) -> None:
        heappush(self._queue, (now + self._interval, next(self._numbers), share))
        self.due_at = self._queue[0][0]

    def _end(self, share: Share, now: int) -> None:
        if share.until:
            owes = share.owes
            # An exception from elsewhere may come between the two. So a charge is noted before, which may be twice, and
            # what goes back is noted afterwards, which may be never: both are the safe side.
            if owes < 0:
                self._owe(share, share.start, owes, now)
            share.end(now, self._interval)
            if owes > 0:
                self._owe(share, share.start, owes, now)

    def _owe(self, share: Share, start: int, amount: int, now: int) -> None:
        """Owe it to the store, if it still matters."""
        due = share.due(start, amount, self._interval)
        if amount and now < due.until:
            self.owed.append(due)
            share.charges += amount < 0
