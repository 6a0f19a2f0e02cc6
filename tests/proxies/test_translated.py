"""What the tests of envoyproxy/ratelimit ask of their service, asked of ours: in our words, with our answers.

Each case names the test of theirs that has its situation. An answer that differs on purpose has a comment, and a row in
the table "Where the answers differ" of docs/moving-from-envoy-ratelimit.md. go_cases.py has a table of all their cases.

The messages are those of Envoy. Time stands still until a case moves it.
"""

import re

import pytest

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter
from tests.proxies.go_cases import FOUND_BY_USE, METRICS, README, REFUSED, TABLE
from tests.proxies.running import replace
from tests.proxies.wire import Asked, Step, over, passed, shown
from tests.support.apps import ROOT
from tests.support.ports import free_port

Refused = pytest.importorskip("ratelimit_mw.service.messages").Refused


AT = 2222
"""A time of day, 58 seconds before the end of a minute."""

ONE = """
  - {key: foo, value: bar, rate_limit: {unit: minute, requests_per_unit: 1, name: one}}
"""
SHADOW = """
  - {key: foo, rate_limit: {unit: minute, requests_per_unit: 1}, shadow_mode: true}
  - {key: hello, rate_limit: {unit: minute, requests_per_unit: 1}}
"""
UNLIMITED = """
  - {key: foo, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: baz, rate_limit: {unlimited: true}}
"""
TENS = """
  - {key: second, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 10}}
  - key: nested
    descriptors:
      - {key: sub, rate_limit: {unit: minute, requests_per_unit: 10}}
      - {key: daily, rate_limit: {unit: day, requests_per_unit: 10}}
"""
TWO_HOURS = """
  - {key: key4, rate_limit: {unit: hour, requests_per_unit: 15}}
  - {key: key5, rate_limit: {unit: hour, requests_per_unit: 14}}
"""
QUOTAS = """
  - {key: quota1, rate_limit: {unit: minute, requests_per_unit: 1}, quota_mode: true}
  - {key: quota2, rate_limit: {unit: minute, requests_per_unit: 2}, quota_mode: true}
  - {key: regular, rate_limit: {unit: minute, requests_per_unit: 1}}
"""
SERVICES = """
  - {key: service, value: "1", rate_limit: {unit: minute, requests_per_unit: 1}, quota_mode: true}
  - {key: service, value: "2", rate_limit: {unit: minute, requests_per_unit: 2}, quota_mode: true}
"""
WILDCARD = """
  - key: foo
    value: "*"
    descriptors:
      - {key: baz, value: not-so-shady, rate_limit: {unit: minute, requests_per_unit: 3}}
      - {key: baz, value: shady, rate_limit: {unit: minute, requests_per_unit: 3}, shadow_mode: true}
  - {key: unspec, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 2}}
"""
REPLACES = """
  - key: foo
    descriptors:
      - {key: bar, value: banned, rate_limit: {unit: minute, requests_per_unit: 0, name: banned_limit}}
      - {key: bar, value: ann, rate_limit: {unit: minute, requests_per_unit: 1, name: ann}}
  - key: from
    value: proxy
    descriptors:
      - key: to
        value: override
        rate_limit: {unit: minute, requests_per_unit: 2, replaces: [{name: banned_limit}]}
      - key: to
        value: ann
        rate_limit: {unit: minute, requests_per_unit: 2, replaces: [{name: ann}]}
      - {key: to, value: fake, rate_limit: {unit: minute, requests_per_unit: 2, name: fake_name}}
  - key: category
    value: account
    rate_limit: {unit: minute, requests_per_unit: 4, replaces: [{name: ann}, {name: fake_name}]}
"""

FAKE = ["foo=my bar=ann", "from=proxy to=fake"]
OTHER = ["foo=other bar=other", "from=proxy to=fake"]


@pytest.fixture
def shop(tmp_path):
    """Makes a service with these descriptors: a function that answers Envoy's messages."""
    made = []

    def make(descriptors, *, clock=None, storage="memory://", more="", **settings):
        path = tmp_path / "ratelimits.yaml"
        path.write_text(f"domain: shop\nclient: {{secret: s}}\n{more}descriptors:{descriptors}")
        made.append(Asked(RateLimiter(path, storage=storage, clock=clock or ManualClock(AT)), **settings))
        return made[-1]

    yield make
    for asked in made:
        asked.close()


