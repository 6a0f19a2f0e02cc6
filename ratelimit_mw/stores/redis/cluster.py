"""The store on a Redis Cluster. Each counter of a request is asked on the node that serves its slot."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Self, TypeVar

from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import Redirected, StoreUnavailable, WrongNode
from ratelimit_mw.model import Outcome, Reply
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.base import Intent, Step, Store, StoreRequest, adrive, drive
from ratelimit_mw.stores.breaker import probe_ask
from ratelimit_mw.stores.redis.codec import Conversation
from ratelimit_mw.stores.redis.connection import GRACE, HANDSHAKE_TIMEOUT
from ratelimit_mw.stores.redis.endpoint import Address, Blocking, Direct, Spread
from ratelimit_mw.stores.redis.store import Server
from ratelimit_mw.stores.redis.topology import Topology, converse_by_slot, slot_of

T = TypeVar("T")


class ClusterNode(Server):
    """One node of the cluster. It counts as available when it decides again or when other nodes serve its slots."""

    def __init__(
        self, address: Address, topology: Topology, endpoint: Direct, timeout: float, clock: Clock | None
    ) -> None:
        self.address = address
        self._topology = topology
        super().__init__(endpoint, "redis+cluster://{}:{}".format(*address), timeout=timeout, clock=clock)

    def _converse(self, requests: Sequence[StoreRequest]) -> Conversation:
        return converse_by_slot(requests, self._clock.now() if self._clock else None, self._scripts)

    def _reconnect(self) -> None:
        """Make no new connections, because the node may have gone for ever."""

    def _decide_apart(self, domain: str) -> float:
        self._topology.refresh()
        tag = self._topology.tag_at(self.address)
        if tag is None:
            return 0.0
        return self._decide_alone(([probe_ask(f"{domain}:probe:{tag}")], Intent(slot=slot_of(tag))))


Result = Reply | StoreUnavailable
"""The result of a request."""


class ClusterTime(int):
    """The time of a decision over several slots. It is the latest of the nodes' clocks; `of_slot` has each of them.

    A refund has the time of the charge, which must be the time of the node's own clock.
    """

    of_slot: Mapping[int, int]

    @classmethod
    def latest(cls, of_slot: Mapping[int, int]) -> Self:
        """The time for these slots."""
        time = cls(max(of_slot.values()))
        time.of_slot = of_slot
        return time

    def of_key(self, key: str) -> int:
        """The time by the clock of the node that serves `key`."""
        return self.of_slot[slot_of(key)]


def by_slot(keys: Sequence[str]) -> dict[int, list[int]]:
    """The indices of the keys in each slot. Without keys, slot 0 with no indices."""
    places: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(slot_of(key), []).append(place)
    return places or {0: []}


def _within(intent: Intent, slot: int) -> Intent:
    """The intent for the asks in `slot`. The time of a charge is that of the node that serves it."""
    charged_at = intent.charged_at
    if isinstance(charged_at, ClusterTime):
        charged_at = charged_at.of_slot.get(slot, charged_at)
    return intent._replace(slot=slot, charged_at=charged_at)


_NO_OUTCOME = Outcome(True, 0, 0)


def over_slots(
    request: StoreRequest, places: Mapping[int, Sequence[int]], ask: Callable[[Sequence[StoreRequest]], T]
) -> Generator[T, Sequence[Result], Reply]:
    """Carry out a request whose counters are in several slots. It is charged in all slots or in none.

    It yields what sends requests at the same time, one for each slot, and is sent their results. If one slot denies
    the request, the charges in the other slots are refunded; a charge that cannot be refunded stays. If a slot did not
    answer and no other denies, `on_error` decides, and the other slots stay charged.

    Args:
        request: the whole request.
        places: the indices of the asks in each slot.
        ask: makes what is yielded, such as a `Step`, from these requests.

    Returns:
        The reply to the whole request. If one slot denies it, the counters of a slot that did not answer are reported
        as allowed.

    Raises:
        StoreUnavailable: a slot did not answer, and no other slot denies the request.
    """
    asks, intent = request
    parts = [([asks[place] for place in there], _within(intent, slot)) for slot, there in places.items()]
    results = list((yield ask(parts)))
    taken: dict[int, Reply] = {}
    denied = False
    if intent.decides:
        for number, ((own, _), result) in enumerate(zip(parts, results, strict=True)):
            if isinstance(result, Reply) and result.admits(own):
                taken[number] = result
            elif isinstance(result, Reply):
                denied = True
    if taken and denied and intent.commit:
        looks = yield ask([_refund(parts[number], first) for number, first in taken.items()])
        for (number, first), look in zip(taken.items(), looks, strict=True):
            if isinstance(look, Reply):
                pairs = zip(first.outcomes, look.outcomes, strict=True)
                results[number] = Reply(first.now, [new if old.allowed else old for old, new in pairs])
    failure = next((result for result in results if isinstance(result, StoreUnavailable)), None)
    if failure and not denied:
        raise failure
    outcomes = [_NO_OUTCOME] * len(asks)
    times: dict[int, int] = {}
    for (slot, there), result in zip(places.items(), results, strict=True):
        if isinstance(result, Reply):
            times[slot] = result.now
            for place, outcome in zip(there, result.outcomes, strict=True):
                outcomes[place] = outcome
    return Reply(ClusterTime.latest(times), outcomes)


def _refund(request: StoreRequest, reply: Reply) -> StoreRequest:
    asks, intent = request
    # A counter of a shadow rule that denied was not charged, and an overdraft is charged by a denied request, too.
    taken = [
        ask if outcome.allowed and not ask.quota.overdraft else ask._replace(cost=0)
        for ask, outcome in zip(asks, reply.outcomes, strict=True)
    ]
    return taken, Intent(charged_at=reply.now, slot=intent.slot)


_PORT = 6379

_START = 3.0
"""Seconds that connecting at the start of a server may take."""

_PAUSE = 0.004
"""Seconds between two attempts at a slot that is being migrated, from the third attempt on."""


class ClusterStore(Store):
    """Decides on `url` (redis+cluster://user:password@host:port,host:port), within `timeout` seconds.

    The asks of one slot are decided atomically, in one script call on its node. The counters of one identity are in
    one slot. If a request has counters in several slots, all are asked at once. If one denies, the charges of the
    others are refunded; a charge that cannot be refunded stays. Each node has its own circuit breaker, so limits on
    the other nodes remain in force. Safe after a fork.

    Args:
        url: `redis+cluster://user:password@host:port,host:port`. The option `tls=true` enables TLS.
        timeout: seconds for one decision.
        clock: the user's clock, or None for the clocks of the nodes.

    Raises:
        ValueError: the URL is malformed.
    """

    def __init__(self, url: str, *, timeout: float = 0.1, clock: Clock | None = None) -> None:
        spread = Spread.parse(url, _PORT)
        if spread.path not in ((), ("0",)):
            raise ValueError("a cluster has only database 0")
        self._url = spread.url()
        self._timeout = timeout
        self._clock = clock
        self._topology = Topology(spread.addresses, self._connect, self._is_away)
        self._nodes: dict[Address, ClusterNode] = {}
        self._endpoint(spread.addresses[0])  # raises for a malformed URL

    def ask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        deadline = time.monotonic() + self._timeout
        asks, intent = request
        places = by_slot([ask.key for ask in asks])
        if len(places) == 1:
            return self._ask((asks, _within(intent, next(iter(places)))), deadline)
        return drive(self, over_slots(request, places, partial(Step, self._ask_all, self._aask_all, deadline)))

    async def aask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        asks, intent = request
        places = by_slot([ask.key for ask in asks])
        if len(places) == 1:
            return await self._aask((asks, _within(intent, next(iter(places)))), deadline)
        return await adrive(self, over_slots(request, places, partial(Step, self._ask_all, self._aask_all, deadline)))

    def keys(self, prefix: str) -> Iterator[str]:
        """See `Store.keys`. The nodes are scanned one after the other."""
        for address in sorted(self._topology.nodes()):
            yield from self._node(address).keys(prefix)

    def connect(self, domain: str) -> None:
        """See `Store`. Reads the map of slots, and connects to each node that serves a slot."""
        failures: list[StoreUnavailable] = []
        thread = threading.Thread(
            target=self._connect_to_all, args=(domain, failures), name="ratelimit_mw connect", daemon=True
        )
        with contextlib.suppress(RuntimeError):  # no thread available
            thread.start()
            thread.join(_START)
        for failure in failures:
            raise failure

    def _connect_to_all(self, domain: str, failures: list[StoreUnavailable]) -> None:
        for address in self._nodes_at_start():
            try:
                self._node(address).connect(domain)
            except StoreUnavailable as error:
                failures.append(error)

    async def aconnect(self, domain: str) -> None:
        """See `Store`. Reads the map of slots, and connects to each node that serves a slot."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START):
                nodes = await asyncio.to_thread(self._nodes_at_start)
                await asyncio.gather(*(self._node(address).aconnect(domain) for address in nodes))

    def _nodes_at_start(self) -> Sequence[Address]:
        """The nodes to connect to: those that serve a slot, or one of the URL if the map cannot be read."""
        try:
            return sorted(self._topology.nodes())
        except StoreUnavailable:
            return [min(self._topology.seeds, key=self._is_away)]

    def close(self) -> None:
        """See `Store.close`. The connections of event loops close with their loops, or by `aclose`."""
        for node in list(self._nodes.values()):
            node.close()

    async def aclose(self) -> None:
        """See `Store.close`."""
        for node in list(self._nodes.values()):
            await node.aclose()

    def _ask(self, request: StoreRequest, deadline: float) -> Reply:
        """The reply of the node that serves the request's slot."""
        node, left = self._node(self._topology.serving(request[1].slot)), self._timeout
        for pause in _pauses():
            try:
                return node.ask(request, left)
            except WrongNode as error:
                node, request = self._follow(error, node, request)
            left = deadline - time.monotonic() - pause
            if left < GRACE:
                break
            if pause:
                time.sleep(pause)
        raise _no_answer(request)

    async def _aask(self, request: StoreRequest, deadline: float) -> Reply:
        """The awaitable twin of `_ask`; `deadline` is by the loop's clock."""
        node = self._node(self._topology.serving(request[1].slot))
        try:
            return await node.aask(request)
        except WrongNode as error:
            node, request = self._follow(error, node, request)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                for pause in _pauses():
                    try:
                        return await node.aask(request)
                    except WrongNode as error:
                        node, request = self._follow(error, node, request)
                    await asyncio.sleep(pause)
        raise _no_answer(request)

    def _follow(self, error: WrongNode, node: ClusterNode, request: StoreRequest) -> tuple[ClusterNode, StoreRequest]:
        """The node to ask next after a redirection, and the request for it."""
        asks, intent = request
        if not isinstance(error, Redirected):  # a migrating slot, whose keys are on two nodes
            return self._node(self._topology.serving(intent.slot)), (asks, intent._replace(asking=False))
        host, port = error.address
        address = (host or node.address[0], port)
        if not error.asking:
            self._topology.correct(intent.slot, address)
        return self._node(address), (asks, intent._replace(asking=error.asking))

    def _ask_all(self, deadline: float, requests: Sequence[StoreRequest]) -> list[Result]:
        """The results of the requests, which are sent at the same time. All but the first have their own threads."""
        results: list[Result] = [_no_answer(request) for request in requests]

        def ask_one(place: int) -> None:
            try:
                results[place] = self._ask(requests[place], deadline)
            except StoreUnavailable as error:
                results[place] = error

        threads = []
        for place in range(1, len(requests)):
            thread = threading.Thread(target=ask_one, args=(place,), name="ratelimit_mw slot", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread available: ask in this thread
                ask_one(place)
            else:
                threads.append(thread)
        if requests:
            ask_one(0)
        for thread in threads:
            thread.join()
        return results

    async def _aask_all(self, deadline: float, requests: Sequence[StoreRequest]) -> list[Result]:
        """The awaitable twin of `_ask_all`."""

        async def ask_one(request: StoreRequest) -> Result:
            try:
                return await self._aask(request, deadline)
            except StoreUnavailable as error:
                return error

        return await asyncio.gather(*map(ask_one, requests))

    def _node(self, address: Address) -> ClusterNode:
        return self._nodes.get(address) or self._nodes.setdefault(
            address, ClusterNode(address, self._topology, self._endpoint(address), self._timeout, self._clock)
        )

    def _is_away(self, address: Address) -> bool:
        node = self._nodes.get(address)
        return node is not None and node.away

    def _connect(self, address: Address) -> Blocking:
        return self._endpoint(address).connect()

    def _endpoint(self, address: Address) -> Direct:
        return Direct(self._url, max(HANDSHAKE_TIMEOUT, self._timeout), address)


def open_store(settings: StorageSettings, clock: Clock | None) -> Store:
    """The store for redis+cluster://."""
    return ClusterStore(settings.url, timeout=settings.timeout, clock=clock)


def _pauses() -> Iterator[float]:
    """The seconds to wait after each attempt at a slot."""
    return itertools.chain((0, 0), itertools.repeat(_PAUSE))


def _no_answer(request: StoreRequest) -> StoreUnavailable:
    return StoreUnavailable(f"no node answered for slot {request[1].slot} within the deadline")
