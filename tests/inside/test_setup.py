"""Mistakes in the setup of a middleware: it refuses those that it can see, and warns of the others once."""

import httpx
import pytest
from django.test.utils import override_settings
from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.inside.clients import from_address
from tests.inside.test_django_middleware import awaited, blocking

ADDRESS = "198.51.100.7"


def rules(by="ip", domain="setup", **client):
    limit = {"name": "all", "by": by, "limit": "1000 per hour"}
    return {"domain": domain, "storage": {"timeout": "5s"}, "client": {"secret": "s", **client}, "rules": [limit]}


def flask_app():
    app = Flask("setup", root_path="/")
    app.add_url_rule("/", "index", lambda: "index")
    return app


def under_wsgi(*configs, headers, times=1):
    app = flask_app()
    for config in configs:
        app.wsgi_app = Wsgi(app.wsgi_app, config=config)
    client = app.test_client()
    return [client.get("/", headers=headers, environ_base={"REMOTE_ADDR": "10.0.0.1"}) for _ in range(times)]


def under_asgi(*configs, headers, times=1):
    app = FastAPI()
    app.add_api_route("/", lambda: "index")
    for config in configs:
        app.add_middleware(Asgi, config=config)
    with TestClient(from_address(app, "10.0.0.1")) as client:
        return [client.get("/", headers=headers) for _ in range(times)]


EACH = pytest.mark.parametrize("ask", [under_wsgi, under_asgi])


def warnings_of(caplog, text):
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


@EACH
@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
def test_an_untrusted_proxy_is_logged_once(ask, header, caplog):
    ask(rules(), headers={header: ADDRESS}, times=5)
    (message,) = warnings_of(caplog, "trusted_proxies")
    assert message.startswith(f"a request came with {header}, ")
    assert "counted as 10.0.0.1" in message


@EACH
@pytest.mark.parametrize(
    ("config", "headers"),
    [
        pytest.param(rules(trusted_proxies=["10.0.0.0/8"]), {"X-Forwarded-For": ADDRESS}, id="a trusted proxy"),
        pytest.param(rules(trusted_hops=1), {"X-Forwarded-For": ADDRESS}, id="a trusted hop"),
        pytest.param(rules(), {"X-Forwarded-For": f"{ADDRESS}, 10.0.0.1"}, id="the server has read the header"),
        pytest.param(rules(by="path"), {"X-Forwarded-For": ADDRESS}, id="no rule reads the address"),
        pytest.param(rules(), {}, id="no header"),
    ],
)
def test_nothing_is_logged_of_a_proxy_that_changes_nothing(ask, config, headers, caplog):
    ask(config, headers=headers, times=3)
    assert warnings_of(caplog, "trusted_proxies") == []


@EACH
def test_a_header_of_addresses_that_no_trusted_proxy_sends_is_logged_at_the_start(ask, caplog):
    ask(rules(ip_header="X-Real-IP"), headers={}, times=2)
    (message,) = warnings_of(caplog, "ip_header")
    assert message.startswith("client.ip_header: is never read, because no proxy is trusted")
    caplog.clear()
    ask(rules(ip_header="X-Real-IP", trusted_hops=1), headers={}, times=2)
    assert warnings_of(caplog, "ip_header") == []


@EACH
def test_two_middlewares_of_one_domain_are_logged_once(ask, caplog):
    answers = ask(rules(), rules(), headers={}, times=3)
    assert answers[0].status_code == 200
    (message,) = warnings_of(caplog, "two middlewares")
    assert "domain 'setup': each request is charged twice" in message


@EACH
def test_two_middlewares_of_two_domains_are_as_they_should_be(ask, caplog):
    ask(rules(), rules(domain="other"), headers={}, times=3)
    assert warnings_of(caplog, "two middlewares") == []


@EACH
def test_a_rule_by_user_is_logged_if_none_of_a_hundred_requests_has_one(ask, caplog):
    user = "environ:app.user" if ask is under_wsgi else "scope:state.user"
    config = rules(by="user|ip", user=user)
    ask(config, headers={}, times=99)
    assert warnings_of(caplog, "reads the user") == []
    ask(config, headers={}, times=250)
    (message,) = warnings_of(caplog, "reads the user")
    assert f"none of the first 100 such requests had one (client.user is {user})" in message


