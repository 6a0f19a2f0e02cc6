import socket
import ssl
import time

import pytest
import redis
import trustme
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.patience import eventually
from tests.support.proxy import Proxy


@pytest.fixture
def proxy(any_server):
    with Proxy(any_server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    with redis.Redis.from_url(proxy.url, socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
        client.set("n", 0)  # connected before the fault begins
        yield client


def test_it_carries_what_it_gets(client):
    value = b"x" * 1_000_000
    client.set("big", value)
    assert client.get("big") == value


@pytest.mark.parametrize("delays", [pytest.param((0.05, 0.0), id="requests"), pytest.param((0.0, 0.05), id="replies")])
def test_delay_takes_its_time_one_way(proxy, client, delays):
    proxy.delay(*delays)
    start = time.monotonic()
    client.get("n")
    assert time.monotonic() - start >= 0.05


def test_a_delayed_stream_keeps_its_order(proxy, client):
    proxy.delay(0.01)
    with client.pipeline(transaction=False) as pipeline:
        for number in range(2_000):
            pipeline.echo(str(number))
        assert pipeline.execute() == [str(number).encode() for number in range(2_000)]


def test_black_hole_answers_nothing(proxy, client, any_server):
    proxy.black_hole()
    with pytest.raises(redis.TimeoutError):
        client.incr("n")
    assert any_server.admin.get("n") == "0"


def test_reset_breaks_open_and_new_connections(proxy, client):
    proxy.reset()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.get("n")
    proxy.heal()
    assert client.get("n") == b"0"


def test_half_a_reply_then_the_end(proxy, client):
    client.set("text", "x" * 100)
    proxy.half_reply(times=1)
    with pytest.raises(redis.ConnectionError):
        client.get("text")
    assert client.get("text") == b"x" * 100


def test_a_dropped_reply_was_committed(proxy, client, any_server):
    proxy.drop_reply(times=1)
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    assert any_server.admin.get("n") == "1"


def test_a_dropped_reply_may_leave_the_client_waiting(proxy, client, any_server):
    proxy.drop_reply(times=1, close=False)
    with pytest.raises(redis.TimeoutError):
        client.incr("n")
    assert any_server.admin.get("n") == "1"


def test_a_drip_arrives_in_the_end(proxy, client):
    client.set("text", "x" * 10)
    proxy.drip(size=2, interval=0.01)
    start = time.monotonic()
    assert client.get("text") == b"x" * 10
    assert time.monotonic() - start >= 0.05


def test_a_server_that_is_away_is_away_behind_the_proxy(proxy):
    proxy.target = 1  # nobody listens there
    with (
        redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0)) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()


def test_it_speaks_tls_for_a_server_that_does_not(any_server, tmp_path):
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with (
        Proxy(any_server.port, tls=context) as proxy,
        redis.Redis.from_url(proxy.url, ssl_ca_certs=str(tmp_path / "ca.pem")) as client,
    ):
        assert client.ping()


def test_it_adds_no_delay_of_its_own_on_either_side(proxy, client):
    (link,) = proxy._links
    assert [sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for sock in link._sockets] == [1, 1]


def test_connections_are_counted_and_closed(proxy, client):
    assert (proxy.connections, proxy.open) == (1, 1)
    client.close()
    eventually(lambda: proxy.open == 0)
    assert proxy.connections == 1
