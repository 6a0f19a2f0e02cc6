import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import app_limiter

NOTE = (
    "note: storage is memory://: each process has its own counters, and a restart resets them; to share them, set "
    "storage.url in the rules, or storage= in code: lmdb:// for the workers of one machine, redis://HOST:6379/0 "
    "for several machines\n"
)


def test_a_newcomer_finds_out_why_a_login_got_a_429(run, any_server):
    with app_limiter(any_server.url) as limiter:
        client = {"ip": "203.0.113.7", "method": "POST", "path": "/login", "header:authorization": "Bearer ada"}
        assert [limiter.check(client).allowed for _ in range(6)] == [True] * 5 + [False]
        line = ["explain", "POST", "/login", "--ip", "203.0.113.7", "-H", "Authorization: Bearer ada"]
        code, printed, said = run(*line, "--storage", any_server.url)
        after = limiter.peek(client)
    assert (code, said) == (0, "")
    printed = re.sub(r"user=[\w-]{20}", "user=HASH", re.sub(r"\d+(\.\d)? (s|min|h\b)", "T", printed))
    assert (
        printed
        == """\
POST /login from 203.0.113.7: would be denied by 'login', for T

· everything  replaced: it matches, but 'login' matches too and replaces it

✗ login       applies
    shop:login:sl60:{ip=203.0.113.7}
      5 per minute, sliding_log: 0 left; room in T; as if unused in T
    shop:login:sl3600:{ip=203.0.113.7}
      20 per hour, sliding_log: 15 left; as if unused in T
    shop:login:sl60:{user=HASH}
      5 per minute, sliding_log: 0 left; room in T; as if unused in T
    shop:login:sl3600:{user=HASH}
      20 per hour, sliding_log: 15 left; as if unused in T

· api         no match: the path is /login, but must be /api/items/{id:int}

What would change that, each by itself:
  - T pass without another request
  - 'login' may do more than 5 per minute
  - the counters of 'login' are reset
"""
    )
    assert [policy.remaining for policy in after.policies] == [0, 15, 0, 15]  # explaining charged nothing


@pytest.mark.parametrize(
    ("words", "first"),
    [
        pytest.param(["get", "/\udcff", "-H", "X-A: \udcff"], "GET /\ufffd from", id="bytes that are not UTF-8"),
        pytest.param(["get\udcff", "/%1b[31m"], r"GET\udcff /\x1b[31m from", id="what a terminal would obey"),
    ],
)
def test_any_bytes_may_stand_in_a_request(run, words, first):
    code, printed, _ = run("explain", *words)
    assert (code, printed[: len(first)]) == (0, first)


# The words after `explain`, the first line, and the lines of the rules.
@pytest.mark.parametrize(
    ("words", "first", "rules"),
    [
        pytest.param(
            ["get", "/api/items/7?x=1", "--ip", "192.0.2.1"],
            "GET /api/items/7 from 192.0.2.1: would pass; 'api' has 5 of 5 left",
            [
                "✓ everything  applies",
                None,
                "✓ api         applies",
            ],
            id="two rules that allow it",
        ),
        pytest.param(
            ["GET", "/api/items/7", "--ip", "192.0.2.1", "-H", "X-Plan: gold"],
            "GET /api/items/7 from 192.0.2.1: would pass; 'api' has 50 of 50 left",
            None,
            id="the tier, from a header",
        ),
        pytest.param(
            ["GET", "/api/items/7", "--ip", "192.0.2.1", "--tier", "gold", "--cost", "51"],
            "GET /api/items/7 from 192.0.2.1: would be denied by 'api'",
            None,
            id="a cost that can't fit",
        ),
        pytest.param(
            ["GET", "/health", "--ip", "192.0.2.1"],
            "GET /health from 192.0.2.1: would pass, uncounted",
            ["· everything  exempt: exempt[0] (the path /health) exempts it", None, None],
            id="exempt",
        ),
        pytest.param(
            ["POST", "/lo%67in", "--ip", "2001:db8::1", "--user", "ada"],
            "POST /login from 2001:db8::1: would pass; 'login' has 5 of 5 left",
            None,
            id="a path in disguise, and the user by name",
        ),
        pytest.param(
            ["GET", "/"],
            "GET / from an unknown address: would pass; 'everything' has 100 of 100 left",
            None,
            id="no client",
        ),
    ],
)
def test_what_is_said_of_a_request(run, words, first, rules):
    code, printed, _ = run("explain", *words)
    lines = printed.splitlines()
    assert (code, lines[0]) == (0, first)
    if rules:
        told = [line for line in lines if line[:1] in "✓✗·○" and line]
        assert [(line if rule else None) for line, rule in zip(told, rules, strict=True)] == rules


