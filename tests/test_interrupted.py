"""Exceptions from elsewhere at every line of what holds a lock, a place, a count or a thread: all of it goes on."""

import gc
import itertools
import threading

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.identity.http_request import WsgiRequest
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.breaker import Breaker
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis.records import CommandClient
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.support.interrupts import at_every_line
from tests.support.patience import eventually

# What is interrupted between opening a socket and keeping it leaves the closing to the garbage collector.
pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture(autouse=True)
def _collected():
    """What an interrupted line has left open is closed here, where its warnings are expected."""
    yield
    gc.collect()


LIMIT, DAY = 1_000_000, 86_400_000_000
ENVIRON = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "SCRIPT_NAME": "", "REMOTE_ADDR": "203.0.113.7"}
REQUEST = {"remote_address": "203.0.113.7", "path": "/"}


def config(**rule):
    return {"domain": "d", "rules": [{"name": "r", "limit": "1000000 per day"} | rule]}


def watches():
    return sum(thread.name == "ratelimit_mw retriever" for thread in threading.enumerate())


def left(store, ask):
    return store.decide([ask], commit=False).outcomes[0].remaining


@pytest.mark.parametrize("number", [1, 3], ids=["one counter", "several counters"])
def test_the_memory_store(number):
    store = MemoryStore()
    asks = [Ask(f"d:r{place}:{{x}}", Quota("fixed_window", LIMIT, DAY)) for place in range(number)]

    def check(place):
        before = left(store, asks[0])
        assert store.decide(asks).admits(asks), place
        assert left(store, asks[0]) == before - 1, place

    assert at_every_line(lambda: store.decide(asks), check) > 5


def test_the_places_of_threads_that_wait_for_their_turn():
    clock = ManualClock()
    rule = {"limit": "1000000 per second", "algorithm": "leaky_bucket", "max_waiting": 1}
    limiter = RateLimiter(config(**rule), clock=clock)
    app = RateLimitMiddleware(lambda _environ, start: (start("200 OK", []), [])[1], limiter=limiter)

    def serve():
        return app(dict(ENVIRON), lambda *_: lambda _: None)

    def check(place):
        assert serve() == [], place  # it has to wait for a microsecond, in the only place

    lines = at_every_line(serve, check, before=serve)
    limiter.close()
    assert lines > 50


def test_requests_in_flight_and_the_load_that_they_are():
    clock = ManualClock()
    rules = {
        "domain": "d",
        "rules": [
            {"name": "held", "limit": "3 concurrent"},
            {"name": "shed", "limit": "1000000 per day", "throttle": {"elastic": {"up_to": "200%", "below": 0.7}}},
        ],
    }
    limiter = RateLimiter(rules, clock=clock)
    app = RateLimitMiddleware(lambda _environ, start: (start("200 OK", []), [b""])[1], limiter=limiter)
    codes, environ = [], {}

    def serve():
        codes.clear()
        environ.update(ENVIRON)
        body = app(environ, lambda status, *_: codes.append(status))
        try:
            list(body)
        finally:
            getattr(body, "close", int)()

    def check(place):
        environ.clear()  # as the server drops it; else the place would last until the garbage collector comes
        clock.advance(200)  # a place ends at its expiry at the latest
        for _ in range(3):
            serve()
            assert codes == ["200 OK"], place
        assert limiter.engine.planner.meter(limiter.rules).in_flight == 0, place

    assert at_every_line(serve, check) > 100
    limiter.close()


def test_renewing_what_is_in_flight():
    clock = ManualClock()
    limiter = RateLimiter(config(limit="3 concurrent"), clock=clock)
    engine = limiter.engine
    verdict = engine.decide_in_turn(WsgiRequest(dict(ENVIRON)))
    account, ask = engine.settlement.account(verdict), verdict.charges[0].ask
    in_flight = limiter.engine.storage.in_flight

    def check(place):
        for _ in range(5):  # longer than a place lasts that is not renewed
            clock.advance(4)
            in_flight.renew()
        assert left(limiter.engine.storage.store, ask) <= 2, place  # it is held all the time

    assert at_every_line(in_flight.renew, check, before=lambda: clock.advance(20)) > 10
    assert account.holds
    limiter.close()


def test_a_question_never_reads_the_reply_to_another(any_server):
    questions = CommandClient(any_server.url)
    numbers = iter(range(1_000_000))

    def ask():
        text = str(next(numbers))
        assert questions.ask("key", "ECHO", text) == text.encode()

    assert at_every_line(ask, lambda _place: [ask(), ask()]) > 20
    questions.close()


def test_watching_for_newer_rules(any_server):
    limiter = RateLimiter(config() | {"storage": {"url": any_server.url, "timeout": "5s"}})
    retriever = limiter.engine.retriever

    def check(place):
        limiter.check(REQUEST)
        assert retriever.watching, place
        eventually(lambda: watches() == 1, every=0.001)

    assert at_every_line(retriever.watch, check, before=retriever.stop) > 5
    limiter.close()


def test_the_switch_that_operators_turn(any_server):
    limiter = RateLimiter(config(limit="0 per day") | {"storage": {"url": any_server.url, "timeout": "5s"}})
    operator = RateLimiter(config() | {"storage": {"url": any_server.url, "timeout": "5s"}})
    words = itertools.cycle(["off", "on"])

    def before():
        operator.switch.set(next(words))

    def check(place):
        limiter.engine.retriever.look_for_overrides()
        assert limiter.check(REQUEST).allowed == (operator.switch.setting.word == "off"), place

    assert at_every_line(limiter.engine.retriever.look_for_overrides, check, before=before, step=3) > 50
    limiter.close()
    operator.close()


def test_the_breaker_opens_and_closes():
    breaker = Breaker("the test's")

    def trip():
        breaker.trip("a test", lambda: None, breaker.closings)

    def check(place):
        eventually(lambda: not breaker.open, every=0.001)
        trip()
        assert breaker.open, place
        breaker.close(breaker.closings)
        assert not breaker.open, place

    assert at_every_line(trip, check) > 3
    breaker.stop()
