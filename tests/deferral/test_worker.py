import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.deferral import deferrals_of
from ratelimit_mw.deferral.queue import of_asgi
from ratelimit_mw.deferral.worker import Target, Worker
from ratelimit_mw.errors import Unsendable
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.deferral.asking import REPORTS, START, ask_asgi, ask_wsgi, in_process, limiter, state
from tests.shells.asking import IP, http_scope
from tests.support.patience import aeventually, eventually

WITHIN = 30.0


class Site:
    """An app behind the middleware, which notes what reaches it, and responds as its `script` says, then with 200.

    An event in the script has the app wait for it, and respond with 200.
    """

    def __init__(self, engine, *script):
        self.engine = engine
        self.script = list(script)
        self.seen = []
        self.asgi = Asgi(self._asgi, limiter=engine)
        self.wsgi = Wsgi(self._wsgi, limiter=engine)

    async def _asgi(self, scope, receive, send):
        if scope["type"] == "lifespan":
            raise RuntimeError("not known here")
        body = (await receive())["body"]
        status = self._status(body, scope["client"][0], dict(scope["headers"]).get(b"idempotency-key", b"").decode())
        if status == "hang":
            await asyncio.sleep(WITHIN)
        if isinstance(status, asyncio.Event):
            await status.wait()
            status = 200
        if status == "raise":
            raise RuntimeError("as an app may")
        await send({"type": "http.response.start", "status": status, "headers": [(b"x-cost", b"3")]})
        await send({"type": "http.response.body", "body": b"made " + body})

    def _wsgi(self, environ, start_response):
        body = environ["wsgi.input"].read()
        status = self._status(body, environ["REMOTE_ADDR"], environ.get("HTTP_IDEMPOTENCY_KEY", ""))
        if status == "raise":
            raise RuntimeError("as an app may")
        start_response(f"{status} X", [("Content-Type", "text/plain")])
        return [b"made " + body]

    def _status(self, body, address, key):
        self.seen.append((body.decode(), address, key))
        return self.script.pop(0) if self.script else 200

    @property
    def bodies(self):
        return [body for body, _, _ in self.seen]


def put_off(engine, *bodies, ip=IP, ask=ask_asgi, **more):
    """Use the limit up, and put off requests with these bodies; where each one's fate is told."""
    while engine.check({"ip": ip, "method": "POST", "path": "/reports"}).allowed:
        pass
    answers = [ask(engine, body=body.encode(), ip=ip, **more) for body in bodies]
    assert [answer.status for answer in answers] == [202] * len(answers)
    return [answer.headers["location"] for answer in answers]


@asynccontextmanager
async def working(engine, target, *, workers=1, **options):
    """Workers at work, who are to be idle in the end."""
    staff = [Worker(engine, target, **{"listen": 0.05, **options}) for _ in range(workers)]
    tasks = [asyncio.ensure_future(worker.run()) for worker in staff]
    try:
        yield staff
    finally:
        for worker in staff:
            worker.stop()
        await asyncio.gather(*tasks)
        await target.close()


def abandon(server):
    """Make what workers hold look as if they had been silent for an hour."""
    stream = "{shop:deferred}:stream"
    with server.client() as client:
        numbers = [entry["message_id"] for entry in client.xpending_range(stream, "workers", "-", "+", 100)]
        client.xclaim(stream, "workers", "dead", 0, numbers, idle=3_600_000)


async def until(holds, clock=None):
    """Return when it holds; with a clock, while its time passes: a second in each look."""
    await aeventually(holds, meanwhile=lambda: clock.advance(1) if clock else None)


def fates(engine, locations):
    return [state(ask_wsgi, engine, location)["state"] for location in locations]