NO_LIMIT = passed()
CASES = {
    # test/service/ratelimit_test.go
    "TestService: a descriptor without a limit passes": (ONE, [Step(["hello=world"], [NO_LIMIT])]),
    "TestService: one exhausted limit denies the request": (
        ONE,
        [
            Step(["foo=bar", "hello=world"], [passed("1/MINUTE one", 0, 58), NO_LIMIT]),
            Step(["foo=bar", "hello=world"], [over("1/MINUTE one", 0, 58), NO_LIMIT]),
            Step(["hello=world", "foo=bar"], [NO_LIMIT, over("1/MINUTE one", 0, 58)]),
        ],
    ),
    "TestRuleShadowMode: a limit in shadow mode denies nothing": (
        SHADOW,
        [
            Step(["foo=bar"], [passed("1/MINUTE", 0, 58)]),
            Step(["foo=bar", "foo=other"], [passed("1/MINUTE", 0, 58)] * 2),
        ],
    ),
    "TestMixedRuleShadowMode: another limit still denies": (
        SHADOW,
        [
            Step(["foo=bar", "hello=world"], [passed("1/MINUTE", 0, 58), passed("1/MINUTE", 0, 58)]),
            Step(["foo=bar", "hello=world"], [passed("1/MINUTE", 0, 58), over("1/MINUTE", 0, 58)]),
        ],
    ),
    "TestUnlimited: an unlimited descriptor has the largest remaining number": (
        UNLIMITED,
        [
            Step(
                ["foo=bar", "hello=world", "baz=qux"],
                [passed("10/MINUTE", 9, 58), NO_LIMIT, passed(remaining=2**32 - 1)],
            )
        ],
    ),
    "TestServicePerDescriptorQuotaMode: a quota that is left does not help a limit that is exhausted": (
        QUOTAS,
        [
            Step(["regular=limit"], [passed("1/MINUTE", 0, 58)]),
            Step(["regular=limit", "quota1=limit"], [over("1/MINUTE", 0, 58), passed("1/MINUTE", 1, 58)]),
        ],
    ),
    "TestServiceMixedPerDescriptorModes: the only quota denies like a limit": (
        QUOTAS,
        [
            Step(["quota1=limit"], [passed("1/MINUTE", 0, 58)]),
            Step(["regular=limit", "quota1=limit"], [passed("1/MINUTE", 1, 58), over("1/MINUTE", 0, 58)]),
        ],
    ),
    "TestServiceMixedPerDescriptorModesUnderLimit: both pass": (
        QUOTAS,
        [Step(["regular=limit", "quota1=limit"], [passed("1/MINUTE", 0, 58), passed("1/MINUTE", 0, 58)])],
    ),
    "TestServiceQuotaModeOnly…: a request passes as long as one of its quotas is left": (
        QUOTAS,
        [
            Step(["quota1=a", "quota2=a"], [passed("1/MINUTE", 0, 58), passed("2/MINUTE", 1, 58)]),
            # Theirs says OVER_LIMIT of the first quota here, although the request passes.
            Step(["quota1=a", "quota2=a"], [passed("1/MINUTE", 0, 58), passed("2/MINUTE", 0, 58)]),
            Step(["quota1=a", "quota2=a"], [over("1/MINUTE", 0, 58), over("2/MINUTE", 0, 58)]),
        ],
    ),
    # test/redis/fixed_cache_impl_test.go
    "TestRedis: a limit is counted per second": (
        TENS,
        [
            Step(["second=a"], [passed("10/SECOND", 6, 1)], hits=4),
            Step(["second=a"], [passed("10/SECOND", 5, 1)]),
            Step(["second=a"], [passed("10/SECOND", 9, 1)], later=1),
        ],
    ),
    "TestRedis: a descriptor without a limit may have 0 hits of its own": (
        TENS,
        [
            Step(["0 nested=a", "10 nested=a sub=b"], [NO_LIMIT, passed("10/MINUTE", 0, 58)]),
            Step(["0 nested=a", "1 nested=a sub=b"], [NO_LIMIT, over("10/MINUTE", 0, 58)]),
            Step(["0 nested=a", "1 nested=a sub=b"], [NO_LIMIT, over("10/MINUTE", 0, 58)]),
        ],
    ),
    "TestRedis: 0 hits are denied above the limit, and take nothing": (
        TENS,
        [
            Step(["11 hour=a", "13 nested=a daily=b"], [over("10/HOUR", 0, 1378), over("10/DAY", 0, 84178)]),
            Step(["0 hour=a", "1 nested=a daily=b"], [over("10/HOUR", 0, 1378), over("10/DAY", 0, 84178)]),
        ],
    ),
    "TestNearLimit: hits are taken as a whole": (
        """
  - {key: key5, rate_limit: {unit: second, requests_per_unit: 20}}
  - {key: key6, rate_limit: {unit: second, requests_per_unit: 8}}
  - {key: key10, rate_limit: {unit: second, requests_per_unit: 10}}
""",
        [
            Step(["key5=a"], [passed("20/SECOND", 18, 1)], hits=2),
            Step(["key5=a"], [passed("20/SECOND", 15, 1)], hits=3),
            Step(["key6=a"], [passed("8/SECOND", 3, 1)], hits=5),
            Step(["key6=a"], [passed("8/SECOND", 1, 1)], hits=2),
            Step(["key5=a"], [passed("20/SECOND", 1, 1)], hits=14),
            # Theirs counts denied hits, so nothing remains. Ours says what remains for fewer hits.
            Step(["key5=a"], [over("20/SECOND", 1, 1)], hits=3),
            Step(["key5=a"], [over("20/SECOND", 1, 1)], hits=7),
            Step(["key5=a"], [passed("20/SECOND", 0, 1)], hits=1),
            Step(["key10=a"], [over("10/SECOND", 10, 0)], hits=30),  # never admitted
        ],
    ),
    "TestOverLimitWithStopCacheKeyIncrementWhenOverlimitConfig: a denied request charges no counter": (
        TWO_HOURS,
        [
            Step(["key4=a", "key5=a"], [passed("15/HOUR", 4, 1378), passed("14/HOUR", 3, 1378)], hits=11),
            Step(["key4=a", "key5=a"], [passed("15/HOUR", 2, 1378), passed("14/HOUR", 1, 1378)], hits=2),
            Step(["key4=a", "key5=a"], [passed("15/HOUR", 2, 1378), over("14/HOUR", 1, 1378)], hits=2),
            Step(["key4=a", "key5=b"], [passed("15/HOUR", 0, 1378), passed("14/HOUR", 12, 1378)], hits=2),
        ],
    ),
    # integration-test/scripts
    "simple-get.sh, trigger-ratelimit.sh: three requests pass": (
        WILDCARD,
        [
            *[Step(["foo=pelle baz=not-so-shady"], [passed("3/MINUTE", left, 58)]) for left in (2, 1, 0)],
            *[Step(["foo=pelle baz=not-so-shady"], [over("3/MINUTE", 0, 58)])] * 2,
            Step(["foo=test baz=not-so-shady"], [passed("3/MINUTE", 2, 58)]),
            Step(["foo=pelle baz=not-so-shady"], [passed("3/MINUTE", 2, 60)], later=58),
        ],
    ),
    "trigger-shadow-mode-key.sh: all requests pass, and nothing remains": (
        WILDCARD,
        [Step(["foo=pelle baz=shady"], [passed("3/MINUTE", left, 58)]) for left in (2, 1, 0, 0, 0, 0)],
    ),
    "value-included-in-stats-key-when-unspecified.sh: each value has a counter": (
        WILDCARD,
        [
            *[Step(["unspec=unspecified_value"], [passed("2/MINUTE", left, 58)]) for left in (1, 0)],
            Step(["unspec=unspecified_value"], [over("2/MINUTE", 0, 58)]),
            Step(["unspec=other"], [passed("2/MINUTE", 1, 58)]),
        ],
    ),
    "quota.sh: two requests pass, and again after a minute": (
        SERVICES,
        [
            Step(["service=1", "service=2"], [passed("1/MINUTE", 0, 58), passed("2/MINUTE", 1, 58)]),
            Step(["service=1", "service=2"], [passed("1/MINUTE", 0, 58), passed("2/MINUTE", 0, 58)]),
            Step(["service=1", "service=2"], [over("1/MINUTE", 0, 58), over("2/MINUTE", 0, 58)]),
            Step(["service=1", "service=2"], [passed("1/MINUTE", 0, 60), passed("2/MINUTE", 1, 60)], later=58),
        ],
    ),
    "token-quota.sh: a quota is asked with 0 hits, and charged one hit after the response, into debt": (
        SERVICES,
        [
            Step(["0 service=2"], [passed("2/MINUTE", 2, 58)]),
            Step(["1 service=2"], [passed("2/MINUTE", 1, 58)]),
            Step(["1 service=2"], [passed("2/MINUTE", 0, 58)]),
            Step(["0 service=2"], [passed("2/MINUTE", 0, 58)]),
            Step(["1 service=2"], [over("2/MINUTE", 0, 58)]),  # the third, which does not fit
            Step(["0 service=2"], [over("2/MINUTE", 0, 58)]),
            Step(["0 service=2"], [passed("2/MINUTE", 2, 60)], later=58),
        ],
    ),
    "multiservice-tokenquota.sh: a request passes until the quotas of both services are in debt": (
        SERVICES,
        [
            Step(["2 service=1"], [over("1/MINUTE", 0, 58)]),
            # Theirs says OVER_LIMIT of the first here, and sends the metadata of the quota that is left.
            Step(["0 service=1", "0 service=2"], [passed("1/MINUTE", 0, 58), passed("2/MINUTE", 2, 58)]),
            Step(["3 service=2"], [over("2/MINUTE", 0, 58)]),
            Step(["0 service=1", "0 service=2"], [over("1/MINUTE", 0, 58), over("2/MINUTE", 0, 58)]),
        ],
    ),
    "replaces.sh: a limit that replaces one of 0 admits its own number": (
        REPLACES,
        [
            Step(["foo=b bar=banned"], [over("0/MINUTE banned_limit", 0, 0)]),
            Step(["foo=b bar=banned", "from=proxy to=mock"], [over("0/MINUTE banned_limit", 0, 0), NO_LIMIT]),
            Step(["foo=b bar=banned", "from=proxy to=override"], [NO_LIMIT, passed("2/MINUTE", 1, 58)]),
            Step(["foo=b bar=banned", "from=proxy to=override"], [NO_LIMIT, passed("2/MINUTE", 0, 58)]),
            Step(["foo=b bar=banned", "from=proxy to=override"], [NO_LIMIT, over("2/MINUTE", 0, 58)]),
        ],
    ),
    "replaces.sh: a limit that is replaced is not charged": (
        REPLACES,
        [
            Step(["foo=my bar=ann", "from=proxy to=ann"], [NO_LIMIT, passed("2/MINUTE", 1, 58)]),
            Step(["foo=my bar=ann", "from=proxy to=ann"], [NO_LIMIT, passed("2/MINUTE", 0, 58)]),
            Step(["foo=my bar=ann", "from=proxy to=ann"], [NO_LIMIT, over("2/MINUTE", 0, 58)]),
            Step(["foo=my bar=ann", "from=proxy to=other"], [passed("1/MINUTE ann", 0, 58), NO_LIMIT]),
            Step(["foo=my bar=ann", "from=proxy to=other"], [over("1/MINUTE ann", 0, 58), NO_LIMIT]),
            Step(["foo=my bar=ann", "from=proxy to=ann"], [NO_LIMIT, over("2/MINUTE", 0, 58)]),
        ],
    ),
    "replaces.sh: one limit may replace several": (
        REPLACES,
        [
            *[
                Step([*FAKE, "category=account"], [NO_LIMIT, NO_LIMIT, passed("4/MINUTE", left, 58)])
                for left in (3, 2, 1, 0)
            ],
            Step([*FAKE, "category=account"], [NO_LIMIT, NO_LIMIT, over("4/MINUTE", 0, 58)]),
            Step(["foo=foo_2 bar=ann"], [passed("1/MINUTE ann", 0, 58)]),
            Step(["foo=foo_2 bar=ann"], [over("1/MINUTE ann", 0, 58)]),
            *[Step([*OTHER], [NO_LIMIT, passed("2/MINUTE fake_name", left, 58)]) for left in (1, 0)],
            Step([*OTHER], [NO_LIMIT, over("2/MINUTE fake_name", 0, 58)]),
        ],
    ),
    **README,
}  # fmt: skip


