"""What a response settles: what counts, what it costs, what is in flight. Under both middlewares, on both stores."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from wsgiref.util import setup_testing_defaults

import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.rules.compiled import NamedRule
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import IP, exchange, http_scope, websocket_scope
from tests.support.counts import shadow_denials
from tests.support.patience import aeventually, eventually

START = 1_700_000_000
TRIES = {"name": "tries", "limit": "3 per minute", "algorithm": "sliding_log", "count": {"status": [401, 403]}}


@pytest.fixture
def engine(storage, clock):
    made = []

    def make(*rules, **sections):
        config = {"domain": "d", "rules": list(rules), "storage": {"timeout": "5s"}, **sections}
        made.append(RateLimiter(config, storage=storage, clock=clock))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def under_asgi(engine, answer, *, times=1, ip=IP, headers=(), at_once=False):
    """The statuses, and the Remaining of each, of so many requests whose app answers by `answer(handle)`."""

    async def app(scope, receive, send):
        status, own = answer(scope["ratelimit"])
        fields = [(name.lower().encode(), value.encode()) for name, value in own]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": b"x"})

    async def main():
        limited = Asgi(app, limiter=engine)
        lines = [(name.lower().encode(), value.encode()) for name, value in headers]
        asked = [lambda: exchange(limited, http_scope(ip=ip, headers=lines)) for _ in range(times)]
        answers = await asyncio.gather(*(ask() for ask in asked)) if at_once else [await ask() for ask in asked]
        await engine.aclose()
        return [(sent[0]["status"], _remaining(sent[0]["headers"])) for sent in answers]

    return asyncio.run(main())


def under_wsgi(engine, answer, *, times=1, ip=IP, headers=(), at_once=False, lazily=False):
    def app(environ, start_response):
        status, own = answer(environ["ratelimit.decision"])
        start_response(f"{status} X", list(own))
        return [b"x"]

    def lazy(environ, start_response):
        yield from app(environ, start_response)

    limited = Wsgi(lazy if lazily else app, limiter=engine)

    def ask(_):
        said = []
        environ = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers}
        environ |= {"REMOTE_ADDR": ip, "wsgi.multithread": True}
        setup_testing_defaults(environ)
        body = limited(environ, lambda *arguments: said.append(arguments))
        list(body)
        getattr(body, "close", lambda: None)()
        return int(said[0][0][:3]), _remaining((k.lower().encode(), v.encode()) for k, v in said[0][1])

    if at_once:
        with ThreadPoolExecutor(times) as pool:
            return list(pool.map(ask, range(times)))
    return [ask(n) for n in range(times)]


def _remaining(headers):
    return next((int(value) for name, value in headers if name == b"x-ratelimit-remaining"), None)


EACH = pytest.mark.parametrize("ask", [pytest.param(under_asgi, id="ASGI"), pytest.param(under_wsgi, id="WSGI")])


def says(status, *headers):
    return lambda handle: (status, headers)


def left(engine, **attributes):
    return engine.peek({"ip": IP, **attributes}, 0).remaining


# ------------------------------------------------------------------------------------------------ count


@EACH
def test_only_what_counts_is_charged(engine, ask):
    limiter = engine(TRIES)
    assert ask(limiter, says(200), times=5) == [(200, 3)] * 5
    assert ask(limiter, says(401), times=4) == [(401, 2), (401, 1), (401, 0), (429, 0)]
    assert ask(limiter, says(200)) == [(429, 0)]


@EACH
def test_fifty_wrong_passwords_at_once_are_three_tries(engine, ask):
    limiter, tried = engine(TRIES), []
    answers = ask(limiter, lambda handle: tried.append(1) or (401, ()), times=50, at_once=True)
    assert sorted(status for status, _ in answers) == [401] * 3 + [429] * 47
    assert len(tried) == 3


@EACH
@pytest.mark.parametrize(
    ("count", "status", "counts"),
    [
        pytest.param([401, 403], 403, True, id="one of a list"),
        pytest.param(401, 402, False, id="its neighbour"),
        pytest.param("4xx", 499, True, id="the last of a class"),
        pytest.param("4xx", 500, False, id="the first of the next"),
        pytest.param("500-502", 502, True, id="the last of a range"),
        pytest.param(["2xx", "301-302"], 301, True, id="the first of a range, in a list"),
    ],
)
def test_statuses_in_every_spelling(engine, ask, count, status, counts):
    limiter = engine({**TRIES, "count": {"status": count}})
    ask(limiter, says(status))
    assert left(limiter) == (2 if counts else 3)


calls = []


def by_header(status, header):
    calls.append((status, header("X-Nothing")))
    return status == 200 and header("X-Coupon") == "unknown"


def no_bool(_status, _header):
    return 1


def broken(_status, _header):
    raise KeyError("a secret")


@EACH
def test_a_function_says_which_responses_are_charged(engine, ask):
    calls.clear()
    limiter = engine({**TRIES, "count": "python:tests.shells.test_settling:by_header"})
    assert ask(limiter, lambda handle: (200, [("X-Coupon", "known")]), times=5) == [(200, 3)] * 5
    assert calls == [(200, None)] * 5
    wrong = ask(limiter, lambda handle: (200, [("X-Coupon", "unknown")]), times=4)
    assert wrong == [(200, 2), (200, 1), (200, 0), (429, 0)]
    assert len(calls) == 8


@EACH
@pytest.mark.parametrize(
    ("function", "problem"), [("no_bool", "it returned int, not True or False"), ("broken", "KeyError was raised at ")]
)
def test_a_function_that_fails_charges_and_is_logged_once(engine, ask, caplog, function, problem):
    limiter = engine({**TRIES, "count": f"python:tests.shells.test_settling:{function}"})
    assert ask(limiter, says(200), times=4) == [(200, 2), (200, 1), (200, 0), (429, 0)]
    (line,) = [message for message in caplog.messages if message.startswith("count: ")]
    assert problem in line
    assert "secret" not in line


def fails(handle):
    raise RuntimeError


@EACH
@pytest.mark.parametrize(("counts", "remaining"), [(500, 2), (401, 3)])
def test_an_app_that_raises_has_answered_500(engine, ask, counts, remaining):
    limiter = engine({**TRIES, "count": {"status": counts}})
    with pytest.raises(RuntimeError):
        ask(limiter, fails)
    assert left(limiter) == remaining


def test_check_has_no_response_and_charges_at_once(engine):
    limiter = engine(TRIES)
    assert [limiter.check({"ip": IP}).allowed for _ in range(4)] == [True, True, True, False]


def test_a_generator_under_wsgi_tells_its_status_late(engine):
    limiter = engine(TRIES)
    assert under_wsgi(limiter, says(200), times=4, lazily=True) == [(200, 3)] * 4
    under_wsgi(limiter, says(401), lazily=True)
    assert left(limiter) == 2


@pytest.mark.parametrize(("status", "left_after"), [("200 OK", 3), ("401 Unauthorized", 2)])
def test_a_generator_without_a_body_is_settled_at_its_end(engine, status, left_after):
    limiter = engine(TRIES)

    def app(environ, start_response):
        start_response(status, [])
        yield from ()

    environ = {"REMOTE_ADDR": IP, "wsgi.multithread": True}
    setup_testing_defaults(environ)
    assert list(Wsgi(app, limiter=limiter)(environ, lambda status, headers: None)) == []
    assert left(limiter) == left_after


def test_an_asgi_app_that_ends_without_a_response_is_answered_for_with_500(engine):
    limiter = engine({**TRIES, "count": {"status": "4xx"}})

    async def app(scope, receive, send):
        pass

    asyncio.run(exchange(Asgi(app, limiter=limiter), http_scope()))
    assert left(limiter) == 3


def test_who_is_cancelled_before_its_status_gets_nothing_back(engine):
    limiter = engine(TRIES)

    async def main():
        inside = asyncio.Event()

        async def app(scope, receive, send):
            inside.set()
            await asyncio.sleep(60)

        request = asyncio.ensure_future(exchange(Asgi(app, limiter=limiter), http_scope()))
        await inside.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await limiter.aclose()

    asyncio.run(main())
    assert left(limiter) == 2


@pytest.mark.parametrize(
    ("sent", "remaining"),
    [
        pytest.param([{"type": "websocket.accept"}], 2, id="accepted is 101"),
        pytest.param([{"type": "websocket.close"}], 3, id="closed before is 403"),
        pytest.param([{"type": "websocket.http.response.start", "status": 101}], 2, id="a response of its own"),
    ],
)
def test_a_handshake_has_a_status_too(engine, sent, remaining):
    limiter = engine({**TRIES, "count": {"status": 101}})

    async def app(scope, receive, send):
        for message in sent:
            await send(message)

    asyncio.run(exchange(Asgi(app, limiter=limiter), websocket_scope()))
    assert left(limiter) == remaining


@EACH
def test_a_shadow_rule_counts_what_counts_and_denies_nobody(engine, ask):
    limiter = engine({**TRIES, "shadow": True})
    assert {status for status, _ in ask(limiter, says(401), times=5)} == {401}
    assert shadow_denials(limiter) == {"tries": 2}
    assert {status for status, _ in ask(limiter, says(200), times=5)} == {200}


@EACH
def test_what_another_rule_denies_is_not_tried(engine, ask):
    limiter = engine(TRIES, {"name": "all", "limit": "2 per minute"})
    assert [status for status, _ in ask(limiter, says(200), times=3)] == [200, 200, 429]
    assert limiter.peek({"ip": IP}, 0).policies[0].remaining == 3


@EACH
@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "bucketed_window", "token_bucket"])
def test_any_algorithm_gives_back_what_does_not_count(engine, ask, algorithm):
    limiter = engine({"name": "r", "limit": "3 per hour", "algorithm": algorithm, "count": {"status": 401}, "cost": 3})
    assert ask(limiter, says(200), times=3) == [(200, 3)] * 3
    assert ask(limiter, says(401), times=2)[0] == (401, 0)


@EACH
def test_a_place_in_a_queue_comes_back(engine, ask, clock):
    queue = {"name": "r", "limit": "1000 per second", "algorithm": "leaky_bucket", "burst": 3, "count": {"status": 401}}
    limiter = engine(queue)
    assert ask(limiter, says(200), times=3) == [(200, 3)] * 3
    clock.advance(1)
    assert [status for status, _ in ask(limiter, says(401), times=4)] == [401] * 3 + [429]


# ------------------------------------------------------------------------------------------ the seeds' cases


@EACH
def test_three_failed_card_payments_a_day(engine, ask, clock):
    limiter = engine({**TRIES, "name": "cards", "limit": "3 per day", "count": {"status": 402}})
    assert {status for status, _ in ask(limiter, says(200), times=10)} == {200}
    assert [status for status, _ in ask(limiter, says(402), times=5)] == [402] * 3 + [429] * 2
    clock.advance(86_400)
    assert ask(limiter, says(200)) == [(200, 3)]


@EACH
def test_a_lockout_stops_the_guesser_and_leaves_the_owner_in(engine, ask):
    rules = {**TRIES, "by": ["ip", "ip+user"], "limit": "3 per hour"}
    limiter = engine(rules, client={"user": "header:X-User"})
    owner = [("X-User", "alice")]
    guesses = ask(limiter, says(401), times=6, ip="198.51.100.9", headers=owner)
    assert [status for status, _ in guesses] == [401] * 3 + [429] * 3
    assert [status for status, _ in ask(limiter, says(200), times=5, ip="192.0.2.1", headers=owner)] == [200] * 5


# ------------------------------------------------------------------------------------------------- cost


@EACH
@pytest.mark.parametrize(
    ("value", "remaining"),
    [
        pytest.param("7", 93, id="a number"),
        pytest.param(" 7 ", 93, id="blanks around it"),
        pytest.param("0", 100, id="free"),
        pytest.param("-5", 99, id="below zero"),
        pytest.param("2.5", 99, id="a fraction"),
        pytest.param("1_0", 99, id="an underscore"),
        pytest.param("٣", 99, id="a digit of another script"),
        pytest.param("many", 99, id="a word"),
        pytest.param("", 99, id="nothing"),
    ],
)
def test_a_cost_from_a_header(engine, ask, value, remaining, caplog):
    limiter = engine({"name": "r", "limit": "100 per minute", "cost": "header:X-Cost"})
    headers = [("X-Cost", value.encode().decode("latin-1"))]
    assert ask(limiter, says(200), headers=headers)[0] == (200, remaining)
    ask(limiter, says(200), headers=headers)
    bad = remaining == 99 and value != ""
    said = [record.getMessage() for record in caplog.records if "X-Cost" in record.getMessage()]
    message = "cost: the value of header:X-Cost is not a whole number of at least 0, so it counts as 1 (logged once)"
    assert said == [message] * bad


@EACH
def test_without_the_header_it_is_1_and_what_never_fits_is_denied_for_ever(engine, ask):
    limiter = engine({"name": "r", "limit": "100 per minute", "cost": "header:X-Cost"})
    assert ask(limiter, says(200)) == [(200, 99)]
    assert ask(limiter, says(200), headers=[("X-Cost", "9" * 5_000)]) == [(429, 99)]
    assert ask(limiter, says(200), headers=[("X-Cost", "101")]) == [(429, 99)]


def weigh(context):
    return {"/": 4}.get(context.get("path") or context.get("PATH_INFO"))


def weigh_badly(context):
    return 2.5


async def weigh_async(context):
    await asyncio.sleep(0)
    return 6


@EACH
@pytest.mark.parametrize(("function", "remaining"), [("weigh", 96), ("weigh_badly", 99)])
def test_a_cost_from_a_function(engine, ask, function, remaining):
    limiter = engine({"name": "r", "limit": "100 per minute", "cost": f"python:tests.shells.test_settling:{function}"})
    assert ask(limiter, says(200)) == [(200, remaining)]


def test_a_cost_from_an_async_function(engine):
    limiter = engine({"name": "r", "limit": "100 per minute", "cost": "python:tests.shells.test_settling:weigh_async"})
    assert under_asgi(limiter, says(200)) == [(200, 94)]


@EACH
def test_a_cost_from_an_attribute_of_the_file(engine, ask):
    rule = {"name": "r", "limit": "100 per minute", "cost": "weight"}
    limiter = engine(rule, attributes={"weight": "header:X-Weight"})
    assert ask(limiter, says(200), headers=[("X-Weight", "9")]) == [(200, 91)]
    assert limiter.check({"ip": IP, "weight": "11"}, 2).remaining == 69


@EACH
@pytest.mark.parametrize(
    ("value", "remaining"),
    [("30", 70), ("0", 100), ("1", 99), ("-3", 99), ("x", 99), (None, 99), ("100", 0), ("250", 0)],
)
def test_a_cost_that_the_response_tells(engine, ask, value, remaining):
    limiter = engine({"name": "r", "limit": "100 per minute", "algorithm": "fixed_window", "cost": "response:X-Cost"})
    assert ask(limiter, says(200, *([("X-Cost", value)] if value else []))) == [(200, remaining)]
    assert left(limiter) == remaining


@EACH
@pytest.mark.parametrize(
    ("algorithm", "wait"),
    [
        pytest.param("fixed_window", 40, id="fixed_window: the debt ends with the window"),
        pytest.param("sliding_log", 60, id="sliding_log: when it leaves the window"),
        pytest.param("sliding_window", 40 + 38.4, id="sliding_window: when 25 of them weigh 10 less 1"),
        pytest.param("bucketed_window", 60, id="bucketed_window: with its slice"),
        pytest.param("token_bucket", 120 - 60 + 6, id="token_bucket: 20 tokens back, of at most two windows"),
    ],
)
def test_a_debt_is_paid_back_within_two_windows(engine, ask, clock, algorithm, wait):
    limiter = engine({"name": "r", "limit": "10 per minute", "algorithm": algorithm, "cost": "response:X-Cost"})
    assert ask(limiter, says(200, ("X-Cost", "25")))[0] == (200, 0)
    denied = limiter.peek({"ip": IP})
    assert not denied.allowed
    assert 40 <= denied.retry_after <= 120
    assert denied.retry_after == pytest.approx(wait, abs=1.1)
    clock.advance(denied.retry_after)
    assert limiter.check({"ip": IP}).allowed


@EACH
def test_a_cost_that_does_not_count_is_free(engine, ask):
    rule = {"name": "r", "limit": "100 per minute", "cost": "response:X-Cost", "count": {"status": "2xx"}}
    limiter = engine(rule)
    assert ask(limiter, says(500, ("X-Cost", "30"))) == [(500, 100)]
    assert ask(limiter, says(200, ("X-Cost", "30"))) == [(200, 70)]
    assert left(limiter) == 70


# ----------------------------------------------------------------------------------------------- the handle


def by_hand(engine, ask, *calls):
    """What the methods of the handle returned, called one after the other within one request."""
    returned = []

    async def app(scope, receive, send):
        for name, *arguments in calls:
            returned.append(await getattr(scope["ratelimit"], name)(*arguments))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async def main():
        sent = await exchange(Asgi(app, limiter=engine), http_scope())
        await engine.aclose()
        return _remaining(sent[0]["headers"])

    def call(handle):
        for name, *arguments in calls:
            returned.append(getattr(handle, name)(*arguments))
        return 200, ()

    remaining = asyncio.run(main()) if ask is under_asgi else under_wsgi(engine, call)[0][1]
    return remaining, returned


@EACH
@pytest.mark.parametrize(
    ("calls", "remaining"),
    [
        pytest.param([("charge", 5)], 94, id="five more"),
        pytest.param([("charge",), ("charge",)], 97, id="one more, twice"),
        pytest.param([("charge", 0)], 99, id="nothing more"),
        pytest.param([("charge", 300)], 0, id="into debt"),
        pytest.param([("refund",)], 100, id="all back"),
        pytest.param([("refund",), ("refund",), ("refund", 5)], 100, id="all back, and never twice"),
        pytest.param([("charge", 5), ("refund", 2)], 96, id="some of it back"),
        pytest.param([("charge", 5), ("refund", 50)], 100, id="no more back than was taken"),
        pytest.param([("refund", 0)], 99, id="nothing back"),
    ],
)
def test_the_app_charges_and_gives_back(engine, ask, calls, remaining):
    limiter = engine({"name": "r", "limit": "100 per minute"})
    limiter.check({"ip": "192.0.2.9"}, 50)
    assert by_hand(limiter, ask, *calls) == (remaining, [None] * len(calls))
    assert left(limiter) == remaining


@EACH
def test_what_was_charged_last_comes_back_first(engine, ask, clock):
    """The first charge was to a window that has ended, where there is nothing to give back."""
    limiter = engine({"name": "r", "limit": "100 per minute", "algorithm": "fixed_window"})
    clock.set(START - START % 60)

    async def app(scope, receive, send):
        clock.advance(60)
        await scope["ratelimit"].charge(5)
        await scope["ratelimit"].refund(5)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async def main():
        await exchange(Asgi(app, limiter=limiter), http_scope())
        await limiter.aclose()

    def call(handle):
        clock.advance(60)
        handle.charge(5)
        handle.refund(5)
        return 200, ()

    if ask is under_asgi:
        asyncio.run(main())
    else:
        under_wsgi(limiter, call)
    assert left(limiter) == 100


@EACH
def test_nobody_gets_back_what_others_took(engine, ask):
    limiter = engine({"name": "r", "limit": "100 per minute", "algorithm": "fixed_window"})
    limiter.check({"ip": IP}, 50)
    by_hand(limiter, ask, ("refund", 40), ("refund", 40))
    assert left(limiter) == 50


@EACH
@pytest.mark.parametrize("call", [("charge", -1), ("refund", -1), ("charge", 1.5), ("check", "r", -1)])
def test_what_is_no_number_from_0_on_is_refused(engine, ask, call):
    limiter = engine({"name": "r", "limit": "100 per minute"})
    with pytest.raises(ValueError, match="whole number of at least 0"):
        by_hand(limiter, ask, call)


@EACH
def test_what_the_app_charged_to_a_request_that_does_not_count_comes_back(engine, ask):
    limiter = engine({**TRIES, "limit": "100 per minute"}, {"name": "all", "limit": "100 per minute"})
    by_hand(limiter, ask, ("charge", 5))
    assert [policy.remaining for policy in limiter.peek({"ip": IP}, 0).policies] == [100, 94]


@EACH
def test_another_rule_by_its_name(engine, ask):
    limiter = engine(
        {"name": "all", "limit": "100 per minute"},
        {"name": "mail", "limit": "3 per hour", "by": "path:to", "on_demand": True, "match": {"path": "/{to}"}},
        {"name": "sms", "limit": "3 per hour", "on_demand": True},
        {"name": "elsewhere", "limit": "3 per hour", "match": {"path": "/elsewhere"}},
    )
    asked = [("sms",), ("sms", 2), ("sms",), ("elsewhere",), ("mail",)]
    remaining, answers = by_hand(limiter, ask, *(("check", *arguments) for arguments in asked))
    assert remaining == 99
    assert [(answer.allowed, answer.rule, answer.remaining) for answer in answers] == [
        (True, "sms", 2),
        (True, "sms", 0),
        (False, "sms", 0),
        (True, "elsewhere", 2),
        (True, None, None),
    ]


@EACH
@pytest.mark.parametrize("method", ["check", "enforce"])
def test_an_unknown_rule_name_is_a_lookup_error(engine, ask, method):
    limiter = engine({"name": "sms", "limit": "3 per hour", "on_demand": True})
    with pytest.raises(LookupError, match=r"the rule 'smss', which does not exist \(did you mean 'sms'\?\)"):
        by_hand(limiter, ask, (method, "smss"))


def test_a_rule_by_its_name_knows_its_template(engine):
    limiter = engine(
        {"name": "mail", "limit": "3 per hour", "by": "path:to", "on_demand": True, "match": {"path": "/mail/{to}"}},
        {"name": "route", "limit": "3 per hour", "by": "route", "match": {"path": "/mail/{to}", "methods": ["PUT"]}},
    )
    rules = limiter.rules
    mail, bob = (rules.attributes.request_from({"path": f"/mail/{name}"}) for name in ("alice", "bob"))
    assert [limiter.engine.decide(mail, rule=NamedRule("mail")).decision.remaining for _ in range(2)] == [2, 1]
    assert limiter.engine.decide(bob, rule=NamedRule("mail")).decision.remaining == 2
    assert limiter.engine.decide(mail, rule=NamedRule("route")).decision.remaining == 2
    assert rules.plan(mail) == ()


# ---------------------------------------------------------------------------------------------- concurrency

TWO = {"name": "two", "limit": "2 concurrent"}


class HeldApp:
    """An app whose responses last until they are let go; each shell counts its requests in flight."""

    def __init__(self):
        self.gate = threading.Event()
        self.inside = 0
        self.most = 0
        self.lock = threading.Lock()

    async def asgi(self, scope, receive, send):
        self._enter()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await aeventually(self.gate.is_set)
        self._leave()
        await send({"type": "http.response.body", "body": b"y"})

    def wsgi(self, environ, start_response):
        self._enter()
        start_response("200 OK", [])
        yield b"x"
        self.gate.wait()
        self._leave()
        yield b"y"

    def _enter(self):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def _leave(self):
        with self.lock:
            self.inside -= 1


def test_at_most_so_many_in_flight_under_asgi(engine):
    limiter, held = engine(TWO), HeldApp()

    async def main():
        limited = Asgi(held.asgi, limiter=limiter)
        running = [asyncio.ensure_future(exchange(limited, http_scope())) for _ in range(6)]
        await aeventually(lambda: sum(each.done() for each in running) == 4)
        denied = [each.result()[0] for each in running if each.done()]
        held.gate.set()
        served = [sent[0]["status"] for sent in await asyncio.gather(*running)]
        again = await exchange(limited, http_scope())
        await limiter.aclose()
        return denied, served, again[0]["status"]

    denied, served, again = asyncio.run(main())
    assert [start["status"] for start in denied] == [429] * 4
    assert {dict(start["headers"])[b"retry-after"] for start in denied} == {b"1"}
    assert sorted(served) == [200] * 2 + [429] * 4
    assert again == 200
    assert held.most == 2


def test_at_most_so_many_in_flight_under_wsgi(engine):
    limiter, held = engine(TWO), HeldApp()
    limited = Wsgi(held.wsgi, limiter=limiter)

    def ask(_):
        said = []
        environ = {"REMOTE_ADDR": IP}
        setup_testing_defaults(environ)
        body = limited(environ, lambda *arguments: said.append(arguments))
        list(body)
        getattr(body, "close", lambda: None)()
        return int(said[0][0][:3])

    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(ask, n) for n in range(6)]
        try:
            eventually(lambda: sum(each.done() for each in running) == 4)
            eventually(lambda: held.inside == 2)  # the app runs when the server reads its response
        finally:
            held.gate.set()
        assert sorted(each.result() for each in running) == [200] * 2 + [429] * 4
    assert ask(0) == 200
    assert held.most == 2


@EACH
def test_one_after_the_other_is_never_two_at_a_time(engine, ask):
    limiter = engine({"name": "one", "limit": "1 concurrent"})
    assert [status for status, _ in ask(limiter, says(200), times=20)] == [200] * 20


@EACH
def test_a_window_beside_it_in_one_list(engine, ask):
    limiter = engine({"name": "both", "limit": ["3 per minute", "1 concurrent"], "algorithm": "fixed_window"})
    assert [status for status, _ in ask(limiter, says(200), times=4)] == [200] * 3 + [429]


@EACH
def test_an_app_that_raises_frees_its_place(engine, ask):
    limiter = engine({"name": "one", "limit": "1 concurrent"})
    for _ in range(3):
        with pytest.raises(RuntimeError):
            ask(limiter, fails)
    assert ask(limiter, says(200))[0][0] == 200


def test_a_cancelled_request_frees_its_place(engine):
    limiter, held = engine({"name": "one", "limit": "1 concurrent"}), HeldApp()

    async def main():
        limited = Asgi(held.asgi, limiter=limiter)
        for _ in range(3):
            request = asyncio.ensure_future(exchange(limited, http_scope()))
            await aeventually(lambda: held.inside)
            request.cancel()
            await asyncio.wait([request])
            assert request.cancelled()
            held.inside = 0
            await aeventually(lambda: not limiter.engine.storage.in_flight)
        held.gate.set()
        sent = await exchange(limited, http_scope())
        await limiter.aclose()
        return sent[0]["status"]

    assert asyncio.run(main()) == 200


def test_a_websocket_is_in_flight_as_long_as_its_connection(engine):
    limiter = engine({"name": "one", "limit": "1 concurrent"})

    async def main():
        gate, inside = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            await send({"type": "websocket.accept"})
            inside.set()
            await gate.wait()

        limited = Asgi(app, limiter=limiter)
        first = asyncio.ensure_future(exchange(limited, websocket_scope()))
        await inside.wait()
        second = await exchange(limited, websocket_scope())
        gate.set()
        await first
        third = await exchange(limited, websocket_scope())
        await limiter.aclose()
        return second, third

    second, third = asyncio.run(main())
    assert second == [{"type": "websocket.close", "code": 1008}]
    assert third[0]["type"] == "websocket.accept"


def test_what_runs_behind_the_last_byte_is_in_flight_no_more(engine):
    """Background tasks run within the app's call, after the response."""
    limiter = engine({"name": "one", "limit": "1 concurrent"})

    async def main():
        gate, answered = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x"})
            answered.set()
            await gate.wait()

        limited = Asgi(app, limiter=limiter)
        first = asyncio.ensure_future(exchange(limited, http_scope()))
        await answered.wait()
        answered.clear()
        asked = asyncio.ensure_future(exchange(limited, http_scope()))
        await answered.wait()
        gate.set()
        await first
        sent = await asked
        await limiter.aclose()
        return sent[0]["status"]

    assert asyncio.run(main()) == 200


def test_check_leaves_it_out_and_reset_frees_it(engine):
    limiter = engine({"name": "two", "limit": ["2 concurrent", "5 per minute"]})
    decisions = [limiter.check({"ip": IP}) for _ in range(4)]
    assert [decision.limit for decision in decisions] == [5] * 4
    assert [decision.allowed for decision in decisions] == [True] * 4


def test_a_long_response_keeps_its_place_and_a_dead_one_loses_it(engine, clock):
    limiter = engine({"name": "one", "limit": "1 concurrent"})

    def ask():
        return limiter.engine.decide(AsgiRequest(http_scope()))

    account = limiter.engine.settlement.account(ask())
    for _ in range(10):
        clock.advance(4)
        assert not ask().allowed
    limiter.engine.settlement.settle(account, account.end())
    assert ask().allowed  # and nobody keeps this one
    assert not ask().allowed
    clock.advance(11)
    assert ask().allowed
