"""Shards: a hot counter is spread over n keys, and so over several nodes. Each shard has an nth part of the limit."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from ratelimit_mw.model import NEVER, Ask, Outcome, Quota, Reply
from ratelimit_mw.stores.base import DECIDE, LOOK, Call, Steps, StoreRequest, Wrapper, forget_request
from ratelimit_mw.stores.denials import asked_again, has_begun

_SHARDED = re.compile(r"[^{]*x([0-9]+):\{")
"""The key of a sharded counter. It has the number of shards before the identity: `shop:api:fw60x8:{…}`."""

_SHARD = re.compile(r"([^{]*x[0-9]+:\{.*)#[0-9]+\}", re.DOTALL)
"""The key of one shard: `shop:api:fw60x8:{…#3}`."""


class Shards(Wrapper):
    """Asks `store` for a random shard of each sharded counter, and for another shard if that one denies.

    The limit is never exceeded, because the parts add up to it. A request is denied only if no shard has room for its
    whole cost; a part of the limit may then be unused. `remaining` is estimated from the shard that was asked.

    A cost with an overdraft takes one more call, to find the shard that has most room.
    """

    def asked(self, request: StoreRequest) -> Call | Steps[Reply]:
        """Ask shards instead of counters.

        A charge or a refund goes to a random shard. What that shard cannot refund stays charged.
        """
        asks, intent = request
        if intent.forget:
            return forget_request(_all_keys([ask.key for ask in asks])), None
        if all(ask.quota.shards == 1 for ask in asks):
            return request, None
        if not intent.decides:
            return ([_shard(ask, random.randrange(ask.quota.shards)) for ask in asks], intent), None
        return _charging(asks) if intent.commit else _looking(asks)

    def keys(self, prefix: str) -> Iterator[str]:
        """See `Store.keys`. A sharded counter is listed once, with the key that the rules give it."""
        sharded: set[str] = set()
        for key in self.beneath.keys(prefix):
            shard = _SHARD.fullmatch(key)
            if not shard:
                yield key
            elif shard[1] not in sharded:
                sharded.add(shard[1])
                yield f"{shard[1]}}}"


def _looking(asks: Sequence[Ask]) -> Steps[Reply]:
    """Look at all shards."""
    reply: Reply = yield [shard for ask in asks for shard in _shards(ask)], LOOK
    outcomes = iter(reply.outcomes)
    return Reply(reply.now, [_summed([next(outcomes) for _ in range(ask.quota.shards)]) for ask in asks])


def _charging(asks: Sequence[Ask]) -> Steps[Reply]:
    """Ask a shard of each counter. If it denies, look at all shards and ask one that has room."""
    picked = [random.randrange(ask.quota.shards) for ask in asks]
    for place, ask in enumerate(asks):
        if ask.quota.overdraft and ask.quota.shards > 1:  # a shard that denies it charges it, too
            first: Reply = yield _shards(ask), LOOK
            rooms = [outcome.remaining for outcome in first.outcomes]
            picked[place] = rooms.index(max(rooms))
    outcomes: dict[int, Outcome] = {}
    asked: Sequence[int] = range(len(asks))
    while True:
        round_ = [_shard(asks[place], picked[place]) for place in asked]
        reply: Reply = yield round_, DECIDE
        moved = []
        for place, found in zip(asked, reply.outcomes, strict=True):
            ask, outcome = asks[place], _scaled(asks[place], found)
            if place in outcomes and has_begun(outcomes[place]):
                continue  # the beginning of a ban is reported once
            outcomes[place] = outcome
            if not (outcome.allowed or ask.quota.overdraft) and ask.quota.shards > 1:
                seen: Reply = yield _shards(ask), LOOK
                outcomes[place] = _summed(seen.outcomes)._replace(allowed=False)
                better = [shard for shard, outcome in enumerate(seen.outcomes) if outcome.allowed]
                if better:
                    picked[place] = random.choice(better)
                    moved.append(place)
        if not moved:
            return Reply(reply.now, [outcomes[place] for place in range(len(asks))])
        # If the request was admitted, it is charged, and only shards of shadow rules have denied. They are asked again.
        asked = moved if reply.admits(round_) else range(len(asks))
        asks = asked_again(asks, [outcomes[place] for place in range(len(asks))])


def _summed(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a counter from the outcomes of its shards."""
    waits = [outcome.retry_after for outcome in outcomes if outcome.retry_after != NEVER]
    return Outcome(
        any(outcome.allowed for outcome in outcomes),
        sum(outcome.remaining for outcome in outcomes),
        max(outcome.reset_after for outcome in outcomes),
        min(waits, default=NEVER),
    )


def _scaled(ask: Ask, outcome: Outcome) -> Outcome:
    """The outcome of a counter from that of the shard that was asked."""
    quota = ask.quota
    if quota.shards == 1:
        return outcome
    most = (quota.burst or quota.limit) - ask.cost
    return outcome._replace(remaining=max(min(outcome.remaining * quota.shards, most), 0))


def _shard(ask: Ask, number: int) -> Ask:
    quota = ask.quota
    if quota.shards == 1:
        return ask
    return ask._replace(key=_key(ask.key, number), quota=_parts(quota)[number])


def _shards(ask: Ask) -> Sequence[Ask]:
    return [_shard(ask, number) for number in range(ask.quota.shards)]


def _key(key: str, number: int) -> str:
    return f"{key[:-1]}#{number}}}"  # inside the braces, because Redis Cluster spreads keys by this part


@lru_cache(maxsize=1024)
def _parts(quota: Quota) -> Sequence[Quota]:
    limits, bursts = _split(quota.limit, quota.shards), _split(quota.burst, quota.shards)
    return [replace(quota, limit=limit, burst=burst, shards=1) for limit, burst in zip(limits, bursts, strict=True)]


def _split(whole: int, shards: int) -> Sequence[int]:
    part, over = divmod(whole, shards)
    return [part + (number < over) for number in range(shards)]


def _all_keys(keys: Sequence[str]) -> Sequence[str]:
    every: list[str] = []
    for key in keys:
        sharded = _SHARDED.match(key)
        every += [_key(key, number) for number in range(int(sharded[1]))] if sharded else [key]
    return every