def test_the_address_behind_proxies_is_found_as_the_app_finds_it(run):
    Path("ratelimits.yaml").write_text(
        "domain: d\nclient: {trusted_proxies: [10.0.0.0/8]}\nrules:\n- {name: a, limit: 1/s}\n", "utf-8"
    )
    line = ["explain", "GET", "/", "--peer", "10.1.2.3", "-H", "X-Forwarded-For: 198.51.100.9, 203.0.113.7"]
    assert "{ip=203.0.113.7}" in run(*line)[1]


def test_custom_attributes_are_given_by_name(run):
    Path("ratelimits.yaml").write_text(
        "domain: d\nattributes: {org: header:X-Org}\nrules:\n- {name: a, by: org, limit: 1/s}\n", "utf-8"
    )
    assert (
        "· a  no counter: it matches, but has nothing to count by: the request has no org"
        in run("explain", "GET", "/")[1]
    )
    assert "✓ a  applies" in run("explain", "GET", "/", "-a", "org=acme")[1]


def test_programs_get_json(run):
    code, printed, said = run("explain", "POST", "/login", "--ip", "192.0.2.1", "--cost", "6", "--json")
    told = json.loads(printed)
    assert (code, said) == (0, NOTE)
    assert told["decision"]["allowed"] is False
    assert told["decision"]["retry_after"] is None  # it never fits
    assert [rule["status"] for rule in told["rules"]] == ["replaced", "applies", "no match"]
    assert told["rules"][1]["counters"][0] == {
        "key": "shop:login:sl60:{ip=192.0.2.1}",
        "limit": "5 per minute",
        "algorithm": "sliding_log",
        "cost": 6,
        "allowed": False,
        "remaining": 5,
        "reset_after": told["rules"][1]["counters"][0]["reset_after"],
        "retry_after": None,
        "banned": False,
    }
    assert told["changes"] == ["the request costs no more than 5", "'login' may do more than 5 per minute"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(["GET", "/", "-H", "nonsense"], 2, "'nonsense' is not NAME:VALUE", id="a header without colon"),
        pytest.param(["GET", "/", "-a", "nonsense"], 2, "'nonsense' is not NAME=VALUE", id="an attribute without ="),
        pytest.param(["GET", "/", "--ip", "nonsense"], 2, "'nonsense' is not an address", id="no address"),
        pytest.param(["GET", "/", "--peer", "10.0.0.0/8"], 2, "'10.0.0.0/8' is not an address", id="a network"),
        pytest.param(["GET"], 2, "Missing argument", id="no path"),
        pytest.param(["/login", "get"], 2, "'/login' is a path: write GET /login", id="the path before the method"),
        pytest.param(["GET", "/", "--rules", "none.yaml"], 1, "none.yaml: these rules can't be loaded", id="no rules"),
        pytest.param(
            ["GET", "/", "--rules", "redis://127.0.0.1:1/0"],
            1,
            "these rules can't be loaded",
            id="the rules' database away",
        ),
        pytest.param(
            ["GET", "/", "-s", "redis://127.0.0.1:1/0"], 3, "the store does not answer: ", id="the store away"
        ),
    ],
)
def test_how_it_ends(run, words, code, said):
    found, _, stderr = run("explain", *words)
    assert found == code
    assert said in " ".join(stderr.replace("│", " ").split())
