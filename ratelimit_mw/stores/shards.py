"""Hot counters spread over several keys, and so over several nodes: each of n holds an nth part of the limit."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from ratelimit_mw.model import NEVER, Ask, Outcome, Quota, Reply
from ratelimit_mw.stores.bans import has_begun, untold
from ratelimit_mw.stores.base import DECIDE, LOOK, Call, Steps, StoreRequest, Wrapper, forget_request

_SHARDED = re.compile(r"[^{]*x([0-9]+):\{")
"""The key of a sharded counter says so before its identity: `shop:api:fw60x8:{…}`."""

_SHARD = re.compile(r"([^{]*x[0-9]+:\{.*)#[0-9]+\}", re.DOTALL)
"""The key of one shard: `shop:api:fw60x8:{…#3}`."""


class Shards(Wrapper):
    """Asks `store` for one shard of each sharded counter, picked at random, and for another where that one denies.

    Never admits more than the limit, for the parts add up to it. Denies only where no shard has room for the whole
    cost, so at most n × (cost − 1) of the limit stay unused, and one more for each shard but one where the
    algorithm weighs (`sliding_window`). What remains is estimated from the shard that was asked.
    """

    def asked(self, request: StoreRequest) -> Call | Steps[Reply]:
        """Ask shards in place of counters.

        What is charged or given back goes to shards picked at random; what one of them has not got stays charged.
        """
        asks, intent = request
        if intent.forget:
            return forget_request(_all_keys([ask.key for ask in asks])), None
        if all(ask.quota.shards == 1 for ask in asks):
            return request, None
        if not intent.decides:
            return (_anywhere(asks), intent), None
        return _charging(asks) if intent.commit else _looking(asks)

    def keys(self, prefix: str) -> Iterator[str]:
        """See `Store.keys`. A sharded counter is there once, under the key that rules give it."""
        sharded: set[str] = set()
        for key in self.beneath.keys(prefix):
            shard = _SHARD.fullmatch(key)
            if not shard:
                yield key
            elif shard[1] not in sharded:
                sharded.add(shard[1])
                yield f"{shard[1]}}}"


def _looking(asks: Sequence[Ask]) -> Steps[Reply]:
    """Look at every shard."""
    reply: Reply = yield [shard for ask in asks for shard in _shards(ask)], LOOK
    if reply.only is not None:
        return reply
    said = iter(reply.outcomes)
    return Reply(reply.now, [_summed([next(said) for _ in range(ask.quota.shards)]) for ask in asks])


def _charging(asks: Sequence[Ask]) -> Steps[Reply]:
    """Ask one shard, and where it denies, look at all of them and ask again where one has room."""
    picked = [random.randrange(ask.quota.shards) for ask in asks]
    outcomes: dict[int, Outcome] = {}
    asked: Sequence[int] = range(len(asks))
    while True:
        round_ = [_shard(asks[place], picked[place]) for place in asked]
        reply: Reply = yield round_, DECIDE
        if reply.only is not None:
            return reply._replace(only=asked[reply.only])
        moved = []
        for place, outcome in zip(asked, reply.outcomes, strict=True):
            if place in outcomes and has_begun(outcomes[place]):
                continue  # it is said once
            outcomes[place] = _scaled(asks[place], outcome)
            if not outcome.allowed and asks[place].quota.shards > 1:
                seen: Reply = yield _shards(asks[place]), LOOK
                outcomes[place] = _summed(seen.outcomes)._replace(allowed=False)
                better = [shard for shard, outcome in enumerate(seen.outcomes) if outcome.allowed]
                if better:
                    picked[place] = random.choice(better)
                    moved.append(place)
        if not moved:
            return Reply(reply.now, [outcomes[place] for place in range(len(asks))])
        # What was admitted is charged: then only a shadow's shard denied, and it alone is asked again.
        asked = moved if reply.admits(round_) else range(len(asks))
        asks = untold(asks, [outcomes[place] for place in range(len(asks))])


def _summed(outcomes: Sequence[Outcome]) -> Outcome:
    """What the shards of a counter say together."""
    waits = [outcome.retry_after for outcome in outcomes if outcome.retry_after != NEVER]
    return Outcome(
        any(outcome.allowed for outcome in outcomes),
        sum(outcome.remaining for outcome in outcomes),
        max(outcome.reset_after for outcome in outcomes),
        min(waits, default=NEVER),
    )


def _scaled(ask: Ask, outcome: Outcome) -> Outcome:
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


def _anywhere(asks: Sequence[Ask]) -> Sequence[Ask]:
    return [_shard(ask, random.randrange(ask.quota.shards)) for ask in asks]


def _shards(ask: Ask) -> Sequence[Ask]:
    return [_shard(ask, number) for number in range(ask.quota.shards)]


def _key(key: str, number: int) -> str:
    return f"{key[:-1]}#{number}}}"  # inside the braces: they are what Redis Cluster spreads by


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