@pytest.mark.parametrize("shell", ["asgi", "wsgi"])
def test_each_goes_when_the_limit_allows_it_in_its_order(any_server, clock, shell):
    with limiter(any_server, clock=clock) as engine:
        site = Site(engine)
        locations = put_off(engine, "a", "b", "c")

        async def scenario():
            async with working(engine, in_process(getattr(site, shell))):
                for done in (1, 2, 3):
                    await until(lambda done=done: fates(engine, locations).count("done") == done, clock)
                    assert site.bodies == ["a", "b", "c"][:done]
                    assert clock.now() / 1e6 - START >= 40 + 60 * (done - 1), "each in a minute of its own"

        asyncio.run(scenario())
        assert {address for _, address, _ in site.seen} == {IP}
        assert [key for _, _, key in site.seen] == [location.rpartition("/")[2] for location in locations]
        told = state(ask_asgi, engine, locations[0])["response"]
        assert (told["status"], told["body"]) == (200, "made a")


def test_an_idempotency_key_of_the_client_s_own_is_kept(any_server, clock):
    with limiter(any_server, clock=clock) as engine:
        site = Site(engine)
        (location,) = put_off(engine, "a", headers={"Idempotency-Key": "its own"})
        clock.advance(60)
        asyncio.run(_work(engine, site, lambda: fates(engine, [location]) == ["done"]))
        assert [key for _, _, key in site.seen] == ["its own"]


async def _work(engine, site, holds, **options):
    async with working(engine, in_process(site.asgi), **options):
        await until(holds)


@pytest.mark.parametrize("shell", ["asgi", "wsgi"])
def test_what_fails_is_tried_again_and_parked_in_the_end(any_server, clock, shell):
    with limiter(any_server, {**REPORTS, "limit": "1 per second"}, clock=clock, max_attempts=3) as engine:
        site = Site(engine, 500, 429, "raise", 503, 201)
        bad, good = put_off(engine, "bad", "good")

        async def scenario():
            async with working(engine, in_process(getattr(site, shell))):
                await until(lambda: fates(engine, [bad, good]) == ["parked", "done"], clock)

        asyncio.run(scenario())
        assert site.bodies == ["bad", "bad", "bad", "good", "good"]
        told = state(ask_asgi, engine, bad)
        assert (told["reason"], told["response"]["status"]) == ("the request failed 3 times", 500)
        assert len({key for body, _, key in site.seen if body == "bad"}) == 1


def test_what_does_not_answer_in_time_is_unknown_and_not_sent_again(any_server, clock):
    with limiter(any_server, clock=clock) as engine:
        site = Site(engine, "hang")
        lost, next_ = put_off(engine, "lost", "next")
        clock.advance(60)

        async def scenario():
            async with working(engine, in_process(site.asgi), timeout=1.0):
                await until(lambda: fates(engine, [lost]) == ["unknown"])
            async with working(engine, in_process(site.asgi)):  # with time to answer, however busy the machine is
                await until(lambda: fates(engine, [next_]) == ["done"], clock)

        asyncio.run(scenario())
        assert site.bodies == ["lost", "next"]
        assert "no response within 1 s" in state(ask_asgi, engine, lost)["reason"]


