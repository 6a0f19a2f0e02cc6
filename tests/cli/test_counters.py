"""`show`, `top` and `reset`, over a real server."""

import json
import re
from pathlib import Path

import pytest

from ratelimit_mw import RateLimiter
from tests.cli.conftest import app_limiter
from tests.support.apps import within_a_minute


@pytest.fixture
def shop(run, any_server, monkeypatch):
    """A limiter that shares its counters with the commands, after some traffic of this minute."""
    within_a_minute()
    with app_limiter(any_server.url) as limiter:
        for _ in range(5):
            limiter.check({"ip": "203.0.113.7", "method": "POST", "path": "/login"})
        for number in range(30):
            limiter.check({"ip": f"203.0.113.{number % 3}", "path": "/"})
        limiter.check({"ip": "203.0.113.9", "user": "ada", "path": "/api/items/7"})
        yield limiter


@pytest.fixture
def ask(run, shop, any_server):
    """As `run`, with the server's counters."""

    def invoke(*words, typed=None):
        code, printed, said = run(*words, "--storage", any_server.url, typed=typed)
        printed = re.sub(r" +\d+(\.\d)? (s|min|h)$", " T", printed, flags=re.MULTILINE)
        return code, re.sub(r"user=[\w-]{20}", "user=A-HASH-OF-20-LETTERS", printed), said

    return invoke


def test_top_shows_the_fullest_first(ask):
    assert ask("top", "-n", "4") == (
        0,
        """\
rule        client                     limit           algorithm       used  left  as if unused in
login       ip=203.0.113.7             5 per minute    sliding_log     100%     0 T
login       ip=203.0.113.7             20 per hour     sliding_log      25%    15 T
api         user=A-HASH-OF-20-LETTERS  5 per hour      sliding_window   20%     4 T
everything  ip=203.0.113.0             100 per minute  sliding_window   10%    90 T
""",
        "",
    )


def test_top_for_programs(ask):
    code, printed, _ = ask("top", "--most", "1", "--json")
    (first,) = json.loads(printed)["counters"]
    assert code == 0
    assert 0 < first.pop("reset_after") <= 60
    assert first == {
        "rule": "login",
        "identity": "ip=203.0.113.7",
        "client": "ip=203.0.113.7",
        "limit": "5 per minute",
        "algorithm": "sliding_log",
        "remaining": 0,
        "used": 1.0,
        "key": "shop:login:sl60:{ip=203.0.113.7}",
    }


@pytest.mark.parametrize(
    ("words", "clients"),
    [
        pytest.param(["login"], ["ip=203.0.113.7", "ip=203.0.113.7"], id="a rule's"),
        pytest.param(["login", "--ip", "203.0.113.8"], ["ip=203.0.113.8", "ip=203.0.113.8"], id="unused"),
        pytest.param(["api", "--user", "ada"], ["user=A-HASH-OF-20-LETTERS"], id="a user's, under its hash"),
        pytest.param(["api", "--ip", "::1", "--user", "ada"], ["user=A-HASH-OF-20-LETTERS"], id="the first of a|b"),
        pytest.param(["everything", "-n", "2"], ["ip=203.0.113.0", "ip=203.0.113.1"], id="no more than asked for"),
    ],
)
def test_show_finds_counters_by_rule_and_client(ask, words, clients):
    code, printed, said = ask("show", *words)
    assert (code, said) == (0, "")
    assert [line.split()[1] for line in printed.splitlines()[1:]] == clients


def test_looking_charges_nothing(ask, shop):
    client = {"ip": "203.0.113.0", "path": "/"}
    before = shop.peek(client).remaining
    ask("show", "everything", "--ip", "203.0.113.0")
    ask("top")
    assert shop.peek(client).remaining == before == 90


def test_reset_of_one_client(ask, shop):
    assert ask("reset", "login", "--ip", "203.0.113.7") == (0, "4 counters reset\n", "")
    assert shop.peek({"ip": "203.0.113.7", "method": "POST", "path": "/login"}).remaining == 5
    assert shop.peek({"ip": "203.0.113.0", "path": "/"}).remaining == 90


@pytest.mark.parametrize(
    ("typed", "code", "left"),
    [
        pytest.param("n\n", 1, 90, id="no"),
        pytest.param("", 1, 90, id="no client"),
        pytest.param("y\n", 0, 100, id="yes"),
    ],
)
def test_a_wide_reset_is_asked_about(ask, shop, typed, code, left):
    found, _, said = ask("reset", "everything", typed=typed)
    assert (found, "Reset 4 counters of 'everything'? [y/N]" in said) == (code, True)
    assert shop.peek({"ip": "203.0.113.0", "path": "/"}).remaining == left


def test_a_reset_of_all_rules_leaves_other_keys_alone(ask, any_server):
    with any_server.client() as client:
        client.set("shop:else", "1")
        client.set("other:everything:sw60:{ip=::1}", "1")
        code, printed, _ = ask("reset", "--all", "--yes", "--json")
        assert (code, len(json.loads(printed)["reset"])) == (0, 7)
        assert sorted(client.keys()) == ["other:everything:sw60:{ip=::1}", "shop:else"]
    assert ask("top") == (0, "no counters: no request has been counted lately\n", "")


