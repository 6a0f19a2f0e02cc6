"""The middleware for Django in this process: how it awaits, what stands around it, and what the settings may say."""

import asyncio
import gc
import logging
import weakref
from contextlib import contextmanager
from wsgiref.util import setup_testing_defaults

import django
import httpx
import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings as django_conf
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.test.utils import override_settings
from django.urls import path

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.django import limited
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.inside import django_app, django_settings
from tests.inside.rules import DENIED, WHO
from tests.inside.test_django import CLASSES
from tests.shells.asking import START, http_scope
from tests.support.patience import aeventually, eventually

GET_ASGI, GET_WSGI = django_app.get_asgi_application, django_app.get_wsgi_application


@contextmanager
def settings(limiter):
    with override_settings(RATELIMIT=limiter):
        yield limiter


@pytest.fixture
def engine():
    """The engine of these rules, beside those of the project's own settings, while the test lasts."""
    with RateLimiter(django_settings.RATELIMIT, storage="memory://") as limiter, settings(limiter):
        yield limiter


@pytest.fixture
def engine_of():
    made = []

    def make(*rules, **sections):
        config = {"domain": "other", "rules": [{**WHO, **rule} for rule in rules], **sections}
        made.append(RateLimiter(config, storage="memory://", clock=ManualClock(START)))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def awaited(paths, headers=None, app=None, method="GET"):
    """The answers of the project under ASGI, one after the other."""

    async def main():
        transport = httpx.ASGITransport(app or GET_ASGI())
        async with httpx.AsyncClient(transport=transport, base_url="http://app", headers=headers) as client:
            return [await client.request(method, path) for path in paths]

    return asyncio.run(main())


def blocking(paths, headers=None, app=None, method="GET"):
    with httpx.Client(
        transport=httpx.WSGITransport(app or GET_WSGI()), base_url="http://app", headers=headers
    ) as client:
        return [client.request(method, path) for path in paths]


EACH = pytest.mark.parametrize("ask", [pytest.param(awaited, id="ASGI"), pytest.param(blocking, id="WSGI")])


@pytest.mark.parametrize("path", ["/mail", "/awaited/ann", "/rest/function"])
@EACH
def test_a_decorated_view(engine, me, ask, path):
    answers = ask([path] * 3, me)
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert answers[-1].json() == DENIED


@EACH
@pytest.mark.parametrize("path", [*CLASSES, "/decorated/class", "/throttled/class", "/throttled/function"])
def test_class_based_views_and_throttles(engine, me, ask, path):
    answers = ask([path] * 3, me)
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert answers[-1].headers["Retry-After"]


@pytest.mark.parametrize(("around", "ask"), [(Asgi, awaited), (Wsgi, blocking)], ids=["ASGI", "WSGI"])
def test_a_throttle_under_a_middleware_around_the_project_shows_its_own_limit(engine, me, around, ask):
    app = around(GET_ASGI() if around is Asgi else GET_WSGI(), limiter=engine)
    answers = ask(["/throttled/class"] * 3, me, app)
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["X-RateLimit-Limit"] for answer in answers] == ["2"] * 3


@pytest.mark.parametrize(
    ("rule", "storage", "status"),
    [
        pytest.param({"limit": "0 per hour", "response": {"status": 403}}, "memory://", 403, id="a status of its own"),
        pytest.param({"limit": "1 per hour", "on_error": "deny"}, "redis://127.0.0.1:9", 503, id="the store is away"),
    ],
)
@EACH
def test_a_throttle_answers_with_the_status_of_the_denial(me, ask, rule, storage, status):
    config = {"domain": "other", "rules": [{"name": "mail", "on_demand": True, **rule}]}
    with RateLimiter(config, storage=storage) as limiter, settings(limiter):
        (denied,) = ask(["/throttled/class"], me)
    assert denied.status_code == status
    assert denied.json()["detail"].startswith("Request was throttled.")
    assert denied.headers.get("Retry-After") == ("1" if status == 503 else None)


class Hourly(django_app.RateLimitThrottle):
    scope = "hourly"


class Daily(django_app.RateLimitThrottle):
    scope = "daily"


class DailyAndHourly(django_app.Rest):
    throttle_classes = (Daily, Hourly)


urlpatterns = [path("both", DailyAndHourly.as_view())]


