"""The store goes away in every way that it can, and comes back: what requests see of it.

Each fault is told apart by name. While it lasts only the first decisions wait for the timeout and later ones fail at
once; one line is logged when the store goes and one when it is back; then limits apply again. The timeout is many times
what a healthy store takes, so that a busy machine is no fault. `tests/load/test_store_away_times.py` has the times.
"""

import asyncio
import re
import signal
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from subprocess import PIPE

import pytest

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.base import DECIDE
from ratelimit_mw.stores.redis.store import RedisStore
from tests.faults.faults import (
    ASKS,
    FAULTS,
    Tasks,
    Threads,
    aattempt,
    attempt,
    away_and_back,
    busy,
    connect,
    forbidden,
    full,
    hold_again,
    kinds,
    lines,
    master_down,
    never_there,
    permitted,
    read_only,
    snapshot_failed,
    too_few_replicas,
    too_many_clients,
    writable,
)
from tests.support.apps import ROOT
from tests.support.patience import WITHIN, at_most, eventually
from tests.support.ports import free_port
from tests.support.processes import end, spawn
from tests.support.servers import BINARIES, Server

TIMEOUT = 2.0
SHORT = 1.0


@pytest.mark.parametrize("fault", FAULTS)
def test_it_goes_away_and_comes_back(client_of, fresh_server, proxy, caplog, fault):
    logged = away_and_back(client_of, fresh_server, proxy, caplog, fault, timeout=TIMEOUT)
    assert kinds(logged) in (["away", "back"], ["fault", "back"], ["away", "fault", "back"])


@pytest.mark.parametrize("fault", ["no listener", "black hole", "password", "stopped"])
def test_it_is_not_there_from_the_start(client_of, fresh_server, proxy, caplog, fault):
    logged = never_there(client_of, fresh_server, proxy, caplog, fault, timeout=TIMEOUT)
    assert "wrong" not in "".join(logged)


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
    client = client_of(proxy.url, timeout=1 if "deadline" in words else 10)
    connect(client, caplog)
    breaks(fresh_server, proxy)
    assert client.one() is None
    (line,) = lines(caplog)
    assert re.search(rf"is away \(.*({words})", line)
    fresh_server.resume()


def test_a_reply_lost_after_the_commit_is_counted_once(client_of, fresh_server, proxy):
    client = client_of(proxy.url, timeout=5)
    assert client.one().outcomes[0].remaining == 999_999
    proxy.drop_reply(times=1)
    assert client.one() is None
    proxy.heal()
    hold_again(client)
    assert client.one().outcomes[0].remaining == 999_996  # one before, one lost, one that noticed, this one


def test_threads_whose_requests_were_sent_together_fail_together(fresh_server, proxy):
    """The second batch, of those that wait while the first is under way, loses its reply."""
    client = Threads(RedisStore(proxy.url, timeout=WITHIN))
    eventually(client.one)
    proxy.delay(0, 1)
    calls = fresh_server.calls("evalsha")
    loses = threading.Thread(
        target=lambda: (eventually(lambda: fresh_server.calls("evalsha") > calls), proxy.drop_reply())
    )
    loses.start()
    with at_most(WITHIN / 2):
        assert client.many().count(None) >= 19
    loses.join()
    assert client.store.late_requests == 0
    client.close()


def test_it_is_not_back_before_the_loops_are_connected_again(fresh_server, proxy):
    client = Tasks(RedisStore(proxy.url, timeout=WITHIN))
    eventually(client.one)
    proxy.reset()
    assert client.one() is None
    goes_on = threading.Event()
    client.run(hold_up(goes_on))
    calls = fresh_server.calls("evalsha")
    proxy.heal()
    eventually(lambda: fresh_server.calls("evalsha") > calls)  # a probe was answered
    time.sleep(0.3)
    assert client.store.away
    goes_on.set()
    eventually(lambda: not client.store.away)
    assert client.one() is not None
    client.close()


@pytest.mark.parametrize("first", ["a thread", "a task"])
def test_no_connection_from_before_is_used_after_the_return(fresh_server, any_server, proxy, caplog, first):
    """The address leads to another server by now, and connections to the old one, which only reads, stay open."""
    client = Tasks(RedisStore(proxy.url, timeout=WITHIN))
    ways = [lambda: attempt(client.store), client.one]
    for way in ways:
        eventually(way)
    read_only(fresh_server, proxy)
    proxy.target = any_server.port
    assert ways[first == "a task"]() is None
    eventually(lambda: not client.store.away)
    assert None not in [way() for way in ways]
    assert kinds(lines(caplog)) == ["away", "back"]
    client.close()


