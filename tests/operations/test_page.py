"""The live page as an app, under ASGI and under WSGI: its addresses, its headers, guards and threads."""

import asyncio
import json
import re
import subprocess
import sys
import threading

import pytest

from ratelimit_mw import ManualClock
from ratelimit_mw.operations.page import Page
from tests.operations.visiting import BEARER, EACH_SHELL, TOKEN, WRONG, page_of, visit_asgi, visit_wsgi
from tests.shells.asking import START, exchange, http_scope, limiter, websocket_scope
from tests.support.apps import ROOT


@EACH_SHELL
def test_the_page_is_one_document_of_30_kb_at_most(visit):
    page = page_of()
    answer = visit(page, headers=BEARER)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert len(answer.body) <= 30_000
    assert b"{{" not in answer.body
    assert re.findall(rb"(?:src|href)=\"?([^\" >]+)", answer.body) == [b"data:,"]
    assert b"innerHTML" not in answer.body


@EACH_SHELL
def test_each_document_has_a_nonce_of_its_own(visit):
    page, nonces = page_of(), set()
    for _ in range(4):
        answer = visit(page, headers=BEARER)
        (nonce,) = set(re.findall(r"'nonce-([\w-]+)'", answer.headers["content-security-policy"]))
        assert set(re.findall(rb"nonce=\"([^\"]*)\"", answer.body)) == {nonce.encode()}
        nonces.add(nonce)
    assert len(nonces) == 4


def every_answer(visit):
    page = page_of(guard=lambda context: "refuse" not in str(context.get("path", context.get("PATH_INFO"))))
    yield visit(page)
    yield visit(page, "")
    yield visit(page, "/refuse")
    yield visit(page, "/nothing", headers=BEARER)
    yield visit(page, "/state.json", method="DELETE")
    for path in ("/", "/state.json", "/metrics"):
        yield visit(page, path, headers=BEARER)


@EACH_SHELL
def test_every_answer_has_the_headers_that_protect_it(visit):
    statuses = []
    for answer in every_answer(visit):
        statuses.append(answer.status)
        policy = answer.headers["content-security-policy"]
        for each in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action "):
            assert each in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert int(answer.headers["content-length"]) == len(answer.body)
    assert statuses == [401, 401, 403, 404, 405, 200, 200, 200]


@EACH_SHELL
@pytest.mark.parametrize("path", ["/", "/state.json", "/metrics"])
def test_only_get_and_head_are_allowed(visit, path):
    page = page_of()
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        answer = visit(page, path, method=method, headers=BEARER)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@EACH_SHELL
@pytest.mark.parametrize("headers", [BEARER, {}])
def test_head_has_the_headers_of_get_and_no_body(visit, headers):
    page = page_of()
    get, head = (visit(page, method=method, headers=headers) for method in ("GET", "HEAD"))
    assert head.body == b""
    assert head.headers.keys() == get.headers.keys()
    assert (head.status, head.headers["content-length"]) == (get.status, get.headers["content-length"])


@EACH_SHELL
@pytest.mark.parametrize("root", ["", "/_limits", "/a b"])
def test_the_page_is_also_at_the_address_without_a_slash(visit, root):
    answer = visit(page_of(), "", root=root, headers=BEARER)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")


@EACH_SHELL
@pytest.mark.parametrize("root", ["", "/_limits"])
def test_the_page_knows_where_it_is_mounted(visit, root):
    page = page_of()
    assert visit(page, "/state.json", root=root, headers=BEARER).status == 200
    assert visit(page, "/_limits/state.json", root=root, headers=BEARER).status == 404


