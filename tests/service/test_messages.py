"""ShouldRateLimit without a transport: Envoy's own messages (xds-protos) go in, and read what comes out."""

import asyncio

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.reload.controls import Setting
from ratelimit_mw.service.access import Access
from ratelimit_mw.service.messages import Refused
from ratelimit_mw.service.ratelimit_pb2 import RateLimitRequest
from ratelimit_mw.service.settings import Settings
from ratelimit_mw.service.should_rate_limit import NotPermitted, ShouldRateLimit
from ratelimit_mw.service.state import Service
from tests.support.ports import free_port
from tests.support.service import OK, OVER_LIMIT, Response, descriptor, request

RULES = {
    "domain": "shop",
    "client": {"secret": "s", "trusted_proxies": ["127.0.0.0/8"]},
    "response": {"headers": ["x-ratelimit", "retry-after"], "reset": "delta"},
    "descriptors": [
        {"key": "remote_address", "rate_limit": {"unit": "minute", "requests_per_unit": 3, "name": "by_address"}},
        {"key": "tokens", "rate_limit": {"unit": "hour", "requests_per_unit": 100}},
        {"key": "tenant", "value": "gold", "rate_limit": {"unlimited": True}},
        {"key": "none", "rate_limit": {"unit": "day", "requests_per_unit": 0}},
        {"key": "shadow", "rate_limit": {"unit": "week", "requests_per_unit": 1}, "shadow_mode": True},
        {"key": "bucket", "rate_limit": {"unit": "second", "requests_per_unit": 2, "algorithm": "token_bucket"}},
        {"key": "path", "value": "/login", "descriptors": [
            {"key": "remote_address", "rate_limit": {
                "unit": "minute", "requests_per_unit": 2, "name": "login", "replaces": [{"name": "by_address"}],
            }},
        ]},
    ],
}  # fmt: skip
CLIENT = ("remote_address", "203.0.113.7")


class Asked:
    """A service without ports."""

    def __init__(self, rules=RULES, storage="memory://", **settings):
        self.clock = ManualClock()
        self.limiter = RateLimiter(rules, storage=storage, clock=self.clock)
        read = Settings.read(rules="-", **settings)
        self.service = Service(read, self.limiter, Access(read))
        self.method = ShouldRateLimit(self.service)

    def send(self, data):
        return asyncio.run(self.method.answer(data))

    def __call__(self, *descriptors, domain="shop", hits=0):
        sent = request(domain, *descriptors, hits=hits).SerializeToString()
        return Response.FromString(self.send(sent))


@pytest.fixture
def ask():
    asked = Asked()
    yield asked
    asked.limiter.close()


def codes(response):
    return response.overall_code, [status.code for status in response.statuses]


def test_a_status_has_the_limit_what_remains_and_the_time_until_unused(ask):
    response = ask([CLIENT])
    assert codes(response) == (OK, [OK])
    (status,) = response.statuses
    assert (status.current_limit.requests_per_unit, status.current_limit.name) == (3, "by_address")
    assert status.current_limit.unit == Response.RateLimit.MINUTE
    assert status.limit_remaining == 2
    assert 0 < status.duration_until_reset.seconds <= 60


def test_a_denial_has_the_true_time_to_wait_rounded_up():
    asked = Asked()
    asked.clock.set(1_700_000_000.5)
    for _ in range(2):
        asked([("bucket", "b")])
    response = asked([("bucket", "b")])
    assert codes(response) == (OVER_LIMIT, [OVER_LIMIT])
    assert response.statuses[0].duration_until_reset.seconds == 1
    asked.limiter.close()


def test_each_descriptor_has_its_status_in_order(ask):
    for _ in range(3):
        ask([CLIENT])
    response = ask([("tokens", "t")], [CLIENT], [("unknown", "u")])
    assert codes(response) == (OVER_LIMIT, [OK, OVER_LIMIT, OK])
    assert not response.statuses[2].HasField("current_limit")
    assert not response.statuses[2].HasField("duration_until_reset")
    assert ask([("tokens", "t")]).statuses[0].limit_remaining == 99


