"""A real cluster and a real Sentinel group, of the servers that `tests.support.servers` finds.

    with Cluster(BINARIES[0]) as cluster:
        cluster.url

Both speak on loopback addresses and keep what they have to write in the servers' own directories.
"""

import contextlib
import itertools
import time
from contextlib import ExitStack
from typing import Any, Self

import redis
from redis.crc import key_slot

from tests.support.patience import eventually
from tests.support.ports import free_ports
from tests.support.servers import Binary, Server

SLOTS = 16_384
NODE_TIMEOUT = 1_000
_BUS = 10_000  # a cluster's nodes talk on their port and so many more


class Node(Server):
    """A cluster's node. It has to have room for its second port."""

    def __init__(self, binary: Binary) -> None:
        super().__init__(binary)
        self.port = free_ports(1, and_above=_BUS)[0]
        self.arguments = self._args = (
            *("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT)),
            *("--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0"),
            *("--repl-diskless-sync-delay", "0"),
        )

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def id(self) -> str:
        return str(self.admin.execute_command("CLUSTER", "MYID"))


class Cluster:
    """Three masters, each with a replica."""

    def __init__(self, binary: Binary) -> None:
        self._stack = ExitStack()
        self.nodes = [Node(binary) for _ in range(6)]

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self._stack.enter_context(node)
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:3])

    def master_of(self, slot: int) -> Node:
        """Who serves the slot by now."""
        for node in self.nodes:
            if node.alive:
                for start, end, master, *_ in node.admin.execute_command("CLUSTER", "SLOTS"):
                    if start <= slot <= end:
                        return next(known for known in self.nodes if known.port == master[1])
        raise LookupError(slot)

    def flush(self) -> None:
        """No keys, no scripts, no statistics."""
        for node in self.nodes:
            if node.alive:
                with contextlib.suppress(redis.exceptions.ReadOnlyError):
                    node.admin.flushall()
                node.admin.script_flush()
                node.admin.config_resetstat()

    def calls(self) -> int:
        """Script calls since the last flush, on all nodes."""
        return sum(node.calls("evalsha") + node.calls("eval") for node in self.nodes if node.alive)

    def begin_moving(self, slot: int, source: Node, target: Node) -> None:
        target.admin.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.admin.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot: int, source: Node, target: Node, *, pause: float = 0) -> None:
        """One key at a time, so that the halves of a request's keys may lie on both sides."""
        while keys := source.admin.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            source.admin.execute_command("MIGRATE", "127.0.0.1", target.port, keys[0], 0, 5_000)
            time.sleep(pause)

    def end_moving(self, slot: int, source: Node, target: Node) -> None:
        for node in (target, source, *self.nodes):
            with contextlib.suppress(redis.exceptions.ResponseError):  # replicas hear of it from their masters
                if node.alive:
                    node.admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        time.sleep(0.2)  # gossip that is on its way still tells of the old owner, and would upset the next move
        self.settle()

    def settle(self) -> None:
        """Wait until all who live agree that all slots are served, and every master has a replica again."""
        eventually(self._settled)

    def settle_without(self, dead: Node) -> None:
        """Wait until all who live agree that somebody else serves the slots of `dead`."""
        eventually(lambda: all(dead.port not in (row[2] for row in _view(node)) for node in self.nodes if node.alive))

    def _settled(self) -> bool:
        alive = [node for node in self.nodes if node.alive]
        views = {_view(node) for node in alive}
        links = [node.admin.info("replication") for node in alive]
        return (
            len(views) == 1
            and sum(end - start + 1 for start, end, _ in next(iter(views))) == SLOTS
            and all(node.admin.cluster("INFO")["cluster_state"] == "ok" for node in alive)
            and all(link["role"] == "master" or link["master_link_status"] == "up" for link in links)
        )

    def _build(self) -> None:
        masters, replicas = self.nodes[:3], self.nodes[3:]
        share = SLOTS // 3 + 1
        for number, node in enumerate(self.nodes):
            node.admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, master in enumerate(masters):
            slots = range(number * share, min((number + 1) * share, SLOTS))
            master.admin.execute_command("CLUSTER", "ADDSLOTS", *slots)
        for node in self.nodes[1:]:
            self.nodes[0].admin.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        eventually(lambda: all(node.admin.cluster("INFO")["cluster_known_nodes"] == "6" for node in self.nodes))
        for master, replica in zip(masters, replicas, strict=True):
            _insist(replica, "CLUSTER", "REPLICATE", master.id)
        self.settle()


class Sentinel(Server):
    """One that watches a master called `main`."""

    def __init__(self, binary: Binary, master: Server) -> None:
        super().__init__(binary)
        self._conf = self.directory / "sentinel.conf"
        self._conf.write_text(
            f"sentinel monitor main 127.0.0.1 {master.port} 2\n"
            "sentinel down-after-milliseconds main 500\n"
            "sentinel failover-timeout main 3000\n"
        )

    def _arguments(self) -> list[str]:
        return [
            *(str(self._conf), "--sentinel", "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket_path), "--dir", str(self.directory), "--daemonize", "no"),
        ]


class SentinelGroup:
    """Three Sentinels, a master and its replica."""

    def __init__(self, binary: Binary) -> None:
        self._stack = ExitStack()
        self._binary = binary
        self.sentinels: list[Sentinel] = []

    def __enter__(self) -> Self:
        try:
            self.master, self.replica = (self._stack.enter_context(Server(self._binary)) for _ in range(2))
            self.replica.config("repl-diskless-sync-delay", 0)
            self.master.config("repl-diskless-sync-delay", 0)
            self.replica.admin.replicaof("127.0.0.1", self.master.port)
            eventually(lambda: self.replica.admin.info("replication")["master_link_status"] == "up")
            for _ in range(3):
                self.sentinels.append(self._stack.enter_context(Sentinel(self._binary, self.master)))
            eventually(lambda: all(map(self._knows_all, self.sentinels)))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{server.port}" for server in self.sentinels) + "/main/0"

    @staticmethod
    def _knows_all(sentinel: Sentinel) -> bool:
        state: dict[str, Any] = sentinel.admin.sentinel_masters()["main"]
        return bool(state["num-other-sentinels"] == 2 and state["num-slaves"] == 1)


def keys_in(count: int, slot_is: Any, *, name: str = "d:r") -> list[str]:
    """So many keys whose slot satisfies `slot_is`."""
    numbered = (f"{name}:{{{number}}}" for number in itertools.count())
    return list(itertools.islice((key for key in numbered if slot_is(key_slot(key.encode()))), count))


def _view(node: Node) -> frozenset[tuple[int, int, int]]:
    return frozenset(
        (start, end, master[1]) for start, end, master, *_ in node.admin.execute_command("CLUSTER", "SLOTS")
    )


def _insist(node: Node, *command: Any) -> None:
    def accepted() -> bool:
        try:
            node.admin.execute_command(*command)
        except redis.exceptions.ResponseError:  # it has not heard of that node yet
            return False
        return True

    eventually(accepted)
