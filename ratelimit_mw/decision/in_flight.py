"""The leases of the requests in flight in this process: taken with a decision, renewed while they last, ended once."""

import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from ratelimit_mw.algorithms.concurrency import PERIOD
from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.forks import begins_anew
from ratelimit_mw.late import late, lock
from ratelimit_mw.model import SECOND, Ask
from ratelimit_mw.stores import Store

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

    _lock = late(lock)

    def __init__(self, store: Store, clock: Clock | None = None, *, every: int = PERIOD // 3) -> None:
        self._store = store
        self._clock = clock
        self._every = every
        self._held: weakref.WeakSet[Lease]
        self._renewer: threading.Thread | None
        self._stopped: threading.Event
        self._begin()
        begins_anew(self)

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
