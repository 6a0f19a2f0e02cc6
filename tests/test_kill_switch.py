"""The switch that operators turn: here, in other processes, and while nobody answers."""

import asyncio
import json
import logging
import time

import httpx
import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.errors import StoreUnavailable
from tests.shells import loads
from tests.shells.asking import EACH_SHELL, IP, START
from tests.support.apps import gunicorn, uvicorn
from tests.support.counts import shadow_denials
from tests.support.patience import eventually

ALL = {"name": "all", "limit": "1 per minute", "algorithm": "fixed_window"}
CLIENT = {"ip": IP}


def config(*rules, **sections):
    # A store on a busy machine is slow, not away.
    return {"domain": "d", "storage": {"timeout": "10s"}, "rules": [*(rules or [ALL])], **sections}


def engine(*rules, clock=None, storage=None, **sections):
    return RateLimiter(config(*rules, **sections), storage=storage, clock=clock or ManualClock(START))


def allowed(limiter, number=3):
    return [limiter.check(CLIENT).allowed for _ in range(number)]


class TestHere:
    def test_off_lets_everything_pass_uncounted(self, storage):
        with engine(storage=storage) as limiter:
            assert allowed(limiter) == [True, False, False]
            assert limiter.switch.set("off").word == "off"
            assert allowed(limiter) == [True] * 3
            assert limiter.check(CLIENT).rule is None
            limiter.switch.set("on")
            assert allowed(limiter) == [False] * 3

    def test_shadow_counts_and_denies_nothing(self, storage):
        with engine(storage=storage) as limiter:
            limiter.switch.set("shadow")
            assert allowed(limiter) == [True] * 3
            assert shadow_denials(limiter) == {"all": 2}
            limiter.switch.set("on")
            assert allowed(limiter) == [False] * 3, "what passed was counted"

    @pytest.mark.parametrize("word", ["off", "shadow"])
    @EACH_SHELL
    def test_nobody_is_denied_delayed_or_blocked(self, ask, word):
        queue = {"name": "queue", "limit": "1 per hour", "algorithm": "leaky_bucket", "burst": 5}
        with engine(queue, {**ALL, "name": "never", "limit": "0 per day"}) as limiter:
            limiter.overrides.set(CLIENT, block=True)
            assert ask(limiter).status == 403
            limiter.switch.set(word)
            answers = [ask(limiter) for _ in range(3)]
            assert [(answer.status, answer.rate, answer.seen.delay) for answer in answers] == [(200, [], 0.0)] * 3
            limiter.switch.set("on")
            assert ask(limiter).status == 403

    @pytest.mark.parametrize("word", ["off", "shadow"])
    def test_nobody_is_shed_or_banned(self, word, monkeypatch):
        monkeypatch.setattr(loads, "level", 1.0)
        ban = {"after": "1 denials", "for": "1 hour"}
        with engine({**ALL, "ban": ban, "priority": "low"}, load="python:tests.shells.loads:load") as limiter:
            assert not any(allowed(limiter))
            limiter.switch.set(word)
            assert allowed(limiter) == [True] * 3
            monkeypatch.setattr(loads, "level", 0.0)
            assert allowed(limiter) == [True] * 3

    def test_what_was_planned_before_it_holds_for_no_check_after_it(self):
        with engine() as limiter:
            for word, found in (
                ("on", [True, False]),
                ("off", [True] * 2),
                ("on", [False] * 2),
                ("shadow", [True] * 2),
            ):
                limiter.switch.set(word)
                assert allowed(limiter, 2) == found

    def test_it_ends_when_it_was_said_to(self, storage):
        clock = ManualClock(START)
        with engine(clock=clock, storage=storage) as limiter:
            made = limiter.switch.set("off", duration="2h", comment="incident", author="ada")
            assert (made.until, made.comment, made.author) == (START + 7200, "incident", "ada")
            assert limiter.switch.setting == made
            clock.advance(7199)
            assert allowed(limiter) == [True] * 3
            clock.advance(1)
            assert limiter.switch.setting.word == "on"
            assert allowed(limiter) == [True, False, False]
            assert limiter.switch.kept().word == "on"

    def test_what_can_t_be_is_said(self):
        with engine() as limiter:
            with pytest.raises(ValueError, match="the switch can be on, off or shadow, not 'of'"):
                limiter.switch.set("of")
            with pytest.raises(ValueError, match="on takes no duration"):
                limiter.switch.set("on", duration=5)
            with pytest.raises(ValueError, match="'soon' is not a duration"):
                limiter.switch.set("off", duration="soon")

    def test_from_a_loop(self):
        async def main():
            async with engine() as limiter:
                await limiter.switch.aset("off", comment="quiet")
                return (await limiter.acheck(CLIENT)).rule, (await limiter.switch.akept()).comment

        assert asyncio.run(main()) == (None, "quiet")

    def test_it_is_said_once(self, caplog):
        caplog.set_level(logging.WARNING, "ratelimit_mw")
        with engine() as limiter:
            for word in ("off", "off", "on"):
                limiter.switch.set(word, author="ada", comment="incident 12")
                limiter.reload()
        assert caplog.messages == [
            "the switch is off: everything passes, uncounted (ada: incident 12)",
            "the switch is on again: limits apply",
        ]

    def test_an_explanation_speaks_of_it(self):
        with engine() as limiter:
            limiter.switch.set("shadow", author="ada")
            allowed(limiter)
            explanation = limiter.explain(CLIENT)
            assert explanation.note == "the switch is at shadow: all requests are counted, none is denied (ada)"
            assert explanation.outcome == "would pass, uncounted"

    @pytest.mark.parametrize(
        ("environment", "found"),
        [("off", [True] * 3), ("shadow", [True] * 3), ("on", [True, False, False])],
    )
    def test_the_environment_wins(self, monkeypatch, environment, found):
        monkeypatch.setenv("RATELIMIT_MW", environment)
        with engine() as limiter:
            limiter.switch.set("off" if environment != "off" else "shadow")
            assert allowed(limiter) == found
            assert limiter.switch.setting[0::5] == (environment, "environment")
            assert limiter.switch.kept().word != environment


