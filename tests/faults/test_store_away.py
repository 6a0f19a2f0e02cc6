"""The store goes away in every way that it can, and comes back: what requests see of it.

Each fault is told apart by name. While it lasts the first decisions fail within 0.4 s in total and later ones at
once; one line is logged when the store goes and one when it is back; limits hold again within 2 s.
"""

import asyncio
import logging
import re
import shutil
import signal
import socket
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE

import pytest

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.redis.store import RedisStore
from tests.support.apps import ROOT
from tests.support.patience import at_most, eventually, three_tries
from tests.support.processes import end, spawn
from tests.support.proxy import Proxy
from tests.support.servers import BINARIES, Server

ASKS = [Ask("d:r:{x}", Quota("fixed_window", 1_000_000, 3_600_000_000))]


def attempt(store):
    try:
        return store.decide(ASKS)
    except StoreUnavailable:
        return None


async def aattempt(store):
    try:
        return await store.adecide(ASKS)
    except StoreUnavailable:
        return None


class Threads:
    """Asks from threads."""

    def __init__(self, store):
        self.store = store
        self._pool = ThreadPoolExecutor(20)

    def one(self):
        return attempt(self.store)

    def many(self):
        return list(self._pool.map(lambda _: attempt(self.store), range(20)))

    def close(self):
        self._pool.shutdown()
        self.store.close()


class Tasks:
    """Asks from one event loop, which runs in a thread of its own."""

    def __init__(self, store):
        self.store = store
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def one(self):
        return self._run(aattempt(self.store))

    def many(self):
        async def gather():
            return await asyncio.gather(*(aattempt(self.store) for _ in range(20)))

        return self._run(gather())

    def close(self):
        self._run(self.store.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()


@pytest.fixture(params=[Threads, Tasks], ids=["threads", "tasks"])
def client_of(request):
    """Makes a client, the only one: what an earlier one still finds and logs is nobody else's."""
    clients = []

    def close():
        while clients:
            clients.pop().close()

    def make(url, **options):
        close()
        clients.append(request.param(RedisStore(url, **options)))
        return clients[-1]

    yield make
    close()


@pytest.fixture
def proxy(fresh_server):
    with Proxy(fresh_server.port) as proxy:
        yield proxy


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


FAULTS = [
    pytest.param((lambda s, p: s.pause(), lambda s, p: s.resume()), id="SIGSTOP"),
    pytest.param((lambda s, p: s.kill(), lambda s, p: s.start()), id="kill -9"),
    pytest.param((read_only, writable), id="a read-only replica"),
    pytest.param((full, lambda s, p: s.config("maxmemory", 0)), id="out of memory"),
    pytest.param((password_wanted, lambda s, p: s.config("requirepass", "")), id="a password appears"),
    pytest.param((forbidden, permitted), id="scripts forbidden"),
    pytest.param((master_down, writable), id="a replica without its master"),
    pytest.param((too_few_replicas, lambda s, p: s.config("min-replicas-to-write", 0)), id="too few replicas"),
    pytest.param((snapshot_failed, lambda s, p: s.config("save", "")), id="a snapshot failed"),
    pytest.param((busy, lambda s, p: s.admin.script_kill()), id="a script that does not end"),
    pytest.param((too_many_clients, lambda s, p: s.config("maxclients", 100)), id="too many clients"),
    pytest.param((lambda s, p: p.black_hole(), lambda s, p: p.heal()), id="a black hole"),
    pytest.param((lambda s, p: p.reset(), lambda s, p: p.heal()), id="resets"),
    pytest.param((lambda s, p: p.half_reply(), lambda s, p: p.heal()), id="half a reply"),
    pytest.param((lambda s, p: p.drop_reply(), lambda s, p: p.heal()), id="replies dropped, connections closed"),
    pytest.param((lambda s, p: p.drop_reply(close=False), lambda s, p: p.heal()), id="replies dropped in silence"),
    pytest.param((lambda s, p: p.drip(1, 0.02), lambda s, p: p.heal()), id="a slow drip"),
]


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def hold_again(client, within=2.0):
    """Seconds until a decision is made again."""
    start = time.monotonic()
    while client.one() is None:
        assert time.monotonic() - start < within, "limits do not hold again"
        time.sleep(0.005)
    return time.monotonic() - start


def connect(client, caplog):
    """However slowly the machine connects."""
    eventually(client.one)
    caplog.clear()


@pytest.mark.parametrize("fault", FAULTS)
@three_tries
def test_it_goes_away_and_comes_back(client_of, fresh_server, proxy, caplog, fault):
    breaks, heals = fault
    client = client_of(proxy.url, timeout=0.2)
    connect(client, caplog)
    assert None not in client.many()
    assert lines(caplog) == []
    breaks(fresh_server, proxy)
    try:
        with at_most(0.5):
            for _ in range(3):
                assert client.many() == [None] * 20
        with at_most(0.1):  # a hundred decisions
            for _ in range(5):
                assert client.many() == [None] * 20
        time.sleep(0.6)  # probes come and fail meanwhile
        assert client.one() is None
    finally:
        heals(fresh_server, proxy)
    hold_again(client)
    for _ in range(5):
        assert None not in client.many()
    assert [("is away" in line, "is back:" in line) for line in lines(caplog)] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("refused", id="a port where nobody listens"),
        pytest.param("black hole", id="a black hole"),
        pytest.param("password", id="a wrong password"),
        pytest.param("stopped", id="a server that was stopped before"),
    ],
)
def test_it_is_not_there_from_the_start(client_of, fresh_server, proxy, caplog, fault):
    url = proxy.url
    if fault == "refused":
        fresh_server.kill()
        url = fresh_server.url
    elif fault == "black hole":
        proxy.black_hole()
    elif fault == "password":
        fresh_server.config("requirepass", "right")
        fresh_server.admin.execute_command("AUTH", "right")
        url = url.replace("//", "//:wrong@")
    else:
        fresh_server.pause()
    _nobody_waits_for(lambda: client_of(url))
    client = client_of(url)
    assert client.one() is None
    if fault == "refused":
        fresh_server.start()
    elif fault == "black hole":
        proxy.heal()
    elif fault == "password":
        fresh_server.config("requirepass", "wrong")
    else:
        fresh_server.resume()
    hold_again(client)
    assert "wrong" not in "".join(lines(caplog))


