"""What a client is told, through both middlewares."""

import json

import pytest

from ratelimit_mw import Decision, ManualClock
from tests.shells.asking import EACH_SHELL, IP, START, limiter

AWAY = "redis://127.0.0.1:1/0"  # a port at which nobody listens
pytestmark = EACH_SHELL


def two(first, second):
    """Two rules by ip."""
    return [{"name": name, "by": "ip", "algorithm": "fixed_window", **rule} for name, rule in (first, second)]


def test_an_allowed_response_says_how_much_is_left(ask):
    answer = ask(limiter("2 per minute"))
    assert (answer.status, answer.body) == (200, b"hello")
    assert answer.headers == {
        "x-ratelimit-limit": "2",
        "x-ratelimit-remaining": "1",
        "x-ratelimit-reset": str(START + 40),
    }


def test_a_429_has_no_store_and_retry_after_and_is_not_the_app_s(ask):
    engine = limiter("1 per minute")
    ask(engine)
    denied = ask(engine)
    assert denied.status == 429
    assert denied.seen is None, "the app was not called"
    assert json.loads(denied.body) == {"message": "Too many requests"}
    assert denied.headers == {
        "content-type": "application/json",
        "cache-control": "no-store",
        "content-length": str(len(denied.body)),
        "retry-after": "40",
        "x-ratelimit-limit": "1",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": str(START + 40),
    }


@pytest.mark.parametrize(
    ("start", "retry_after"),
    [
        pytest.param(START + 39.999999, "1", id="a microsecond to wait is not 0 seconds"),
        pytest.param(START + 39, "1", id="a whole second is one second"),
        pytest.param(START + 38.999999, "2", id="a microsecond more is two"),
        pytest.param(START + 40, "60", id="the window has just begun"),
    ],
)
def test_retry_after_is_rounded_up_and_true(ask, start, retry_after):
    clock = ManualClock(start)
    engine = limiter("1 per minute", clock=clock)
    ask(engine)
    assert ask(engine).headers["retry-after"] == retry_after
    clock.advance(int(retry_after))
    assert ask(engine).status == 200


@pytest.mark.parametrize(
    ("reset", "at"), [pytest.param("epoch", str(START + 40), id="epoch"), pytest.param("delta", "40", id="delta")]
)
def test_reset_is_rounded_up(ask, reset, at):
    engine = limiter(clock=ManualClock(START + 0.000001), response={"reset": reset})
    assert ask(engine).headers["x-ratelimit-reset"] == at


def test_what_can_never_pass_has_no_retry_after(ask):
    denied = ask(limiter("0 per minute"))
    assert denied.status == 429
    assert "retry-after" not in denied.headers
    assert denied.headers["cache-control"] == "no-store"
    assert denied.headers["x-ratelimit-limit"] == "0"


@pytest.mark.parametrize(
    ("headers", "allowed", "denied"),
    [
        pytest.param(["x-ratelimit"], {"x-ratelimit"}, {"x-ratelimit"}, id="no Retry-After"),
        pytest.param(["retry-after"], set(), {"retry-after"}, id="Retry-After alone"),
        pytest.param(["retry-after", "x-ratelimit"], {"x-ratelimit"}, {"x-ratelimit", "retry-after"}, id="both"),
    ],
)
def test_response_headers_says_which_go_out(ask, headers, allowed, denied):
    engine = limiter("1 per minute", response={"headers": headers})

    def groups(answer):
        return {
            group for group in ("x-ratelimit", "retry-after") if any(name.startswith(group) for name in answer.headers)
        }

    assert groups(ask(engine)) == allowed
    assert groups(ask(engine)) == denied


def test_the_headers_speak_of_the_counter_with_the_least_remaining(ask):
    engine = limiter(rules=two(("wide", {"limit": "100 per hour"}), ("narrow", {"limit": "3 per minute"})))
    assert ask(engine).rate == ["3", "2", str(START + 40)]


def test_the_headers_of_a_bucket_speak_of_its_burst(ask):
    bucket = {"name": "a", "limit": "5 per minute", "algorithm": "token_bucket", "burst": 20}
    headers = ask(limiter(rules=[bucket])).headers
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("20", "19")


def test_a_denial_speaks_of_the_longest_wait(ask):
    engine = limiter(rules=two(("hour", {"limit": "1 per hour"}), ("minute", {"limit": "1 per minute"})))
    ask(engine)
    denied = ask(engine)
    assert denied.rate[:2] == ["1", "0"]
    assert int(denied.headers["retry-after"]) == 3600 - START % 3600


