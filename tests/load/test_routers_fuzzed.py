"""Mutated request targets, sent to each framework's own router: where a handler runs, its rule must have counted."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.routers import ASGI, WSGI, Routed, requests_to

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "3000"))
APPS = [*(("asgi", name) for name in ASGI), *(("wsgi", name) for name in WSGI)]


@pytest.fixture(params=APPS, ids=" ".join)
def routed(request) -> Iterator[Routed]:
    found = Routed(*request.param)
    yield found
    found.close()


@pytest.mark.timeout(1800)
def test_no_spelling_of_a_target_runs_a_handler_uncounted(routed):
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(requests_to(routed.kind))
    def check(sent):
        assert routed.missed(*sent) == []

    check()
