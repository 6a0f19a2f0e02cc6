"""Descriptors: which limit a list of entries meets, what its counter is called, and what several limits make of it."""

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.envoy.tree import pattern
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.request import EntriesRequest
from ratelimit_mw.stores.memory import MemoryStore
from tests.rules.corpus import load_text, request
from tests.support.counts import shadow_denials
from tests.support.rules import load_rules

ATTRIBUTES = {"a": "header:A", "b": "header:B", "c": "header:C"}
START = 1_700_006_400  # a day's beginning, UTC

BASIC = """
domain: shop
descriptors:
  - key: color
    value: red
    descriptors:
      - key: size
        rate_limit: {unit: second, requests_per_unit: 5}
      - key: size
        value: large
        rate_limit: {unit: second, requests_per_unit: 10}
  - key: shape
    rate_limit: {unit: minute, requests_per_unit: 20}
  - key: shape
    value: round
    rate_limit: {unit: minute, requests_per_unit: 30}
  - key: shape
    value: square
  - key: weight
    value: heavy
    rate_limit: {unit: day, requests_per_unit: 15}
    descriptors:
      - key: crate
        value: wooden
        rate_limit: {unit: day, requests_per_unit: 25}
  - key: smell
    rate_limit: {unlimited: true}
"""

WILD = """
domain: shop
descriptors:
  - {key: a, value: foo*, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: a, value: "f*", rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: a, value: fool, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 4}}
  - {key: b, value: "/api/*/action", rate_limit: {unit: minute, requests_per_unit: 5}}
  - key: c
    value: x*
    descriptors:
      - {key: d, value: y, rate_limit: {unit: minute, requests_per_unit: 6}}
  - key: c
    descriptors:
      - {key: d, rate_limit: {unit: minute, requests_per_unit: 7}}
"""


def met(text, *entries):
    """The limits that a list of entries meets."""
    return [charge.ask.quota.limit for charge in load_text(text).plan(EntriesRequest(entries))]


@pytest.mark.parametrize(
    ("text", "entries", "limits"),
    [
        pytest.param(BASIC, [("material", "wood")], [], id="no descriptor has the key"),
        pytest.param(BASIC, [("color", "blue")], [], id="none has the value, and none stands for all"),
        pytest.param(BASIC, [("color", "red")], [], id="a level without a limit of its own"),
        pytest.param(BASIC, [("color", "red"), ("size", "small")], [5], id="the bare key, one level down"),
        pytest.param(BASIC, [("color", "red"), ("size", "large")], [10], id="key and value, one level down"),
        pytest.param(BASIC, [("size", "large")], [], id="a list does not begin in the middle"),
        pytest.param(BASIC, [("shape", "flat")], [20], id="the bare key"),
        pytest.param(BASIC, [("shape", "")], [20], id="the bare key takes an empty value too"),
        pytest.param(BASIC, [("shape", "round")], [30], id="the value before the bare key"),
        pytest.param(BASIC, [("shape", "Round")], [20], id="upper case is another value"),
        pytest.param(BASIC, [("shape", "square")], [], id="an allow-list entry"),
        pytest.param(BASIC, [("shape", "round"), ("size", "large")], [], id="the list goes on, the tree ends"),
        pytest.param(BASIC, [("weight", "heavy")], [15], id="a limit with more below it"),
        pytest.param(BASIC, [("weight", "heavy"), ("crate", "wooden")], [25], id="the limit below, and not both"),
        pytest.param(BASIC, [("weight", "heavy"), ("crate", "steel")], [], id="no way back to the limit above"),
        pytest.param(BASIC, [("smell", "sweet")], [], id="unlimited"),
        pytest.param(BASIC, [], [], id="no entry"),
        pytest.param(WILD, [("a", "fool")], [3], id="the exact value before what stands first"),
        pytest.param(WILD, [("a", "food")], [1], id="of two patterns the first in the file"),
        pytest.param(WILD, [("a", "foo")], [1], id="a star matches nothing as well"),
        pytest.param(WILD, [("a", "fo")], [2], id="the second pattern"),
        pytest.param(WILD, [("a", "f*")], [2], id="a value that is a pattern's own text"),
        pytest.param(WILD, [("a", "goo")], [4], id="the bare key after the patterns"),
        pytest.param(WILD, [("b", "/api/v1/action")], [5], id="a star in the middle"),
        pytest.param(WILD, [("b", "/api//action")], [5], id="a star in the middle for nothing"),
        pytest.param(WILD, [("b", "/api/action")], [], id="the texts around a star do not overlap"),
        pytest.param(WILD, [("c", "xy"), ("d", "y")], [6], id="below a pattern"),
        pytest.param(WILD, [("c", "xy"), ("d", "z")], [], id="what a pattern matched is not taken back"),
        pytest.param(WILD, [("c", "z"), ("d", "y")], [7], id="below the bare key"),
    ],
)
def test_the_limit_that_a_list_of_entries_meets(text, entries, limits):
    assert met(text, *entries) == limits


