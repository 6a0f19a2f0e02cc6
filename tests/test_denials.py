"""The records of the logger `ratelimit_mw.denials`, and the examples of docs/denials.md."""

import asyncio
import json
import logging
import re

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.decision.denials import DenialLog
from ratelimit_mw.decision.verdict import Verdict
from tests.shells.asking import EACH_SHELL, START, exchange, limiter, websocket_scope
from tests.support.apps import ROOT
from tests.support.counts import shadow_denials

FIELDS = ("rule", "reason", "limit", "retry_after", "identity", "method", "route", "omitted", "shadow")
PYTHON = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/denials.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def records(caplog):
    caplog.set_level(logging.INFO, "ratelimit_mw.denials")
    return lambda: [
        {name: getattr(record, name) for name in FIELDS}
        for record in caplog.records
        if record.name == "ratelimit_mw.denials"
    ]


def test_a_request_that_is_shed_is_recorded_with_its_wait(records):
    with limiter() as engine:
        verdict = Verdict((), None, denied="shed", wait=2_500_000)
        DenialLog(ManualClock(START)).write(verdict, -1, "shed", engine.rules, {})
    (found,) = records()
    assert (found["reason"], found["rule"], found["retry_after"]) == ("shed", None, 2.5)


@pytest.fixture
def logger():
    """The logger, which gets its handlers and its level back."""
    found = logging.getLogger("ratelimit_mw.denials")
    handlers, level = list(found.handlers), found.level
    yield found
    found.handlers, found.level = handlers, level
    found.setLevel(level)


@EACH_SHELL
def test_a_denial_is_one_record_with_its_fields(ask, records, caplog):
    rule = {"name": "items", "match": {"path": "/items/{id}"}, "limit": "1 per minute", "algorithm": "fixed_window"}
    engine = limiter(rules=[rule])
    assert [ask(engine, "/items/7", method="POST").status for _ in range(2)] == [200, 429]
    (found,) = records()
    assert found.pop("retry_after") == pytest.approx(40)
    assert found == {
        "rule": "items",
        "reason": "limited",
        "limit": 1,
        "identity": "ip=203.0.113.7",
        "method": "POST",
        "route": "/items/{id}",
        "omitted": 0,
        "shadow": False,
    }
    assert caplog.messages[-1] == "denied (limited) by rule items, client ip=203.0.113.7, retry after 40 s"


def test_a_user_is_hashed_in_the_record(records, caplog):
    engine = limiter(rules=[{"name": "mail", "by": "user", "limit": "0 per minute"}], client={"secret": "s" * 32})
    assert not engine.check({"user": "alice@example.com"}).allowed
    (found,) = records()
    assert found["identity"].startswith("user=")
    assert "alice" not in str(found) + caplog.text
    assert (found["retry_after"], found["method"], found["route"]) == (None, None, None)


@pytest.mark.parametrize("method", ["SECRET", "GET\nSECRET", "X" * 5000])
def test_a_method_that_a_client_made_up_is_hashed_in_the_record(records, caplog, method):
    with limiter(rules=[{"name": "none", "by": "ip", "limit": "0 per minute"}]) as engine:
        engine.check({"ip": "203.0.113.7", "method": method})
    (found,) = records()
    assert re.fullmatch(r"[\w-]{20}", found["method"])
    assert "SECRET" not in caplog.text


def test_at_most_ten_records_a_minute_are_written_for_each_rule(records):
    clock = ManualClock(START)
    rules = [{"name": name, "match": {"path": f"/{name}"}, "limit": "0 per minute"} for name in ("a", "b")]
    engine = limiter(rules=rules, clock=clock)
    for number in range(25):
        engine.check({"ip": f"192.0.2.{number}", "path": "/a"})
    engine.check({"ip": "192.0.2.1", "path": "/b"})
    assert [found["rule"] for found in records()] == ["a"] * 10 + ["b"]
    clock.advance(59)
    engine.check({"path": "/a"})
    assert len(records()) == 11
    clock.advance(1)
    for path in ("/a", "/a", "/b"):
        engine.check({"path": path})
    assert [found["omitted"] for found in records()[11:]] == [16, 0, 0]


