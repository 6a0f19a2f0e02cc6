"""What the app reads is among what the limiter reads: else a bogus twin would be a new identity for the same session.

Each framework reads a request, and so does the limiter. Where the limiter sees no doubt, both have the same value.
Otherwise the framework's value is one of the limiter's readings. `tests/load/test_frameworks_fuzzed.py` goes on for
longer; versions that are not installed here have been recorded by `tests/load/record_frameworks.py`.
"""

import json
from pathlib import Path

import pytest
from hypothesis import example, given

from ratelimit_mw.identity.decoding import ASGI, FLASK, OLD_FLASK, OLD_STARLETTE, WSGI, host_name
from ratelimit_mw.identity.http_request import DjangoRequest
from tests.identity.frameworks import COOKIES, HEADERS, QUERIES, READERS, assert_agreed, requests_of
from tests.identity.requests import attributes
from tests.load.record_frameworks import READERS as INSTALLED
from tests.load.record_frameworks import SERVED

RECORDED = json.loads((Path(__file__).parents[1] / "vectors" / "frameworks.json").read_text())
CASES = RECORDED.pop("cases")


@pytest.mark.parametrize("framework", READERS)
@given(cookies=COOKIES, query=QUERIES, headers=HEADERS)
@example(cookies=["s=1", "s=REAL"], query="s=1&s=REAL", headers=[("x-user", "1"), ("x-user", "REAL")])
@example(cookies=["t=1", "s=REAL"], query="s=1;s=REAL", headers=[("x_user", "REAL")])
@example(cookies=["\xa0s=REAL", "\x85s=1"], query="s=\xc3\xa9", headers=[])
@example(cookies=["s=REAL\x1f; s=1"], query="s=%FF", headers=[])
@example(cookies=["s=%52EAL"], query="%73=REAL", headers=[])
@example(cookies=['s="\\122EAL"', "$Version=1"], query="s=", headers=[])
@example(cookies=['a="x; s=REAL; b="'], query="", headers=[])
@example(cookies=["s=REAL; path; s=1"], query="", headers=[])
def test_what_the_app_reads_is_what_the_limiter_reads(framework, cookies, query, headers):
    assert_agreed(framework, cookies, query, headers)


@pytest.mark.parametrize("recorded", RECORDED)
def test_what_an_older_version_reads_is_what_the_limiter_reads(recorded):
    for case, said in zip(CASES, RECORDED[recorded], strict=True):
        ours = requests_of(recorded, case["cookies"], case["query"], [("host", case["host"])])
        rows = ours.frameworks
        if said["cookie"]:
            assert said["cookie"] in {ours.cookie_as(row, "s") for row in rows}, case
        if (
            said["query"] and "FF" not in case["query"]
        ):  # Werkzeug keeps undecodable bytes apart, the limiter merges them
            assert said["query"] in {ours.query_as(row, "s") for row in rows}, case
        if said["served"]:
            assert SERVED in {ours.host_as(row) for row in rows}, case


@pytest.mark.parametrize("framework", ["starlette", "django asgi", "django wsgi", "werkzeug"])
def test_a_host_that_is_served_is_matched(framework):
    read = INSTALLED[framework.partition(" ")[0]][framework]
    for case in CASES:
        if read(case)["served"]:
            ours = requests_of(framework, [], "", [("host", case["host"])])
            assert SERVED in {host_name(ours.host() or ""), *(ours.host_as(row) for row in ours.frameworks)}, case


@pytest.mark.parametrize(("recorded", "row"), [("werkzeug 3.0.1", OLD_FLASK), ("starlette 0.40.0", OLD_STARLETTE)])
def test_an_older_version_has_a_row_of_its_own(recorded, row):
    for case, said in zip(CASES, RECORDED[recorded], strict=True):
        ours = requests_of(recorded, case["cookies"], case["query"], [("host", case["host"])])
        assert (ours.cookie_as(row, "s") or "") == (said["cookie"] or ""), case


def test_old_django_takes_underscores_for_hyphens():
    (said,) = {answer["header"] for answer in RECORDED["django asgi 4.2"]}
    ours = requests_of("django asgi 4.2", [], "", [("x_user", "low"), ("x-user", "1")])
    assert said == "low,1"
    assert said in {ours.header_as(row, "x-user") for row in ours.frameworks}


def test_a_usual_request_is_parsed_once():
    known = attributes(user="cookie:sid", attributes={"page": "query:page", "key": "header:X-Key"})
    readers = [known.reader(name) for name in ("user", "page", "key", "host")]
    cookies, query = "theme=dark; sid=3f2-a_b.c~=; lang=en", "a=1&page=%C3%A9+2"
    headers = [("Host", "api.example.com:8000"), ("X-Key", "k")]
    for framework in ("starlette", "flask"):
        request = requests_of(framework, [cookies], query, headers)
        assert [read(request) for read in readers] == ["3f2-a_b.c~=", "é 2", "k", "api.example.com"]
        assert not request.ambiguous
        assert known.read_alternatives(request) == ()


def test_under_django_there_is_no_doubt():
    request = requests_of("django wsgi", ["\xc2\xa0s=REAL; s=2"], "s=1&s=2", [])
    assert isinstance(request, DjangoRequest)
    assert (request.cookie("s"), request.query("s"), request.ambiguous) == ("2", "2", False)


def test_no_request_has_more_readings_than_there_are_rows():
    known = attributes(user="cookie:s", attributes={"a": "query:s", "b": "header:X-User"})
    for name in ("user", "a", "b", "host"):
        known.reader(name)
    for kind, rows in (("starlette", ASGI), ("flask", WSGI)):
        lines = [f"s={n}; \xa0s=%{n}1; s='{n}'" for n in range(9)]
        headers = [("x-user", "1"), ("x_user", "2"), ("x-user", "3"), ("host", "a:b:c.")]
        request = requests_of(kind, lines, "&".join(f"s={n};s=\xe9" for n in range(9)), headers)
        assert 1 < len(known.read_alternatives(request)) <= len(rows)
    assert FLASK in WSGI
