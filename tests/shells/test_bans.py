"""Bans under both middlewares, on both stores: who is shut out, for how long, and what everybody is told."""

import asyncio
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import httpx
import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from tests.shells.asking import EACH_SHELL, IP, exchange, http_scope
from tests.shells.test_settling import EACH, says
from tests.support.apps import ROOT, gunicorn, uvicorn
from tests.support.counts import shadow_bans, shadow_denials
from tests.support.patience import WITHIN
from tests.support.rules import load_rules

START = 1_700_000_000
PAGE = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/bans.md").read_text(), re.MULTILINE | re.DOTALL)
BAN = {"after": "3 denials in 1 minute", "for": "10 minutes"}
RULE = {"name": "r", "limit": "2 per minute", "algorithm": "sliding_log", "ban": BAN}


@pytest.fixture
def engine(storage, clock):
    """A limiter of rules."""
    made = []

    def make(*rules, **sections):
        config = {"domain": "d", "rules": list(rules), "storage": {"timeout": "5s"}, **sections}
        made.append(RateLimiter(config, storage=storage, clock=clock))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def statuses(ask, limiter, path="/", times=1, **options):
    return [ask(limiter, path, **options).status for _ in range(times)]


@pytest.mark.parametrize("text", PAGE)
def test_each_block_of_the_page_loads(text, tmp_path):
    (tmp_path / "r.yaml").write_text(text)
    assert load_rules(tmp_path / "r.yaml").rules


@EACH_SHELL
def test_the_denial_that_begins_a_ban_says_when_it_ends(engine, clock, ask):
    limiter = engine(RULE)
    answers = [ask(limiter) for _ in range(7)]
    assert [answer.status for answer in answers] == [200] * 2 + [429] * 5
    waits = [answer.headers.get("retry-after") for answer in answers]
    assert waits == [None, None, "60", "60", "600", "600", "600"]
    assert answers[-1].rate == ["2", "0", str(START + 600)]
    assert answers[-1].headers["cache-control"] == "no-store"
    assert answers[-1].body == answers[2].body
    clock.advance(599)
    assert ask(limiter).headers["retry-after"] == "1"
    clock.advance(1)
    assert ask(limiter).rate == ["2", "1", str(START + 660)]


@EACH_SHELL
@pytest.mark.parametrize(
    ("limit", "waits"),
    [
        pytest.param("1 per hour", [3600, 3595, 3001], id="a limit that opens later"),
        pytest.param("0 per hour", [None, None, None], id="a limit that never opens"),
    ],
)
def test_retry_after_is_the_later_of_the_ban_and_the_limit(engine, clock, ask, limit, waits):
    limiter = engine({**RULE, "limit": limit, "ban": {**BAN, "after": "1 denial"}})
    statuses(ask, limiter, times=1)
    told = []
    for wait in (0, 5, 594):
        clock.advance(wait)
        answers = [ask(limiter) for _ in range(3)]
        assert [answer.status for answer in answers] == [429] * 3
        (seconds,) = {answer.headers.get("retry-after") for answer in answers}
        told.append(seconds and int(seconds))
    assert told == waits


@EACH_SHELL
def test_the_next_ban_is_twice_as_long(engine, clock, ask):
    limiter = engine({**RULE, "limit": "0 per day", "ban": {**BAN, "growing": "2x up to 30 minutes"}})
    waits = []
    for _ in range(4):
        statuses(ask, limiter, times=3)
        decision = limiter.peek({"ip": IP}).policies[0]
        assert decision.banned
        waits.append(decision.reset_after / 60)
        clock.advance(decision.reset_after)
    assert waits == [10, 20, 30, 30]
    clock.advance(30 * 60)
    statuses(ask, limiter, times=3)
    assert limiter.peek({"ip": IP}).reset_after == 600