class TestEverywhere:
    def test_other_processes_hear_of_it(self, any_server):
        with engine(storage=any_server.url) as limiter, engine(storage=any_server.url) as other:
            allowed(other)
            limiter.switch.set("off", author="ada")
            eventually(lambda: other.switch.setting.word == "off")
            assert allowed(other) == [True] * 3
            assert other.switch.setting == limiter.switch.setting
            assert other.switch.setting.source == other.overrides.records.name
            limiter.switch.set("on")
            eventually(lambda: not allowed(other)[0])

    @pytest.mark.parametrize("reload", ["5m", "off"])
    def test_it_reaches_other_processes_whatever_the_interval_of_their_rules(self, any_server, reload):
        url = any_server.url
        with engine(storage=url, reload=reload) as limiter, engine(storage=url, reload=reload) as other:
            allowed(other)
            limiter.switch.set("off")
            eventually(lambda: other.switch.setting.word == "off")

    def test_what_is_kept_has_no_end_but_the_one_it_was_given(self, any_server):
        with engine(storage=any_server.url) as limiter:
            limiter.switch.set("off", duration="1m")
        client = any_server.client()
        assert any_server.keys() == ["d:overrides"]
        assert client.ttl("d:overrides") == -1
        assert json.loads(client.hget("d:overrides", "switch")) == {
            "word": "off",
            "until": START + 60,
            "comment": "",
            "author": "",
            "at": pytest.approx(time.time(), abs=60),
        }

    def test_overrides_and_the_switch_leave_each_other_alone(self, any_server):
        with engine(storage=any_server.url) as limiter:
            limiter.switch.set("shadow")
            limiter.overrides.set(CLIENT, rule="all", limit="2 per minute")
            assert [override.kind for override in limiter.overrides.list()] == ["limit"]
            assert limiter.state.overrides == 1
            limiter.switch.set("on")
            assert allowed(limiter) == [True, True, False]

    @pytest.mark.parametrize("kept", ["", "off", "{}", '{"word": 5}', '{"word": "off", "until": "never"}', '["off"]'])
    def test_what_can_t_be_read_is_on(self, any_server, kept):
        any_server.client().hset("d:overrides", mapping={"switch": kept, "version": 7})
        with engine(storage=any_server.url) as limiter:
            limiter.reload()
            assert allowed(limiter) == [True, False, False]

    def test_while_redis_is_away_the_last_setting_stays(self, fresh_server):
        with engine({**ALL, "on_error": "local"}, storage=fresh_server.url) as limiter:
            limiter.switch.set("off")
            fresh_server.kill()
            with pytest.raises(StoreUnavailable):
                limiter.switch.kept()
            with pytest.raises(StoreUnavailable):
                limiter.switch.set("on")
            assert allowed(limiter) == [True] * 3
            assert limiter.switch.setting.word == "off"

    def test_a_setting_ends_although_redis_is_away(self, fresh_server):
        clock = ManualClock(START)
        with engine({**ALL, "on_error": "local"}, storage=fresh_server.url, clock=clock) as limiter:
            limiter.switch.set("off", duration=60)
            fresh_server.kill()
            clock.advance(60)
            assert allowed(limiter) == [True, False, False]

    def test_of_several_domains_the_one_that_is_off_decides(self, any_server, tmp_path):
        for domain in ("a", "b"):
            (tmp_path / f"{domain}.yaml").write_text(f"domain: {domain}\nrules:\n- {{name: r, limit: 0 per day}}\n")
        with RateLimiter(tmp_path, storage=any_server.url) as both:
            with RateLimiter(tmp_path / "a.yaml", storage=any_server.url) as alone:
                alone.switch.set("off")
            both.reload()
            assert both.check(CLIENT).allowed
            both.switch.set("on")
            assert not both.check(CLIENT).allowed
            (tmp_path / "c.yaml").write_text("domain: c\nrules: []\n")
            with RateLimiter(tmp_path / "c.yaml", storage=any_server.url) as alone:
                alone.switch.set("shadow")
            both.reload()
            both.reload()  # a domain that is new is asked from then on
            assert both.check(CLIENT).allowed
            (tmp_path / "c.yaml").unlink()
            both.reload()
            assert not both.check(CLIENT).allowed


