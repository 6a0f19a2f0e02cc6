"""Several connections for threads, for a server that is so far away that one connection is not enough.

Threads normally share one connection. Requests that come while it is in use are sent together afterwards, so a
request may wait for two round trips. If two round trips do not fit into the timeout, each request gets a connection
that no other request uses at that moment.
"""

import time
from collections.abc import Callable

from ratelimit_mw.model import Reply
from ratelimit_mw.stores.base import StoreRequest
from ratelimit_mw.stores.redis.threads import ThreadBatcher

_FAR = 0.4
"""The round-trip time, as a share of the timeout, beyond which two round trips may not fit into the timeout."""

_MAX_CONNECTIONS = 128
"""The most connections. Beyond that, requests share them."""

_LOST = 1.0
"""Seconds past its deadline after which a request counts as lost: its thread was interrupted before it could clean up.
"""


class ConnectionPool:
    """Decides on one connection, or on several if the server is far away.

    Args:
        first: the batcher of the first connection.
        make: makes the batcher of another connection.
        timeout: seconds for one request.
    """

    def __init__(self, first: ThreadBatcher, make: Callable[[], ThreadBatcher], timeout: float) -> None:
        self._first = first
        self._make = make
        self._timeout = timeout
        self._far = timeout * _FAR
        self._lanes = [first]
        self._taken: dict[ThreadBatcher, _Use] = {}  # changed only in atomic steps

    def decide(self, request: StoreRequest, timeout: float | None = None) -> Reply:
        """See `ThreadBatcher.decide`."""
        first = self._first
        if first.round_trip < self._far:  # the usual case
            return first.decide(request, timeout)
        return self._decide_far_away(request, timeout)

    @property
    def answered_at(self) -> float:
        """When a request was last answered in time, by the monotonic clock."""
        return max(lane.answered_at for lane in tuple(self._lanes))

    def close(self) -> None:
        """Close all connections."""
        for lane in tuple(self._lanes):
            lane.close()

    def _decide_far_away(self, request: StoreRequest, timeout: float | None) -> Reply:
        began = time.monotonic()
        use = _Use(began + (self._timeout if timeout is None else timeout) + _LOST)
        lane = self._take(use, began)
        try:
            return lane.decide(request, timeout)
        finally:
            if self._taken.get(lane) is use:
                self._taken.pop(lane, None)

    def _take(self, use: "_Use", now: float) -> ThreadBatcher:
        """A lane that no other request uses; a new one if all are in use."""
        number = 0
        while True:
            if number == len(self._lanes):
                if number >= _MAX_CONNECTIONS:
                    return self._lanes[hash(use) % _MAX_CONNECTIONS]
                self._lanes.append(self._make())
            lane = self._lanes[number]
            if lane.busy:  # with a batch that began before the server was known to be far away
                number += 1
                continue
            other = self._taken.setdefault(lane, use)
            if other is not use and other.until < now and self._taken.get(lane) is other:
                self._taken.pop(lane, None)
                other = self._taken.setdefault(lane, use)
            if other is use:
                if number + 1 == len(self._lanes) < _MAX_CONNECTIONS:
                    # Keep one spare lane, so that the next request finds it connected.
                    spare = self._make()
                    spare.begin_connecting()
                    self._lanes.append(spare)
                return lane
            number += 1


class _Use:
    """The use of a lane by one request. `until` is the monotonic time at which the request counts as lost."""

    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until