@pytest.mark.parametrize(
    ("value", "matching", "others"),
    [
        pytest.param("foo*", ["foo", "foobar"], ["fo", "xfoo"], id="at the end"),
        pytest.param("*foo", ["foo", "xfoo"], ["foox"], id="at the beginning"),
        pytest.param("a*b*c", ["abc", "a-b-c", "abbc"], ["acb", "ab", "ac", "abcd"], id="two"),
        pytest.param("ab*ba", ["abba", "abxba"], ["aba"], id="what it begins and ends with apart"),
        pytest.param("*", ["", "x"], [], id="alone"),
        pytest.param("a**b", ["ab", "axb"], ["a"], id="twice in a row"),
        pytest.param("a*aa*a", ["aaaa", "axaaxa"], ["aaa"], id="pieces that could be in two places"),
        pytest.param("a*b*b*", ["abb", "a-b-b-"], ["ab", "a-b-"], id="a piece that has to be there twice"),
        pytest.param("a.*", ["a.", "a.b"], ["ab"], id="a full stop is a full stop"),
        pytest.param("a*b", ["a\nb"], [], id="any character, a line feed too"),
    ],
)
def test_a_star_stands_for_any_text(value, matching, others):
    matches = pattern(value)
    assert [text for text in (*matching, *others) if matches(text)] == matching


@given(st.lists(st.text("ab", max_size=3), min_size=2, max_size=4), st.text("ab", max_size=12))
def test_a_pattern_is_what_trying_every_way_would_find(pieces, text):
    def anyhow(pieces, text):
        first, *rest = pieces
        if not rest:
            return text.endswith(first)
        return any(text.startswith(first, at) and anyhow(rest, text[at + len(first) :]) for at in range(len(text) + 1))

    first, *rest = pieces
    expected = text.startswith(first) and anyhow(rest, text[len(first) :])
    assert pattern("*".join(pieces))(text) == expected


def limiter(*descriptors, **more):
    """A limiter of these descriptors, on a clock that stands at the beginning of a day."""
    config = {"domain": "shop", "client": {"secret": "hush"}, "descriptors": list(descriptors), **more}
    return RateLimiter(config, clock=ManualClock(START))


def limit(count, unit="minute", **more):
    return {"rate_limit": {"unit": unit, "requests_per_unit": count, **more}}


def passed(engine, *entries, times=10):
    """How many requests in a row with these entries pass."""
    return sum(engine.check(list(entries)).allowed for _ in range(times))


class TestUnits:
    @pytest.mark.parametrize(
        ("unit", "seconds"),
        [
            pytest.param("second", 1, id="second"),
            pytest.param("MINUTE", 60, id="upper case"),
            pytest.param("Hour", 3600, id="as a title"),
            pytest.param("day", 86_400, id="day"),
            pytest.param("week", 7 * 86_400, id="week"),
            pytest.param("month", 30 * 86_400, id="month"),
            pytest.param("year", 365 * 86_400, id="year"),
        ],
    )
    def test_each_is_that_long(self, unit, seconds):
        rules = load_rules({"domain": "d", "descriptors": [{"key": "a", "value": "b", **limit(5, unit)}]})
        (charge,) = rules.plan(EntriesRequest([("a", "b")]))
        assert charge.ask.quota.period == seconds * 1_000_000
        assert charge.ask.quota.algorithm == "fixed_window"

    def test_the_window_is_the_clock_s(self):
        clock = ManualClock(START + 86_399)
        engine = RateLimiter(
            {"domain": "d", "descriptors": [{"key": "a", "value": "b", **limit(1, "day")}]}, clock=clock
        )
        assert [engine.check([("a", "b")]).allowed, engine.check([("a", "b")]).retry_after] == [True, 1.0]
        clock.advance(1)
        assert engine.check([("a", "b")]).allowed

    def test_nothing_passes_a_limit_of_0(self):
        decision = limiter({"key": "a", **limit(0)}).check([("a", "b")])
        assert (decision.allowed, decision.limit, decision.retry_after) == (False, 0, float("inf"))

    def test_as_much_as_envoy_s_number_holds(self):
        assert limiter({"key": "a", **limit(2**32 - 1)}).check([("a", "b")]).remaining == 2**32 - 2