ASGI = """
from ratelimit_mw.asgi import RateLimitMiddleware

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})

app = RateLimitMiddleware(app, "ratelimits.yaml")
"""
WSGI = """
from ratelimit_mw.wsgi import RateLimitMiddleware

def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]

app = RateLimitMiddleware(app, "ratelimits.yaml")
"""


@pytest.mark.parametrize(
    ("source", "serve"), [pytest.param(ASGI, uvicorn, id="ASGI"), pytest.param(WSGI, gunicorn, id="WSGI")]
)
def test_over_http_and_processes(tmp_path, any_server, source, serve):
    rules = config(ALL, storage={"url": any_server.url, "timeout": "10s"})
    (tmp_path / "ratelimits.yaml").write_text(json.dumps(rules))
    (tmp_path / "served.py").write_text(source)
    with serve("served:app", workers=2, cwd=tmp_path) as running, RateLimiter(rules) as operator:

        def statuses(number=12):
            # A client for each, for the kernel gives connections to workers, not requests; and none loads certificates.
            return {httpx.get(running.url, verify=False).status_code for _ in range(number)}

        statuses()
        assert statuses() == {429}
        for word, found in (("off", {200}), ("on", {429}), ("shadow", {200}), ("on", {429})):
            operator.switch.set(word)
            eventually(lambda found=found: statuses() == found)
