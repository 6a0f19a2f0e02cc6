"""What holds of the memory store beyond the contract: its bound, and what it drops."""

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from ratelimit_mw.algorithms import with_overdraft
from ratelimit_mw.algorithms.algorithm import USED_UP
from ratelimit_mw.algorithms.ban import BanQuota
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.stores import memory
from ratelimit_mw.stores.counters import BARELY_USED, evicted
from ratelimit_mw.stores.memory import MemoryStore
from tests.stores.contract import ALL, MINUTE, quota
from tests.support.processes import in_child

HOUR = 3_600 * SECOND


def one(key, limit=5, name="fixed_window", period=HOUR, cost=1):
    return [Ask(key, quota(limit, name, period), cost)]


@pytest.mark.parametrize("most", [1, 2, 7, 100, 2_048, 4_095, 10_000])
def test_a_flood_of_identities_stays_within_the_bound(clock, most):
    store = MemoryStore(max_counters=most, clock=clock)
    for number in range(3 * most + 100):
        assert store.decide(one(f"d:r:{{{number}}}")).outcomes[0].allowed
        assert len(store) <= most
    assert len(store) >= 0.9 * most


@pytest.mark.parametrize("most", [0, -1])
def test_no_room_at_all_is_refused(most):
    with pytest.raises(ValueError, match="it must be at least 1"):
        MemoryStore(max_counters=most)


@pytest.mark.parametrize(("most", "name"), [*((50, name) for name in ALL), (5_000, "fixed_window")])
def test_nobody_evicts_its_own_exhausted_counter_by_a_flood(clock, name, most):
    store = MemoryStore(max_counters=most, clock=clock)
    exhausted = one("d:login:{me}", 5, name)
    for _ in range(5):
        assert store.decide(exhausted).admits(exhausted)
    for number in range(4 * most):
        store.decide(one(f"d:login:{{bogus {number}}}", 5, name))
        if number % 97 == 0:
            clock.advance(0.001)
            assert not store.decide(exhausted).admits(exhausted)
    assert not store.decide(exhausted).admits(exhausted)


DAY = 24 * HOUR
FLOODS = [
    pytest.param((5, MINUTE), (1, DAY, 1), id="a minute's by used-up counters of a day"),
    pytest.param((5, DAY), (1, SECOND, 1), id="a day's by used-up counters of a second"),
    pytest.param((5, MINUTE), (5, MINUTE, 5), id="a minute's by as many of its own window"),
    pytest.param((1, DAY), (100, DAY, 99), id="a limit of one by counters of which one request is left"),
    pytest.param((5, MINUTE), (3, DAY, 1), id="a minute's by counters of a day that are a third used"),
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("held", "filler"), FLOODS)
def test_a_used_up_counter_is_the_last_to_go_whatever_its_window(clock, name, held, filler):
    store = MemoryStore(max_counters=500, clock=clock)
    limit, window = held
    login = one("d:login:fw60:{ip=me}", limit, name, window)
    for _ in range(limit):
        assert store.decide(login).admits(login)
    limit, window, cost = filler
    for number in range(2_000):
        store.decide(one(f"d:filler:fw1:{{header:X={number}}}", limit, name, window, cost))
    assert not store.decide(login).admits(login)


@pytest.mark.parametrize("used", [1, 3, 4])
def test_used_up_counters_of_one_rule_are_no_way_to_free_another_rules_counter(clock, used):
    store = MemoryStore(max_counters=4_096, clock=clock)
    fillers = (one(f"d:daily:fw86400:{{header:X={number}}}", 1, period=DAY) for number in itertools.count())
    for _ in range(8_192):
        store.decide(next(fillers))
    login, logins = one("d:login:fw60:{ip=me}", 5, period=MINUTE), 0
    for _ in range(40):
        for _ in range(used):
            logins += store.decide(login).admits(login)
        for _ in range(512):
            store.decide(next(fillers))
    assert logins == 5


@pytest.mark.parametrize("rule", ["login", "other"])
def test_a_filler_that_is_barely_used_goes_before_any_of_many_used_up_counters(clock, rule):
    store = MemoryStore(max_counters=4_096, clock=clock)
    spent = [one(f"d:login:fw60:{{ip={number}}}", 5, period=MINUTE, cost=5) for number in range(2_000)]
    for asks in spent:
        store.decide(asks)
    for number in range(20_000):
        store.decide(one(f"d:{rule}:fw86400:{{ip=f{number}}}", 10, period=DAY))
    assert not any(store.decide(asks, commit=False).admits(asks) for asks in spent)


def test_what_a_shadow_rule_has_used_up_goes_before_what_is_enforced(clock):
    store = MemoryStore(max_counters=100, clock=clock)
    login = one("d:login:fw60:{ip=me}", 5, period=MINUTE, cost=4)
    store.decide(login)
    for number in range(1_000):
        store.decide([Ask(f"d:watched:fw60:{{ip={number}}}", quota(1), 1, shadow=True)])
    login = one("d:login:fw60:{ip=me}", 5, period=MINUTE, cost=0)
    assert store.decide(login, commit=False).outcomes[0].remaining == 1


