"""The options of `limited`: methods, algorithm, exempt_when, refund_when and functions as limits, in each framework."""

import gc
import logging
import time
from contextlib import suppress

import pytest
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.test.utils import override_settings
from django.urls import path
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.testclient import TestClient
from flask import Blueprint, Flask, abort, request
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw import django as in_django
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.inside.clients import from_address
from tests.inside.test_django_middleware import awaited, blocking

METHODS = ["GET", "HEAD", "POST"]
RULES = {
    "domain": "options",
    "storage": {"timeout": "5s"},
    "client": {"secret": "x"},
    "rules": [{"name": "mail", "by": "ip", "limit": "2 per minute", "algorithm": "fixed_window", "on_demand": True}],
}


@pytest.fixture
def limiter(storage, clock):
    with RateLimiter(RULES, storage=storage, clock=clock) as made:
        yield made


def status_of(headers):
    return int(headers.get("X-Status", "200"))


def of_flask(limiter, rule, **options):
    app = Flask("options", root_path="/")

    @app.route("/", methods=METHODS)
    @in_flask.limited(rule, **options)
    def view():
        status = status_of(request.headers)
        return ("", status) if status < 500 else abort(status - 100)

    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
    client = app.test_client()
    return lambda method, headers: client.open("/", method=method, headers=headers)


def of_starlette(limiter, rule, **options):
    @in_starlette.limited(rule, **options)
    async def endpoint(request: Request) -> PlainTextResponse:
        status = status_of(request.headers)
        if status >= 500:
            raise HTTPException(status - 100)
        return PlainTextResponse("", status)

    app = Starlette(routes=[Route("/", endpoint, methods=METHODS)], middleware=[Middleware(Asgi, limiter=limiter)])
    client = TestClient(from_address(app, "192.0.2.1"))
    return lambda method, headers: client.request(method, "/", headers=headers)


def of_fastapi(limiter, rule, **options):
    app = FastAPI()

    @app.api_route("/", methods=METHODS, dependencies=[Depends(in_fastapi.limited(rule, **options))])
    def endpoint(request: Request, response: Response) -> str:
        response.status_code = status_of(request.headers)
        if response.status_code >= 500:
            raise HTTPException(response.status_code - 100)
        return ""

    in_fastapi.add_rate_limits(app, limiter=limiter)
    client = TestClient(from_address(app, "192.0.2.1"))
    return lambda method, headers: client.request(method, "/", headers=headers)


def django_view(request):
    status = status_of(request.headers)
    if status >= 500:
        raise PermissionDenied
    return HttpResponse(status=status)


def of_django(ask):
    def made(limiter, rule, **options):
        view = in_django.limited(rule, **options)(django_view)

        def requested(method, headers):
            with override_settings(RATELIMIT=limiter, ROOT_URLCONF=(path("", view),)):
                return ask(["/"], headers, method=method)[0]

        return requested

    return made


def of_rest(limiter, rule, **options):
    from rest_framework.views import APIView  # it needs the settings of Django

    from ratelimit_mw.drf import RateLimitThrottle

    functions = {name: staticmethod(value) if callable(value) else value for name, value in options.items()}
    rate = staticmethod(rule) if callable(rule) else None
    throttle = type("Throttle", (RateLimitThrottle,), {"rate": rate, "scope": None if rate else rule, **functions})

    class Resource(APIView):
        throttle_classes = (throttle,)

        def get(self, request):
            return django_view(request)

        post = get

    def requested(method, headers):
        with override_settings(RATELIMIT=limiter, ROOT_URLCONF=(path("", Resource.as_view()),)):
            return blocking(["/"], headers, method=method)[0]

    return requested


EACH = pytest.mark.parametrize(
    "of",
    [
        pytest.param(of_flask, id="Flask"),
        pytest.param(of_starlette, id="Starlette"),
        pytest.param(of_fastapi, id="FastAPI"),
        pytest.param(of_django(blocking), id="Django"),
        pytest.param(of_django(awaited), id="Django, async"),
        pytest.param(of_rest, id="REST framework"),
    ],
)


def statuses(ask, *requests):
    """The statuses of requests: each a method, or a dict of headers."""
    found = []
    for each in requests:
        method, headers = (each, {}) if isinstance(each, str) else ("GET", each)
        found.append(ask(method, headers).status_code)
    return found


@EACH
@pytest.mark.parametrize("rule", ["2 per minute", "mail"])
def test_only_the_named_methods_are_counted(limiter, of, rule):
    ask = of(limiter, rule, methods=["POST"])
    assert statuses(ask, "GET", "GET", "GET", "POST", "POST", "POST", "GET") == [200] * 5 + [429, 200]


