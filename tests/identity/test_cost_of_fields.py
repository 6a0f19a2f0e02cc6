"""What a decision costs on hostile cookies, queries and headers, counted in steps of the interpreter and not in time.

A step is a bytecode. What the C functions do is linear in the text: `make bench` measures it (row `hostile`).
"""

import pytest

from bench.hostile import CONFIG, HOSTILE, scope_of
from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from tests.support.steps import steps_of_a_decision


@pytest.fixture(scope="module", params=["with room", "denied"])
def limiter(request):
    with RateLimiter(CONFIG, clock=ManualClock(1_700_000_000)) as made:
        if request.param == "denied":
            while made.check({"ip": "192.0.2.1", "cookie:sid": "s"}).allowed:
                pass
        yield made


def environ_of(scope):
    lines = {}
    for name, value in scope["headers"]:
        key = f"HTTP_{name.decode().upper().replace('-', '_')}"
        joint = "; " if key == "HTTP_COOKIE" else ","
        lines[key] = f"{lines[key]}{joint}{value.decode('latin-1')}" if key in lines else value.decode("latin-1")
    return {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": scope["path"],
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "REMOTE_ADDR": "192.0.2.1",
        **lines,
    }


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("interface", [AsgiRequest, WsgiRequest])
def test_a_hostile_request_costs_few_steps_whatever_its_length(limiter, kind, interface):
    plain, short, long = (
        steps_of_a_decision(limiter, interface, scope if interface is AsgiRequest else environ_of(scope))
        for scope in (scope_of(kind, size) for size in (0, 8 * 1024, 64 * 1024))
    )
    assert short <= 6 * plain
    # A scope has a header line for each line of the request, and each is looked at once.
    assert long <= (40 * plain if kind.startswith("lines") else 2 * short)
