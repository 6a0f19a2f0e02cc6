"""Misspelt rule names inside apps, and reloads that lack a rule that an app uses."""

import re
from functools import partial

import httpx
import pytest
from django.test.utils import override_settings
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.testclient import TestClient
from flask import Flask
from flask.views import MethodView

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.inside.test_django_middleware import awaited, blocking

MAIL = {"name": "mail", "by": "ip", "limit": "2 per hour", "on_demand": True}
RULES = {"domain": "names", "storage": {"timeout": "5s"}, "rules": [{"name": "all", "limit": "100 per hour"}, MAIL]}
UNKNOWN = r"the app asks for the rule 'mial', which does not exist \(did you mean 'mail'\?\)"


def flask_app(*names):
    app = Flask("names", root_path="/")
    app.testing = True  # a view's exception reaches the client
    for name in names:
        app.add_url_rule(f"/{name}", name, in_flask.limited(name)(lambda: "sent"))
    return app


def test_a_flask_view_with_a_misspelt_name_raises_and_the_others_serve():
    app = flask_app()
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=RULES)
    app.add_url_rule("/mail", "mail", in_flask.limited("mail")(lambda: "sent"))
    app.add_url_rule("/mial", "mial", in_flask.limited("mial")(lambda: "sent"))
    client = app.test_client()
    assert client.get("/mail").headers["X-RateLimit-Limit"] == "2"
    with pytest.raises(LookupError, match=UNKNOWN):
        client.get("/mial")


def test_the_middleware_refuses_a_misspelt_name_of_a_flask_view_that_it_can_see():
    app = flask_app("mail", "mial")
    with pytest.raises(ConfigurationError, match=UNKNOWN):
        RateLimitMiddleware(app.wsgi_app, config=RULES)


def test_the_middleware_refuses_a_misspelt_name_of_a_method_of_a_flask_class():
    class Misspelt(MethodView):
        @in_flask.limited("mial")
        def get(self):
            raise AssertionError

    app = flask_app("mail")
    app.add_url_rule("/class", view_func=Misspelt.as_view("class"))
    with pytest.raises(ConfigurationError, match=UNKNOWN):
        RateLimitMiddleware(app.wsgi_app, config=RULES)


@pytest.mark.parametrize(("ask", "path"), [(blocking, "/misspelt"), (awaited, "/awaited-misspelt")])
def test_a_django_view_with_a_misspelt_name_raises_and_the_others_serve(ask, path, caplog):
    with RateLimiter(RULES, storage="memory://") as limiter, override_settings(RATELIMIT=limiter):
        assert [answer.status_code for answer in ask([path, "/mail"])] == [500, 200]
    (error,) = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert isinstance(error, LookupError)
    assert re.search(UNKNOWN, str(error))


def test_an_app_in_the_asgi_middleware_does_not_start_if_an_included_router_misspells_a_name():
    app, router = FastAPI(), APIRouter()

    @router.get("/")
    @in_starlette.limited("mial")
    def view(request: Request) -> str:
        raise AssertionError

    app.include_router(router)
    app.add_middleware(Asgi, config=RULES)
    with pytest.raises(ConfigurationError, match=UNKNOWN), TestClient(app):
        pass


def test_a_fastapi_app_does_not_start_if_a_mounted_app_misspells_a_name():
    app, inner = FastAPI(), FastAPI()
    inner.add_api_route("/", lambda: "x", dependencies=[Depends(in_fastapi.limited("mial"))])
    app.mount("/inner", inner)
    in_fastapi.add_rate_limits(app, RULES)
    with pytest.raises(ConfigurationError, match=UNKNOWN), TestClient(app):
        pass


def test_a_mounted_app_with_its_own_limits_raises_for_a_misspelt_name():
    app, inner = FastAPI(), FastAPI()
    inner.add_api_route("/mail", lambda: "x", dependencies=[Depends(in_fastapi.limited("mail"))])
    inner.add_api_route("/mial", lambda: "x", dependencies=[Depends(in_fastapi.limited("mial"))])
    in_fastapi.add_rate_limits(inner, RULES)
    app.mount("/inner", inner)
    with TestClient(app) as client:
        assert client.get("/inner/mail").headers["X-RateLimit-Limit"] == "2"
        with pytest.raises(LookupError, match=UNKNOWN):
            client.get("/inner/mial")


def test_a_name_of_a_mounted_app_with_its_own_limits_need_not_be_a_rule_of_the_outer_app():
    app, inner = FastAPI(), FastAPI()
    inner.add_api_route("/", lambda: "x", dependencies=[Depends(in_fastapi.limited("mail"))])
    in_fastapi.add_rate_limits(inner, {**RULES, "domain": "inner"})
    app.mount("/inner", inner)
    in_fastapi.add_rate_limits(app, {"domain": "outer", "rules": RULES["rules"][:1]})
    with TestClient(app) as client:
        assert client.get("/inner/").headers["X-RateLimit-Limit"] == "2"


def text(*names, domain="names", attributes=""):
    rules = "\n".join(f"  - {{name: {name}, by: ip, limit: 2 per hour, on_demand: true}}" for name in names)
    return f"domain: {domain}\nreload: off\n{attributes}\nrules:\n{rules}\n"


@pytest.fixture
def file(tmp_path):
    found = tmp_path / "rules.yaml"
    found.write_text(text("mail", "sms", attributes="attributes: {plan: 'header:X-Plan'}"))
    return found


