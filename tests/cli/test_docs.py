"""What docs/cli.md shows is what is printed."""

import re

import yaml

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.app import app
from tests.support.apps import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text("utf-8")


def test_the_explanation_is_the_one_that_its_rules_give():
    (rules,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^\$ ratelimit-mw explain .*?\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
    login = {"ip": "203.0.113.7", "method": "POST", "path": "/login"}
    with RateLimiter(yaml.safe_load(rules), clock=ManualClock()) as limiter:
        for _ in range(5):
            limiter.check(login)
        assert str(limiter.explain(login)) == shown


def test_every_command_and_every_exit_code_is_there():
    listed = {name.replace("-", "_") for name in re.findall(r"^\| `([\w-]+)", PAGE, re.MULTILINE)}
    groups = {group.name for group in app.registered_groups}
    assert listed | groups >= {command.callback.__name__ for command in app.registered_commands}
    assert {int(code) for code in re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE)} == set(Exit)