def test_rules_of_one_name_in_two_domains_are_counted_apart(records, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\nrules: [{{name: a, limit: 0 per minute}}]\n")
    with RateLimiter(tmp_path, clock=ManualClock(START)) as engine:
        for domain in ("one", "two"):
            for _ in range(12):
                engine.check({}, domain=domain)
    assert len(records()) == 20


def test_nothing_is_written_for_allowed_requests_and_peek(records):
    engine = limiter(rules=[{"name": "a", "limit": "1 per day"}])
    assert engine.check({}).allowed
    assert not engine.peek({}).allowed
    assert records() == []


@EACH_SHELL
@pytest.mark.parametrize(
    "rules",
    [
        pytest.param([], id="plain rules"),
        pytest.param([{"name": "low", "limit": "9 per day", "throttle": {"soft": "10%"}}], id="rules with a throttle"),
        pytest.param([{"name": "ok", "limit": "9 per day", "count": {"status": [401]}}], id="rules that settle"),
    ],
)
def test_what_a_shadow_rule_would_have_denied_is_recorded_with_its_client(ask, rules, records, caplog):
    rule = {"name": "items", "match": {"path": "/items/{id}"}, "limit": "1 per minute", "algorithm": "fixed_window"}
    engine = limiter(rules=[{**rule, "shadow": True}, *rules])
    assert [ask(engine, "/items/7", method="POST").status for _ in range(2)] == [200, 200]
    (found,) = records()
    assert found.pop("retry_after") == pytest.approx(40)
    assert found == {
        "rule": "items",
        "reason": "limited",
        "limit": 1,
        "identity": "ip=203.0.113.7",
        "method": "POST",
        "route": "/items/{id}",
        "omitted": 0,
        "shadow": True,
    }
    text = "would have been denied (limited) by rule items, client ip=203.0.113.7, retry after 40 s"
    assert caplog.messages[-1] == text
    assert shadow_denials(engine) == {"items": 1}


def test_the_switch_at_shadow_records_what_the_rules_would_have_denied(records, monkeypatch):
    monkeypatch.setenv("RATELIMIT_MW", "shadow")
    engine = limiter("0 per minute")
    assert [engine.check({"ip": f"192.0.2.{number}"}).allowed for number in range(12)] == [True] * 12
    assert [found["shadow"] for found in records()] == [True] * 10


def test_a_denial_and_what_a_shadow_rule_would_have_denied_are_two_records(records):
    engine = limiter(
        rules=[{"name": "s", "limit": "0 per minute", "shadow": True}, {"name": "a", "limit": "0 per day"}]
    )
    assert not engine.check({"ip": "192.0.2.1"}).allowed
    assert [(found["rule"], found["shadow"]) for found in records()] == [("s", True), ("a", False)]


def test_a_disabled_logger_gets_no_record_and_counts_none(caplog):
    caplog.set_level(logging.WARNING, "ratelimit_mw.denials")
    engine = limiter("0 per minute")
    assert [engine.check({"ip": "192.0.2.1"}).allowed for _ in range(20)] == [False] * 20
    assert caplog.records == []
    caplog.set_level(logging.INFO, "ratelimit_mw.denials")
    engine.check({"ip": "192.0.2.1"})
    assert [record.omitted for record in caplog.records] == [0]


def test_a_blocked_client_is_recorded_without_a_rule(records):
    engine = limiter(overrides=[{"client": {"ip": "192.0.2.9"}, "block": True}])
    assert engine.check({"ip": "192.0.2.9"}).reason == "blocked"
    assert records() == [dict.fromkeys(FIELDS) | {"reason": "blocked", "omitted": 0, "shadow": False}]


@EACH_SHELL
def test_a_rule_that_the_app_asks_for_is_recorded_once(ask, records):
    engine = limiter(rules=[{"name": "mail", "limit": "0 per minute", "on_demand": True}])
    seen = ask(engine).seen
    for denied in (seen.check("mail"), seen.enforce("mail")):
        asyncio.run(denied) if asyncio.iscoroutine(denied) else None
    assert [found["rule"] for found in records()] == ["mail", "mail"]


def test_a_message_of_a_websocket_is_recorded(records):
    engine = limiter(rules=[{"name": "chat", "by": "connection", "limit": "1 per minute", "messages": "drop"}])

    async def app(_scope, receive, send):
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    incoming = [{"type": "websocket.receive", "text": "hello"}] * 3 + [{"type": "websocket.disconnect", "code": 1000}]
    asyncio.run(exchange(RateLimitMiddleware(app, limiter=engine), websocket_scope("/"), incoming))
    assert [found["rule"] for found in records()] == ["chat", "chat"]


def denied_once():
    assert not limiter("0 per minute").check({"ip": "192.0.2.1", "method": "GET"}).allowed


def test_the_logger_of_the_page_shows_the_records(logger, caplog):
    exec(PYTHON[0], {})
    denied_once()
    assert len(caplog.records) == 1


def test_the_handler_of_the_page_counts_denials(logger):
    names = {}
    exec(PYTHON[1], names)
    denied_once()
    assert names["denials"] == {"everybody": 1}


@EACH_SHELL
def test_a_handler_that_fails_is_logged_once_and_the_request_is_still_denied(ask, logger, caplog):
    class Failing(logging.Handler):
        def emit(self, record):
            raise ValueError("a secret")

    logger.setLevel(logging.INFO)
    logger.addHandler(Failing())
    engine = limiter("0 per minute")
    assert [ask(engine).status for _ in range(2)] == [429, 429]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "ratelimit_mw"]
    assert line.startswith("a handler of the denials failed: ValueError was raised at ")
    assert "secret" not in line


