"""Counters on a Redis server, shared by every process that asks it."""

from collections.abc import Coroutine, Sequence
from typing import Any

from ratelimit_mw.clock import Clock
from ratelimit_mw.model import Ask, Reply
from ratelimit_mw.stores.redis.connecting import HANDSHAKE_TIMEOUT
from ratelimit_mw.stores.redis.endpoint import Direct
from ratelimit_mw.stores.redis.inquiry import DECIDE, Intent, charging, forgetting
from ratelimit_mw.stores.redis.sentinel import SCHEME, Sentinels
from ratelimit_mw.stores.redis.server import Server
from ratelimit_mw.stores.redis.url import shown

_LOOK = Intent(commit=False)


class RedisStore(Server):
    """Decides in one script call on `url`: redis://, rediss://, unix:// or redis+sentinel://.

    A decision takes `timeout` seconds at most. Raises ValueError for a URL that can't be read.
    """

    def __init__(self, url: str, *, timeout: float = 0.1, clock: Clock | None = None) -> None:
        patience = max(HANDSHAKE_TIMEOUT, timeout)
        endpoint = Sentinels(url, patience) if url.startswith(SCHEME) else Direct(url, patience)
        super().__init__(endpoint, shown(url), timeout=timeout, clock=clock)

    def decide(self, asks: Sequence[Ask], *, commit: bool = True) -> Reply:
        """See `Store.decide`."""
        return self.inquire((asks, DECIDE if commit else _LOOK))

    def adecide(self, asks: Sequence[Ask], *, commit: bool = True) -> Coroutine[Any, Any, Reply]:
        """See `Store.decide`."""
        return self.ainquire((asks, DECIDE if commit else _LOOK))

    def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        self.inquire(forgetting(keys))

    async def aforget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        await self.ainquire(forgetting(keys))

    def refund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """See `Store.refund`."""
        self.inquire((asks, Intent(charged_at=charged_at)))

    async def arefund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """See `Store.refund`."""
        await self.ainquire((asks, Intent(charged_at=charged_at)))

    def charge(self, asks: Sequence[Ask], *, instead_of: int | None = None) -> int:
        """See `Store.charge`."""
        return self.inquire(charging(asks, instead_of)).now

    async def acharge(self, asks: Sequence[Ask], *, instead_of: int | None = None) -> int:
        """See `Store.charge`."""
        return (await self.ainquire(charging(asks, instead_of))).now
