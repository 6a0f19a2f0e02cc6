"""What travels to Redis and back, without a server."""

import math
import struct

import pytest

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Outcome, Quota
from ratelimit_mw.stores.base import DECIDE, Intent, forget_request
from ratelimit_mw.stores.redis.codec import _OUTCOME, decode, encode

MINUTE, HOUR = Quota("fixed_window", 3, 60_000_000), Quota("fixed_window", 3, 3_600_000_000)
ONE, TWO = [Ask("d:a:{x}", MINUTE)], [Ask("d:a:{x}", MINUTE), Ask("d:b:{x}", MINUTE)]


def answered(message, outcomes, *, nonce=None, complaint=b""):
    packed = b"".join(_OUTCOME.pack(*outcome) for outcome in outcomes)
    return (message.nonce if nonce is None else nonce) + struct.pack("<d", 1_700_000_000_000_000) + packed + complaint


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param([ONE], id="one ask"),
        pytest.param([ONE, ONE], id="one ask each"),
        pytest.param([TWO, ONE], id="two asks and one"),
        pytest.param([[], TWO], id="none and two, as many outcomes as requests"),
        pytest.param([[]], id="nothing at all"),
    ],
)
def test_each_inquiry_gets_the_outcomes_of_its_own_asks(asked):
    requests = [(asks, DECIDE) for asks in asked]
    message = encode(requests, None)
    outcomes = [Outcome(True, number, 1, 0, 0) for number in range(message.asked)]
    replies = decode(answered(message, outcomes), message, requests)
    assert [len(rows) for _, rows, _ in replies] == [len(asks) for asks in asked]
    assert [row for _, rows, _ in replies for row in rows] == outcomes


@pytest.mark.parametrize(
    ("requests", "several"),
    [
        pytest.param([(ONE, DECIDE), (ONE, DECIDE)], False, id="one counter each"),
        pytest.param([([Ask("d:a:{x}", MINUTE, 2)], DECIDE)], False, id="a cost"),
        pytest.param([(ONE, DECIDE), ([Ask("d:a:{x}", HOUR)], DECIDE)], True, id="two quotas"),
        pytest.param([(ONE, DECIDE), (TWO, DECIDE)], True, id="two counters"),
        pytest.param([(ONE, Intent(commit=False))], True, id="a look"),
        pytest.param([([Ask("d:a:{x}", MINUTE, shadow=True)], DECIDE)], True, id="a shadow"),
        pytest.param([(ONE, Intent(charged_at=1))], True, id="something given back"),
        pytest.param([(ONE, Intent(insist=True))], True, id="a charge past the limit"),
        pytest.param([forget_request(["d:a:{x}"])], True, id="a counter forgotten"),
    ],
)
def test_a_call_takes_what_it_needs_of_the_script(requests, several):
    text = encode(requests, None).script.text.decode()
    assert ("function carry_out" in text) == several
    assert ("refunds[FIXED_WINDOW] =" in text) == several
    assert "algorithms[FIXED_WINDOW] =" in text
    assert "algorithms[TOKEN_BUCKET] =" not in text


def test_the_script_for_one_request_of_one_counter_makes_no_function_of_its_own():
    one, two = (encode([(ONE, DECIDE)] * number, None).script.text.decode() for number in (1, 2))
    assert ("local function run" in one, "local function run" in two) == (False, True)


def test_many_requests_are_encoded_as_few_are():
    row = [(quota, cost) for cost in (1, 5, 1, 2) for quota in (MINUTE, HOUR, MINUTE)]
    requests = [([Ask(f"d:a:{{{number}}}", *each)], DECIDE) for number, each in enumerate(row)]
    _, *keys, _, _, terms, places = encode(requests, None).arguments
    _, *more_keys, _, _, more_terms, more_places = encode([*requests, (TWO, DECIDE)], None).arguments
    assert (keys, terms, places) == (more_keys[:12], more_terms[: len(terms)], more_places[:24])


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda message: answered(message, [(True, 1, 1, 0, 0)], nonce=b"another!"), id="another nonce"),
        pytest.param(lambda message: answered(message, [(True, 1, 1, 0, 0)] * 2), id="an outcome too many"),
        pytest.param(lambda message: answered(message, []), id="an outcome too few"),
        pytest.param(lambda message: b"OK", id="another command's reply"),
        pytest.param(lambda message: None, id="nil"),
        pytest.param(lambda message: [message.nonce, 1.0, b"", b""], id="a list"),
        pytest.param(lambda message: message.nonce + struct.pack("<d", math.inf) + bytes(33), id="no end of time"),
        pytest.param(lambda message: message.nonce + struct.pack("<d", math.nan) + bytes(33), id="no time"),
        pytest.param(lambda message: message.nonce, id="a nonce alone"),
        pytest.param(lambda message: answered(message, [(True, 1, 1, 0, 0)])[:-1], id="outcomes cut off"),
    ],
)
def test_an_invalid_reply_raises_store_unavailable(spoil):
    message = encode([(ONE, DECIDE)], None)
    with pytest.raises(StoreUnavailable, match="the store's reply"):
        decode(spoil(message), message, [(ONE, DECIDE)])


def test_no_two_calls_have_one_nonce():
    nonces = {encode([(ONE, DECIDE)], None).nonce for _ in range(1000)}
    assert len(nonces) == 1000
