"""Rules that count the messages of WebSockets, over sockets driven by hand."""

import asyncio
from contextlib import suppress

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from tests.shells.asking import IP, START, ask_wsgi, websocket_scope
from tests.support.counts import shadow_denials
from tests.support.patience import aeventually
from tests.support.proxy import Proxy

CHAT = {
    "name": "chat",
    "match": {"path": "/chat"},
    "messages": "drop",
    "limit": "3 per minute",
    "algorithm": "fixed_window",
}
LATER = "too many messages; retry after 40 s"  # START is 20 s into a minute


def limiter(*rules, storage=None, clock=None, **sections):
    patient = {"timeout": "10s"}  # a store on a busy machine is slow, not away
    config = {"domain": "d", "storage": patient, "rules": [*rules], **sections}
    return RateLimiter(config, storage=storage, clock=clock or ManualClock(START))


class Socket:
    """One WebSocket: `say` puts messages before the app, `sent` has what the app and we sent."""

    def __init__(self, engine, app, path="/chat", **scope):
        self.sent = []
        self.incoming = asyncio.Queue()
        self.incoming.put_nowait({"type": "websocket.connect"})

        async def noted(scope, receive, send):
            self.receive = receive
            await app(scope, receive, send)

        served = RateLimitMiddleware(noted, limiter=engine)
        self.task = asyncio.create_task(served(websocket_scope(path, **scope), self.incoming.get, self.send))

    async def send(self, message):
        self.sent.append(message)

    def say(self, *texts):
        for text in texts:
            self.incoming.put_nowait({"type": "websocket.receive", "text": str(text)})

    async def leave(self):
        self.incoming.put_nowait({"type": "websocket.disconnect", "code": 1001})
        await self.task

    @property
    def closed(self):
        return [
            (message["code"], message.get("reason")) for message in self.sent if message["type"] == "websocket.close"
        ]


class Gone(Socket):
    """One whose client leaves before it can be told of the close."""

    async def send(self, message):
        if message["type"] == "websocket.close":
            raise ConnectionResetError


