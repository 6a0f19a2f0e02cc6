"""The commands of operators over `lmdb://`: what they see and change in another process, which serves an app."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.apps import ROOT
from tests.support.patience import eventually
from tests.support.processes import end, spawn

RULES = """\
domain: shop
client: {{secret: s}}
storage: {{url: 'lmdb://{folder}/limits', timeout: 20s}}
rules: [{{name: everything, by: ip, limit: 4 per 10 years, algorithm: fixed_window}}]
"""
APP = """
import json, sys
from ratelimit_mw import RateLimiter

limiter = RateLimiter(sys.argv[1])
for line in sys.stdin:
    what, ip = line.split()
    decision = getattr(limiter, what)({"ip": ip})
    print(json.dumps([decision.allowed, decision.limit, decision.remaining]), flush=True)
"""


class App:
    """A process with a limiter of its own. `rules` is the file that it shares with the commands."""

    def __init__(self, folder):
        self.rules = folder / "ratelimits.yaml"
        self.rules.write_text(RULES.format(folder=folder), "utf-8")
        command = [sys.executable, "-c", APP, self.rules]
        self.process = spawn(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def check(self, ip, times=1):
        """Whether each of some requests is allowed."""
        return [self._ask("check", ip)[0] for _ in range(times)]

    def peek(self, ip):
        """Whether the next request would be allowed, its limit, and what is left."""
        return self._ask("peek", ip)

    def _ask(self, what, ip):
        self.process.stdin.write(f"{what} {ip}\n".encode())
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    app = App(tmp_path_factory.mktemp("app"))
    yield app
    end(app.process)
    app.process.stdin.close()
    app.process.stdout.close()


@pytest.fixture
def ask(run, app):
    """As `run`, with the rules and the file of the app."""
    return lambda *words: run(*words, "--rules", str(app.rules))


def test_top_and_show_see_the_counters_of_the_app(app, ask):
    assert app.check("203.0.113.1", 5) == [True] * 4 + [False]
    app.check("203.0.113.2")
    code, printed, said = ask("top")
    assert (code, said) == (0, "")
    found = {words[1]: words[-5:-2] for words in map(str.split, printed.splitlines())}
    assert found["ip=203.0.113.1"] == ["fixed_window", "100%", "0"]
    assert found["ip=203.0.113.2"] == ["fixed_window", "25%", "3"]
    code, printed, said = ask("show", "everything", "--ip", "203.0.113.2", "--json")
    assert (code, said) == (0, "")
    assert [(each["client"], each["remaining"]) for each in json.loads(printed)["counters"]] == [("ip=203.0.113.2", 3)]
    assert app.peek("203.0.113.2")[2] == 3


def test_reset_lets_a_client_of_the_app_start_again(app, ask):
    app.check("203.0.113.3", 4)
    app.check("203.0.113.4", 4)
    assert app.peek("203.0.113.3") == [False, 4, 0]
    reset = ask("reset", "everything", "--ip", "203.0.113.3")
    assert reset == (0, "2 counters reset\n", ""), "its own, and the one of its preflights"
    assert app.check("203.0.113.3", 5) == [True] * 4 + [False]
    assert app.check("203.0.113.4") == [False]


def test_the_switch_reaches_the_app(app, ask):
    app.check("203.0.113.5", 4)
    assert app.check("203.0.113.5") == [False]
    assert ask("switch", "off", "--author", "ada")[:2] == (0, "shop: off without end, by ada\n")
    eventually(lambda: app.check("203.0.113.5") == [True])
    assert ask("switch")[1] == "shop: off without end, by ada\n"
    assert ask("switch", "on")[0] == 0
    eventually(lambda: app.check("203.0.113.5") == [False])
    assert ask("switch") == (0, "shop: on\n", "")


def test_overrides_reach_the_app(app, ask):
    client = "--ip", "203.0.113.6"
    options = "--rule", "everything", "--limit", "9 per 10 years", "--for", "2h"
    code, printed, said = ask("override", "set", *client, *options)
    assert (code, said) == (0, "")
    assert re.match(r"ip=203\.0\.113\.6: everything: 9 per 10 years until ", printed)
    eventually(lambda: app.peek("203.0.113.6") == [True, 9, 9])
    assert ask("override", "set", "--ip", "198.51.100.0/24", "--block")[0] == 0
    eventually(lambda: not app.peek("198.51.100.7")[0])
    assert ask("override", "list")[1].count("ip=") == 2
    assert ask("override", "remove", *client, "--rule", "everything") == (0, "removed\n", "")
    assert ask("override", "remove", "--ip", "198.51.100.0/24") == (0, "removed\n", "")
    eventually(lambda: app.peek("203.0.113.6") == [True, 4, 4])
    eventually(lambda: app.peek("198.51.100.7")[0])
    assert ask("override", "list") == (0, "no overrides\n", "")


def test_a_file_that_does_not_exist_has_no_counters(run, tmp_path):
    url = f"lmdb://{tmp_path}/none"
    assert run("top", "--storage", url) == (0, "no counters: no request has been counted lately\n", "")


def test_a_file_of_another_program_is_refused(run, tmp_path):
    path = Path(tmp_path, "notes")
    path.write_text("not counters\n" * 1_000, "utf-8")
    code, _, said = run("top", "--storage", f"lmdb://{path}")
    assert code == 3
    assert f"the store can't be used: {path} is not a file of this store; " in said
