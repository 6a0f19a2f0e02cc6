"""Several connections for threads, where the server is so far away that one is not enough.

Threads share one connection, and those that come while it is in use travel together with its next exchange. So a
request may wait for two round trips. Where these do not fit into the timeout, each request gets a connection that no
other uses at that moment.
"""

import time
from collections.abc import Callable

from ratelimit_mw.errors import Late, NoAnswer
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.base import StoreRequest
from ratelimit_mw.stores.redis.threads import ThreadBatcher

_FAR = 0.4
"""The share of the timeout beyond which two round trips may not fit into it."""

_MOST = 128
"""Connections at most. Beyond that, requests share them."""

_LOST = 1.0
"""Seconds past its deadline after which a request counts as lost: its thread was interrupted at an unlucky moment."""


class ConnectionPool:
    """Decides on one connection, or on several where the server is far away. The first is `first`, `make` makes others.

    `timeout` is in seconds. A request that is late while others are answered in time fails alone, as `Late`.
    """

    def __init__(self, first: ThreadBatcher, make: Callable[[], ThreadBatcher], timeout: float) -> None:
        self._first = first
        self._make = make
        self._timeout = timeout
        self._far = timeout * _FAR
        self._lanes = [first]
        self._taken: dict[ThreadBatcher, _Use] = {}  # set and taken away in one step each

    def decide(self, request: StoreRequest, timeout: float | None = None) -> Reply:
        """See `ThreadBatcher.decide`."""
        first = self._first
        if first.round_trip < self._far:  # nearly always
            try:
                return first.decide(request, timeout)
            except NoAnswer as error:
                if first.served_since(time.monotonic() - self._timeout):
                    raise Late(str(error)) from None
                raise
        return self._decide_far_away(request, timeout)

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
        except NoAnswer as error:
            if any(each.served_since(began) for each in tuple(self._lanes)):
                raise Late(str(error)) from None
            raise
        finally:
            if self._taken.get(lane) is use:
                self._taken.pop(lane, None)

    def _take(self, use: "_Use", now: float) -> ThreadBatcher:
        """A lane that no other request uses; another one where all are in use."""
        number = 0
        while True:
            if number == len(self._lanes):
                if number >= _MOST:
                    return self._lanes[hash(use) % _MOST]
                self._lanes.append(self._make())
            lane = self._lanes[number]
            if lane.busy:  # with what was begun before it was known that the server is far away
                number += 1
                continue
            other = self._taken.setdefault(lane, use)
            if other is not use and other.until < now and self._taken.get(lane) is other:
                self._taken.pop(lane, None)
                other = self._taken.setdefault(lane, use)
            if other is use:
                if number + 1 == len(self._lanes) < _MOST:
                    # One more than are in use, so that the next request finds it connected.
                    spare = self._make()
                    spare.begin_connecting()
                    self._lanes.append(spare)
                return lane
            number += 1


class _Use:
    """One request's use of a lane, and the monotonic time until which it may last."""

    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until
