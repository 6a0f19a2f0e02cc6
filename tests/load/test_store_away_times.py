"""While the store is away the first decisions fail within 0.5 s in total, the next hundred within 0.1 s.

Limits apply again within 2 s after it came back. `tests/faults/test_store_away.py` tests the same without a clock.
"""

import pytest

from tests.faults.faults import FAULTS, away_and_back, kinds, never_there

TIMEOUT = 0.2
AGAIN = 2.0


@pytest.mark.parametrize("fault", FAULTS)
def test_it_goes_away_and_comes_back_in_time(client_of, fresh_server, proxy, caplog, fault):
    logged = away_and_back(client_of, fresh_server, proxy, caplog, fault, timeout=TIMEOUT, back_within=AGAIN)
    assert kinds(logged) in (["away", "back"], ["fault", "back"], ["away", "fault", "back"])


@pytest.mark.parametrize("fault", ["no listener", "black hole", "password", "stopped"])
def test_it_is_not_there_from_the_start_and_none_waits(client_of, fresh_server, proxy, caplog, fault):
    logged = never_there(client_of, fresh_server, proxy, caplog, fault, timeout=TIMEOUT, back_within=AGAIN)
    assert "wrong" not in "".join(logged)