def test_an_unlimited_descriptor_has_the_greatest_remaining_and_no_limit(ask):
    (status,) = ask([("tenant", "gold")]).statuses
    assert (status.code, status.limit_remaining, status.HasField("current_limit")) == (OK, 4294967295, False)


def test_a_replaced_limit_is_not_in_the_status(ask):
    replaced, replacing = ask([CLIENT], [("path", "/login"), CLIENT]).statuses
    assert not replaced.HasField("current_limit")
    assert replacing.current_limit.name == "login"


def test_a_limit_that_never_admits_has_no_duration(ask):
    response = ask([("none", "n")])
    assert codes(response) == (OVER_LIMIT, [OVER_LIMIT])
    assert not response.statuses[0].HasField("duration_until_reset")


def test_a_shadow_limit_answers_ok(ask):
    ask([("shadow", "s")])
    assert codes(ask([("shadow", "s")])) == (OK, [OK])


def test_a_week_has_the_number_of_the_protocol(ask):
    assert ask([("shadow", "w")]).statuses[0].current_limit.unit == Response.RateLimit.WEEK


def test_the_status_has_no_limit_if_no_unit_names_its_period():
    asked = Asked({"domain": "shop", "rules": [{"name": "r", "by": "ip", "limit": "3 per 10 seconds"}]})
    (status,) = asked([CLIENT]).statuses
    assert (status.HasField("current_limit"), status.limit_remaining) == (False, 2)
    asked.limiter.close()


@pytest.mark.parametrize(("sent", "charged"), [(0, 1), (1, 1), (5, 5)])
def test_the_hits_of_the_request_are_charged_and_0_means_1(ask, sent, charged):
    assert ask([("tokens", "t")], hits=sent).statuses[0].limit_remaining == 100 - charged


def given_back(*entries, hits=None):
    """A request of one descriptor whose hits are given back. Envoy's message, as generated here, lacks this field."""
    sent = RateLimitRequest(domain="shop", hits_addend=3)
    made = sent.descriptors.add(is_negative_hits=True)
    if hits is not None:
        made.hits_addend.value = hits
    for key, value in entries:
        made.entries.add(key=key.encode(), value=value.encode())
    return sent.SerializeToString()


def test_negative_hits_are_given_back_to_a_known_caller(ask):
    ask([("tokens", "t")], hits=60)
    for hits, left in ((10, 50), (None, 53), (1000, 100)):
        answer = Response.FromString(
            asyncio.run(ask.method.answer(given_back(("tokens", "t"), hits=hits), lambda: True))
        )
        assert (answer.overall_code, answer.statuses[0].limit_remaining) == (OK, left)
    ask([("tokens", "t")], hits=60)
    with pytest.raises(NotPermitted):
        asyncio.run(ask.method.answer(given_back(("tokens", "t"))))
    assert ask(descriptor(("tokens", "t"), hits=0)).statuses[0].limit_remaining == 40


def test_negative_hits_that_an_algorithm_cannot_give_back_are_refused_and_logged_once(caplog):
    limit = {"unit": "hour", "requests_per_unit": 5, "algorithm": "sliding_log"}
    asked = Asked({"domain": "shop", "descriptors": [{"key": "log", "rate_limit": limit}]})
    for _ in range(2):
        with pytest.raises(Refused, match="hits cannot be given back to the limit of a descriptor"):
            asyncio.run(asked.method.answer(given_back(("log", "x")), lambda: True))
    (line,) = [each for each in caplog.messages if "is_negative_hits" in each]
    assert "to 'log': sliding_log needs their time (logged once)" in line
    assert asked.service.refused == {"hits cannot be given back": 2}
    asked.limiter.close()