@pytest.mark.parametrize("after", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"])
def test_what_an_app_took_and_did_not_answer_whole_is_unknown(any_server, clock, after):
    with limiter(any_server, clock=clock) as engine:
        (location,) = put_off(engine, "a")
        clock.advance(60)

        async def scenario():
            heard = []

            async def hang_up(reader, writer):
                heard.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(after)
                await writer.drain()
                writer.close()

            server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
            async with server:
                port = server.sockets[0].getsockname()[1]
                async with working(engine, Target(f"http://127.0.0.1:{port}")):
                    await until(lambda: fates(engine, [location]) == ["unknown"])
            assert len(heard) == 1
            assert heard[0].startswith(b"POST /reports HTTP/1.1\r\n")

        asyncio.run(scenario())


def test_an_app_that_is_not_there_is_waited_for_and_nothing_is_charged(any_server, clock, caplog):
    with limiter(any_server, clock=clock) as engine:
        (location,) = put_off(engine, "a")
        clock.advance(60)

        async def scenario():
            async with working(engine, Target("http://127.0.0.1:9"), timeout=5.0):
                await until(lambda: "the app is away" in caplog.text)
                await until(lambda: fates(engine, [location]) == ["queued"])
                await until(lambda: engine.peek({"ip": IP, "method": "POST", "path": "/reports"}).allowed)
            assert deferrals_of(engine).queue(engine.rules).load(location.rpartition("/")[2]).attempts == 0
            site = Site(engine)
            clock.advance(1)
            await _work(engine, site, lambda: fates(engine, [location]) == ["done"])
            assert site.bodies == ["a"]

        asyncio.run(scenario())


def test_an_app_that_has_no_time_gets_it_later(any_server, clock):
    with limiter(any_server, clock=clock, load="tests.deferral.test_worker:load") as engine:
        site = Site(engine)
        LOAD[0] = 1.0
        (location,) = put_off(engine, "a")
        clock.advance(60)

        async def scenario():
            async with working(engine, in_process(site.asgi)):
                await asyncio.sleep(0.5)  # what must not happen would have happened
                assert (site.seen, fates(engine, [location])) == ([], ["queued"])
                LOAD[0] = 0.0
                await until(lambda: fates(engine, [location]) == ["done"], clock)

        asyncio.run(scenario())
        assert site.bodies == ["a"]


LOAD = [0.0]


def load():
    return LOAD[0]


def test_the_backlog_of_one_client_does_not_delay_other_clients(any_server, clock):
    with limiter(any_server, clock=clock) as engine:
        site = Site(engine)
        ann = put_off(engine, *"abcdefgh")
        bob = put_off(engine, "x", ip="198.51.100.1")
        clock.advance(60)
        asyncio.run(_work(engine, site, lambda: fates(engine, [ann[0], *bob]) == ["done", "done"], at_once=1))
        assert sorted(site.bodies) == ["a", "x"]


def test_two_workers_apply_each_once(any_server, clock):
    with limiter(any_server, {**REPORTS, "limit": "3 per minute"}, clock=clock) as engine:
        site = Site(engine)
        locations = []
        for n in range(8):
            locations += put_off(engine, *(f"{n}{x}" for x in "abc"), ip=f"198.51.100.{n}")
        clock.advance(60)

        async def scenario():
            async with working(engine, in_process(site.asgi), workers=2):
                await until(lambda: set(fates(engine, locations)) == {"done"})

        asyncio.run(scenario())
        assert set(Counter(site.bodies).values()) == {1}
        assert len(site.bodies) == 24


def test_what_a_dead_worker_had_begun_is_unknown_and_what_it_had_not_is_done(any_server, clock):
    with limiter(any_server, clock=clock) as engine:
        site = Site(engine)
        (begun,) = put_off(engine, "begun")
        (handed_out,) = put_off(engine, "handed out", ip="198.51.100.1")
        clock.advance(60)
        queue = deferrals_of(engine).queue(engine.rules)
        queue.promote()
        entries = {entry.id: entry for entry in (queue.next("dead", 1.0), queue.next("dead", 1.0))}
        queue.begin(entries[begun.rpartition("/")[2]], "t")
        abandon(any_server)
        asyncio.run(_work(engine, site, lambda: fates(engine, [begun, handed_out]) == ["unknown", "done"]))
        assert site.bodies == ["handed out"]


def test_all_that_a_dead_worker_had_begun_is_found_one_after_the_other(any_server, clock):
    """It had many under way at once: each holds up its lane until it is found."""
    with limiter(any_server, clock=clock) as engine:
        locations = [put_off(engine, "a", ip=f"198.51.100.{n}")[0] for n in range(8)]
        queue = deferrals_of(engine).queue(engine.rules)
        queue.promote()
        entries = [queue.next("dead", 1.0) for _ in locations]
        for entry in entries:
            queue.begin(entry, "t")
        abandon(any_server)
        asyncio.run(_work(engine, Site(engine), lambda: set(fates(engine, locations)) == {"unknown"}))
        assert fates(engine, locations) == ["unknown"] * 8


def test_what_a_worker_failed_to_settle_is_left_for_another_when_it_stops(any_server, clock, caplog):
    class Broken:
        async def send(self, *arguments):
            raise RuntimeError("can't start new thread")

    with limiter(any_server, clock=clock) as engine:
        (location,) = put_off(engine, "a")
        clock.advance(60)

        async def stopping():
            worker = Worker(engine, Broken(), listen=0.05)
            task = asyncio.ensure_future(worker.run())
            await until(lambda: "a worker will claim it again" in caplog.text)
            worker.stop()
            await task

        asyncio.run(stopping())
        assert fates(engine, [location]) == ["running"]
        abandon(any_server)
        asyncio.run(_work(engine, Site(engine), lambda: fates(engine, [location]) == ["unknown"]))


def test_a_worker_that_comes_too_late_changes_nothing(any_server, clock, caplog):
    with limiter(any_server, clock=clock) as engine:
        answers = asyncio.Event()
        site = Site(engine, answers)
        (location,) = put_off(engine, "a")
        clock.advance(60)
        queue = deferrals_of(engine).queue(engine.rules)

        async def scenario():
            async with working(engine, in_process(site.asgi)):
                await until(lambda: site.seen)
                entry = queue.claim("another", 0.0)
                queue.settle(entry, "unknown", {"reason": "another one said so"})
                answers.set()
                await until(lambda: "another worker has already reported another result" in caplog.text)

        asyncio.run(scenario())
        assert state(ask_asgi, engine, location)["reason"] == "another one said so"


def test_a_ticket_that_is_over_is_not_used(any_server, clock):
    """A worker that was stopped between its beginning and its sending."""
    with limiter(any_server, clock=clock) as engine:
        site = Site(engine)
        (location,) = put_off(engine, "a")
        clock.advance(60)
        queue = deferrals_of(engine).queue(engine.rules)

        async def scenario():
            late = Late(in_process(site.asgi), lambda: queue.settle(queue.claim("b", 0.0), "unknown", {"reason": "x"}))
            async with working(engine, late):
                await until(lambda: late.answers)
            assert [answer.status for answer in late.answers] == [409]

        asyncio.run(scenario())
        assert (site.seen, fates(engine, [location])) == ([], ["unknown"])


class Late:
    def __init__(self, target, before):
        self.target, self.before, self.answers = target, before, []

    async def send(self, *arguments):
        self.before()
        self.answers.append(await self.target.send(*arguments))
        return self.answers[-1]

    async def close(self):
        await self.target.close()


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        pytest.param("since", "1", "the limit did not allow the request in time", id="too old"),
        pytest.param("request", "{", "the stored request can't be read", id="spoilt"),
        pytest.param("attempts", "many", "the stored request can't be read", id="spoilt beside it"),
    ],
)
def test_what_can_not_be_tried_any_more_is_parked(any_server, clock, field, value, reason):
    with limiter(any_server, clock=clock) as engine:
        site = Site(engine)
        (location,) = put_off(engine, "a")
        with any_server.client() as client:
            client.hset(f"{{shop:deferred}}:request:{location.rpartition('/')[2]}", field, value)
        clock.advance(60)
        queue = deferrals_of(engine).queue(engine.rules)
        asyncio.run(_work(engine, site, lambda: queue.length() == 0))
        with any_server.client() as client:
            client.hset(f"{{shop:deferred}}:request:{location.rpartition('/')[2]}", "attempts", 0)
        told = state(ask_asgi, engine, location)
        assert (told["state"], told["reason"], site.seen) == ("parked", reason, [])


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param({"target": "/reports\n"}, id="a target that is no URL"),
        pytest.param({"target": "/r\u00e9\u2603"}, id="a target that is no latin-1"),
        pytest.param({"method": 7}, id="a method that is no word"),
        pytest.param({"headers": [["x-name", "\u2603"]]}, id="a header that is no latin-1"),
    ],
)
@pytest.mark.parametrize("shell", ["asgi", "wsgi"])
def test_a_stored_request_that_is_not_valid_is_parked_and_does_not_delay_others(any_server, clock, shell, spoilt):
    with limiter(any_server, {**REPORTS, "limit": "1 per minute"}, clock=clock) as engine:
        site = Site(engine)
        bad, good = put_off(engine, "bad", "good")
        key = f"{{shop:deferred}}:request:{bad.rpartition('/')[2]}"
        with any_server.client() as client:
            client.hset(key, "request", json.dumps({**json.loads(client.hget(key, "request")), **spoilt}))
        clock.advance(60)

        async def scenario():
            async with working(engine, in_process(getattr(site, shell))):
                await until(lambda: fates(engine, [bad, good]) == ["parked", "done"])

        asyncio.run(scenario())
        assert site.bodies == ["good"]
        assert state(ask_asgi, engine, bad)["reason"].startswith("the request can't be sent: ")


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param({"method": "TO ASK"}, id="a method of two words"),
        pytest.param({"headers": (("x-name", " value "),)}, id="a header with spaces around it"),
    ],
)
def test_a_request_that_a_connection_refuses_is_not_sent(refused):
    stored = of_asgi(AsgiRequest(http_scope("/reports", method="POST")), None)._replace(**refused)

    async def scenario():
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            with pytest.raises(Unsendable, match=r"^LocalProtocolError$"):  # a header may be secret
                await target.send(stored, b"", {}, 10)
            await target.close()

    asyncio.run(scenario())