def listening(seen):
    """An app that notes what it receives, until its client is gone."""

    async def app(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            seen.append(message["text"])
        seen.append((message["code"], message.get("reason")))

    return app


async def said(engine, number, path="/chat", **scope):
    """What the app saw of so many messages over a new socket, and how the socket was closed."""
    seen = []
    socket = Socket(engine, listening(seen), path, **scope)
    socket.say(*range(number))
    await socket.leave()
    return seen, socket.closed


GONE = (1001, None)


def test_past_the_limit_messages_are_dropped_and_the_socket_stays():
    clock = ManualClock(START)
    engine = limiter(CHAT, clock=clock)

    async def main():
        seen = []
        socket = Socket(engine, listening(seen))
        socket.say("a", "b", "c", "d", "e")
        await decided(socket)
        clock.advance(60)
        socket.say("f")
        await socket.leave()
        return seen, socket.closed

    assert asyncio.run(main()) == (["a", "b", "c", "f", GONE], [])


def test_past_the_limit_the_socket_is_closed():
    engine = limiter({**CHAT, "messages": "close"})
    assert asyncio.run(said(engine, 5)) == ([*"012", (1008, LATER)], [(1008, LATER)])


async def decided(socket):
    """Return when all that was said is decided on; only the middleware knows what it holds."""
    await aeventually(lambda: socket.incoming.empty() and socket.receive.__self__._pending is None)


@pytest.mark.parametrize(
    ("by", "second"),
    [
        pytest.param("ip", [], id="two sockets of one identity share"),
        pytest.param("connection", [*"012"], id="each connection has its own"),
        pytest.param(["connection", "ip"], [], id="both must allow"),
        pytest.param("connection+ip", [*"012"], id="a pair is the connection's own"),
        pytest.param("header:x-room|connection", [*"012"], id="the connection, where there is no room"),
    ],
)
@pytest.mark.parametrize("storage", ["memory", "Redis"])
def test_who_shares_a_counter(request, by, second, storage):
    url = "memory://" if storage == "memory" else request.getfixturevalue("any_server").url

    async def main():
        async with limiter({**CHAT, "by": by}, storage=url) as engine:
            return [(await said(engine, 5))[0] for _ in range(2)]

    assert asyncio.run(main()) == [[*"012", GONE], [*second, GONE]]


def test_what_is_counted_by_connection_never_reaches_the_store(any_server):
    async def main():
        async with limiter({**CHAT, "by": "connection"}, storage=any_server.url) as engine:
            return await said(engine, 5)

    assert asyncio.run(main()) == ([*"012", GONE], [])
    assert any_server.keys() == []


def test_what_another_counter_denies_is_given_back_to_the_connection():
    clock = ManualClock(START)
    shared = {**CHAT, "name": "shared", "limit": "1 per 10 seconds"}
    engine = limiter({**CHAT, "by": "connection"}, shared, clock=clock)

    async def main():
        seen = []
        socket = Socket(engine, listening(seen))
        for text in "abc":
            socket.say(text, "dropped", "dropped")
            await decided(socket)
            clock.advance(10)
        await socket.leave()
        return seen

    assert asyncio.run(main()) == [*"abc", GONE]


def test_handshakes_and_messages_are_counted_apart():
    everything = {"name": "everything", "limit": "2 per minute", "algorithm": "fixed_window"}
    engine = limiter(everything, CHAT)

    async def main():
        first = await said(engine, 9)
        return first, await said(engine, 9), await said(engine, 9)

    opened, again, denied = asyncio.run(main())
    assert opened == ([*"012", GONE], [])
    assert again == ([GONE], []), "a second handshake is no message"
    assert denied[0] == [], "nine messages are no handshake"
    assert engine.peek({"ip": IP}).policies[0].rule == "everything"


@pytest.mark.parametrize(
    ("path", "sections"),
    [
        pytest.param("/news", {}, id="another path"),
        pytest.param("/chat", {"exempt": [{"path": "/chat"}]}, id="exempt"),
        pytest.param("/chat", {"overrides": [{"client": {"ip": IP}, "exempt": True}]}, id="an exempt client"),
        pytest.param(
            "/chat", {"overrides": [{"client": {"ip": IP}, "rule": "chat", "limit": "unlimited"}]}, id="lifted"
        ),
    ],
)
def test_who_is_not_limited(path, sections):
    assert asyncio.run(said(limiter(CHAT, **sections), 5, path)) == ([*"01234", GONE], [])


def test_a_mount_that_takes_its_part_of_the_path_changes_nothing():
    engine = limiter({**CHAT, "match": {"path": "/api/chat"}})
    seen = []

    async def mounted(scope, receive, send):
        scope["root_path"] = "/api"
        await listening(seen)(scope, receive, send)

    async def main():
        socket = Socket(engine, mounted, "/api/chat")
        socket.say(*"abcd")
        await socket.leave()

    asyncio.run(main())
    assert seen == [*"abc", GONE]


def test_a_user_whom_the_app_finds_at_the_handshake_counts():
    opening = {"name": "opening", "by": "user|ip", "limit": "9 per minute"}
    engine = limiter(opening, {**CHAT, "by": "user"}, client={"user": "scope:user", "secret": "s"})
    seen = []

    async def authenticated(scope, receive, send):
        scope["user"] = "ada"
        await listening(seen)(scope, receive, send)

    async def main():
        for _ in range(2):
            socket = Socket(engine, authenticated)
            socket.say(*"ab")
            await socket.leave()

    asyncio.run(main())
    assert seen == [*"ab", GONE, "a", GONE]


def test_a_user_whom_an_async_function_finds_counts():
    client = {"user": "python:tests.shells.test_messages:room", "secret": "s"}
    engine = limiter({**CHAT, "by": "user", "limit": "1 per minute"}, client=client)
    assert asyncio.run(said(engine, 3, headers=[(b"x-room", b"a")])) == (["0", GONE], [])
    assert asyncio.run(said(engine, 3, headers=[(b"x-room", b"b")])) == (["0", GONE], [])
    assert asyncio.run(said(engine, 3, headers=[(b"x-room", b"b")])) == ([GONE], [])


async def room(scope):
    return dict(scope["headers"])[b"x-room"].decode()


def test_an_open_socket_belongs_to_whom_the_newest_rules_say(tmp_path):
    file = tmp_path / "r.yaml"
    text = "domain: d\nclient: {user: '%s', secret: s}\nrules:\n- {name: a, messages: drop, limit: 1/h, by: user}\n"
    file.write_text(text % "header:x-user")

    async def main():
        seen = []
        with RateLimiter(file, clock=ManualClock(START)) as engine:
            headers = [(b"x-user", b"ada"), (b"x-team", b"red")]
            socket = Socket(engine, listening(seen), headers=headers)
            socket.say(*"ab")
            await decided(socket)
            file.write_text(text % "header:x-team")
            engine.reload()
            socket.say(*"cd")
            await socket.leave()
        return seen

    assert asyncio.run(main()) == ["a", "c", GONE]


def test_rules_that_change_hold_for_open_sockets(tmp_path):
    file = tmp_path / "r.yaml"
    text = "domain: d\nrules:\n- {name: chat, match: {path: /chat}, messages: drop, limit: %s, by: connection}\n"
    file.write_text(text % "1 per hour")

    async def main():
        seen = []
        with RateLimiter(file, clock=ManualClock(START)) as engine:
            socket = Socket(engine, listening(seen))
            socket.say(*"ab")
            await decided(socket)
            file.write_text(text % "2 per hour")
            engine.reload()
            socket.say(*"cd")
            await decided(socket)
            file.write_text("domain: d\nrules:\n- {name: chat, limit: 5 per hour}\n")
            engine.reload()
            socket.say(*"ef")
            await socket.leave()
        return seen

    assert asyncio.run(main()) == ["a", "c", "e", "f", GONE]


def test_a_client_that_is_blocked_meanwhile_is_put_out():
    engine = limiter(CHAT)

    async def main():
        seen = []
        socket = Socket(engine, listening(seen))
        socket.say("a")
        await aeventually(lambda: seen)
        engine.overrides.set({"ip": IP}, block=True)
        socket.say("b")
        await socket.task
        return seen, socket.closed

    assert asyncio.run(main()) == (["a", (1008, "forbidden")], [(1008, "forbidden")])


def test_the_strictest_of_several_decides_what_becomes_of_the_socket():
    closing = {**CHAT, "name": "closing", "messages": "close", "limit": "5 per minute", "by": "connection"}
    engine = limiter({**CHAT, "cost": 2, "limit": "4 per minute"}, closing)
    assert asyncio.run(said(engine, 5)) == ([*"01", GONE], []), "what is dropped does not count"
    engine = limiter({**CHAT, "limit": "2 per minute"}, {**closing, "limit": "2 per minute", "by": "ip"})
    assert asyncio.run(said(engine, 5)) == ([*"01", (1008, LATER)], [(1008, LATER)])


def test_a_shadow_rule_stops_no_message():
    engine = limiter({**CHAT, "shadow": True, "messages": "close"})
    assert asyncio.run(said(engine, 5)) == ([*"01234", GONE], [])
    assert shadow_denials(engine) == {"chat": 2}


@pytest.mark.parametrize("by", ["ip", "connection"])
@pytest.mark.parametrize("past", ["drop", "close"])
@pytest.mark.parametrize("storage", ["memory", "Redis"])
def test_who_is_banned_meanwhile(request, by, past, storage):
    url = "memory://" if storage == "memory" else request.getfixturevalue("any_server").url
    clock = ManualClock(START)
    ban = {"after": "1 denials in 1 minute", "for": "10 minutes"}

    async def main():
        seen = []
        async with limiter({**CHAT, "by": by, "messages": past, "ban": ban}, storage=url, clock=clock) as engine:
            socket = Socket(engine, listening(seen))
            socket.say(*"abcde")
            await (decided(socket) if past == "drop" else socket.task)
            clock.advance(120)
            socket.say("f")
            await socket.leave()
        return seen, socket.closed

    told = (1008, "too many messages; retry after 600 s")
    assert asyncio.run(main()) == (([*"abc", GONE], []) if past == "drop" else ([*"abc", told], [told]))


def test_what_no_waiting_admits_names_no_time():
    engine = limiter({**CHAT, "messages": "close", "limit": "0 per day"})
    assert asyncio.run(said(engine, 2)) == ([(1008, "too many messages")], [(1008, "too many messages")])


def test_messages_wait_for_their_turn_in_order():
    queue = {**CHAT, "limit": "50 per second", "algorithm": "leaky_bucket", "burst": 10}

    async def main():
        loop, moments, texts = asyncio.get_running_loop(), [], []

        async def app(scope, receive, send):
            await receive()
            while (message := await receive())["type"] == "websocket.receive":
                texts.append(message["text"])
                moments.append(loop.time())

        with RateLimiter({"domain": "d", "rules": [queue]}) as engine:
            socket = Socket(engine, app)
            socket.say(*"abcdef")
            await socket.leave()
        return texts, moments

    texts, moments = asyncio.run(main())
    assert texts == [*"abcdef"]
    assert moments[-1] - moments[0] >= 0.09  # five turns of 20 ms


def test_an_app_that_stops_waiting_loses_nothing_and_pays_once(any_server):
    async def main():
        with Proxy(any_server.port) as proxy:
            proxy.delay(0.05)
            rule = {**CHAT, "limit": "4 per hour"}
            engine = RateLimiter({"domain": "d", "rules": [rule], "storage": {"url": proxy.url, "timeout": "10s"}})
            texts = []

            async def app(scope, receive, send):
                await receive()
                while len(texts) < 4:
                    with suppress(TimeoutError):
                        message = await asyncio.wait_for(receive(), 0.01)
                        texts.append(message["text"])

            async with engine:
                socket = Socket(engine, app)
                socket.say(*"abcd")
                async with asyncio.timeout(30):
                    await socket.task
            return texts

    assert asyncio.run(main()) == [*"abcd"]


def test_an_app_may_wait_twice_at_a_time():
    async def main():
        seen = []

        async def app(scope, receive, send):
            await receive()
            seen.extend(message["text"] for message in await asyncio.gather(receive(), receive()))

        socket = Socket(limiter(CHAT), app)
        socket.say(*"ab")
        await socket.task
        return seen

    assert asyncio.run(main()) == ["a", "b"]


def test_after_the_close_the_app_is_told_as_if_the_client_had_left():
    found = []

    async def app(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        found.extend([(await receive())["type"] for _ in range(5)])
        with pytest.raises(OSError, match="more than the rules allow"):
            await send({"type": "websocket.send", "text": "still there?"})
        await send({"type": "websocket.close", "code": 1000})

    async def main():
        socket = Socket(limiter({**CHAT, "messages": "close"}), app)
        socket.say(*"abcd")
        await socket.task
        return [message["type"] for message in socket.sent]

    assert asyncio.run(main()) == ["websocket.accept", "websocket.close"]
    assert found == ["websocket.receive"] * 3 + ["websocket.disconnect"] * 2


def test_a_socket_that_the_app_has_closed_is_not_closed_again():
    async def app(scope, receive, send):
        await receive()
        await send({"type": "websocket.close", "code": 4000, "reason": "own"})
        while (await receive())["type"] == "websocket.receive":
            pass

    async def main():
        socket = Socket(limiter({**CHAT, "messages": "close"}), app)
        socket.say(*"abcd")
        await socket.task
        return socket.closed

    assert asyncio.run(main()) == [(4000, "own")]


def test_a_client_that_left_before_the_close_is_no_error():
    async def main():
        seen = []
        socket = Gone(limiter({**CHAT, "messages": "close"}), listening(seen))
        socket.say(*"abcd")
        await socket.task
        return seen

    assert asyncio.run(main()) == [*"abc", (1008, LATER)]


@pytest.mark.parametrize(
    ("rule", "seen", "closed"),
    [
        pytest.param({}, [*"01234", GONE], [], id="allow"),
        pytest.param({"on_error": "local"}, [*"012", GONE], [], id="local"),
        pytest.param({"on_error": "deny"}, [GONE], [], id="deny, where messages are dropped"),
        pytest.param(
            {"on_error": "deny", "messages": "close"},
            [(1013, "try again later")],
            [(1013, "try again later")],
            id="deny, where sockets are closed",
        ),
        pytest.param({"by": "connection", "on_error": "deny"}, [*"012", GONE], [], id="what needs no store"),
    ],
)
def test_the_store_is_away(fresh_server, rule, seen, closed):
    fresh_server.kill()

    async def main():
        async with limiter({**CHAT, **rule}, storage=fresh_server.url) as engine:
            return await said(engine, 5)

    assert asyncio.run(main()) == (seen, closed)


def test_under_the_kill_switch_everything_passes(monkeypatch):
    monkeypatch.setenv("RATELIMIT_MW", "off")
    assert asyncio.run(said(limiter({**CHAT, "limit": "0 per day"}), 2)) == ([*"01", GONE], [])


def test_each_domain_counts_its_messages(tmp_path):
    for domain, limit in (("a", 4), ("b", 2)):
        (tmp_path / f"{domain}.yaml").write_text(
            f"domain: {domain}\nrules:\n- {{name: chat, match: {{path: '/{{c}}'}}, messages: drop, limit: {limit}/h}}\n"
        )
    (tmp_path / "c.yaml").write_text("domain: c\nrules:\n- {name: all, limit: 9 per hour}\n")

    async def main():
        async with RateLimiter(tmp_path, clock=ManualClock(START)) as engine:
            engine.overrides.set({"ip": IP}, rule="chat", limit="3 per hour", domain="b")
            return await said(engine, 5)

    assert asyncio.run(main()) == ([*"012", GONE], [])


def test_the_app_can_ask_for_such_a_rule_by_its_name():
    engine = limiter({**CHAT, "match": {"path": "/{room}"}, "by": "path:room"})
    found = []

    async def app(scope, receive, send):
        found.append((await scope["ratelimit"].check("chat")).remaining)
        await receive()

    async def main():
        await Socket(engine, app).task
        await Socket(engine, app, "/other").task

    asyncio.run(main())
    assert found == [2, 2]


def test_such_rules_are_nothing_to_requests():
    engine = limiter({**CHAT, "limit": "0 per day"})
    assert ask_wsgi(engine, "/chat").status == 200
    assert engine.check({"ip": IP, "path": "/chat"}).rule is None
    (reason,) = engine.explain({"ip": IP, "path": "/chat"}).rules
    assert (reason.status, reason.why) == ("no match", "it counts the messages of WebSockets, not requests")
