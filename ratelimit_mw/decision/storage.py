"""The stores of a limiter with their wrappers.

* `Storage` opens, wraps and closes the stores, and counts and logs bans.
* `InFlight` renews the concurrent places of requests in flight.
"""

import time
import weakref
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from urllib.parse import unquote

from ratelimit_mw.algorithms.concurrency import PERIOD
from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import ConfigurationError, Problem, StoreUnavailable
from ratelimit_mw.identity.attributes import digester
from ratelimit_mw.logs import LineLimit, logger
from ratelimit_mw.model import SECOND, Ask
from ratelimit_mw.process_local import Repeating, lazy, lock
from ratelimit_mw.reload.source import starting
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import Stack, Store, open_store, with_domain
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.tally import Tally
from ratelimit_mw.units import spell_duration

_MAX_PER_CALL = 100
"""The most counters in one call, so that no call occupies the store for long."""


class InFlightPlace:
    """The concurrent places that one request occupies until it ends.

    `at` is the time at which the store charged them, by its own clock; None if it is unknown. The code that serves
    the request must keep a reference. A place that is garbage collected is not renewed and expires.
    """

    __slots__ = ("__weakref__", "asks", "at", "ended", "renewed_at", "renewing")

    def __init__(self, asks: Sequence[Ask], at: int, now: int) -> None:
        self.asks = asks
        self.at: int | None = at
        self.renewed_at = now
        self.renewing = self.ended = False


