"""An app that asks a service in place of a store: what it asks, what it makes of the answer, and what it cannot do.

The service runs in this process, behind a real uvicorn and real sockets, so that a test can move its clock.
"""

import asyncio
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.errors import Problem
from ratelimit_mw.flask import limited as limited_in_flask
from ratelimit_mw.service import servable
from ratelimit_mw.service.api import http_app
from ratelimit_mw.stores.memory import MemoryStore
from tests.service.http_service import START, file, service, serving
from tests.shells.asking import EACH_SHELL, ask_asgi, ask_wsgi, http_scope, serve
from tests.support.processes import in_child

LOGIN = {"name": "login", "match": {"path": "/login"}, "by": "ip", "limit": "1 per hour", "algorithm": "fixed_window"}
EVERYBODY = {"name": "everybody", "by": "ip", "limit": "2 per minute", "algorithm": "fixed_window"}


class Recorder:
    """An ASGI app around that of the service, which keeps the calls: their paths, headers and bodies."""

    def __init__(self, app):
        self.app = app
        self.calls = []
        self.hold = threading.Event()
        self.hold.set()

    async def __call__(self, scope, receive, send):
        parts = []

        async def recording():
            message = await receive()
            parts.append(message.get("body", b""))
            return message

        await asyncio.to_thread(self.hold.wait)
        await self.app(scope, recording, send)
        self.calls.append((scope["path"], dict(scope["headers"]), json.loads(b"".join(parts))))

    @property
    def checks(self):
        """The checks that charge, in the order of their arrival."""
        return [check for path, _, body in self.calls if path == "/v1/check" for check in body["checks"]]


@contextmanager
def asking(config=None, *, made=None, **sections):
    """A service with these rules, and a limiter that asks it. It yields the limiter and what the service was sent."""
    recorder = Recorder(http_app(made or service(config)))
    with serving(recorder) as client, RateLimiter(of_app(str(client.base_url), **sections)) as limiter:
        yield limiter, recorder


def of_app(url="http://127.0.0.1:1", **sections):
    """The file of an app that asks the service at this URL."""
    return {"domain": "shop", "storage": {"url": url, "timeout": "20s"}, "client": {"secret": "of-the-app"}, **sections}


@EACH_SHELL
def test_a_request_gets_the_headers_and_the_denial_of_a_limit_of_the_service(ask):
    with asking(response={"reset": "delta"}) as (limiter, _):
        first, second, third = (ask(limiter) for _ in range(3))
    assert (first.status, first.rate) == (200, ["2", "1", "40"])
    assert (second.status, second.rate) == (200, ["2", "0", "40"])
    assert (third.status, third.rate, third.headers["retry-after"]) == (429, ["2", "0", "40"], "40")
    assert json.loads(third.body) == {"message": "Too many requests"}


@EACH_SHELL
def test_the_decision_in_the_app_is_that_of_the_service(ask):
    with asking() as (limiter, _), RateLimiter(file(), clock=ManualClock(START)) as here:
        assert ask(limiter).seen.decision == ask(here).seen.decision


def test_the_status_and_the_message_of_a_rule_and_whether_it_is_hidden_come_from_the_service():
    answer = {"status": 418, "message": "only {limit} an {period}"}
    hidden = {**EVERYBODY, "name": "hidden", "match": {"path": "/hidden"}, "response": {"hidden": True}}
    with asking(file([{**LOGIN, "response": answer}, hidden])) as (limiter, _):
        _, denied = ask_asgi(limiter, "/login"), ask_asgi(limiter, "/login")
        unseen = ask_asgi(limiter, "/hidden")
    assert (denied.status, json.loads(denied.body)["message"]) == (418, "only 1 an hour")
    assert (unseen.status, unseen.rate) == (200, [])


def test_a_list_of_entries_is_one_descriptor_of_the_service():
    tree = [{"key": "user", "rate_limit": {"unit": "hour", "requests_per_unit": 1}}]
    config = {"domain": "shop", "storage": {"timeout": "5s"}, "descriptors": tree}
    with asking(config) as (limiter, _):
        assert [bool(limiter.check([("user", "ann")])) for _ in range(2)] == [True, False]
        assert limiter.check([("user", "bob")])


