import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.deferral import deferrals_of
from ratelimit_mw.deferral.queue import HEADER, replay_header
from ratelimit_mw.identity.request import MappingRequest
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.deferral.asking import EACH_SHELL, REPORTS, START, Asked, ask_asgi, ask_wsgi, limiter, state
from tests.shells.asking import exchange, websocket_scope
from tests.support.patience import at_most

HARD = {"name": "hard", "match": {"path": "/reports"}, "limit": "1 per minute", "algorithm": "fixed_window"}


@pytest.fixture
def engine(any_server):
    with limiter(any_server) as made:
        yield made


def length(engine):
    return deferrals_of(engine).queue(engine.rules).length()


def deferred(ask, engine, **more):
    """The location of a request that is put off, and its mark."""
    while (answer := ask(engine, **more)).status == 200:
        pass
    assert answer.status == 202
    return answer.headers["location"]


def begun(engine):
    """A mark for the oldest request, whose replay is under way."""
    queue = deferrals_of(engine).queue(engine.rules)
    queue.promote()
    entry = queue.next("w", 0.05)
    ticket = deferrals_of(engine).tokens(engine.rules).ticket(entry.id)
    assert queue.begin(entry, ticket)
    return replay_header(entry.id, ticket)


@EACH_SHELL
def test_a_denied_request_is_deferred_and_gets_the_location_of_its_status_page(engine, ask):
    assert ask(engine, body=b"1").status == 200
    answer = ask(engine, body=b"2")
    assert (answer.status, answer.rate) == (202, ["1", "0", str(START + 40)])
    assert answer.headers["retry-after"] == "40"
    assert answer.headers["cache-control"] == "no-store"
    location = answer.headers["location"]
    assert location.startswith("/.ratelimit/deferred/")
    assert json.loads(answer.body)["location"] == location
    told = ask(engine, location, method="GET")
    assert (told.status, json.loads(told.body)["state"]) == (200, "queued")
    assert told.headers["content-type"] == "application/json"
    assert told.headers["x-content-type-options"] == "nosniff"
    head = ask(engine, location, method="HEAD")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", told.headers["content-length"])
    assert ask(engine, location, method="DELETE").status == 405


@EACH_SHELL
@pytest.mark.parametrize(
    "request_",
    [
        pytest.param({"method": "HEAD"}, id="HEAD"),
        pytest.param({"method": "OPTIONS"}, id="OPTIONS"),
        pytest.param({"body": b"x" * 11}, id="a long body"),
        pytest.param({"query_string": b"a#b", "QUERY_STRING": "a#b"}, id="an address that clients refuse"),
        pytest.param({"parts": [b"x" * 6, b"x" * 5]}, id="a long body in chunks"),
    ],
)
def test_a_request_that_can_not_be_deferred_is_denied(any_server, ask, request_):
    with limiter(any_server, max_body=10) as engine:
        ask(engine)
        assert ask(engine, **request_).status == 429
        assert length(engine) == 0
        assert ask(engine, parts=[b"12345", b"67890"]).status == 202


def test_a_length_that_is_none_is_denied(engine):
    ask_wsgi(engine)
    for length_ in ("-1", "x", "9" * 30, "+1"):
        assert ask_wsgi(engine, CONTENT_LENGTH=length_).status == 429
    for length_ in ("0" * 20 + "100000", "0" * 20 + "9" * 20, "0" * 5000 + "5"):
        assert ask_wsgi(engine, CONTENT_LENGTH=length_, body=b"x" * 100_000).status == 429, "the zeros hide a number"
    assert ask_wsgi(engine, CONTENT_LENGTH="5", body=b"abc").status == 429, "it was cut short"
    assert ask_wsgi(engine, parts=[b"x"], **{"wsgi.input_terminated": False}).status == 429, "nobody knows its end"
    assert length(engine) == 0


def test_a_request_whose_client_leaves_before_the_end_of_its_body_is_not_deferred(engine):
    ask_asgi(engine)
    assert ask_asgi(engine, parts=[]).status == 429
    assert length(engine) == 0


def test_a_websocket_is_closed_as_ever(any_server):
    rule = {**REPORTS, "limit": "1 per hour", "match": {"path": "/ws"}}
    with limiter(any_server, rule) as engine:
        app = Asked().asgi(engine)

        async def twice():
            for _ in range(2):
                try:
                    sent = await exchange(app, websocket_scope("/ws"))
                except KeyError:  # the app speaks http alone; it was let through
                    sent = []
            return sent

        assert [message["type"] for message in asyncio.run(twice())] == ["websocket.close"]


