"""Clients of a store behind a proxy, on a server that the test may break."""

import pytest

from ratelimit_mw.stores.redis.store import RedisStore
from tests.faults.faults import ASKS, Tasks, Threads, UvloopTasks
from tests.support.proxy import Proxy


@pytest.fixture
def opens():
    """What opens a store, and what it is asked."""
    return RedisStore, ASKS


@pytest.fixture(params=[Threads, Tasks, UvloopTasks], ids=["threads", "tasks", "uvloop"])
def client_of(request, opens):
    """Makes a client, the only one: what an earlier one still finds and logs belongs to no other."""
    clients = []
    store_of, asks = opens

    def close():
        while clients:
            clients.pop().close()

    def make(url, **options):
        close()
        clients.append(request.param(store_of(url, **options), asks))
        return clients[-1]

    yield make
    close()


@pytest.fixture
def proxy(fresh_server):
    with Proxy(fresh_server.port) as proxy:
        yield proxy