@EACH
def test_of_two_throttles_that_deny_the_response_has_the_headers_of_the_longer_wait(me, ask):
    rules = [
        {"name": name, "by": "ip", "on_demand": True, "limit": limit, "algorithm": "fixed_window"}
        for name, limit in (("daily", "1 per 90 days"), ("hourly", "2 per 10 days"))
    ]
    with (
        RateLimiter({"domain": "other", "rules": rules}, storage="memory://", clock=ManualClock(START)) as limiter,
        settings(limiter),
        override_settings(ROOT_URLCONF=__name__),
    ):
        *_, denied = ask(["/both"] * 3, me)
    assert (denied.status_code, denied.headers["X-RateLimit-Limit"]) == (429, "1")
    assert int(denied.headers["Retry-After"]) > 10 * 24 * 3600


def with_a_date(context, decision):
    return 429, {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}, "later"


@EACH
def test_a_throttle_keeps_a_date_that_a_handler_sets(me, ask):
    rule = {"name": "mail", "on_demand": True, "limit": "0 per hour"}
    handler = {"handler": "python:tests.inside.test_django_middleware:with_a_date"}
    with RateLimiter({"domain": "other", "rules": [rule], "response": handler}) as limiter, settings(limiter):
        (denied,) = ask(["/throttled/class"], me)
    assert (denied.status_code, denied.json()) == (429, {"detail": "Request was throttled."})
    assert denied.headers["Retry-After"] == "Fri, 31 Dec 2100 23:59:59 GMT"


@EACH
def test_a_user_that_the_rules_read_from_a_header_takes_the_place_of_the_project_s(me, ask):
    rule = {"name": "all", "by": "user", "limit": "1 per 10 years"}
    config = {"domain": "other", "client": {"user": "header:X-User", "secret": "x"}, "rules": [rule]}
    with RateLimiter(config, storage="memory://") as limiter, settings(limiter):
        statuses = [ask(["/free"] * 2, {"X-User": name, **me}) for name in ("ann", "bob")]
    assert [[answer.status_code for answer in answers] for answers in statuses] == [[200, 429]] * 2


def with_headers(context, decision):
    return 429, {"Set-Cookie": "a=1; Path=/cart", "X-Why": "limit", "Content-Type": "text/csv"}, "no"


@pytest.mark.parametrize("path", ["/free", "/mail", "/throttled/class"])
@EACH
def test_a_denial_has_the_headers_of_a_handler(me, ask, path):
    rules = [{"name": "mail", "on_demand": True, "limit": "0 per hour"}]
    if path == "/free":
        rules = [{"name": "all", "limit": "0 per hour"}]
    handler = {"handler": "python:tests.inside.test_django_middleware:with_headers"}
    with RateLimiter({"domain": "other", "rules": rules, "response": handler}) as limiter, settings(limiter):
        (denied,) = ask([path], me)
    assert denied.status_code == 429
    assert (denied.headers["Set-Cookie"], denied.headers["X-Why"]) == ("a=1; Path=/cart", "limit")
    assert denied.headers["Content-Type"] == ("application/json" if "throttled" in path else "text/csv")


@EACH
def test_a_throttle_and_a_decorated_class_allow_everything_without_rules(me, ask):
    with settings(None):
        answers = ask(["/throttled/away", "/throttled/misspelt", *["/awaited-class"] * 3], me)
    assert [answer.status_code for answer in answers] == [200] * 5


def test_a_scope_that_is_no_rule_is_a_lookup_error(engine, me, caplog):
    assert [answer.status_code for answer in blocking(["/throttled/misspelt"], me)] == [500]
    (error,) = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert isinstance(error, LookupError)
    assert "the rule 'mial', which does not exist (did you mean 'mail'?)" in str(error)


def test_a_throttle_without_the_middleware_says_what_is_missing(me):
    request = RequestFactory().get("/")
    with pytest.raises(RuntimeError, match=r"'mail' cannot be used: add 'ratelimit_mw\.django\.RateLimitMiddleware'"):
        django_app.Throttled.as_view()(request)


def test_what_cannot_be_decorated_is_a_type_error():
    with pytest.raises(TypeError, match="subclasses of View, not <class 'dict'>"):
        limited("mail")(dict)


