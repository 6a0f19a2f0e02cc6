"""A plan that is executed in one step does the same as one that is executed in several, for any rules and requests.

A store that offers no `decider` has all plans executed in several steps.
"""

import logging
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.algorithms import ALGORITHMS, DECIDE_ALL, admitting, with_overdraft
from ratelimit_mw.model import Quota
from ratelimit_mw.stores.counters import STAMP_SIZE, deciding, deciding_uncharged, shadowed, stamp
from ratelimit_mw.stores.memory import MemoryStore
from tests.shells.asking import IP, START, InSteps, limiter
from tests.test_combinations import asked_asgi, asked_wsgi, history, loaded
from tests.test_combinations import given as attributes_of


def counted(tally):
    """All that was counted. How long decisions took differs, but not how many were measured."""
    snapshot = tally.snapshot()
    return snapshot._replace(decisions=sum(snapshot.decisions.counts))


def told(config, shell, kind, seed, caplog):
    """What becomes of each request of a history, and what it leaves behind: counters, tallies and logs."""
    clock, answers = ManualClock(START), []
    store = kind(clock=clock)
    caplog.clear()
    with RateLimiter(config, storage=store, clock=clock) as engine:
        ask = shell(engine)
        for wait, request, outcome, cost in history(Random(seed)):
            clock.advance(wait)
            answers += [engine.check(attributes_of(request)), ask(request, outcome, cost)]
        counters = {key: store.load(key) for key in store.keys("")}
        return answers, counters, counted(engine.engine.tally), [record.getMessage() for record in caplog.records]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), shell=st.sampled_from([asked_asgi, asked_wsgi]))
def test_one_step_leaves_the_same_answers_counters_tallies_and_logs_as_several(caplog, seed, shell):
    caplog.set_level(logging.INFO, "ratelimit_mw")
    config = loaded(seed)
    assume(config is not None)
    assert told(config, shell, MemoryStore, seed, caplog) == told(config, shell, InSteps, seed, caplog), config


@pytest.mark.parametrize("overdraft", [False, True])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    rate=st.tuples(st.integers(1, 9), st.integers(1, 50)),
    bucket=st.tuples(st.integers(1, 9), st.integers(0, 20)),
    asked=st.lists(st.tuples(st.integers(-70, 70), st.integers(0, 4), st.booleans()), min_size=1, max_size=30),
)
def test_what_is_compiled_for_a_quota_gives_the_outcomes_and_the_values_of_the_general_decision(
    name, overdraft, rate, bucket, asked
):
    algorithm, (limit, period), (burst, longest) = ALGORITHMS[name], rate, bucket
    quota = Quota(name, limit, period, burst=burst if algorithm.has_burst else 0, buckets=period)
    quota = replace(quota, longest_wait=longest) if algorithm.can_wait else quota
    quota = with_overdraft(quota) if overdraft else quota
    decide, usually = DECIDE_ALL[quota.decided_by], algorithm.admitting is not None and not overdraft
    now = written = 10**6
    value = b""
    for wait, cost, shadow in asked:
        now += wait
        decided = decide(value[STAMP_SIZE:], quota, cost, now)
        outcome, stored = valued(quota, cost, shadow, now, decided)
        admit = shadowed(admitting(quota, cost)) if shadow else admitting(quota, cost)
        at_once = cost == 1 and outcome.allowed and not outcome.delay and now >= written
        usual = usually and at_once and len(stored) == len(value or stored)  # a log of times may have to grow
        assert admit(value, now) in [(outcome, stored)] + [None] * (not usual)
        assert deciding(quota, cost, shadow)(value, now) == (outcome, stored)
        if outcome.allowed and not overdraft:
            unasked, state = decide(value[STAMP_SIZE:], quota, 0, now)
            decided = unasked._replace(delay=outcome.delay), state
        assert deciding_uncharged(quota, cost, shadow)(value, now) == valued(quota, cost, shadow, now, decided)
        if stored is not None:
            value, written = stored, now


def valued(quota, cost, shadow, now, decided):
    """The outcome of a decision, and the value that is stored after it."""
    outcome, state = decided
    return outcome, None if state is None else stamp(quota, cost, shadow, outcome, now) + state


ONE = {"name": "one", "by": "ip", "limit": "3 per minute", "algorithm": "fixed_window"}
BAN = {"after": "2 denials in 1 minute", "for": "1 minute"}


def plan_of(limiter, **attributes):
    return limiter.engine.planner.plan(limiter.rules, limiter.rules.attributes.request_of({"ip": IP, **attributes}))