class TestCounters:
    """Each value has a counter of its own, unless it is shared, and no two share one by accident."""

    def test_each_value_has_its_own(self):
        engine = limiter({"key": "a", **limit(2)}, {"key": "b", "value": "x*", **limit(2)})
        assert [passed(engine, ("a", value)) for value in ("1", "2")] == [2, 2]
        assert [passed(engine, ("b", value)) for value in ("x1", "x2")] == [2, 2]

    def test_values_may_share_one(self):
        engine = limiter({"key": "files", "value": "files/*", "share_threshold": True, **limit(3)})
        assert [passed(engine, ("files", f"files/{name}")) for name in ("a", "b", "*")] == [3, 0, 0]

    def test_what_is_below_a_shared_one_is_shared_as_well_but_has_its_own_values(self):
        below = {"key": "action", **limit(2)}
        engine = limiter({"key": "user", "value": "u*", "share_threshold": True, "descriptors": [below]})
        assert passed(engine, ("user", "u1"), ("action", "read")) == 2
        assert passed(engine, ("user", "u2"), ("action", "read")) == 0
        assert passed(engine, ("user", "u2"), ("action", "write")) == 2

    def test_an_exact_value_does_not_count_with_the_shared_ones(self):
        engine = limiter(
            {"key": "file", "value": "test1", **limit(1)},
            {"key": "file", "value": "test*", "share_threshold": True, **limit(2)},
        )
        assert [passed(engine, ("file", value)) for value in ("test1", "test2", "test3")] == [1, 2, 0]

    def test_keys_and_values_that_join_alike_stay_apart(self):
        engine = limiter(
            {"key": "a", "value": "b_c", **limit(2)},
            {"key": "a_b", "value": "c", **limit(2)},
            {"key": "a=b", "value": "c", **limit(2)},
            {"key": "a", "value": "b=c", **limit(2)},
            {"key": "a", "value": "b/c", **limit(2)},
            {"key": "a", "value": "b", "descriptors": [{"key": "c", "value": "", **limit(2)}]},
        )
        lists = [("a", "b_c")], [("a_b", "c")], [("a=b", "c")], [("a", "b=c")], [("a", "b/c")], [("a", "b"), ("c", "d")]
        assert [passed(engine, *entries) for entries in lists] == [2] * 6

    def test_values_one_after_the_other_stay_apart(self):
        engine = limiter({"key": "a", "descriptors": [{"key": "b", **limit(2)}]})
        assert passed(engine, ("a", "x+b=y"), ("b", "z")) == 2
        assert passed(engine, ("a", "x"), ("b", "y+b=z")) == 2
        assert passed(engine, ("a", "x"), ("b", "z")) == 2

    @pytest.mark.parametrize(
        ("descriptor", "entry", "key"),
        [
            pytest.param({"key": "a", "value": "b"}, ("a", "b"), "shop:/a=b:fw60:{*}", id="a value of the file"),
            pytest.param(
                {"key": "a", "value": "é/ ~"}, ("a", "é/ ~"), "shop:/a=%C3%A9%2F%20%7E:fw60:{*}", id="escaped"
            ),
            pytest.param({"key": "method"}, ("method", "GET"), "shop:/method:fw60:{method=GET}", id="no secret"),
            pytest.param(
                {"key": "remote_address"},
                ("remote_address", "203.0.113.7"),
                "shop:/remote_address:fw60:{ip=203.0.113.7}",
                id="an address",
            ),
            pytest.param(
                {"key": "remote_address"},
                ("remote_address", "2001:DB8::1"),
                "shop:/remote_address:fw60:{ip=2001:db8::/64}",
                id="an address of IPv6",
            ),
            pytest.param(
                {"key": "x", "value": "a*", "share_threshold": True},
                ("x", "abc"),
                "shop:/x=a%2A:fw60:{*}",
                id="shared",
            ),
        ],
    )
    def test_it_is_named_so_that_it_can_be_read(self, descriptor, entry, key):
        (charge,) = limiter({**descriptor, **limit(1)}).rules.plan(EntriesRequest([entry]))
        assert charge.ask.key == key

    @pytest.mark.parametrize("value", [pytest.param("s3cret-token", id="short"), pytest.param("x" * 5_000, id="long")])
    def test_what_a_client_wrote_is_hashed(self, value):
        (charge,) = limiter({"key": "api_key", **limit(1)}).rules.plan(EntriesRequest([("api_key", value)]))
        before, _, identity = charge.ask.key.partition("{")
        assert before == "shop:/api_key:fw60:"
        assert value not in identity
        assert len(identity) == len("api_key=}") + 20

    @pytest.mark.parametrize("source", ["header:Authorization", "cookie:session", "header:X-Api-Key"])
    def test_a_secret_that_the_file_names_is_neither_in_the_key_nor_in_the_name(self, source):
        descriptor = {"key": "token", "value": "s3cret", **limit(1)}
        (charge,) = limiter(descriptor, attributes={"token": source}).rules.plan(EntriesRequest([("token", "s3cret")]))
        assert "s3cret" not in f"{charge.ask.key} {charge.rule.name}"

    def test_another_unit_is_another_counter(self):
        keys = {
            load_rules({"domain": "d", "descriptors": [{"key": "a", **limit(1, unit)}]})
            .plan(EntriesRequest([("a", "b")]))[0]
            .ask.key
            for unit in ("minute", "hour")
        }
        assert len(keys) == 2

    def test_a_rule_of_the_same_name_is_another_counter(self):
        engine = limiter(
            {"key": "a", **limit(3, name="a")},
            rules=[{"name": "a", "by": "global", "limit": "2/s"}],
            entries=[["method"]],
        )
        assert [engine.check({}).limit, engine.check({}).remaining, engine.check([("a", "b")]).remaining] == [2, 0, 2]

    def test_a_limit_is_called_by_its_name_or_by_its_entries(self):
        engine = limiter(
            {"key": "a", "value": "b", **limit(1)},
            {"key": "c", "descriptors": [{"key": "d", "value": "e*", **limit(1)}]},
            {"key": "f", **limit(1, name="effs")},
        )
        lists = [("a", "b")], [("c", "1"), ("d", "ee")], [("f", "g")]
        assert [engine.check(entries).rule for entries in lists] == ["a=b", "c/d=e*", "effs"]
        assert [rule.name for rule in engine.rules.rules] == ["a=b", "c/d=e*", "effs"]


