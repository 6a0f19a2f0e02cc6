"""Soft and elastic limits, through both middlewares and `check()`, in memory and on Redis."""

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from tests.shells import loads
from tests.shells.asking import EACH_SHELL, IP, START

ELASTIC = {"elastic": {"up_to": "200%", "below": 0.7}}


@pytest.fixture
def level():
    loads.level = 0.1

    def put(value):
        loads.level = value

    yield put
    loads.level = 0.0


def limiter(throttle, *, storage, clock=None, **rule):
    rule = {"name": "a", "limit": "10 per minute", "algorithm": "fixed_window", "throttle": throttle, **rule}
    patient = {"timeout": "5s"}  # the machine may be busy
    config = {"domain": "d", "storage": patient, "load": "python:tests.shells.loads:load", "rules": [rule]}
    return RateLimiter(config, storage=storage, clock=clock or ManualClock(START))


@EACH_SHELL
def test_a_soft_limit_is_exceeded_by_its_part_and_says_so(ask, storage):
    with limiter({"soft": "20%"}, storage=storage) as engine:
        answers = [ask(engine) for _ in range(13)]
    assert [answer.status for answer in answers] == [200] * 12 + [429]
    assert {answer.headers["x-ratelimit-limit"] for answer in answers} == {"10"}
    assert [int(answer.headers["x-ratelimit-remaining"]) for answer in answers] == [*range(9, -1, -1), 0, 0, 0]
    assert [answer.headers.get("x-ratelimit-over") for answer in answers] == [None] * 10 + ["soft", "soft", None]
    assert [answer.seen.over for answer in answers[:12]] == [None] * 10 + ["soft"] * 2


@EACH_SHELL
def test_an_elastic_limit_opens_while_the_load_is_low(ask, storage, level):
    with limiter(ELASTIC, storage=storage) as engine:
        answers = [ask(engine) for _ in range(21)]
    assert [answer.status for answer in answers] == [200] * 20 + [429]
    assert [answer.headers.get("x-ratelimit-over") for answer in answers] == [None] * 10 + ["elastic"] * 10 + [None]
    assert answers[20].headers["x-ratelimit-limit"] == "10"


@EACH_SHELL
def test_under_load_an_elastic_limit_is_a_limit(ask, storage, level):
    level(0.8)
    with limiter(ELASTIC, storage=storage) as engine:
        assert [ask(engine).status for _ in range(12)] == [200] * 10 + [429] * 2


@pytest.mark.parametrize(
    ("algorithm", "over"),
    [
        pytest.param("fixed_window", 2, id="fixed"),
        pytest.param("sliding_window", 2, id="sliding"),
        pytest.param("sliding_log", 2, id="log"),
        pytest.param("bucketed_window", 2, id="bucketed"),
        pytest.param("token_bucket", 2, id="token bucket"),
        pytest.param("leaky_bucket", 2, id="leaky bucket"),
    ],
)
def test_every_algorithm_can_be_soft(algorithm, over, storage):
    with limiter({"soft": "25%"}, storage=storage, algorithm=algorithm) as engine:
        said = [engine.check({"ip": IP}) for _ in range(14)]
    assert [decision.allowed for decision in said] == [True] * 12 + [False] * 2
    assert [decision.over for decision in said] == [None] * 10 + ["soft"] * over + [None] * 2
    assert {decision.limit for decision in said} == {10}


def test_the_burst_of_a_bucket_is_what_a_throttle_raises(storage):
    with limiter({"soft": "50%"}, storage=storage, algorithm="token_bucket", burst=4) as engine:
        said = [engine.check({"ip": IP}) for _ in range(7)]
    assert [decision.allowed for decision in said] == [True] * 6 + [False]
    assert [decision.remaining for decision in said] == [3, 2, 1, 0, 0, 0, 0]
    assert said[0].limit == 4


def test_hard_is_what_a_limit_is_anyway(storage):
    with limiter("hard", storage=storage) as engine:
        assert sum(engine.check({"ip": IP}).allowed for _ in range(20)) == 10


def test_less_than_one_request_more_is_none():
    with limiter({"soft": "9%"}, storage="memory://") as engine:
        assert sum(engine.check({"ip": IP}).allowed for _ in range(20)) == 10


@pytest.mark.parametrize(
    "algorithm",
    ["fixed_window", "sliding_window", "sliding_log", "bucketed_window", "token_bucket", "leaky_bucket"],
)
def test_retry_after_of_an_elastic_limit_holds_whatever_the_load_is_then(algorithm, storage, level, monkeypatch):
    clock = ManualClock(START)
    with limiter(ELASTIC, storage=storage, clock=clock, algorithm=algorithm) as engine:
        said = [engine.check({"ip": IP}) for _ in range(21)]
        assert [decision.allowed for decision in said] == [True] * 20 + [False]
        level(1.0)
        _let_pass(engine, monkeypatch, 10)
        clock.advance(said[20].retry_after)
        assert engine.check({"ip": IP}).allowed
        assert engine.check({"ip": IP}, 8).over is None


def test_a_denial_under_load_is_not_remembered_when_the_load_falls(any_server, level, monkeypatch):
    level(1.0)
    with limiter(ELASTIC, storage=any_server.url, clock=None) as engine:
        assert sum(engine.check({"ip": IP}).allowed for _ in range(15)) == 10
        level(0.1)
        _let_pass(engine, monkeypatch, 10)
        assert engine.check({"ip": IP}).over == "elastic"


def test_what_is_over_binds_before_what_is_just_spent():
    rules = [
        {"name": "spent", "limit": "11 per minute", "algorithm": "fixed_window"},
        {"name": "soft", "limit": "10 per minute", "algorithm": "fixed_window", "throttle": {"soft": "50%"}},
    ]
    with RateLimiter({"domain": "d", "rules": rules}, storage="memory://", clock=ManualClock(START)) as engine:
        said = [engine.check({"ip": IP}) for _ in range(12)]
    assert (said[10].rule, said[10].over, said[10].remaining) == ("soft", "soft", 0)
    assert [policy.over for policy in said[10].policies] == [None, "soft"]
    assert (said[11].allowed, said[11].rule, said[11].over) == (False, "spent", None)


def test_a_folder_of_files_has_the_load_of_the_one_that_says(tmp_path, level):
    rule = "rules:\n  - {name: a, limit: 10/m, throttle: {elastic: {up_to: 200%, below: 0.7}}}\n"
    (tmp_path / "a.yaml").write_text("domain: a\n" + rule)
    (tmp_path / "b.yaml").write_text("domain: b\nload: python:tests.shells.loads:load\n" + rule)
    with RateLimiter(tmp_path, storage="memory://", clock=ManualClock(START)) as engine:
        assert sum(engine.check({"ip": IP}).allowed for _ in range(30)) == 20


def _let_pass(engine, monkeypatch, seconds):
    """Let time pass for the meter alone, which has a clock of its own."""
    meter = engine.engine.planner.meter(engine.rules)
    moved = meter.clock() + seconds
    meter.load()
    monkeypatch.setattr(meter, "clock", lambda: moved)
    meter.load()