@three_tries
def _nobody_waits_for(new_client):
    """A client that has never seen its store."""
    client = new_client()
    with at_most(0.4):
        for _ in range(3):
            assert client.many() == [None] * 20
    with at_most(0.1):
        for _ in range(5):
            assert client.many() == [None] * 20


REASONS = [
    pytest.param((lambda s, p: s.pause(), "no answer within the deadline"), id="SIGSTOP"),
    pytest.param((lambda s, p: p.black_hole(), "no answer within the deadline"), id="a black hole"),
    pytest.param((lambda s, p: s.kill(), "closed the connection|reset|refused"), id="kill -9"),
    pytest.param((lambda s, p: p.reset(), "[Rr]eset|[Bb]roken pipe"), id="resets"),
    pytest.param((lambda s, p: p.half_reply(), "the server closed the connection"), id="half a reply"),
    pytest.param((lambda s, p: p.drop_reply(), "the server closed the connection"), id="a reply dropped"),
    pytest.param((read_only, "READONLY"), id="a read-only replica"),
    pytest.param((full, "OOM"), id="out of memory"),
    pytest.param((forbidden, "NOPERM"), id="scripts forbidden"),
    pytest.param((master_down, "MASTERDOWN"), id="a replica without its master"),
    pytest.param((too_few_replicas, "NOREPLICAS"), id="too few replicas"),
    pytest.param((snapshot_failed, "MISCONF"), id="a snapshot failed"),
    pytest.param((busy, "BUSY"), id="a script that does not end"),
    pytest.param(
        (too_many_clients, "max number of clients|closed the connection|reset|Broken pipe"), id="too many clients"
    ),
]


@pytest.mark.parametrize("fault", REASONS)
def test_the_log_names_the_true_reason(client_of, fresh_server, proxy, caplog, fault):
    breaks, words = fault
    client = client_of(proxy.url, timeout=1)
    connect(client, caplog)
    breaks(fresh_server, proxy)
    assert client.one() is None
    (line,) = lines(caplog)
    assert re.search(rf"is away \(.*({words})", line)
    fresh_server.resume()


def test_a_handshake_longer_than_the_deadline_ends_all_the_same(client_of, proxy):
    """Half a second to select the database, and half a second for a decision: the first request is too early."""
    proxy.delay(0.25)
    client = client_of(proxy.url.replace("/0", "/1"), timeout=0.7)
    client.store._reached = True  # a later connection of the process, for which requests do not wait
    assert client.one() is None
    eventually(client.one)
    assert None not in [client.one() for _ in range(5)]


def test_a_reply_lost_after_the_commit_is_counted_once(client_of, fresh_server, proxy):
    client = client_of(proxy.url, timeout=5)
    assert client.one().outcomes[0].remaining == 999_999
    proxy.drop_reply(times=1)
    assert client.one() is None
    proxy.heal()
    hold_again(client)
    assert client.one().outcomes[0].remaining == 999_996  # one before, one lost, one that noticed, this one