def test_a_path_without_the_root_path_is_read_too():
    """As old versions of Starlette and some servers send it."""
    scope = http_scope("/state.json", root_path="/_limits", headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
    assert asyncio.run(exchange(page_of(), scope))[0]["status"] == 200


@EACH_SHELL
def test_the_state_is_json(visit):
    answer = visit(page_of(), "/state.json", headers=BEARER)
    assert answer.headers["content-type"] == "application/json"
    assert answer.body.isascii()
    state = json.loads(answer.body)
    assert state["domain"] == "shop"
    assert [rule["limits"] for rule in state["rules"]] == [["2 per minute"]]


@EACH_SHELL
@pytest.mark.parametrize("text", ["", "Bearer", "Bearer ", "Bearer é\xff", "\xff", "Bearer " + "é" * 5_000])
def test_no_header_raises(visit, text):
    for value in (text, text.replace("Bearer", "Basic")):
        assert visit(page_of(), "/state.json", headers={"Authorization": value}).status == 401


@EACH_SHELL
def test_a_guard_decides_with_the_scope_or_the_environ(visit):
    seen = []

    def guard(context):
        seen.append(context)
        return context.get("REQUEST_METHOD", context.get("method")) == "GET"

    page = Page(limiter(), guard=guard)
    assert visit(page, "/state.json").status == 200
    assert visit(page, "/state.json", method="HEAD").status == 403
    assert len(seen) == 2


@EACH_SHELL
@pytest.mark.parametrize("value", [None, 1, "admin", object(), False])
def test_a_guard_that_does_not_return_true_admits_no_visitor(visit, value):
    answer = visit(Page(limiter(), guard=lambda _: value), "/state.json")
    assert (answer.status, answer.body) == (403, b"You may not see this page.\n")


@EACH_SHELL
def test_with_a_guard_and_a_token_a_visitor_needs_both(visit):
    page = page_of(guard=lambda context: context.get("client", [context.get("REMOTE_ADDR")])[0] == "10.0.0.1")
    assert visit(page, headers=BEARER).status == 403
    assert visit(page, ip="10.0.0.1").status == 401
    assert visit(page, ip="10.0.0.1", headers=BEARER).status == 200


@EACH_SHELL
def test_an_error_of_a_guard_passes_to_the_server(visit):
    def guard(_):
        raise ConnectionResetError("no session")

    with pytest.raises(ConnectionResetError, match="no session"):
        visit(Page(limiter(), guard=guard))


async def only_get(scope):
    await asyncio.sleep(0)
    return scope["method"] == "GET"


def test_a_guard_may_be_async_under_asgi():
    page = Page(limiter(), guard=only_get)
    assert visit_asgi(page).status == 200
    assert visit_asgi(page, method="HEAD").status == 403


def test_an_async_guard_is_an_error_under_wsgi():
    with pytest.raises(TypeError, match="WSGI cannot await"):
        visit_wsgi(Page(limiter(), guard=only_get))


def test_a_websocket_is_refused():
    sent = asyncio.run(exchange(page_of(), websocket_scope("/"), [{"type": "websocket.connect"}]))
    assert sent == [{"type": "websocket.close", "code": 1000}]


def test_a_page_reports_until_it_is_closed():
    engine = limiter()
    page = page_of(engine)
    assert engine.engine.on_denial is not None
    page.close()
    assert engine.engine.on_denial is None


@pytest.mark.parametrize("kind", ["mqtt", "lifespan"])
def test_an_unknown_scope_is_an_error(kind):
    with pytest.raises(ValueError, match=f"cannot serve '{kind}'"):
        asyncio.run(exchange(page_of(), {"type": kind}))


class Slow:
    """Data that take until `go` is set."""

    def __init__(self):
        self.calls, self.begun, self.go = [], threading.Event(), threading.Event()

    def state(self):
        self.calls.append(threading.current_thread())
        self.begun.set()
        assert self.go.wait(60)
        return {"domain": "slow"}

    def close(self):
        pass


def authorized(path):
    return http_scope(path, headers=[(b"authorization", f"Bearer {TOKEN}".encode())])


def test_the_loop_serves_others_while_data_are_read():
    async def run():
        page = page_of()
        page.close()
        page._live = slow = Slow()
        waiting = asyncio.create_task(exchange(page, authorized("/state.json")))
        assert await asyncio.to_thread(slow.begun.wait, 60)
        assert (await exchange(page, authorized("/")))[0]["status"] == 200
        slow.go.set()
        assert (await waiting)[1]["body"] == b'{"domain":"slow"}'
        return slow.calls

    calls = asyncio.run(run())
    assert threading.current_thread() not in calls


def test_the_page_works_under_trio():
    import trio

    start, body = trio.run(exchange, page_of(), authorized("/state.json"))
    assert start["status"] == 200
    assert json.loads(body["body"])["domain"] == "shop"


def test_a_page_with_a_wrong_token_writes_no_token_into_its_answers():
    page = page_of()
    for headers in (WRONG, BEARER):
        assert TOKEN.encode() not in visit_asgi(page, "/state.json", headers=headers).body


@EACH_SHELL
def test_the_metrics_are_those_of_the_limiter(visit, monkeypatch):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    engine = limiter(clock=ManualClock(START))
    page = page_of(engine)
    for _ in range(2):
        engine.check({"ip": "203.0.113.1"})
        answer = visit(page, "/metrics", headers=BEARER)
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert b'ratelimit_requests_total{outcome="allowed"} 2.0' in answer.body.splitlines()


@EACH_SHELL
def test_metrics_without_prometheus_client_are_answered_with_what_to_install(visit, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "ratelimit_mw.telemetry.prometheus", raising=False)
    answer = visit(page_of(), "/metrics", headers=BEARER)
    assert answer.status == 501
    assert b"pip install" in answer.body


_PROCESS = """
import sys
from prometheus_client import Counter
from ratelimit_mw import RateLimiter
from ratelimit_mw import ManualClock
from ratelimit_mw.operations.page import Page
from ratelimit_mw.telemetry.prometheus import export

limiter = RateLimiter({"domain": "d", "rules": [{"name": "a", "limit": "9 per minute"}]})
if "export" in sys.argv:
    export(limiter)
Counter("orders", "Orders.").inc()
page = Page(limiter, guard=lambda environ: True)
limiter.check({})
limiter.close()  # moves the counts into the files
environ = {"SCRIPT_NAME": "", "PATH_INFO": "/metrics", "REQUEST_METHOD": "GET", "wsgi.url_scheme": "http"}
(body,) = page(environ, lambda status, headers: print(status))
print(body.decode())
"""


def test_with_several_processes_the_metrics_are_those_that_the_app_exports(tmp_path):
    """And its export is not repeated: both would add to the same files."""
    for argument, expected in (("nothing", "501 Not Implemented"), ("export", "200 OK")):
        environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", _PROCESS, argument], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(expected)
        assert "orders" not in done.stdout
    assert 'ratelimit_requests_total{outcome="allowed"} 1.0' in done.stdout.splitlines()