def test_what_the_limit_allows_too_late_is_parked_when_its_time_is_over(any_server, clock):
    with limiter(any_server, {**REPORTS, "limit": "1 per week"}, clock=clock, keep="1 hour") as engine:
        (location,) = put_off(engine, "a")

        async def scenario(client):
            async with working(engine, in_process(Site(engine).asgi)):
                await until(lambda: client.zcard("{shop:deferred}:waiting"))
                clock.advance(3602)
                await until(lambda: fates(engine, [location]) == ["parked"])

        with any_server.client() as client:
            asyncio.run(scenario(client))
        assert state(ask_asgi, engine, location)["reason"] == "the limit did not allow the request in time"


def test_what_the_limit_will_never_allow_is_parked(any_server, clock):
    with limiter(any_server, {**REPORTS, "limit": "5 per minute", "cost": "header:X-Cost"}, clock=clock) as engine:
        (location,) = put_off(engine, "a", headers={"X-Cost": "5"})
        engine.overrides.set({"ip": IP}, rule="reports", limit="4 per minute")
        asyncio.run(_work(engine, Site(engine), lambda: fates(engine, [location]) == ["parked"]))
        assert state(ask_asgi, engine, location)["reason"] == "the limit will never allow the request"


@pytest.mark.parametrize("client", [pytest.param({"secret": "s"}, id="a secret"), pytest.param({}, id="none")])
def test_a_file_that_joins_a_folder_leaves_the_queue_where_it_is(any_server, clock, tmp_path, client):
    """Its rules defer nothing, and its name and its domain come first."""
    shared = {"storage": {"url": any_server.url, "timeout": "5s"}, "load": "python:tests.deferral.asking:idle"}
    (tmp_path / "shop.yaml").write_text(json.dumps({"domain": "shop", "client": client, "rules": [REPORTS], **shared}))
    with RateLimiter(tmp_path, clock=clock) as engine:
        (location,) = put_off(engine, "a")
        others = {"domain": "images", "rules": [{"name": "images", "limit": "9 per hour"}]}
        (tmp_path / "images.yaml").write_text(json.dumps(others))
        clock.advance(60)
        with RateLimiter(tmp_path, clock=clock) as later:  # another process, as it starts now
            site = Site(later)
            asyncio.run(_work(later, site, lambda: fates(later, [location]) == ["done"]))
        engine.reload()
        assert (site.bodies, fates(engine, [location])) == (["a"], ["done"])