def test_equal_descriptors_have_what_is_left_after_each(ask):
    statuses = ask([("tokens", "t")], [("tokens", "t")], hits=2).statuses
    assert [status.limit_remaining for status in statuses] == [98, 96]


def test_a_status_has_no_limit_and_no_time_while_the_store_is_away():
    port = free_port()
    asked = Asked(storage=f"redis://127.0.0.1:{port}/0")
    (status,) = asked([CLIENT]).statuses
    assert status == Response.DescriptorStatus(code=OK)
    asked.limiter.close()


def test_hits_of_a_descriptor_replace_those_of_the_request_and_may_go_into_debt(ask):
    tokens = ("tokens", "t")
    assert ask(descriptor(tokens, hits=0), hits=7).statuses[0].limit_remaining == 100
    assert codes(ask(descriptor(tokens, hits=250), hits=7)) == (OVER_LIMIT, [OVER_LIMIT])
    assert codes(ask(descriptor(tokens, hits=0))) == (OVER_LIMIT, [OVER_LIMIT])


@pytest.mark.parametrize(("unit", "number"), [("SECOND", 1), ("YEAR", 6), ("WEEK", 7)])
def test_a_limit_sent_along_replaces_that_of_the_file(ask, unit, number):
    along = descriptor(("shadow", "s"), limit=(2, unit))
    assert [ask(along).overall_code for _ in range(3)] == [OK, OK, OVER_LIMIT]
    (status,) = ask(along).statuses
    assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (2, number)


def test_an_unknown_domain_passes_with_one_status_for_each_descriptor_and_is_counted(ask):
    response = ask([CLIENT], [CLIENT], domain="other")
    assert response == Response(overall_code=OK, statuses=[{"code": OK}, {"code": OK}])
    assert ask.service.unknown_domains == 1


LONG = "v" * 4097


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        pytest.param(request("", [CLIENT]), "the domain is empty", id="no domain"),
        pytest.param(request("shop"), "there are no descriptors", id="no descriptors"),
        pytest.param(request("shop", *[[CLIENT]] * 101), "there are more than 100 descriptors", id="descriptors"),
        pytest.param(request("shop", [CLIENT] * 33), "a descriptor has more than 32 entries", id="entries"),
        pytest.param(request("shop", [("k", LONG)]), "a key or a value is longer than 4 KiB", id="value"),
        pytest.param(request("shop", [(LONG, "v")]), "a key or a value is longer than 4 KiB", id="key"),
        pytest.param(
            request("shop", descriptor(CLIENT, limit=(3, "UNKNOWN"))),
            "the limit of a descriptor has an unknown unit",
            id="unit",
        ),
        pytest.param(request("shop", *[[("k", LONG[1:])] * 4] * 5), "the message is too long", id="message"),
    ],
)
def test_what_is_beyond_the_limits_of_inputs_is_refused_and_counted(ask, sent, why):
    with pytest.raises(Refused, match=why):
        ask.send(sent.SerializeToString())
    assert ask.service.refused == {why: 1}


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05shop", b"\x12\x02\x0a\x09", b"\x0a\x02\xff\xff" + b"\x12\x00"])
def test_malformed_bytes_are_refused_and_counted(ask, data):
    with pytest.raises(Refused, match="the message is malformed"):
        ask.send(data)
    assert ask.service.refused == {"the message is malformed": 1}


def test_a_request_at_the_limits_of_inputs_is_decided(ask):
    assert len(ask(*[[(f"k{number}", "v")] * 32 for number in range(100)]).statuses) == 100
    assert len(ask([("k" * 4096, "v" * 4096)]).statuses) == 1


def test_a_value_that_is_not_utf8_is_counted_like_any_other(ask):
    sent = request("shop", [("remote_address", "@@@@")]).SerializeToString().replace(b"@@@@", b"\xff\xfe\x00\x80")
    answers = [Response.FromString(ask.send(sent)) for _ in range(4)]
    assert [answer.overall_code for answer in answers] == [OK, OK, OK, OVER_LIMIT]
    assert ask([CLIENT]).statuses[0].limit_remaining == 2


