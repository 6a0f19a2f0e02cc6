"""What an app reads is among the values that count: otherwise a malformed twin would be a new identity.

`tests/load/test_frameworks_fuzzed.py` tries more requests.
"""

import pytest
from hypothesis import example, given

from tests.identity.frameworks import COOKIES, HEADERS, QUERIES, READERS, assert_counted

HOSTILE = {
    "twins": (["s=1", "s=REAL"], "s=1&s=REAL", [("x-user", "1"), ("x-user", "REAL")]),
    "five": (["s=1; s=2; s=3; s=4; s=5"], "s=1&s=2&s=3&s=4&s=5", [("x-user", str(n)) for n in range(5)]),
    "an underscore and a semicolon": (["t=1", "s=REAL"], "s=1;s=REAL", [("x_user", "REAL")]),
    "a comma": (["s=REAL,t=1"], "s=a,b", [("x-user", "a,b"), ("x-user", "c")]),
    "a comma of lines": (["s=REAL", "t"], "s", []),
    "blanks": (["\xa0s=REAL", "\x85s=1"], "s=\xc3\xa9", [("x-user", " 1 ")]),
    "a blank of UTF-8": (["\xe2\x80\x83s\xe2\x80\x83=\xe2\x80\x83REAL"], "s= 1", []),
    "a control": (["s=REAL\x1f; s=1"], "s=%FF", []),
    "percent signs": (["s=%52EAL"], "%73=REAL&s=%", []),
    "an escaped separator": (["s=a%3Bb"], "s=a%26s=1%3bs%3D2", []),
    "lines of two spellings": ([], "", [("x-user", "1"), ("x-user", "1"), ("x_user", "1")]),
    "escapes": (['s="\\122EAL"', "$Version=1"], "s=", []),
    "escapes of bytes": (['s="\\303\\251"', 's="\\351"'], "s=\xe9", []),
    "a quoted semicolon": (['s="a; b"; t="x; s=REAL; u="'], "s=a+b", []),
    "an open quote": (['s="a', 'b"'], 's="a"', []),
    "what ends SimpleCookie": (["s=REAL [x"], "s=a;b", []),
    "what ends all of SimpleCookie": (["s=REAL; path; s=1"], "", []),
    "bytes in a query with percent signs": ([], "s=%C3\xa9", []),
}


@pytest.mark.parametrize("request_", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("framework", READERS)
def test_what_the_app_reads_of_a_malformed_request_counts(framework, request_):
    assert_counted(framework, *request_)


@pytest.mark.parametrize("framework", READERS)
@given(cookies=COOKIES, query=QUERIES, headers=HEADERS)
@example(cookies=["s=1", "s=REAL"], query="s=1&s=REAL", headers=[("x-user", "1"), ("x-user", "REAL")])
def test_what_the_app_reads_counts(framework, cookies, query, headers):
    assert_counted(framework, cookies, query, headers)