def test_a_denial_that_no_waiting_ends_speaks_for_all(ask):
    engine = limiter(rules=two(("closed", {"limit": "0 per hour"}), ("minute", {"limit": "1 per minute"})))
    assert "retry-after" not in ask(engine).headers


@pytest.mark.parametrize(
    "own",
    [
        pytest.param([("X-Request-ID", "7"), ("Set-Cookie", "a=1")], id="others stay beside ours"),
        pytest.param([], id="none at all"),
    ],
)
def test_the_app_s_headers_survive_in_front_of_ours(ask, own):
    names = [name.lower() for name, _ in own]
    rate = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]
    assert [name for name, _ in ask(limiter(), own=own).fields] == names + rate


def test_where_the_app_speaks_of_its_own_limit_ours_is_silent(ask):
    own = [("X-RateLimit-Limit", "77")]
    assert ask(limiter(), own=own).fields == [("x-ratelimit-limit", "77")]


def test_headers_sent_twice_by_the_app_stay_twice(ask):
    own = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]
    assert ask(limiter(), own=own).fields[:2] == [("set-cookie", "a=1"), ("set-cookie", "b=2")]


LINK = "https://example.com/limits"


@pytest.mark.parametrize(
    ("response", "content_type", "body"),
    [
        pytest.param({}, "application/json", {"message": "Too many requests"}, id="GitHub's shape"),
        pytest.param(
            {"documentation_url": LINK},
            "application/json",
            {"message": "Too many requests", "documentation_url": LINK},
            id="GitHub's shape with its link",
        ),
        pytest.param(
            {"body": "problem"},
            "application/problem+json",
            {
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Request cannot be satisfied as assigned quota has been exceeded",
                "status": 429,
                "detail": "Too many requests",
                "violated-policies": ["everybody"],
            },
            id="a problem",
        ),
        pytest.param(
            {"body": "problem", "documentation_url": LINK, "status": 403},
            "application/problem+json",
            {
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Request cannot be satisfied as assigned quota has been exceeded",
                "status": 403,
                "detail": "Too many requests",
                "violated-policies": ["everybody"],
                "documentation_url": LINK,
            },
            id="a problem with a link, under another status",
        ),
    ],
)
def test_bodies_for_programs(ask, response, content_type, body):
    denied = ask(limiter("0 per minute", response=response))
    assert denied.headers["content-type"] == content_type
    assert json.loads(denied.body) == body
    assert denied.headers["content-length"] == str(len(denied.body))


def test_a_body_for_people(ask):
    denied = ask(limiter("0 per minute", response={"body": "text", "message": "Zu viele Anfragen für heute"}))
    assert denied.headers["content-type"] == "text/plain; charset=utf-8"
    assert denied.body.decode() == "Zu viele Anfragen für heute"
    assert denied.headers["content-length"] == str(len(denied.body))


@pytest.mark.parametrize(
    ("message", "limit", "said"),
    [
        pytest.param("{limit} for {ip}", "1 per minute", f"1 for {IP}", id="limit and address"),
        pytest.param("{rule}: {retry_after} s", "1 per minute", "everybody: 40 s", id="rule and time to wait"),
        pytest.param("wait {retry_after}", "0 per minute", "wait never", id="what can never pass"),
        pytest.param("{{ip}} {} {0} {ip", "1 per minute", "{" + IP + "} {} {0} {ip", id="other braces mean nothing"),
    ],
)
def test_what_a_message_may_hold(ask, message, limit, said):
    engine = limiter(limit, response={"message": message, "body": "text"})
    ask(engine)
    assert ask(engine).body.decode() == said


@pytest.mark.parametrize(
    ("ip", "said"),
    [
        pytest.param("2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6", id="whole, not cut to its network"),
        pytest.param("::ffff:192.0.2.9", "192.0.2.9", id="a mapped address as IPv4"),
        pytest.param(None, "unknown", id="a unix socket"),
        pytest.param('<script>"\r\nX-Evil: 1', "unknown", id="no address but an attack"),
    ],
)
def test_the_address_in_a_message(ask, ip, said):
    engine = limiter("0 per minute", response={"message": "{ip}"})
    assert json.loads(ask(engine, ip=ip).body) == {"message": said}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param('"},{"evil": "1', id="JSON"),
        pytest.param("</script><b>", id="markup"),
        pytest.param("{ip} {rule}", id="placeholders, which are not filled in twice"),
        pytest.param("größer als 100 € 🦉", id="far from ASCII"),
    ],
)
def test_unusual_signs_are_text_and_nothing_else(ask, name):
    engine = limiter(
        rules=[{"name": name, "by": "ip", "limit": "0 per minute"}], response={"message": "{rule}\r\nX-Evil: 1"}
    )
    denied = ask(engine)
    assert json.loads(denied.body) == {"message": f"{name}\r\nX-Evil: 1"}
    assert denied.body.isascii()
    assert not any("evil" in text.lower() for field in denied.fields for text in field)