@pytest.mark.parametrize(("descriptors", "steps"), CASES.values(), ids=CASES)
def test_each_case_has_the_statuses_and_the_overall_code_of_the_table(descriptors, steps, shop, storage):
    clock = ManualClock(AT)
    ask = shop(descriptors, clock=clock, storage=storage)
    for number, step in enumerate(steps):
        clock.advance(step.later)
        found = shown(ask(step.descriptors, step.hits))
        denied = any(status.startswith("OVER_LIMIT") for status in step.statuses)
        assert found == ["OVER_LIMIT" if denied else "OK", *step.statuses], f"step {number}"


def test_an_unknown_domain_passes(shop):
    """TestService."""
    assert shown(shop(ONE)(["foo=bar", "hello=world"], domain="other")) == ["OK", NO_LIMIT, NO_LIMIT]


@pytest.mark.parametrize(("descriptors", "domain"), [(["foo=bar"], ""), ([], "shop")])
def test_an_empty_domain_and_no_descriptors_are_refused(descriptors, domain, shop):
    """TestEmptyDomain, TestEmptyDescriptors."""
    with pytest.raises(Refused):
        shop(ONE)(descriptors, domain=domain)


@pytest.mark.parametrize(
    ("descriptors", "asked"),
    [
        pytest.param(ONE, ["foo=bar", "hello=world"], id="TestServiceGlobalShadowMode"),
        pytest.param(QUOTAS, ["quota1=a", "quota2=a"], id="TestServiceQuotaModeWithShadowMode"),
        pytest.param(QUOTAS, ["regular=a", "quota2=a"], id="TestServiceMixedModeWithShadowMode"),
    ],
)
def test_nothing_is_denied_in_global_shadow_mode(descriptors, asked, shop, monkeypatch):
    monkeypatch.setenv("RATELIMIT_MW", "shadow")
    ask = shop(descriptors)
    # Theirs says OVER_LIMIT of the descriptors, and OK of the whole.
    codes = [[status.code for status in ask(asked).statuses] for _ in range(4)]
    assert codes == [[1, 1]] * 4


