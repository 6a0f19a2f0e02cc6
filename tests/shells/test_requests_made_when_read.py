"""Requests that the handle makes when the app reads them: of what the server told, not of what apps have changed since.

Rules that read nothing except the method, the path and the peer find the plan of a request without a request object.
"""

import asyncio
import gc
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import FastAPI

from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import IP, ask_asgi, ask_wsgi, http_scope, limiter, serve

ONE = {"name": "one", "by": "ip", "limit": "999 per minute"}
BY_PATH = {"name": "by path", "by": "path", "limit": "1 per minute", "on_demand": True}
BY_IP = {**BY_PATH, "name": "by ip", "by": "ip"}


def served(change, ask, *, times=3):
    """What a rule by the path says in an app that changes its scope, or its environ, before it asks the rule."""
    decisions = []

    async def asgi(scope, receive, send):
        change(scope)
        decisions.append((await scope["ratelimit"].check(ask)).allowed)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with limiter(rules=[ONE, BY_PATH, BY_IP]) as engine:
        for number in range(times):
            serve(Asgi(asgi, limiter=engine), http_scope(f"/a/{number % 2}"))
    return decisions


def served_wsgi(change, ask, *, times=3):
    decisions = []

    def app(environ, start_response):
        change(environ)
        decisions.append(environ["ratelimit.decision"].check(ask).allowed)
        start_response("200 OK", [])
        return [b""]

    with limiter(rules=[ONE, BY_PATH, BY_IP]) as engine:
        wsgi = Wsgi(app, limiter=engine)
        for number in range(times):
            environ = {"REQUEST_METHOD": "GET", "PATH_INFO": f"/a/{number % 2}", "REMOTE_ADDR": IP}
            list(wsgi(environ, lambda status, headers, exc_info=None: None))
    return decisions


def test_rules_that_read_the_query_read_it_of_each_request():
    statuses = []

    async def asgi(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def wsgi(environ, start_response):
        start_response("200 OK", [])
        return [b""]

    def started(status, headers, exc_info=None):
        statuses.append(int(status[:3]))

    rules = [{"name": "key", "by": "query:key", "limit": "2 per minute"}]
    for shell in (Asgi, Wsgi):
        with limiter(rules=rules) as engine:
            app = shell(asgi if shell is Asgi else wsgi, limiter=engine)
            for query in ("key=a", "key=a", "key=a", "key=b"):
                if shell is Asgi:
                    statuses.append(serve(app, http_scope(query_string=query.encode()))[0]["status"])
                else:
                    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "QUERY_STRING": query, "REMOTE_ADDR": IP}
                    list(app(environ, started))
    assert statuses == [200, 200, 429, 200] * 2


def test_a_mount_that_takes_its_part_off_the_path_changes_no_counter():
    def mount(scope):
        scope["root_path"], scope["path"] = "/a", "/b"

    def dispatch(environ):
        environ["SCRIPT_NAME"], environ["PATH_INFO"] = "/a", "/b"

    assert served(mount, "by path") == served_wsgi(dispatch, "by path") == [True, True, False]


def test_a_middleware_inside_that_changes_the_address_changes_no_counter():
    numbers = iter(range(9))

    def forward(scope):
        scope["client"] = (f"198.51.100.{next(numbers)}", 1)

    def forward_wsgi(environ):
        environ["REMOTE_ADDR"] = f"198.51.100.{next(numbers)}"

    assert served(forward, "by ip") == served_wsgi(forward_wsgi, "by ip") == [True, False, False]


@pytest.mark.parametrize(
    "first", [ONE, {**ONE, "throttle": {"soft": "1%"}}, {**ONE, "limit": "0 per minute", "shadow": True}]
)
@pytest.mark.parametrize(
    ("sent", "changed", "expected"),
    [
        pytest.param(None, "ann", [True, False, False], id="added"),
        pytest.param("forged", None, [True, True, True], id="removed"),
        pytest.param("ann", "{}", [True, True, True], id="replaced"),
    ],
)
def test_a_header_that_a_middleware_inside_has_changed_is_read_by_a_rule_that_the_app_asks_for(
    first, sent, changed, expected
):
    numbers, allowed = iter(range(99)), []
    by_user = {**BY_IP, "name": "by user", "by": "header:X-User"}

    async def asgi(scope, receive, send):
        scope["headers"] = [(b"x-user", changed.format(next(numbers)).encode())] if changed else []
        allowed.append((await scope["ratelimit"].check("by user")).allowed)

    def wsgi(environ, start_response):
        environ.pop("HTTP_X_USER", None)
        if changed:
            environ["HTTP_X_USER"] = changed.format(next(numbers))
        allowed.append(environ["ratelimit.decision"].check("by user").allowed)
        return []

    for served in (
        lambda engine: serve(
            Asgi(asgi, limiter=engine), http_scope(headers=[(b"x-user", sent.encode())] if sent else [])
        ),
        lambda engine: Wsgi(wsgi, limiter=engine)(
            {"REMOTE_ADDR": IP, **({"HTTP_X_USER": sent} if sent else {})}, lambda *_: None
        ),
    ):
        with limiter(rules=[first, by_user]) as engine:
            for _ in range(3):
                served(engine)
    assert allowed == expected * 2