def test_a_return_does_not_interrupt_the_request_of_a_thread(fresh_server, any_server, proxy):
    with closing(Tasks(RedisStore(proxy.url, timeout=WITHIN))) as client, ThreadPoolExecutor(1) as pool:
        eventually(lambda: attempt(client.store))
        fresh_server.admin.client_pause(60_000, all=False)
        slow = pool.submit(attempt, client.store)
        eventually(lambda: fresh_server.admin.info("clients")["blocked_clients"])
        proxy.target = free_port()
        assert client.one() is None  # a connection of its own, to nowhere
        proxy.target = any_server.port
        eventually(lambda: not client.store.away)
        fresh_server.admin.client_unpause()
        assert slow.result() is not None


async def hold_up(goes_on):
    """Let the app hold up its loop until then."""
    asyncio.get_running_loop().call_later(0.01, goes_on.wait, WITHIN)


def test_a_key_of_another_type_spoils_only_its_own_request(client_of, fresh_server, caplog):
    client = client_of(fresh_server.url, timeout=5)
    fresh_server.admin.lpush("d:spoilt:{x}", "1")
    spoilt = Ask("d:spoilt:{x}", Quota("token_bucket", 5, 1_000_000, 5))

    async def both():
        return await asyncio.gather(
            *(client.store.aask(([ask], DECIDE)) for ask in (*ASKS, spoilt, *ASKS, spoilt)), return_exceptions=True
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
    assert "permit the server's user the commands and keys" in lines(caplog)[0]
    assert len(lines(caplog)) == 1
    permitted(fresh_server, None)
    hold_again(client)


def test_a_user_who_may_send_scripts_but_not_call_them_by_name_is_told_once(client_of, fresh_server, caplog):
    client = client_of(fresh_server.url, timeout=5)
    connect(client, caplog)
    fresh_server.admin.execute_command("ACL", "SETUSER", "default", "-evalsha")
    assert client.one() is None
    sent = fresh_server.calls("eval")
    eventually(lambda: fresh_server.calls("eval") >= sent + 2)  # each probe sends its script first
    assert client.store.away
    assert kinds(lines(caplog)) == ["fault"]
    assert "evalsha" in lines(caplog)[0]
    permitted(fresh_server, None)
    hold_again(client)


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
            assert client.store.away
            heals(server, None)
            hold_again(client)


def test_a_loop_held_up_while_replies_wait_opens_nothing(any_server, caplog):
    async def main():
        store = RedisStore(any_server.url, timeout=SHORT)
        while await aattempt(store) is None:  # noqa: ASYNC110  however slowly the machine connects
            await asyncio.sleep(0.05)
        caplog.clear()
        decision = asyncio.create_task(store.aask((ASKS, DECIDE)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is sent
        time.sleep(1.5 * SHORT)  # noqa: ASYNC251  the app itself holds the loop up
        assert (await decision).outcomes[0].allowed
        decision = asyncio.create_task(store.aask((ASKS, DECIDE)))
        time.sleep(1.5 * SHORT)  # noqa: ASYNC251  before it is sent
        assert (await decision).outcomes[0].allowed
        await store.aclose()

    asyncio.run(main())
    assert lines(caplog) == []


def test_a_process_that_was_stopped_for_a_while_opens_nothing(any_server):
    """A laptop's sleep, a debugger: the threads find their replies waiting, but on a busy machine not all in time."""
    code = """
        import sys, threading, time
        from contextlib import suppress
        from ratelimit_mw.errors import Late, StoreUnavailable
        from ratelimit_mw.model import Ask, Quota
        from ratelimit_mw.stores.redis.store import RedisStore
        store = RedisStore(sys.argv[1], timeout=float(sys.argv[2]))
        asks = [Ask("d:r:{x}", Quota("fixed_window", 1_000_000_000, 3_600_000_000))]
        while True:  # however slowly the machine connects
            try:
                store.decide(asks)
                break
            except StoreUnavailable:
                time.sleep(0.05)
        ends = threading.Event()
        def load():
            while not ends.is_set():
                with suppress(Late):
                    store.decide(asks)
        threads = [threading.Thread(target=load) for _ in range(4)]
        print("up", flush=True)
        [t.start() for t in threads]
        sys.stdin.readline()
        ends.set()
        [t.join() for t in threads]
        print("fine", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), any_server.url, str(SHORT)]
    process = spawn(command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    with process:
        try:
            assert process.stdout.readline() == b"up\n"
            for _ in range(2):
                time.sleep(0.1)
                process.send_signal(signal.SIGSTOP)
                time.sleep(1.5 * SHORT)
                process.send_signal(signal.SIGCONT)
            out, error = process.communicate(b"\n", timeout=WITHIN)
            assert out == b"fine\n"
            assert b"Traceback" not in error
            assert b"is away" not in error
        finally:
            end(process)