@EACH_SHELL
def test_as_mod_evasive_does(engine, clock, ask):
    """The same page too often; the whole site too often; a blocking period."""
    ban = {"after": "1 denial", "for": "30 seconds"}
    limiter = engine(
        {"name": "page", "by": "ip+path", "limit": "6 per second", "ban": ban},
        {"name": "site", "by": "ip", "limit": "100 per second", "ban": ban},
        response={"status": 403, "message": "Forbidden"},
    )
    assert statuses(ask, limiter, "/a", 8) == [200] * 6 + [403] * 2
    clock.advance(2)
    assert statuses(ask, limiter, "/a", 3) == [403] * 3
    assert statuses(ask, limiter, "/a", ip="192.0.2.1") == [200]
    assert [statuses(ask, limiter, f"/{page}", 5) for page in range(20)] == [[200] * 5] * 20
    assert statuses(ask, limiter, "/x", 2) == [403] * 2  # the 101st of the second
    clock.advance(27)
    assert statuses(ask, limiter, "/y") == [403]
    clock.advance(1)
    assert ask(limiter, "/a").status == 403  # shut out of the site still
    clock.advance(2)
    assert statuses(ask, limiter, "/a", 2) == [200] * 2
    assert ask(limiter, "/a").rate[0] == "6"


@EACH
def test_as_fail2ban_does(engine, clock, ask):
    limiter = engine(
        {**RULE, "limit": "5 per 10 minutes", "count": {"status": [401, 403]}, "ban": {**BAN, "after": "1 denial"}}
    )
    assert [status for status, _ in ask(limiter, says(200), times=20)] == [200] * 20
    assert [status for status, _ in ask(limiter, says(401), times=7)] == [401] * 5 + [429] * 2
    clock.advance(599)
    assert ask(limiter, says(200))[0][0] == 429
    clock.advance(1)
    assert ask(limiter, says(200))[0][0] == 200


@EACH
def test_fifty_at_once_are_as_many_tries_and_one_ban(engine, clock, ask, caplog):
    limiter = engine(
        {**RULE, "limit": "5 per minute", "count": {"status": 401}, "ban": {**BAN, "after": "10 denials in 1 minute"}}
    )
    answers = ask(limiter, says(401), times=50, at_once=True)
    assert [status for status, _ in answers].count(401) == 5
    assert limiter.peek({"ip": IP}).banned
    assert len([record for record in caplog.records if "bans client" in record.message]) == 1


def test_a_ban_is_logged_once_its_client_a_hash(engine, caplog):
    limiter = engine({**RULE, "limit": "0 per day"})
    for _ in range(10):
        limiter.check({"ip": IP})
    (said,) = [
        record.message for record in caplog.records if record.levelno == logging.WARNING and "bans" in record.message
    ]
    assert re.fullmatch(r"rule r bans client [\w-]{20} for 10 minutes", said)
    assert IP not in caplog.text


def test_many_bans_are_ten_lines_a_minute(engine, clock, caplog):
    limiter = engine({**RULE, "limit": "0 per day", "ban": {**BAN, "after": "1 denial"}})
    for number in range(30):
        limiter.check({"ip": f"192.0.2.{number}"})
    said = [record.message for record in caplog.records if "bans client" in record.message]
    assert len(said) == 10
    clock.advance(60)
    limiter.check({"ip": IP})
    assert caplog.records[-1].message.endswith("for 10 minutes; 20 more bans were not logged")


def test_decisions_tell(engine):
    limiter = engine(RULE, {"name": "other", "limit": "100 per minute"})
    decisions = [limiter.check({"ip": IP}) for _ in range(6)]
    assert [decision.banned for decision in decisions] == [False] * 4 + [True] * 2
    assert decisions[-1][:6] == (False, "r", 2, 0, 600.0, 600.0)
    assert {policy.rule: policy.banned for policy in limiter.peek({"ip": IP}).policies} == {"r": True, "other": False}


def test_peek_does_not_count_towards_a_ban(engine):
    limiter = engine({**RULE, "limit": "0 per day"})
    for _ in range(10):
        assert not limiter.peek({"ip": IP}).banned
    assert [limiter.check({"ip": IP}).banned for _ in range(3)] == [False, False, True]


def test_reset_lifts_a_ban_and_an_exemption_passes_it(engine):
    limiter = engine(RULE)

    def banned():
        return [limiter.check({"ip": IP}).allowed for _ in range(5)] and limiter.check({"ip": IP}).banned

    assert banned()
    limiter.reset({"ip": IP})
    assert limiter.check({"ip": IP}).allowed
    assert banned()
    asyncio.run(limiter.areset({"ip": IP}))
    assert limiter.check({"ip": IP}).allowed
    assert banned()
    limiter.overrides.set({"ip": IP}, exempt=True)
    assert limiter.check({"ip": IP}).allowed
    limiter.overrides.remove({"ip": IP})
    assert limiter.check({"ip": IP}).banned


