"""What denies in front of the counters: `Bans`, by the penalties of clients, and `DenyCache`, by earlier denials.

A penalty denies all counters that it watches. A counter that is known to be exhausted denies without a call to the
store.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.clock import Clock
from ratelimit_mw.model import NEVER, SECOND, Ask, Banned, Outcome, Quota, Reply
from ratelimit_mw.stores.base import (
    DECIDE,
    Call,
    Decider,
    Denied,
    ReplyFields,
    Store,
    StoreRequest,
    Wrapper,
    forget_request,
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRU(OrderedDict[K, V]):
    """At most `most` values by key. The entry that was put longest ago is dropped first, one at a time.

    It is safe to use from several threads; at worst, an entry is dropped too early. Keys must be hashed and compared
    without Python code, as texts and tuples of texts are: a thread switch inside such code would corrupt an
    OrderedDict. `get` is the method of the dict itself, because it is on the hot path.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> None:
        """Store `value` as the newest entry."""
        self.pop(key, None)  # so that the key becomes the newest
        self[key] = value
        while len(self) > self._most:
            self.popitem(last=False)


_MAX_CACHED = 4096  # clients whose asks with penalties are cached

BanBegun = Callable[[Ask, int, int], None]
"""Is called for each ban that begins, with its ask, its duration and the time. Both are in microseconds."""


class Bans(Wrapper):
    """Adds to each request the asks for the penalties of its counters. They stand before these counters.

    While a penalty denies, its counters deny with a `Banned` outcome and are not charged. Otherwise the store counts
    the denials of these counters. A rule has one penalty for each identity, which watches all its counters of this
    identity. In a cluster, it is in the same slot as the counters. A look counts no denial. A counter that is
    forgotten loses its penalty.

    Args:
        store: the store to ask.
        begun: is called for each ban that begins.
    """

    def __init__(self, store: Store, begun: BanBegun) -> None:
        super().__init__(store)
        self._begun = begun
        self._asked: LRU[str, tuple[Sequence[Ask], Sequence[Ask]]] = LRU(_MAX_CACHED)

    def asked(self, request: StoreRequest) -> Call:
        """Add the asks for penalties. The note is the request; None if there is no penalty."""
        asks, intent = request
        if intent.forget:
            keys = [ask.key for ask in asks]
            return forget_request([*keys, *dict.fromkeys(map(key_of_ban, keys))]), None
        if not intent.decides:
            return request, None
        asked = self._with_penalties(asks)
        return ((asked, intent), asks) if len(asked) > len(asks) else (request, None)

    def decider(self, asks: Sequence[Ask]) -> Decider | None:
        """See `Store`."""
        return self.beneath.decider(asks) if _with_penalties(asks) is asks else super().decider(asks)

    def answered(self, asked: StoreRequest, note: Any, reply: Reply) -> Reply:  # noqa: ARG002  all asks are in `asked`
        """Remove the outcomes of the penalties, and deny the counters whose penalty denies."""
        outcomes: list[Outcome] = []
        lasts = watched = 0
        for ask, outcome in zip(asked[0], reply.outcomes, strict=True):
            if _is_penalty(ask):
                lasts, watched = outcome.retry_after, ask.cost
                if has_begun(outcome):
                    self._begun(ask, lasts, reply.now)
            else:
                outcomes.append(_banned(outcome, lasts) if lasts and watched > 0 else outcome)
                watched -= 1
        return reply._replace(outcomes=outcomes)

    def _with_penalties(self, asks: Sequence[Ask]) -> Sequence[Ask]:
        """See the function. Cached, because the next request of a client has the same tuple."""
        if not asks or not isinstance(asks, tuple):  # the content of a list may change
            return _with_penalties(asks)
        known = self._asked.get(asks[0].key)
        if known is None or known[0] is not asks:
            known = asks, _with_penalties(asks)
            self._asked.put(asks[0].key, known)
        return known[1]


def key_of_ban(key: str) -> str:
    """The key of the penalty of the counter with this key, if there is one."""
    stem, brace, identity = key.partition("{")
    return f"{stem.rsplit(':', 2)[0]}:ban:{brace}{identity}"


def has_begun(outcome: Outcome) -> bool:
    """Whether `outcome` is that of a penalty that begins with this request."""
    return outcome.allowed and outcome.retry_after > 0


