"""Limits in decorators and dependencies: `@limited("5 per minute")`, in each framework, on memory and on Redis."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Annotated

import pytest
from django.core.checks import run_checks
from django.http import HttpResponse
from django.test.utils import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from fastapi import APIRouter, Depends, FastAPI
from fastapi.testclient import TestClient
from flask import Flask
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import ConfigurationError, Decision, RateLimiter
from ratelimit_mw import django as in_django
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.http.limits_in_code import name_of_view
from ratelimit_mw.rules.inline import InlineLimit, InlineLimits
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.inside.clients import from_address
from tests.inside.test_django_middleware import awaited, blocking

HERE = "tests.inside.test_inline"
SECTIONS = {"domain": "inline", "storage": {"timeout": "5s"}, "client": {"user": "header:X-User", "secret": "x"}}
RULES = {**SECTIONS, "rules": [{"name": "elsewhere", "match": {"path": "/elsewhere"}, "limit": "9 per hour"}]}


@pytest.fixture
def limiter(storage, clock):
    with RateLimiter(RULES, storage=storage, clock=clock) as made:
        yield made


def served(limiter, **views):
    """A Flask app with these views, each at its name."""
    app = Flask("inline", root_path="/")
    app.testing = True  # a view's exception reaches the client
    for name, view in views.items():
        app.add_url_rule(f"/{name}", name, view)
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
    return app.test_client()


def statuses(client, *paths, **headers):
    return [client.get(path, headers=headers).status_code for path in paths]


@in_flask.limited("2 per minute")
def mail():
    return "sent"


@in_flask.limited("2 per minute")
def sms():
    return "sent"


@in_flask.limited("10 per hour", by="user|ip", cost=2)
@in_flask.limited("3/minute")
def stacked():
    return "sent"


@in_flask.limited("2 per minute", by="user", shared="post")
def letter():
    return "sent"


@in_flask.limited("2 per minute", by="user", shared="post")
async def parcel():
    return "sent"


class Fax(MethodView):
    decorators = (in_flask.limited("1 per minute"),)

    def get(self):
        return "sent"


def test_a_flask_view_has_the_limit_of_its_decorator_and_its_headers(limiter, clock):
    client = served(limiter, mail=mail, sms=sms)
    answers = [client.get("/mail") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert answers[2].headers["Retry-After"] == "70"  # a sliding window: 40 s to its end, and half of the next
    assert statuses(client, "/sms", "/mail") == [200, 429]
    clock.advance(120)
    assert statuses(client, "/mail") == [200]


def test_stacked_limits_all_count_and_each_by_its_own_words(limiter, clock):
    client = served(limiter, stacked=stacked)
    assert statuses(client, *["/stacked"] * 4, **{"X-User": "ann"}) == [200, 200, 200, 429]
    assert statuses(client, "/stacked", **{"X-User": "bob"}) == [429]  # the inner limit counts by address
    clock.advance(120)
    answers = [client.get("/stacked", headers={"X-User": "ann"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]  # the fourth, and the fifth of two each
    names = [rule.rule.name for rule in limiter.rules.parts[0].inline.rules.values()]
    assert sorted(names) == [f"{HERE}:stacked[1]", f"{HERE}:stacked[2]"]
    assert answers[1].json is not None


def test_views_with_a_shared_limit_share_its_counters_and_absent_users_are_not_counted(limiter):
    client = served(limiter, letter=letter, parcel=parcel)
    assert statuses(client, "/letter", "/parcel", "/letter", **{"X-User": "ann"}) == [200, 200, 429]
    assert statuses(client, "/parcel", **{"X-User": "bob"}) == [200]
    assert statuses(client, *["/parcel"] * 3) == [200, 200, 200]


def test_a_class_of_flask_views_is_named_by_its_endpoint(limiter):
    client = served(limiter, fax=Fax.as_view("fax"))
    assert statuses(client, "/fax", "/fax") == [200, 429]
    assert [rule.rule.name for rule in limiter.rules.parts[0].inline.rules.values()] == [f"{HERE}:fax[1]"]


def test_a_limit_keeps_its_counters_over_a_restart(any_server, clock):
    for expected in (200, 200, 429):
        with RateLimiter(RULES, storage=any_server.url, clock=clock) as limiter:
            assert statuses(served(limiter, mail=mail), "/mail") == [expected]


def test_two_apps_with_two_limiters_have_counters_of_their_own(clock):
    with (
        RateLimiter(RULES, storage="memory://", clock=clock) as one,
        RateLimiter({**RULES, "domain": "other"}, storage="memory://", clock=clock) as two,
    ):
        clients = [served(limiter, mail=mail) for limiter in (one, two)]
        assert [statuses(client, "/mail", "/mail", "/mail") for client in clients] == [[200, 200, 429]] * 2


def test_a_reload_keeps_the_limits_and_their_counters(tmp_path, clock):
    text = "domain: inline\nstorage: {timeout: 5s}\nreload: off\nrules: [{name: a, match: {path: /a}, limit: 9/hour}]\n"
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with RateLimiter(file, storage="memory://", clock=clock) as limiter:
        client = served(limiter, mail=mail)
        assert statuses(client, "/mail") == [200]
        file.write_text(text.replace("9/hour", "8/hour"))
        limiter.reload()
        compiled = list(limiter.rules.parts[0].inline.rules.values())
        assert [rule.rule.name for rule in compiled] == [f"{HERE}:mail[1]"]  # by the reload, not by a request
        assert statuses(client, "/mail", "/mail") == [200, 429]
        assert list(limiter.rules.parts[0].inline.rules.values()) == compiled


def test_a_reload_that_makes_a_limit_unusable_is_refused(tmp_path):
    text = "domain: inline\nreload: off\nattributes: {tenant: 'header:X-Tenant'}\nrules: [{name: a, limit: 99/hour}]\n"
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with RateLimiter(file, storage="memory://") as limiter:
        client = served(limiter, view=in_flask.limited("1 per year", by="tenant")(lambda: "x"))
        assert statuses(client, "/view", "/view", **{"X-Tenant": "t"}) == [200, 429]
        for changed in (text.replace("attributes", "# "), text.replace("name: a", "name: post")):
            file.write_text(changed)
            if "post" in changed:
                served(limiter, letter=letter).get("/letter", headers={"X-User": "ann"})
            with pytest.raises(ConfigurationError, match=r"there is no attribute 'tenant'|the name of the rule 'post'"):
                limiter.reload()
        assert statuses(client, "/view", **{"X-Tenant": "t"}) == [429]


def test_a_shared_limit_with_the_name_of_a_rule_of_another_domain_is_refused(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\nrules: [{{name: of-{name}, limit: 9 per hour}}]\n")
    view = in_flask.limited("1 per hour", shared="of-two")(lambda: "x")
    with (
        RateLimiter(tmp_path) as limiter,
        pytest.raises(ConfigurationError, match="in the code has the name of the rule 'of-two'"),
    ):
        served(limiter, view=view)


@pytest.mark.parametrize(("word", "expected"), [("off", [200, 200, 200]), ("shadow", [200, 200, 200])])
def test_the_kill_switch_also_holds_for_inline_limits(limiter, word, expected):
    client = served(limiter, mail=mail)
    limiter.switch.set(word)
    assert statuses(client, "/mail", "/mail", "/mail") == expected


def test_an_explanation_lists_the_limits_that_were_asked_for(limiter):
    served(limiter, mail=mail).get("/mail")
    listed = {rule.name: rule.why for rule in limiter.explain({"ip": "192.0.2.1", "path": "/mail"}).rules}
    assert listed[f"{HERE}:mail[1]"] == "it applies only when the app asks for it by name"


def test_a_denial_is_logged_with_the_name_of_the_limit(limiter, caplog):
    caplog.set_level(logging.INFO, "ratelimit_mw.denials")
    statuses(served(limiter, mail=mail), *["/mail"] * 3)
    (record,) = [record for record in caplog.records if record.name == "ratelimit_mw.denials"]
    assert (record.rule, record.limit, record.identity) == (f"{HERE}:mail[1]", 2, "ip=127.0.0.1")


TEXTS = [
    ("5 per minuet", {}, r"limited\('5 per minuet'\): 'minuet' is not a unit of time \(did you mean 'minute'\?\)"),
    ("5permin", {}, "'5permin' is not a limit"),
    ("2fa", {}, "'2fa' is not a limit"),
    ("10 per hour and 5 per minute", {}, r"did you mean '10 per hour; 5 per minute'\?"),
    (
        "5 concurrent",
        {"algorithm": "fixed_window"},
        "a concurrent limit needs algorithm: concurrency",
    ),
    ("10 per hour", {"cost": 11}, "a cost of 11 can never fit into a limit of 10"),
    ("10 per hour", {"by": "ip, user"}, r"write \[ip, user\] for two counters"),
    ("10 per hour", {"by": []}, "by must not be empty"),
    ("10 per hour", {"by": ""}, "an attribute is missing"),
    ("10 per hour", {"shared": ""}, "name: must not be empty"),
    ("mail", {"by": "ip"}, "by belongs to a limit, but 'mail' is the name of a rule"),
    ("mail", {"shared": "x"}, "all views that name a rule share it"),
]


@pytest.mark.parametrize(("text", "words", "message"), TEXTS)
@pytest.mark.parametrize("limited", [module.limited for module in (in_flask, in_django, in_fastapi, in_starlette)])
def test_a_limit_that_cannot_be_used_is_refused_where_it_is_declared(limited, text, words, message):
    with pytest.raises(ConfigurationError, match=message):
        limited(text, **words)


@pytest.mark.parametrize(("text", "words"), [(5, {}), ("5 per hour", {"by": 5}), ("5 per hour", {"shared": 5})])
def test_an_argument_of_another_type_is_a_type_error(text, words):
    with pytest.raises(TypeError):
        in_flask.limited(text, **words)


def test_a_limit_that_counts_by_an_unknown_attribute_is_refused_at_the_start(limiter):
    view = in_flask.limited("5 per hour", by="tenant")(lambda: "x")
    with pytest.raises(ConfigurationError, match=r"<lambda>\[1\]: by\[0\]: there is no attribute 'tenant'"):
        served(limiter, view=view)


def made(limit, **words):
    @in_flask.limited(limit, **words)
    def view():
        return "x"

    return view


@pytest.mark.parametrize("limits", [("1 per hour", "1 per hour"), ("1 per hour", "2 per hour")])
def test_two_views_that_cannot_be_told_apart_are_refused_at_the_start(limiter, limits):
    one, two = map(made, limits)
    with pytest.raises(ConfigurationError, match=r"two limits have the same name '\S+made.<locals>.view\[1\]'"):
        served(limiter, one=one, two=two)


def test_one_view_with_two_addresses_has_one_counter(limiter):
    assert statuses(served(limiter, one=mail, two=mail), "/one", "/two", "/one") == [200, 200, 429]


def test_two_limits_that_are_shared_under_one_name_must_be_equal(limiter):
    with pytest.raises(ConfigurationError, match="two limits are shared as 'x', but they differ: '1 per hour' and '2"):
        served(limiter, one=made("1 per hour", shared="x"), two=made("2 per hour", shared="x"))
    with pytest.raises(ConfigurationError, match="has the name of the rule 'elsewhere'"):
        served(limiter, one=made("1 per hour", shared="elsewhere"))


class Meeting:
    """A compiler in which two threads meet, so that each declares its limit while the other does."""

    def __init__(self, compiler):
        self.compiler = compiler
        self.both = threading.Barrier(2)

    def inline(self, limit):
        self.both.wait(30)
        return self.compiler.inline(limit)


@pytest.mark.parametrize(
    ("texts", "refused"), [(("5 per hour", "5 per hour"), 0), (("5 per hour", "6 per hour"), 1)], ids=["one", "two"]
)
def test_two_threads_that_declare_a_name_at_once_make_one_rule_and_a_different_limit_is_refused(texts, refused):
    named = {}
    with RateLimiter({"domain": "shop", "rules": []}) as limiter:
        limits = InlineLimits(named, set(), Meeting(limiter.rules.parts[0].recompiler))
    with ThreadPoolExecutor(2) as pool:
        declared = [pool.submit(limits.declare, InlineLimit("mail", text, shared=True)) for text in texts]
        errors = [error for each in declared if (error := each.exception(30))]
    assert [type(error) for error in errors] == [ConfigurationError] * refused
    assert list(limits.rules.values()) == list(named.values())
    assert len(named) == 1


def test_a_view_that_is_added_later_is_limited_and_a_bad_one_fails_alone(limiter):
    client = served(limiter, mail=mail)
    app = client.application
    app.add_url_rule("/late", "late", made("1 per hour"))
    app.add_url_rule("/bad", "bad", in_flask.limited("1 per hour", by="tenant")(lambda: "x"))
    assert statuses(client, "/late", "/late", "/mail") == [200, 429, 200]
    with pytest.raises(ConfigurationError, match="'tenant'"):
        client.get("/bad")


def test_an_app_that_is_made_twice_may_have_another_limit_the_second_time(clock):
    for limit, expected in (("1 per hour", [200, 429]), ("2 per hour", [200, 200])):
        with RateLimiter(RULES, storage="memory://", clock=clock) as limiter:
            assert statuses(served(limiter, view=made(limit)), "/view", "/view") == expected


def test_no_limit_counts_until_the_rules_database_has_been_read():
    rules = {"domain": "inline", "rules": {"source": "redis://127.0.0.1:9"}}
    with RateLimiter(rules, storage="memory://") as limiter:
        assert statuses(served(limiter, mail=mail), *["/mail"] * 3) == [200, 200, 200]


Twice = Annotated[Decision, Depends(in_fastapi.limited("2 per minute"))]


async def read(decision: Twice) -> int | None:
    return decision.remaining


async def write() -> str:
    return "written"


async def both(decision: Twice) -> str | None:
    return decision.rule


def fastapi_app(limiter, add=in_fastapi.add_rate_limits):
    app = FastAPI()
    add(app, limiter=limiter)
    app.get("/read")(read)
    shop = APIRouter(prefix="/shop", dependencies=[Depends(in_fastapi.limited("2 per minute"))])
    shop.get("/write", dependencies=[Depends(in_fastapi.limited("3 per hour", by="user|ip"))])(write)
    shop.get("/both")(both)
    app.include_router(shop)
    app.get("/post", dependencies=[Depends(in_fastapi.limited("2 per minute", by="user", shared="post"))])(read)
    return app


@pytest.mark.parametrize(
    "add", [in_fastapi.add_rate_limits, lambda app, limiter: app.add_middleware(Asgi, limiter=limiter)]
)
def test_a_dependency_limits_each_endpoint_by_itself(limiter, clock, add):
    with TestClient(from_address(fastapi_app(limiter, add), "192.0.2.1")) as client:
        answers = [client.get("/read") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert [answer.headers.get("X-RateLimit-Remaining") for answer in answers] == ["1", "0", "0"]
        assert statuses(client, *["/shop/write"] * 3) == [200, 200, 429]
        assert client.get("/shop/both").json() == f"{HERE}:both[2 per minute]"
        assert statuses(client, *["/shop/both"] * 2) == [200, 429]  # the router's limit and its own are one
        clock.advance(120)
        assert statuses(client, "/shop/write", "/shop/write") == [200, 429]  # three per hour
        clock.advance(120)
        assert statuses(client, "/shop/write", **{"X-User": "ann"}) == [200]


def test_endpoints_share_a_shared_limit_with_the_views_of_flask(limiter):
    with TestClient(from_address(fastapi_app(limiter), "192.0.2.1")) as client:
        assert statuses(client, "/post", **{"X-User": "ann"}) == [200]
        flask = served(limiter, letter=letter)
        assert statuses(flask, "/letter", "/letter", **{"X-User": "ann"}) == [200, 429]


def test_the_openapi_document_describes_the_denials_of_inline_limits(limiter):
    paths = fastapi_app(limiter).openapi()["paths"]
    assert {path for path, item in paths.items() if "429" in item["get"]["responses"]} == paths.keys()


def closure():
    async def endpoint() -> str:
        return "x"

    return endpoint


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("/a", closure(), {}), ("/b", closure(), {})),
        (("/a", write, {}), ("/b", write, {"cost": 2})),
        (("/a", read, {"shared": "x"}), ("/b", read, {"shared": "x", "by": "user"})),
    ],
)
def test_a_fastapi_app_does_not_start_with_limits_that_cannot_be_told_apart(limiter, one, two):
    app = FastAPI()
    for path_, endpoint, words in (one, two):
        app.get(path_, dependencies=[Depends(in_fastapi.limited("5 per hour", **words))])(endpoint)
    in_fastapi.add_rate_limits(app, limiter=limiter)
    with pytest.raises(ConfigurationError, match="two limits"), TestClient(app):
        pass


def test_a_fastapi_app_does_not_start_with_a_limit_by_an_unknown_attribute(limiter):
    app = FastAPI(dependencies=[Depends(in_fastapi.limited("5 per hour", by="tenant"))])
    app.get("/")(read)
    in_fastapi.add_rate_limits(app, limiter=limiter)
    with pytest.raises(ConfigurationError, match="there is no attribute 'tenant'"), TestClient(app):
        pass


@in_starlette.limited("2 per minute")
@in_starlette.limited("3 per hour", by="user|ip")
async def endpoint(request):
    return PlainTextResponse("endpoint")


@in_starlette.limited("2 per minute")
class Base(HTTPEndpoint):
    async def get(self, request):
        return PlainTextResponse("base")


class Derived(Base):
    @in_starlette.limited("1 per minute")
    async def get(self, request):
        return PlainTextResponse("derived")


def starlette_app(limiter, **endpoints):
    routes = [Route(f"/{name}", found) for name, found in endpoints.items()]
    return from_address(Starlette(routes=routes, middleware=[Middleware(Asgi, limiter=limiter)]), "192.0.2.1")


def test_endpoints_of_starlette_have_the_limits_of_their_decorators(limiter):
    with TestClient(starlette_app(limiter, endpoint=endpoint, base=Base, derived=Derived)) as client:
        assert {rule.rule.name.removeprefix(f"{HERE}:") for rule in limiter.rules.parts[0].inline.rules.values()} == {
            "endpoint[1]",
            "endpoint[2]",
            "Base[1]",
            "Derived[1]",
            "Derived.get[1]",
        }
        assert statuses(client, *["/endpoint"] * 3) == [200, 200, 429]
        assert statuses(client, *["/base"] * 3) == [200, 200, 429]
        assert statuses(client, *["/derived"] * 2) == [200, 429]  # each class has counters of its own


def test_a_starlette_app_does_not_start_with_a_limit_by_an_unknown_attribute(limiter):
    bad = in_starlette.limited("5 per hour", by="tenant")(lambda request: None)
    with pytest.raises(ConfigurationError, match="there is no attribute 'tenant'"):
        TestClient(starlette_app(limiter, bad=bad)).__enter__()


@in_django.limited("2 per minute")
@in_django.limited("3 per hour", by="user|ip")
def plain(request):
    return HttpResponse("plain")


@in_django.limited("2 per minute")
async def asynchronous(request):
    return HttpResponse("asynchronous")


@method_decorator(in_django.limited("1 per minute"), name="dispatch")
class One(View):
    def get(self, request):
        return HttpResponse("one")


class Two(One):
    @method_decorator([in_django.limited("3 per minute"), in_django.limited("2 per minute")])
    def get(self, request):
        return HttpResponse("two")


@method_decorator(in_django.limited("2 per minute"), name="dispatch")
class Three(View):
    @method_decorator(in_django.limited("1 per minute"))
    def post(self, request):
        return HttpResponse("posted")

    def get(self, request):
        return HttpResponse("got")


urlpatterns = [
    path("plain", plain),
    path("asynchronous", asynchronous),
    path("one", One.as_view()),
    path("two", Two.as_view()),
    path("three", Three.as_view()),
    path("four", in_django.limited("1 per minute")(Three.as_view())),
]


@pytest.mark.parametrize("ask", [blocking, awaited])
def test_django_views_have_the_limits_of_their_decorators(limiter, ask):
    def found(*paths):
        return [answer.status_code for answer in ask([f"/{path}" for path in paths])]

    with override_settings(RATELIMIT=limiter, ROOT_URLCONF=HERE):
        assert found(*["plain"] * 3, *["asynchronous"] * 3) == [200, 200, 429] * 2
        assert found("one", "one", "two", "two", "three", "three", "three") == [200, 429, 200, 429, 200, 200, 429]
        assert [answer.headers["X-RateLimit-Limit"] for answer in ask(["/asynchronous", "/three"])] == ["2", "2"]
    names = {rule.rule.name.removeprefix(f"{HERE}:") for rule in limiter.rules.parts[0].inline.rules.values()}
    assert {"plain[1]", "plain[2]", "One.dispatch[1]", "Two.dispatch[1]", "Two.get[1]", "Three.dispatch[1]"} <= names


def problems_of_the_project():
    """What our part of `manage.py check` reports."""
    return [error.msg for error in run_checks() if str(error.id).startswith("ratelimit_mw")]


def test_the_system_check_of_django_reports_limits_that_cannot_be_used(limiter):
    bad = in_django.limited("1 per hour", by="nothing_like_it")(lambda request: None)
    with override_settings(RATELIMIT=limiter, ROOT_URLCONF=(path("bad", bad),)):
        found = problems_of_the_project()
    assert any("there is no attribute 'nothing_like_it'" in message for message in found)


def test_a_limit_that_is_in_no_url_configuration_changes_no_limiter(limiter):
    in_django.limited("1 per hour", shared="of no route")(lambda request: None)
    with override_settings(RATELIMIT=limiter, ROOT_URLCONF=(path("plain", plain),)):
        assert problems_of_the_project() == []
        blocking(["/plain"])
    names = [rule.name for rule in limiter.explain({"ip": "192.0.2.1"}).rules]
    assert sorted(names) == ["elsewhere", f"{HERE}:plain[1]", f"{HERE}:plain[2]"]


def test_an_inline_limit_of_one_app_changes_no_limiter_of_another(clock):
    with (
        RateLimiter(RULES, storage="memory://", clock=clock) as one,
        RateLimiter({**RULES, "domain": "other"}, storage="memory://", clock=clock) as two,
    ):
        before = exposed(two)
        assert statuses(served(one, mail=mail), "/mail", "/mail", "/mail") == [200, 200, 429]
        assert exposed(two) == before


def exposed(limiter):
    """What an operator sees of a limiter: its explanation of a request and its counts."""
    return str(limiter.explain({"ip": "192.0.2.1", "path": "/mail"})), limiter.tally.snapshot()


def renamed(view):
    @wraps(view)
    def inner():
        return view()

    return inner


class Endpoint:
    def __call__(self):
        return ""


@pytest.mark.parametrize(
    ("view", "name"),
    [
        (write, "write"),
        (renamed(write), "write"),
        (Endpoint(), "Endpoint"),
        (Endpoint().__call__, "Endpoint.__call__"),
        (Two.as_view(), "Two"),
    ],
)
def test_a_view_is_named_by_its_module_and_its_qualified_name(view, name):
    assert name_of_view(view) == f"{HERE}:{name}"
