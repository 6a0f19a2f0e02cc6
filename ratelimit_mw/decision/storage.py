"""The store of a limiter with all that wraps it, and what is done beside decisions: leases, bans, shadow denials."""

import logging
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ratelimit_mw.algorithms.concurrency import PERIOD
from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import ConfigurationError, Problem, StoreUnavailable
from ratelimit_mw.identity.attributes import digester
from ratelimit_mw.model import SECOND, Ask
from ratelimit_mw.process_local import lazy, lock, reset_after_fork
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import Store, banning, beneath, deciding_here, open_store
from ratelimit_mw.stores.base import Connectable
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.units import spell_duration

if TYPE_CHECKING:
    from ratelimit_mw.stores.lease_store import Leases

_TOGETHER = 100
"""Counters in one call at most, so that no call holds the store for long."""


class Lease:
    """What one request holds of its counters until it ends; `at` is when the store charged it, None where unknown.

    Whoever serves the request keeps it: a lease that nobody has any more is not renewed, and ends by itself.
    """

    __slots__ = ("__weakref__", "asks", "at", "ended", "renewed_at", "renewing")

    def __init__(self, asks: Sequence[Ask], at: int, now: int) -> None:
        self.asks = asks
        self.at: int | None = at
        self.renewed_at = now
        self.renewing = self.ended = False