class TestTogether:
    """Several limits that the lists of one request meet."""

    def engine(self, *descriptors, **more):
        return limiter(*descriptors, attributes=ATTRIBUTES, **more)

    def test_a_request_that_one_denies_is_charged_to_none(self):
        engine = self.engine({"key": "a", **limit(1)}, {"key": "b", **limit(5)})
        assert [engine.check({"a": "1", "b": "1"}).allowed for _ in range(4)] == [True, False, False, False]
        assert engine.peek({"b": "1"}).remaining == 4

    def test_one_that_replaces_drops_the_other(self):
        engine = self.engine(
            {"key": "a", **limit(1, name="strict")}, {"key": "b", **limit(3, replaces=[{"name": "strict"}])}
        )
        assert [engine.check({"a": "1", "b": "1"}).allowed for _ in range(4)] == [True, True, True, False]
        assert engine.check({"a": "1"}).allowed, "what was replaced was not charged"
        assert not engine.check({"a": "1"}).allowed

    def test_it_replaces_every_limit_of_that_name(self):
        engine = self.engine(
            {"key": "a", **limit(0, name="none")},
            {"key": "b", **limit(0, name="none")},
            {"key": "c", **limit(1, replaces=[{"name": "none"}, {"name": "else"}])},
        )
        assert engine.check({"a": "1", "b": "1", "c": "1"}).allowed

    def test_unlimited_replaces_like_any_limit(self):
        free = {"key": "b", "rate_limit": {"unlimited": True, "replaces": [{"name": "none"}]}}
        engine = self.engine({"key": "a", **limit(0, name="none")}, free)
        assert engine.check({"a": "1", "b": "1"}).allowed
        assert not engine.check({"a": "1"}).allowed

    @pytest.mark.parametrize("lists", [False, True], ids=["one list", "several lists"])
    def test_a_shadow_replaces_shadows_only(self, lists):
        none = {"key": "a", **limit(0, name="none")}
        shadow = {"key": "b", "shadow_mode": True, **limit(9, replaces=[{"name": "none"}])}

        def allowed(engine):
            if lists:
                return engine.check_lists("shop", [[("a", "1")], [("b", "1")]]).decision.allowed
            return engine.check({"a": "1", "b": "1"}).allowed

        assert not allowed(self.engine(none, shadow))
        in_shadow = self.engine(none | {"shadow_mode": True}, shadow)
        assert allowed(in_shadow)
        assert shadow_denials(in_shadow) == {}
        assert passed(in_shadow, ("a", "1"), times=1)
        assert shadow_denials(in_shadow) == {"none": 1}

    def test_a_limit_that_is_not_met_replaces_nothing(self):
        engine = self.engine(
            {"key": "a", **limit(0, name="none")}, {"key": "b", "value": "x", **limit(9, replaces=[{"name": "none"}])}
        )
        assert not engine.check({"a": "1", "b": "1"}).allowed

    def test_a_shadow_denies_nobody_and_is_counted(self):
        engine = self.engine({"key": "a", "shadow_mode": True, **limit(1)})
        assert passed(engine, ("a", "1"), times=3) == 3
        assert shadow_denials(engine) == {"a": 2}

    def test_rules_and_descriptors_stand_beside_each_other(self):
        engine = self.engine({"key": "a", **limit(1)}, rules=[{"name": "all", "by": "global", "limit": "3/s"}])
        assert [policy.rule for policy in engine.check({"a": "1"}).policies] == ["all", "a"]
        assert engine.check({"a": "1"}).rule == "a"
        assert engine.check([("a", "2")]).policies[0].rule == "a", "a list of entries asks no rule"

    def test_the_exempt_are_not_counted(self):
        engine = self.engine({"key": "a", **limit(0)}, exempt=[{"path": "/health"}])
        assert engine.check({"a": "1", "path": "/health"}).allowed
        assert not engine.check({"a": "1", "path": "/"}).allowed