def asked_again(asks: Sequence[Ask], outcomes: Sequence[Outcome]) -> Sequence[Ask]:
    """`asks` for a second call after these outcomes, which must not count what the first one has counted.

    A penalty that has counted a denial watches no counter in them, and an overdraft was charged.
    """
    return [
        ask._replace(cost=0)
        if ask.quota.overdraft
        or (_is_penalty(ask) and not all(outcome.allowed for outcome in outcomes[place + 1 : place + 1 + ask.cost]))
        else ask
        for place, ask in enumerate(asks)
    ]


def _is_penalty(ask: Ask) -> bool:
    return ALGORITHMS[ask.quota.algorithm].count_denial is not None


def _banned(outcome: Outcome, lasts: int) -> Banned:
    """The outcome of a counter while its penalty denies for `lasts`. Its wait is the longer one of the two."""
    wait = outcome.retry_after
    banned = Banned(False, 0, max(outcome.reset_after, lasts), NEVER if wait == NEVER else max(wait, lasts))
    banned.lasts = lasts
    return banned


def _with_penalties(asks: Sequence[Ask]) -> Sequence[Ask]:
    """`asks` with each penalty before the counters that it watches. The cost of its ask is their number."""
    if all(ask.quota.penalty is None for ask in asks):
        return asks
    asked: list[Ask] = []
    at: dict[str, int] = {}
    for ask in asks:
        penalty = ask.quota.penalty
        if penalty is not None:
            key = penalty.prefix + ask.key.partition("{")[2]
            if key not in at:
                at[key] = len(asked)
                asked.append(Ask(key, penalty.quota, 0, ask.shadow))
            asked[at[key]] = asked[at[key]]._replace(cost=len(asked) - at[key])
        asked.append(ask)
    return asked


_MAX_AGE = 5 * SECOND
"""The longest time for which a denial is cached. A reset by another process takes effect within this time."""


class _KnownDenial(NamedTuple):
    """A denial by one counter. Times are local, in microseconds.

    Attributes:
        since, until: the times between which the denial is certain.
        opens: the time from which a request of the same cost is admitted; `NEVER` if it never is.
        resets: the time at which the counter is as if unused.
        remaining: what was left of the counter, which may be more than 0 if the request asked for more.
        cost: the cost of the denied request.
        quota: the quota of the counter.
        counted: whether a penalty that is not in force yet counts such denials. The store must then be asked.
        penalised: the time until which a penalty denies every request; 0 if the counter denies by itself.
    """

    since: int
    until: int
    opens: int
    resets: int
    remaining: int
    cost: int
    quota: Quota
    counted: bool
    penalised: int

    def holds(self, quota: Quota, cost: int, now: int) -> bool:
        """Whether the denial is certain for this ask at `now`. A request of another cost has another wait."""
        if self.counted or self.penalised:  # until a reload changes the penalty
            same = quota.penalty == self.quota.penalty
        else:
            same = cost == self.cost and quota == self.quota
        return same and self.since <= now < self.until

    def applied(self, quota: Quota, cost: int) -> tuple[int, int]:
        """When this ask opens, and when its counter is reset.

        A counter may deny for longer than its penalty. For another cost or quota, this is not known.
        """
        if cost == self.cost and quota == self.quota:
            return self.opens, self.resets
        return self.penalised, self.penalised


