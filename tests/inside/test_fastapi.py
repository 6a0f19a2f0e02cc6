"""`Depends(limited(…))` in a FastAPI app: in this process on memory, and under uvicorn on Redis."""

from uuid import uuid4

import pytest
from fastapi import Depends, FastAPI, WebSocket
from fastapi.testclient import TestClient

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.fastapi import add_rate_limits, limited
from tests.inside.alike import (
    a_third_websocket_is_refused,
    the_second_waits_for_its_turn,
    two_are_allowed_and_the_third_is_denied_by_the_section,
)
from tests.inside.clients import client_of
from tests.inside.fastapi_app import app, everywhere
from tests.inside.rules import RULES
from tests.shells.asking import serve, websocket_scope

client = client_of(lambda: TestClient(app), uvicorn={"app": "tests.inside.fastapi_app:app", "workers": 2})


@pytest.mark.parametrize(
    "path", ["/mail", "/blocking", "/own-response", "/shop/7", "/later", "/class", "/outer/inner/"]
)
def test_a_dependency(client, me, path):
    two_are_allowed_and_the_third_is_denied_by_the_section(client, path, me)


def test_the_decision_and_one_charge_for_router_endpoint_and_dependency(client, me):
    assert client.get("/blocking", headers=me).json() == 1
    assert client.get("/shop/7", headers=me).json() == {"item": 7, "left": 0, "told": "through mail"}
    assert client.get("/free", headers=me).headers["X-RateLimit-Remaining"] == "6"


def test_a_class_and_an_object_as_dependencies_charge_the_rule_once(client, me):
    assert client.get("/class?to=bob", headers=me).json() == "bob 1 1"


def test_a_cost_times_the_rule_s(client, me):
    assert [client.get("/export", headers=me).status_code for _ in range(3)] == [200, 200, 429]


def test_it_waits_for_its_turn(client, me):
    the_second_waits_for_its_turn(client, me)


def test_a_request_that_is_not_valid_is_charged_nothing_by_the_middleware_s_rule_only(client, me):
    assert client.get("/shop/seven", headers=me).status_code == 422
    assert client.get("/free", headers=me).headers["X-RateLimit-Remaining"] == "7"


