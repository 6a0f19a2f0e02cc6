"""A user whom the app finds while it serves the request counts for the rules that the app then asks for by name."""

from typing import Annotated

import pytest
from django.test.utils import override_settings
from fastapi import Depends, FastAPI, Request
from fastapi.testclient import TestClient
from flask import Flask, request

from ratelimit_mw import RateLimiter
from ratelimit_mw.fastapi import add_rate_limits, limited
from ratelimit_mw.flask import limited as limited_in_flask
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.inside.clients import from_address
from tests.inside.test_django_middleware import awaited, blocking

EVERY = {
    "nothing else": [],
    "by user": [{"name": "every", "by": "user", "limit": "100 per hour"}],
    "by user or address": [{"name": "every", "by": "user|ip", "limit": "100 per hour"}],
    "by tier": [{"name": "every", "by": "ip", "limit": {"default": "100 per hour", "gold": "200 per hour"}}],
}
BESIDE = pytest.mark.parametrize("beside", [pytest.param(rules, id=name) for name, rules in EVERY.items()])


def rules(user, tier, beside):
    mail = {"name": "mail", "by": "user|ip", "limit": {"default": "1 per hour", "gold": "2 per hour"}}
    return {
        "domain": "absent",
        "storage": {"timeout": "5s"},
        "client": {"user": user, "tier": tier},
        "rules": [*beside, {**mail, "on_demand": True}],
    }


def statuses(get):
    """Three requests of ann, who has the tier gold, one of bob, and two without a user."""
    return [get(name).status_code for name in ("ann", "ann", "ann", "bob", "", "")]


@BESIDE
def test_a_user_found_by_a_dependency_of_fastapi_has_the_mail_limit(beside):
    app = FastAPI()

    async def login(request: Request) -> None:
        if name := request.headers.get("X-Name"):
            request.state.user_id = name
            request.state.plan = "gold" if name == "ann" else None

    @app.get("/")
    async def send(login: Annotated[None, Depends(login)], mail: Annotated[object, Depends(limited("mail"))]) -> str:
        return "sent"

    add_rate_limits(app, rules("scope:state.user_id", "scope:state.plan", beside))
    with TestClient(from_address(app, "192.0.2.1")) as client:
        found = statuses(lambda name: client.get("/", headers={"X-Name": name}))
    assert found == [200, 200, 429, 200, 200, 429]


@BESIDE
def test_a_user_found_before_the_request_in_flask_has_the_mail_limit(beside):
    app = Flask("absent", root_path="/")
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=rules("environ:app.user", "environ:app.plan", beside))

    @app.before_request
    def login():
        if name := request.headers.get("X-Name"):
            request.environ["app.user"] = name
            request.environ["app.plan"] = "gold" if name == "ann" else ""

    @app.get("/")
    @limited_in_flask("mail")
    def send():
        return "sent"

    client = app.test_client()
    assert statuses(lambda name: client.get("/", headers={"X-Name": name})) == [200, 200, 429, 200, 200, 429]


@BESIDE
@pytest.mark.parametrize("path", ["/logged-in", "/awaited-logged-in"])
@pytest.mark.parametrize("ask", [awaited, blocking])
def test_a_user_who_logs_in_within_a_django_view_has_the_mail_limit(beside, path, ask):
    config = rules(None, "header:X-Tier", beside)
    del config["client"]["user"]
    with RateLimiter(config, storage="memory://") as limiter, override_settings(RATELIMIT=limiter):
        paths = [f"{path}?pk={pk}" for pk in (1, 1, 2, "", "")]
        assert [answer.status_code for answer in ask(paths)] == [200, 429, 200, 200, 429]


def test_a_user_that_the_middleware_has_read_stays():
    app = Flask("stays", root_path="/")
    config = rules("header:X-Name", "environ:app.plan", EVERY["by user"])
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=config)

    @app.before_request
    def change():
        request.environ["HTTP_X_NAME"] = "somebody else"

    @app.get("/")
    @limited_in_flask("mail")
    def send():
        return "sent"

    client = app.test_client()
    assert [client.get("/", headers={"X-Name": name}).status_code for name in ("ann", "bob", "ann")] == [200, 200, 429]
