"""Proposals for mixtures of clients: ordinary clients lose nearly nothing, and abusers nearly all beyond their use."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from docs.laboratory import PAGE, filled
from tests.foresight.laboratory import Mixture, tried

MIXTURES = st.builds(
    Mixture,
    seed=st.integers(0, 10**6),
    hours=st.integers(3, 8),
    shoppers=st.integers(200, 900),
    at_noon=st.sampled_from([0, 0.3, 0.7]),
    offices=st.integers(0, 4),
    workers=st.integers(5, 50),
    carrier=st.sampled_from([0, 50, 200]),
    members=st.sampled_from([0, 30, 90]),
    paging=st.sampled_from([0, 60, 90]),
    per_minute=st.sampled_from([20, 60, 120]),
    pollers=st.integers(0, 4),
    period=st.sampled_from([5, 10, 30, 60, 300]),
    crawlers=st.integers(0, 3),
    crawled=st.integers(500, 3000),
    crawl_gap=st.sampled_from([0.1, 0.5, 1.0, 2.0]),
    guessers=st.integers(0, 5),
    guess_gap=st.sampled_from([1, 3, 10, 20]),
    tries=st.integers(50, 400),
    spread=st.sampled_from([0] * 19 + [300]),
)


def stopped(mixture):
    """True if abusers lose nearly all that is theirs alone. Ordinary clients lose nearly nothing in any case."""
    outcome = tried(mixture)
    assert outcome.ordinary_share <= 0.001, outcome.text
    assert len(outcome.proposal.rules) <= 8
    assert outcome.abusers_share >= 0.9 or outcome.says_why, outcome.text
    return outcome.abusers_share >= 0.9


def failures(number):
    """How many of so many mixtures have abusers that are not stopped."""
    found = []

    @settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(MIXTURES)
    def each(mixture):
        found.append(stopped(mixture))

    each()
    return found.count(False)


def test_abusers_lose_what_is_theirs_alone_and_ordinary_clients_nothing():
    assert failures(3) == 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_in_nineteen_of_twenty_mixtures_abusers_are_stopped():
    assert failures(100) <= 5


def test_the_table_of_the_page_is_what_the_laboratory_finds():
    page = PAGE.read_text("utf-8")
    assert filled(page) == page