def test_the_openapi_tells_of_it(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert client.get("/docs").status_code == 200
    told = {path: operations["get"]["responses"].get("429") for path, operations in paths.items()}
    assert told.pop("/free") is None
    assert told.pop("/export")["description"] == "my own"
    assert set(told) == {
        "/class",
        "/inline",
        "/outer/inner/",
        "/mail",
        "/blocking",
        "/own-response",
        "/turns",
        "/later",
        "/shop/{item}",
    }
    assert all(response == {"description": "Too Many Requests"} for response in told.values())


def test_a_websocket(client, me):
    a_third_websocket_is_refused(client, "/socket", me)


def test_app_wide_with_its_own_words_and_another_status(me):
    with TestClient(everywhere) as client:
        answers = [client.get("/", headers=me) for _ in range(3)]
        assert [(answer.status_code, answer.text) for answer in answers[1:]] == [
            (200, '"everywhere"'),
            (403, "mail denied"),
        ]
        assert answers[-1].headers["Retry-After"]
        responses = client.get("/openapi.json").json()["paths"]["/"]["get"]["responses"]
    assert set(responses) == {"200", "403"}


@pytest.fixture
def asking():
    """An app that asks for one rule, whose name it is given."""

    def make(rule):
        app = FastAPI()
        app.add_api_route("/", lambda: "x", dependencies=[Depends(limited(rule))])
        return app

    return make


def test_with_the_middleware_alone_a_denial_is_any_http_exception(asking, me):
    app = asking("mail")
    app.add_middleware(RateLimitMiddleware, config=RULES, storage="memory://")
    with TestClient(app) as client:
        *_, denied = [client.get("/", headers=me) for _ in range(3)]
    assert (denied.status_code, denied.json()) == (429, {"detail": "Too Many Requests"})
    assert denied.headers["Content-Type"] == "application/json"
    assert denied.headers["X-RateLimit-Limit"] == "2"
    assert denied.headers["Retry-After"]


def test_around_the_app_and_under_a_root_path(asking, me):
    inner = asking("mail")
    rules = {**RULES, "exempt": [{"path": "/docs"}]}
    around = RateLimitMiddleware(inner, config=rules, storage="memory://")
    with TestClient(around, root_path="/api") as client:
        assert "X-RateLimit-Limit" not in client.get("/api/docs", headers=me).headers
        assert [client.get("/api/", headers=me).status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(
    ("policy", "code"), [pytest.param("allow", 1008, id="denied"), pytest.param("deny", 1013, id="the store is away")]
)
def test_a_websocket_where_the_server_knows_no_denial(policy, code):
    app = FastAPI()

    @app.websocket("/", dependencies=[Depends(limited("none"))])
    async def never(socket: WebSocket) -> None:
        raise AssertionError(socket)

    rule = {"name": "none", "by": "global", "limit": "0 per day", "on_demand": True, "on_error": policy}
    with RateLimiter(
        {"domain": "d", "rules": [rule]}, storage="memory://" if policy == "allow" else "redis://127.0.0.1:9"
    ) as limiter:
        add_rate_limits(app, limiter=limiter)
        assert serve(app, websocket_scope()) == [{"type": "websocket.close", "code": code, "reason": ""}]


def test_an_endpoint_outside_of_the_openapi_document_stays_outside(asking):
    app = asking("mail")
    app.add_api_route("/hidden", lambda: "x", include_in_schema=False, dependencies=[Depends(limited("mail"))])
    add_rate_limits(app, RULES, storage="memory://")
    assert "/hidden" not in app.openapi()["paths"]


def test_an_override_leaves_a_rule_out(asking, me):
    app = asking("mail")
    add_rate_limits(app, RULES, storage="memory://")
    app.dependency_overrides[limited("mail")] = lambda: None
    with TestClient(app) as client:
        assert [client.get("/", headers=me).status_code for _ in range(3)] == [200] * 3


def test_an_app_that_is_mounted_in_another_is_limited_too(asking, me):
    app, inner = FastAPI(), asking("mail")
    app.mount("/inner", inner)
    add_rate_limits(app, RULES, storage="memory://")
    with TestClient(app) as client:
        answers = [client.get("/inner/", headers=me) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert (answers[-1].json(), answers[-1].headers["X-RateLimit-Limit"]) == ({"detail": "Too Many Requests"}, "2")


def test_without_the_middleware_it_says_what_is_missing(asking):
    with TestClient(asking("mail")) as client, pytest.raises(RuntimeError, match=r"'mail'.*add_rate_limits"):
        client.get("/")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        pytest.param("mial", r"the rule 'mial', which does not exist \(did you mean 'mail'\?\)", id="misspelt"),
        pytest.param(
            "logins", r"the rule 'logins', but its count depends on the response, .*give the rule a match", id="count"
        ),
        pytest.param("costs", r"'costs', but its cost depends on the response", id="cost"),
    ],
)
def test_an_app_does_not_start_that_asks_for_what_there_is_not(asking, rule, message):
    app = asking(rule)
    late = [
        {"name": "logins", "limit": "1 per day", "count": {"status": 401}},
        {"name": "costs", "limit": "1 per day", "cost": "response:X-Cost"},
    ]
    add_rate_limits(app, {**RULES, "rules": [*RULES["rules"], *late]}, storage="memory://")
    with pytest.raises(ConfigurationError, match=message), TestClient(app):
        pass


def test_a_limiter_of_the_app_s_own_stays_open(asking, me):
    app = asking("mail")
    with RateLimiter(RULES, storage="memory://") as limiter:
        add_rate_limits(app, limiter=limiter)
        for _ in range(2):
            with TestClient(app) as client:
                assert client.get("/", headers=me).status_code == 200
        assert limiter.check({"header:X-Client": me["X-Client"]}).remaining == 6


def test_the_openapi_tells_of_a_rule_s_own_status():
    named = FastAPI()
    rules = [{"name": "mail", "on_demand": True, "limit": "1 per hour", "response": {"status": 403}}]
    config = {
        "domain": "d",
        "response": {"headers": ["ratelimit"], "body": [{"error": "{message}"}, "html"]},
        "rules": rules,
    }
    add_rate_limits(named, config)

    @named.get("/", dependencies=[Depends(limited("mail"))])
    def read() -> str:
        return "mail"

    with TestClient(named) as client:
        responses = client.get("/openapi.json").json()["paths"]["/"]["get"]["responses"]
        answers = [client.get("/") for _ in range(2)]
    assert set(responses) == {"200", "403"}
    assert [answer.status_code for answer in answers] == [200, 403]
    assert answers[1].json() == {"error": "Too many requests"}
    assert answers[1].headers["RateLimit"].startswith('"mail";r=0;t=')


def test_inline_limits_hold_over_all_workers_and_each_client_has_its_own(client, me):
    answers = [client.get("/inline", headers=me) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["X-RateLimit-Remaining"] == "1"
    assert answers[2].json() == {
        "message": "2 of tests.inside.fastapi_app:inline[2 per 10 years by header:X-Client], that is all"
    }
    assert client.get("/inline", headers={"X-Client": uuid4().hex}).status_code == 200


def test_mistakes_in_the_rules_are_raised_at_once():
    with pytest.raises(ConfigurationError, match="limit"):
        add_rate_limits(FastAPI(), {"domain": "d", "rules": [{"name": "r"}]})
    with pytest.raises(TypeError, match="exactly one"):
        add_rate_limits(FastAPI())