def test_users_and_attributes_of_the_app_are_sent_hashed_and_the_others_plain():
    client = {"secret": "of-the-app", "user": "header:Authorization", "tier": "header:X-Tier"}
    rules = file([EVERYBODY], attributes={"device": "cookie:device"})
    headers = [(b"host", b"shop.example:80"), (b"authorization", b"Bearer secret-of-ann"), (b"x-tier", b"gold")]
    scope = http_scope("/a b//", ip="2001:db8::1", headers=[*headers, (b"cookie", b"device=secret-device")])
    with asking(rules, client=client, attributes={"device": "cookie:device"}) as (limiter, recorder):
        serve(RateLimitMiddleware(_ok, limiter=limiter), scope)
    (check,) = recorder.checks
    user, device = check["attributes"].pop("user"), check["attributes"].pop("device")
    assert check == {
        "attributes": {
            "remote_address": "2001:db8::1",
            "method": "GET",
            "path": "/a b//",
            "host": "shop.example",
            "tier": "gold",
        },
        "domain": "shop",
    }
    assert len({user, device}) == 2
    assert "secret" not in str([body for _, _, body in recorder.calls])


async def _ok(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_a_hashed_user_has_one_counter_at_the_service_and_another_user_has_another():
    rules = file([{**EVERYBODY, "by": "user", "limit": "1 per minute"}])
    with asking(rules) as (limiter, _):
        asked = [bool(limiter.check({"user": user})) for user in ("ann", "ann", "bob")]
    assert asked == [True, False, True]


def test_requests_that_come_together_are_one_call():
    async def at_once(limiter, recorder):
        await limiter.acheck({"ip": "192.0.2.1"})
        before = len(recorder.calls)
        decisions = await asyncio.gather(*[limiter.acheck({"ip": f"198.51.100.{n}"}) for n in range(100)])
        return decisions, recorder.calls[before:]

    with asking() as (limiter, recorder):
        decisions, calls = asyncio.run(at_once(limiter, recorder))
    assert [decision.remaining for decision in decisions] == [1] * 100
    assert len(calls) <= 3
    assert sum(len(body["checks"]) for _, _, body in calls) == 100


def test_threads_that_wait_together_share_a_call():
    with asking() as (limiter, recorder), ThreadPoolExecutor(20) as pool:
        limiter.check({"ip": "192.0.2.1"})
        recorder.hold.clear()
        asked = [pool.submit(limiter.check, {"ip": f"198.51.100.{n}"}) for n in range(20)]
        recorder.hold.set()
        assert [each.result().remaining for each in asked] == [1] * 20


def test_questions_beyond_what_one_body_may_have_are_several_calls():
    async def at_once(limiter):
        paths = [f"/{n}{'ü' * 1000}" for n in range(60)]
        return await asyncio.gather(*[limiter.acheck({"ip": "192.0.2.1", "path": path}) for path in paths])

    with asking(file([{**EVERYBODY, "limit": "1000 per minute"}])) as (limiter, recorder):
        decisions = asyncio.run(at_once(limiter))
    assert sorted(decision.remaining for decision in decisions) == list(range(940, 1000))
    assert all(int(headers[b"content-length"]) <= 64 * 1024 for _, headers, _ in recorder.calls)


@pytest.mark.parametrize(
    ("path", "told"),
    [("/" + "x" * 60_000, None), ("/" + "\N{GRINNING FACE}" * 1_100, None), ("/\ud800", 1), ('/"\\\x00', 1), ("", 1)],
    ids=range(5),
)
def test_no_path_of_a_client_spoils_the_call_that_it_shares_with_others(path, told):
    async def at_once(limiter):
        await limiter.acheck({"ip": "192.0.2.9"})
        asked = [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "path": path}, {"ip": "192.0.2.3"}]
        return await asyncio.gather(*map(limiter.acheck, asked))

    with asking() as (limiter, _):
        decisions = asyncio.run(at_once(limiter))
    assert [decision.remaining for decision in decisions] == [1, told, 1]
    assert decisions[1].reason == (None if told else "blocked")


TREE = [{"key": "user", "rate_limit": {"unit": "hour", "requests_per_unit": 1}}]