def test_a_key_of_another_type_spoils_only_its_own_request(client_of, fresh_server, caplog):
    client = client_of(fresh_server.url, timeout=5)
    fresh_server.admin.lpush("d:spoilt:{x}", "1")
    spoilt = Ask("d:spoilt:{x}", Quota("token_bucket", 5, 1_000_000, 5))

    async def both():
        return await asyncio.gather(
            *(client.store.adecide([ask]) for ask in (*ASKS, spoilt, *ASKS, spoilt)), return_exceptions=True
        )

    kinds = [type(reply).__name__ for reply in asyncio.run(both())]
    assert kinds == ["Reply", "CounterError", "Reply", "CounterError"]
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        client.store.decide([*ASKS, spoilt])
    assert None not in client.many()
    assert len(lines(caplog)) == 1  # however often
    assert "refuses a counter" in lines(caplog)[0]


def test_a_user_who_may_not_write_is_let_pass_and_told_once(client_of, fresh_server, caplog):
    client = client_of(fresh_server.url, timeout=5)
    fresh_server.admin.execute_command("ACL", "SETUSER", "default", "-set")
    assert client.many() == [None] * 20
    assert "'set'" in lines(caplog)[0]
    assert len(lines(caplog)) == 1
    permitted(fresh_server, None)
    assert None not in client.many()


@pytest.mark.parametrize("binary", [pytest.param(binary, id=binary.name) for binary in BINARIES])
def test_every_version_says_so_in_its_own_words(binary, client_of, caplog):
    """Error texts differ by version: with the script's line, or without."""
    with Server(binary) as server:
        client = client_of(server.url, timeout=5)
        server.admin.lpush("d:spoilt:{x}", "1")
        for name in ("fixed_window", "sliding_log"):
            with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
                client.store.decide([Ask("d:spoilt:{x}", Quota(name, 5, 1_000_000))])
        assert client.one() is not None
        for breaks, heals in ((read_only, writable), (full, lambda s, p: s.config("maxmemory", 0))):
            breaks(server, None)
            assert client.one() is None
            assert client.store._breaker.open
            heals(server, None)
            hold_again(client)


def test_a_loop_held_up_while_replies_wait_opens_nothing(any_server, caplog):
    async def main():
        store = RedisStore(any_server.url, timeout=0.1)
        while await aattempt(store) is None:  # noqa: ASYNC110  however slowly the machine connects
            await asyncio.sleep(0.05)
        caplog.clear()
        for _ in range(5):
            decision = asyncio.create_task(store.adecide(ASKS))
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # it is sent
            time.sleep(0.3)  # noqa: ASYNC251  the app itself holds the loop up
            assert (await decision).outcomes[0].allowed
        for _ in range(5):
            decision = asyncio.create_task(store.adecide(ASKS))
            time.sleep(0.3)  # noqa: ASYNC251  before it is sent
            assert (await decision).outcomes[0].allowed
        await store.aclose()

    asyncio.run(main())
    assert lines(caplog) == []


def test_a_process_that_was_stopped_for_a_while_opens_nothing(any_server):
    """A laptop's sleep, a debugger: the threads find their replies waiting."""
    code = """
        import sys, threading, time
        from ratelimit_mw.errors import StoreUnavailable
        from ratelimit_mw.model import Ask, Quota
        from ratelimit_mw.stores.redis.store import RedisStore
        store = RedisStore(sys.argv[1], timeout=0.1)
        asks = [Ask("d:r:{x}", Quota("fixed_window", 1_000_000_000, 3_600_000_000))]
        while True:  # however slowly the machine connects
            try:
                store.decide(asks)
                break
            except StoreUnavailable:
                time.sleep(0.05)
        end = time.monotonic() + 3
        def load():
            while time.monotonic() < end:
                store.decide(asks)
        threads = [threading.Thread(target=load) for _ in range(4)]
        print("up", flush=True)
        [t.start() for t in threads]
        [t.join() for t in threads]
        print("fine", flush=True)
    """
    process = spawn([sys.executable, "-c", textwrap.dedent(code), any_server.url], cwd=ROOT, stdout=PIPE, stderr=PIPE)
    with process:
        try:
            assert process.stdout.readline() == b"up\n"
            for _ in range(5):
                time.sleep(0.1)
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.3)
                process.send_signal(signal.SIGCONT)
            assert process.stdout.read() == b"fine\n"
            assert process.stderr.read() == b""
        finally:
            end(process)
