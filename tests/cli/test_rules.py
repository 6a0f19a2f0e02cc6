"""`rules` and `override`, over a real server."""

import json
import re
from pathlib import Path

import pytest

from ratelimit_mw import RateLimiter

SCHEMA = {"schema_version": 1}


@pytest.fixture
def rules(run, any_server):
    """A function from the words after `rules` to what came of them."""
    return lambda command, *words: run("rules", command, *words, "--database", any_server.url)


@pytest.fixture
def override(run, any_server):
    return lambda command, *words: run("override", command, *words, "--storage", any_server.url)


def change(old, new):
    path = Path("ratelimits.yaml")
    path.write_text(path.read_text().replace(old, new))


class TestRules:
    def test_a_life(self, rules):
        assert rules("list") == (0, "no rules have been pushed yet\n", "")
        assert rules("push", "ratelimits.yaml", "--author", "ann", "-m", "first") == (0, "version 1\n", "")
        change("100 per minute", "90 per minute")
        assert rules("push", "ratelimits.yaml", "--author", "bob", "--base", "1") == (0, "version 2\n", "")
        code, printed, _ = rules("diff", "1")
        assert code == 0
        assert [line for line in printed.splitlines() if line.startswith(("- ", "+ "))] == [
            "-  - {name: everything, limit: 100 per minute}",
            "+  - {name: everything, limit: 90 per minute}",
        ]
        assert rules("rollback", "1", "--author", "ann") == (0, "version 3\n", "")
        code, printed, _ = rules("list")
        assert [line.split()[0] for line in printed.splitlines()] == ["version", "3", "2", "1"]
        assert "as version 1" in printed
        assert rules("pull") == rules("pull", "1")
        assert "limit: 90 per minute" in rules("pull", "2")[1]

    def test_for_programs(self, rules):
        assert json.loads(rules("push", "ratelimits.yaml", "--json")[1]) == {**SCHEMA, "version": 1}
        (only,) = json.loads(rules("list", "--json")[1])["versions"]
        assert only["files"] == ["ratelimits.yaml"]
        assert only["author"]
        files = {"ratelimits.yaml": Path("ratelimits.yaml").read_text()}
        assert json.loads(rules("pull", "--json")[1]) == {**SCHEMA, "files": files}
        assert json.loads(rules("diff", "1", "1", "--json")[1]) == {**SCHEMA, "diff": ""}
        assert json.loads(rules("rollback", "1", "--json")[1]) == {**SCHEMA, "version": 2}

    def test_to_a_folder_and_from_it(self, rules):
        rules("push", "ratelimits.yaml")
        code, printed, _ = rules("pull", "--to", "there/too")
        assert (code, printed) == (0, "there/too/ratelimits.yaml\n")
        Path("there/too/other.yaml").write_text("domain: o\nrules: []\n")
        assert rules("push", "there/too")[:2] == (0, "version 2\n")
        assert rules("pull")[1].startswith("# other.yaml\ndomain: o\n")

    def test_what_would_not_load_is_said_and_not_pushed(self, rules):
        change("100 per minute", "100 per fortnight")
        code, printed, said = rules("push", "ratelimits.yaml")
        assert (code, printed) == (1, "")
        assert "'fortnight' is not a unit of time" in said
        assert said.endswith("ratelimit-mw: these rules can't be loaded, so nothing was pushed\n")
        assert rules("list")[1] == "no rules have been pushed yet\n"

    def test_somebody_was_faster(self, rules):
        rules("push", "ratelimits.yaml")
        code, _, said = rules("push", "ratelimits.yaml", "--base", "0")
        assert (code, said) == (
            1,
            "ratelimit-mw: version 1 was pushed first: pull it, add your changes, and push again\n",
        )

    def test_a_version_that_there_is_not(self, rules):
        code, _, said = rules("pull", "7")
        assert code == 1
        assert "has no version 7 of the rules" in said

    def test_nothing_was_pushed_yet(self, rules):
        code, _, said = rules("pull")
        assert code == 1
        assert "has no rules yet" in said

    def test_a_server_that_is_not_there(self, run):
        assert run("rules", "list", "--database", "redis://127.0.0.1:1/0")[0] == 3

    def test_no_database(self, run):
        assert run("rules", "list", "--database", "memory://")[0] == 2
        assert run("rules", "list")[0] == 2


class TestOverride:
    def test_a_life(self, override, any_server):
        assert override("list") == (0, "no overrides\n", "")
        options = ("--rule", "everything", "--limit", "1000 per minute", "--author", "ann", "-m", "a fair")
        code, printed, _ = override("set", "--ip", "203.0.113.7", *options, "--for", "2h")
        assert code == 0
        assert re.fullmatch(
            r"ip=203\.0\.113\.7: everything: 1000 per minute until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n", printed
        )
        assert override("set", "--ip", "198.51.100.0/24", "--block")[1] == "ip=198.51.100.0/24: blocked without end\n"
        assert override("set", "--user", "ada", "--exempt")[0] == 0
        code, printed, _ = override("list")
        assert [line.split()[0].partition("=")[0] for line in printed.splitlines()] == ["client", "ip", "user", "ip"]
        assert "ada" not in printed
        with RateLimiter("ratelimits.yaml", storage=any_server.url) as limiter:
            limiter.reload()
            assert limiter.peek({"ip": "203.0.113.7"}).limit == 1000
            assert not limiter.peek({"ip": "198.51.100.3"}).allowed
        assert override("remove", "--ip", "203.0.113.7", "--rule", "everything") == (0, "removed\n", "")
        assert override("remove", "--ip", "203.0.113.7", "--rule", "everything") == (1, "no such override\n", "")

    def test_for_programs(self, override):
        made = json.loads(override("set", "-a", "header:X-Plan=gold", "--block", "--json")[1])
        assert (made["kind"], made["until"]) == ("block", None)
        (listed,) = json.loads(override("list", "--json")[1])["overrides"]
        assert {**SCHEMA, **listed} == made
        assert json.loads(override("remove", "-a", "header:X-Plan=gold", "--json")[1]) == {**SCHEMA, "removed": True}

    def test_several_limits(self, override):
        options = ("--rule", "login", "-l", "9 per minute", "-l", "30 per hour")
        assert override("set", "--ip", "203.0.113.7", *options)[1].startswith(
            "ip=203.0.113.7: login: 9 per minute, 30 per hour without end"
        )

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            pytest.param(("--ip", "203.0.113.7"), "one of limit, block and exempt", id="nothing to set"),
            pytest.param(("--block",), "an override needs a client", id="no client"),
            pytest.param(("--ip", "x", "--block"), "'x' is not an address", id="no address"),
            pytest.param(
                ("--ip", "203.0.113.7", "--rule", "logn", "--limit", "1/h"), "did you mean 'login'", id="rule"
            ),
            pytest.param(("--user", "a", "--block", "--for", "soon"), "'soon' is not a duration", id="no duration"),
        ],
    )
    def test_what_can_t_be_is_said(self, override, words, said):
        code, _, error = override("set", *words)
        assert code == 2
        assert said in error

    def test_overrides_in_memory_are_out_of_reach(self, run):
        code, _, said = run("override", "list", "--storage", "memory://")
        assert code == 2
        assert "in the memory of the app's processes" in said

    def test_a_server_that_is_not_there(self, run):
        assert run("override", "list", "--storage", "redis://127.0.0.1:1/0")[0] == 3