class InFlight:
    """Renews the concurrent places of requests until the requests end.

    A thread renews each place after a third of its lifetime. The thread runs only while requests are in flight, and
    is independent of event loops. Under a user's `clock`, the engine also calls `renew` before each decision. The
    child of a fork starts with no places.

    Args:
        store: the store that has charged the places.
        clock: the user's clock, or None for the system's.
        every: the microseconds between two renewals of a place.
    """

    _lock = lazy(lock)
    _places = lazy(weakref.WeakSet[InFlightPlace])

    def __init__(self, store: Store, clock: Clock | None = None, *, every: int = PERIOD // 3) -> None:
        self._store = store
        self._clock = clock
        self._every = every
        self._renewing = Repeating("renew", self._turn, first=every / SECOND)

    def __len__(self) -> int:
        """The number of requests whose places are renewed."""
        return len(self._places)

    def hold(self, asks: Sequence[Ask], at: int) -> InFlightPlace:
        """Renew from now on what the store charged to `asks` at its time `at` (microseconds).

        Returns the place to pass to `end`.
        """
        place = InFlightPlace(asks, at, self._now())
        with self._lock:
            self._places.add(place)
        self._renewing.start()  # if there is no thread, the places expire, and the next request tries again
        return place

    def end(self, place: InFlightPlace) -> int | None:
        """Stop renewing a place. Returns the time of the charge to refund; None if there is nothing to refund."""
        with self._lock:
            mine = place in self._places
            self._places.discard(place)
            ended, place.ended = place.ended, True
            # The renewing thread refunds a place that it is renewing, because only that thread learns its new time.
            return place.at if mine and not ended and not place.renewing else None

    def renew(self) -> None:
        """Renew all places that are due: charge each again and refund the previous charge in the same step."""
        due: list[InFlightPlace] = []
        try:
            with self._lock:
                now = self._now()
                due += [place for place in self._places if now - place.renewed_at >= self._every and not place.renewing]
                for place in due:
                    place.renewing = True
            for places in _groups(due):
                self._renew(places)
        finally:
            for place in due:  # after an exception: the places that were not renewed
                place.renewing = False

    def stop(self) -> None:
        """Stop renewing."""
        self._renewing.stop()

    def _now(self) -> int:
        return self._clock.now() if self._clock else time.monotonic_ns() // 1000

    def _renew(self, places: Sequence[InFlightPlace]) -> None:
        """Renew places that were charged in the same second. Refund those whose requests have ended during the call."""
        at = places[0].at
        charged_at: int | None = None
        # After a failure, a possible charge is left to expire: a second refund could free another request's place.
        try:
            with suppress(StoreUnavailable):
                charged_at = self._store.charge(_summed(places), instead_of=at)
        finally:
            with self._lock:
                now = self._now()
                for place in places:
                    place.at, place.renewed_at, place.renewing = charged_at, now, False
                ended = [place for place in places if place.ended]
        if ended and charged_at is not None:
            with suppress(StoreUnavailable):
                self._store.refund(_summed(ended), charged_at)

    def _turn(self) -> float | None:
        """Renew what is due. Returns the seconds until the next time; None if nothing is in flight."""
        self.renew()
        return self._every / SECOND if self._places else None


def _groups(places: Sequence[InFlightPlace]) -> list[list[InFlightPlace]]:
    """Group the places that one call can renew: those charged in the same second, at most `_MAX_PER_CALL` of them."""
    slices: defaultdict[object, list[InFlightPlace]] = defaultdict(list)
    for place in places:
        # The time of a cluster (`ClusterTime`) has one value for each node, so such places are not grouped.
        slices[place.at // SECOND if type(place.at) is int else place.at and id(place.at)].append(place)
    return [group[n : n + _MAX_PER_CALL] for group in slices.values() for n in range(0, len(group), _MAX_PER_CALL)]


def _summed(places: Sequence[InFlightPlace]) -> list[Ask]:
    """One ask for each counter, with the sum of the costs."""
    asks: dict[str, Ask] = {}
    for place in places:
        for ask in place.asks:
            before = asks.get(ask.key)
            asks[ask.key] = ask if before is None else ask._replace(cost=ask.cost + before.cost)
    return list(asks.values())


_MAX_LINES = 10
"""How many bans of one rule are logged in a minute. The next line after that says how many were omitted."""


class Storage:
    """The two stores of a limiter: `store` decides, and `local` replaces it for rules with `on_error: local`.

    Each store has its own requests in flight.

    Args:
        rules: the rules at the start; their `storage` section configures the store.
        given: the `storage` argument of the limiter, a URL or a store object. It takes precedence over the URL in
            `rules`. A store object is not closed by `close`.
        clock: the user's clock, or None for the system's.

    Raises:
        ConfigurationError: the URL does not name a store.
        TypeError: `given` is neither a URL nor a store.
    """

    def __init__(self, rules: Rules, given: str | Store | None, clock: Clock | None) -> None:
        settings = rules.storage
        self.url = with_domain(given if isinstance(given, str) else settings.url, rules.parts[0].domain)
        """The URL of the store. If a store object was given, the URL in the rules."""
        self._owned = given is None or isinstance(given, str)
        self._required = settings.required
        self._domain = rules.parts[0].domain
        self.tally = Tally()
        """Counts what the limiter does."""
        self.ban_lines = LineLimit()
        """How many lines about bans there may be, by the name of a rule."""
        self._secret = rules.client.secret
        self._server = _opened(replace(settings, url=self.url, trial=rules.asking or ""), given, clock)
        if self._server.decides is not (rules.asking is not None):
            raise ConfigurationError([_MISFIT])
        self.tally.store = self.url.partition(":")[0] if self._owned else type(self._server).__name__
        self.tally.counters = self._counters
        self.tally.late = lambda: self._server.late_requests
        self._stack = Stack(self._server, clock, self._ban_began, interval=settings.interval, cached=self._owned)
        self._local = Stack(MemoryStore(max_counters=settings.max_counters, clock=clock), clock, self._ban_began)
        self.wrap_for(rules)
        self.in_flight = InFlight(self.store, clock)
        self.in_flight_here = InFlight(self.local, clock)

    def _counters(self) -> int | None:
        return len(self._server) if isinstance(self._server, MemoryStore) else None

    def _ban_began(self, ask: Ask, lasts: int, now: int) -> None:
        """Count and log a ban, with its client as a hash.

        Args:
            ask: the counter whose denials led to the ban.
            lasts: the duration in microseconds.
            now: the time in microseconds.
        """
        stem, _, identity = ask.key.partition("{")
        domain, rule = map(unquote, stem.split(":")[:2])
        self.tally.banned(domain, rule, enforced=not ask.shadow)
        omitted = self.ban_lines.omitted(rule, _MAX_LINES, now)
        if omitted is not None:
            logger.warning(
                "rule %s %s client %s for %s%s",
                rule,
                "would have banned" if ask.shadow else "bans",
                digester(self._secret, domain)(identity),
                spell_duration(lasts),
                f"; {omitted} more bans were not logged" if omitted else "",
            )

    def wrap_for(self, rules: Rules) -> None:
        """Wrap the stores with what `rules` need: bans, leases and shards. Called again after each reload."""
        self.store, self.local = self._stack.wrapped(rules.quotas), self._local.wrapped(rules.quotas)

    def connect(self) -> None:
        """Connect to the store for threads.

        Raises:
            StoreUnavailable: the store is required, it is away, and this is the first start of the server.
        """
        with starting(self.url, self.tally.lost, required=self._required):
            self._server.connect(self._domain)

    async def aconnect(self) -> None:
        """The awaitable twin of `connect`, for the running event loop."""
        with starting(self.url, self.tally.lost, required=self._required):
            await self._server.aconnect(self._domain)

    def renew(self) -> None:
        """Renew the concurrent places of both stores."""
        self.in_flight.renew()
        self.in_flight_here.renew()

    def settle(self) -> None:
        """Return all leases, and charge what was spent on account. What fails is tried again later."""
        if self._stack.leases:
            self._stack.leases.settle()

    def close(self) -> None:
        """Return unused leases and close the store, unless it was passed in as an object."""
        self._stop()
        if self._owned:
            self.store.close()
        elif self._stack.leases:
            self._stack.leases.finish()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        self._stop()
        if self._owned:
            await self.store.aclose()
        elif self._stack.leases:
            await self._stack.leases.afinish()

    def _stop(self) -> None:
        self.in_flight.stop()
        self.in_flight_here.stop()


_MISFIT = Problem(
    "storage: a service decides by rules of its own, and all other stores by those of this file",
    hint="set storage.url of the file to the service, and remove the rules; or do neither",
)


def _opened(settings: StorageSettings, given: str | Store | None, clock: Clock | None) -> Store:
    if given is not None and not isinstance(given, str):
        if not isinstance(given, Store):
            raise TypeError(f"storage takes a URL or a store, not {type(given).__name__}")
        return given
    try:
        return open_store(settings, clock)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError([Problem(f"storage: {error}")]) from None