def test_what_the_app_added_to_the_environ_is_read_after_the_response_has_started():
    user = {**BY_IP, "name": "by user", "by": "user"}
    allowed = []

    def app(environ, start_response):
        environ["app.user"] = next(users)
        start_response("200 OK", [])
        allowed.append(environ["ratelimit.decision"].check("by user").allowed)
        return [b""]

    users = iter(("ann", "bob", "ann"))
    with limiter(rules=[ONE, user], client={"user": "environ:app.user"}) as engine:
        for _ in range(3):
            list(Wsgi(app, limiter=engine)({"REMOTE_ADDR": IP}, lambda *_: None))
    assert allowed == [True, True, False]


def test_threads_that_refund_at_the_same_time_refund_a_charge_once(monkeypatch):
    both, made = threading.Barrier(2, timeout=10), Plan.verdict_of

    def made_by_both(plan, conclusion):
        both.wait()
        return made(plan, conclusion)

    def app(environ, start_response):
        start_response("200 OK", [])
        with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
            patch.setattr(Plan, "verdict_of", made_by_both)
            list(pool.map(lambda _: environ["ratelimit.decision"].refund(), range(2)))
        return []

    with limiter(rules=[{**ONE, "cost": 5}]) as engine:
        for _ in range(4):
            engine.check({"ip": IP})
        Wsgi(app, limiter=engine)({"REMOTE_ADDR": IP}, lambda *_: None)
        assert engine.peek({"ip": IP}).used == 20


def test_the_objects_that_the_app_added_to_the_environ_are_not_asked_for_attributes():
    asked = []

    class Session:
        def __getattr__(self, name):
            asked.append(name)
            raise RuntimeError(f"{name} is read, and no session is loaded")

    def app(environ, start_response):
        environ["app.session"] = Session()
        start_response("200 OK", [])
        return [b""]

    with limiter(rules=[ONE]) as engine:
        assert list(Wsgi(app, limiter=engine)({"REMOTE_ADDR": IP}, lambda *_: None)) == [b""]
    assert asked == []


def test_two_apps_with_one_limiter_read_their_own_paths():
    found = []

    async def app(scope, receive, send):
        found.append(scope["ratelimit"].rule)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with_root = FastAPI()
    with_root.root_path = "/api"
    with_root.mount("/", app)
    with limiter(rules=[{**ONE, "match": {"path": "/items"}}]) as engine:
        plain, rooted = Asgi(app, limiter=engine), Asgi(with_root, limiter=engine)
        for _ in range(3):
            for each in (plain, rooted):
                serve(each, http_scope("/api/items"))
                serve(each, http_scope("/items"))
        assert found == [None, "one", "one", "one"] * 3


def test_a_known_client_is_told_apart_by_method_and_path_and_prefix():
    get = {**ONE, "name": "get", "match": {"path": "/items", "methods": ["GET"]}}
    with limiter(rules=[get, {**ONE, "name": "other"}]) as engine:
        asked = [
            [len(serve_policies(engine, path, method, root)) for _ in range(3)]
            for path, method, root in (
                ("/items", "GET", ""),
                ("/items", "get", ""),
                ("/items", "HEAD", ""),
                ("/items", "POST", ""),
                ("/x/items", "GET", "/x"),
                ("/x/items", "GET", ""),
            )
        ]
    assert asked == [[2] * 3, [2] * 3, [2] * 3, [1] * 3, [2] * 3, [1] * 3]


def serve_policies(engine, path, method, root):
    found = []

    async def app(scope, receive, send):
        found.append(scope["ratelimit"].policies)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    serve(Asgi(app, limiter=engine), http_scope(path, method=method, root_path=root))
    return found[0]