def test_structlog_gets_the_fields_of_a_denial(logger, capsys):
    pytest.importorskip("structlog")
    exec(PYTHON[2], {})
    denied_once()
    line = json.loads(capsys.readouterr().err)
    assert (line["rule"], line["identity"], line["level"]) == ("everybody", "ip=192.0.2.1", "info")


def test_sentry_gets_an_event_with_the_fields_of_a_denial(logger):
    sentry_sdk = pytest.importorskip("sentry_sdk")
    events = []
    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", before_send=lambda event, _: events.append(event))
    try:
        exec(PYTHON[3], {})
        denied_once()
    finally:
        sentry_sdk.init()
    assert [event["extra"]["rule"] for event in events] == ["everybody"]


def test_the_formatter_of_the_page_writes_a_line_of_json(logger, capsys):
    exec(PYTHON[4], {})
    denied_once()
    line = json.loads(capsys.readouterr().err)
    assert (line["rule"], line["reason"], line["identity"]) == ("everybody", "limited", "ip=192.0.2.1")


@pytest.mark.parametrize(
    ("observe", "records", "shown"),
    [
        ({}, 10, "ip=192.0.2.1"),
        ({"denials": 3}, 3, "ip=192.0.2.1"),
        ({"denials": 0}, 0, ""),
        ({"denials": 1, "identity": "none"}, 1, ""),
        ({"denials": 1, "identity": "hashed"}, 1, r"[\w-]{16,}"),
    ],
)
def test_observe_sets_how_many_records_there_are_and_how_they_name_the_client(observe, records, shown, logger, caplog):
    logger.setLevel(logging.INFO)
    rules = [{"name": "everybody", "by": "ip", "limit": "0 per minute"}]
    config = {"domain": "d", "client": {"secret": "s"}, "observe": observe, "rules": rules}
    with RateLimiter(config, clock=ManualClock()) as engine:
        for _ in range(12):
            engine.check({"ip": "192.0.2.1"})
    found = [record for record in caplog.records if record.name == "ratelimit_mw.denials"]
    assert len(found) == records
    assert all(re.fullmatch(shown, record.identity or "") for record in found)