def test_a_raised_limit_lets_the_queue_drain(any_server, clock):
    with limiter(any_server, clock=clock) as engine:
        site = Site(engine)
        locations = put_off(engine, *"abc")
        engine.overrides.set({"ip": IP}, rule="reports", limit="100 per minute")
        asyncio.run(_work(engine, site, lambda: fates(engine, locations) == ["done"] * 3))
        assert site.bodies == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        pytest.param({"limit": "1 per minute", "count": {"status": 500}}, 1, id="what does not count is given back"),
        pytest.param({"limit": "5 per minute", "cost": "response:X-Cost"}, 2, id="the response tells the cost"),
        pytest.param({"limit": "1 per minute", "algorithm": "leaky_bucket", "burst": 1}, 0, id="turns at a bucket"),
    ],
)
def test_what_a_response_settles_is_settled(any_server, clock, rule, left):
    with limiter(any_server, {**REPORTS, **rule}, clock=clock) as engine:
        queue = deferrals_of(engine).queue(engine.rules)
        site = Site(engine)
        request = {"ip": IP, "method": "POST", "path": "/reports"}
        engine.check(request, cost=2 if "cost" in rule else 1)
        if "cost" in rule:
            engine.check(request, cost=3)
        location = ask_asgi(engine, body=b"a").headers["location"]
        clock.advance(120)
        asyncio.run(_work(engine, site, lambda: fates(engine, [location]) == ["done"]))
        assert engine.peek(request, cost=0).remaining == left
        assert queue.length() == 0


