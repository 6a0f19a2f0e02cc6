"""What is kept in Redis for rules and overrides, written by another program: no traceback, and the last good stays."""

import contextlib

import pytest

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw.config.load import Document
from ratelimit_mw.errors import StoreUnavailable, VersionConflict
from ratelimit_mw.reload.database import RulesDatabase
from ratelimit_mw.stores import open_records
from tests.rules.living import limit_of, text
from tests.support.patience import eventually
from tests.support.proxy import Proxy

REPLIES = [
    b"$3\r\nabc\r\n",
    b"$0\r\n\r\n",
    b"$3\r\nnan\r\n",
    b"$5000\r\n" + b"9" * 5_000 + b"\r\n",
    b"+OK\r\n",
    b":5\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*1\r\n$1\r\nx\r\n",
    b"*2\r\n:1\r\n$3\r\nabc\r\n",
    b"*2\r\n*0\r\n*0\r\n",
    b"*2\r\n$7\r\nversion\r\n$3\r\nabc\r\n",
    b"*2\r\n$1\r\n\xff\r\n$1\r\n\xff\r\n",
    b"-WRONGTYPE not a hash\r\n",
    b"-MOVED\r\n",
    b"-MOVED 1 localhost:port\r\n",
    b"\x00\xff\r\n",
    b"_\r\n",
    b"#t\r\n",
]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: repr(reply[:30]))
def test_any_reply_is_read_or_the_records_are_away(any_server, reply):
    with Proxy(any_server.port) as proxy:
        records = open_records(proxy.url)
        questions = [
            lambda: records.version("k"),
            lambda: records.read("k"),
            lambda: records.read("k", ["a"]),
            lambda: records.write("k", {"a": "1"}),
        ]
        for question in questions:
            records.version("k")  # connects
            proxy.reply_with(reply)
            with contextlib.suppress(StoreUnavailable, VersionConflict):
                question()
            proxy.heal()
            records.close()
        assert records.write("k", {"a": "2"}) == records.version("k")
        records.close()


@pytest.mark.parametrize("spoilt", ["abc", "", "1.5", "nan", "9" * 5_000], ids=lambda text: text[:8])
def test_a_version_that_is_no_number_is_logged_once_without_a_traceback(any_server, caplog, spoilt):
    rules = {"domain": "d", "storage": {"url": any_server.url, "timeout": "5s"}, "reload": "100ms"}
    rules["rules"] = [{"name": "a", "by": "ip", "limit": "5 per minute"}]
    with RateLimiter(rules) as limiter:
        limiter.overrides.set({"ip": "192.0.2.1"}, rule="a", limit="7 per minute")
        eventually(lambda: limit_of(limiter) == 7)
        good = any_server.admin.hget("d:overrides", "version")
        any_server.admin.hset("d:overrides", "version", spoilt or " ")
        eventually(lambda: "cannot be read" in caplog.text)
        looks = any_server.calls("hmget")
        eventually(lambda: any_server.calls("hmget") > looks + 3)
        assert limit_of(limiter) == 7
        any_server.admin.hset("d:overrides", "version", int(good) + 1)
        any_server.admin.hset("d:overrides", "version", int(good) + 1)
        limiter.overrides.set({"ip": "192.0.2.1"}, rule="a", limit="8 per minute")
        eventually(lambda: limit_of(limiter) == 8)
    assert caplog.text.count("cannot be read") == 1
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda admin, key: admin.hset(key, "version", "abc"), id="version"),
        pytest.param(lambda admin, key: admin.hset(key, "version", "77"), id="a version that is not there"),
        pytest.param(lambda admin, key: admin.hset(key, mapping={"version": 2, "rules:2": "{"}), id="no JSON"),
        pytest.param(lambda admin, key: admin.hset(key, mapping={"version": 2, "rules:2": "[1]"}), id="a list"),
        pytest.param(lambda admin, key: admin.hset(key, mapping={"version": 2, "rules:2": '{"a": 1}'}), id="numbers"),
        pytest.param(lambda admin, key: admin.hset(key, mapping={"version": 2, "rules:2": "{}"}), id="no files"),
        pytest.param(
            lambda admin, key: admin.hset(key, mapping={"version": 2, "rules:2": "[" * 50_000}), id="too deep"
        ),
        pytest.param(lambda admin, key: admin.set(key, "x"), id="another type"),
    ],
)
def test_a_spoilt_rules_database_changes_nothing_and_says_so_once(any_server, caplog, spoil):
    database = RulesDatabase(any_server.url)
    database.push([Document("r.yaml", text("5 per minute", reload="100ms").encode())])
    with RateLimiter(any_server.url) as limiter:
        limiter.check({"ip": "192.0.2.1"})
        spoil(any_server.admin, "ratelimit_mw:rules")
        eventually(lambda: limiter.state.error)
        with pytest.raises(ConfigurationError):
            limiter.reload()
        assert limit_of(limiter) == 5
        assert caplog.text.count("stays in force") == 1
        any_server.admin.delete("ratelimit_mw:rules")
        database.push([Document("r.yaml", text("6 per minute", reload="100ms").encode())])
        database.push([Document("r.yaml", text("7 per minute", reload="100ms").encode())])
        eventually(lambda: limit_of(limiter) == 7)
        assert limiter.state.error is None
    database.close()
    assert "Traceback" not in caplog.text


def test_a_version_that_can_not_be_read_is_listed_all_the_same(any_server):
    database = RulesDatabase(any_server.url)
    database.push([Document("r.yaml", text().encode())], comment="good")
    database.push([Document("r.yaml", text("6 per minute").encode())])
    for about in ("{", "[]", "{}", '{"author": "a", "at": null, "comment": "", "files": []}'):
        any_server.admin.hset("ratelimit_mw:rules", "about:2", about)
        assert [version.comment for version in database.list()] == ["(can't be read)", "good"]
    database.close()