@pytest.mark.parametrize("text", ["x" * 100_000, "x" * 5_000, "\N{GRINNING FACE}" * 99, "\ud800"], ids=range(4))
def test_no_entry_of_a_client_spoils_the_call_that_it_shares_with_others(text):
    async def at_once(limiter, asked):
        return [bool(each) for each in await asyncio.gather(*[limiter.acheck([("user", each)]) for each in asked])]

    with asking({"domain": "shop", "storage": {"timeout": "5s"}, "descriptors": TREE}) as (limiter, _):
        assert asyncio.run(at_once(limiter, ["ann", text, f"{text}x", "bob"])) == [True] * 4
        assert asyncio.run(at_once(limiter, ["ann", text, f"{text}x", "bob"])) == [False] * 4


def test_a_list_without_entries_is_not_asked_and_one_of_too_many_is_an_error_of_the_app():
    with asking({"domain": "shop", "storage": {"timeout": "5s"}, "descriptors": TREE}) as (limiter, recorder):
        assert limiter.check([]).rule is None
        with pytest.raises(ValueError, match="at most 32"):
            limiter.check([("user", "ann")] * 33)
        assert limiter.check([("user", "ann")]).remaining == 0
        assert len(recorder.checks) == 1


@pytest.mark.parametrize("length", [300, 2_000])
def test_attributes_of_any_length_fit_into_one_question(length):
    told = {f"path:a{n}": "\N{GRINNING FACE}" * length for n in range(28)}
    with asking() as (limiter, _):
        assert [limiter.check({"ip": "192.0.2.1", "tier": "ü" * 9_000, **told}).remaining for _ in range(2)] == [1, 0]


def test_a_rule_matches_the_end_of_a_long_path():
    export = {"name": "export", "match": {"path": "/api/{id}/export"}, "by": "ip", "limit": "1 per hour"}
    with asking(file([export])) as (limiter, _):
        asked = [ask_asgi(limiter, f"/api/{'x' * 3_000}{n}/export").status for n in range(2)]
    assert asked == [200, 429]


def test_a_request_with_two_users_is_asked_once_for_each():
    client = {"secret": "of-the-app", "user": "cookie:user"}
    scope = http_scope(headers=[(b"cookie", b"user=ann; user=bob")])
    with asking(file([{**EVERYBODY, "by": "user", "limit": "1 per minute"}]), client=client) as (limiter, recorder):
        app = RateLimitMiddleware(_ok, limiter=limiter)
        statuses = [serve(app, dict(scope))[0]["status"] for _ in range(2)]
        alone = serve(app, http_scope(headers=[(b"cookie", b"user=bob")]))[0]["status"]
    assert (statuses, alone) == ([200, 429], 429)
    assert len({check["attributes"]["user"] for check in recorder.checks}) == 2


def test_a_preflight_is_counted_apart_at_the_service():
    headers = [(b"origin", b"https://shop.example"), (b"access-control-request-method", b"POST")]
    preflight = http_scope(method="OPTIONS", headers=headers)
    with asking(response={"reset": "delta"}) as (limiter, _):
        app = RateLimitMiddleware(_ok, limiter=limiter)
        starts = [serve(app, dict(scope))[0] for scope in (preflight, http_scope())]
        limits = [dict(start["headers"])[b"x-ratelimit-limit"] for start in starts]
    assert limits == [b"20", b"2"]


def test_an_exempt_request_is_not_asked():
    with asking(exempt=[{"path": "/health"}]) as (limiter, recorder):
        answers = [ask_asgi(limiter, "/health") for _ in range(3)]
    assert [(answer.status, answer.rate) for answer in answers] == [(200, [])] * 3
    assert recorder.checks == []


@EACH_SHELL
def test_a_request_waits_for_the_turn_that_a_bucket_of_the_service_assigns(ask):
    bucket = {"name": "bucket", "by": "ip", "limit": "100 per second", "algorithm": "leaky_bucket", "max_wait": "1s"}
    with asking(file([bucket])) as (limiter, _):
        turns = [ask(limiter).seen.delay for _ in range(3)]
    assert turns == [0.0, 0.01, 0.02]


def test_under_the_switch_shadow_the_service_is_asked_and_denies_nothing(monkeypatch):
    monkeypatch.setenv("RATELIMIT_MW", "shadow")
    with asking() as (limiter, recorder):
        assert all(limiter.check({"ip": "192.0.2.1"}) for _ in range(4))
        assert len(recorder.checks) == 4


