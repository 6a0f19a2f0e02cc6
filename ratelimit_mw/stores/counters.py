"""The decision in Python, for counters in memory and in a shared file, and what such a store keeps of a counter.

The value of a counter is a stamp, followed by the state of its algorithm. The stamp is the time in microseconds at
which the counter is as if unused, and the share of its limit that is used (0 to 255).
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct

from ratelimit_mw.algorithms import ALGORITHMS, DECIDE_ALL, widened
from ratelimit_mw.algorithms.algorithm import USED_UP, Admit
from ratelimit_mw.model import Ask, Outcome, Quota, Row
from ratelimit_mw.stores.base import Intent

_STAMP = Struct(">QB")  # big-endian, so that values sort by their time
STAMP_SIZE = _STAMP.size
SHARE = STAMP_SIZE - 1
"""The index of the used share in a value."""

BARELY_USED = 32
"""The used share from which on a counter protects something: an eighth of the limit."""

SAMPLE = 8
"""The counters that a full store compares to drop one of them."""

MAX_SAMPLE = 32
"""The sample grows to this size if all counters in it are used up."""

_Found = tuple[Outcome, bytes | None]
"""An outcome and a state to store."""

used = itemgetter(0)
"""The used share of a counter in a sample, of which each entry is (used share, key)."""


class Counters:
    """Decides about requests, over counters that a subclass keeps. The caller holds the lock of the counters."""

    @abstractmethod
    def load(self, key: str) -> bytes:
        """The value of a counter; empty if there is none."""

    @abstractmethod
    def save(self, key: str, value: bytes, now: int) -> None:
        """Store the value of a counter. A new counter may take the place of others."""

    @abstractmethod
    def drop(self, key: str) -> None:
        """Remove a counter, if there is one."""

    def answer(self, asks: Sequence[Ask], intent: Intent, now: int) -> Sequence[Outcome]:
        """Carry out the intent on the asks at `now`. The result has outcomes only if the intent decides."""
        if intent.decides:
            return self._decide(asks, intent.commit, now)
        if intent.forget:
            for ask in asks:
                self.drop(ask.key)
            return ()
        if intent.charged_at is not None:
            self._give_back(asks, intent.charged_at, now)
        if intent.insist:
            self._charge(asks, now)
        return ()

    def _decide(self, asks: Sequence[Ask], commit: bool, now: int) -> Sequence[Outcome]:
        found: list[_Found] = []
        denied = False
        for key, quota, cost, _ in asks:  # `_ask` and `_save` without their calls: most requests take only this path
            decide = DECIDE_ALL[quota.decided_by if commit else quota.algorithm]  # a look makes no debt
            decided = decide(self.load(key)[STAMP_SIZE:], quota, cost, now)
            found.append(decided)
            if not decided[0][0]:
                denied = True
        if commit and not denied:
            for (key, quota, cost, shadow), (outcome, state) in zip(asks, found, strict=True):
                if state is not None:
                    self.save(key, stamp(quota, cost, shadow, outcome, now) + state, now)
            return [outcome for outcome, _ in found]
        return self._decide_otherwise(asks, found, commit, now, denied=denied)

    def _decide_otherwise(
        self, asks: Sequence[Ask], found: list[_Found], commit: bool, now: int, *, denied: bool
    ) -> Sequence[Outcome]:
        """Conclude a decision that does not charge every counter: one denies, or there is no `commit`."""
        if denied:
            self._leave_uncharged(asks, found, commit, now)
        charged = commit and all(outcome[0] or ask.shadow for ask, (outcome, _) in zip(asks, found, strict=True))
        if not charged:
            for place, (ask, ((allowed, _, _, _, delay), _)) in enumerate(zip(asks, found, strict=True)):
                if allowed and not (commit and ask.quota.overdraft):
                    found[place] = self._unasked(ask, delay, now)
        if commit:
            for ask, (outcome, state) in zip(asks, found, strict=True):
                if state is not None:
                    self._save(ask, outcome, state, now)
            self._count_denials(asks, found, now)
        return [outcome for outcome, _ in found]

    def _charge(self, asks: Sequence[Ask], now: int) -> None:
        for ask in asks:
            wide = ask._replace(quota=widened(ask.quota))
            room = self._ask(wide, 0, now)[0].remaining
            _, state = self._ask(wide, min(ask.cost, room), now)
            if state is not None:
                outcome, _ = DECIDE_ALL[ask.quota.decided_by](state, ask.quota, 0, now)
                self._save(ask, outcome, state, now)

    def _ask(self, ask: Ask, cost: int, now: int) -> _Found:
        key, quota, _, _ = ask
        return DECIDE_ALL[quota.decided_by](self.load(key)[STAMP_SIZE:], quota, cost, now)

    def _unasked(self, ask: Ask, delay: int, now: int) -> _Found:
        """The outcome and the state if nothing is charged. `delay` is what the request would have had to wait."""
        outcome, state = self._ask(ask, 0, now)
        return (outcome._replace(delay=delay) if delay else outcome), state

    def _leave_uncharged(self, asks: Sequence[Ask], found: list[_Found], commit: bool, now: int) -> None:
        """Leave uncharged the asks that the penalty of a shadow rule would have denied.

        The ask for a penalty stands before the asks that it watches, and its cost is their number.
        """
        for place, (_, quota, watched, shadow) in enumerate(asks):
            if shadow and not found[place][0].allowed and ALGORITHMS[quota.algorithm].count_denial:
                for behind in range(place + 1, place + 1 + watched):
                    if not (commit and asks[behind].quota.overdraft):
                        found[behind] = self._ask(asks[behind], 0, now)

    def _count_denials(self, asks: Sequence[Ask], found: list[_Found], now: int) -> None:
        """Count the denial for each penalty that does not deny, if a counter that it watches has denied."""
        for place, ask in enumerate(asks):
            key, quota, watched, _ = ask
            count = ALGORITHMS[quota.algorithm].count_denial
            if not count or not quota.limit or not found[place][0].allowed:
                continue
            if not all(outcome.allowed for outcome, _ in found[place + 1 : place + 1 + watched]):
                outcome, state = count(self.load(key)[STAMP_SIZE:], quota, now)
                self._save(ask, outcome, state, now)
                found[place] = outcome, state

    def _give_back(self, asks: Sequence[Ask], charged_at: int, now: int) -> None:
        for key, quota, cost, _ in asks:
            stored = self.load(key)
            state = ALGORITHMS[quota.algorithm].refund(stored[STAMP_SIZE:], quota, cost, charged_at, now)
            if state is not None:
                expires, share = _STAMP.unpack_from(stored)
                size = quota.burst or quota.limit or 1
                self.save(key, _STAMP.pack(expires, min(max(share - USED_UP * cost // size, 0), USED_UP)) + state, now)

    def _save(self, ask: Ask, outcome: Outcome, state: bytes, now: int) -> None:
        key, quota, cost, shadow = ask
        self.save(key, stamp(quota, cost, shadow, outcome, now) + state, now)


def stamp(quota: Quota, cost: int, shadow: bool, outcome: Outcome, now: int) -> bytes:
    """The stamp of a counter after a decision with this outcome at `now`."""
    _, remaining, reset_after, _, _ = outcome
    if remaining < cost:  # the next such request is denied
        share = USED_UP
    else:
        size = quota.burst or quota.limit or 1
        share = USED_UP * (size - remaining) // size if remaining < size else 0
    if shadow:
        share //= 2  # a shadow counter protects nothing, so enforced ones stay longer
    return _STAMP.pack(now + reset_after, share)


Decided = tuple[Row, bytes | None]
"""An outcome, and the value of the counter to store, if it changes."""

Step = Callable[[bytes, int], Decided]
"""Decides on a request by one counter: (value of the counter, now) → outcome and value."""


def deciding(quota: Quota, cost: int, shadow: bool) -> Step:
    """Compile the decision on requests of this cost that their `Admit` does not admit."""
    decide = DECIDE_ALL[quota.decided_by]

    def step(value: bytes, now: int) -> Decided:
        outcome, state = decide(value[STAMP_SIZE:], quota, cost, now)
        return outcome, None if state is None else stamp(quota, cost, shadow, outcome, now) + state

    return step


def deciding_uncharged(quota: Quota, cost: int, shadow: bool) -> Step:
    """Compile the decision on requests of this cost that another counter denies: this one is not charged.

    Only an overdraft is. A counter that has room is asked once, at no cost: it would admit the request, unless requests
    wait for their turn.
    """
    waits = quota.longest_wait or ALGORITHMS[quota.algorithm].queue
    decide, certain = DECIDE_ALL[quota.decided_by], not (waits or quota.overdraft)

    def step(value: bytes, now: int) -> Decided:
        before = value[STAMP_SIZE:]
        outcome, state = decide(before, quota, 0, now)
        if not (certain and outcome[0] and outcome[1] >= cost):
            uncharged = outcome, state
            outcome, state = decide(before, quota, cost, now)
            if outcome[0] and not quota.overdraft:
                delay = outcome[4]
                outcome, state = uncharged
                outcome = outcome._replace(delay=delay) if delay else outcome
        return outcome, None if state is None else stamp(quota, cost, shadow, outcome, now) + state

    return step


def shadowed(admit: Admit) -> Admit:
    """The `Admit` of a shadow counter, whose used share is half of that of an enforced one. See `stamp`."""

    def admit_shadow(value: bytes, now: int) -> tuple[Row, bytes] | None:
        admitted = admit(value, now)
        if admitted is None:
            return None
        row, after = admitted
        return row, b"%b%c%b" % (after[:SHARE], after[SHARE] // 2, after[STAMP_SIZE:])

    return admit_shadow


def first_unexpired(now: int) -> bytes:
    """The values of counters that have expired at `now` sort before this text."""
    return (now + 1).to_bytes(8)


def evicted(sample: list[tuple[int, str]]) -> tuple[int, str]:
    """The counter that a full store drops, of a sample of unexpired counters.

    A counter that is barely used goes first. Otherwise it is the least used counter, or one of the most frequent kind.
    Counters of one kind have the same rule and attribute. If most counters of a store are used up, one kind probably
    floods it: a client invents values of an attribute, and a few requests exhaust each counter. If the least used
    counter were dropped then, the counters of other rules would be lost as soon as they are used a little.
    """
    least = min(sample, key=used)
    if least[0] < BARELY_USED:
        return least
    kinds = [key.partition("=")[0] for _, key in sample]
    frequent = max(set(kinds), key=kinds.count)
    if least[0] < USED_UP and 4 * kinds.count(frequent) < 3 * len(kinds):
        return least
    return min((one for one, kind in zip(sample, kinds, strict=True) if kind == frequent), key=used)
