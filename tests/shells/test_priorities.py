"""Requests shed by their priority, through both middlewares and `check()`, in memory and on Redis."""

import asyncio
import json
import logging

import pytest

from ratelimit_mw import Decision, ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from tests.shells import loads
from tests.shells.asking import EACH_SHELL, IP, START, ask_asgi, ask_wsgi, serve, websocket_scope
from tests.support.counts import shadow_denials

EVERYBODY = {"name": "everybody", "limit": "1000 per minute", "algorithm": "fixed_window"}
ANALYTICS = {"name": "analytics", "match": {"path": "/analytics/*"}, "limit": "unlimited", "priority": "low"}
PAY = {"name": "pay", "match": {"path": "/pay"}, "limit": "unlimited", "priority": "critical"}
PATHS = ("/analytics/daily", "/", "/pay")
PROBLEM = {
    "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    "title": "Request cannot be satisfied due to temporary server capacity constraints",
    "status": 503,
    "detail": "Too busy at the moment",
}


@pytest.fixture
def level():
    def put(value):
        loads.level = value

    yield put
    loads.level = 0.0


def limiter(*rules, clock=None, storage="memory://", **sections):
    sections = {"domain": "d", "storage": {"timeout": "5s"}, "load": "python:tests.shells.loads:load", **sections}
    config = {"rules": list(rules or (EVERYBODY, ANALYTICS, PAY)), **sections}
    return RateLimiter(config, storage=storage, clock=clock or ManualClock(START))


def passed(engine, path, many=100, **attributes):
    """How many of a hundred may pass."""
    return sum(engine.check({"ip": IP, "path": path, **attributes}).allowed for _ in range(many))


@EACH_SHELL
def test_a_request_is_shed_with_503_and_told_when_to_come_back(ask, storage, level):
    level(0.9)
    with limiter(storage=storage) as engine:
        shed, normal = ask(engine, "/analytics/daily"), ask(engine, "/")
    assert (shed.status, normal.status) == (503, 200)
    headers = shed.headers
    assert 5 <= int(headers.pop("retry-after")) <= 10
    assert headers == {"content-type": "application/json", "cache-control": "no-store", "content-length": "37"}
    assert json.loads(shed.body) == {"message": "Too busy at the moment"}
    assert (shed.seen, normal.rate[:2]) == (None, ["1000", "999"])


@EACH_SHELL
@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param({"body": "text", "message": "{rule}!"}, b"Too busy at the moment", id="text"),
        pytest.param({"body": "problem", "status": 403}, PROBLEM, id="a problem has the registered type"),
    ],
)
def test_the_body_is_of_the_kind_that_the_file_asks_for(ask, body, said, level):
    level(1.0)
    with limiter(response={**body, "headers": []}) as engine:
        shed = ask(engine, "/analytics/daily")
    assert (shed.body if isinstance(said, bytes) else json.loads(shed.body)) == said
    assert (shed.status, "retry-after" in shed.headers) == (503, False)


def test_a_websocket_is_told_to_try_again_later(level):
    level(1.0)

    async def app(scope, receive, send):
        raise AssertionError("it is not asked")

    with limiter() as engine:
        sent = serve(RateLimitMiddleware(app, limiter=engine), websocket_scope("/analytics/live"))
    assert sent == [{"type": "websocket.close", "code": 1013}]


@pytest.mark.parametrize(
    ("load", "shares"),
    [
        pytest.param(0.7, (100, 100, 100), id="nothing yet"),
        pytest.param(0.775, (50, 100, 100), id="half of the low ones"),
        pytest.param(0.85, (0, 100, 100), id="all of the low ones"),
        pytest.param(0.95, (0, 50, 100), id="half of the normal ones as well"),
        pytest.param(1.0, (0, 0, 50), id="half of the critical ones, at the most"),
    ],
)
def test_low_is_shed_first_and_critical_last(load, shares, storage, level):
    level(load)
    with limiter(storage=storage) as engine:
        assert [passed(engine, path) for path in PATHS] == pytest.approx(shares, abs=1)


def test_what_is_shed_costs_nothing_and_needs_no_store(level):
    level(0.9)
    low = {**EVERYBODY, "name": "low", "priority": "low", "on_error": "deny"}
    with limiter(low, storage="redis://127.0.0.1:1/0") as engine:
        shed = engine.check({"ip": IP})
        assert shed == Decision(False, retry_after=shed.retry_after, reason="shed")
        assert 5 <= shed.retry_after <= 10
        level(0.1)
    with limiter({**EVERYBODY, "priority": "low"}, clock=(clock := ManualClock(START))) as engine:
        level(0.9)
        assert passed(engine, "/") == 0
        level(0.1)
        clock.advance(20)
        assert engine.check({"ip": IP}).remaining == 999


