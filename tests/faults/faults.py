"""Every way in which a store goes away, who asks it meanwhile, and what they see; at any timeout."""

import asyncio
import logging
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.base import DECIDE
from tests.support.apps import LONG
from tests.support.patience import WITHIN, at_most, eventually

ASKS = [Ask("d:r:{x}", Quota("fixed_window", 1_000_000, LONG))]


def attempt(store, asks=ASKS):
    try:
        return store.decide(asks)
    except StoreUnavailable:
        return None


async def aattempt(store, asks=ASKS):
    try:
        return await store.aask((asks, DECIDE))
    except StoreUnavailable:
        return None


class Threads:
    """Asks from threads."""

    def __init__(self, store, asks=ASKS):
        self.store = store
        self._asks = asks
        self._pool = ThreadPoolExecutor(20)

    def one(self):
        return attempt(self.store, self._asks)

    def many(self):
        return list(self._pool.map(lambda _: attempt(self.store, self._asks), range(20)))

    def close(self):
        self._pool.shutdown()
        self.store.close()


class Tasks:
    """Asks from one event loop, which runs in a thread of its own."""

    loop_factory = None

    def __init__(self, store, asks=ASKS):
        self.store = store
        self._asks = asks
        self._runner = asyncio.Runner(loop_factory=self.loop_factory)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def one(self):
        return self.run(aattempt(self.store, self._asks))

    def many(self):
        async def gather():
            return await asyncio.gather(*(aattempt(self.store, self._asks) for _ in range(20)))

        return self.run(gather())

    def close(self):
        self.run(self.store.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()


class UvloopTasks(Tasks):
    """Asks from one event loop of uvloop, which reports the ends of connections at other times than asyncio."""

    loop_factory = staticmethod(uvloop.new_event_loop)


def read_only(server, proxy):
    server.admin.replicaof("127.0.0.1", 1)


def master_down(server, proxy):
    server.config("replica-serve-stale-data", "no")
    read_only(server, proxy)


def too_few_replicas(server, proxy):
    server.config("min-replicas-to-write", 1)


def snapshot_failed(server, proxy):
    server.config("save", "3600 1")
    shutil.rmtree(server.directory)  # where it would be written to
    server.admin.set("d:snapshot", 1)
    server.admin.bgsave()
    eventually(lambda: server.admin.info("persistence")["rdb_last_bgsave_status"] == "err")


def busy(server, proxy):
    """A script that does not end, until it is killed."""
    server.config("lua-time-limit", 1)
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(b'EVAL "while true do end" 0\r\n')
        with socket.create_connection(("127.0.0.1", server.port)) as other:
            eventually(lambda: (other.sendall(b"GET x\r\n"), other.recv(100))[1].startswith(b"-BUSY"))


def too_many_clients(server, proxy):
    server.config("maxclients", 1)
    server.admin.client_kill_filter(_type="normal", skipme=True)


def writable(server, proxy):
    server.admin.replicaof("NO", "ONE")


def full(server, proxy):
    server.config("maxmemory", 1)
    server.config("maxmemory-policy", "noeviction")


def password_wanted(server, proxy):
    server.config("requirepass", "secret")
    server.admin.execute_command("AUTH", "secret")
    server.admin.client_kill_filter(_type="normal", skipme=True)


def forbidden(server, proxy):
    server.admin.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")


def permitted(server, proxy):
    server.admin.execute_command("ACL", "SETUSER", "default", "+@all")


OF_ANY_SERVER = [
    pytest.param((lambda s, p: s.pause(), lambda s, p: s.resume()), id="SIGSTOP"),
    pytest.param((lambda s, p: s.kill(), lambda s, p: s.start()), id="kill -9"),
    pytest.param((lambda s, p: p.black_hole(), lambda s, p: p.heal()), id="a black hole"),
    pytest.param((lambda s, p: p.reset(), lambda s, p: p.heal()), id="resets"),
    pytest.param((lambda s, p: p.half_reply(), lambda s, p: p.heal()), id="half a reply"),
    pytest.param((lambda s, p: p.drop_reply(), lambda s, p: p.heal()), id="replies dropped, connections closed"),
    pytest.param((lambda s, p: p.drop_reply(close=False), lambda s, p: p.heal()), id="replies dropped in silence"),
    pytest.param((lambda s, p: p.drip(1, 0.2), lambda s, p: p.heal()), id="a slow drip"),
]

FAULTS = [
    *OF_ANY_SERVER,
    pytest.param((read_only, writable), id="a read-only replica"),
    pytest.param((full, lambda s, p: s.config("maxmemory", 0)), id="out of memory"),
    pytest.param((password_wanted, lambda s, p: s.config("requirepass", "")), id="a password appears"),
    pytest.param((forbidden, permitted), id="scripts forbidden"),
    pytest.param((master_down, writable), id="a replica without its master"),
    pytest.param((too_few_replicas, lambda s, p: s.config("min-replicas-to-write", 0)), id="too few replicas"),
    pytest.param((snapshot_failed, lambda s, p: s.config("save", "")), id="a snapshot failed"),
    pytest.param((busy, lambda s, p: s.admin.script_kill()), id="a script that does not end"),
    pytest.param((too_many_clients, lambda s, p: s.config("maxclients", 100)), id="too many clients"),
]


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def kinds(logged):
    """What each line tells: that the store is away, what waiting cannot heal, or that it is back.

    A store that goes slowly may answer one request in time and be late for another. A line of its own counts those.
    """
    told = [line for line in logged if "answered others, but not" not in line]
    return ["back" if "is back:" in line else "fault" if "Waiting does not help" in line else "away" for line in told]


def hold_again(client, within=WITHIN):
    """Return once a decision is made again."""
    eventually(client.one, within=within, every=0.005)


def connect(client, caplog):
    """However slowly the machine connects."""
    eventually(client.one)
    caplog.clear()


def away_and_back(client_of, server, proxy, caplog, fault, *, timeout, back_within=WITHIN):
    """Have the store go away and come back, and return what was logged."""
    breaks, heals = fault
    client = client_of(proxy.url, timeout=timeout)
    connect(client, caplog)
    assert None not in client.many()
    assert lines(caplog) == []
    breaks(server, proxy)
    try:
        fail_at_once(client, timeout)
        time.sleep(0.6)  # probes come and fail meanwhile
        assert client.one() is None
    finally:
        heals(server, proxy)
    hold_again(client, back_within)
    for _ in range(5):
        assert None not in client.many()
    return lines(caplog)


def never_there(client_of, server, proxy, caplog, fault, *, timeout, back_within=WITHIN):
    """Have the store come after its clients, and return what was logged."""
    url = proxy.url
    if fault == "no listener":
        server.kill()
        url = server.url
    elif fault == "black hole":
        proxy.black_hole()
    elif fault == "password":
        server.config("requirepass", "right")
        server.admin.execute_command("AUTH", "right")
        url = url.replace("//", "//:wrong@")
    else:
        server.pause()
    client = client_of(url, timeout=timeout)
    fail_at_once(client, timeout)
    assert client.one() is None
    if fault == "no listener":
        server.start()
    elif fault == "black hole":
        proxy.heal()
    elif fault == "password":
        server.config("requirepass", "wrong")
    else:
        server.resume()
    hold_again(client, back_within)
    return lines(caplog)


def fail_at_once(client, timeout):
    """Of 60 decisions only the first wait for the timeout, and of 100 more none does."""
    with at_most(2.5 * timeout):
        for _ in range(3):
            assert client.many() == [None] * 20
    with at_most(0.5 * timeout):
        for _ in range(5):
            assert client.many() == [None] * 20
