"""docs/any-code.md: its code runs on its rules, and does what the page says."""

import asyncio
import re

import pytest

from tests.support.apps import ROOT

BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs/any-code.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the code of the page defines."""
    (rules,) = [text for kind, text in BLOCKS if kind == "yaml"]
    (tmp_path / "ratelimits.yaml").write_text(rules.replace("2 per hour", "2 per 10 years"))
    monkeypatch.chdir(tmp_path)
    found = {}
    exec("\n".join(text for kind, text in BLOCKS if kind == "python"), found)
    with found["limiter"]:
        yield found


def test_an_export_is_denied_when_the_limit_is_reached(names):
    answers = [names["export"]("ann") for _ in range(3)]
    assert answers[:2] == ["exported, 1 left", "exported, 0 left"]
    assert re.fullmatch(r"try again in \d+ s", answers[2])
    assert names["export"]("ben") == "exported, 1 left"


def test_conversions_wait_for_each_other(names):
    async def main():
        return await asyncio.gather(*map(names["convert"], "abcde"))

    assert asyncio.run(main()) == list("abcde")


def test_mails_wait_for_their_turn(names):
    assert [names["send_mail"]("hello") for _ in range(3)] == ["sent"] * 3


def test_invitations_are_counted_by_the_rule_of_exports(names):
    assert [names["invite"]("cid") for _ in range(3)] == ["invited", "invited", "later"]
