"""Clients of a store behind a proxy, on a server that the test may break."""

import pytest

from ratelimit_mw.stores.redis.store import RedisStore
from tests.faults.faults import Tasks, Threads
from tests.support.proxy import Proxy


@pytest.fixture(params=[Threads, Tasks], ids=["threads", "tasks"])
def client_of(request):
    """Makes a client, the only one: what an earlier one still finds and logs belongs to no other."""
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
