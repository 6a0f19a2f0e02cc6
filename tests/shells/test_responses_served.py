"""What clients are told over real HTTP: the draft's fields, formats by Accept, a rule's own words, hidden rules."""

import httpx
import pytest
from websockets.sync.client import connect

from tests.shells.asking import IP
from tests.structured_fields import read
from tests.support.apps import gunicorn, uvicorn

RULES = """
domain: d
storage: {{url: "{url}", timeout: 5s}}
client: {{trusted_proxies: [127.0.0.0/8], user: "header:X-User"}}
response:
  status: 403
  headers: [x-ratelimit, ratelimit, retry-after]
  reset: delta
  body: [problem, html]
  message: API rate limit exceeded for {{ip}}.
  documentation_url: https://example.com/limits
rules:
  - {{name: "größer <b>", by: user, limit: [2 per day, 9 per week], algorithm: fixed_window}}
  - {{name: wide, by: ip, limit: 1000 per day}}
  - name: trap
    match: {{path: /trap}}
    limit: 0/s
    response: {{status: 404, message: Not found, hidden: true}}
"""
SERVED = """
from ratelimit_mw.{kind} import RateLimitMiddleware

async def asgi(scope, receive, send):
    if scope["type"] == "websocket":
        await send({{"type": "websocket.accept"}})
        await send({{"type": "websocket.close"}})
        return
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": b"hello"}})

def wsgi(environ, start_response):
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]

app = RateLimitMiddleware({kind}, "ratelimits.yaml")
"""
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
NAME = "gr%C3%B6%C3%9Fer <b>"


@pytest.mark.parametrize(("kind", "serve"), [("asgi", uvicorn), ("wsgi", gunicorn)])
def test_what_a_client_reads(tmp_path, any_server, kind, serve):
    (tmp_path / "ratelimits.yaml").write_text(RULES.format(url=any_server.url), encoding="utf-8")
    (tmp_path / "served.py").write_text(SERVED.format(kind=kind))
    ada = {"X-User": "ada", "X-Forwarded-For": IP}
    with serve("served:app", cwd=tmp_path) as running, httpx.Client(base_url=running.url, headers=ada) as client:
        allowed = [client.get("/") for _ in range(2)]
        denied, page, head = client.get("/"), client.get("/", headers=BROWSER), client.head("/")
        trap = client.get("/trap", headers={"X-User": "eve"})
        if kind == "asgi":
            bob = {"X-User": "bob"}
            with connect(f"{running.url.replace('http', 'ws')}/", additional_headers=bob, proxy=None) as socket:
                accepted = socket.response.headers
            assert [left["r"] for _, left in read(accepted["RateLimit"])] == [1, 8, 999]
        assert "Traceback" not in running.log

    assert [answer.status_code for answer in allowed] == [200, 200]
    assert allowed[0].headers["X-RateLimit-Limit"] == "2"
    policies = [(f"{NAME} per day", 2, 86_400), (f"{NAME} per week", 9, 604_800), ("wide", 1000, 86_400)]
    told = read(allowed[0].headers["RateLimit-Policy"])
    assert [(name, about["q"], about["w"]) for name, about in told] == policies
    assert [left["r"] for _, left in read(allowed[1].headers["RateLimit"])] == [0, 7, 998]

    problem = denied.json()
    assert (denied.status_code, denied.headers["Content-Type"]) == (403, "application/problem+json")
    assert (problem["status"], problem["detail"]) == (403, f"API rate limit exceeded for {IP}.")
    assert problem["violated-policies"] == [f"{NAME} per day"]
    name, left = read(denied.headers["RateLimit"])[0]
    assert (name, left["r"]) == (f"{NAME} per day", 0)
    assert 0 < left["t"] <= int(denied.headers["Retry-After"]) <= 86_400
    assert int(denied.headers["X-RateLimit-Reset"]) <= 86_400

    assert (page.status_code, page.headers["Content-Type"]) == (403, "text/html; charset=utf-8")
    assert f"<p>API rate limit exceeded for {IP}.</p>" in page.text
    assert {answer.headers["Vary"] for answer in (denied, page, head)} == {"Accept"}
    assert head.content == b""
    assert head.headers["Content-Length"] == denied.headers["Content-Length"]

    not_found = {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "Not found"}
    assert (trap.status_code, trap.json()) == (404, not_found)
    assert not {"x-ratelimit-limit", "ratelimit", "ratelimit-policy", "retry-after"} & set(trap.headers)