@pytest.mark.parametrize("body", ["json", "problem", "text"])
def test_a_denied_head_has_the_headers_of_get_and_no_body(ask, body):
    engine = limiter("0 per minute", response={"body": body})
    head, get = ask(engine, method="HEAD"), ask(engine)
    assert head.body == b""
    assert head.fields == get.fields
    assert head.headers["content-length"] == str(len(get.body)) != "0"


def test_deny_while_the_store_is_away_is_a_503_that_says_try_again(ask):
    with limiter(
        rules=two(("a", {"limit": "9 per hour"}), ("b", {"limit": "9 per hour", "on_error": "deny"})), storage=AWAY
    ) as engine:
        answer = ask(engine)
    assert answer.status == 503
    assert json.loads(answer.body) == {"message": "Service temporarily unavailable"}
    assert answer.headers == {
        "content-type": "application/json",
        "cache-control": "no-store",
        "content-length": str(len(answer.body)),
        "retry-after": "1",
    }


def test_a_503_in_a_problem_keeps_its_status_and_its_words(ask):
    response = {"body": "problem", "message": "{ip} has used up {limit}", "status": 403}
    strict = [{"name": "a", "by": "ip", "limit": "9 per hour", "on_error": "deny"}]
    with limiter(rules=strict, storage=AWAY, response=response) as engine:
        body = json.loads(ask(engine).body)
    assert body == {
        "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        "title": "Request cannot be satisfied due to temporary server capacity constraints",
        "status": 503,
        "detail": "Service temporarily unavailable",
    }


def test_while_the_store_is_away_an_allowed_response_is_the_app_s_own(ask):
    with limiter(storage=AWAY) as engine:
        answer = ask(engine, own=[("X-Own", "1")])
    assert (answer.status, answer.fields) == (200, [("x-own", "1")])
    assert (answer.seen.allowed, answer.seen.rule, answer.seen.limit) == (True, None, None)


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({"exempt": [{"path": "/health"}]}, id="exempt"),
        pytest.param(
            {"rules": [{"name": "a", "by": "ip", "limit": "1 per hour", "match": {"path": "/login"}}]}, id="no rule"
        ),
        pytest.param({"rules": [{"name": "a", "by": "ip", "limit": "unlimited"}]}, id="unlimited"),
    ],
)
def test_a_request_without_a_limit_has_no_headers_and_yet_a_decision(ask, sections):
    answer = ask(limiter(**sections), "/health")
    assert (answer.status, answer.fields) == (200, [])
    assert answer.seen.decision == Decision(True)


def test_a_shadow_rule_denies_nothing_and_is_not_spoken_of(ask):
    engine = limiter(rules=[{"name": "a", "by": "ip", "limit": "0 per hour", "shadow": True}])
    answer = ask(engine)
    assert (answer.status, answer.fields) == (200, [])
    assert [policy.allowed for policy in answer.seen.policies] == [False]


def test_the_app_finds_the_decision_s_fields(ask):
    seen = ask(limiter("2 per minute")).seen
    policy = Decision(True, "everybody", 2, 1, 40.0, 0.0, 0.0, START + 40.0, None, used=1, period=60.0)
    decision = Decision(True, "everybody", 2, 1, 40.0, 0.0, 0.0, START + 40.0, None, (policy,), used=1, period=60.0)
    assert seen.decision == decision
    assert {field: getattr(seen, field) for field in Decision._fields} == {
        field: getattr(decision, field) for field in Decision._fields
    }
    assert set(Decision._fields) <= set(dir(seen))
    assert repr(seen) == repr(decision)


def test_a_field_that_no_decision_has_is_no_attribute(ask):
    seen = ask(limiter()).seen
    for name in ("remaning", "_private", "__deepcopy__"):
        with pytest.raises(AttributeError):
            getattr(seen, name)
