import pytest

from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import Stack, open_store
from tests.stores.contract import Awaited, Contract


def opened(url, *, clock=None, timeout=10):
    store = open_store(StorageSettings(url=url, timeout=timeout), clock)
    return Stack(store, clock, lambda *said: None, cached=True).wrapped(())


class TestMemory(Contract):
    @pytest.fixture
    def make(self):
        return lambda **options: opened("memory://", **options)


@pytest.fixture
def shared_url(tmp_path):
    return f"lmdb://{tmp_path}/counters"


class TestShared(Contract):
    @pytest.fixture
    def make(self, shared_url):
        return lambda **options: opened(shared_url, **options)


class TestRedis(Contract):
    @pytest.fixture
    def make(self, server):
        return lambda **options: opened(server.url, **options)


class TestOldestRedis(Contract):
    @pytest.fixture
    def make(self, oldest_server):
        return lambda **options: opened(oldest_server.url, **options)


class TestRedisAwaited(Awaited, Contract):
    @pytest.fixture
    def make(self, any_server):
        return lambda **options: opened(any_server.url, **options)


def test_a_url_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match="unknown storage scheme 'memcached'"):
        opened("memcached://localhost")


def test_a_url_without_a_scheme_is_refused_without_its_password():
    with pytest.raises(ValueError, match="is not a storage URL \\(for example memory:// or redis://") as raised:
        opened("redis:/:hunter2@localhost")
    assert "hunter2" not in str(raised.value)


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