def test_shedding_ends_slowly_and_begins_at_once(level, clock):
    level(1.0)
    with limiter(clock=clock) as engine:
        assert passed(engine, "/analytics") == 0
        level(0.1)
        after = []
        for _ in range(7):
            clock.advance(2.5)
            after.append(passed(engine, "/analytics"))
        assert after == pytest.approx([0, 0, 0, 33, 67, 100, 100], abs=1)
        level(1.0)
        assert passed(engine, "/analytics") == 100, "a load is looked at ten times a second"
        clock.advance(0.2)
        assert passed(engine, "/analytics") == 0


def test_of_several_rules_the_highest_priority_holds(level):
    rules = [ANALYTICS, {"name": "gold", "match": {"tier": "gold"}, "limit": "unlimited", "priority": "critical"}]
    level(0.9)
    with limiter(EVERYBODY, *rules, client={"tier": "header:X-Plan"}) as engine:
        assert [passed(engine, "/analytics/x", tier=tier) for tier in ("free", "gold")] == [0, 100]
        assert engine.explain({"ip": IP, "path": "/analytics/x", "tier": "gold"}).priority == (
            "priority critical, by 'gold'; at this process's load of 0.90, none of these are shed"
        )


def test_a_replaced_rule_and_one_without_a_counter_say_nothing(level):
    rules = [
        {**EVERYBODY, "priority": "low"},
        {"name": "own", "match": {"path": "/own"}, "limit": "unlimited", "replaces": ["everybody"]},
        {"name": "users", "by": "user", "limit": "unlimited", "priority": "critical"},
    ]
    level(0.9)
    with limiter(*rules, client={"user": "header:Authorization"}) as engine:
        assert [passed(engine, "/"), passed(engine, "/own"), passed(engine, "/", user="ann")] == [0, 100, 100]


def test_where_no_rule_has_a_priority_nothing_is_shed(level):
    level(1.0)
    with limiter(EVERYBODY) as engine:
        assert passed(engine, "/") == 100
        assert not engine.rules.metered


def test_a_limit_is_a_limit_whatever_its_priority_and_has_its_own_reason(level, storage):
    with limiter({**EVERYBODY, "limit": "2 per minute", "priority": "critical"}, storage=storage) as engine:
        said = [engine.check({"ip": IP}) for _ in range(3)]
    assert [(decision.allowed, decision.reason) for decision in said] == [(True, None)] * 2 + [(False, "limited")]


@EACH_SHELL
def test_what_is_exempt_is_never_shed(ask, level):
    level(1.0)
    low = {**EVERYBODY, "priority": "low"}
    exempt = {"exempt": [{"path": "/health"}], "overrides": [{"client": {"ip": "192.0.2.1"}, "exempt": True}]}
    with limiter(low, **exempt) as engine:
        assert ask(engine, "/").status == 503
        assert ask(engine, "/health").status == 200
        assert ask(engine, "/", ip="192.0.2.1").status == 200


def test_overrides_that_come_at_run_time_hold_here_too(level, any_server):
    level(0.88)
    rules = [{**EVERYBODY, "priority": "low"}]
    unlimited = {"client": {"ip": IP}, "rule": "everybody", "limit": "unlimited"}
    with limiter(*rules, overrides=[unlimited], storage=any_server.url) as engine:
        assert passed(engine, "/") == 0, "unlimited is not exempt"
        engine.overrides.set({"ip": IP}, exempt=True)
        assert passed(engine, "/") == 100
        engine.overrides.set({"ip": IP}, block=True)
        assert engine.check({"ip": IP}).reason == "blocked"


def test_a_shadow_rule_sheds_nothing_and_says_what_it_would_have_shed(level, caplog):
    level(0.9)
    with limiter(EVERYBODY, {**ANALYTICS, "shadow": True}) as engine, caplog.at_level(logging.INFO):
        assert passed(engine, "/analytics/x") == passed(engine, "/") == 100
        assert (shadow_denials(engine), engine.tally.shed) == ({"analytics": 100}, {})
    assert "would have been denied (shed), retry after " in caplog.text


def test_a_shadow_rule_beside_one_that_is_enforced(level):
    level(0.9)
    with limiter(EVERYBODY, PAY, {**ANALYTICS, "shadow": True}) as engine:
        assert passed(engine, "/analytics/x") == 100
        level(0.5)
        assert shadow_denials(engine) == {"analytics": 100}


