"""An explanation agrees with the decision: random rules and random requests, compared rule by rule."""

import operator

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter
from ratelimit_mw.rules.compiled import BLOCKED
from tests.identity.requests import asgi, wsgi
from tests.support.rules import load_rules
from tests.test_combinations import FILE, FRAME, WORDS

START = 1_700_000_000
PATHS = ["/a", "/b", "//a", "/b/../a", "/a/", "/items/7", "/items/07", "/a\n", ""]
USERS = ["cookie:sid", "header:X-User", "query:user"]

WORDS = {
    **WORDS,
    "by": [*WORDS["by"], "route", "path:id", ["user+ip", "path:id"], "cookie:sid|user", "query:user", "host"],
    "match": [
        *WORDS["match"],
        {"path": ["/items/{id:int}", "/{rest:path}"], "cookie:sid": ["one", "two"]},
        {"host": "api.example.com", "methods": ["OPTIONS", "POST"]},
        {"query:user": "ada", "ip": ["192.0.2.0/24", "2001:db8::/32"]},
        {"path": "/*", "methods": ["POST"], "tier": ["gold", "silver"]},
        {"methods": ["DELETE"]},
    ],
    "replaces": ["first", ["first"]],
}
FILE = {
    **FILE,
    "exempt": [
        *FILE["exempt"],
        [{"cookie:sid": "two"}, {"path": "/a", "methods": ["GET"]}],
        [{"host": "api.example.com"}],
        [{"methods": ["POST"]}],
    ],
    "overrides": [
        *FILE["overrides"],
        [{"client": {"ip": "192.0.2.9"}, "rule": "first", "limit": "unlimited"}],
        [{"client": {"user": "one"}, "exempt": True}],
        [{"client": {"user": "ada"}, "block": True}, {"client": {"ip": "192.0.2.0/24"}, "exempt": True}],
    ],
    "descriptors": [
        *FILE["descriptors"],
        [{"key": "user", "value": "ada", "rate_limit": {"unit": "minute", "requests_per_unit": 4}}],
    ],
}

SIDS = st.sampled_from(["one", "two", "ada", '"one"', "u1"])
COOKIES = st.lists(SIDS.map("sid={}".format), min_size=1, max_size=3).map("; ".join)
HEADERS = st.one_of(
    st.tuples(st.just("cookie"), COOKIES),
    st.tuples(st.sampled_from(["x-user", "x_user"]), SIDS),
    st.tuples(st.just("x-tier"), st.sampled_from(["gold", "silver"])),
    st.tuples(st.just("x-plan"), st.sampled_from(["x", "y"])),
    st.tuples(st.just("x-cost"), st.sampled_from(["0", "3", "many"])),
    st.tuples(st.just("host"), st.sampled_from(["api.example.com", "api.example.com:x", "other.example.com"])),
    st.tuples(st.just("origin"), st.just("https://app.example.com")),
    st.tuples(st.just("access-control-request-method"), st.sampled_from(["GET", "POST", "DELETE", "OPTIONS"])),
)
PREFLIGHTS = st.sampled_from(["GET", "POST", "PURGE"]).map(
    lambda method: [("origin", "https://app.example.com"), ("access-control-request-method", method)]
)
REQUESTS = st.fixed_dictionaries(
    {
        "headers": st.one_of(
            st.lists(HEADERS, max_size=5),
            st.builds(operator.add, PREFLIGHTS, st.lists(HEADERS, max_size=2)),
        ),
        "path": st.sampled_from(PATHS),
        "method": st.sampled_from(["GET", "HEAD", "POST", "OPTIONS", "OPTIONS"]),
        "peer": st.sampled_from(["192.0.2.9", "203.0.113.8", "203.0.113.9", None]),
        "query": st.sampled_from(["", "user=ada", "user=ada&user=one", "cost=2"]),
    }
)


def made(make, method, **more):
    """A request of either kind."""
    return make(**more, **({"method": method} if make is asgi else {"REQUEST_METHOD": method}))


@st.composite
def files(draw):
    """A rules file that loads. Words that make no sense together are left out, rule by rule."""
    client = {"user": draw(st.sampled_from(USERS)), "tier": "header:X-Tier", "secret": "s"}
    sections = {
        word: draw(st.sampled_from(FILE[word])) for word in draw(st.lists(st.sampled_from(sorted(FILE)), unique=True))
    }
    config = {**FRAME, **sections, "client": client, "rules": []}
    for name in ("first", "second", "third", "fourth")[: draw(st.integers(1, 4))]:
        rule = {"name": name, "limit": draw(st.sampled_from(WORDS["limit"]))}
        allowed = sorted(WORDS.keys() - {"limit", "replaces"} | ({"replaces"} if name != "first" else set()))
        for word in draw(st.lists(st.sampled_from(allowed), max_size=5, unique=True)):
            wider = {**rule, word: draw(st.sampled_from(WORDS[word]))}
            if is_valid({**FRAME, "client": client, "rules": [*config["rules"], wider]}):
                rule = wider
        config["rules"].append(rule)
    assume(is_valid(config))
    return config


def is_valid(config):
    try:
        load_rules(config, environ={})
    except ConfigurationError:
        return False
    return True


RUNS = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@settings(RUNS, max_examples=30)
@given(files(), st.sampled_from([asgi, wsgi]), st.lists(REQUESTS, min_size=4, max_size=8))
def test_a_rule_is_said_to_apply_if_and_only_if_the_plan_charges_it(config, make, requests):
    with RateLimiter(config, storage="memory://", clock=ManualClock(START)) as limiter:
        for request in requests:
            charges = limiter.rules.plan(made(make, **request))
            if charges is BLOCKED:
                continue
            found = limiter.explain(made(make, **request))
            context = (config, request, charges, found)
            by_rule = {
                rule.name: tuple(charge.ask.key for charge in charges if charge.rule.name == rule.name)
                for rule in limiter.rules.rules
            }
            for rule in found.rules:
                assert rule.keys == by_rule.pop(rule.name), context
                assert (rule.status == "applies") == bool(rule.keys), context
                unmet = [criterion for criterion in rule.criteria if not criterion.met]
                assert not unmet or rule.status == "no match", context
                assert rule.status != "exempt" or (rule.why == found.note and not charges), context
            assert not any(by_rule.values()), context  # a descriptor that asks nothing is not listed


@settings(RUNS, max_examples=15)
@given(files(), st.sampled_from([asgi, wsgi]), REQUESTS)
def test_an_explanation_has_the_decision_and_the_counters_of_the_plan(config, make, request):
    with RateLimiter(config, storage="memory://", clock=ManualClock(START)) as limiter:
        plan = limiter.engine.planner.plan(limiter.rules, made(make, **request))
        explained = limiter.explain(made(make, **request))
        decided = limiter.engine.execute(plan, limiter.rules, commit=False).decision
    states = [state for rule in explained.rules for state in rule.counters]
    assert sorted(state.key for state in states) == sorted(ask.key for ask in plan.asks)
    assert {state.key: state.cost for state in states} == {ask.key: ask.cost for ask in plan.asks}
    if not explained.priority:
        assert explained.decision == decided
