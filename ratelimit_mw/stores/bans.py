"""Bans: what a store is also asked where a rule bans, and what its counters answer to a banned client."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ratelimit_mw.model import NEVER, Ask, Ban, Banned, Outcome, Quota, Reply
from ratelimit_mw.stores.base import LRU, Call, Store, StoreRequest, Wrapper, forget_request

_MOST = 4096  # clients whose asks are remembered

BanBegun = Callable[[Ask, int, int, int], None]
"""Is told of each ban that begins: its ask, its place in its row, how long it lasts, and when that was."""


class Bans(Wrapper):
    """Asks `store` for the ban before each counter that has one, in the same call.

    While a ban stands, what it watches denies with a `Banned` outcome and takes nothing; else the store counts what
    the counters deny. There is one ban for all counters that a rule has for an identity, and it lies in their slot of
    a cluster. To look counts nothing, and to forget a counter lifts its ban.
    """

    def __init__(self, store: Store, begun: BanBegun) -> None:
        super().__init__(store)
        self._begun = begun
        self._asked: LRU[str, tuple[Sequence[Ask], Sequence[Ask]]] = LRU(_MOST)

    def asked(self, request: StoreRequest) -> Call:
        """Ask for the bans too. The note has the asks with the bans among them; None if there are no bans."""
        asks, intent = request
        if intent.forget:
            return forget_request(_and_bans([ask.key for ask in asks])), None
        if not intent.decides:
            return request, None
        asked = self._with_bans(asks)
        if len(asked) == len(asks):
            return request, None
        return (asked, intent), asked

    def answered(self, asked: StoreRequest, note: Any, reply: Reply) -> Reply:  # noqa: ARG002  the note has the asks
        """Apply the bans to the outcomes of the counters."""
        return self._without_bans(note, reply)

    def _with_bans(self, asks: Sequence[Ask]) -> Sequence[Ask]:
        """What is asked in place of `asks`: remembered, for a client who comes again brings the same object."""
        if not asks or not isinstance(asks, tuple):  # a list may be another next time
            return _with_bans(asks)
        known = self._asked.get(asks[0].key)
        if known is None or known[0] is not asks:
            known = asks, _with_bans(asks)
            self._asked.put(asks[0].key, known)
        return known[1]

    def _without_bans(self, asked: Sequence[Ask], reply: Reply) -> Reply:
        """What was said of the counters, the bans' say in it."""
        said: list[Outcome] = []
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
                said.append(outcome if ban is None or watched <= 0 else banned(outcome, ban))
                watched -= 1
        return reply._replace(outcomes=said)


def key_of_ban(key: str) -> str:
    """The key of the ban that watches a counter of this key, if any does."""
    stem, brace, identity = key.partition("{")
    return f"{stem.rsplit(':', 2)[0]}:ban:{brace}{identity}"


@lru_cache(maxsize=1024)
def quota_of(ban: Ban) -> Quota:
    """As what a store is asked for it."""
    return Quota("ban", ban.after, ban.within, ban=ban)


def has_begun(outcome: Outcome) -> bool:
    """True of what a ban says that this very request has brought."""
    return not outcome.allowed and outcome.delay > 0


def banned(outcome: Outcome, ban: Outcome) -> Banned:
    """What a counter says while a ban stands: its own wait may be longer."""
    end, own = ban.retry_after, outcome.retry_after
    return Banned(False, 0, max(outcome.reset_after, end), NEVER if own == NEVER else max(own, end))


def untold(asks: Sequence[Ask], outcomes: Sequence[Outcome]) -> Sequence[Ask]:
    """`asks` as they are put again after these outcomes: no denial that a ban has counted is counted twice."""
    return [
        ask._replace(cost=0) if ask.quota.algorithm == "ban" and _has_counted(ask, outcomes[place + 1 :]) else ask
        for place, ask in enumerate(asks)
    ]


def _has_counted(ban: Ask, behind: Sequence[Outcome]) -> bool:
    return not all(outcome.allowed for outcome in behind[: ban.cost])


def _with_bans(asks: Sequence[Ask]) -> Sequence[Ask]:
    """`asks`, and before those of one rule and one identity their ban. Its cost is how many it watches."""
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


def _and_bans(keys: Sequence[str]) -> Sequence[str]:
    return [*keys, *dict.fromkeys(map(key_of_ban, keys))]