@pytest.mark.parametrize(
    ("rules", "one_step"),
    [
        pytest.param([ONE], True, id="one counter"),
        pytest.param([ONE, {**ONE, "name": "two"}], True, id="several counters"),
        pytest.param([ONE, {**ONE, "name": "two", "shadow": True}], True, id="a shadow rule"),
        pytest.param([{**ONE, "ban": BAN}], True, id="a ban"),
        pytest.param([{**ONE, "count": {"status": [401]}}], True, id="a charge that is settled by the response"),
        pytest.param([ONE, {"name": "two", "by": "ip", "limit": "9 concurrent"}], False, id="a place that is renewed"),
    ],
)
def test_a_plan_knows_how_it_is_executed(rules, one_step):
    with limiter(rules=rules, storage=MemoryStore(clock=ManualClock(START))) as made:
        assert plan_of(made).shape.direct == one_step


def test_rules_that_deny_only_together_take_a_second_step_which_returns_what_was_charged():
    limit = {"unit": "day", "requests_per_unit": 1}
    descriptors = [{"key": key, "quota_mode": True, "rate_limit": limit} for key in ("remote_address", "method")]
    with limiter(rules=[], descriptors=descriptors, storage=MemoryStore(clock=ManualClock(START))) as made:
        assert not plan_of(made, method="GET").shape.direct


@pytest.mark.parametrize("kind", [MemoryStore, InSteps])
def test_a_rule_gets_its_cell_of_the_tally_when_it_has_decided_and_not_when_it_is_planned(kind):
    with limiter(rules=[ONE], storage=kind(clock=ManualClock(START))) as made:
        plan_of(made)
        assert made.tally.snapshot().rules == ()
        made.check({"ip": IP})
        assert [rule.outcomes["allowed"] for rule in made.tally.snapshot().rules] == [1]


def test_the_switch_holds_for_plans_that_are_executed_in_one_step():
    with limiter(rules=[ONE]) as made:
        assert [made.check({"ip": IP}).remaining for _ in range(2)] == [2, 1]
        made.switch.set("off")
        assert made.check({"ip": IP}).remaining is None
        made.switch.set("on")
        assert made.check({"ip": IP}).remaining == 0


def test_a_subclass_that_decides_by_itself_is_asked():
    asked = []

    class Own(MemoryStore):
        def ask(self, request):
            asked.append(request)
            return super().ask(request)

    with limiter(rules=[ONE], storage=Own(clock=ManualClock(START))) as made:
        made.check({"ip": IP})
    assert len(asked) == 1


@pytest.mark.parametrize("kind", [MemoryStore, InSteps])
def test_of_counters_with_as_much_left_the_first_one_binds(kind):
    rules = [{**ONE, "name": name} for name in ("one", "two")]
    with limiter(rules=rules, storage=kind(clock=ManualClock(START))) as made:
        assert [made.check({"ip": IP}).rule for _ in range(5)] == ["one"] * 5


@pytest.mark.parametrize("kind", [MemoryStore, InSteps])
@pytest.mark.parametrize("others", [0, 1])
def test_a_request_that_has_to_wait_is_told_for_how_long(kind, others):
    queue = {"name": "queue", "by": "ip", "algorithm": "leaky_bucket", "limit": "60 per minute", "burst": 3}
    with limiter(
        rules=[queue, {**ONE, "limit": "99 per hour"}][: others + 1], storage=kind(clock=ManualClock(START))
    ) as made:
        assert [made.check({"ip": IP}).delay for _ in range(3)] == [0.0, 1.0, 2.0]
        assert made.tally.snapshot().requests["delayed"] == 2


@pytest.mark.parametrize("kind", [MemoryStore, InSteps])
def test_a_queue_whose_next_turn_is_not_now_denies_a_thread_beside_a_counter_that_denies(kind):
    """A thread asks without waiting first. See `Engine.decide_in_turn`."""
    queue = {"name": "queue", "by": "ip", "algorithm": "leaky_bucket", "limit": "2 per hour", "burst": 5}
    request = {"path": "/", "method": "GET", "ip": IP, "headers": {}, "query": ""}
    with limiter(rules=[{**ONE, "limit": "1 per minute"}, queue], storage=kind(clock=ManualClock(START))) as made:
        answers = [asked_wsgi(made)(request, 200, None) for _ in range(3)]
    assert [dict(fields).get("retry-after") for _, fields, _ in answers] == [None, "1800", "1800"]
