from contextlib import closing

import pytest

from ratelimit_mw import ManualClock
from ratelimit_mw.deferral.queue import Queue, StoredRequest
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.settings import DeferSettings

REQUEST = StoredRequest("POST", "http", "/reports", (("host", "shop"),), "192.0.2.1", "/reports", {"ip": "192.0.2.1"})
FIELDS = {"request": REQUEST.packed(), "body": b"\x00\xff", "rule": "reports"}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def make(server, clock):
    made = []

    def queue(**settings):
        made.append(Queue(server.url, "shop", DeferSettings(**settings), clock))
        made[-1].promote()
        return made[-1]

    yield queue
    for one in made:
        one.close()


def taken(queue, worker="w", seconds=0.05):
    entry = queue.next(worker, seconds)
    return entry and entry.id


def test_what_is_put_is_handed_out_once(make):
    queue = make()
    assert queue.put("a", "ann", FIELDS)
    entry = queue.next("w1", 0.05)
    assert (entry.id, entry.lane) == ("a", "ann")
    assert queue.next("w2", 0.05) is None
    job = queue.load("a")
    assert (job.state, job.request, job.body, job.attempts) == ("queued", REQUEST, b"\x00\xff", 0)


def test_the_age_of_a_request_is_by_the_clock_of_the_store(make, server, clock):
    queue = make()
    queue.put("a", "ann", FIELDS)
    clock.advance(5)
    assert queue.load("a").age == 5_000_000
    with closing(Queue(server.url, "shop", DeferSettings())) as timeless:
        timeless.put("b", "bob", FIELDS)
        assert 0 <= timeless.load("b").age < 60_000_000


def test_what_was_put_before_there_was_a_worker_is_handed_out(server, clock):
    with closing(Queue(server.url, "shop", DeferSettings(), clock)) as queue:
        queue.put("a", "ann", FIELDS)
        assert queue.promote() is None
        assert taken(queue) == "a"


def test_what_has_expired_without_a_worker_takes_no_place(make, server, clock):
    queue = make(max_length=2, keep=1.0)
    queue.put("a", "ann", FIELDS)
    queue.put("b", "bob", FIELDS)
    assert not queue.put("c", "cid", FIELDS)
    clock.advance(63)
    with server.client() as client:  # the server's own clock did not advance
        client.delete(*(f"{{shop:deferred}}:{key}" for key in ("request:a", "request:b", "lane:ann", "lane:bob")))
    assert queue.put("c", "cid", FIELDS)
    assert queue.length() == 1


def test_what_has_expired_in_a_lane_takes_no_place_there(make, server):
    queue = make(max_each=2)
    queue.put("a", "ann", FIELDS)
    queue.put("b", "ann", FIELDS)
    with server.client() as client:
        client.delete("{shop:deferred}:request:a")
    assert queue.put("c", "ann", FIELDS)
    assert not queue.put("d", "ann", FIELDS)
    stale, entry = queue.next("w", 0.05), queue.next("w", 0.05)
    assert (stale.id, entry.id) == ("a", "b")
    queue.forget(stale)
    assert queue.next("w", 0.05) is None
    assert queue.begin(entry, "ticket") == 1


def test_a_lane_that_waits_goes_on_waiting_if_its_first_request_expires(make, server):
    queue = make(max_each=3)
    queue.put("a", "ann", FIELDS)
    queue.put("b", "ann", FIELDS)
    queue.postpone(queue.next("w", 0.05), 60)
    with server.client() as client:
        client.delete("{shop:deferred}:request:a")
    queue.put("c", "ann", FIELDS)
    assert queue.next("w", 0.05) is None


def test_of_one_lane_one_is_handed_out_at_a_time_in_order(make):
    queue = make()
    for name in ("a1", "a2", "a3"):
        queue.put(name, "ann", FIELDS)
    queue.put("b1", "bob", FIELDS)
    first, other = queue.next("w", 0.05), queue.next("w", 0.05)
    assert (first.id, other.id) == ("a1", "b1")
    assert taken(queue) is None
    queue.begin(first, "t")
    assert queue.settle(first, "done", {"status": 200})
    assert taken(queue) == "a2"


def test_a_lane_that_waits_does_not_delay_other_lanes(make, clock):
    queue = make()
    queue.put("a1", "ann", FIELDS)
    queue.put("a2", "ann", FIELDS)
    entry = queue.next("w", 0.05)
    assert queue.postpone(entry, 30.0)
    queue.put("b1", "bob", FIELDS)
    assert (taken(queue), taken(queue)) == ("b1", None)
    assert queue.promote() == 30.0
    clock.advance(29.5)
    assert queue.promote() == 0.5
    clock.advance(0.5)
    assert queue.promote() is None
    assert (taken(queue), taken(queue)) == ("a1", None)


@pytest.mark.parametrize(
    ("settings", "lanes"),
    [
        pytest.param({"max_length": 2}, ["ann", "bob", "cid"], id="the queue"),
        pytest.param({"max_each": 2}, ["ann", "ann", "ann"], id="the lane"),
    ],
)
def test_what_is_full_takes_nothing_until_something_has_left(make, settings, lanes):
    queue = make(**settings)
    assert [queue.put(f"r{n}", lane, FIELDS) for n, lane in enumerate(lanes)] == [True, True, False]
    assert queue.load("r2") is None
    entry = queue.next("w", 0.05)
    queue.begin(entry, "t")
    queue.settle(entry, "done", {})
    assert queue.put("r2", lanes[2], FIELDS)
    assert queue.length() == 2


