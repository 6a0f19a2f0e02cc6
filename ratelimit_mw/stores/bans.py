"""Bans: the store is also asked for the penalty of a client, which denies all counters that it watches."""

from collections.abc import Callable, Sequence
from typing import Any

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.model import NEVER, Ask, Banned, Outcome, Reply
from ratelimit_mw.stores.base import LRU, Call, Store, StoreRequest, Taker, Wrapper, forget_request

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

    def taker(self, asks: Sequence[Ask]) -> Taker | None:
        """See `Store`."""
        return self.beneath.taker(asks) if _with_penalties(asks) is asks else super().taker(asks)

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
