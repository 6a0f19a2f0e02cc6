"""`limited` above the decorator of a route, where the framework does not see it, is logged as an error at the start."""

from functools import wraps

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.testclient import TestClient
from flask import Blueprint, Flask

from ratelimit_mw import ConfigurationError
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.inside.rules import RULES


def another(view):
    """A decorator of the app's own."""

    @wraps(view)
    def wrapped(*args, **kwargs):
        return view(*args, **kwargs)

    return wrapped


def flask_app():
    return Flask("app", root_path="/")


def served(app):
    """Start a Flask app and send it requests."""
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=RULES, storage="memory://")
    for _ in range(3):
        app.test_client().get("/")


@pytest.fixture
def errors(caplog):
    return lambda: [message for message in caplog.messages if "has no effect" in message]


def test_a_limit_above_a_route_of_flask_is_an_error_in_the_log(errors):
    app = flask_app()

    @in_flask.limited("mail")
    @app.route("/")
    def mail():
        return "sent"

    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=RULES, storage="memory://")
    (message,) = errors()
    assert message.startswith(
        "limited('mail') has no effect on the view tests.inside.test_misplaced:test_a_limit_above_"
    )
    assert app.test_client().get("/").text == mail.__wrapped__()
    assert len(errors()) == 1


def test_a_view_that_is_added_after_the_middleware_is_an_error_at_the_first_request(errors):
    app = flask_app()
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=RULES, storage="memory://")
    routes = Blueprint("routes", __name__)

    @in_flask.limited("mail")
    @another
    @routes.route("/")
    def mail():
        return "sent"

    app.register_blueprint(routes)
    assert errors() == []
    assert [app.test_client().get("/").text for _ in range(3)] == ["sent"] * 3
    assert len(errors()) == 1
    assert mail is not None


def test_only_the_upper_one_of_two_limits_may_be_misplaced(errors):
    app = flask_app()

    @in_flask.limited("exports")
    @app.route("/")
    @in_flask.limited("mail")
    def mail():
        return "sent"

    served(app)
    (message,) = errors()
    assert message.startswith("limited('exports') has no effect")
    assert mail is not None


def test_a_limit_of_one_route_may_be_absent_from_another_route_of_the_same_function(errors):
    app = flask_app()

    def mail():
        return "sent"

    app.add_url_rule("/free", "free", mail)
    app.add_url_rule("/", "mail", another(in_flask.limited("mail")(mail)))
    served(app)
    assert errors() == []


def plain():
    return "sent"


def test_a_function_of_a_module_may_be_limited_in_one_app_and_not_in_another(errors):
    limited, free = flask_app(), flask_app()
    limited.add_url_rule("/", "mail", in_flask.limited("mail")(plain))
    free.add_url_rule("/", "mail", plain)
    served(limited)
    served(free)
    assert errors() == []


def test_a_limit_above_a_route_of_fastapi_is_an_error_in_the_log(errors):
    app, router = FastAPI(), APIRouter()

    @in_starlette.limited("mail")
    @router.get("/")
    def mail(request: Request) -> str:
        return "sent"

    @router.get("/limited")
    @in_starlette.limited("mail")
    def right(request: Request) -> str:
        return "sent"

    app.include_router(router)
    in_fastapi.add_rate_limits(app, RULES, storage="memory://")
    with TestClient(app) as client:
        (message,) = errors()
        assert [client.get("/").status_code for _ in range(3)] == [200] * 3
    assert ".mail: write it below" in message
    assert mail is not right


def test_a_dependency_of_fastapi_as_a_decorator_is_a_type_error():
    with pytest.raises(TypeError, match=r"Depends\(limited\('mail'\)\).*ratelimit_mw\.starlette") as raised:
        in_fastapi.limited("mail")(plain)
    assert "plain" in str(raised.value)
    assert Depends(in_fastapi.limited("mail")).dependency == in_fastapi.limited("mail")


def test_a_dependency_of_fastapi_without_depends_is_a_type_error():
    with pytest.raises(TypeError, match=r"write dependencies=\[Depends\(limited\('mail'\)\)\]"):
        FastAPI().get("/", dependencies=[in_fastapi.limited("mail")])(plain)


def test_a_dependency_of_fastapi_that_is_a_default_stops_the_app():
    app = FastAPI()

    @app.get("/")
    def mail(decision=in_fastapi.limited("mail")):  # noqa: B008 - the mistake
        return "sent"

    in_fastapi.add_rate_limits(app, RULES, storage="memory://")
    with (
        pytest.raises(
            ConfigurationError, match=r"mail: decision=limited\('mail'\) limits nothing \(write .*=Depends\("
        ),
        TestClient(app),
    ):
        pass


def test_swapped_arguments_of_add_rate_limits_are_a_type_error():
    with pytest.raises(TypeError, match=r"not a FastAPI app, but a dict: write add_rate_limits\(app, config\)"):
        in_fastapi.add_rate_limits(RULES, FastAPI())


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("limited", r"from ratelimit_mw\.fastapi import limited \| .*\.starlette import limited \| .*flask.*django"),
        ("add_rate_limits", r"from ratelimit_mw\.fastapi import add_rate_limits"),
        (
            "RateLimitMiddleware",
            r"from ratelimit_mw\.asgi import RateLimitMiddleware \| from ratelimit_mw\.wsgi import",
        ),
        ("nothing", r"cannot import name 'nothing' from 'ratelimit_mw'"),
    ],
)
def test_a_name_that_is_imported_from_the_package_tells_its_module(name, line):
    with pytest.raises(ImportError, match=line):
        exec(f"from ratelimit_mw import {name}")