def test_the_headers_are_those_of_the_descriptor_that_denies(shop):
    """TestServiceWithDefaultRatelimitHeaders. The names cannot be chosen (TestServiceWithCustomRatelimitHeaders)."""
    ask = shop(TWO_HOURS, headers="go")
    for left in (13, 12):
        headers = [(each.key, each.value) for each in ask(["key4=a", "key5=a", "x=y"]).response_headers_to_add]
        names = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"]
        assert headers == list(zip(names, ["14", str(left), "1378"], strict=True))
    denied = ask(["key4=a", "key5=a"], hits=13).response_headers_to_add
    assert [each.value for each in denied] == ["14", "12", "1378"]


@pytest.mark.parametrize(
    ("on_error", "code"),
    [pytest.param("allow", "OK", id="on_error allow"), pytest.param("deny", "OVER_LIMIT", id="on_error deny")],
)
def test_the_rules_decide_without_redis(on_error, code, shop):
    """TestCacheError. Theirs answers with an error."""
    port = free_port()
    ask = shop(ONE, storage=f"redis://127.0.0.1:{port}/0", more=f"storage: {{on_error: {on_error}}}\n")
    assert shown(ask(["foo=bar"])) == [code, NO_LIMIT.replace("OK", code)]


def test_rules_that_cannot_be_used_leave_the_last_ones_in_force(shop, tmp_path):
    """TestService."""
    path = tmp_path / "ratelimits.yaml"
    ask = shop(ONE)
    assert shown(ask(["foo=bar"]))[0] == "OK"
    replace(path, "domain: [")
    with pytest.raises(ConfigurationError):
        ask.limiter.reload()
    assert shown(ask(["foo=bar"]))[0] == "OVER_LIMIT"
    replace(path, f"domain: shop\nclient: {{secret: s}}\ndescriptors:{ONE.replace('unit: 1', 'unit: 2')}")
    ask.limiter.reload()
    assert shown(ask(["foo=bar"])) == ["OK", passed("2/MINUTE one", 0, 58)]


