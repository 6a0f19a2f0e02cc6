"""Rules asked for by name, with a `key=` or a `limit=` of the app's own."""

from enum import Enum
from uuid import UUID

import pytest
from django.http import HttpResponse
from django.test.utils import override_settings
from django.urls import path
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from flask import Flask, request
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw import django as in_django
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.inside.clients import from_address
from tests.inside.test_django_middleware import awaited, blocking

HERE = "tests.inside.test_by_name"
ON_DEMAND = {"on_demand": True, "algorithm": "fixed_window"}
RULES = {
    "domain": "named",
    "storage": {"timeout": "5s"},
    "client": {"user": "header:X-User", "secret": "x"},
    "rules": [
        {"name": "login", "by": ["ip", "user"], "limit": "2 per minute", **ON_DEMAND},
        {"name": "mail", "by": "ip", "limit": "2 per minute", "cost": 2, **ON_DEMAND},
        {
            "name": "late",
            "match": {"path": "/late"},
            "by": "ip",
            "limit": {"default": "1 per minute", "gold": "2 per minute"},
        },
    ],
}


@pytest.fixture
def limiter(storage, clock):
    with RateLimiter(RULES, storage=storage, clock=clock) as made:
        yield made


@pytest.fixture
def asked(limiter):
    """Asks for a rule inside a Flask view, and returns whether it was allowed."""
    app = Flask("named", root_path="/")
    app.testing = True
    app.add_url_rule("/", "index", lambda: str(in_flask.request.environ["test.ask"]().allowed))
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)

    def ask(rule, check="check", **words):
        def now():
            found = getattr(request.environ["ratelimit.decision"], check)(rule, **words)
            return found.decision if check == "enforce" else found

        return app.test_client().get("/", environ_overrides={"test.ask": now}).text == "True"

    return ask


@pytest.mark.parametrize("check", ["check", "enforce"])
def test_a_key_takes_the_place_of_what_the_rule_counts_by(asked, check):
    assert [asked("login", check, key="ann") for _ in range(3)] == [True, True, False]
    assert [asked("login", check, key=name) for name in ("bob", "Ann", "ann")] == [True, True, False]
    assert [asked("login", check) for _ in range(3)] == [True, True, False]  # by address, as the rule says


@pytest.mark.parametrize("key", [7, UUID(int=7), "€/{}+x=1"])
def test_a_key_may_be_a_number_a_uuid_or_any_text(asked, key):
    assert [asked("login", key=key) for _ in range(3)] == [True, True, False]
    assert not asked("login", key=str(key))


def test_a_key_that_is_an_enum_counts_as_the_text_that_it_equals(asked):
    class Plan(str, Enum):  # noqa: UP042 - the text of a StrEnum is its value already
        GOLD = "gold"

    assert [asked("login", key=key) for key in (Plan.GOLD, "gold", Plan.GOLD)] == [True, True, False]


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_key_the_rule_does_not_apply_as_without_a_user(asked, key):
    assert all(asked("login", key=key) for _ in range(5))


@pytest.mark.parametrize("key", [True, b"x", 1.5, object()])
def test_a_key_of_another_type_is_a_type_error(asked, key):
    with pytest.raises(TypeError, match="key takes a string, a whole number or a UUID, not"):
        asked("login", key=key)


def test_a_key_is_hashed_in_the_store(any_server, clock):
    with RateLimiter(RULES, storage=any_server.url, clock=clock) as limiter:
        app = Flask("named", root_path="/")
        app.add_url_rule("/", "index", lambda: in_flask.enforce("login", key="hunter2").rule)
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
        assert app.test_client().get("/").text == "login"
        keys = any_server.keys()
    (key,) = [key for key in keys if key.startswith("named:login:")]
    assert "hunter2" not in key
    assert "{(key)=" in key


def test_a_limit_takes_the_place_of_the_rule_s_own_limit(asked, clock):
    assert [asked("login", limit="1 per minute") for _ in range(2)] == [True, False]
    assert asked("login", limit="3 per minute")  # the same window, and so the same counter
    assert [asked("login", limit="1 per hour") for _ in range(2)] == [True, False]  # another window
    assert [asked("login", limit="2 per day; 1 per year") for _ in range(2)] == [True, False]
    assert all(asked("login", limit="unlimited") for _ in range(5))
    assert not asked("login", limit="0 per hour")
    clock.advance(60)
    assert [asked("login") for _ in range(3)] == [True, True, False]


def test_a_limit_keeps_the_other_words_of_the_rule_and_ignores_tiers(asked):
    assert [asked("mail", limit="5 per hour") for _ in range(3)] == [True, True, False]  # it costs 2
    assert [asked("late", limit="2 per hour") for _ in range(3)] == [True, True, False]


def test_a_limit_and_a_key_go_together(asked):
    assert [asked("login", key=name, limit="1 per hour") for name in ("ann", "ann", "bob")] == [True, False, True]


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("5 per hur", r"'hur' is not a unit of time \(did you mean 'hour'\?\)"),
        ("mail", "'mail' is not a limit"),
        ("1 per hour", "a cost of 2 can never fit into a limit of 1"),
        ("5 concurrent", "concurrent"),
    ],
)
def test_a_limit_that_the_rule_cannot_have_is_a_value_error(asked, limit, message):
    with pytest.raises(ValueError, match=message):
        asked("mail", limit=limit)