@EACH
def test_head_counts_as_get(limiter, of):
    ask = of(limiter, "1 per minute", methods=["get"])
    assert [status == 429 for status in statuses(ask, "POST", "GET", "HEAD")] == [False, False, True]


@EACH
def test_a_limit_has_the_algorithm_that_it_names(limiter, clock, of):
    ask = of(limiter, "1 per minute", algorithm="fixed_window")
    first, second = ask("GET", {}), ask("GET", {})
    assert (first.status_code, second.status_code) == (200, 429)
    clock.advance(float(second.headers["Retry-After"]))  # to the end of the window; a sliding one would still deny
    assert statuses(ask, "GET") == [200]


@pytest.mark.parametrize("status", [429, 503])
def test_a_throttle_denies_with_the_status_of_the_rules(status):
    with RateLimiter({**RULES, "response": {"status": status}}, storage="memory://") as limiter:
        ask = of_rest(limiter, "mail")
        assert statuses(ask, "GET", "GET", "GET") == [200, 200, status]


async def is_trusted(request):
    return request.headers.get("X-Trusted") == "yes"


def raises(_):
    raise RuntimeError("hunter2")


TRUSTED = {"X-Trusted": "yes"}


@EACH
@pytest.mark.parametrize("rule", ["1 per minute", "mail"])
@pytest.mark.parametrize("when", [is_trusted, lambda request: request.headers.get("X-Trusted") == "yes"])
def test_exempt_requests_are_not_counted(limiter, of, rule, when):
    ask = of(limiter, rule, cost=2 if rule == "mail" else 1, exempt_when=when)
    assert statuses(ask, TRUSTED, TRUSTED, {}, {}, TRUSTED) == [200, 200, 200, 429, 200]


async def is_unauthorized(response):
    return response.status_code in {401, 403, 404}


@EACH
@pytest.mark.parametrize("rule", ["1 per minute", "mail"])
@pytest.mark.parametrize("when", [is_unauthorized, lambda response: response.status_code in {401, 403, 404}])
def test_a_response_that_is_to_be_refunded_is_not_counted(limiter, of, rule, when):
    ask = of(limiter, rule, cost=2 if rule == "mail" else 1, refund_when=when)
    assert statuses(ask, {"X-Status": "401"}, {"X-Status": "401"}, {}, {"X-Status": "401"}) == [401, 401, 200, 429]


@EACH
def test_a_response_of_an_error_handler_may_be_refunded(limiter, of):
    ask = of(limiter, "1 per minute", refund_when=is_unauthorized)
    refunded = statuses(ask, {"X-Status": "504"}, {"X-Status": "504"}, {})
    assert (set(refunded[:2]) <= {403, 404}, refunded[2]) == (True, 200)


@EACH
def test_the_answer_to_a_view_that_raises_may_be_refunded(limiter, of):
    ask = of(limiter, "1 per minute", refund_when=lambda response: response.status_code == 500)
    for _ in range(2):
        with suppress(ValueError):  # the clients of some frameworks pass it on, where a server answers with 500
            assert ask("GET", {"X-Status": "broken"}).status_code == 500
    assert statuses(ask, {}, {}) == [200, 429]


@EACH
def test_a_refund_returns_only_what_its_own_limit_has_charged(limiter, of):
    def refuse(response):
        return response.status_code == 401

    ask = of(limiter, "mail", refund_when=refuse)
    limiter.reset_all()
    assert statuses(ask, {"X-Status": "401"}, {}, {}, {}) == [401, 200, 200, 429]


def test_each_limit_of_a_view_refunds(limiter):
    @in_starlette.limited("1 per minute", refund_when=is_unauthorized)
    @in_starlette.limited("mail", cost=2, refund_when=is_unauthorized)
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse("", status_of(request.headers))

    app = Starlette(routes=[Route("/", endpoint)], middleware=[Middleware(Asgi, limiter=limiter)])
    client = TestClient(from_address(app, "192.0.2.1"))
    found = [client.get("/", headers={"X-Status": status}).status_code for status in ("401", "401", "200", "200")]
    assert found == [401, 401, 200, 429]


def by_plan(request):
    return {"gold": "2 per minute", "none": None}.get(request.headers.get("X-Plan", ""), "1  per minute")


async def by_plan_later(request):
    return by_plan(request)


