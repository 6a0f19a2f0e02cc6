"""docs/llm-tokens.md: the app in examples/llm limits tokens, whatever its clients do."""

import asyncio
import re
from contextlib import suppress
from types import SimpleNamespace

import httpx
import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect

from tests.shells.asking import http_scope
from tests.support.apps import ROOT, uvicorn
from tests.support.patience import eventually

PAGE = (ROOT / "docs/llm-tokens.md").read_text("utf-8")
EXAMPLE = ROOT / "examples/llm"
RULES, CODE = (EXAMPLE / "ratelimits.yaml").read_text("utf-8"), (EXAMPLE / "app.py").read_text("utf-8")
MINUTE = 2000
ANN = {"authorization": "Bearer key-of-ann"}


@pytest.fixture
def site(tmp_path, monkeypatch, clock, any_server):
    """The names of the example's module. Its limiter has a clock that stands, and time enough on a busy machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDIS_URL", any_server.url)
    (tmp_path / "ratelimits.yaml").write_text(RULES.replace('"}', '", timeout: 5s}', 1))
    code = CODE.replace('.with_name("ratelimits.yaml")', '.with_name("ratelimits.yaml"), clock=clock')
    names = {"clock": clock, "__name__": "site", "__file__": str(tmp_path / "app.py")}
    exec(compile(code.replace("sleep(0.005)", "sleep(0)"), "site", "exec"), names)
    yield SimpleNamespace(**names)
    names["limiter"].close()


def lines(text):
    """The lines of code, without what is beside them."""
    return {line.strip().partition("  #")[0] for line in text.splitlines()}


def test_the_page_shows_the_rules_and_lines_of_the_example():
    blocks = dict(re.findall(r"^```(yaml|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    assert RULES.endswith(blocks["yaml"])
    assert lines(blocks["python"]) <= lines(CODE)


def body(tokens, model="small"):
    return {"model": model, "prompt": "three short words", "max_tokens": tokens}


def left(site, user="ann", model="small"):
    return site.limiter.peek({"user": user}, rule="tokens", key=f"{user} {model}").remaining


def test_concurrent_requests_of_a_user_stream_no_more_than_the_limit(site):
    async def ask(client):
        answer = await client.post("/v1/chat", json=body(300), headers=ANN)
        return answer.status_code, len(answer.text.split()) if answer.status_code == 200 else 0

    async def scenario():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(site.app), base_url="http://site") as client:
            return [pair for _ in range(8) for pair in await asyncio.gather(*(ask(client) for _ in range(4)))]

    answers = asyncio.run(scenario())
    streamed = sum(tokens for _, tokens in answers)
    assert {status for status, _ in answers} == {200, 429}
    assert MINUTE - 303 < streamed + 3 * (streamed // 300) <= MINUTE
    assert left(site) == MINUTE - streamed - 3 * (streamed // 300)
    assert left(site, "bob") == left(site, model="large") == MINUTE


@pytest.mark.parametrize("wrapped", [pytest.param(True, id="in a middleware that cancels"), pytest.param(False, id="")])
@pytest.mark.parametrize("spec", ["2.3", "2.4"])
def test_a_client_that_leaves_early_is_charged_what_was_streamed(site, spec, wrapped):
    """Up to 2.3, Starlette cancels the response when it hears of it. From 2.4 on, sending raises."""
    sent = []
    if wrapped:
        site.app.add_middleware(BaseHTTPMiddleware, dispatch=lambda request, call_next: call_next(request))

    async def scenario():
        gone = asyncio.Event()
        text = httpx.Request("POST", "http://site", json=body(500)).content
        incoming = [{"type": "http.request", "body": text, "more_body": False}]

        async def receive():
            if incoming:
                return incoming.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if gone.is_set() and spec == "2.4":
                raise OSError("the client is gone")
            if message.get("body"):
                sent.append(message["body"])
            if len(sent) == 7:
                gone.set()

        headers = [(b"authorization", b"Bearer key-of-ann"), (b"content-type", b"application/json")]
        scope = http_scope("/v1/chat", method="POST", headers=headers)
        scope["asgi"] = {"version": "3.0", "spec_version": spec}
        with suppress(ClientDisconnect, OSError):  # what the server is told of a client that has gone, from 2.4 on
            await site.app(scope, receive, send)

    asyncio.run(scenario())
    assert 7 <= len(sent) < 20
    assert MINUTE - left(site) - 3 in (len(sent), len(sent) + 1), "the last token was streamed as the client left"


def test_a_request_that_can_never_fit_is_told_so(site):
    async def scenario():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(site.app), base_url="http://site") as client:
            chat = {**body(1000), "prompt": "word " * 1500}
            denied = await client.post("/v1/chat", json=chat, headers=ANN)
            unknown = await client.post("/v1/chat", json=body(5))
            return denied, unknown.status_code

    denied, unknown = asyncio.run(scenario())
    assert (denied.status_code, "retry-after" in denied.headers, unknown) == (429, False, 401)
    assert left(site) == MINUTE


def test_a_real_server_settles_when_a_client_hangs_up(tmp_path):
    (tmp_path / "ratelimits.yaml").write_text(RULES.replace("per minute", "per 10 years"))  # no window ends meanwhile
    (tmp_path / "site_app.py").write_text(
        CODE.replace("sleep(0.005)", "sleep(0.05)")
        + """
@app.get("/left")
async def left() -> int | None:
    return limiter.peek({"user": "ann"}, rule="tokens", key="ann small").remaining
"""
    )
    with uvicorn("site_app:app", cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}) as server:
        with (
            httpx.Client(base_url=server.url) as client,
            client.stream("POST", "/v1/chat", json=body(1000), headers=ANN) as answer,
        ):
            assert answer.status_code == 200
            assert httpx.get(f"{server.url}/left").json() == MINUTE - 1003, "all of it is reserved"
            for _ in zip(range(3), answer.iter_bytes(), strict=False):
                pass
        assert eventually(lambda: 3 < MINUTE - httpx.get(f"{server.url}/left").json() < 1003)
