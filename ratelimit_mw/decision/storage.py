"""Where a limiter's counters are: the store it asks, and this process's own for when that is away."""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.ban_log import BanLog
from ratelimit_mw.decision.in_flight import InFlight
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import Store, banning, beneath, deciding_here, open_store
from ratelimit_mw.stores.base import Connectable
from ratelimit_mw.stores.memory import MemoryStore

if TYPE_CHECKING:
    from ratelimit_mw.stores.leases.store import Leases

_log = logging.getLogger("ratelimit_mw")


class Storage:
    """`store` decides; `local` does where it is away and a rule wants that. Each has its own requests in flight.

    `given`, a URL or a store object, wins over the URL of `rules`. A store object stays its owner's to close.
    Raises ConfigurationError for a URL that names no store, TypeError for what is neither.
    """

    def __init__(self, rules: Rules, given: str | Store | None, clock: Clock | None) -> None:
        settings = rules.storage
        self.url = given if isinstance(given, str) else settings.url
        """Where the counters are; beside a store object, what the rules say."""
        self._owned = given is None or isinstance(given, str)
        self._interval = settings.interval
        self._clock = clock
        self._leases: Leases | None = None
        self.bans = BanLog(rules.client.secret)
        self.store = _opened(settings, given, clock)
        self._server = beneath(self.store)
        self.local: Store = MemoryStore(max_counters=settings.max_counters, clock=clock)
        self.decide_here(rules)
        self.in_flight = InFlight(self.store, clock)
        self.in_flight_here = InFlight(self.local, clock)

    @property
    def in_memory(self) -> bool:
        """Whether the counters are in this process's memory alone."""
        return isinstance(self._server, MemoryStore)

    def decide_here(self, rules: Rules) -> None:
        """Put before the store what asks for bans, keeps counters in the process or spreads them, once a rule does."""
        quotas = [quota for part in rules.parts for rule in part.compiled for quota in rule.quotas]
        if self._leases is None:
            self.store, self._leases = deciding_here(self.store, quotas, self._clock, interval=self._interval)
        self.store = banning(self.store, quotas, self.bans.begun)
        self.local = banning(self.local, quotas, self.bans.begun)

    def connect(self) -> None:
        """Connect to the store for threads, where there is something to connect to. Never raises."""
        if isinstance(self._server, Connectable):
            self._server.connect()

    async def aconnect(self) -> None:
        """Connect the running event loop to the store, where there is something to connect to. Never raises."""
        if isinstance(self._server, Connectable):
            await self._server.aconnect()

    def renew(self) -> None:
        """Renew what is in flight."""
        self.in_flight.renew()
        self.in_flight_here.renew()

    def close(self) -> None:
        """Let go of the store's connections, unless the store was handed in."""
        self._stop()
        if self._owned:
            self.store.close()
        elif self._leases:
            self._leases.finish()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        self._stop()
        if self._owned:
            await self.store.aclose()
        elif self._leases:
            await self._leases.afinish()

    def _stop(self) -> None:
        self.in_flight.stop()
        self.in_flight_here.stop()


def _opened(settings: StorageSettings, given: str | Store | None, clock: Clock | None) -> Store:
    if given is not None and not isinstance(given, str):
        if not isinstance(given, Store):
            raise TypeError(f"storage takes a URL or a store, not {type(given).__name__}")
        return given
    try:
        store = open_store(settings if given is None else replace(settings, url=given), clock)
    except ValueError as error:
        raise ConfigurationError([Problem(f"storage: {error}")]) from None
    if isinstance(store, MemoryStore) and clock is None:
        _log.warning(
            "ratelimit_mw: storage is memory://: each process counts for itself, and a restart forgets; to share "
            "the counters, set storage.url in the rules, or storage= in code, as in redis://localhost:6379/0"
        )
    return store