class InFlight:
    """Renews the leases that `store` has charged, every third of what they last, until they are ended.

    A thread does it, which lives only while something is in flight; it blocks no event loop, and none can hold it up.
    Under a `clock` handed in, whoever decides calls `renew` before. A child of a fork has none of its parent's.
    """

    _lock = lazy(lock)

    def __init__(self, store: Store, clock: Clock | None = None, *, every: int = PERIOD // 3) -> None:
        self._store = store
        self._clock = clock
        self._every = every
        self._held: weakref.WeakSet[Lease]
        self._renewer: threading.Thread | None
        self._stopped: threading.Event
        self._begin()
        reset_after_fork(self)

    def __len__(self) -> int:
        """How many leases there are."""
        return len(self._held)

    def hold(self, asks: Sequence[Ask], at: int) -> Lease:
        """Renew from now on what the store charged to `asks` at `at`."""
        lease = Lease(asks, at, self._now())
        with self._lock:
            self._held.add(lease)
            if self._renewer is None or not self._renewer.is_alive():
                self._start()
        return lease

    def end(self, lease: Lease) -> int | None:
        """Renew it no more. Returns when it was charged, to be given back by that; None where nothing is to be."""
        with self._lock:
            mine = lease in self._held
            self._held.discard(lease)
            ended, lease.ended = lease.ended, True
            # One that is being renewed is given back by whoever renews it, for only they will know when it was charged.
            return lease.at if mine and not ended and not lease.renewing else None

    def renew(self) -> None:
        """Charge anew what is due, in place of what was charged before."""
        due: list[Lease] = []
        try:
            with self._lock:
                now = self._now()
                due += [lease for lease in self._held if now - lease.renewed_at >= self._every and not lease.renewing]
                for lease in due:
                    lease.renewing = True
            for leases in _alike(due):
                self._renew(leases)
        finally:
            for lease in due:  # where an exception from elsewhere came, those that are left
                lease.renewing = False

    def stop(self) -> None:
        """Renew nothing any more."""
        with self._lock:
            self._stopped.set()
            self._renewer = None

    def after_fork(self) -> None:
        """Go on in the child of a fork: what is in flight is the parent's."""
        self._begin()

    def _begin(self) -> None:
        vars(self).pop("_lock", None)
        self._held = weakref.WeakSet()
        self._renewer = None
        self._stopped = threading.Event()

    def _now(self) -> int:
        return self._clock.now() if self._clock else time.monotonic_ns() // 1000

    def _renew(self, leases: Sequence[Lease]) -> None:
        """Renew leases that were charged within one slice; those that end meanwhile are given back."""
        at = leases[0].at
        charged_at: int | None = None
        # What may have been charged is left to expire: to give it back twice might take another's place away.
        try:
            with suppress(StoreUnavailable):
                charged_at = self._store.charge(_summed(leases), instead_of=at)
        finally:
            with self._lock:
                now = self._now()
                for lease in leases:
                    lease.at, lease.renewed_at, lease.renewing = charged_at, now, False
                ended = [lease for lease in leases if lease.ended]
        if ended and charged_at is not None:
            with suppress(StoreUnavailable):
                self._store.refund(_summed(ended), charged_at)

    def _start(self) -> None:
        self._stopped = threading.Event()
        self._renewer = threading.Thread(
            target=self._keep_renewing, args=(self._stopped,), name="ratelimit_mw renew", daemon=True
        )
        try:
            self._renewer.start()
        except RuntimeError:  # no more threads: leases end unrenewed, and the next request tries again
            self._renewer = None

    def _keep_renewing(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._every / SECOND):
            self.renew()
            with self._lock:
                if not self._held and not stopped.is_set():
                    self._renewer = None
                    return


def _alike(leases: Sequence[Lease]) -> list[list[Lease]]:
    """Groups of leases that one call can renew: each slice's, and not too many counters."""
    slices: defaultdict[object, list[Lease]] = defaultdict(list)
    for lease in leases:
        # A moment of a cluster is each node's own, and no plain number.
        slices[lease.at // SECOND if type(lease.at) is int else lease.at and id(lease.at)].append(lease)
    return [group[n : n + _TOGETHER] for group in slices.values() for n in range(0, len(group), _TOGETHER)]


def _summed(leases: Sequence[Lease]) -> list[Ask]:
    """One ask for each counter."""
    asks: dict[str, Ask] = {}
    for lease in leases:
        for ask in lease.asks:
            before = asks.get(ask.key)
            asks[ask.key] = ask if before is None else ask._replace(cost=ask.cost + before.cost)
    return list(asks.values())


_log = logging.getLogger("ratelimit_mw")

_LINES = 10
"""Bans of one rule that are told in a minute. How many more there were is said with the first of the next."""


class BanLog:
    """Tells of the bans that begin, their clients as hashes; those that shadow rules would begin it also counts."""

    _counting = lazy(lock)

    def __init__(self, secret: str) -> None:
        self.shadows: Counter[str] = Counter()
        self._secret = secret
        self._told: dict[str, tuple[int, int]] = {}

    def begun(self, ask: Ask, row: int, lasts: int, now: int) -> None:
        """A ban has begun at `now` that lasts so many microseconds, the `row`th of a row."""
        stem, _, identity = ask.key.partition("{")
        domain, rule = map(unquote, stem.split(":")[:2])
        with self._counting:
            if ask.shadow:
                self.shadows[rule] += 1
            told, unsaid = self._count(rule, now // (60 * SECOND))
        if told <= _LINES:
            _log.warning(
                "rule %s %s client %s for %s%s%s",
                rule,
                "would have banned" if ask.shadow else "bans",
                digester(self._secret, domain)(identity),
                spell_duration(lasts),
                f" (ban {row} in a row)" if row > 1 else "",
                f"; {unsaid} more bans were not logged" if unsaid else "",
            )

    def _count(self, rule: str, minute: int) -> tuple[int, int]:
        """How many bans of this minute there are, and how many of the one before were not said."""
        before, told = self._told.get(rule, (minute, 0))
        unsaid = 0
        if before != minute:
            told, unsaid = 0, max(told - _LINES, 0)
        self._told[rule] = minute, told + 1
        return told + 1, unsaid


_PAUSE = 60 * SECOND
"""Between two lines about one shadow rule: no client can flood the log."""


class Shadows:
    """Counts the would-be denials of each shadow rule; `denials` has them by its name."""

    _counting = lazy(lock)

    def __init__(self) -> None:
        self.denials: Counter[str] = Counter()
        self._said: dict[str, int] = {}

    def count(self, verdict: Verdict) -> None:
        """Count what `verdict` says of shadow rules; those that deny only together (`Rule.quota_group`) are none."""
        for (rule, ask), outcome in zip(verdict.charges, verdict.outcomes, strict=True):
            if ask.shadow and not outcome.allowed and not rule.quota_group:
                self.add(rule.name, verdict.now)

    def add(self, rule: str, now: int) -> None:
        """Count one would-be denial by the rule of that name."""
        with self._counting:
            self.denials[rule] += 1
            so_far = self.denials[rule]
            if abs(now - self._said.get(rule, -_PAUSE)) < _PAUSE:
                return
            self._said[rule] = now
        _log.info("shadow rule %s would have denied a request (%d so far)", rule, so_far)


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