class TestQuotaMode:
    """Quotas deny together only, as in envoyproxy/ratelimit."""

    def engine(self, first, second, *others, **more):
        quotas = [{"key": key, "quota_mode": True, **limit(n)} for key, n in (("a", first), ("b", second))]
        return limiter(*quotas, *others, attributes=ATTRIBUTES, **more)

    def test_it_is_over_when_all_are(self):
        engine = self.engine(1, 3)
        decisions = [engine.check({"a": "1", "b": "1"}) for _ in range(4)]
        assert [decision.allowed for decision in decisions] == [True, True, True, False]
        assert [decision.remaining for decision in decisions] == [2, 1, 0, 0]
        assert decisions[3].retry_after == 60.0
        assert not shadow_denials(engine)

    def test_one_alone_denies(self):
        engine = self.engine(1, 3)
        assert passed(engine, ("a", "1")) == 1
        assert [engine.check({"a": "2"}).allowed for _ in range(2)] == [True, False]

    def test_any_other_limit_denies(self):
        engine = self.engine(5, 5, {"key": "c", **limit(1)})
        assert [engine.check({"a": "1", "b": "1", "c": "1"}).allowed for _ in range(3)] == [True, False, False]
        assert engine.peek({"a": "1", "b": "1"}).policies[0].remaining == 4

    def test_what_they_deny_is_charged_to_none(self):
        engine = self.engine(0, 0, {"key": "c", **limit(9)}, {"key": "a", "value": "free"})
        assert not any(engine.check({"a": "1", "b": "1", "c": "1"}).allowed for _ in range(3))
        assert engine.check([("c", "1")]).remaining == 8

    def test_what_they_deny_is_charged_to_none_for_those_who_await(self):
        engine = self.engine(0, 0, {"key": "c", **limit(9)})
        for _ in range(3):
            assert not asyncio.run(engine.acheck({"a": "1", "b": "1", "c": "1"})).allowed
        assert engine.check([("c", "1")]).remaining == 8

    def test_in_redis_they_are_decided_and_given_back_alike(self, any_server):
        quotas = [{"key": key, "quota_mode": True, **limit(1, "year")} for key in "ab"]
        other = {"key": "c", **limit(9, "year")}
        frame = {"domain": "shop", "storage": {"timeout": "5s"}, "attributes": ATTRIBUTES}
        config = {**frame, "descriptors": [*quotas, other]}

        async def awaited():
            async with RateLimiter(config, storage=any_server.url) as engine:
                assert not (await engine.acheck({"a": "1", "b": "1", "c": "1"})).allowed
                return (await engine.acheck([("c", "1")])).remaining

        with RateLimiter(config, storage=any_server.url) as engine:
            assert [engine.check({"a": "1", "b": "1", "c": "1"}).allowed for _ in range(3)] == [True, False, False]
            assert engine.check([("c", "1")]).remaining == 7
        assert asyncio.run(awaited()) == 6

    def test_a_look_gives_nothing_back(self):
        engine = self.engine(0, 0, {"key": "c", **limit(9)})
        engine.check([("c", "1")])
        assert not engine.peek({"a": "1", "b": "1", "c": "1"}).allowed
        assert not asyncio.run(engine.apeek({"a": "1", "b": "1", "c": "1"})).allowed
        assert engine.check([("c", "1")]).remaining == 7

    def test_the_wait_is_that_of_the_first_to_open(self):
        day = {"key": "b", "quota_mode": True, **limit(0, "day")}
        engine = limiter({"key": "a", "quota_mode": True, **limit(1)}, day, attributes=ATTRIBUTES)
        engine.check({"a": "1", "b": "1"})
        assert engine.check({"a": "1", "b": "1"}).retry_after == 60.0

    def test_a_quota_in_the_shadow_is_no_quota(self):
        shadow = {"key": "b", "quota_mode": True, "shadow_mode": True, **limit(9)}
        engine = limiter({"key": "a", "quota_mode": True, **limit(1)}, shadow, attributes=ATTRIBUTES)
        assert [engine.check({"a": "1", "b": "1"}).allowed for _ in range(2)] == [True, False]

    def test_the_kill_switch_lets_them_pass(self, monkeypatch):
        monkeypatch.setenv("RATELIMIT_MW", "shadow")
        engine = self.engine(0, 0)
        assert engine.check({"a": "1", "b": "1"}).allowed
        assert shadow_denials(engine) == {"a": 1, "b": 1}

    @pytest.mark.parametrize(
        ("on_error", "allowed"), [pytest.param("deny", False, id="deny"), pytest.param("allow", True, id="allow")]
    )
    def test_without_the_store_they_do_as_on_error_says(self, on_error, allowed):
        config = {"domain": "d", "storage": {"on_error": on_error}, "attributes": ATTRIBUTES}
        quotas = [{"key": key, "quota_mode": True, **limit(9)} for key in "ab"]
        engine = RateLimiter({**config, "descriptors": quotas}, storage=Away())
        assert engine.check({"a": "1", "b": "1"}).allowed is allowed

    def test_without_the_store_they_deny_together_by_local_counters(self):
        config = {"domain": "d", "storage": {"on_error": "local"}, "attributes": ATTRIBUTES}
        quotas = [{"key": key, "quota_mode": True, **limit(n)} for key, n in (("a", 0), ("b", 2))]
        engine = RateLimiter(
            {**config, "descriptors": [*quotas, {"key": "c", **limit(3)}]}, storage=Away(), clock=ManualClock(START)
        )
        assert [engine.check({"a": "1", "b": "1", "c": "1"}).allowed for _ in range(5)] == [True] * 2 + [False] * 3
        assert engine.check([("c", "1")]).remaining == 0

    def test_what_cannot_be_returned_stays_charged(self):
        engine = RateLimiter(
            {
                "domain": "d",
                "attributes": ATTRIBUTES,
                "descriptors": [
                    *({"key": key, "quota_mode": True, **limit(0)} for key in "ab"),
                    {"key": "c", **limit(9)},
                ],
            },
            storage=KeepsAll(clock=ManualClock(START)),
        )
        assert not engine.check({"a": "1", "b": "1", "c": "1"}).allowed
        assert not asyncio.run(engine.acheck({"a": "1", "b": "1", "c": "1"})).allowed
        assert engine.check([("c", "1")]).remaining == 6


