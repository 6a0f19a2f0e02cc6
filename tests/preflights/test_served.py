"""Preflights to frameworks whose handlers do work on OPTIONS, behind the servers that run them."""

import itertools
from contextlib import ExitStack

import httpx
import pytest

from tests.preflights import apps
from tests.support.apps import gunicorn, uvicorn

ORIGIN = "https://shop.example"
RULE = "  - {name: work, by: ip, limit: 3 per day, algorithm: sliding_log}\n"
BY_NAME = RULE.replace("}", ", on_demand: true}")
APPS = [
    *(pytest.param(uvicorn, text, id=name) for name, text in apps.UVICORN.items()),
    *(pytest.param(gunicorn, text, id=name) for name, text in apps.GUNICORN.items()),
]


@pytest.fixture
def served(tmp_path):
    """Starts an app under rules, and returns a client of it."""
    with ExitStack() as stack:

        def start(serve, text, rules=RULE, storage="memory://", client=""):
            head = f'domain: d\n{client}storage: {{url: "{storage}", timeout: 5s}}\nrules:\n'
            (tmp_path / "ratelimits.yaml").write_text(head + (BY_NAME if "limited(" in text else rules))
            (tmp_path / "served.py").write_text(apps.COUNTED + text)
            running = stack.enter_context(serve("served:app", cwd=tmp_path))
            return stack.enter_context(httpx.Client(base_url=running.url, timeout=30))

        yield start


def preflight(client, method="POST", **headers):
    own = {"Origin": ORIGIN, "Access-Control-Request-Method": method, **headers}
    return client.options("/work", headers=own)


def runs(answers):
    """How often a handler has run."""
    return sum("run " in answer.text for answer in answers)


@pytest.mark.parametrize(("serve", "text"), APPS)
def test_hostile_preflights_run_a_handler_ten_times_as_often_as_the_limit_says(served, storage, serve, text):
    client = served(serve, text, storage=storage)
    answers = [preflight(client) for _ in range(40)]
    assert [answer.status_code for answer in answers] == [200] * 30 + [429] * 10
    assert runs(answers) == 30
    assert "Retry-After" in answers[-1].headers
    requests = [client.post("/work") for _ in range(5)]
    assert runs(requests) == 3, "the requests of the same address have their own counter"


HOSTILE = [
    *(("OPTIONS", {"Origin": ORIGIN, "Access-Control-Request-Method": name}) for name in ("post", "Get", "PURGE")),
    *(("OPTIONS", {"Origin": ORIGIN, "Access-Control-Request-Method": f"X{n}"}) for n in range(9)),
    *(
        ("OPTIONS", {"Origin": ORIGIN, "Access-Control-Request-Method": text})
        for text in ("", "POST, GET", "(", "\xe9")
    ),
    ("OPTIONS", {"Origin": "null", "Access-Control-Request-Method": "OPTIONS"}),
    ("OPTIONS", [("Origin", ORIGIN), *[("Access-Control-Request-Method", "POST")] * 2]),
    ("OPTIONS", [*[("Origin", ORIGIN)] * 2, ("Access-Control-Request-Method", "POST")]),
    ("OPTIONS", {"Origin": ORIGIN}),
    ("OPTIONS", {"Access-Control-Request-Method": "POST"}),
    ("OPTIONS", {"Origin": ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "a"}),
    ("OPTIONS", {"Origin": ORIGIN, "Access-Control-Request-Method": "GET", "Upgrade": "websocket"}),
    ("options", {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}),
    ("GET", {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}),
    ("GET", {"Upgrade": "websocket"}),
    ("GET", {"Upgrade": "websocket", "Connection": "keep-alive"}),
    ("GET", {"Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__", "Connection": "Upgrade, HTTP2-Settings"}),
    *(("GET", {name: "OPTIONS"}) for name in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override")),
    ("GET", {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty"}),
    ("GET", {"Purpose": "prefetch", "Sec-Purpose": "prefetch", "X-Moz": "prefetch"}),
    ("GET", {"X-RateLimit-Deferred": "a.b"}),
    *((method, {}) for method in ("get", "Get", "HEAD", "head", "TRACE", "PUT", "PROPFIND", "OPTIONS")),
]


@pytest.mark.parametrize(("serve", "text"), APPS)
def test_nothing_that_a_client_writes_switches_counting_off(served, serve, text):
    client = served(serve, text)
    answers = []
    for (method, headers), _ in itertools.product(HOSTILE, range(4)):
        lines = headers.items() if isinstance(headers, dict) else headers
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in lines]
        answers.append(client.request(method, "/work", headers=encoded))
    ran = max(
        (int(answer.text.strip('"').removeprefix("run ")) for answer in answers if "run " in answer.text), default=0
    )
    assert runs(answers) <= ran <= 33, "three as requests, ten times that as preflights"
    assert {answer.status_code for answer in answers} <= {200, 400, 405, 429}


@pytest.mark.parametrize("text", [apps.CORS_OUTSIDE, apps.CORS_INSIDE], ids=["outside", "inside"])
def test_a_browser_is_not_denied_for_its_preflights_wherever_cors_stands(served, text):
    client = served(uvicorn, text)
    for _ in range(3):
        asked = preflight(client)
        assert (asked.status_code, asked.headers["Access-Control-Allow-Origin"]) == (200, ORIGIN)
        assert client.post("/work", headers={"Origin": ORIGIN}).text.startswith("run ")
    assert client.post("/work", headers={"Origin": ORIGIN}).status_code == 429


def test_the_users_of_one_address_are_not_denied_for_their_preflights(served):
    rule = RULE.replace("by: ip", "by: user|ip")
    client = served(uvicorn, apps.CORS_INSIDE, rule, client="client: {user: header:Authorization, secret: s}\n")
    for user in range(10):
        for _ in range(3):
            assert preflight(client, **{"Access-Control-Request-Headers": "authorization"}).status_code == 200
            answer = client.post("/work", headers={"Origin": ORIGIN, "Authorization": f"Bearer {user}"})
            assert answer.status_code == 200
    assert preflight(client).status_code == 429, "ten times the limit"