@EACH
@pytest.mark.parametrize("function", [by_plan, by_plan_later])
def test_a_function_returns_the_limit_of_a_request(limiter, of, function):
    ask = of(limiter, function)
    gold, free = {"X-Plan": "gold"}, {"X-Plan": "none"}
    assert statuses(ask, {}, {}, gold, gold, *[free] * 3) == [200, 429, 200, 429, 200, 200, 200]


@EACH
def test_a_function_that_returns_other_numbers_starts_no_new_counter(limiter, of):
    numbers = iter(range(3, 100))
    ask = of(limiter, lambda _: f"{next(numbers)} per minute")
    assert statuses(ask, *["GET"] * 3) == [200] * 3
    numbers = iter(range(3, 0, -1))
    assert statuses(ask, *["GET"] * 3) == [429] * 3


def test_the_texts_that_a_function_returns_have_bounded_room(limiter):
    ask = of_flask(limiter, lambda request: request.headers["X-Plan"], by="header:X-Client", shared="by-plan")
    ann = {"X-Client": "ann", "X-Plan": "2 per minute"}
    found = statuses(ask, ann, ann)
    for number in range(1_200):
        ask("GET", {"X-Client": "bob", "X-Plan": f"{10_000 + number} per minute"})
    kept = [each for each in gc.get_objects() if type(each) is CompiledRule and each.rule.name == "by-plan"]
    # The limit of Ann's text has been dropped, and is compiled again. Her counter is in the store.
    assert (len(kept) < 1_100, found, statuses(ask, ann)) == (True, [200, 200], [429])


@pytest.mark.parametrize("of", [of_flask, of_starlette, of_fastapi])
def test_a_limit_from_a_function_is_checked_at_the_start(limiter, of):
    with pytest.raises(ConfigurationError, match="there is no attribute 'tenant'"):
        of(limiter, by_plan, by="tenant")("GET", {})


@EACH
def test_a_leaky_bucket_of_a_limit_paces_requests(limiter, of):
    ask = of(limiter, "20 per second", algorithm="leaky_bucket")
    began = time.monotonic()
    found = statuses(ask, *["GET"] * 3)
    # A server with one thread does not wait: only an idle bucket admits.
    assert found == [200, 429, 429] or (found == [200] * 3 and time.monotonic() - began >= 0.1)


UNFIT = "returned a string that is not a limit for this rule"
UNUSABLE = [
    pytest.param(raises, "raised, or returned no string", id="it raises"),
    pytest.param(lambda _: 5, "raised, or returned no string", id="it returns a number"),
    pytest.param(lambda _: None, "raised, or returned no string", id="it returns None"),
    pytest.param(lambda _: "5 per minuet", UNFIT, id="a typing mistake"),
    pytest.param(lambda _: "mail", UNFIT, id="the name of a rule"),
    pytest.param(lambda _: "5 concurrent", UNFIT, id="a concurrent limit"),
    pytest.param(lambda _: f"python:{__name__}:raises", UNFIT, id="the name of a function"),
    pytest.param(lambda _: "hunter2" * 100, UNFIT, id="a long text"),
]


@EACH
@pytest.mark.parametrize(("function", "said"), UNUSABLE)
@pytest.mark.parametrize("on_error", ["allow", "deny"])
def test_without_a_usable_limit_on_error_decides_and_it_is_logged_once(of, function, said, on_error, caplog):
    with RateLimiter({**RULES, "storage": {"on_error": on_error}}, storage="memory://") as limiter:
        assert statuses(of(limiter, function), *["GET"] * 3) == [200 if on_error == "allow" else 429] * 3
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert f"has no limit, because its function {said}" in record.getMessage()
    assert "hunter2" not in caplog.text


@EACH
def test_a_limit_that_reads_as_the_sample_of_functions_is_a_limit(limiter, of, caplog):
    assert statuses(of(limiter, "1000000 per hour"), "GET", "GET") == [200, 200]
    assert not caplog.records


def weight(request):
    return {"many": 3, "none": None, "no": 0, "text": "5", "flag": True, "debt": -1}.get(
        request.headers.get("X-Plan", ""), 1
    )


async def weight_later(request):
    return weight(request)


@EACH
@pytest.mark.parametrize("rule", ["4 per minute", "twice"])
@pytest.mark.parametrize("function", [weight, weight_later])
def test_a_function_returns_the_cost_of_a_request(storage, clock, of, rule, function):
    twice = {"name": "twice", "by": "ip", "limit": "8 per minute", "cost": 2, "on_demand": True}
    with RateLimiter({**RULES, "rules": [twice]}, storage=storage, clock=clock) as limiter:
        ask = of(limiter, rule, cost=function)
        many, free = {"X-Plan": "many"}, {"X-Plan": "no"}
        assert statuses(ask, many, many, free, {}, {}, free) == [200, 429, 200, 200, 429, 200]


