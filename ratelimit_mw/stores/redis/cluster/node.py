"""One node of a cluster."""

from collections.abc import Sequence

from ratelimit_mw.clock import Clock
from ratelimit_mw.stores.redis.cluster.slots import converse_by_slot, slot_of
from ratelimit_mw.stores.redis.cluster.topology import Topology
from ratelimit_mw.stores.redis.endpoint import Address, Direct
from ratelimit_mw.stores.redis.inquiry import Inquiry
from ratelimit_mw.stores.redis.server import Server
from ratelimit_mw.stores.redis.wire import Conversation


class Node(Server):
    """One node. It is back when it decides again, or when others serve its slots."""

    def __init__(
        self, address: Address, topology: Topology, endpoint: Direct, timeout: float, clock: Clock | None
    ) -> None:
        self.address = address
        self._topology = topology
        super().__init__(endpoint, "redis+cluster://{}:{}".format(*address), timeout=timeout, clock=clock)

    def _converse(self, inquiries: Sequence[Inquiry]) -> Conversation:
        return converse_by_slot(inquiries, self._clock.now() if self._clock else None, self._scripts)

    def _probe(self, domain: str) -> None:
        self._topology.ask()
        tag = self._topology.tag_at(self.address)
        if tag is not None:
            self._decide_alone(f"{domain}:probe:{tag}", slot_of(tag))
