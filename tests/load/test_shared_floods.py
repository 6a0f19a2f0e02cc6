"""Ten million new clients on files of a shared store that are too small for them."""

import pytest

from tests.stores.shared import one, opened


@pytest.mark.parametrize("size", ["1MB", "4MB", "256MB"])
def test_a_flood_leaves_no_decision_undecided_and_no_used_up_counter_forgotten(tmp_path, caplog, size):
    store, login = opened(f"lmdb://{tmp_path}/counters?size={size}"), one("d:login:{ip=me}", limit=5, cost=5)
    assert store.decide(login).admits(login)
    for number in range(10_000_000):
        store.decide(one(f"d:r:{{header:X={number:0150}}}"))  # the whole of it outgrows the largest file, too
    assert not store.decide(login).admits(login)
    assert caplog.records == []
    store.close()