def test_the_service_does_not_start_without_rules(shop):
    """TestInitialLoadError. Theirs starts, and answers each request with an error."""
    with pytest.raises(ConfigurationError):
        shop("\n  - {key: foo, rate_limit: {unit: fortnight, requests_per_unit: 1}}\n")


def test_a_denied_client_does_not_reach_the_store(shop, any_server):
    """TestOverLimitWithLocalCache, TestOverLimitWithLocalCacheShadowRule."""
    ask = shop(SHADOW, storage=any_server.url)
    before = [shown(ask([key])) for key in ("hello=a", "hello=a", "foo=a", "foo=a")]
    calls = any_server.calls("evalsha")
    denied = [shown(ask(["hello=a"])) for _ in range(5)]
    assert any_server.calls("evalsha") == calls
    assert [each[0] for each in before] == ["OK", "OVER_LIMIT", "OK", "OK"]
    assert denied == [["OVER_LIMIT", over("1/MINUTE", 0, 58)]] * 5
    # What is left of a counter that was not asked is unknown, which is not 0.
    assert shown(ask(["hello=c", "hello=a"])) == ["OVER_LIMIT", NO_LIMIT, over("1/MINUTE", 0, 58)]


def counted(ask):
    """The hits of the only descriptor that was asked: all, over, near and within the limit, and in shadow mode."""
    (hits,) = ask.limiter.tally.snapshot().hits
    return [hits.total_hits, hits.over_limit, hits.near_limit, hits.within_limit, hits.shadow_mode]