def test_a_reload_without_a_rule_that_a_decorator_names_is_refused(file):
    app = flask_app("mail")
    with RateLimiter(file) as limiter:
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
        file.write_text(text("sms", "mai"))
        with pytest.raises(ConfigurationError, match=r"the rule 'mail', which does not exist"):
            limiter.reload()
        assert app.test_client().get("/mail").headers["X-RateLimit-Remaining"] == "1"


def test_a_decorator_of_one_app_changes_no_reload_of_another(file, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(text("mail", "sms", domain="other"))
    one, two = flask_app("mail"), flask_app("sms")
    with RateLimiter(file) as limiter, RateLimiter(other) as others:
        one.wsgi_app = RateLimitMiddleware(one.wsgi_app, limiter=limiter)
        two.wsgi_app = RateLimitMiddleware(two.wsgi_app, limiter=others)
        other.write_text(text("sms", domain="other"))
        others.reload()
        assert [rule.name for rule in others.rules.rules] == ["sms"]
        other.write_text(text("mail", domain="other"))
        with pytest.raises(ConfigurationError, match=r"the rule 'sms', which does not exist"):
            others.reload()


def test_a_reload_without_a_rule_of_a_view_that_was_added_late_is_refused_after_the_first_request(file):
    app = flask_app("sms")
    with RateLimiter(file) as limiter:
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
        app.add_url_rule("/mail", "mail", in_flask.limited("mail")(lambda: "sent"))
        app.add_url_rule("/mial", "mial", in_flask.limited("mial")(lambda: "sent"))
        app.test_client().get("/sms")
        file.write_text(text("sms"))
        with pytest.raises(ConfigurationError, match=r"the rule 'mail', which does not exist[^\n]*$"):
            limiter.reload()


def test_a_decorated_function_that_no_route_shows_is_registered_by_its_first_call(file):
    app = flask_app("sms")
    hidden = in_flask.limited("mail")(lambda: "sent")
    app.add_url_rule("/hidden", "hidden", lambda: hidden() + "!")
    with RateLimiter(file) as limiter:
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
        app.test_client().get("/sms")
        file.write_text(text("sms", "mail"))
        limiter.reload()
        app.test_client().get("/hidden")
        file.write_text(text("sms"))
        with pytest.raises(ConfigurationError, match=r"the rule 'mail', which does not exist"):
            limiter.reload()


@pytest.mark.parametrize("ask", [blocking, awaited])
def test_a_reload_without_a_rule_of_a_django_view_is_refused_after_the_first_request(file, ask):
    file.write_text(text("mail", "exports", "unused"))
    with RateLimiter(file, storage="memory://") as limiter, override_settings(RATELIMIT=limiter):
        ask(["/nowhere"])
        file.write_text(text("mail"))
        with pytest.raises(ConfigurationError, match=r"the rule 'exports', which does not exist[^\n]*$"):
            limiter.reload()


def test_a_reload_without_a_rule_that_was_asked_for_is_refused_and_others_may_go(file):
    app = FastAPI()

    @app.get("/{name}")
    async def ask(request: Request, name: str) -> int | None:
        remaining: int | None = (await request.scope["ratelimit"].check(name)).remaining
        return remaining

    file.write_text(text("parcels", "letters"))
    with RateLimiter(file) as limiter:
        in_fastapi.add_rate_limits(app, limiter=limiter)
        with TestClient(app) as client:
            assert client.get("/parcels").json() == 1
            file.write_text(text("letters"))
            with pytest.raises(ConfigurationError, match="'parcels'"):
                limiter.reload()
            assert client.get("/parcels").json() == 0
            file.write_text(text("parcels"))
            limiter.reload()
            with pytest.raises(LookupError, match="'letters'"):
                client.get("/letters")


def test_a_reload_without_a_domain_or_an_attribute_that_check_was_given_is_refused(file):
    client = {"ip": "192.0.2.1", "plan": "gold"}
    with RateLimiter(file) as limiter:
        limiter.check(client, domain="names")
        file.write_text(text("mail", "sms", domain="other"))
        with pytest.raises(ConfigurationError, match=r"the domain 'names'(.|\n)*the attribute 'plan'"):
            limiter.reload()
        assert limiter.check(client, domain="names").allowed


def test_no_name_is_unknown_until_the_rules_database_has_been_read():
    rules = {"domain": "names", "rules": {"source": "redis://127.0.0.1:9"}}
    app = flask_app("mail")
    with RateLimiter(rules, storage="memory://") as limiter:
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
        assert app.test_client().get("/mail").status_code == 200
        assert limiter.check({"anything": "x"}, domain="any").allowed


def test_served_over_http_a_misspelt_name_fails_its_own_view_alone():
    app = flask_app()
    app.testing = False
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=RULES)
    app.add_url_rule("/mial", "mial", in_flask.limited("mial")(lambda: "sent"))
    app.add_url_rule("/", "index", lambda: "index")
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://app") as client:
        assert [client.get(path).status_code for path in ("/mial", "/")] == [500, 200]


def test_a_limit_above_a_partial_of_a_view_has_a_name_of_its_own():
    def sent(name="ann"):
        return name

    app = Flask("names", root_path="/")
    twice = in_flask.limited("2 per minute")
    app.add_url_rule("/mail", view_func=twice(partial(twice(sent), name="bob")), endpoint="mail")
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=RULES, storage="memory://")
    assert [app.test_client().get("/mail").status_code for _ in range(3)] == [200, 200, 429]