def test_another_limit_for_a_client_keeps_the_ban_and_makes_one(engine):
    limiter = engine(RULE)
    limiter.overrides.set({"ip": IP}, rule="r", limit="4 per minute")
    assert [limiter.check({"ip": IP}).banned for _ in range(8)] == [False] * 6 + [True] * 2
    limiter.overrides.remove({"ip": IP})
    assert limiter.check({"ip": IP}).banned


def test_tiers_and_several_limits_share_one_ban(engine):
    limit = {"default": ["1 per minute", "5 per hour"], "gold": "100 per minute"}
    limiter = engine({**RULE, "limit": limit}, client={"tier": "header:X-Plan"})
    assert [limiter.check({"ip": IP}).banned for _ in range(5)] == [False] * 3 + [True] * 2
    assert limiter.check({"ip": IP, "tier": "gold"}).banned


def test_each_identity_of_a_rule_is_banned_by_itself(engine):
    limiter = engine({**RULE, "by": ["ip", "user"]}, client={"user": "header:X-User"})
    for _ in range(5):
        limiter.check({"ip": IP, "user": "ada"})
    assert [limiter.check(who).banned for who in ({"ip": IP}, {"user": "ada"}, {"ip": "192.0.2.1", "user": "bob"})] == [
        *(True, True, False)
    ]


def test_a_shadow_bans_nobody_and_counts_whom_it_would_have_banned(engine, clock, caplog):
    limiter = engine({**RULE, "shadow": True}, {"name": "other", "limit": "100 per minute"})
    decisions = [limiter.check({"ip": IP}) for _ in range(9)]
    assert all(decision.allowed and not decision.banned for decision in decisions)
    assert (shadow_bans(limiter), shadow_denials(limiter)) == ({"r": 1}, {"r": 7})
    assert "rule r would have banned client" in caplog.text
    clock.advance(600)
    assert limiter.check({"ip": IP}).policies[0].remaining == 1
    assert shadow_denials(limiter) == {"r": 7}


def test_the_kill_switch_lets_the_banned_pass(engine, monkeypatch):
    limiter = engine(RULE)
    for _ in range(5):
        limiter.check({"ip": IP})
    for switch in ("off", "shadow"):
        monkeypatch.setenv("RATELIMIT_MW", switch)
        assert engine(RULE).check({"ip": IP}).allowed


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"throttle": {"soft": "50%"}}, id="soft"),
        pytest.param({"algorithm": "leaky_bucket", "burst": 3, "max_wait": "1ms"}, id="a queue"),
        pytest.param({"algorithm": "token_bucket", "burst": 3}, id="a bucket"),
        pytest.param({"algorithm": "token_bucket", "burst": 3, "throttle": {"soft": "10%"}}, id="a soft bucket"),
        pytest.param({"throttle": {"elastic": {"up_to": "150%", "below": 0.7}}}, id="elastic"),
    ],
)
def test_every_kind_of_limit_can_ban(engine, more):
    limiter = engine({**RULE, "algorithm": "sliding_window", **more}, load="python:tests.shells.loads:load")
    decisions = [limiter.check({"ip": IP}) for _ in range(9)]
    first = next(place for place, decision in enumerate(decisions) if not decision.allowed)
    assert [decision.banned for decision in decisions[first:]] == [False] * 2 + [True] * (9 - first - 2)
    assert decisions[-1].retry_after >= 600
    assert decisions[-1].delay == 0


def test_who_has_too_much_in_flight_is_banned_and_let_in_again(storage, clock):
    rule = {"name": "r", "limit": "1 concurrent", "ban": {"after": "2 denials in 1 minute", "for": "1 minute"}}
    config = {"domain": "d", "rules": [rule], "storage": {"timeout": "5s"}}

    async def main():
        async with RateLimiter(config, storage=storage, clock=clock) as limiter:
            inside, go_on = asyncio.Event(), asyncio.Event()

            async def app(scope, receive, send):
                inside.set()
                await go_on.wait()
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"x"})

            limited = Asgi(app, limiter=limiter)
            first = asyncio.create_task(exchange(limited, http_scope()))
            await inside.wait()
            denied = [await exchange(limited, http_scope()) for _ in range(2)]
            go_on.set()
            await first
            denied.append(await exchange(limited, http_scope()))
            clock.advance(60)
            return [sent[0]["status"] for sent in (*denied, await exchange(limited, http_scope()))]

    assert asyncio.run(main()) == [429, 429, 429, 200]


