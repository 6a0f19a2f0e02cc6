"""Mutated cookies, parameters and headers: what a framework reads has to be among what the limiter counts.

The short form is `tests/identity/test_values_against_frameworks.py`. `FUZZ_EXAMPLES` says how many requests each
framework gets here, 3 000 if it is not set.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings

from tests.identity.frameworks import COOKIES, HEADERS, QUERIES, READERS, assert_counted

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "3000"))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("framework", READERS)
def test_what_the_app_reads_is_what_the_limiter_reads(framework):
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=False, suppress_health_check=list(HealthCheck))
    @given(cookies=COOKIES, query=QUERIES, headers=HEADERS)
    def check(cookies, query, headers):
        assert_counted(framework, cookies, query, headers)

    check()
