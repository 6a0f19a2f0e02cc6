"""`shadow: true` of a whole file: everything is counted, and nothing enforced."""

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from tests.shells.asking import EACH_SHELL, IP, START
from tests.support.counts import shadow_denials

ALL = {"name": "all", "limit": "1 per minute", "algorithm": "fixed_window"}
CLIENT = {"ip": IP}


def engine(*rules, **sections):
    return RateLimiter({"domain": "d", "shadow": True, "rules": [*rules], **sections}, clock=ManualClock(START))


@EACH_SHELL
def test_it_denies_nobody_and_counts_whom_it_would_have_denied(ask):
    with engine(ALL) as limiter:
        answers = [ask(limiter) for _ in range(3)]
        assert [(answer.status, answer.rate) for answer in answers] == [(200, [])] * 3
        assert shadow_denials(limiter) == {"all": 2}


def test_what_is_blocked_passes_in_the_file_and_at_run_time():
    with engine(ALL, overrides=[{"client": CLIENT, "block": True}]) as limiter:
        limiter.overrides.set({"ip": "192.0.2.0/24"}, block=True)
        assert limiter.check(CLIENT).allowed
        assert limiter.check({"ip": "192.0.2.9"}).allowed


def test_rules_still_replace_each_other_unless_they_are_shadows_by_themselves():
    login = {"name": "login", "match": {"path": "/login"}, "limit": "2 per minute", "replaces": "all"}
    asked = {**CLIENT, "path": "/login"}
    with engine(ALL, login) as limiter:
        assert [policy.rule for policy in limiter.check(asked).policies] == ["login"]
    with engine(ALL, {**login, "shadow": True}) as limiter:
        assert [policy.rule for policy in limiter.check(asked).policies] == ["all", "login"]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="a limit"),
        pytest.param({"quota_mode": True}, id="one that denies together with others"),
    ],
)
def test_descriptors_are_in_shadow_too(more):
    descriptors = [{"key": "kind", "value": "sms", "rate_limit": {"unit": "day", "requests_per_unit": 1}, **more}]
    with engine(descriptors=descriptors) as limiter:
        assert all(limiter.check([("kind", "sms")]).allowed for _ in range(3))
        assert shadow_denials(limiter) == {"kind=sms": 2}
        assert limiter.explain([("kind", "sms")]).note == "the whole file is in shadow: it denies no request"


def test_of_a_folder_each_file_is_by_itself(tmp_path):
    rule = "rules:\n- {name: all, limit: 1 per minute, algorithm: fixed_window}\n"
    (tmp_path / "a.yaml").write_text(f"domain: a\n{rule}")
    (tmp_path / "b.yaml").write_text(f"domain: b\nshadow: true\n{rule.replace('1', '0')}")
    with RateLimiter(tmp_path, clock=ManualClock(START)) as limiter:
        assert [limiter.check(CLIENT).allowed for _ in range(2)] == [True, False]
        explanation = limiter.explain(CLIENT)
        assert explanation.note == "b: the whole file is in shadow: it denies no request"
        assert [(rule.name, rule.shadow) for rule in explanation.rules] == [("a: all", False), ("b: all", True)]


def test_a_reload_puts_it_into_force(tmp_path):
    file = tmp_path / "r.yaml"
    text = "domain: d\nshadow: true\nrules:\n- {name: all, limit: 2 per hour, algorithm: fixed_window}\n"
    file.write_text(text)
    with RateLimiter(file, clock=ManualClock(START)) as limiter:
        assert all(limiter.check(CLIENT).allowed for _ in range(2))
        file.write_text(text.replace("true", "false"))
        limiter.reload()
        assert not limiter.check(CLIENT).allowed, "what was counted in shadow counts"