def test_a_counter_with_less_left_than_a_request_costs_counts_as_used_up(clock):
    store = MemoryStore(max_counters=1_000, clock=clock)
    search = one("d:search:fw60:{ip=me}", 5, period=MINUTE, cost=3)
    assert store.decide(search).admits(search)
    for number in range(5_000):
        store.decide(one(f"d:filler:fw60:{{header:X={number}}}", 10, period=DAY, cost=8))
    assert not store.decide(search).admits(search)


def test_a_counter_that_got_most_of_it_back_goes_before_those_that_are_used(clock):
    store = MemoryStore(max_counters=100, clock=clock)
    upload = one("d:upload:fw60:{ip=me}", 100, period=MINUTE, cost=100)
    charged_at = store.decide(upload).now
    store.refund(one("d:upload:fw60:{ip=me}", 100, period=MINUTE, cost=90), charged_at)
    for number in range(1_000):
        store.decide(one(f"d:filler:fw60:{{ip={number}}}", 10, period=DAY, cost=4))
    assert store.decide(upload, commit=False).outcomes[0].remaining == 100, "it is as if unused"


def test_a_standing_ban_outlives_a_flood(clock):
    ban = BanQuota("ban", 2, MINUTE, lasts=HOUR, longest=HOUR)
    store = MemoryStore(max_counters=1_000, clock=clock)
    login = [Ask("d:login:ban:{ip=me}", ban, 1), *one("d:login:fw60:{ip=me}", 0)]
    for _ in range(2):
        assert not store.decide(login).admits(login)
    for number in range(5_000):
        store.decide(one(f"d:daily:fw86400:{{header:X={number}}}", 1, period=DAY))
    assert store.decide(login, commit=False).outcomes[0].retry_after == HOUR


def test_denied_requests_take_no_room(clock):
    store = MemoryStore(max_counters=100, clock=clock)
    for number in range(50):
        store.decide([*one(f"d:r:{{{number}}}"), *one("d:never:{x}", 0)])
    assert len(store) == 0


def test_a_look_takes_no_room(clock):
    store = MemoryStore(clock=clock)
    store.decide(one("d:r:{x}"), commit=False)
    assert len(store) == 0


def test_what_has_expired_goes_as_new_ones_come(clock):
    store = MemoryStore(max_counters=1_000_000, clock=clock)
    for number in range(20_000):
        store.decide(one(f"d:r:{{a{number}}}", period=MINUTE))
    clock.advance(61)
    for number in range(20_000):
        store.decide(one(f"d:r:{{b{number}}}", period=MINUTE))
    assert len(store) <= 21_000


def test_what_has_expired_goes_before_what_counts_mostly(clock):
    store = MemoryStore(max_counters=100, clock=clock)
    for number in range(50):
        store.decide(one(f"d:r:{{short {number}}}", period=SECOND, cost=5))
    for number in range(50):
        store.decide(one(f"d:r:{{long {number}}}"))
    clock.advance(2)
    for number in range(50):
        store.decide(one(f"d:r:{{new {number}}}"))
    kept = sum(
        store.decide(one(f"d:r:{{long {number}}}"), commit=False).outcomes[0].remaining == 4 for number in range(50)
    )
    assert kept >= 40  # of a sample: seldom one that counts


@pytest.fixture
def looked(monkeypatch):
    """How many counters the store has looked at to make room, at most, in a list of one."""
    count = [0]
    unexpired = memory._unexpired

    def counting(segment, number, now):
        count[0] += number
        return unexpired(segment, number, now)

    monkeypatch.setattr(memory, "_unexpired", counting)
    return count


def test_one_request_never_does_the_work_of_many(clock, looked):
    """No pause: however many have expired or wait to be dropped, a request looks at a handful of counters."""
    store = MemoryStore(max_counters=20_000, clock=clock)
    for number in range(20_000):
        store.decide(one(f"d:r:{{{number}}}", period=MINUTE))
    worst = 0
    for number in range(2_000):
        clock.advance(0.1)
        before = looked[0]
        store.decide(one(f"d:r:{{new {number}}}", period=MINUTE))
        worst = max(worst, looked[0] - before)
    assert 0 < worst <= 10
    assert max(map(len, store._segments)) <= 4_096  # a dict that grows copies itself: small ones, no pause


def test_a_request_looks_at_a_handful_of_counters_even_where_all_are_used_up(clock, looked):
    store = MemoryStore(max_counters=20_000, clock=clock)
    for number in range(20_000):
        store.decide(one(f"d:r:{{{number}}}", 1))
    worst = 0
    for number in range(2_000):
        before = looked[0]
        store.decide(one(f"d:r:{{new {number}}}", 1))
        worst = max(worst, looked[0] - before)
    assert 0 < worst <= 40