def test_a_known_client_of_rules_without_a_path_is_told_apart_by_method_and_peer():
    reads = {**ONE, "name": "reads", "match": {"methods": ["GET"]}}
    posts = {**ONE, "name": "posts", "match": {"methods": ["POST"]}}
    with limiter(rules=[reads, posts]) as engine:
        asked = [
            [rule_and_remaining(engine, method, ip) for _ in range(3)]
            for method, ip in (("GET", IP), ("POST", IP), ("HEAD", IP), ("PUT", IP), ("get", IP), ("POST", None))
        ]
    assert asked == [
        [("reads", 998), ("reads", 997), ("reads", 996)],
        [("posts", 998), ("posts", 997), ("posts", 996)],
        [("reads", 995), ("reads", 994), ("reads", 993)],
        [(None, None)] * 3,
        [("reads", 992), ("reads", 991), ("reads", 990)],
        [("posts", 998), ("posts", 997), ("posts", 996)],
    ]


def rule_and_remaining(engine, method, ip):
    found = []

    async def app(scope, receive, send):
        found.append((scope["ratelimit"].rule, scope["ratelimit"].remaining))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    serve(Asgi(app, limiter=engine), http_scope("/", method=method, ip=ip))
    return found[0]


def test_preflights_of_a_known_client_are_counted_by_themselves():
    preflight = [(b"origin", b"https://a.example"), (b"access-control-request-method", b"GET")]

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with limiter("1 per minute") as engine:
        shell = Asgi(app, limiter=engine)
        statuses = []
        for headers in ([], preflight, [], preflight, preflight):
            start, _ = serve(shell, http_scope(method="OPTIONS", headers=headers))
            statuses.append(start["status"])
        assert statuses == [200, 200, 429, 200, 200]


@pytest.mark.parametrize("ask", [ask_asgi, ask_wsgi])
def test_a_known_client_is_seen_by_the_switch_a_block_and_an_override(ask):
    with limiter("9 per minute") as engine:
        remaining = [ask(engine).headers["x-ratelimit-remaining"] for _ in range(3)]
        engine.switch.set("off")
        assert ask(engine).rate == []
        engine.switch.set("on")
        engine.overrides.set({"ip": IP}, block=True)
        assert ask(engine).status == 403
        engine.overrides.remove({"ip": IP})
        engine.overrides.set({"ip": IP}, rule="everybody", limit="5 per minute")
        assert (remaining, ask(engine).headers["x-ratelimit-limit"]) == (["8", "7", "6"], "5")


def test_the_first_requests_are_examined_though_their_plan_is_known(caplog):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    caplog.set_level(logging.WARNING, "ratelimit_mw")
    with limiter("99 per minute") as engine:
        shell = Asgi(app, limiter=engine)
        for _ in range(5):
            serve(shell, http_scope())
        assert "X-Forwarded-For" not in caplog.text
        serve(shell, http_scope(headers=[(b"x-forwarded-for", b"198.51.100.1")]))
        assert caplog.text.count("a request came with X-Forwarded-For") == 1


def test_what_a_known_client_is_charged_late_counts():
    async def app(scope, receive, send):
        await scope["ratelimit"].charge(3)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with limiter("99 per minute") as engine:
        shell = Asgi(app, limiter=engine)
        left = [dict(serve(shell, http_scope())[0]["headers"])[b"x-ratelimit-remaining"] for _ in range(4)]
    assert left == [b"95", b"91", b"87", b"83"]


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda handle: None, id="nothing"),
        pytest.param(lambda handle: handle.decision, id="the decision"),
        pytest.param(lambda handle: handle.check("by ip"), id="a further rule"),
    ],
)
def test_what_the_app_reads_of_a_known_client_leaves_no_garbage(read):
    async def app(scope, receive, send):
        found = read(scope["ratelimit"])
        if asyncio.iscoroutine(found):
            await found
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask(shell):
        await shell(http_scope(), None, _drop)

    with limiter(rules=[ONE, BY_IP]) as engine, asyncio.Runner() as runner:
        shell = Asgi(app, limiter=engine)
        for _ in range(120):  # past the first requests, which are examined
            runner.run(ask(shell))
        gc.disable()
        try:
            garbage = []
            for _ in range(5):
                gc.collect()
                runner.run(ask(shell))
                garbage.append(gc.collect())
        finally:
            gc.enable()
    assert min(garbage) == 0, "another thread may leave some meanwhile, but not each time"


async def _drop(message):
    pass