def test_a_place_among_the_concurrent_ones_is_held_while_it_is_carried_out(any_server):
    rule = {**REPORTS, "limit": "1 concurrent"}
    del rule["algorithm"]
    with limiter(any_server, rule, clock=ManualClock(START)) as engine:
        site = Site(engine)

        async def scenario():
            holding, go = asyncio.Event(), asyncio.Event()

            async def slow(scope, receive, send):
                holding.set()
                await go.wait()
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})

            from tests.shells.asking import exchange, http_scope

            first = asyncio.ensure_future(exchange(Asgi(slow, limiter=engine), http_scope("/reports", method="POST")))
            await holding.wait()
            start, _ = await exchange(site.asgi, http_scope("/reports", method="POST"))
            assert start["status"] == 202
            location = dict(start["headers"])[b"location"].decode()
            go.set()
            await first
            engine.clock.advance(1)
            await _work(engine, site, lambda: fates(engine, [location]) == ["done"])
            assert engine.engine.decide(_request(), rules=engine.rules).allowed, "the place is free again"

        asyncio.run(scenario())


def _request():
    from ratelimit_mw.identity.http_request import AsgiRequest
    from tests.shells.asking import http_scope

    return AsgiRequest(http_scope("/reports", method="POST"))


def test_a_worker_outlives_its_redis(fresh_server, clock, caplog):
    with limiter(fresh_server, clock=clock) as engine:
        site = Site(engine)
        put_off(engine, "lost with its Redis")

        async def scenario():
            async with working(engine, in_process(site.asgi)):
                fresh_server.kill()
                await until(lambda: "the queue is away" in caplog.text)
                fresh_server.restart()
                await until(lambda: "the queue is back" in caplog.text)
                locations = await asyncio.to_thread(put_off_again, engine)
                await until(lambda: fates(engine, locations) == ["done"], clock)

        asyncio.run(scenario())
        assert site.bodies[-1] == "later"


def put_off_again(engine):
    def put_off():
        if engine.check({"ip": IP, "method": "POST", "path": "/reports"}).limit is None:
            return None
        answer = ask_wsgi(engine, body=b"later")
        return [answer.headers["location"]] if answer.status == 202 else None

    return eventually(put_off, every=0.1)


def test_json_of_a_page_holds_what_the_app_said(any_server, clock):
    with limiter(any_server, clock=clock, max_body=6) as engine:
        site = Site(engine)
        short, long = put_off(engine, "a", "long")
        clock.advance(60)

        async def scenario():
            async with working(engine, in_process(site.asgi)):
                await until(lambda: fates(engine, [short]) == ["done"])
                await until(lambda: fates(engine, [long]) == ["done"], clock)

        asyncio.run(scenario())
        assert json.loads(ask_asgi(engine, short, method="GET").body)["response"]["body"] == "made a"
        assert "body" not in json.loads(ask_asgi(engine, long, method="GET").body)["response"]
