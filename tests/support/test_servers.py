import pytest
import redis

from tests.support.servers import BINARIES, Server


def test_each_version_answers_and_starts_empty(server):
    assert server.admin.ping()
    assert server.keys() == []
    server.admin.set("left", "behind")


def test_no_key_of_another_test_is_left(server):
    assert server.keys() == []


def test_the_versions_are_distinct():
    assert len({binary.version for binary in BINARIES}) == len(BINARIES)


def test_any_server_is_the_newest_valkey(any_server):
    assert any_server.admin.info("server")["server_name"] == "valkey"


def test_it_can_be_reached_by_unix_socket(any_server):
    with redis.Redis.from_url(any_server.unix_url) as client:
        assert client.ping()


def test_calls_counts_since_the_flush(any_server):
    any_server.admin.eval("return 1", 0)
    assert any_server.calls("eval") == 1
    any_server.flush()
    assert any_server.calls("eval") == 0


def test_killed_it_is_away_and_restarted_it_is_back_on_its_port(fresh_server):
    client = fresh_server.client()
    client.set("a", "1")
    fresh_server.kill()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    fresh_server.restart()
    assert client.get("a") is None


def test_paused_it_is_silent_and_resumed_it_goes_on(fresh_server):
    client = fresh_server.client(socket_timeout=0.1)
    client.set("a", "1")
    fresh_server.pause()
    with pytest.raises(redis.TimeoutError):
        client.get("a")
    fresh_server.resume()
    assert fresh_server.client().get("a") == "1"


def test_it_starts_with_a_password(fresh_server):
    fresh_server.restart("--requirepass", "secret")
    with pytest.raises(redis.AuthenticationError):
        fresh_server.client().ping()
    assert fresh_server.client(password="secret").ping()


def test_nothing_is_left_after_the_with():
    with Server(BINARIES[0]) as server:
        pass
    assert not server.alive
    assert not server.directory.exists()


def test_a_server_that_cannot_start_says_why():
    with pytest.raises(RuntimeError, match="no-such-option"), Server(BINARIES[0], "--no-such-option", "1"):
        pass