@EACH
def test_its_own_denial_and_what_counts(engine, me, ask):
    answers = ask(["/login?status=200", *["/login?status=401"] * 3], me)
    assert [answer.status_code for answer in answers] == [200, 401, 401, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["2", "1", "0", "0"]


@pytest.mark.parametrize("path", ["/slots/whole", "/slots/stream"])
@EACH
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous")
def test_what_is_in_flight(engine, me, ask, path):
    assert [answer.status_code for answer in ask([path] * 3, me)] == [200] * 3


def test_a_stream_that_is_awaited(engine, me):
    assert [answer.status_code for answer in awaited(["/slots/awaited"] * 3, me)] == [200] * 3


@pytest.mark.parametrize("path", ["/by-hand", "/awaited-by-hand"])
@EACH
def test_by_hand(engine, me, ask, path):
    (answer,) = ask([path], me)
    assert (answer.json(), answer.headers["X-RateLimit-Remaining"]) == ({"left": 1}, "7")


@EACH
def test_a_user(engine, ask):
    answers = ask(["/rest/class", "/rest/set", "/rest/class"], {"Authorization": "Token abc"})
    assert [answer.status_code for answer in answers] == [200, 200, 429]


@EACH
def test_nobody_is_asked_for_a_user_whom_no_rule_wants(engine_of, me, ask, caplog):
    with settings(engine_of({"name": "all", "limit": "1 per hour"})), caplog.at_level(logging.WARNING):
        answers = ask(["/free", "/free"], {"Authorization": "Token broken", **me})
    assert [answer.status_code for answer in answers] == [200, 429]
    assert "the user of a request" not in caplog.text


@EACH
def test_headers_that_are_not_wanted(engine_of, me, ask):
    with settings(engine_of({"name": "all", "limit": "1 per hour"}, response={"headers": []})):
        passed, denied = ask(["/free", "/free"], me)
    assert (passed.status_code, denied.status_code) == (200, 429)
    assert not {"x-ratelimit-limit", "retry-after"} & {*passed.headers, *denied.headers}


def test_what_is_deferred_is_denied_here_and_said_so(any_server, me, caplog):
    rule = {"name": "r", **WHO, "limit": "1 per hour", "on_limit": "defer"}
    config = {"domain": "d", "storage": {"timeout": "5s"}, "rules": [rule]}
    with RateLimiter(config, storage=any_server.url) as limiter, settings(limiter):
        assert [answer.status_code for answer in blocking(["/free", "/free"], me)] == [200, 429]
    assert "RateLimitMiddleware denies these requests" in caplog.text


@EACH
def test_a_queue(engine_of, me, ask):
    with settings(engine_of({"name": "queue", "limit": "20 per second", "algorithm": "leaky_bucket", "burst": 2})):
        assert [answer.status_code for answer in ask(["/free", "/free", "/free"], me)] == [200, 200, 429]


@EACH
def test_an_elastic_limit_and_a_store_that_is_away(engine_of, me, ask):
    elastic = {"name": "e", "limit": "2 per hour", "throttle": {"elastic": {"up_to": "200%", "below": 0.7}}}
    with settings(engine_of(elastic, load="python:tests.inside.test_django_middleware:idle")):
        answers = ask(["/free"] * 5, me)
    assert [answer.headers.get("X-RateLimit-Over") for answer in answers] == [None, None, "elastic", "elastic", None]
    assert answers[-1].status_code == 429
    config = {"domain": "d", "rules": [{"name": "r", "limit": "1/s", "on_error": "deny"}]}
    with RateLimiter(config, storage="redis://127.0.0.1:9") as limiter, settings(limiter):
        (away,) = ask(["/free"], me)
    assert (away.status_code, away.headers["Retry-After"]) == (503, "1")


def test_a_thread_is_busy_as_long_as_it_streams(engine_of, me):
    elastic = {"name": "e", "limit": "9 per hour", "throttle": {"elastic": {"up_to": "200%", "below": 0.7}}}
    with settings(engine_of(elastic)) as engine:
        meter, app = engine.engine.planner.meter(engine.rules), GET_WSGI()
        environ = {"PATH_INFO": "/slots/stream"}
        setup_testing_defaults(environ)
        body = app(environ, lambda status, headers: None)
        assert blocking(["/free"], me, app)[0].status_code == 200
        assert (list(body), meter.in_flight) == ([b"first", b"last"], 1)
        body.close()
        assert meter.in_flight == 0


def replacing(get_response):
    """A middleware that replaces each response, as ConditionalGetMiddleware does by a 304."""

    def replace(request):
        get_response(request)
        return HttpResponse(status=304)

    return replace


def test_a_stream_that_another_middleware_replaces_occupies_no_thread(engine_of, me):
    elastic = {"throttle": {"elastic": {"up_to": "200%", "below": 0.7}}}
    middlewares = [f"{__name__}.replacing", *django_settings.MIDDLEWARE]
    with settings(engine_of({"name": "all", "limit": "9 per hour", **elastic})) as engine:
        with override_settings(MIDDLEWARE=middlewares):
            assert [answer.status_code for answer in blocking(["/slots/stream"] * 2, me)] == [304, 304]
        gc.collect()
        assert engine.engine.planner.meter(engine.rules).in_flight == 0


def idle():
    return 0.0


@pytest.mark.skipif(django.VERSION < (5, 0), reason="Django before 5.0 does not listen for a client that leaves")
def test_a_client_who_leaves_frees_his_place(engine, me):
    async def main():
        waiting = [{"type": "http.request", "body": b""}]

        async def receive():
            if waiting:
                return waiting.pop()
            await aeventually(lambda: django_app.forever)
            return {"type": "http.disconnect"}

        scope = http_scope("/slots/forever", headers=[(b"x-client", me["X-Client"].encode())])
        await GET_ASGI()(scope, receive, None)
        return await asyncio.to_thread(eventually, lambda: awaited(["/slots/whole"], me)[0].status_code == 200)

    assert asyncio.run(main())


@pytest.mark.parametrize("path", ["/slots/exit", "/exit"])
def test_a_worker_that_is_told_to_exit_frees_its_place(engine, me, path):
    with pytest.raises(SystemExit):
        blocking([path], me)
    assert blocking(["/slots/whole"], me)[0].status_code == 200


@EACH
def test_the_shell_around_it_counts_alone(engine, me, ask):
    app = Asgi(GET_ASGI(), limiter=engine) if ask is awaited else Wsgi(GET_WSGI(), limiter=engine)
    answers = ask(["/mail", "/mail", "/mail", "/free", "/login?status=401"], me, app)
    assert [answer.status_code for answer in answers] == [200, 200, 429, 200, 401]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0", "5", "1"]


@EACH
def test_a_shell_of_another_domain_counts_as_well(engine, engine_of, me, ask):
    outer = engine_of({"name": "outer", "limit": "3 per hour"})
    app = Asgi(GET_ASGI(), limiter=outer) if ask is awaited else Wsgi(GET_WSGI(), limiter=outer)
    answers = ask(["/free"] * 4, me, app)
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["X-RateLimit-Limit"] for answer in answers] == ["9", "9", "9", "3"]