NEAR = {
    "below the ratio": (15, [11], [11, 0, 0, 11, 0]),
    "above the ratio": (15, [11, 2], [13, 0, 1, 13, 0]),
    "over the limit, which is not near it": (15, [11, 2, 1, 1, 1], [16, 1, 3, 15, 0]),
    "all hits below the ratio": (20, [2, 3], [5, 0, 0, 5, 0]),
    "some hits above the ratio": (8, [5, 2], [7, 0, 1, 7, 0]),
    "all hits above the ratio": (20, [16, 3], [19, 0, 3, 19, 0]),
    # Theirs counts the part of the hits that would have fitted as near the limit. Ours denies hits as a whole.
    "some hits over the limit": (20, [19, 3], [22, 3, 3, 19, 0]),
    "all hits over the limit": (10, [10, 3], [13, 3, 2, 10, 0]),
}


@pytest.mark.parametrize(("limit", "asked", "counts"), NEAR.values(), ids=NEAR)
def test_hits_near_and_over_the_limit_are_counted(limit, asked, counts, shop, storage):
    """TestNearLimit, TestOverLimitWithLocalCache."""
    ask = shop(f"\n  - {{key: key4, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}\n", storage=storage)
    for hits in asked:
        ask(["key4=value4"], hits=hits)
    assert counted(ask) == counts


def test_hits_of_a_limit_in_shadow_mode_are_counted_as_over_it(shop, storage):
    """TestOverLimitWithLocalCacheShadowRule."""
    ask = shop("\n  - {key: a, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 15}}\n", storage=storage)
    for hits in (11, 2, 2, 1, 1):
        assert shown(ask(["a=b"], hits=hits))[0] == "OK"
    assert counted(ask) == [17, 2, 3, 15, 2]


@pytest.mark.parametrize(("descriptor", "asked", "name"), METRICS.values(), ids=METRICS)
def test_the_counts_of_a_descriptor_have_the_name_of_the_file(descriptor, asked, name, shop):
    ask = shop(f"\n  - {descriptor}\n")
    assert shown(ask([asked]))[0] == "OK"
    (hits,) = ask.limiter.tally.snapshot().hits
    assert ".".join(hits.path) == name


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_a_file_that_their_service_refuses_is_refused(text, tmp_path):
    path = tmp_path / "ratelimits.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError):
        RateLimiter(path, storage="memory://")


def test_two_files_of_one_domain_are_refused(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(f"domain: d\ndescriptors: [{{key: {name}}}]\n")
    with pytest.raises(ConfigurationError, match="domain"):
        RateLimiter(tmp_path, storage="memory://")


PAGE = (ROOT / "docs/moving-from-envoy-ratelimit.md").read_text()
DIFFERENCES = re.findall(r"^\| (.*?) \|", PAGE.partition("## Where the answers differ")[2], re.MULTILINE)[1:]


def is_test(shown):
    """Whether this is the file of a test and the beginning of its name, as in `test_lists.py::test_lists`."""
    path, _, name = shown.partition("::")
    return re.search(rf"^ *def {name}", (ROOT / "tests" / path).read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize("case", TABLE, ids=lambda case: f"{case.where}: {case.name}")
def test_each_case_of_theirs_is_the_same_or_differs_as_the_page_says(case):
    if case.outcome == "differs":
        assert case.shown in DIFFERENCES
    elif case.outcome == "absent":
        assert re.search(rf"(?<![A-Z_]){re.escape(case.shown)}(?![A-Z_*])", PAGE)
    elif "::" in case.shown:
        assert is_test(case.shown)
    else:
        assert case.outcome == "same"
        assert any(each.startswith(case.shown) for each in (*CASES, *METRICS, *REFUSED))


def test_each_difference_of_the_page_is_that_of_a_case_or_was_found_by_use():
    assert set(DIFFERENCES) == {case.shown for case in TABLE if case.outcome == "differs"} | set(FOUND_BY_USE)
    assert all(map(is_test, FOUND_BY_USE.values()))