def test_counters_of_a_former_limit_are_reset_with_the_rule(ask, any_server):
    with any_server.client() as client:
        client.set("shop:login:fw60:{ip=203.0.113.7}", "x")
        assert ask("reset", "login", "--yes")[:2] == (0, "3 counters reset\n")
        assert client.keys("shop:login:*") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["show", "logn"], "there is no rule 'logn' with a limit (did you mean 'login'?)", id="no rule"),
        pytest.param(
            ["show", "login", "--tier", "gold"],
            "no counter of 'login' depends on tier: it counts by ip, user",
            id="not what it counts by",
        ),
        pytest.param(["reset"], "give a rule, and optionally a client; or give only --all", id="reset of nothing"),
        pytest.param(
            ["reset", "login", "--all"], "give a rule, and optionally a client; or give only --all", id="both"
        ),
    ],
)
def test_wrong_usage(ask, words, said):
    assert ask(*words) == (2, "", f"ratelimit-mw: {said}\n")


@pytest.mark.parametrize("command", [["top"], ["show", "login"], ["reset", "login"]])
def test_counters_in_memory_are_out_of_reach(run, command):
    code, printed, said = run(*command)
    assert (code, printed) == (2, "")
    assert "the counters are in the memory of the app's processes" in said


@pytest.mark.parametrize("command", [["top"], ["reset", "login", "--ip", "::1"]])
def test_the_store_away(run, command):
    code, printed, said = run(*command, "--storage", "redis://127.0.0.1:1/0")
    assert (code, printed) == (3, "")
    assert said.startswith("ratelimit-mw: the store does not answer: ")


def test_a_storage_that_is_none(run):
    assert run("top", "--storage", "memcached://x")[0] == 1


def test_descriptors_have_counters_too(run, any_server):
    config = f"""\
domain: d
storage: {{url: "{any_server.url}", timeout: 5s}}
client: {{secret: s}}
attributes: {{a: header:X-A}}
descriptors: [{{key: a, rate_limit: {{unit: year, requests_per_unit: 4}}}}]
"""
    Path("d.yaml").write_text(config, "utf-8")
    with RateLimiter("d.yaml") as limiter:
        limiter.check([("a", "x")])
        (name,) = {policy.rule for policy in limiter.peek([("a", "x")]).policies}
    code, printed, said = run("top", "--rules", "d.yaml")
    assert (code, said) == (0, "")
    assert re.fullmatch(rf"{name} +a=\S+ +4 per 365 days +fixed_window +25% +3 +\d+ h", printed.splitlines()[1])
    assert run("show", name, "-a", "a=x", "--rules", "d.yaml")[0] == 2  # entries are no attributes


def test_a_counter_in_shards_is_one_counter_to_the_reader(run, any_server):
    rules = "{name: r, limit: 64 per hour, algorithm: fixed_window, shards: 8}"
    Path("h.yaml").write_text(
        f'domain: d\nstorage: {{url: "{any_server.url}", timeout: 5s}}\nrules: [{rules}]\n', "utf-8"
    )
    client = {"ip": "203.0.113.7"}
    within_a_minute()  # and so within the hour
    with RateLimiter("h.yaml") as limiter:
        for _ in range(48):
            limiter.check(client)
        assert len(any_server.keys()) > 1, "the counter is spread"
        for words in (["top"], ["show", "r"], ["show", "r", "--ip", "203.0.113.7"]):
            code, printed, said = run(*words, "--rules", "h.yaml", "--json")
            (found,) = json.loads(printed)["counters"]
            assert (code, said) == (0, "")
            assert (found["key"], found["limit"]) == ("d:r:fw3600x8:{ip=203.0.113.7}", "64 per hour")
            assert (found["remaining"], found["used"]) == (16, 0.75)
        assert run("reset", "r", "--yes", "--rules", "h.yaml") == (0, "1 counter reset\n", "")
        assert any_server.keys() == []
        assert limiter.peek(client).remaining == 64


PREFLIGHT = {"method": "OPTIONS", "header:Origin": "https://a.example", "header:Access-Control-Request-Method": "POST"}


def test_preflights_are_shown_and_reset_with_their_rule(ask, shop):
    asked = {**PREFLIGHT, "ip": "203.0.113.7", "path": "/login"}
    assert "preflights" not in ask("show", "login", "--ip", "203.0.113.7")[1]
    assert [shop.check(asked).allowed for _ in range(51)] == [True] * 50 + [False]
    printed = ask("show", "login", "--ip", "203.0.113.7")[1]
    assert printed == (
        """\
rule   client          limit                     algorithm     used  left  as if unused in
login  ip=203.0.113.7  5 per minute              sliding_log   100%     0 T
login  ip=203.0.113.7  50 preflights per minute  fixed_window  100%     0 T
login  ip=203.0.113.7  20 per hour               sliding_log    25%    15 T
login  ip=203.0.113.7  200 preflights per hour   fixed_window   25%   150 T
"""
    )
    assert ask("show", "login")[1] == printed
    assert ask("reset", "login", "--ip", "203.0.113.7") == (0, "4 counters reset\n", "")
    assert shop.peek(asked).remaining == 50