def test_a_blocked_client_and_a_shed_request_of_the_service_are_denied_as_they_are_there():
    rules = file([EVERYBODY], overrides=[{"client": {"ip": "192.0.2.6"}, "block": True}])
    with asking(rules) as (limiter, _):
        blocked = limiter.check({"ip": "192.0.2.6"})
        answer = ask_asgi(limiter, ip="192.0.2.6")
    assert (blocked.allowed, blocked.reason, blocked.rule) == (False, "blocked", None)
    assert (answer.status, answer.rate) == (403, [])


def test_a_limit_that_never_admits_has_no_retry_after():
    with asking(file([{**EVERYBODY, "limit": "0 per minute"}])) as (limiter, _):
        assert limiter.check({"ip": "192.0.2.1"}).retry_after == math.inf
        assert "retry-after" not in ask_asgi(limiter).headers


def test_a_denial_is_logged_and_counted_by_the_rule_of_the_service(caplog):
    caplog.set_level("INFO", "ratelimit_mw.denials")
    with asking() as (limiter, _):
        for _ in range(3):
            limiter.check({"ip": "192.0.2.1", "user": "ann", "path": "/secret"})
        counted = limiter.tally.snapshot()
    # The first record is that of the service, which is in this process.
    _, record = [record for record in caplog.records if record.name == "ratelimit_mw.denials"]
    assert (record.rule, record.identity.partition("+")[0]) == ("everybody", "ip=192.0.2.1")
    assert "ann" not in record.getMessage()
    assert "/secret" not in record.getMessage()
    assert [(each.name, each.outcomes["allowed"], each.outcomes["denied"]) for each in counted.rules] == [
        ("everybody", 2, 1)
    ]


def test_acquire_waits_for_the_service_to_admit():
    with asking(file([{**EVERYBODY, "limit": "1 per second", "algorithm": "token_bucket"}]), made=None) as (limiter, _):
        assert limiter.acquire({"ip": "192.0.2.1"}, timeout=0)
        assert not limiter.acquire({"ip": "192.0.2.1"}, timeout=0)


def test_the_limiter_works_in_the_child_of_a_fork():
    with asking() as (limiter, _):
        before = limiter.check({"ip": "192.0.2.1"}).remaining
        in_the_child = in_child(lambda: limiter.check({"ip": "192.0.2.1"}).remaining)
        assert (before, in_the_child, limiter.check({"ip": "192.0.2.1"}).allowed) == (1, 0, False)


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        pytest.param(lambda limiter: limiter.reset({"ip": "192.0.2.1"}), "cannot charge, refund, reset", id="reset"),
        pytest.param(lambda limiter: limiter.reset_all(), "cannot charge, refund, reset", id="reset_all"),
        pytest.param(lambda limiter: limiter.explain({"ip": "192.0.2.1"}), r"explain\(\) needs the", id="explain"),
        pytest.param(
            lambda limiter: limiter.check_lists("shop", [[("a", "b")]]), r"check_lists\(\) needs", id="check_lists"
        ),
        pytest.param(
            lambda limiter: asyncio.run(ask_asgi(limiter).seen.charge(1)), "cannot charge, refund", id="charge"
        ),
        pytest.param(lambda limiter: ask_wsgi(limiter).seen.refund(), "cannot charge, refund", id="refund"),
    ],
)
def test_what_needs_the_counters_raises_a_sentence(ask, what):
    with asking() as (limiter, _), pytest.raises(RuntimeError, match=what):
        ask(limiter)


MAIL = {"name": "mail", "by": "user", "limit": "1 per hour", "algorithm": "fixed_window", "on_demand": True}


def test_a_rule_of_the_service_is_asked_by_its_name_with_a_key():
    ann = {"rule": "mail", "key": "ann"}
    with asking(file([MAIL, {**EVERYBODY, "limit": "0 per minute"}])) as (limiter, recorder):
        peeked, first = limiter.peek({}, **ann), limiter.check({}, **ann)
        second = asyncio.run(limiter.acheck({}, **ann))
        others = [limiter.check({}, rule="mail", key="bob"), limiter.check({"user": "ann"}, rule="mail")]
        without = limiter.check({}, rule="mail", key="")
    assert [peeked.remaining, first.remaining, second.allowed, second.rule] == [1, 0, False, "mail"]
    assert [each.period for each in (peeked, first, second)] == [3600.0] * 3
    assert [(other.allowed, other.rule) for other in others] == [(True, "mail")] * 2
    assert (without.allowed, without.rule) == (True, None)
    assert "ann" not in str(recorder.checks)


