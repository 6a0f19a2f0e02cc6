"""The live page in apps under real servers, while their store is there, is gone, and does not answer."""

import httpx
import pytest

from tests.operations.apps import TOKEN
from tests.support.apps import gunicorn, uvicorn

BEARER = {"Authorization": f"Bearer {TOKEN}"}


def serve_asgi(**options):
    return uvicorn("tests.operations.apps:asgi", **options)


def serve_wsgi(**options):
    return gunicorn("tests.operations.apps:wsgi", args=["--threads", "4"], **options)


EACH_SERVER = pytest.mark.parametrize(
    "serve", [pytest.param(serve_asgi, id="uvicorn"), pytest.param(serve_wsgi, id="gunicorn")]
)


@EACH_SERVER
def test_a_mounted_page_answers_below_its_path(serve):
    with serve() as app, httpx.Client(base_url=app.url, timeout=60) as http:
        for _ in range(4):
            denied = http.get("/items")
        assert denied.status_code == 429
        assert http.get("/_limits", follow_redirects=True, headers=BEARER).status_code == 200
        assert http.get("/_limits/").status_code == 401
        state = http.get("/_limits/state.json", headers=BEARER).json()
        assert [(each["client"], each["rule"], each["denials"]) for each in state["limited"]] == [
            ("ip=127.0.0.1", "everything", 2)
        ]
        assert state["store"] == {"kind": "memory", "up": True, "latency_ms": None}
        assert 'ratelimit_requests_total{outcome="denied"} 2.0' in http.get("/_limits/metrics", headers=BEARER).text
        assert http.get("/_limits/", auth=("", TOKEN)).status_code == 200
        assert "traceback" not in app.log.lower()


@EACH_SERVER
@pytest.mark.parametrize("trouble", [pytest.param("kill", marks=pytest.mark.soak), "pause"])
def test_the_page_answers_without_its_store(serve, trouble, fresh_server):
    """Nothing resumes the server, so an answer does not wait for it."""
    environment = {"REDIS_URL": fresh_server.url}
    with serve(env=environment) as app, httpx.Client(base_url=app.url, timeout=60) as http:
        for _ in range(3):
            http.get("/items")
        state = http.get("/_limits/state.json", headers=BEARER).json()
        assert (state["store"]["kind"], state["store"]["up"]) == ("redis", True)
        getattr(fresh_server, trouble)()
        passed = http.get("/items", headers={"X-User": "another"})  # the store is asked, in vain
        assert passed.status_code == 200
        state = http.get("/_limits/state.json", headers=BEARER).json()
        assert state["store"]["up"] is False
        assert [each["denials"] for each in state["limited"]] == [1]
        assert http.get("/_limits/", headers=BEARER).status_code == 200


def test_the_example_has_a_page():
    with uvicorn("examples.live_page:app", env={"LIMITS_TOKEN": TOKEN}) as app:
        assert httpx.get(f"{app.url}/").json() == {"hello": "world"}
        state = httpx.get(f"{app.url}/_limits/state.json", headers=BEARER, timeout=60).json()
        assert "everything" in [rule["name"] for rule in state["rules"]]
