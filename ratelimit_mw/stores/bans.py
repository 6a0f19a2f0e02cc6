"""Bans: the store is also asked for the ban of a client, which denies all counters that it watches."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ratelimit_mw.model import NEVER, Ask, Ban, Banned, Outcome, Quota, Reply
from ratelimit_mw.stores.base import LRU, Call, Store, StoreRequest, Taker, Wrapper, forget_request

_MAX_CACHED = 4096  # clients whose asks with bans are cached

BanBegun = Callable[[Ask, int, int, int], None]
"""Is called for each ban that begins, with its ask, its number in a row of bans, its duration and the time.

Both are in microseconds.
"""


class Bans(Wrapper):
    """Adds to each request the asks for the bans that watch its counters. They stand before these counters.

    While a ban is in force, its counters deny with a `Banned` outcome and are not charged. Otherwise the store counts
    the denials of these counters. A rule has one ban for each identity, which watches all its counters of this
    identity. In a cluster, the ban is in the same slot as the counters. A look counts no denial. A counter that is
    forgotten loses its ban.

    Args:
        store: the store to ask.
        begun: is called for each ban that begins.
    """

    def __init__(self, store: Store, begun: BanBegun) -> None:
        super().__init__(store)
        self._begun = begun
        self._asked: LRU[str, tuple[Sequence[Ask], Sequence[Ask]]] = LRU(_MAX_CACHED)

    def asked(self, request: StoreRequest) -> Call:
        """Add the asks for bans. The note is the complete list of asks; None if there is no ban among them."""
        asks, intent = request
        if intent.forget:
            return forget_request(_with_ban_keys([ask.key for ask in asks])), None
        if not intent.decides:
            return request, None
        asked = self._with_bans(asks)
        if len(asked) == len(asks):
            return request, None
        return (asked, intent), asked

    def taker(self, asks: Sequence[Ask]) -> Taker | None:
        """See `Store`."""
        return self.beneath.taker(asks) if _with_bans(asks) is asks else super().taker(asks)

    def answered(self, asked: StoreRequest, note: Any, reply: Reply) -> Reply:  # noqa: ARG002  the note has the asks
        """Remove the outcomes of the bans, and deny the counters whose ban is in force."""
        return self._without_bans(note, reply)

    def _with_bans(self, asks: Sequence[Ask]) -> Sequence[Ask]:
        """`asks` with the asks for their bans. Cached, because the next request of a client has the same tuple."""
        if not asks or not isinstance(asks, tuple):  # the content of a list may change
            return _with_bans(asks)
        known = self._asked.get(asks[0].key)
        if known is None or known[0] is not asks:
            known = asks, _with_bans(asks)
            self._asked.put(asks[0].key, known)
        return known[1]

    def _without_bans(self, asked: Sequence[Ask], reply: Reply) -> Reply:
        """The reply for the counters alone, with `Banned` outcomes where a ban is in force."""
        outcomes: list[Outcome] = []
        ban, watched = None, 0
        if reply.only is not None:
            bans = sum(ask.quota.algorithm == "ban" for ask in asked[: reply.only])
            return reply._replace(only=reply.only - bans)
        for ask, outcome in zip(asked, reply.outcomes, strict=True):
            if ask.quota.algorithm == "ban":
                ban, watched = None if outcome.allowed else outcome, ask.cost
                if has_begun(outcome):
                    self._begun(ask, outcome.delay, outcome.retry_after, reply.now)
            else:
                outcomes.append(outcome if ban is None or watched <= 0 else banned(outcome, ban))
                watched -= 1
        return reply._replace(outcomes=outcomes)


def key_of_ban(key: str) -> str:
    """The key of the ban that watches the counter with this key, if there is one."""
    stem, brace, identity = key.partition("{")
    return f"{stem.rsplit(':', 2)[0]}:ban:{brace}{identity}"


@lru_cache(maxsize=1024)
def quota_of(ban: Ban) -> Quota:
    """The quota with which a store is asked for this ban."""
    return Quota("ban", ban.after, ban.within, ban=ban)


def has_begun(outcome: Outcome) -> bool:
    """Whether `outcome` is that of a ban that begins with this request."""
    return not outcome.allowed and outcome.delay > 0


def banned(outcome: Outcome, ban: Outcome) -> Banned:
    """The outcome of a counter while `ban` is in force. Its wait is the longer one of the two."""
    end, own = ban.retry_after, outcome.retry_after
    return Banned(False, 0, max(outcome.reset_after, end), NEVER if own == NEVER else max(own, end))


def without_counted_denials(asks: Sequence[Ask], outcomes: Sequence[Outcome]) -> Sequence[Ask]:
    """`asks` for a second call after these outcomes. A ban that has counted a denial watches no counter in them.

    Otherwise the second call would count the same denial again.
    """
    return [
        ask._replace(cost=0) if ask.quota.algorithm == "ban" and _has_counted(ask, outcomes[place + 1 :]) else ask
        for place, ask in enumerate(asks)
    ]


def _has_counted(ban: Ask, behind: Sequence[Outcome]) -> bool:
    return not all(outcome.allowed for outcome in behind[: ban.cost])


def _with_bans(asks: Sequence[Ask]) -> Sequence[Ask]:
    """`asks` with the bans before the counters that they watch. The cost of a ban is the number of these counters."""
    if all(ask.quota.ban is None for ask in asks):
        return asks
    asked: list[Ask] = []
    at: dict[str, int] = {}
    for ask in asks:
        ban = ask.quota.ban
        if ban is not None:
            key = ban.prefix + ask.key.partition("{")[2]
            if key not in at:
                at[key] = len(asked)
                asked.append(Ask(key, quota_of(ban), 0, ask.shadow))
            asked[at[key]] = asked[at[key]]._replace(cost=len(asked) - at[key])
        asked.append(ask)
    return asked


def _with_ban_keys(keys: Sequence[str]) -> Sequence[str]:
    return [*keys, *dict.fromkeys(map(key_of_ban, keys))]