@EACH_SHELL
def test_a_full_queue_denies(any_server, ask):
    with limiter(any_server, max_length=1) as engine:
        answers = [ask(engine) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 202, 429]
        assert answers[-1].headers["retry-after"] == "40"


@EACH_SHELL
def test_one_client_can_not_fill_the_queue(any_server, ask):
    with limiter(any_server, max_length=10, max_each=2) as engine:
        assert [ask(engine).status for _ in range(4)] == [200, 202, 202, 429]
        assert [ask(engine, ip="198.51.100.1").status for _ in range(2)] == [200, 202]


@EACH_SHELL
def test_a_request_that_another_rule_denies_is_not_deferred(any_server, ask):
    with limiter(any_server, HARD) as engine:
        assert [ask(engine).status for _ in range(2)] == [200, 429]
        assert length(engine) == 0


@EACH_SHELL
def test_a_request_that_costs_more_than_the_limit_is_not_deferred(any_server, ask):
    rule = {**REPORTS, "limit": "5 per minute", "cost": "header:X-Cost"}
    with limiter(any_server, rule) as engine:
        assert ask(engine, headers={"x-cost": "6"}).status == 429
        assert [ask(engine, headers={"x-cost": "5"}).status for _ in range(2)] == [200, 202]


@EACH_SHELL
def test_a_shed_request_is_deferred_if_its_rule_defers(any_server, ask):
    low = {**REPORTS, "priority": "low"}
    other = {"name": "other", "match": {"path": "/other"}, "limit": "9 per minute", "priority": "low"}
    with limiter(any_server, low, other, load="tests.deferral.asking:busy") as engine:
        assert [ask(engine, path).status for path in ("/reports", "/other")] == [202, 503]
        assert length(engine) == 1


@EACH_SHELL
def test_a_blocked_client_is_refused(engine, ask):
    engine.overrides.set({"ip": "203.0.113.7"}, block=True)
    assert ask(engine).status == 403


@EACH_SHELL
def test_a_store_that_is_away_denies_and_is_never_a_500(fresh_server, ask):
    with limiter(fresh_server) as engine:
        location = deferred(ask, engine)
        fresh_server.kill()
        # The denial is remembered, so the limit holds; the queue is asked and does not answer.
        assert ask(engine).status == 429
        assert ask(engine, location, method="GET").status == 503


@EACH_SHELL
def test_requests_do_not_wait_one_after_another_for_a_queue_that_hangs(fresh_server, ask):
    with limiter(fresh_server) as engine, ThreadPoolExecutor(24) as threads:
        location = deferred(ask, engine)
        page = MappingRequest({}, method="GET", path=location)
        fresh_server.pause()
        with at_most(10):  # each attempt takes a second
            # The denial is remembered, so the decision does not wait for the server.
            denied = [threads.submit(ask, engine) for _ in range(23)]
            shown = threads.submit(deferrals_of(engine).status_asked(page, engine.rules))
            assert ({each.result().status for each in denied}, shown.result().status) == ({429}, 503)
        fresh_server.resume()


@EACH_SHELL
def test_the_page_of_what_is_done_has_the_response(engine, ask):
    location = deferred(ask, engine)
    queue = deferrals_of(engine).queue(engine.rules)
    queue.promote()
    entry = queue.next("w", 0.05)
    queue.begin(entry, "t")
    assert state(ask, engine, location)["state"] == "running"
    queue.settle(entry, "done", {"status": 201, "type": "text/html", "answer": b"<script>"})
    assert state(ask, engine, location) == {
        "state": "done",
        "message": "the response is below",
        "response": {"status": 201, "content_type": "text/html", "body": "<script>"},
    }


@EACH_SHELL
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"answer": b"\xff"}, {"body_base64": "/w=="}, id="bytes that are no text"),
        pytest.param({}, {}, id="too long to be kept"),
    ],
)
def test_what_can_not_be_shown_as_text(engine, ask, fields, said):
    location = deferred(ask, engine)
    queue = deferrals_of(engine).queue(engine.rules)
    queue.promote()
    entry = queue.next("w", 0.05)
    queue.begin(entry, "t")
    queue.settle(entry, "parked", {"reason": "it failed", "status": 500, **fields})
    told = state(ask, engine, location)
    assert (told["state"], told["reason"]) == ("parked", "it failed")
    assert told["response"] == {"status": 500, "content_type": "", **said}