def asking(store, *keys):
    """Two requests that ask counters of these keys in one step, each for itself, as the remembered plans of two paths.

    Each call returns what remains of each counter.
    """
    asks = [ask for key in keys for ask in one(key, limit=9)]
    take, place = store.decider(asks)
    return [partial(lambda place: [row[1] for row in take(place)[1]], place(asks)) for _ in range(2)]


SHARED = [pytest.param(["d:r:{a}"], id="one counter"), pytest.param(["d:r:{a}", "d:s:{a}"], id="several counters")]


@pytest.mark.parametrize("keys", SHARED)
def test_requests_that_share_counters_see_each_others_charges_however_often_each_comes(clock, keys):
    store = MemoryStore(clock=clock)
    first, second = asking(store, *keys)
    remaining = [ask() for ask in (first, second, second, first, first, second, first)]
    assert remaining == [[left] * len(keys) for left in (8, 7, 6, 5, 4, 3, 2)]
    asks = [ask for key in keys for ask in one(key, limit=9)]
    assert [outcome.remaining for outcome in store.decide(asks).outcomes] == [1] * len(keys)
    assert first() == [0] * len(keys)


@pytest.mark.parametrize("keys", SHARED)
def test_a_counter_that_is_dropped_begins_again_for_all_requests_that_share_it(clock, keys):
    store = MemoryStore(clock=clock)
    first, second = asking(store, *keys)
    for ask in (first, second, first, second):
        ask()
    store.forget(keys)
    assert [first(), second(), first(), second()] == [[left] * len(keys) for left in (8, 7, 6, 5)]


def test_a_counter_that_a_denied_request_charges_counts_for_all_requests_that_share_it(clock):
    """A cost that is known after the response is charged, whatever another rule says."""
    store = MemoryStore(clock=clock)
    tokens = Ask("d:tokens:{a}", with_overdraft(Quota("fixed_window", 100, MINUTE)), 10)
    take, place = store.decider([tokens])
    held = place([tokens])
    assert [take(held)[1][0][1] for _ in range(2)] == [90, 80]
    asks = [Ask("d:none:{a}", Quota("fixed_window", 0, MINUTE)), tokens]
    take_both, places = store.decider(asks)
    assert [row[0] for row in take_both(places(asks))[1]] == [False, True]
    assert take(held)[1][0][1] == 60


def test_threads_that_add_drop_and_forget_at_once_break_nothing(clock):
    store, gate = MemoryStore(max_counters=300, clock=clock), threading.Barrier(16)

    def work(seed):
        rng = random.Random(seed)
        gate.wait()
        for _ in range(1_500):
            key = f"d:r:{{{rng.randrange(900)}}}"
            if rng.random() < 0.1:
                store.forget([key])
            else:
                store.decide(one(key, rng.randrange(5), rng.choice(ALL)))
        return True

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))
    assert len(store) <= 300


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_the_lock_is_held_hangs_nobody(clock):
    store = MemoryStore(clock=clock)
    store.decide(one("d:r:{x}"))
    with store._lock:  # as another thread of the parent would
        assert in_child(lambda: store.decide(one("d:r:{x}")).outcomes[0].remaining) == 3
    assert store.decide(one("d:r:{x}")).outcomes[0].remaining == 3


def test_an_expired_counter_is_as_if_unused_even_while_it_is_still_there(clock):
    bucket = [Ask("d:r:{x}", Quota("token_bucket", 5, MINUTE, 5))]
    store = MemoryStore(clock=clock)
    for _ in range(5):
        store.decide(bucket)
    clock.advance(60)
    assert len(store) == 1
    assert store.decide(bucket).outcomes[0].remaining == 4


FLOOD = [(USED_UP, f"d:login={number}") for number in range(12)]


@pytest.mark.parametrize(
    ("sample", "key"),
    [
        pytest.param([*FLOOD, (BARELY_USED - 1, "d:other=x")], "d:other=x", id="a barely used one goes first"),
        pytest.param([*FLOOD, (BARELY_USED, "d:other=x")], "d:login=0", id="then one of three quarters of a kind"),
        pytest.param([(BARELY_USED, "d:other=x"), *FLOOD[:3]], "d:login=0", id="or of exactly three quarters"),
        pytest.param([(BARELY_USED, "d:other=x"), *FLOOD[:2]], "d:other=x", id="not if there are fewer"),
        pytest.param([(USED_UP, "d:other=x"), *FLOOD[:2]], "d:login=0", id="but if all are used up"),
        pytest.param([*FLOOD, (USED_UP - 1, "d:login=x")], "d:login=x", id="which is the least used of its kind"),
    ],
)
def test_the_counter_that_goes_is_the_least_used_unless_one_kind_floods_the_store(sample, key):
    assert evicted(sample)[1] == key