@pytest.mark.parametrize("word", ["off", "shadow"])
def test_the_kill_switch_lets_everything_pass(word, level, monkeypatch):
    monkeypatch.setenv("RATELIMIT_MW", word)
    level(1.0)
    with limiter() as engine:
        assert [passed(engine, path) for path in PATHS] == [100, 100, 100]
        assert engine.tally.shed == {}
        assert bool(shadow_denials(engine)) == (word == "shadow")


def test_an_app_asks_for_what_it_can_do_without(level):
    extra = {"name": "recommendations", "limit": "unlimited", "on_demand": True, "priority": "low"}
    level(0.9)

    async def app(scope, receive, send):
        said = [await scope["ratelimit"].check(name) for name in ("recommendations", "everybody")]
        seen.append([(decision.allowed, decision.reason) for decision in said])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    seen: list[object] = []
    with limiter(EVERYBODY, extra) as engine:
        serve(RateLimitMiddleware(app, limiter=engine), {**websocket_scope("/"), "type": "http", "method": "GET"})
        level(1.0)
        assert ask_wsgi(engine).status == 200, "what the app asks for makes no other request one that is shed"
    assert seen == [[(False, "shed"), (True, None)]]


def test_a_peek_and_an_explanation_tell_what_would_become_of_the_next_one(level, clock):
    level(0.775)
    request = {"ip": IP, "path": "/analytics/x"}
    with limiter(clock=clock) as engine:
        for _ in range(20):
            peeked, explained = engine.peek(request), engine.explain(request)
            apeeked = asyncio.run(engine.apeek(request))
            assert peeked == apeeked == explained.decision or peeked.allowed
            assert peeked.reason == explained.decision.reason == engine.check(request).reason
        level(0.9)
        clock.advance(1)
        lines = engine.explain(request).lines()
    assert lines[0].startswith("/analytics/x from 203.0.113.7: would be shed, for ")
    assert lines[1] == ("  priority low, by 'analytics'; at this process's load of 0.90, 100 % of these are shed")
    assert lines[-1] == "  - the load falls"
    assert engine.tally.shed["low"] == sum(engine.tally.shed.values())


def test_a_list_of_entries_is_nobody_s_request_here(level):
    level(1.0)
    descriptors = [{"key": "kind", "rate_limit": {"unit": "day", "requests_per_unit": 5}}]
    with limiter(EVERYBODY, ANALYTICS, descriptors=descriptors) as engine:
        assert engine.check([("kind", "mail")]).remaining == 4
        assert not engine.check({"ip": IP}).allowed


def test_a_source_that_fails_sheds_nothing(level, clock):
    with limiter(clock=clock) as engine:
        level("much")
        assert [passed(engine, path) for path in PATHS] == [100, 100, 100]
        level(1.0)
        clock.advance(1)
        assert passed(engine, "/") == 0


def test_in_a_folder_the_rules_of_every_file_speak(tmp_path, level):
    source = "load: python:tests.shells.loads:load\n"
    rule = "{name: a, limit: 900/m, match: {path: %s}, priority: %s}\n"
    (tmp_path / "a.yaml").write_text("domain: a\n" + source + "rules:\n  - " + rule % ('"/x/*"', "low"))
    (tmp_path / "b.yaml").write_text("domain: b\nrules:\n  - " + rule % ("/x/y", "critical"))
    (tmp_path / "c.yaml").write_text("domain: c\nexempt: [{path: /x/health}]\nrules: [{name: c, limit: 9000/m}]\n")
    level(0.9)
    with RateLimiter(tmp_path, storage="memory://", clock=ManualClock(START)) as engine:
        assert [passed(engine, path) for path in ("/x", "/x/y", "/x/health", "/")] == [0, 100, 100, 100]
        assert passed(engine, "/x", many=2) == 0
        assert sum(engine.check({"path": "/x", "ip": IP}, domain="b").allowed for _ in range(9)) == 9


def test_that_requests_are_shed_is_logged_once_a_minute(level, caplog):
    level(0.775)
    with limiter() as engine:
        passed(engine, "/analytics/x")
    said = [record.getMessage() for record in caplog.records if "shed" in record.getMessage()]
    assert said == ["shedding 50 % of low requests at a load of 0.78 (1 shed so far)"]


def test_both_shells_count_alike(level):
    level(0.775)
    answers = []
    for ask in (ask_asgi, ask_wsgi):
        with limiter() as engine:
            answers.append([ask(engine, "/analytics/x").status for _ in range(30)])
    assert answers[0] == answers[1]
    assert answers[0].count(503) == pytest.approx(15, abs=1)


def test_a_file_in_shadow_sheds_nothing_and_counts(level):
    level(1.0)
    with limiter(shadow=True) as engine:
        assert [passed(engine, path) for path in PATHS] == [100, 100, 100]
        assert shadow_denials(engine)["analytics"] == 100