class Away(MemoryStore):
    """A store that nobody reaches."""

    def ask(self, request):
        raise StoreUnavailable("away")


class KeepsAll(MemoryStore):
    """A store that is gone when something is to be given back."""

    def ask(self, request):
        if request[1].charged_at is not None:
            raise StoreUnavailable("away")
        return super().ask(request)


TREE = [
    {"key": "a", **limit(1), "descriptors": [{"key": "b", **limit(2), "descriptors": [{"key": "c", **limit(3)}]}]},
    {"key": "b", **limit(4)},
]


class TestLists:
    """Which lists of entries a request sends."""

    def asked(self, headers, *, tree=None, **more):
        config = {"domain": "d", "client": {"secret": "hush"}, "descriptors": tree or TREE}
        rules = load_rules({**config, "attributes": ATTRIBUTES, **more}, environ={})
        return [charge.ask.quota.limit for charge in rules.plan(request(headers=headers))]

    def test_each_attribute_alone_and_all_of_them_in_order(self):
        assert self.asked({"a": "1", "b": "2", "c": "3"}) == [1, 4, 3]

    def test_a_list_that_lacks_a_value_is_not_sent(self):
        assert self.asked({"a": "1", "b": "2"}) == [1, 4]
        assert self.asked({"c": "1"}) == []

    def test_those_that_entries_names_and_no_others(self):
        entries = [["a", "b"], "b", ["b"]]  # one of them twice, which is asked once
        assert self.asked({"a": "1", "b": "2", "c": "3"}, entries=entries) == [2, 4]
        assert self.asked({"a": "1", "b": "2"}, entries=[]) == []

    def test_one_attribute_is_one_list(self):
        tree = [{"key": "a", **limit(1)}]
        assert self.asked({"a": "1"}, tree=tree, attributes={"a": "header:A"}) == [1]

    def test_what_every_request_has_is_an_entry_where_a_descriptor_names_it(self):
        tree = [
            {"key": "remote_address", **limit(1)},
            {"key": "method", "value": "GET", "descriptors": [{"key": "path", "value": "/*", **limit(2)}]},
            {"key": "header:X-Plan", "value": "gold", **limit(3)},
            {"key": "a", "descriptors": [{"key": "b", **limit(4)}]},
        ]
        found = self.asked(
            {"a": "1", "b": "2", "x-plan": "gold"}, tree=tree, attributes={"a": "header:A", "b": "header:B"}
        )
        assert found == [1, 3, 4]
        assert self.asked({}, tree=tree[1:2], attributes={}) == [2]

    def test_an_address_that_is_not_known_is_one_for_all(self):
        rules = load_rules({"domain": "d", "descriptors": [{"key": "remote_address", **limit(1)}]}, environ={})
        keys = {charge.ask.key for _ in range(2) for charge in rules.plan(request(ip=None))}
        assert len(keys) == 1
        assert rules.plan(request(ip="192.0.2.1"))[0].ask.key not in keys

    def test_an_async_source_is_awaited_where_a_list_needs_it_only(self):
        source = {"a": "python:tests.rules.test_load:plan_of"}
        for tree, awaited in (([{"key": "a", **limit(1)}], ["a"]), ([{"key": "b", **limit(1)}], [])):
            rules = load_rules({"domain": "d", "attributes": source, "descriptors": tree}, environ={})
            assert [name for name, _ in rules.attributes.awaited] == awaited