@EACH
@pytest.mark.parametrize(
    ("plan", "said"),
    [("none", ""), ("text", "ValueError"), ("flag", "TypeError"), ("debt", "ValueError"), ("raises", "KeyError")],
)
def test_a_cost_that_is_no_whole_number_counts_as_1_and_is_logged_once(limiter, of, plan, said, caplog):
    def cost(request):
        return weight(request) if plan != "raises" else {}[plan]

    asked = {"X-Plan": plan}
    assert statuses(of(limiter, "2 per minute", cost=cost), asked, asked, asked) == [200, 200, 429]
    lines = [record.getMessage() for record in caplog.records if record.name == "ratelimit_mw"]
    assert [f"the cost of a limit counts as 1: {said}" in line for line in lines] == [True] * bool(said)


@EACH
@pytest.mark.parametrize("option", ["exempt_when", "refund_when"])
def test_a_condition_that_raises_is_false_and_logged_once(limiter, of, option, caplog):
    caplog.set_level(logging.WARNING)
    assert statuses(of(limiter, "1 per minute", **{option: raises}), *["GET"] * 3) == [200, 429, 429]
    (line,) = [record.getMessage() for record in caplog.records if option in record.getMessage()]
    assert "counts as false" in line
    assert "hunter2" not in line


def two():
    """A function without an argument, as flask-limiter calls it."""
    return 2


LIMITED = [module.limited for module in (in_flask, in_django, in_fastapi, in_starlette)]


@pytest.mark.parametrize("limited", LIMITED)
@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (
            ["mail"],
            {"algorithm": "fixed_window"},
            ConfigurationError,
            "algorithm belongs to a limit.*in the rules file",
        ),
        (["1 per hour"], {"algorithm": "fixd_window"}, ConfigurationError, r"did you mean 'fixed_window'\?"),
        (["1 per hour"], {"algorithm": 5}, TypeError, "algorithm takes a name, not 5"),
        (
            ["1 per hour"],
            {"methods": ["PSOT"]},
            ConfigurationError,
            r"methods\[0\]: 'PSOT' is not an HTTP method.*'POST'",
        ),
        (["1 per hour"], {"methods": "HEAD"}, ConfigurationError, "HEAD requests are counted with GET"),
        (["mail"], {"exempt_when": True}, TypeError, "exempt_when takes a function that gets the request, not"),
        (["mail"], {"refund_when": 401}, TypeError, "refund_when takes a function that gets the response, not 401"),
        (["1 per hour"], {"key": two}, TypeError, "key takes a function that gets the request, not <function two"),
        (["1 per hour"], {"cost": two}, TypeError, "cost takes a function that gets the request, not <function two"),
        ([two], {}, TypeError, "limit takes a function that gets the request, not <function two"),
        (["mail"], {"excempt_when": by_plan}, TypeError, "limited has no option 'excempt_when'; known: by, algorithm"),
        ([by_plan], {"by": "usr|"}, ConfigurationError, "an attribute is missing"),
    ],
)
def test_an_option_that_cannot_be_is_refused_where_it_is_written(limited, arguments, options, error, message):
    with pytest.raises(error, match=message):
        limited(*arguments, **options)


@pytest.mark.parametrize("limited", [module.limited for module in (in_flask, in_django, in_starlette)])
def test_what_is_no_view_is_refused(limited):
    """In flask-limiter, a blueprint can be decorated."""
    with pytest.raises(TypeError, match="limited decorates views, not <Blueprint"):
        limited("5 per minute")(Blueprint("shop", __name__))


def test_a_route_that_comes_later_cannot_refund(limiter):
    @in_starlette.limited("mail", refund_when=is_unauthorized)
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse("")

    app = Starlette(middleware=[Middleware(Asgi, limiter=limiter)])
    with TestClient(from_address(app, "192.0.2.1")) as client:
        app.router.routes.append(Route("/", endpoint))
        with pytest.raises(RuntimeError, match="add the route before"):
            client.get("/")


def test_a_route_in_an_app_that_a_function_hides_cannot_refund(limiter):
    @in_starlette.limited("mail", refund_when=is_unauthorized)
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse("")

    app = Starlette(routes=[Route("/", endpoint)])

    async def around(scope, receive, send):
        await app(scope, receive, send)

    with (
        TestClient(from_address(Asgi(around, limiter=limiter), "192.0.2.1")) as client,
        pytest.raises(RuntimeError, match="must have the app in its attribute `app`"),
    ):
        client.get("/")