def test_a_concurrent_limit_in_place_of_the_rule_s_is_refused_for_every_rule(asked):
    with pytest.raises(ValueError, match="'5 concurrent' is a concurrent limit, which only a rule or a decorator can"):
        asked("late", limit="5 concurrent")


def test_a_limit_is_a_text_and_belongs_to_a_rule_that_exists(asked):
    with pytest.raises(TypeError, match="limit takes a string such as '5 per minute', not 5"):
        asked("mail", limit=5)
    with pytest.raises(LookupError, match=r"the rule 'mial', which does not exist \(did you mean 'mail'"):
        asked("mial", limit="5 per hour")
    with pytest.raises(LookupError, match=r"'5 per hour', which does not exist \(a limit in code is written as"):
        asked("5 per hour")


def test_a_limit_that_is_too_long_to_be_kept_is_refused(asked):
    with pytest.raises(ValueError, match="is too long: a limit has at most 256 characters"):
        asked("mail", limit="5 per hour" + " " * 1_000)


def test_an_override_of_an_operator_wins_over_a_limit_in_code(asked, limiter):
    limiter.overrides.set({"ip": "127.0.0.1"}, rule="mail", limit="4 per minute")
    assert [asked("mail", limit="100 per hour") for _ in range(3)] == [True, True, False]


def test_a_limit_is_compiled_once_for_each_text(asked, limiter):
    for _ in range(3):
        asked("login", limit="5 per hour")
        asked("login", limit="6 per hour")
    assert limiter.rules.parts[0]._with_limit.cache_info().misses == 2


def test_the_kill_switch_holds_for_keys_and_limits(asked, limiter):
    limiter.switch.set("off")
    assert all(asked("login", key="ann", limit="1 per hour") for _ in range(3))


def test_the_headers_show_a_limit_in_code(limiter):
    app = Flask("named", root_path="/")
    app.add_url_rule("/", "index", lambda: in_flask.enforce("login", limit="7 per hour").rule)
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
    assert app.test_client().get("/").headers["X-RateLimit-Limit"] == "7"


def named(request):
    return request.headers.get("X-Name")


async def awaited_name(request):
    return request.headers.get("X-Name")


def failing(_request):
    raise RuntimeError("hunter2")


KEYS = pytest.mark.parametrize("key", [named, awaited_name])
NAMES = ["ann", "ann", "bob", "ann", "", "", ""]
EXPECTED = [200, 200, 200, 429, 200, 200, 200]


def statuses(client):
    return [client.get("/", headers={"X-Name": name}).status_code for name in NAMES]


def flask_of(limiter, key, rule="login"):
    app = Flask("named", root_path="/")
    app.add_url_rule("/", "index", in_flask.limited(rule, key=key)(lambda: "in"))
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
    return app.test_client()


@KEYS
def test_a_flask_view_counts_by_the_key_of_its_decorator(limiter, key):
    assert statuses(flask_of(limiter, key)) == EXPECTED


def test_the_key_of_a_decorator_may_read_the_form(limiter):
    app = Flask("named", root_path="/")
    view = in_flask.limited("login", key=lambda request: request.form["username"])(lambda: "in")
    app.add_url_rule("/", "index", view, methods=["POST"])
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
    client = app.test_client()
    found = [client.post("/", data={"username": name}).status_code for name in ("ann", "ann", "ann", "bob")]
    assert found == [200, 200, 429, 200]


@KEYS
@pytest.mark.parametrize("rule", ["login", "2 per minute"])
def test_an_endpoint_of_fastapi_counts_by_the_key_of_its_dependency(limiter, key, rule):
    app = FastAPI()
    app.get("/", dependencies=[Depends(in_fastapi.limited(rule, key=key))])(lambda: "in")
    in_fastapi.add_rate_limits(app, limiter=limiter)
    with TestClient(from_address(app, "192.0.2.1")) as client:
        assert statuses(client) == EXPECTED


@KEYS
def test_an_endpoint_of_starlette_counts_by_the_key_of_its_decorator(limiter, key):
    @in_starlette.limited("login", key=key)
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse("in")

    app = Starlette(routes=[Route("/", endpoint)], middleware=[Middleware(Asgi, limiter=limiter)])
    with TestClient(from_address(app, "192.0.2.1")) as client:
        assert statuses(client) == EXPECTED


@in_django.limited("login", key=awaited_name)
def waiting(request):
    return HttpResponse("in")


@in_django.limited("2 per minute", key=named)
async def asynchronous(request):
    return HttpResponse("in")


@in_django.limited("login", key=awaited_name)
async def both(request):
    return HttpResponse("in")


urlpatterns = [path("waiting", waiting), path("asynchronous", asynchronous), path("both", both)]