def test_rules_that_have_to_be_awaited(engine_of, me):
    plan = {"plan": "python:tests.identity.functions:later"}
    with settings(engine_of({"name": "r", "by": "plan", "limit": "1 per hour"}, attributes=plan)):
        assert awaited(["/free"], me)[0].status_code == 200
        with pytest.raises(ConfigurationError, match="can't be awaited"):
            GET_WSGI()


def test_without_the_middleware_it_says_what_is_missing():
    with pytest.raises(RuntimeError, match=r"'mail'.*MIDDLEWARE"):
        django_app.mail(HttpRequest())


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        pytest.param(5, ImproperlyConfigured, "RATELIMIT is int: it must be the path", id="a number"),
        pytest.param("python:tests.inside.rules:RULES.x", ImportError, "RULES", id="nowhere"),
        pytest.param({"domain": "d", "rules": [{"name": "r"}]}, ConfigurationError, "'limit' is missing", id="rules"),
        pytest.param("/nowhere.yaml", ConfigurationError, "nowhere", id="no such file"),
    ],
)
def test_a_setting_that_won_t_do(value, error, message):
    with override_settings(RATELIMIT=value), pytest.raises(error, match=message):
        GET_WSGI()


def test_a_missing_setting_is_an_error():
    with override_settings():
        del django_conf.RATELIMIT
        with pytest.raises(ImproperlyConfigured, match="RATELIMIT is missing: it must be the path"):
            GET_WSGI()


