"""Counters on a Redis Cluster: each slot's on the node that serves it, wherever that is by now."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence

from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Reply
from ratelimit_mw.stores.redis.blocking import Blocking
from ratelimit_mw.stores.redis.cluster.node import Node
from ratelimit_mw.stores.redis.cluster.parts import Result, by_slot, charges, forgetting_all, refunds, when
from ratelimit_mw.stores.redis.cluster.slots import Redirected
from ratelimit_mw.stores.redis.cluster.spanning import Spanning
from ratelimit_mw.stores.redis.cluster.topology import Topology
from ratelimit_mw.stores.redis.connecting import FIRST_CONNECTION, GRACE, HANDSHAKE_TIMEOUT
from ratelimit_mw.stores.redis.endpoint import Address, Direct, Spread
from ratelimit_mw.stores.redis.inquiry import Elsewhere, Inquiry, Intent

_PORT = 6379

_PAUSE = 0.004
"""Seconds between two questions about a slot that is on the move, from the third on."""


class ClusterStore:
    """Decides on `url` (redis+cluster://user:password@host:port,host:port), within `timeout` seconds.

    The asks of one slot are decided in one script call on its node, atomically; an identity's counters lie in one
    slot. Where a request has several, all are asked at once; if one denies, what the others took is returned, and
    what can't be returned stays charged. Each node has a breaker of its own: limits on the others go on holding.
    `tls=true` among the options asks for TLS. Safe after a fork. Raises ValueError for a URL that can't be read.
    """

    def __init__(self, url: str, *, timeout: float = 0.1, clock: Clock | None = None) -> None:
        spread = Spread.parse(url, _PORT)
        if spread.path not in ((), ("0",)):
            raise ValueError("a cluster has database 0 and no other")
        self._url = spread.url()
        self._timeout = timeout
        self._clock = clock
        self._topology = Topology(spread.addresses, self._connect, self._is_away)
        self._nodes: dict[Address, Node] = {}
        self._endpoint(spread.addresses[0])  # what can't be read raises here, at start

    def decide(self, asks: Sequence[Ask], *, commit: bool = True) -> Reply:
        """See `Store.decide`."""
        deadline = time.monotonic() + self._timeout
        places = by_slot([ask.key for ask in asks])
        if len(places) == 1:
            return self._inquire((asks, Intent(commit, slot=next(iter(places)))), deadline)
        request = Spanning(asks, places, commit=commit)
        back = request.returns(self._inquire_all(request.inquiries, deadline))
        return request.reply(self._inquire_all(back, deadline))

    async def adecide(self, asks: Sequence[Ask], *, commit: bool = True) -> Reply:
        """See `Store.decide`."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        places = by_slot([ask.key for ask in asks])
        if len(places) == 1:
            return await self._ainquire((asks, Intent(commit, slot=next(iter(places)))), deadline)
        request = Spanning(asks, places, commit=commit)
        back = request.returns(await self._ainquire_all(request.inquiries, deadline))
        return request.reply(await self._ainquire_all(back, deadline))

    def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        _insist(self._inquire_all(forgetting_all(keys), time.monotonic() + self._timeout))

    async def aforget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        _insist(await self._ainquire_all(forgetting_all(keys), asyncio.get_running_loop().time() + self._timeout))

    def refund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """See `Store.refund`."""
        _insist(self._inquire_all(refunds(asks, charged_at), time.monotonic() + self._timeout))

    async def arefund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """See `Store.refund`."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        _insist(await self._ainquire_all(refunds(asks, charged_at), deadline))

    def charge(self, asks: Sequence[Ask], *, instead_of: int | None = None) -> int:
        """See `Store.charge`."""
        places = by_slot([ask.key for ask in asks])
        results = self._inquire_all(charges(asks, places, instead_of), time.monotonic() + self._timeout)
        return when(places, results)

    async def acharge(self, asks: Sequence[Ask], *, instead_of: int | None = None) -> int:
        """See `Store.charge`."""
        places = by_slot([ask.key for ask in asks])
        deadline = asyncio.get_running_loop().time() + self._timeout
        return when(places, await self._ainquire_all(charges(asks, places, instead_of), deadline))

    def keys(self, prefix: str) -> Iterator[str]:
        """See `Store.keys`. Each node is asked for its own, one after the other."""
        for address in sorted(self._topology.nodes()):
            yield from self._node(address).keys(prefix)

    def connect(self) -> None:
        """See `Connectable`. Asks which nodes there are, and connects to each that serves a slot."""
        thread = threading.Thread(target=self._connect_to_all, name="ratelimit_mw connect", daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads
            thread.start()
            thread.join(FIRST_CONNECTION)

    def _connect_to_all(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            for address in self._topology.nodes():
                self._node(address).connect()

    async def aconnect(self) -> None:
        """See `Connectable`. Asks which nodes there are, and connects to each that serves a slot."""
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(FIRST_CONNECTION):
                nodes = await asyncio.to_thread(self._topology.nodes)
                await asyncio.gather(*(self._node(address).aconnect() for address in nodes))

    def close(self) -> None:
        """See `Store.close`. The connections of event loops close with their loops, or by `aclose`."""
        for node in list(self._nodes.values()):
            node.close()

    async def aclose(self) -> None:
        """See `Store.close`."""
        for node in list(self._nodes.values()):
            await node.aclose()

    def _inquire(self, inquiry: Inquiry, deadline: float) -> Reply:
        """The reply of whoever serves the inquiry's slot."""
        node, left = self._node(self._topology.serving(inquiry[1].slot)), self._timeout
        for pause in _pauses():
            try:
                return node.inquire(inquiry, left)
            except Elsewhere as error:
                node, inquiry = self._follow(error, node, inquiry)
            left = deadline - time.monotonic() - pause
            if left < GRACE:
                break
            if pause:
                time.sleep(pause)
        raise _unsettled(inquiry)

    async def _ainquire(self, inquiry: Inquiry, deadline: float) -> Reply:
        """The awaitable twin of `_inquire`; `deadline` is by the loop's clock."""
        node = self._node(self._topology.serving(inquiry[1].slot))
        try:
            return await node.ainquire(inquiry)
        except Elsewhere as error:
            node, inquiry = self._follow(error, node, inquiry)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                for pause in _pauses():
                    try:
                        return await node.ainquire(inquiry)
                    except Elsewhere as error:
                        node, inquiry = self._follow(error, node, inquiry)
                    await asyncio.sleep(pause)
        raise _unsettled(inquiry)

    def _follow(self, error: Elsewhere, node: Node, inquiry: Inquiry) -> tuple[Node, Inquiry]:
        """Whom to ask instead, and what."""
        asks, intent = inquiry
        if not isinstance(error, Redirected):  # a slot on the move, with some keys here and some there
            return self._node(self._topology.serving(intent.slot)), (asks, intent._replace(asking=False))
        host, port = error.address
        address = (host or node.address[0], port)
        if not error.asking:
            self._topology.correct(intent.slot, address)
        return self._node(address), (asks, intent._replace(asking=error.asking))

    def _inquire_all(self, inquiries: Sequence[Inquiry], deadline: float) -> list[Result]:
        """What becomes of each, all under way at once: the first in this thread, the others in threads of their own."""
        results: list[Result] = [_unsettled(inquiry) for inquiry in inquiries]

        def inquire(place: int) -> None:
            try:
                results[place] = self._inquire(inquiries[place], deadline)
            except StoreUnavailable as error:
                results[place] = error

        threads = []
        for place in range(1, len(inquiries)):
            thread = threading.Thread(target=inquire, args=(place,), name="ratelimit_mw slot", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: one after the other, then
                inquire(place)
            else:
                threads.append(thread)
        if inquiries:
            inquire(0)
        for thread in threads:
            thread.join()
        return results

    async def _ainquire_all(self, inquiries: Sequence[Inquiry], deadline: float) -> list[Result]:
        """The awaitable twin of `_inquire_all`."""

        async def inquire(inquiry: Inquiry) -> Result:
            try:
                return await self._ainquire(inquiry, deadline)
            except StoreUnavailable as error:
                return error

        return await asyncio.gather(*map(inquire, inquiries))

    def _node(self, address: Address) -> Node:
        return self._nodes.get(address) or self._nodes.setdefault(
            address, Node(address, self._topology, self._endpoint(address), self._timeout, self._clock)
        )

    def _is_away(self, address: Address) -> bool:
        node = self._nodes.get(address)
        return node is not None and node.away

    def _connect(self, address: Address) -> Blocking:
        return self._endpoint(address).connect()

    def _endpoint(self, address: Address) -> Direct:
        return Direct(self._url, max(HANDSHAKE_TIMEOUT, self._timeout), address)


def _insist(results: Sequence[Result]) -> None:
    for result in results:
        if isinstance(result, StoreUnavailable):
            raise result


def _pauses() -> Iterator[float]:
    return itertools.chain((0, 0), itertools.repeat(_PAUSE))


def _unsettled(inquiry: Inquiry) -> StoreUnavailable:
    return StoreUnavailable(f"no node answered for slot {inquiry[1].slot} within the deadline")
