"""Bans: exactly when they begin and end, how they grow, and that Lua says the same."""

import itertools
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.algorithms import ban
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.stores.base import Intent, complete
from ratelimit_mw.stores.redis.codec import converse
from ratelimit_mw.stores.redis.endpoint import Blocking
from tests.algorithms.histories import START as T
from tests.algorithms.histories import bans

MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
GROWING = ban.BanQuota("ban", 3, MINUTE, lasts=10 * MINUTE, longest=DAY, growth=2)
FLAT = replace(GROWING, longest=10 * MINUTE, growth=1)
_examples = itertools.count()


class Client:
    """One client, whatever it asks denied unless a ban does it before."""

    def __init__(self, rule):
        self.quota = rule
        self.state = b""

    def look(self, now):
        outcome, state = ban.decide(self.state, self.quota, 1, now)
        self.state = state or self.state
        return outcome

    def denied(self, now):
        """What the ban says to a denial: it stands, or counts."""
        outcome = self.look(now)
        if outcome.allowed:
            outcome, self.state = ban.count_denial(self.state, self.quota, now)
        return outcome


class Model:
    """Every denial and every ban, in lists."""

    def __init__(self, rule):
        self.rule = rule
        self.denials, self.ends, self.row = [], 0, 0

    def denied(self, now):
        """Whether a ban stands or begins, and until when."""
        rule = self.rule
        if now < self.ends:
            return self.ends - now
        if now >= self.ends + rule.longest or rule.growth == 1:
            self.row = 0
        self.denials.append(now)
        if sum(now - rule.period < denial <= now for denial in self.denials) < rule.limit:
            return 0
        self.row += 1
        self.ends = now + min(rule.lasts * rule.growth ** (self.row - 1), rule.longest)
        self.denials = []
        return self.ends - now


@st.composite
def hammerings(draw):
    """A rule's bans, and the time between one request and the next."""
    rule = draw(bans())
    rule = replace(rule, limit=min(rule.limit, 5))
    units = st.sampled_from((0, 1, rule.period // 2, rule.period, rule.lasts, rule.longest, 2 * rule.longest))
    jumps = st.tuples(units, st.integers(-1, 1)).map(lambda parts: max(sum(parts), 0))
    return rule, draw(st.lists(jumps, min_size=1, max_size=60))


@given(hammerings())
def test_a_ban_begins_and_ends_to_the_microsecond(hammering):
    rule, jumps = hammering
    client, model, now = Client(rule), Model(rule), T
    for jump in jumps:
        now += jump
        assert client.denied(now).retry_after == model.denied(now)
        assert client.look(now).allowed == (now >= model.ends)


@given(hammerings())
def test_a_state_may_be_dropped_when_it_says_so(hammering):
    rule, jumps = hammering
    keeping, dropping, now = Client(rule), Client(rule), T
    drop_at = 0
    for jump in jumps:
        now += jump
        if now >= drop_at:
            dropping.state = b""
        said = dropping.denied(now)
        assert said.allowed == keeping.denied(now).allowed
        assert keeping.look(now) == dropping.look(now)
        drop_at = now + said.reset_after


@given(rule=bans(), data=st.data())
def test_lua_says_the_same_of_any_history(connection, known, rule, data):
    """Of a limit of 0, so that each request is a denial; the clock goes where it will."""
    key, client, now = f"d:{next(_examples)}:ban:{{x}}", Client(rule), T
    units = st.sampled_from(
        (1, SECOND, rule.period, rule.lasts, rule.longest, -rule.lasts, -rule.period, -rule.longest)
    )
    for unit, more in data.draw(st.lists(st.tuples(units, st.integers(-1, 1)), min_size=1, max_size=30)):
        now = max(now + unit * data.draw(st.sampled_from((0, 0, 1, 2))) + more, 0)
        commit = data.draw(st.booleans())
        asks = [Ask(key, client.quota), Ask(key.replace("ban", "fw1"), Quota("fixed_window", 0, SECOND))]
        (reply,) = connection.carry(converse([(asks, Intent(commit))], now, known), time.monotonic() + 5)
        kept = client.state
        assert complete(reply).outcomes[0] == (client.denied(now) if commit else client.look(now))
        client.state = client.state if commit else kept


@pytest.fixture(scope="module")
def known(connection):
    """The scripts that the server has."""
    return set()


@pytest.fixture(scope="module")
def connection(each_server):
    connection = Blocking(each_server.url)
    connection.connect()
    yield connection
    connection.close()


def test_each_ban_of_a_row_is_twice_as_long_up_to_the_longest():
    client, now, lengths = Client(GROWING), T, []
    for _ in range(10):
        while not (said := client.denied(now)).retry_after:
            now += 1
        lengths.append(said.retry_after // MINUTE)
        now += said.retry_after
    assert lengths == [10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440]


@pytest.mark.parametrize(
    ("quiet", "next_one"),
    [
        pytest.param(DAY - 1, 20 * MINUTE, id="a microsecond too short"),
        pytest.param(DAY, 10 * MINUTE, id="as long as the longest ban"),
    ],
)
def test_a_row_is_forgotten_after_a_quiet_time(quiet, next_one):
    client = Client(replace(GROWING, limit=1))
    client.denied(T)
    assert client.denied(T + 10 * MINUTE + quiet).retry_after == next_one


def test_without_growth_nothing_is_remembered_when_it_ends():
    client = Client(FLAT)
    assert [client.denied(T).reset_after for _ in range(3)] == [MINUTE, MINUTE, 10 * MINUTE]
    assert client.look(T + 10 * MINUTE) == (True, 3, 0, 0, 0)


def test_what_is_denied_during_a_ban_brings_the_next_no_nearer():
    client = Client(FLAT)
    assert not all(client.denied(T + moment).allowed for moment in range(100))
    assert client.look(T + 10 * MINUTE + 2).remaining == 3


@pytest.mark.parametrize("back", [1, MINUTE, 10 * MINUTE, DAY, 365 * DAY])
def test_a_clock_that_steps_back_prolongs_no_ban_beyond_its_length(back):
    client = Client(FLAT)
    for _ in range(3):
        client.denied(T)
    assert client.look(T - back).retry_after == 10 * MINUTE
    assert client.look(T - back + 10 * MINUTE).allowed
    assert client.denied(T - back + 10 * MINUTE).allowed


@pytest.mark.parametrize(
    ("back", "third"),
    [
        pytest.param(MINUTE, False, id="a window: they count as of now"),
        pytest.param(MINUTE + 1, True, id="more: they are forgotten"),
    ],
)
def test_denials_of_a_clock_that_stepped_back(back, third):
    client = Client(FLAT)
    client.denied(T), client.denied(T)
    assert (not client.denied(T - back).retry_after) is third


def test_a_ban_that_became_shorter_ends_sooner():
    client = Client(FLAT)
    for _ in range(3):
        client.denied(T)
    client.quota = replace(FLAT, lasts=MINUTE, longest=MINUTE)
    assert client.look(T).retry_after == MINUTE
    assert client.look(T + MINUTE).allowed


@pytest.mark.parametrize("state", [b"x", b"\0" * 8, b"\0" * 17, b"\xff" * 15])
def test_what_is_no_state_is_as_if_unused(state):
    client = Client(FLAT)
    client.state = state
    assert client.look(T) == (True, 3, 0, 0, 0)


@pytest.mark.parametrize("size", [16, 24, 800])
def test_a_broken_state_bans_nobody_for_longer_than_the_longest(size):
    client = Client(GROWING)
    client.state = b"\xff" * size
    assert client.look(T).retry_after == DAY
    assert client.denied(T + DAY).allowed
