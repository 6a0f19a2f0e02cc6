"""Fixtures that the tests of stores share."""

import pytest

from ratelimit_mw import ManualClock


@pytest.fixture
def clock():
    """A clock that stands at the beginning of a minute until the test moves it."""
    return ManualClock(1_700_000_040)
