"""A thousand kills of the processes of a shared store, at any moment."""

from tests.stores.shared import killed_at_any_moment


def test_a_thousand_killed_workers_leave_exact_counters(tmp_path):
    killed_at_any_moment(f"lmdb://{tmp_path}/counters", 1_000)
