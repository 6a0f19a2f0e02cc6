"""What a response settles while the store fails: nothing counts or comes back twice, and no response fails."""

import asyncio

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from tests.shells.asking import IP, exchange, http_scope
from tests.shells.test_settling import EACH, says, under_asgi
from tests.support.proxy import Proxy

TRIES = {"name": "tries", "limit": "3 per hour", "algorithm": "fixed_window", "count": {"status": 401}}
COSTLY = {"name": "costly", "limit": "100 per hour", "algorithm": "fixed_window", "cost": "response:X-Cost"}
PLACES = {"name": "places", "limit": "2 concurrent"}


@pytest.fixture
def proxy(any_server):
    with Proxy(any_server.port) as proxy:
        yield proxy


@pytest.fixture
def limiter_of(proxy, any_server):
    clock, made = ManualClock(1_700_000_000), []

    def limiter(rule, *, url=proxy.url):
        config = {"domain": "d", "storage": {"timeout": "5s"}, "rules": [rule]}
        made.append(RateLimiter(config, storage=url, clock=clock))
        return made[-1]

    limiter.directly = lambda rule: limiter(rule, url=any_server.url)
    yield limiter
    for each in made:
        each.close()


@EACH
@pytest.mark.parametrize(
    ("rule", "left"),
    [
        pytest.param(TRIES, 3, id="what is given back"),
        pytest.param(COSTLY, 60, id="what is charged behind the response"),
    ],
)
def test_a_reply_that_is_lost_is_settled_once(limiter_of, proxy, ask, rule, left):
    def answer(handle):
        proxy.drop_reply(times=1)
        return 200, (("X-Cost", "40"),)

    limiter_of.directly(rule).peek({"ip": IP}, 0)  # else the reply lost is that the server has no such script yet
    assert [status for status, _ in ask(limiter_of(rule), answer)] == [200]
    assert limiter_of.directly(rule).peek({"ip": IP}, 0).remaining == left


@EACH
@pytest.mark.parametrize(
    ("rule", "left"),
    [pytest.param(TRIES, 2, id="stays charged"), pytest.param(COSTLY, 99, id="stays at what it entered with")],
)
def test_what_never_arrives(limiter_of, proxy, ask, rule, left):
    def answer(handle):
        proxy.reset()
        return 200, (("X-Cost", "40"),)

    assert [status for status, _ in ask(limiter_of(rule), answer)] == [200]
    proxy.heal()
    assert limiter_of.directly(rule).peek({"ip": IP}, 0).remaining == left


@EACH
def test_by_hand_nothing_raises_and_nothing_comes_back_twice(limiter_of, proxy, ask):
    rule = {"name": "all", "limit": "100 per hour", "algorithm": "fixed_window"}

    async def tried(handle):
        await handle.charge(5)
        proxy.reset()
        await handle.refund(3)
        await handle.charge(10)
        assert (await handle.check("all")).allowed
        proxy.heal()
        await handle.refund(3)

    def blocking(handle):
        handle.charge(5)
        proxy.reset()
        handle.refund(3)
        handle.charge(10)
        assert handle.check("all").allowed
        proxy.heal()
        handle.refund(3)
        return 200, ()

    limiter = limiter_of(rule)
    if ask is under_asgi:
        awaited(limiter, tried)
    else:
        ask(limiter, blocking)
    # One and five were taken. The first three that went back never arrived; the breaker may have kept the others, too.
    assert limiter_of.directly(rule).peek({"ip": IP}, 0).remaining in (94, 97)


def awaited(limiter, tried):
    async def app(scope, receive, send):
        await tried(scope["ratelimit"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async def main():
        await exchange(RateLimitMiddleware(app, limiter=limiter), http_scope())
        await limiter.aclose()

    asyncio.run(main())


@EACH
def test_a_place_that_could_not_be_given_back_is_free_when_its_lease_ends(any_server, proxy, ask):
    clock = ManualClock(1_700_000_000)
    config = {"domain": "d", "storage": {"timeout": "5s"}, "rules": [PLACES]}

    def answer(handle):
        proxy.reset()
        return 200, ()

    with (
        RateLimiter(config, storage=proxy.url, clock=clock) as limiter,
        RateLimiter(config, storage=any_server.url, clock=clock) as another,
    ):
        assert [status for status, _ in ask(limiter, answer)] == [200]
        proxy.heal()
        assert ask(another, says(200), times=3) == [(200, 0)] * 3
        clock.advance(11)
        assert ask(another, says(200)) == [(200, 1)]


@EACH
def test_where_rules_count_for_themselves_meanwhile_they_also_give_back_for_themselves(proxy, ask):
    config = {"domain": "d", "storage": {"timeout": "5s"}}
    rules = [{**TRIES, "on_error": "local"}, {**PLACES, "on_error": "local"}]
    proxy.reset()
    with RateLimiter({**config, "rules": rules}, storage=proxy.url) as limiter:
        assert ask(limiter, says(200), times=5) == [(200, 1)] * 5
        assert [status for status, _ in ask(limiter, says(401), times=4)] == [401] * 3 + [429]
        proxy.heal()