@pytest.mark.parametrize("view", ["waiting", "asynchronous", "both"])
@pytest.mark.parametrize("ask", [blocking, awaited])
def test_a_django_view_counts_by_the_key_of_its_decorator(limiter, ask, view):
    with override_settings(RATELIMIT=limiter, ROOT_URLCONF=HERE):
        found = [ask([f"/{view}"], {"X-Name": name})[0].status_code for name in NAMES]
    assert found == EXPECTED


def test_a_key_function_that_raises_is_logged_once_without_its_message_and_counts_as_absent(limiter, caplog):
    client = flask_of(limiter, failing)
    assert statuses(client) == [200] * len(NAMES)
    (line,) = [record.getMessage() for record in caplog.records if "the key of a limit" in record.getMessage()]
    assert "RuntimeError was raised at" in line
    assert "hunter2" not in line


@pytest.mark.parametrize("limited", [module.limited for module in (in_flask, in_django, in_fastapi, in_starlette)])
def test_a_decorator_refuses_a_key_that_is_no_function_and_a_key_with_by(limited):
    with pytest.raises(TypeError, match="key takes a function"):
        limited("login", key="ann")
    with pytest.raises(ConfigurationError, match="by can't be combined with key"):
        limited("5 per minute", by="ip", key=named)


def five(environ):
    return "5 per hour"


@pytest.mark.parametrize("own", [{"default": "5 per hour", "gold": "9 per hour"}, f"python:{HERE}:five"])
def test_a_limit_takes_the_place_of_the_limits_of_tiers_and_of_a_function(storage, clock, own):
    rule = {"name": "login", "by": "ip", "limit": own, **ON_DEMAND}
    config = {**RULES, "client": {"tier": "header:X-Tier", "secret": "x"}, "rules": [rule]}
    with RateLimiter(config, storage=storage, clock=clock) as limiter:
        app = Flask("named", root_path="/")
        app.add_url_rule("/", "index", lambda: str(in_flask.enforce("login", limit="2 per hour").limit))
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
        answers = [app.test_client().get("/", headers={"X-Tier": "gold"}) for _ in range(3)]
    assert [(answer.status_code, answer.text[:1]) for answer in answers] == [(200, "2"), (200, "2"), (429, "{")]


def test_each_of_two_limits_of_the_app_is_a_policy_of_its_own(storage, clock):
    with RateLimiter({**RULES, "response": {"headers": ["ratelimit"]}}, storage=storage, clock=clock) as limiter:
        app = Flask("named", root_path="/")
        app.add_url_rule("/", "index", lambda: str(in_flask.enforce("mail", limit="9 per day; 8 per hour").allowed))
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
        answer = app.test_client().get("/")
    assert answer.headers["RateLimit-Policy"] == '"mail per day";q=9;w=86400, "mail per hour";q=8;w=3600'


FREE = {**RULES, "rules": [{"name": "all", "by": "ip", "limit": "9 per minute"}, *RULES["rules"]]}


@pytest.fixture
def inside(storage, clock):
    """Calls a function with the handle inside a view of Flask, under a rule of 9 a minute, and returns its result."""
    with RateLimiter(FREE, storage=storage, clock=clock) as limiter:
        found = []
        app = Flask("named", root_path="/")
        app.testing = True
        app.add_url_rule("/", "index", lambda: found.append(request.environ["test.do"](handle())) or "")
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)

        def handle():
            return request.environ["ratelimit.decision"]

        def call(function):
            app.test_client().get("/", environ_overrides={"test.do": function})
            return found.pop()

        yield call


def test_a_refund_also_returns_what_rules_by_name_have_charged(inside):
    def ask_and_refund(handle):
        allowed = bool(handle.enforce("login"))
        handle.refund()
        return allowed

    assert [inside(ask_and_refund) for _ in range(5)] == [True] * 5
    assert inside(lambda handle: handle.check("login").remaining) == 1


def test_a_charge_also_charges_rules_by_name(inside):
    def ask_and_charge(handle):
        allowed = bool(handle.enforce("login"))
        handle.charge(1)
        return allowed

    assert [inside(ask_and_charge) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("amount", [1, 2, 5])
def test_a_counter_that_a_request_asked_twice_is_refunded_once(inside, amount):
    def twice(handle):
        assert handle.check("login")
        assert handle.check("login")
        handle.refund(amount)
        return handle.check("login", cost=0).remaining

    assert inside(twice) == min(amount, 2)


def test_a_counter_that_a_request_asked_twice_is_charged_once_more(inside):
    def twice(handle):
        assert handle.check("late")
        handle.enforce("late", limit="8 per minute")
        handle.charge(3)
        return handle.check("late", cost=0, limit="8 per minute").remaining

    assert inside(twice) == 3


def test_what_a_rule_by_name_denied_is_not_refunded(inside):
    for _ in range(2):
        assert inside(lambda handle: handle.check("login"))

    def denied(handle):
        assert not handle.check("login")
        handle.refund()
        return handle.check("login")

    assert not inside(denied)


def test_a_handle_and_what_it_enforced_are_true_if_they_allow(inside):
    seen = [inside(lambda handle: (bool(handle), bool(handle.enforce("login")))) for _ in range(3)]
    assert seen == [(True, True), (True, True), (True, False)]
