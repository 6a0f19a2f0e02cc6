"""The limits of overrides and of the app (`limit=`) have the effects of the rule's words, whatever its own limit is."""

import time

import pytest

from ratelimit_mw import RateLimiter
from tests.shells.asking import EACH_SHELL, IP, ask_wsgi, limiter

OWN = pytest.mark.parametrize("own", ["unlimited", "0 per hour", "1000000 per second"])
QUEUE = {"algorithm": "leaky_bucket", "burst": 2}


def idle():
    return 0.0


LOAD = {"load": f"python:{__name__}:idle"}


def engine(own, *, sections=None, **words):
    return limiter(rules=[{"name": "r", "by": "ip", "limit": own, **words}], **(sections or {}))


@OWN
def test_a_thread_waits_for_the_turn_that_a_limit_of_the_app_gives(own):
    with engine(own, on_demand=True, **QUEUE) as asked:
        handle = ask_wsgi(asked).seen
        began = time.monotonic()
        delays = [handle.enforce("r", limit="20 per second").decision.delay for _ in range(2)]
    assert delays == [0.0, 0.05]
    assert time.monotonic() - began >= 0.049


@OWN
@EACH_SHELL
def test_a_request_waits_for_the_turn_that_an_override_gives(ask, own):
    with engine(own, **QUEUE) as asked:
        asked.overrides.set({"ip": IP}, rule="r", limit="20 per second")
        began = time.monotonic()
        assert [ask(asked).status for _ in range(3)] == [200, 200, 429]
    assert time.monotonic() - began >= 0.049


@OWN
def test_a_limit_of_the_app_grows_while_the_load_is_low(own):
    throttle = {"elastic": {"up_to": "200%", "below": 0.5}}
    with engine(own, on_demand=True, throttle=throttle, sections=LOAD) as asked:
        handle = ask_wsgi(asked).seen
        allowed = [handle.enforce("r", limit="2 per minute").decision.allowed for _ in range(5)]
    assert allowed == [True, True, True, True, False]


@EACH_SHELL
@pytest.mark.parametrize("own", ["unlimited", "100 per minute", "5 concurrent"])
def test_the_place_in_flight_of_an_override_is_free_after_the_response(ask, own):
    with engine(own) as asked:
        asked.overrides.set({"ip": IP}, rule="r", limit="1 concurrent")
        assert [ask(asked).status for _ in range(3)] == [200] * 3


@EACH_SHELL
def test_the_place_in_flight_of_an_override_in_a_file_is_free_after_the_response(ask):
    overrides = [{"client": {"ip": IP}, "rule": "r", "limit": "1 concurrent"}]
    with engine("unlimited", sections={"overrides": overrides}) as asked:
        assert [ask(asked).status for _ in range(3)] == [200] * 3


@EACH_SHELL
def test_the_place_in_flight_of_an_override_in_one_of_two_files_is_free_after_the_response(ask, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\nrules: [{{name: {name}, by: ip, limit: unlimited}}]\n")
    with RateLimiter(tmp_path, storage="memory://") as asked:
        asked.overrides.set({"ip": IP}, rule="two", limit="1 concurrent", domain="two")
        assert [ask(asked).status for _ in range(3)] == [200] * 3