class DenyCache(Wrapper):
    """Denies a request without a call to `store` if one of its counters is known to deny it.

    Such a denial is certain, because only three things can open a counter, and each is noticed:

    * Time. The denial is cached for the `retry_after` of the store, from before the store was asked.
    * A reset or a refund by the app. In this process it drops the denial; by another process, it takes effect
      within five seconds.
    * Another quota. The quotas are compared.

    The store is always asked in these cases:

    * A response may open the counter (`refundable`).
    * Only shadow asks are denied.
    * Another counter takes a cost with an overdraft.
    * Denials are counted towards a penalty that is not in force yet.

    Args:
        store: the store to ask.
        clock: the user's clock; None for the system's.
        most: the most counters whose denials are cached.
    """

    def __init__(self, store: Store, *, clock: Clock | None = None, most: int = 65_536) -> None:
        super().__init__(store)
        self._clock = clock
        self._ticks, self._per_microsecond = (clock.now, 1) if clock else (time.monotonic_ns, 1000)
        self._denials: LRU[str, _KnownDenial] = LRU(most)
        self._offset = 0

    def reply_to(self, request: StoreRequest, denied: Denied | None = None) -> Awaitable[ReplyFields]:
        """See `Store`. If no cached denial is certain, this takes no coroutine here."""
        asks, intent = request
        if intent is not DECIDE or self._clock or denied:
            return super().reply_to(request, denied)
        if self._denials and (known := self._known(asks, time.monotonic_ns() // 1000)):
            return self._carried_out(known)
        return self.beneath.reply_to(request, self._learn)

    def asked(self, request: StoreRequest) -> Call | Reply:
        """Deny the request if a cached denial is certain. The reply then has the outcome of this counter alone.

        The note is the local time of the call, in ticks of the clock.
        """
        asked_at = self._ticks()
        if self._denials and request[1] is DECIDE:
            known = self._known(request[0], asked_at // self._per_microsecond)
            if known is not None:
                return known
        return request, asked_at

    def answered(self, asked: StoreRequest, note: Any, reply: Reply) -> Reply:
        """Cache new denials, and drop those of counters that were reset or refunded."""
        asks, intent = asked
        if intent is DECIDE or intent.decides:
            for outcome in reply[1]:
                if not outcome[0]:  # it denies
                    self._learn(asks, note // self._per_microsecond, reply, charged=intent.commit)
                    break
        elif not intent.insist:
            for ask in asks:
                self._denials.pop(ask.key, None)
        return reply

    def _known(self, asks: Sequence[Ask], now: int) -> Reply | None:
        """The reply that denies the request, from the cached denials; None if none is certain.

        Of several denials, the one that opens last is returned.
        """
        found: tuple[int, int] | None = None
        only, remaining, kind = 0, 0, Outcome
        for place, (key, quota, cost, shadow) in enumerate(asks):
            denial = self._denials.get(key)
            if denial and not shadow and denial.holds(quota, cost, now):
                if denial.counted:
                    return None
                applied = denial.applied(quota, cost)
                if found is None or _comparable(applied[0]) > _comparable(found[0]):
                    found, only, remaining = applied, place, denial.remaining
                    kind = Banned if denial.penalised else Outcome
            elif cost:
                if denial:  # what is left changes if the store charges this cost
                    self._denials.pop(key, None)
                if quota.overdraft:  # it is charged, whatever the others say
                    return None
        if found is None:
            return None
        opens, resets = found
        retry_after = opens - now if opens != NEVER else NEVER
        outcome = kind(False, remaining, max(resets - now, 0), retry_after)
        return Reply(now + self._offset, (outcome,), only=only)

    def _learn(self, asks: Sequence[Ask], asked_at: int, reply: Reply, *, charged: bool = True) -> None:
        """Cache the denials of a reply. An overdraft that was not `charged` still has to be."""
        answered_at = self._ticks() // self._per_microsecond
        self._offset = reply.now - answered_at
        learnt: list[tuple[str, _KnownDenial]] = []
        longest = longest_cached = 0.0
        for (key, quota, cost, shadow), outcome in zip(asks, reply.outcomes, strict=True):
            if shadow or outcome.allowed or (quota.overdraft and not charged):
                continue
            lasts = outcome.lasts if isinstance(outcome, Banned) else 0
            counted = quota.penalty is not None and not lasts
            certain = lasts or (outcome.retry_after if counted or not quota.refundable else 0)
            if not counted:
                longest = max(longest, _comparable(outcome.retry_after))
            if certain:
                # The store decided at an unknown time during the call. The denial therefore ends at the earliest
                # possible time, and the client is shown the latest.
                until = asked_at + (_MAX_AGE if certain == NEVER else min(certain, _MAX_AGE))
                opens = NEVER if outcome.retry_after == NEVER else answered_at + outcome.retry_after
                resets, penalised = answered_at + outcome.reset_after, lasts and answered_at + lasts
                left = outcome.remaining
                denial = _KnownDenial(asked_at, until, opens, resets, left, cost, quota, counted, penalised)
                learnt.append((key, denial))
                longest_cached = longest_cached if counted else max(longest_cached, _comparable(outcome.retry_after))
        for key, denial in learnt:
            # If a counter whose denial is not cached denies longest, only the store knows the wait.
            if denial.counted or longest_cached >= longest:
                self._denials.put(key, denial)


def _comparable(time_or_never: int) -> float:
    """A time or a wait as a number to compare: `NEVER` is greater than all others."""
    return math.inf if time_or_never == NEVER else time_or_never
