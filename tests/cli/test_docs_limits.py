"""The commands of docs/find-the-right-limits.md, one after the other, print what the page shows."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.test_suggest import chance_log
from tests.support.apps import ROOT

PAGE = (ROOT / "docs" / "find-the-right-limits.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def walk(run):
    """A function that does what the blocks of the page say, and yields what each command printed."""
    Path("ratelimits.yaml").unlink()
    chance_log(Path("access.log"))

    def steps():
        for kind, text in BLOCKS:
            if kind == "yaml":
                Path(re.match(r"# (\S+)\n", text)[1]).write_text(text, "utf-8")
            if kind == "console":
                for command in re.split(r"^\$ ratelimit-mw ", text, flags=re.MULTILINE)[1:]:
                    words, _, shown = command.partition("\n")
                    words, _, file = words.partition(" > ")
                    code, out, err = run(*shlex.split(words))
                    if file:
                        Path(file).write_text(out, "utf-8")
                    yield words, shown, code, out, err

    return steps


def test_each_command_prints_the_lines_of_the_page_in_their_order(walk):
    seen = []
    for words, shown, code, out, err in walk():
        seen.append(words.split()[0])
        assert code == ("--fail-above" in words), err
        lines = iter(out.splitlines())
        wanted = [line for line in shown.splitlines() if line != "…"]
        assert [line for line in wanted if line not in lines] == [], out  # `in` takes the lines up to this one
        if code:
            assert err in [text for kind, text in BLOCKS if kind == "text"]
    assert seen == ["suggest", "check", "replay", "replay", "suggest", "replay"]
    assert Path("report.html").read_text("utf-8").startswith("<!doctype html>")


def test_the_rules_of_the_page_are_those_that_are_proposed(walk):
    list(walk())
    proposed = next(text for kind, text in BLOCKS if kind == "text" and "- name: everything" in text)
    assert proposed in Path("ratelimits.yaml").read_text("utf-8")


def test_any_limit_from_20_to_200_denies_the_crawler_and_no_customer(walk):
    list(walk())
    report = Path("report.html").read_text("utf-8")
    rows = re.findall(
        r"<td>(\d+) per minute</td>(.*?)</tr>", report.partition("<article")[2].partition("</article>")[0]
    )
    clients = {int(limit): int(re.findall(r">([\d,]+)</td>", cells)[1]) for limit, cells in rows}
    assert {number for limit, number in clients.items() if 20 <= limit <= 200} == {1}
    assert clients[15] > 1
