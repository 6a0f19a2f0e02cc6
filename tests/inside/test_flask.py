"""`limited` and `enforce` in a Flask app: in this process on memory, and under gunicorn on Redis."""

from contextlib import suppress
from uuid import uuid4

import pytest
from flask import Flask, abort
from flask.views import MethodView
from werkzeug.exceptions import HTTPException

from ratelimit_mw.flask import RateLimited, enforce, limited
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.inside.alike import (
    a_denied_head_request_has_the_length_of_get,
    the_second_waits_for_its_turn,
    two_are_allowed_and_the_third_is_denied_by_the_section,
)
from tests.inside.clients import client_of, in_process
from tests.inside.rules import DENIED, RULES

APP = "tests.inside.flask_app:app"
client = client_of(lambda: in_process(APP), gunicorn={"app": APP, "workers": 2, "args": ["--threads", "4"]})


@pytest.mark.parametrize("path", ["/mail", "/awaited/ann"])
def test_a_decorated_view(client, me, path):
    answers = two_are_allowed_and_the_third_is_denied_by_the_section(client, path, me)
    assert answers[0].text == ("sent" if path == "/mail" else "sent to ann")


def test_other_views_know_nothing_of_it(client, me):
    assert client.get("/free", headers=me).headers["X-RateLimit-Limit"] == "9"
    assert client.post("/mail", headers=me).headers["X-Own"] == "1"


def test_head(client, me):
    a_denied_head_request_has_the_length_of_get(client, "/mail", me)


def test_a_cost_times_the_rule_s(client, me):
    assert [client.get("/export", headers=me).status_code for _ in range(3)] == [200, 200, 429]


def test_a_blueprint_s_before_request_and_its_error_handler(client, me):
    answers = [client.get("/shop/", headers=me) for _ in range(3)]
    assert [(answer.status_code, answer.text[:4]) for answer in answers] == [
        (200, "shop"),
        (200, "shop"),
        (429, "come"),
    ]
    assert answers[-1].headers["X-RateLimit-Limit"] == "9"  # its own answer says nothing of the rule that denied


def test_within_a_view(client, me):
    assert [client.get("/inside", headers=me).json().get("left") for _ in range(3)] == [1, 0, None]
    assert client.get("/caught", headers=me).json() == {"rule": "away", "code": 429}


def test_a_class_of_views_waits_for_its_turn(client, me):
    the_second_waits_for_its_turn(client, me)


@pytest.mark.parametrize("path", ["/class", "/subclass", "/methods/ann", "/plain"])
def test_a_decorated_class_or_method_shares_its_rule(client, me, path):
    answers = [client.request(method, path, headers=me) for method in ("GET", "POST", "GET")]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].text.startswith("sent")
    assert answers[-1].json() == DENIED


def test_a_method_that_is_not_decorated_is_free(client, me):
    assert [client.put("/methods/ann", headers=me).text for _ in range(4)] == ["put ann"] * 4


def test_a_decorated_subclass_leaves_its_base_as_it_was():
    class Base(MethodView):
        decorators = (limited("mail"),)

    class Derived(Base):
        pass

    assert limited("exports")(Derived) is Derived
    assert (len(Base.decorators), len(Derived.decorators)) == (1, 2)


def test_what_cannot_be_decorated_is_a_type_error():
    with pytest.raises(TypeError, match=r"subclasses of flask\.views\.View, not <class 'dict'>"):
        limited("mail")(dict)


def test_one_charge_for_a_request_on_each_counter(client, me):
    client.get("/mail", headers=me)
    assert client.get("/free", headers=me).headers["X-RateLimit-Remaining"] == "7"


def test_without_the_middleware_it_says_what_is_missing():
    app = Flask("alone")

    @app.get("/")
    @limited("mail")
    def view():
        return ""

    with app.test_request_context("/"), pytest.raises(RuntimeError, match=r"'mail'.*app\.wsgi_app = ratelimit_mw"):
        enforce("mail")
    assert view.__name__ == "view"
    assert app.test_client().get("/").status_code == 500


def test_a_denial_is_an_http_exception_as_flask_knows_them():
    from ratelimit_mw.flask import RateLimited

    assert issubclass(RateLimited, HTTPException)


def test_inline_limits_hold_over_all_workers_and_each_client_has_its_own(client, me):
    answers = [client.get("/inline", headers=me) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["X-RateLimit-Remaining"] == "1"
    assert answers[2].json() == {"message": "2 of tests.inside.flask_app:inline[1], that is all"}
    assert client.get("/inline", headers={"X-Client": uuid4().hex}).status_code == 200


def test_the_code_of_a_denial_is_its_status():
    app = Flask("code", root_path="/")
    app.add_url_rule("/", "away", limited("away")(lambda: "sent"))
    app.register_error_handler(RateLimited, lambda denied: (f"{denied.code}", 200))
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config={**RULES, "response": {"status": 403}}, storage="memory://")
    assert app.test_client().get("/", headers={"X-Client": "ann"}).text == "403"


def test_the_limit_of_a_class_comes_before_its_other_decorators():
    def never(view):
        def wrapped():
            raise AssertionError("the request was denied")

        return wrapped

    @limited("away")
    class Away(MethodView):
        decorators = (never,)

        def get(self):
            raise AssertionError

    app = Flask("class", root_path="/")
    app.add_url_rule("/", view_func=Away.as_view("away"))
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=RULES, storage="memory://")
    assert app.test_client().get("/", headers={"X-Client": "ann"}).status_code == 429


@pytest.mark.parametrize("status", [0, 401, 500])
def test_a_view_whose_exception_is_passed_to_the_server_is_refunded_once(status):
    seen = []
    app = Flask("refunds", root_path="/")
    app.config["PROPAGATE_EXCEPTIONS"] = True

    async def when(response):
        seen.append(response.status_code)
        return True

    @app.route("/")
    @limited("1 per minute", refund_when=when)
    @limited("mail", refund_when=when)
    def view():
        if status:
            abort(status)
        raise ValueError

    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=RULES, storage="memory://")
    for _ in range(3):
        with suppress(ValueError):
            assert app.test_client().get("/").status_code == status
    assert seen == [status or 500] * 6
