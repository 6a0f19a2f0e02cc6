"""A master that Sentinels watch: followed when it dies, and when it steps down."""

import asyncio
import socket

import pytest
import redis

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.base import DECIDE
from ratelimit_mw.stores.redis.endpoint import Sentinels
from tests.support.apps import LONG
from tests.support.patience import at_most, eventually

ASK = Ask("d:r:{x}", Quota("fixed_window", 100, LONG))


def opened(url, timeout=5.0):
    return open_store(StorageSettings(url=url, timeout=timeout))


def remaining(store, way):
    reply = store.decide([ASK]) if way == "threads" else asyncio.run(store.aask(([ASK], DECIDE)))
    return reply.outcomes[0].remaining


def answers(store, way):
    try:
        return remaining(store, way)
    except StoreUnavailable:
        return None


@pytest.mark.parametrize("way", ["threads", "tasks"])
def test_the_master_decides_even_where_the_first_sentinel_is_gone(fresh_sentinels, way):
    fresh_sentinels.sentinels[0].kill()
    store = opened(fresh_sentinels.url)
    assert [remaining(store, way) for _ in range(2)] == [99, 98]
    assert fresh_sentinels.master.admin.exists(ASK.key)
    store.close()


@pytest.mark.parametrize("way", ["threads", "tasks"])
def test_a_master_that_steps_down_is_left(fresh_sentinels, way):
    store = opened(fresh_sentinels.url)
    assert remaining(store, way) == 99
    fresh_sentinels.master.admin.wait(1, 1_000)
    eventually(lambda: _failed_over(fresh_sentinels))
    eventually(lambda: is_master(fresh_sentinels.replica))
    # The Sentinels do this as well, ten seconds later. `tests/load/test_failover.py` has the time that it takes.
    fresh_sentinels.master.admin.replicaof("127.0.0.1", fresh_sentinels.replica.port)
    assert eventually(lambda: answers(store, way)) == 98
    store.close()


def test_a_connection_to_a_master_turned_replica_is_dropped_at_its_first_refusal(fresh_sentinels):
    """Even where nobody closed it, and the refusal came from inside the script."""
    store = opened(fresh_sentinels.url)
    assert remaining(store, "threads") == 99
    connection = store._threads._connection
    fresh_sentinels.master.admin.replicaof("127.0.0.1", fresh_sentinels.replica.port)
    with pytest.raises(StoreUnavailable, match="READONLY"):
        store.decide([ASK])
    assert not connection.usable
    store.close()


def test_without_a_sentinel_the_store_is_away_at_once():
    store = opened("redis+sentinel://127.0.0.1:1,127.0.0.1:2/main", timeout=60)
    with at_most(30):  # where one waits, it waits for the whole timeout
        for way in ("threads", "tasks"):
            assert answers(store, way) is None
    store.close()


@pytest.mark.parametrize("way", ["threads", "tasks"])
def test_a_service_that_nobody_watches_is_away(sentinels, way):
    store = opened(sentinels.url.replace("main", "other"))
    with pytest.raises(StoreUnavailable, match="no Sentinel names a master"):
        remaining(store, way)
    store.close()


def test_the_sentinels_have_a_password_of_their_own(fresh_sentinels):
    for sentinel in fresh_sentinels.sentinels:
        sentinel.admin.execute_command("ACL", "SETUSER", "default", "resetpass", ">s p@ss")
    fresh_sentinels.master.admin.execute_command("ACL", "SETUSER", "me", "on", ">other", "~*", "+@all")
    url = fresh_sentinels.url.replace("://", "://me:other@")
    store = opened(f"{url}?sentinel_password=s%20p%40ss")
    assert remaining(store, "threads") == 99
    assert remaining(store, "tasks") == 98
    store.close()
    store = opened(url)
    with pytest.raises(StoreUnavailable):
        remaining(store, "threads")
    store.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        pytest.param("redis+sentinel://localhost:26379", "service's name", id="no service"),
        pytest.param("redis+sentinel://localhost:26379/main/0/1", "service's name", id="too much of a path"),
        pytest.param("redis+sentinel:///main", "host", id="no host"),
        pytest.param("redis+sentinel://a:1,:2/main", "host", id="a port without a host"),
        pytest.param("redis+sentinel://localhost:x/main", "its port", id="a port that is none"),
        pytest.param("redis+sentinel://localhost/main?no_such_option=1", "no_such_option", id="an unknown option"),
        pytest.param("redis+sentinel://localhost/main?nothing", "bad query field", id="an option without a value"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_at_start(url, words):
    with pytest.raises(ValueError, match=words):
        opened(url)


def test_options_go_where_they_belong():
    where = Sentinels("redis+sentinel://me:secret@[::1],b:5/main/3?tls=true&ssl_ca_certs=/ca&sentinel_username=w")
    assert where.addresses == (("::1", 26379), ("b", 5))
    assert where.url == "rediss://me:secret@localhost/3?ssl_ca_certs=%2Fca"
    assert where.watch == "rediss://w:@localhost/0?ssl_ca_certs=%2Fca"


def is_master(server):
    try:
        return server.admin.info("replication")["role"] == "master"
    except redis.exceptions.ConnectionError:  # a Sentinel that promotes closes what is connected
        return False


def _failed_over(group):
    with socket.create_connection(("127.0.0.1", group.sentinels[0].port)) as line:
        line.sendall(b"SENTINEL FAILOVER main\r\n")
        return line.recv(100).startswith((b"+OK", b"-INPROG"))