def test_a_request_without_a_thread_to_wait_does_not_count_towards_a_ban(engine):
    rule = {**RULE, "limit": "1 per minute", "algorithm": "leaky_bucket", "burst": 9, "max_waiting": 0}
    limiter = engine(rule)
    request = limiter.rules.attributes.request_from({"ip": IP})
    verdicts = [limiter.engine.decide_in_turn(request) for _ in range(6)]
    assert [verdict.allowed for verdict in verdicts] == [True] + [False] * 5
    assert not any(verdict.reason == "banned" for verdict in verdicts)


def test_with_its_store_away_a_process_bans_by_itself(fresh_server):
    rules = [{**RULE, "on_error": "local"}]
    config = {"domain": "d", "rules": rules, "storage": {"timeout": "5s"}}
    with RateLimiter(config, storage=fresh_server.url) as limiter:
        assert limiter.check({"ip": IP}).allowed
        fresh_server.kill()
        banned = [limiter.check({"ip": IP}).banned for _ in range(6)]
    assert banned == [False] * 4 + [True] * 2


def test_a_spoilt_record_of_a_ban_goes_by_on_error(any_server, caplog):
    redis = any_server.client()
    redis.lpush(f"d:r:ban:{{ip={IP}}}", "x")
    config = {"domain": "d", "rules": [RULE], "storage": {"timeout": "5s"}}
    with RateLimiter(config, storage=any_server.url) as limiter:
        assert all(limiter.check({"ip": IP}).allowed for _ in range(10))
    redis.close()
    assert "refuses a counter" in caplog.text


def test_rules_that_begin_to_ban_do_so_at_once(storage, clock, tmp_path):
    path = tmp_path / "r.yaml"
    plain = "domain: d\nrules:\n  - {name: r, limit: 0 per day%s}\n"
    path.write_text(plain % "")
    with RateLimiter(path, storage=storage, clock=clock) as limiter:
        limiter.check({"ip": IP})
        path.write_text(plain % ", ban: {after: 1 denial, for: 1 hour}")
        limiter.reload()
        assert [limiter.check({"ip": IP}).banned for _ in range(2)] == [True, True]
        path.write_text(plain % "")
        limiter.reload()
        assert not limiter.check({"ip": IP}).banned


def test_explain_says_until_when(engine):
    limiter = engine(RULE)
    for _ in range(5):
        limiter.check({"ip": IP})
    told = str(limiter.explain({"ip": IP}))
    assert "2 per minute, sliding_log: banned for 10 min" in told
    assert "the counters of 'r' are reset, which lifts the ban" in told
    assert "may do more" not in told


# ------------------------------------------------------------------------------------------------ served

SERVED = """
from ratelimit_mw.{kind} import RateLimitMiddleware

async def asgi(scope, receive, send):
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": b"hello"}})

def wsgi(environ, start_response):
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]

app = RateLimitMiddleware({kind}, {config!r})
"""


@pytest.mark.parametrize(("kind", "serve"), [("asgi", uvicorn), ("wsgi", gunicorn)])
@pytest.mark.parametrize("workers", [pytest.param(1, id="memory"), pytest.param(2, id="Redis, two processes")])
def test_over_http_fifty_at_once_are_one_ban(tmp_path, request, kind, serve, workers):
    url = "memory://" if workers == 1 else request.getfixturevalue("any_server").url
    rule = {**RULE, "limit": "5 per day", "ban": {"after": "10 denials in 1 hour", "for": "2 days"}}
    config = {"domain": "d", "storage": {"url": url, "timeout": "5s"}, "rules": [rule]}
    (tmp_path / "served.py").write_text(SERVED.format(kind=kind, config=config))
    with serve("served:app", workers=workers, cwd=tmp_path) as running:
        barrier = threading.Barrier(10)

        def ask(_):
            with httpx.Client(base_url=running.url, timeout=WITHIN) as client:
                return [(barrier.wait(WITHIN), client.get("/"))[1] for _ in range(5)]

        with ThreadPoolExecutor(10) as pool:
            answers = list(chain.from_iterable(pool.map(ask, range(10))))
    passed = [answer for answer in answers if answer.status_code == 200]
    waits = sorted(int(answer.headers["Retry-After"]) for answer in answers if answer.status_code == 429)
    assert len(passed) == 5
    assert sum(wait <= 86_401 for wait in waits) == 9
    assert sum(172_700 < wait <= 172_800 for wait in waits) == 36