def flask_app(view):
    app = pytest.importorskip("flask").Flask("app")
    app.add_url_rule("/", "view", view)
    return app


def test_a_decorator_of_the_app_asks_for_a_rule_of_the_service():
    from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi

    app = flask_app(limited_in_flask("mail", key=lambda _request: "ann")(lambda: "hello"))
    with asking(file([MAIL])) as (limiter, _):
        app.wsgi_app = Wsgi(app.wsgi_app, limiter=limiter)
        statuses = [app.test_client().get("/").status_code for _ in range(2)]
        limiter.reload()
    assert statuses == [200, 429]


def test_a_rule_that_the_service_does_not_have_is_an_unavailable_store_for_this_request_alone(caplog):
    async def at_once(limiter):
        named = [{}, {"rule": "no-such-rule"}, {"rule": "everybody"}]
        return await asyncio.gather(*[limiter.acheck({"ip": "192.0.2.1"}, **each) for each in named])

    with asking() as (limiter, _):
        assert [decision.remaining for decision in asyncio.run(at_once(limiter))] == [1, None, 0]
        assert limiter.check({"ip": "192.0.2.2"}).remaining == 1
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "is not in the rules of the service" in record.getMessage()


@pytest.mark.parametrize(
    ("asked", "options", "what"),
    [
        ("5 per minute", {}, "decides by its own rules"),
        ("mail", {"refund_when": bool}, "refund_when can't be used: the service"),
    ],
)
def test_a_decorator_that_the_service_cannot_obey_is_refused_at_start(asked, options, what):
    from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi

    app = flask_app(limited_in_flask(asked, **options)(lambda: "hello"))
    with pytest.raises(ConfigurationError, match=what):
        Wsgi(app.wsgi_app, of_app())


def test_the_app_cannot_set_the_limit_of_a_rule_of_the_service():
    with asking(file([MAIL])) as (limiter, _), pytest.raises(ValueError, match="decides by its own rules"):
        limiter.check({}, rule="mail", limit="5 per hour")


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        ({"rules": [EVERYBODY]}, "'rules' has no effect, because the service"),
        ({"overrides": [{"client": {"ip": "192.0.2.1"}, "block": True}]}, "'overrides' has no effect"),
        ({"shadow": True}, "'shadow' has no effect"),
        ({"storage": {"url": "https://limits", "on_error": "local"}}, "on_error: can't be local"),
        ({"response": {"headers": ["ratelimit"]}}, "the service does not send the policies"),
        ({"attributes": {f"a{n}": "header:x" for n in range(25)}}, "at most 24 attributes"),
        ({"storage": {"url": "http://limits:8080"}}, "plain text is only for a service on this machine"),
        ({"storage": {"url": "https://limits:8080/path"}}, "is not the URL of a service"),
        ({"storage": {"url": "https://:a%0Ab@limits"}}, "is not the URL of a service"),
        ({"storage": {"url": "https://limits?ca=x"}}, "unknown option 'ca'"),
        ({"storage": {"url": "grpc://limits:8081"}}, "ask its HTTP port"),
    ],
)
def test_a_file_with_what_a_service_decides_is_refused_with_a_sentence(sections, what):
    with pytest.raises(ConfigurationError, match=what):
        RateLimiter(of_app(**sections))


def test_rules_are_not_read_from_the_address_of_a_service():
    with pytest.raises(ConfigurationError, match="rules are not read from a https:// address"):
        RateLimiter("https://limits")


@pytest.mark.parametrize(
    ("config", "storage"),
    [(file(), "https://limits"), (of_app(), "memory://"), (of_app(), MemoryStore())],
    ids=["rules", "URL", "store"],
)
def test_rules_and_a_service_exclude_each_other_also_in_code(config, storage):
    with pytest.raises(ConfigurationError, match="a service decides by rules of its own"):
        RateLimiter(config, storage=storage)