def test_an_attempt_is_begun_by_one_worker_alone(make):
    queue = make()
    queue.put("a", "ann", FIELDS)
    first = queue.next("slow", 0.05)
    second = queue.claim("fast", 0.0)
    assert second == first
    assert queue.begin(second, "t2") == 1
    assert queue.begin(first, "t1") == 0
    assert queue.postpone(second, 0.0)
    queue.promote()
    third = queue.next("third", 0.05)
    assert queue.begin(first, "t1") == 0, "its entry stands for nothing any more"
    assert queue.begin(third, "t3") == 2
    assert not queue.settle(first, "done", {})
    assert queue.status("a").state == "running"


def test_what_a_worker_was_handed_it_can_ask_for_again(make):
    queue = make()
    queue.put("a", "ann", FIELDS)
    queue.put("b", "bob", FIELDS)
    entries = [queue.next("w", 0.05), queue.next("w", 0.05)]
    assert queue.pending("w") == entries
    queue.begin(entries[0], "t")
    queue.settle(entries[0], "done", {})
    assert queue.pending("w") == entries[1:]
    assert queue.pending("another") == []


def test_only_what_lay_idle_is_claimed(make):
    queue = make()
    queue.put("a", "ann", FIELDS)
    queue.next("w", 0.05)
    assert queue.claim("other", 60.0) is None


def test_a_ticket_is_good_once_and_while_its_attempt_is_under_way(make):
    queue = make()
    queue.put("a", "ann", FIELDS)
    assert queue.arrive("a", "t") is None
    entry = queue.next("w", 0.05)
    queue.begin(entry, "t")
    assert queue.arrive("a", "forged") is None
    assert queue.arrive("a", "t") == REQUEST
    assert queue.arrive("a", "t") is None
    queue.postpone(entry, 0.0)
    queue.promote()
    again = queue.next("w", 0.05)
    assert queue.begin(again, "t2") == 2
    queue.settle(again, "unknown", {"reason": "lost"})
    assert queue.arrive("a", "t2") is None


def test_a_done_request_keeps_its_status_but_not_what_the_client_sent(make):
    queue = make()
    assert queue.status("a") is None
    queue.put("a", "ann", FIELDS)
    assert queue.status("a").state == "queued"
    entry = queue.next("w", 0.05)
    queue.begin(entry, "t")
    assert queue.status("a").state == "running"
    queue.settle(entry, "done", {"status": 201, "type": "text/plain", "answer": b"\xff"})
    fate = queue.status("a")
    assert (fate.state, fate.status, fate.kind, fate.answer, fate.attempts) == ("done", 201, "text/plain", b"\xff", 1)
    assert queue.load("a") is None
    assert (queue.length(), queue.parked()) == (0, {})


def test_what_is_parked_is_listed_and_can_be_tried_again_at_the_end_of_its_lane(make):
    queue = make()
    queue.put("a1", "ann", FIELDS)
    queue.put("a2", "ann", FIELDS)
    entry = queue.next("w", 0.05)
    queue.begin(entry, "t")
    queue.settle(entry, "parked", {"reason": "it failed", "status": 500})
    ((name, fate),) = queue.parked().items()
    assert (name, fate.state, fate.reason, fate.status, fate.attempts) == ("a1", "parked", "it failed", 500, 1)
    assert queue.retry("a1")
    assert not queue.retry("a1")
    assert (queue.parked(), queue.status("a1").state, queue.load("a1").attempts) == ({}, "queued", 0)
    second = queue.next("w", 0.05)
    assert second.id == "a2"
    queue.begin(second, "t")
    queue.settle(second, "done", {})
    assert taken(queue) == "a1"


def test_what_is_parked_is_bounded(make):
    queue = make(max_length=2)
    for name in "abc":
        queue.put(name, name, FIELDS)
        entry = queue.next("w", 0.05)
        queue.begin(entry, "t")
        queue.settle(entry, "parked", {"reason": "it failed"})
    assert list(queue.parked()) == ["b", "c"]
    assert queue.status("a") is None


def test_an_expired_request_does_not_delay_its_lane(make, server):
    queue = make()
    for name in ("a1", "a2", "a3"):
        queue.put(name, "ann", FIELDS)
    with server.client() as client:
        client.delete("{shop:deferred}:request:a1", "{shop:deferred}:request:a2")
    entry = queue.next("w", 0.05)
    assert queue.load(entry.id) is None
    queue.forget(entry)
    assert taken(queue) == "a3"
    assert queue.length() == 1


def test_every_key_has_a_ttl_at_every_moment(make, server):
    queue = make(keep=10.0)

    def check():
        with server.client() as client:
            keys = client.keys("*")
            assert keys
            assert {key: client.pttl(key) for key in keys if not 0 < client.pttl(key) <= 80_000} == {}

    check()
    for name in ("a1", "a2", "b"):
        queue.put(name, name[0], FIELDS)
        check()
    entry = queue.next("w", 0.05)
    queue.begin(entry, "t")
    check()
    queue.postpone(entry, 1.0)
    check()
    other = queue.next("w", 0.05)
    queue.settle(other, "parked", {"reason": "it failed"})
    check()
    queue.retry(other.id)
    check()


def test_two_domains_have_two_queues(server):
    with (
        closing(Queue(server.url, "shop", DeferSettings())) as shop,
        closing(Queue(server.url, "a}b:{", DeferSettings())) as other,
    ):
        shop.put("a", "ann", FIELDS)
        assert (shop.length(), other.length(), other.status("a")) == (1, 0, None)


def test_a_store_that_is_away_is_said_so(fresh_server):
    with closing(Queue(fresh_server.url, "shop", DeferSettings())) as queue:
        assert queue.put("a", "ann", FIELDS)
        fresh_server.kill()
        with pytest.raises(StoreUnavailable):
            queue.put("b", "ann", FIELDS)