@EACH
@pytest.mark.parametrize("user", ["header:X-User", "cookie:user"])
def test_equal_requests_without_a_user_are_logged_as_well(ask, caplog, user):
    ask(rules(by="user|ip", user=user), headers={}, times=100)
    (message,) = warnings_of(caplog, "reads the user")
    assert f"(client.user is {user})" in message


@EACH
@pytest.mark.parametrize("by", ["header:X-Tenant", "header:X-Tenant+ip", ["header:X-Tenant", "cookie:tenant"]])
def test_a_rule_without_a_counter_for_its_first_hundred_requests_is_logged_with_the_remedy(ask, caplog, by):
    config = rules(by=by)
    ask(config, headers={}, times=99)
    assert warnings_of(caplog, "nothing to count by") == []
    ask(config, headers={}, times=250)
    (message,) = warnings_of(caplog, "nothing to count by")
    first = by if isinstance(by, str) else by[0]
    assert f"count by {first}|ip" in message


@EACH
@pytest.mark.parametrize("by", ["header:X-Tenant|ip", ["header:X-Tenant", "ip"], "path"])
def test_a_rule_that_always_has_a_counter_is_not_logged(ask, caplog, by):
    ask(rules(by=by), headers={}, times=101)
    assert warnings_of(caplog, "nothing to count by") == []


@EACH
def test_one_user_among_the_first_requests_is_enough(ask, caplog):
    limiter = RateLimiter(rules(by="user|ip", user="cookie:user"), storage="memory://")
    middleware = Wsgi if ask is under_wsgi else Asgi
    app = flask_app().wsgi_app if ask is under_wsgi else FastAPI()
    limited = middleware(app, limiter=limiter)
    client = httpx.Client(transport=httpx.WSGITransport(limited)) if ask is under_wsgi else TestClient(limited)
    client.get("http://app/", headers={"Cookie": "user=ann"})
    for _ in range(150):
        client.get("http://app/")
    client.close()
    limiter.close()
    assert warnings_of(caplog, "reads the user") == []


@pytest.mark.parametrize("ask", [awaited, blocking])
def test_django_s_middleware_logs_an_untrusted_proxy_once(ask, caplog):
    with RateLimiter(rules(), storage="memory://") as limiter, override_settings(RATELIMIT=limiter):
        ask(["/free"] * 3, {"X-Forwarded-For": ADDRESS})
    assert len(warnings_of(caplog, "trusted_proxies")) == 1


@pytest.mark.parametrize("make", [FastAPI, lambda: Asgi(FastAPI(), config=rules()), lambda: FastAPI().__call__])
def test_the_wsgi_class_refuses_an_asgi_app(make):
    with pytest.raises(TypeError, match=r"is for WSGI apps, but .* is one for ASGI: use ratelimit_mw\.asgi\."):
        Wsgi(make(), config=rules())


@pytest.mark.parametrize(
    "make", [flask_app, lambda: flask_app().wsgi_app, lambda: Wsgi(flask_app().wsgi_app, config=rules())]
)
def test_the_asgi_class_refuses_a_wsgi_app(make):
    with pytest.raises(TypeError, match=r"is for ASGI apps, but .* is one for WSGI: use ratelimit_mw\.wsgi\."):
        Asgi(make(), config=rules())


def test_a_flask_object_in_place_of_its_wsgi_app_is_refused():
    app = flask_app()
    with pytest.raises(TypeError, match=r"write app\.wsgi_app = RateLimitMiddleware\(app\.wsgi_app, …\)"):
        app.wsgi_app = Wsgi(app, config=rules())


def test_a_fastapi_app_with_the_wsgi_class_says_so():
    app = FastAPI()
    app.add_middleware(Wsgi, config=rules())
    with pytest.raises(TypeError, match="is for WSGI apps"), TestClient(app):
        pass


@pytest.mark.parametrize("times", [99, 100])
def test_the_first_hundred_requests_are_examined(caplog, times):
    with TestClient(Asgi(FastAPI(), config=rules())) as client:
        for _ in range(times):
            client.get("/")
        client.get("/", headers={"X-Forwarded-For": ADDRESS})
    assert len(warnings_of(caplog, "trusted_proxies")) == 100 - times
