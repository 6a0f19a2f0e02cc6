import asyncio

import pytest

from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import open_store
from tests.stores.contract import Contract


def opened(url, *, clock=None, timeout=2):
    return open_store(StorageSettings(url=url, timeout=timeout), clock)


class TestMemory(Contract):
    @pytest.fixture
    def make(self):
        return lambda **options: opened("memory://", **options)


class TestRedis(Contract):
    @pytest.fixture
    def make(self, server):
        return lambda **options: opened(server.url, **options)


class _Awaited(Contract):
    """Asks from an event loop, a new one each time."""

    def decide(self, store, asks, *, commit=True):
        return asyncio.run(store.adecide(asks, commit=commit))

    def forget(self, store, keys):
        asyncio.run(store.aforget(keys))

    def refund(self, store, asks, charged_at):
        asyncio.run(store.arefund(asks, charged_at))

    def charge(self, store, asks, instead_of=None):
        return asyncio.run(store.acharge(asks, instead_of=instead_of))


class TestMemoryAwaited(_Awaited):
    @pytest.fixture
    def make(self):
        return lambda **options: opened("memory://", **options)


class TestRedisAwaited(_Awaited):
    @pytest.fixture
    def make(self, server):
        return lambda **options: opened(server.url, **options)


class TestRedisBehindAUnixSocket(Contract):
    @pytest.fixture
    def make(self, any_server):
        return lambda **options: opened(any_server.unix_url, **options)


def test_a_url_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match="begins with 'memcached'"):
        opened("memcached://localhost")


@pytest.mark.parametrize("url", ["redis://localhost:port/0", "redis://localhost?no_such_option=1"])
def test_a_url_that_cannot_be_read_is_refused_at_start(url):
    with pytest.raises(ValueError):  # redis-py's words
        opened(url)


@pytest.mark.parametrize(
    "option", ["max_connections=5", "timeout=3", "socket_timeout=7", "protocol=3", "client_name=me"]
)
def test_what_a_url_may_say_to_redis_py_is_understood(any_server, option):
    store = opened(f"{any_server.url}?{option}")
    assert store.decide([]).outcomes == []
    store.close()
