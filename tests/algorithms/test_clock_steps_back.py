"""A clock that steps back: state more than one window ahead is discarded, nearer state is clamped and written back."""

import itertools

import pytest

from ratelimit_mw.algorithms import DECIDE_ALL, for_rules
from ratelimit_mw.model import NEVER, SECOND, Outcome, Quota

MINUTE = 60 * SECOND
T = 1_700_000_040 * SECOND  # a window of a minute begins
assert T % MINUTE == 0


def exhausted(quota, at):
    """The state of a counter whose whole limit was taken at that moment."""
    outcome, state = DECIDE_ALL[quota.algorithm](b"", quota, quota.limit, at)
    assert outcome.allowed
    assert outcome.remaining == 0
    return state


def quota(name):
    return Quota(name, 6, MINUTE, 6 if name in BUCKETS else 0)


BUCKETS = ("token_bucket", "leaky_bucket")
NAMES = pytest.mark.parametrize("name", list(for_rules()))
TRUTHFUL = pytest.mark.parametrize("name", [name for name in for_rules() if name != "concurrency"])  # which guesses


@NAMES
@pytest.mark.parametrize(
    "ahead",
    [
        pytest.param(2 * MINUTE + 1, id="a little more than two windows"),
        pytest.param(3_600 * SECOND, id="an hour"),
        pytest.param(365 * 86_400 * SECOND, id="a year"),
    ],
)
def test_state_from_far_ahead_is_discarded(name, ahead):
    outcome, state = DECIDE_ALL[name](exhausted(quota(name), T + ahead), quota(name), 1, T)
    assert outcome.allowed
    assert outcome.remaining == 5
    assert state is not None


@NAMES
@pytest.mark.parametrize(
    "ahead",
    [pytest.param(1, id="1 us"), pytest.param(SECOND, id="1 s"), pytest.param(MINUTE - 1, id="almost a window")],
)
def test_state_from_less_than_a_window_ahead_still_counts(name, ahead):
    now = T + MINUTE - 1 - ahead
    outcome, _ = DECIDE_ALL[name](exhausted(quota(name), now + ahead), quota(name), 1, now)
    assert not outcome.allowed
    assert outcome.remaining == 0


@NAMES
@pytest.mark.parametrize("cost", [pytest.param(1, id="by a denied request"), pytest.param(0, id="by one that is free")])
def test_what_is_clamped_is_written_back(name, cost):
    before = exhausted(quota(name), T)
    outcome, after = DECIDE_ALL[name](before, quota(name), cost, T - 30 * SECOND)
    assert outcome.allowed == (cost == 0)
    assert after not in (None, before)
    again, unchanged = DECIDE_ALL[name](after, quota(name), cost, T - 30 * SECOND)
    assert again == outcome
    assert unchanged is None


@TRUTHFUL
def test_no_client_waits_longer_than_two_windows(name):
    aheads = 0, 1, 29 * SECOND, 30 * SECOND, MINUTE - 1, MINUTE, MINUTE + 1, 2 * MINUTE, 2 * MINUTE + 1
    for ahead, into in itertools.product(aheads, [0, 1, 30 * SECOND, MINUTE - 1]):
        now = T + into
        state = exhausted(quota(name), now + ahead)
        outcome, written = DECIDE_ALL[name](state, quota(name), 1, now)
        assert outcome.retry_after != NEVER, (ahead, into)
        assert outcome.retry_after <= 2 * MINUTE, (ahead, into)
        assert outcome.reset_after <= 2 * MINUTE, (ahead, into)
        if not outcome.allowed:
            later = now + outcome.retry_after
            state = state if written is None else written
            assert DECIDE_ALL[name](state, quota(name), 1, later)[0].allowed, (ahead, into)
            assert not DECIDE_ALL[name](state, quota(name), 1, later - 1)[0].allowed, (ahead, into)


@pytest.mark.parametrize("name", [name for name in for_rules() if name not in BUCKETS])
def test_a_clock_that_trembles_buys_nothing(name):
    """Back and forth by 10 s, many times: no more than the limit passes. (A bucket is refilled by time that passes.)"""
    state, admitted = b"", 0
    for step in range(200):
        now = T + 20 * SECOND + (step % 2) * 10 * SECOND
        outcome, written = DECIDE_ALL[name](state, quota(name), 1, now)
        state = state if written is None else written
        admitted += outcome.allowed
    assert admitted == 6


def test_a_bucket_from_ahead_is_never_emptier_than_empty():
    bucket = quota("token_bucket")
    state = DECIDE_ALL["token_bucket"](b"", bucket, 5, T)[1]
    outcome, _ = DECIDE_ALL["token_bucket"](state, bucket, 0, T - 30 * SECOND)
    assert outcome == Outcome(True, 0, MINUTE)


def test_a_smaller_tier_forgives_nothing_that_a_greater_one_took():
    """Tiers share a counter; a burst that is lowered for one request is no clock that stepped back."""
    slow, quick = Quota("token_bucket", 60, MINUTE, 20), Quota("token_bucket", 6_000, MINUTE, 20)
    state = DECIDE_ALL["token_bucket"](b"", slow, 20, T)[1]
    outcome, written = DECIDE_ALL["token_bucket"](state, quick, 1, T)
    assert not outcome.allowed
    assert written is None
    assert outcome.remaining == 0
    assert DECIDE_ALL["token_bucket"](state, quick, 1, T + outcome.retry_after)[0].allowed
    assert not DECIDE_ALL["token_bucket"](state, quick, 1, T + outcome.retry_after - 1)[0].allowed
    assert not DECIDE_ALL["token_bucket"](state, slow, 1, T)[0].allowed


def test_a_burst_that_was_far_greater_is_clamped_to_two_windows():
    great, small = Quota("token_bucket", 60, MINUTE, 1_000_000), Quota("token_bucket", 60, MINUTE, 10)
    state = DECIDE_ALL["token_bucket"](b"", great, 1_000_000, T)[1]
    outcome, written = DECIDE_ALL["token_bucket"](state, small, 1, T)
    assert 0 < outcome.retry_after <= 2 * MINUTE
    assert DECIDE_ALL["token_bucket"](written, small, 1, T + outcome.retry_after)[0].allowed


SIZES = {
    "fixed_window": 12,
    "sliding_log": 8 + 5 * 8,
    "sliding_window": 16,
    "bucketed_window": 8 + 61 * 4,
    "token_bucket": 16,
    "leaky_bucket": 24,
    "concurrency": 8 + 61 * 4,
}


@TRUTHFUL
@pytest.mark.parametrize("byte", [b"\xff", b"\x7f", b"\x01"])
def test_a_poisoned_value_of_the_right_size_ends(name, byte):
    outcome, written = DECIDE_ALL[name](byte * SIZES[name], quota(name), 1, T)
    if not outcome.allowed:
        assert 0 < outcome.retry_after <= 2 * MINUTE
        assert DECIDE_ALL[name](written or byte * SIZES[name], quota(name), 1, T + outcome.retry_after)[0].allowed


@NAMES
def test_a_value_of_a_foreign_size_is_no_state(name):
    for size in {1, 7, 8, 9, 11, 13, 17, 100} - {SIZES[name]}:
        outcome, _ = DECIDE_ALL[name](b"\0" * size, quota(name), 1, T)
        assert outcome.allowed, size
        assert outcome.remaining == 5, size