def test_a_descriptor_without_entries_has_no_limit(ask):
    assert codes(ask([])) == (OK, [OK])


def headers(response):
    return {header.key: header.value for header in response.response_headers_to_add}


def denied(**settings):
    asked = Asked(**settings)
    response, *_, last = [asked([("tokens", "t")], [CLIENT]) for _ in range(4)]
    asked.limiter.close()
    return response, last


def test_without_the_settings_a_response_has_no_headers_and_no_body():
    for response in denied():
        assert (headers(response), response.raw_body) == ({}, b"")


def test_with_headers_by_rules_an_answer_has_those_of_the_middlewares():
    passed, over = denied(headers="rules")
    assert headers(passed) == {
        "X-RateLimit-Limit": "3",
        "X-RateLimit-Remaining": "2",
        "X-RateLimit-Reset": headers(passed)["X-RateLimit-Reset"],
    }
    assert headers(over)["X-RateLimit-Remaining"] == "0"
    assert 0 < int(headers(over)["Retry-After"]) <= 60
    assert "Content-Type" not in headers(over)
    assert over.raw_body == b""


def test_with_headers_of_go_an_answer_has_those_of_the_tightest_descriptor():
    passed, over = denied(headers="go")
    assert (headers(passed)["RateLimit-Limit"], headers(passed)["RateLimit-Remaining"]) == ("3", "2")
    assert (headers(over)["RateLimit-Limit"], headers(over)["RateLimit-Remaining"]) == ("3", "0")
    assert int(headers(over)["RateLimit-Reset"]) == over.statuses[1].duration_until_reset.seconds


def test_with_a_body_a_denial_has_that_of_the_middlewares_and_its_type():
    passed, over = denied(body=True)
    assert passed.raw_body == b""
    assert over.raw_body == b'{"message": "Too many requests"}'
    assert headers(over) == {"Content-Type": "application/json"}


def test_a_plan_that_is_kept_follows_overrides_and_the_switch():
    rules = {"domain": "shop", "client": {"secret": "s"}, "rules": [{"name": "r", "by": "user", "limit": "5 per year"}]}
    asked = Asked(rules)
    ann = [("user", "ann")]
    assert [asked(ann).statuses[0].limit_remaining for _ in range(3)] == [4, 3, 2]
    assert asked.limiter.rules.plans.get(request("shop", ann).SerializeToString()) is not None
    asked.limiter.overrides.set({"user": "ann"}, rule="r", limit="9 per year")
    assert asked(ann).statuses[0].current_limit.requests_per_unit == 9
    asked.limiter.overrides.set({"user": "ann"}, block=True)
    assert codes(asked(ann)) == (OVER_LIMIT, [OVER_LIMIT])
    asked.limiter.switch.set("off")
    assert codes(asked(ann)) == (OK, [OK])
    asked.limiter.switch.set("on")
    assert codes(asked(ann)) == (OVER_LIMIT, [OVER_LIMIT])
    asked.limiter.close()


@pytest.mark.parametrize("word", ["off", "shadow"])
def test_a_plan_that_is_made_while_the_switch_is_turned_is_not_kept(ask, word):
    turn = ask.limiter.engine.planner.switch.turn
    sent = request("shop", [("none", "x")]).SerializeToString()

    class Turning(bytes):
        """Hashed by code of its own, in which another thread may turn the switch."""

        def __hash__(self):
            turn(Setting(word))
            return super().__hash__()

    ask.send(sent)  # a plan is kept from the second time on
    assert Response.FromString(ask.send(Turning(sent))).overall_code == OK
    turn(Setting("on"))
    assert Response.FromString(ask.send(sent)).overall_code == OVER_LIMIT


def test_a_plan_is_kept_only_for_short_messages(ask):
    for _ in range(3):
        ask([("tokens", "t" * 600)])
    assert len(ask.limiter.rules.plans) == 0