class TestGivenByHand:
    def test_each_method_takes_a_list_of_entries(self):
        engine = limiter({"key": "a", **limit(3)})
        entries = [("a", "b")]

        async def awaited():
            assert (await engine.acheck(entries)).remaining == 1
            assert (await engine.apeek(entries)).remaining == 1
            await engine.areset(entries)

        assert engine.check(entries).remaining == 2
        assert engine.peek(entries).remaining == 2
        asyncio.run(awaited())
        assert engine.check(entries, cost=2).remaining == 1
        engine.reset(entries)
        assert engine.check(entries, cost=3).remaining == 0
        assert not engine.check(entries).allowed

    def test_lists_and_tuples_are_pairs_and_no_value_is_an_empty_one(self):
        engine = limiter({"key": "a", **limit(3)})
        assert [engine.check((pair,)).remaining for pair in (["a", "b"], ("a", "b"))] == [2, 1]
        assert [engine.check([("a", None)]).remaining, engine.check([("a", "")]).remaining] == [2, 1]

    @pytest.mark.parametrize("entries", [pytest.param("ab", id="a text"), pytest.param([("a",)], id="a key alone")])
    def test_what_is_no_pair_is_refused(self, entries):
        with pytest.raises(ValueError, match=r"\(key, value\) pairs"):
            limiter({"key": "a", **limit(3)}).check(entries)

    def test_without_descriptors_nothing_applies(self):
        engine = RateLimiter(
            {"domain": "d", "rules": [{"name": "a", "by": "global", "limit": "0/s"}]}, clock=ManualClock(0)
        )
        assert engine.check([("a", "b")]).rule is None

    def test_the_kill_switch_holds_for_them_too(self, monkeypatch):
        monkeypatch.setenv("RATELIMIT_MW", "off")
        assert limiter({"key": "a", **limit(0)}).check([("a", "b")]).allowed


# As envoyproxy/ratelimit's files may have it, though nobody would write it so.
@pytest.mark.parametrize(
    ("text", "limits"),
    [
        pytest.param("domain: d\ndescriptors:\n", [], id="no descriptors"),
        pytest.param(BASIC.replace("value: square", "value: square\n    rate_limit:"), [20], id="an empty rate_limit"),
        pytest.param(
            BASIC.replace("- key: shape\n    rate", "- key: shape\n    value:\n    rate"), [20], id="no value"
        ),
        pytest.param(
            BASIC.replace(
                "- key: shape\n    rate",
                "- key: shape\n    shadow_mode:\n    metadata: {any: [1.5, {thing: no}]}\n    detailed_metric: true\n"
                "    value_to_metric: false\n    descriptors:\n    rate",
            ),
            [20],
            id="every key, some of them empty",
        ),
        pytest.param(
            BASIC.replace("{unit: minute, requests_per_unit: 20}", "{unit: minute, requests_per_unit: 20, replaces: }"),
            [20],
            id="replaces is empty",
        ),
        pytest.param(
            BASIC.replace("unlimited: true", "unlimited: true, requests_per_unit: 5"), [20], id="too much said"
        ),
        pytest.param(
            "domain: d\ndescriptors: [{key: 1, value: true, rate_limit: {unit: day, requests_per_unit: 1}}]",
            [],
            id="numbers are texts",
        ),
    ],
)
def test_what_loads_there_loads_here(text, limits):
    assert met(text, ("shape", "flat")) == limits


