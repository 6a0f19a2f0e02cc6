"""Bans as operators see and lift them, over a real server."""

from pathlib import Path

import pytest

from tests.cli.conftest import app_limiter

RULES = """\
domain: shop
rules:
  - name: search
    limit: 1 per day
    ban: {after: 3 denials in 1 hour, for: 2 days, growing: 2x up to 4 days}
"""
IP = "203.0.113.7"


@pytest.fixture
def ask(run, any_server):
    """As `run`, with the server's counters: one client is banned, another was denied once."""
    Path("ratelimits.yaml").write_text(RULES, "utf-8")
    with app_limiter(any_server.url) as limiter:
        for _ in range(4):
            limiter.check({"ip": IP})
        for _ in range(2):
            limiter.check({"ip": "203.0.113.8"})
    return lambda *words: run(*words, "--storage", any_server.url)


def rows(printed):
    """Client, algorithm, used and left of each line."""
    return [(words[1], words[-5], words[-4], words[-3]) for words in map(str.split, printed.splitlines()[1:])]


def test_show_tells_who_is_banned_and_who_is_near_it(ask):
    code, printed, _ = ask("show", "search")
    assert code == 0
    assert [row for row in rows(printed) if row[1] == "ban"] == [
        (f"ip={IP}", "ban", "100%", "0"),
        ("ip=203.0.113.8", "ban", "33%", "2"),
    ]
    (line,) = [line for line in printed.splitlines() if IP in line and " ban " in line]
    assert line.split(maxsplit=2)[2].split() == ["3", "denials", "per", "hour", "ban", "100%", "0", "48", "h"]


def test_show_of_one_client(ask):
    assert {row[:2] for row in rows(ask("show", "search", "--ip", IP)[1])} == {
        (f"ip={IP}", "sliding_window"),
        (f"ip={IP}", "ban"),
    }


def test_top_has_bans_among_the_fullest(ask):
    assert (f"ip={IP}", "ban", "100%", "0") in rows(ask("top")[1])


def test_explain_says_how_long(ask):
    printed = ask("explain", "GET", "/", "--ip", IP)[1]
    assert "1 per day, sliding_window: banned for 48 h" in printed
    assert "the counters of 'search' are reset, which lifts the ban" in printed


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--ip", IP], id="one client's"),
        pytest.param(["--yes"], id="everybody's"),
    ],
)
def test_reset_lifts_a_ban(ask, words, any_server):
    assert ask("reset", "search", *words)[0] == 0
    assert f"ip={IP}" not in "".join(
        client + algorithm for client, algorithm, used, _ in rows(ask("show", "search")[1])
    )
    with app_limiter(any_server.url) as limiter:
        assert limiter.check({"ip": IP}).allowed
