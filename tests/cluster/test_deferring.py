"""The queue of deferred requests on a cluster, where all its keys lie in one slot, and behind Sentinels."""

from contextlib import closing

import pytest

from ratelimit_mw.deferral.queue import Queue, StoredRequest
from ratelimit_mw.settings import DeferSettings

REQUEST = StoredRequest("POST", "http", "/reports", (("host", "shop"),), "192.0.2.1", "/reports", {"ip": "192.0.2.1"})
FIELDS = {"request": REQUEST.packed(), "body": "x"}


@pytest.fixture(params=["cluster", "sentinels"])
def url(request):
    return request.getfixturevalue(request.param).url


def test_requests_are_queued_handed_out_claimed_parked_and_queued_again(url):
    with closing(Queue(url, "deferring", DeferSettings())) as queue:
        queue.promote()
        for name, lane in (("a1", "ann"), ("a2", "ann"), ("b", "bob")):
            assert queue.put(name, lane, FIELDS)
        first, other = queue.next("w", 1.0), queue.next("w", 1.0)
        assert (first.id, other.id) == ("a1", "b")
        assert queue.pending("w") == [first, other]
        assert queue.postpone(other, 0.0)
        queue.promote()
        assert queue.next("w", 1.0).id == "b"
        assert queue.claim("another", 0.0) == first
        assert queue.begin(first, "t") == 1
        assert queue.arrive("a1", "t") == REQUEST
        assert queue.settle(first, "parked", {"reason": "it failed"})
        assert queue.next("w", 1.0).id == "a2"
        assert list(queue.parked()) == ["a1"]
        assert queue.retry("a1")
        assert (queue.length(), queue.status("a1").state) == (3, "queued")
