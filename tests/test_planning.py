"""Plans of what `check` is given: remembered where nothing else bears on them, and as right as those made anew."""

from enum import Enum

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.recent import Recent

ALL = {"name": "all", "by": ["ip", "user"], "limit": "9 per minute", "algorithm": "fixed_window"}
IP = {"remote_address": "192.0.2.1"}


class Plan(str, Enum):  # noqa: UP042  whose str() is not the text that it equals
    GOLD = "gold"


@pytest.fixture
def engine():
    made = []

    def make(*rules, **sections):
        made.append(RateLimiter({"domain": "d", "rules": list(rules), **sections}, clock=ManualClock(0)))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def plan(limiter, given, cost=1):
    return limiter.engine.planner.plan_given(limiter.rules, given, cost)


def keys(limiter, given, cost=1):
    return [ask.key for ask in plan(limiter, given, cost).asks]


def test_the_same_attributes_have_the_same_plan(engine):
    limiter = engine(ALL)
    first = plan(limiter, {**IP, "user": "a"})
    assert plan(limiter, {**IP, "user": "a"}) is first
    assert plan(limiter, {**IP, "user": "b"}).asks != first.asks
    assert [ask.cost for ask in plan(limiter, {**IP, "user": "a"}, 3).asks] == [3, 3]
    assert plan(limiter, {**IP, "user": None}).asks == first.asks[:1]


def test_values_that_are_equal_but_read_differently_are_told_apart(engine):
    limiter = engine(ALL)
    texts = ["1", 1, True, 1.0, "True", "1.0"]
    told = [keys(limiter, {"user": value})[-1] for _ in range(2) for value in texts]
    assert told[:6] == told[6:]
    assert told[0] == told[1] != told[2] == told[4] != told[3] == told[5]


def test_an_enum_that_is_a_str_counts_as_the_text_that_it_equals(engine):
    assert keys(engine(ALL), {"user": Plan.GOLD}) == keys(engine(ALL), {"user": "gold"})


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"user": ["a"]}, id="no value to look up by"),
        pytest.param({"user": 7}, id="no text"),
        pytest.param({"user": "a" * 300}, id="long"),
        pytest.param(type("Own", (dict,), {})(user="a"), id="a mapping of the app's own"),
    ],
)
def test_what_is_not_remembered_is_planned_each_time(engine, given):
    limiter = engine(ALL)
    first = plan(limiter, given)
    again = plan(limiter, given)
    assert again is not first
    assert again.asks == first.asks


def test_a_bad_cost_is_refused_though_the_good_one_is_known(engine):
    limiter = engine(ALL)
    limiter.check(IP, 1)
    assert limiter.check(IP, True).remaining == 7
    for cost in (1.0, -1):
        with pytest.raises(ValueError, match="whole number"):
            limiter.check(IP, cost)


def test_what_time_or_load_can_change_is_not_remembered(engine):
    elastic = {**ALL, "throttle": {"elastic": {"up_to": "200%", "below": 0.7}}}
    assert engine(elastic).rules.plans is None
    limiter = engine(ALL)
    assert limiter.check(IP).allowed
    limiter.overrides.set({"ip": "192.0.2.1"}, block=True, duration=10)
    assert not limiter.check(IP).allowed
    limiter.engine._clock.advance(11)
    assert limiter.check(IP).allowed


def test_what_an_override_changes_for_good_is_seen_at_once(engine):
    limiter = engine(ALL)
    assert limiter.check(IP).limit == 9
    limiter.overrides.set({"ip": "192.0.2.1"}, rule="all", limit="5 per minute")
    assert [limiter.check(IP).limit for _ in range(2)] == [5, 5]
    assert limiter.rules.plans is not None
    limiter.overrides.remove({"ip": "192.0.2.1"}, rule="all")
    assert limiter.check(IP).limit == 9


def test_a_domain_alone_has_plans_of_its_own(tmp_path):
    for name in "ab":
        rule = f"rules: [{{name: {name}, limit: 9 per hour}}]\n"
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\n{rule}")
    with RateLimiter(tmp_path) as limiter:
        asked = [None, "a", "b", "c", None, "a", "b", "c"]
        assert [len(limiter.check(IP, domain=domain).policies) for domain in asked] == [2, 1, 1, 0] * 2


def test_what_is_recent_has_bounded_room():
    recent = Recent(10)
    for n in range(100):
        recent.put(n, str(n))
    assert [recent.get(n) for n in range(100)].count(None) == 90
    assert recent.get(99) == "99"
    recent.put(99, "new")
    assert recent.get(99) == "new"
    for n in range(100):
        recent.drop(n)
    assert {recent.get(n) for n in range(100)} == {None}
