"""Rules files put together at random, a thousand of them: what `tests/test_combinations.py` tries with a few."""

import pytest

from tests import test_combinations as combinations


@pytest.fixture(autouse=True)
def many(monkeypatch):
    monkeypatch.setattr(combinations, "SEEDS", 1_000)


@pytest.mark.timeout(1_800)
def test_a_thousand_files_are_answered_alike_by_each_shell_over_each_store(any_server):
    combinations.test_what_loads_is_answered_alike_by_each_shell_over_each_store(any_server)


@pytest.mark.timeout(1_800)
def test_a_thousand_files_do_what_on_error_says_with_the_store_away():
    combinations.test_with_the_store_away_each_rule_does_what_its_on_error_says_and_nothing_fails()