class TestWarnings:
    """What loads, but can hardly be meant."""

    def said(self, text, caplog):
        with caplog.at_level(logging.WARNING, "ratelimit_mw"):
            load_text("domain: d\n" + text)
        return [record.getMessage().partition(".yaml:")[2] for record in caplog.records]

    def test_entries_that_no_request_sends(self, caplog):
        text = "descriptors:\n  - {key: a, value: b, rate_limit: {unit: day, requests_per_unit: 1}}\n"
        hint = "(define the values under attributes, and the entries that requests send under entries)"
        message = "no request sends the entries of 'a=b': only check([...]) can send them"
        assert self.said(text, caplog) == [f"3:36: descriptors[0].rate_limit: {message} {hint}"]

    def test_a_user_without_a_source(self, caplog):
        limits = "rate_limit: {unit: day, requests_per_unit: 1}"
        text = f"client: {{secret: x}}\ndescriptors:\n  - {{key: user, {limits}}}\n  - {{key: tier, {limits}}}\n"
        (said,) = self.said(text, caplog)
        assert "no request sends the entries of 'user' (and 1 more)" in said

    def test_a_name_that_no_limit_has(self, caplog):
        text = "descriptors:\n  - {key: method, value: GET, rate_limit: {unlimited: true, replaces: [{name: x}]}}\n"
        assert self.said(text, caplog) == [
            "3:43: descriptors[0].rate_limit: replaces 'x', but no limit in this file has that name"
        ]

    def test_an_address_that_no_request_has(self, caplog):
        limits = "rate_limit: {unit: day, requests_per_unit: 1}"
        text = f"descriptors:\n  - {{key: remote_address, value: '2001:db8::1', {limits}}}\n"
        assert self.said(text, caplog) == [
            "3:34: descriptors[0].value: never matches '2001:db8::1': requests have this address as 2001:db8::/64"
        ]


SEVERAL = """
domain: shop
descriptors:
  - key: user
    rate_limit:
      - {unit: second, requests_per_unit: 2}
      - {unit: day, requests_per_unit: 5, name: daily}
  - key: model
    rate_limit: {unit: minute, requests_per_unit: 60, algorithm: token_bucket, burst: 3}
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: leaky_bucket, burst: 2}
  - key: log
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}
  - {key: free, rate_limit: [{unit: minute, requests_per_unit: 1, replaces: [{name: daily}]}]}
"""


@pytest.fixture
def several(tmp_path):
    (tmp_path / "rules.yaml").write_text(SEVERAL)
    clock = ManualClock(START)
    with RateLimiter(tmp_path / "rules.yaml", clock=clock, storage="memory://") as limiter:
        yield limiter, clock


def test_all_limits_of_a_list_of_limits_hold(several):
    limiter, clock = several
    found = [limiter.check([("user", "ann")]) for _ in range(3)]
    assert [decision.allowed for decision in found] == [True, True, False]
    assert [(policy.rule, policy.remaining) for policy in found[2].policies] == [("user", 0), ("daily", 3)]
    for _ in range(2):
        clock.advance(1)
        found = [limiter.check([("user", "ann")]) for _ in range(2)]
    assert (found[1].allowed, found[1].rule) == (False, "daily")
    status = limiter.check_lists("shop", [[("user", "ann")]]).statuses[0]
    assert (status.allowed, status.name, status.unit) == (False, "daily", "day")


def test_a_limit_of_a_list_of_limits_can_be_replaced_alone(several):
    limiter, _ = several
    assert [policy.rule for policy in limiter.check_lists("shop", [[("user", "a")]]).decision.policies] == [
        "user",
        "daily",
    ]
    found = limiter.check_lists("shop", [[("user", "a")], [("free", "x")]])
    assert [policy.rule for policy in found.decision.policies] == ["user", "free"]


def test_a_descriptor_counts_by_its_algorithm(several):
    limiter, clock = several
    tokens = [limiter.check([("model", "m")]).allowed for _ in range(4)]
    clock.advance(1)
    assert [*tokens, limiter.check([("model", "m")]).allowed] == [True, True, True, False, True]
    turns = [limiter.check([("queue", "q")]) for _ in range(3)]
    assert [(turn.allowed, turn.delay) for turn in turns] == [(True, 0.0), (True, 1.0), (False, 0.0)]
    assert limiter.rules.waiting
    assert limiter.check([("log", "l")]).allowed
    clock.advance(3_599)
    assert not limiter.check([("log", "l")]).allowed


def test_another_algorithm_starts_with_a_new_counter():
    fixed, log = (
        load_text(f"domain: d\ndescriptors: [{{key: a, rate_limit: {{unit: hour, requests_per_unit: 1{more}}}}}]\n")
        for more in ("", ", algorithm: sliding_log")
    )
    keys = [rules.plan(EntriesRequest([("a", "b")]))[0].ask.key for rules in (fixed, log)]
    assert keys[0] != keys[1]
    assert ":fw3600:{" in keys[0]