@EACH_SHELL
@pytest.mark.parametrize("name", ["x", "x" * 36, "..%2f", "ä" * 36, ""])
def test_a_page_of_no_request_is_not_found(engine, ask, name):
    assert ask(engine, f"/.ratelimit/deferred/{name}", method="GET").status == 404


@EACH_SHELL
def test_what_merely_looks_like_a_page_is_the_app_s(engine, ask):
    for path in ("/.ratelimit/deferred", "/.ratelimit/deferredly/x", "/.ratelimit/deferred/a/b"):
        assert ask(engine, path, method="GET").body == b"made"


@EACH_SHELL
def test_status_pages_are_limited_like_any_request_and_never_deferred(any_server, ask):
    clock, everything = ManualClock(START), {**REPORTS, "match": {}, "limit": "2 per minute"}
    with limiter(any_server, everything, clock=clock) as engine:
        location = deferred(ask, engine)
        assert ask(engine, location, method="POST").status == 429
        clock.advance(60)
        answers = [ask(engine, location, method="GET") for _ in range(3)]
        assert [(answer.status, answer.rate[1]) for answer in answers] == [(200, "1"), (200, "0"), (429, "0")]
        assert length(engine) == 1


@EACH_SHELL
def test_a_status_page_returns_the_concurrent_place_that_it_took(any_server, ask):
    with limiter(any_server, {"name": "busy", "limit": "1 concurrent"}) as engine:
        location = deferred(ask, engine)
        assert [ask(engine, location, method="GET").status for _ in range(3)] == [200] * 3


def test_the_location_is_below_what_the_app_is_mounted_at(engine):
    for root in ("/sub", "//evil.example", "/a b"):
        asgi = deferred(ask_asgi, engine, path=f"{root}/reports", root_path=root)
        wsgi = deferred(ask_wsgi, engine, SCRIPT_NAME=root)
        mount = {"/sub": "/sub", "//evil.example": "/evil.example", "/a b": "/a%20b"}[root]
        assert {asgi.rpartition("/")[0], wsgi.rpartition("/")[0]} == {f"{mount}/.ratelimit/deferred"}


@EACH_SHELL
def test_a_replay_reaches_the_app_once_charged_to_its_client_and_as_its_client_s(any_server, clock, ask):
    with limiter(any_server, clock=clock) as engine:
        _check_replay(any_server, engine, clock, ask)


def _check_replay(server, engine, clock, ask):
    location = deferred(ask, engine, body=b"one", ip="198.51.100.9")
    clock.advance(60)
    mark, asked = begun(engine), Asked()
    answer = ask(engine, body=b"one", headers={HEADER: mark}, ip="10.0.0.1", asked=asked)
    assert (answer.status, answer.body, answer.rate[:2]) == (200, b"made", ["1", "0"])
    ((path, headers, body, address),) = asked.requests
    assert (path, body, address) == ("/reports", b"one", "198.51.100.9")
    assert HEADER not in headers, "the ticket is no business of the app's"
    assert not any("10.0.0.1" in key for key in list(server.keys())), "the worker's address is charged nothing"
    again = ask(engine, body=b"one", headers={HEADER: mark}, asked=asked)
    assert (again.status, again.headers[HEADER]) == (409, "stale")
    assert len(asked.requests) == 1
    assert state(ask, engine, location)["state"] == "running"


async def tenant(scope):
    return "acme"


def test_newer_rules_read_of_a_replay_what_they_need(any_server, clock):
    """Also an attribute that is awaited. The rules that deferred the request did not read it."""
    with limiter(any_server, clock=clock) as engine:
        deferred(ask_asgi, engine)
        clock.advance(60)
        mark = begun(engine)
    config = {
        "domain": "shop",
        "storage": {"timeout": "5s"},
        "load": "python:tests.deferral.asking:idle",
        "attributes": {"tenant": f"python:{__name__}:tenant"},
        "rules": [REPORTS, {"name": "tenants", "by": "tenant", "limit": "9 per minute"}],
    }
    with RateLimiter(config, storage=any_server.url, clock=clock) as newer:
        assert ask_asgi(newer, headers={HEADER: mark}).status == 200
        assert newer.peek({"tenant": "acme"}).remaining == 8