def test_a_limiter_by_its_place_and_one_that_is_made_once(me):
    from ratelimit_mw.django import limiter

    with override_settings(RATELIMIT="python:tests.inside.test_django_middleware:OWN"):
        assert limiter() is OWN
    with override_settings(RATELIMIT=dict(django_settings.RATELIMIT)):
        made = limiter()
        assert limiter() is made is not OWN
        assert blocking(["/mail"], me)[0].headers["X-RateLimit-Remaining"] == "1"
        assert blocking(["/mail"], me)[0].headers["X-RateLimit-Remaining"] == "0"
    with override_settings(RATELIMIT=OWN):
        assert limiter() is OWN


OWN = RateLimiter({"domain": "own", "rules": [{"name": "r", "limit": "1/s"}]}, storage="memory://")


def overriding(get_response):
    """A middleware as projects have them: it lets a header name the method, and takes a tenant from the path."""

    def change(request):
        if wanted := request.headers.get("X-HTTP-Method-Override"):
            request.method = wanted
        if request.path_info.startswith("/tenant/"):
            request.path_info = request.path_info.removeprefix("/tenant")

    if iscoroutinefunction(get_response):

        async def aserve(request):
            change(request)
            return await get_response(request)

        return markcoroutinefunction(aserve)

    def serve(request):
        change(request)
        return get_response(request)

    return serve


overriding.sync_capable = overriding.async_capable = True


@pytest.mark.parametrize(
    ("match", "override", "path"),
    [
        pytest.param({"path": "/free"}, "", "/tenant/free", id="the path"),
        pytest.param({"methods": ["DELETE"]}, "DELETE", "/free", id="the method"),
        pytest.param({"methods": ["DELETE"]}, "delete", "/free", id="the method's case"),
    ],
)
@EACH
def test_what_a_middleware_before_it_changes_is_what_the_rules_match(engine_of, ask, match, override, path):
    middleware = [f"{__name__}.overriding", *django_settings.MIDDLEWARE]
    with (
        settings(engine_of({"name": "all", "match": match, "limit": "1 per hour"})),
        override_settings(MIDDLEWARE=middleware),
    ):
        answers = ask([path, path], {"X-Client": "me", "X-HTTP-Method-Override": override})
    assert [answer.status_code for answer in answers] == [200, 429]


@pytest.mark.parametrize("spelling", ["/free", "/free/", "/./free", "/x/../free"])
@EACH
def test_a_redirect_to_a_slash_and_other_spellings_share_the_limit(engine_of, me, ask, spelling):
    middleware = ["django.middleware.common.CommonMiddleware", *django_settings.MIDDLEWARE]
    with (
        settings(engine_of({"name": "all", "match": {"path": "/free"}, "limit": "1 per hour"})),
        override_settings(MIDDLEWARE=middleware, APPEND_SLASH=True),
    ):
        first, second = ask(["/free", spelling], me)
    assert first.status_code == 200
    assert second.status_code == 429


def test_a_request_under_wsgi_leaves_no_garbage(engine, me):
    seen = []

    def remember(get_response):
        def middleware(request):
            seen.append(weakref.ref(request))
            return get_response(request)

        return middleware

    globals()["remember"] = remember
    with override_settings(MIDDLEWARE=[f"{__name__}.remember", "ratelimit_mw.django.RateLimitMiddleware"]):
        blocking(["/free"], me)
        gc.collect()
        gc.disable()
        try:
            blocking(["/free"], me)
            assert [each() is None for each in seen] == [True, True]
        finally:
            gc.enable()


@EACH
def test_what_a_shadow_rule_would_have_denied_is_recorded(engine_of, me, ask, caplog):
    caplog.set_level("INFO", "ratelimit_mw.denials")
    rule = {"name": "dark", "by": "ip", "limit": "1 per hour", "shadow": True}
    with settings(engine_of(rule)):
        answers = ask(["/free"] * 2, me)
    assert 429 not in [answer.status_code for answer in answers]
    records = [each for each in caplog.records if each.name == "ratelimit_mw.denials"]
    assert [(each.rule, each.method, each.shadow) for each in records] == [("dark", "GET", True)]