def test_a_service_has_a_clock_of_its_own():
    with pytest.raises(ConfigurationError, match="a clock of its own"):
        RateLimiter(of_app(), clock=ManualClock(START))


def test_the_file_of_an_app_that_asks_cannot_be_served():
    with RateLimiter(of_app()) as limiter:
        (problem,) = servable.unservable(limiter.rules)
    assert isinstance(problem, Problem)
    assert "an app that asks a service" in str(problem)


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        ({"domain": "other"}, "the rules do not have this domain"),
        ({"attributes": {"device": "cookie:d"}}, "is not an attribute"),
    ],
    ids=["domain", "attribute"],
)
def test_a_service_that_does_not_know_the_domain_or_an_attribute_is_an_error_in_the_log(caplog, sections, what):
    with asking(**sections) as (limiter, _):
        assert limiter.check({"ip": "192.0.2.1"})  # on_error: allow
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert what in record.getMessage()
    assert "compare the domain and the attributes" in record.getMessage()


@pytest.mark.parametrize(
    ("body", "status"), [(b"hello", 200), (b'{"rows":[]}', 200), (b'{"rows":[[1]]}', 200), (b"", 404), (b"x" * 99, 200)]
)
def test_another_server_is_an_error_in_the_log_and_on_error_decides(caplog, body, status):
    async def other(_scope, receive, send):
        await receive()
        length = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": length})
        await send({"type": "http.response.body", "body": body})

    with serving(other) as client, RateLimiter(of_app(str(client.base_url))) as limiter:
        assert limiter.check({"ip": "192.0.2.1"}).rule is None
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "correct the host and the port" in record.getMessage()


ROW = [True, "r", 10, 9, 30.0, 0.0, 0.0, 1.8e9, None, None, None, 1, 60.0]  # the fields of a Decision
STRANGE = [
    (place, [*ROW[:place], value, *ROW[place + 1 :]])
    for place, values in {
        0: ["yes"],
        1: [["r"], "\ud800"],
        2: [-1, 1.5, math.nan, 10**400],
        3: [-1, "9"],
        4: [math.nan, 1e308],
        5: [math.nan, []],
        6: [-1, math.inf, 1e12],
        7: [math.inf],
        8: ["a\r\nset-cookie: b", {}],
        10: [[], "busy"],
        11: [None, "1"],
        12: [{}, -1],
    }.items()
    for value in values
]
TOLD = (
    [(f"row {place}", {"rows": [row]}) for place, row in [*STRANGE, ("short", ROW[:-1])]]
    + [
        (f"rules {said}", {"rows": [ROW], "rules": said})
        for said in ([], {"r": 5}, *({"r": {"status": each}} for each in (99, "429", 429.0)))
    ]
    + [(f"message {said!a}", {"rows": [ROW], "rules": {"r": {"message": said}}}) for said in (["a"], "\ud800")]
)


HALF = {"rows": [[True, "\ud800", *ROW[2:]]]}
BODIES = [(name, 200, json.dumps(each).encode()) for name, each in TOLD] + [
    ("half of a pair in bytes", 200, json.dumps(HALF, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    ("half of a pair in UTF-16", 200, json.dumps(HALF).encode("utf-16-le")),
    ("a nested refusal", 400, b"[" * 100_000),
    ("a refusal of several lines", 403, json.dumps({"problems": ["a\r\nERROR forged"]}).encode()),
]


def answering(status, body):
    """A server that answers the introduction of a connection as the service does, and each check with this."""

    async def other(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        answer = (200, json.dumps({"rows": [ROW]}).encode()) if scope["path"] == "/v1/peek" else (status, body)
        length = [(b"content-length", b"%d" % len(answer[1]))]
        await send({"type": "http.response.start", "status": answer[0], "headers": length})
        await send({"type": "http.response.body", "body": answer[1]})

    return serving(other)


@EACH_SHELL
@pytest.mark.parametrize(("status", "body"), [each[1:] for each in BODIES], ids=[each[0] for each in BODIES])
def test_a_reply_with_values_that_no_service_sends_is_an_unavailable_store(ask, status, body, caplog):
    with answering(status, body) as client, RateLimiter(of_app(str(client.base_url))) as limiter:
        answer = ask(limiter)
    assert (answer.status, answer.rate, answer.body) == (200, [], b"hello")
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().isprintable()