@EACH_SHELL
def test_a_replay_that_the_limit_denies_comes_again_when_it_may_pass(engine, ask):
    deferred(ask, engine)
    mark, asked = begun(engine), Asked()
    answer = ask(engine, headers={HEADER: mark}, asked=asked)
    assert (answer.status, float(answer.headers[HEADER]), asked.requests) == (503, 40.0, [])
    assert (ask(engine, headers={HEADER: mark}).headers[HEADER], length(engine)) == ("stale", 1)


@EACH_SHELL
@pytest.mark.parametrize("forge", ["x.y", "{id}.{id}", "{id}." + "x" * 36])
def test_a_forged_mark_buys_nothing(engine, ask, forge):
    location = deferred(ask, engine)
    forged = forge.replace("{id}", location.rpartition("/")[2])
    assert ask(engine, headers={HEADER: forged}).status == 202


def test_a_mark_lets_no_websocket_through(any_server):
    with limiter(any_server, {**REPORTS, "match": {}}) as engine:
        deferred(ask_asgi, engine)
        scope = websocket_scope("/reports", headers=[(HEADER.encode(), begun(engine).encode())])
        sent = asyncio.run(exchange(Asked().asgi(engine), scope))
        assert [message["type"] for message in sent] == ["websocket.close"]


@EACH_SHELL
def test_a_replay_waits_while_the_process_is_busy_and_its_ticket_stays_good(any_server, ask):
    clock, asked = ManualClock(START), Asked()
    with limiter(any_server, load="tests.deferral.asking:busy", clock=clock) as engine:
        deferred(ask, engine)
        clock.advance(60)
        mark = begun(engine)
        answer = ask(engine, headers={HEADER: mark}, asked=asked)
        assert (answer.status, answer.headers[HEADER], asked.requests) == (503, "1.000000", [])
    with limiter(any_server, clock=clock) as engine:
        assert ask(engine, headers={HEADER: mark}, asked=asked).status == 200


@EACH_SHELL
def test_a_replay_while_the_store_is_away_does_not_reach_the_app(fresh_server, ask):
    with limiter(fresh_server) as engine:
        deferred(ask, engine)
        mark, asked = begun(engine), Asked()
        fresh_server.kill()
        answer = ask(engine, headers={HEADER: mark}, asked=asked)
        assert (answer.status, answer.headers[HEADER], asked.requests) == (503, "1.000000", [])


@EACH_SHELL
def test_corrupt_data_in_the_queue_is_never_answered_with_500(any_server, engine, ask):
    location = deferred(ask, engine)
    mark, asked = begun(engine), Asked()
    with any_server.client() as client:
        client.hset(f"{{shop:deferred}}:request:{location.rpartition('/')[2]}", mapping={"request": "{", "since": "x"})
    assert ask(engine, location, method="GET").status == 503
    assert (ask(engine, headers={HEADER: mark}, asked=asked).status, asked.requests) == (409, [])


@pytest.mark.parametrize("shell", [pytest.param(Asgi, id="ASGI"), pytest.param(Wsgi, id="WSGI")])
def test_in_the_memory_of_a_process_there_is_no_queue(shell):
    config = {"domain": "shop", "rules": [REPORTS]}
    with pytest.raises(ConfigurationError) as refused:
        shell(lambda *_: None, config)
    assert str(refused.value) == (
        "on_limit: defer (reports) needs a queue that outlives this process and that workers can reach "
        "(set storage.url to a Redis; it is memory:// now)"
    )
    with RateLimiter(config, storage="memory://", clock=ManualClock(START)) as engine:
        assert [engine.check({"ip": "192.0.2.1", "path": "/reports"}).allowed for _ in range(2)] == [True, False]


def test_new_settings_are_taken_up(any_server, tmp_path):
    file = tmp_path / "r.yaml"
    text = json.dumps({"domain": "shop", "rules": [REPORTS], "defer": {"max_length": 1}})
    file.write_text(text)
    with RateLimiter(file, storage=any_server.url, clock=ManualClock(START)) as engine:
        assert [ask_asgi(engine).status for _ in range(3)] == [200, 202, 429]
        file.write_text(text.replace('"max_length": 1', '"max_length": 2'))
        engine.reload()
        assert [ask_asgi(engine).status for _ in range(2)] == [202, 429]
