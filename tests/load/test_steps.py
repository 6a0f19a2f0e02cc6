"""A request runs no more of this package's code than is stored: slower code shows on any machine."""

import pytest

from bench.steps import counted, stored


def test_a_request_runs_as_many_bytecodes_as_are_stored():
    before = stored()
    if not before:
        pytest.skip("no counts are stored for this version of Python")
    now = counted()
    assert now == {what: pytest.approx(count, rel=0.03) for what, count in before.items()}, (
        "if this is wanted: python -m bench.steps --write"
    )
