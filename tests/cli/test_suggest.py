"""`ratelimit-mw suggest`."""

import json
import random
import re
from pathlib import Path

import pytest

from tests.cli.test_command import command
from tests.foresight import traffic


@pytest.fixture
def suggest(run):
    """A function that runs the command in a folder that has a log."""
    parts = (traffic.site(1, 60), traffic.poller("192.0.2.7", 60, 30), traffic.guesser("192.0.2.8", 30, 60))
    traffic.write(Path("access.log"), *parts)
    return lambda *words: run("suggest", *(words or ("access.log",)))


def test_the_proposal_names_the_log_and_the_next_step(suggest, run):
    code, text, err = suggest("access.log", "--field", "user=remote_user")
    assert (code, err) == (0, "")
    Path("ratelimits.yaml").write_text(text, "utf-8")
    assert text.splitlines()[1] == "#   access.log (combined)"
    (step,) = re.findall(r"^#   (ratelimit-mw .*)", text, re.MULTILINE)
    assert step == "ratelimit-mw replay access.log --rules ratelimits.yaml"
    assert run(*step.split()[1:])[0] == 0
    assert "ratelimits.yaml: valid, " in run("check")[1]
    assert "warning" not in run("check")[1]


def test_rules_are_shadow_rules_unless_they_are_to_be_enforced(suggest):
    code, out, _ = suggest()
    assert code == 0
    rules = out.count("  - name:")
    assert out.count("    shadow: true") == rules > 1
    assert "Remove it to enforce them" in out
    assert "shadow" not in suggest("access.log", "--enforce")[1]


def test_each_number_has_its_reason(suggest):
    _, out, _ = suggest()
    text = re.sub(r"\n *# ", " ", out)
    assert re.search(
        r"half of the addresses have \d+ in their busiest minute, 98 % ≤ \d+; × 1.5 → (\d+) "
        r"half of the addresses have \d+ in their busiest hour, 98 % ≤ \d+; (?:1 far beyond was left out; )?"
        r"× 1.5 → (\d+) "
        r"denies \d+ of [0-9,]+ requests \(\d\.\d\d %\), of \d+ of 62 clients \(\d\.\d\d %\) "
        r"strict: \d+ per minute, \d+ per hour denies \d+, of \d+; "
        r"loose: \d+ per minute, \d+ per hour denies \d+, of \d+\n"
        r"  - name: everything\n    by: ip\n    limit: \[\1 per minute, \2 per hour\]\n",
        text,
    ), text
    assert out.count("  # denies ") == out.count("    limit: ") == 2


def test_the_same_is_printed_as_json(suggest, run):
    code, out, _ = suggest("access.log", "--json")
    found = json.loads(out)
    assert code == 0
    Path("json.yaml").write_text(json.dumps(found["config"]), "utf-8")
    result = json.loads(run("replay", "access.log", "--rules", "json.yaml", "--json")[1])
    for rule, replayed in zip(found["rules"], result["rules"], strict=True):
        assert rule["effect"]["denied"] == replayed["denied"]
        assert rule["strict"]["denied"] >= rule["effect"]["denied"] >= rule["loose"]["denied"]
    assert found["pollers"] == [{"client": "ip=192.0.2.7", "route": "GET /status", "period": 30.0, "requests": 60}]


def test_clients_at_regular_intervals_are_named(suggest):
    shown = re.findall(r"# - (.*): GET /status every 30 seconds, 60 requests\n", suggest()[1])
    assert shown == ["ip=192.0.2.7"]


def test_times_select_requests(suggest):
    whole = suggest()[1]
    part = suggest("access.log", "--since", "2026-03-01T13:00:00Z", "--until", "2026-03-01T17:00:00Z")[1]
    (all_requests,), (fewer,) = (re.findall(r"UTC: ([0-9,]+)\s", text) for text in (whole, part))
    assert int(fewer.replace(",", "")) < int(all_requests.replace(",", ""))
    assert "# 2026-03-01 13:0" in part


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("none.log",), 1, "the log can't be read"),
        (("short.log",), 1, "the log has 40 requests, but 1,000 are needed"),
        (("few.log",), 1, "the log has 1 client, but 20 are needed. Behind a proxy"),
        (("noise.log",), 1, "the format of the log is unknown"),
        (("bad.log",), 1, "more than 10 % of the lines can't be read"),
        (("anonymous.log", "--format", '[$time_local] "$request" $status'), 1, "has no address of the client"),
        (("access.log", "--format", "x"), 2, "neither one of auto, combined"),
        (("access.log", "--field", "usr=x"), 2, "there is no field 'usr'"),
        (("access.log", "--since", "yesterday"), 2, "is not a time"),
        (("access.log", "--since", "2030-01-01"), 1, "the log has 0 requests"),
        (("one.log",), 1, "the log has 1 request, but"),
    ],
)
def test_an_unusable_argument_is_reported(suggest, words, code, text):
    lines = Path("access.log").read_text().splitlines(keepends=True)
    Path("short.log").write_text("".join(lines[:40]))
    Path("one.log").write_text(lines[0])
    Path("few.log").write_text("".join(map(traffic.line, traffic.poller("192.0.2.7", 1000, 1))))
    Path("noise.log").write_text("what\n" * 1000)
    Path("bad.log").write_text("".join(lines[:1000]) + "what\n" * 500)
    anonymous = [line.partition(" - - ")[2].partition(' 5 "-"')[0] + "\n" for line in lines]
    Path("anonymous.log").write_text("".join(anonymous))
    found, _, err = suggest(*words)
    assert (found, text in " ".join(err.replace("│", "").split())) == (code, True), err


def test_a_mostly_unreadable_log_can_be_accepted(suggest):
    Path("bad.log").write_text(Path("access.log").read_text() + "what\n" * 500)
    code, out, _ = suggest("bad.log", "--lenient")
    assert (code, "# 500 lines could not be read.\n" in out) == (0, True)


def test_standard_input_is_a_log(suggest, tmp_path):
    log = str(tmp_path / "access.log")
    code = f"import sys; sys.stdin = open({log!r}); from ratelimit_mw.cli import main; main()"
    ran = command("suggest", "-", code=code, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (
        ran.stdout.replace("#   - (combined)", "#   access.log (combined)").replace("replay - ", "replay access.log ")
        == (suggest()[1])
    )


def chance_log(path):
    """Write the log of the page: people, a program that asks for the status, a crawler, and guessers of passwords."""
    parts = [traffic.guesser(f"198.51.100.{each}", 40, 20) for each in range(24)]
    crawler = traffic.crawler(random.Random(4), "203.0.113.9", 1500)
    traffic.write(path, traffic.site(4, 300), traffic.poller("192.0.2.7", 240, 60), crawler, *parts)
