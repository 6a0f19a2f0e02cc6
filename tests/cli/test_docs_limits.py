"""The commands of docs/find-the-right-limits.md, one after the other, print what the page shows."""

import re
import shlex
from pathlib import Path

from tests.cli.test_suggest import chance_log
from tests.support.apps import ROOT

PAGE = (ROOT / "docs" / "find-the-right-limits.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def steps(run):
    """Do what the blocks of the page say, and yield what each command printed."""
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


def test_the_commands_print_the_lines_propose_the_rules_and_find_the_limits_of_the_page(run):
    """In one test, because the commands take seconds."""
    Path("ratelimits.yaml").unlink()
    chance_log(Path("access.log"))
    seen = []
    for words, shown, code, out, err in steps(run):
        seen.append(words.split()[0])
        assert code == ("--fail-above" in words), err
        lines = iter(out.splitlines())
        wanted = [line for line in shown.splitlines() if line != "…"]
        assert [line for line in wanted if line not in lines] == [], out  # `in` takes the lines up to this one
        if code:
            assert err in [text for kind, text in BLOCKS if kind == "text"]
    assert seen == ["suggest", "check", "replay", "replay", "suggest", "replay"]
    proposed = next(text for kind, text in BLOCKS if kind == "text" and "- name: everything" in text)
    assert proposed in Path("ratelimits.yaml").read_text("utf-8")
    report = Path("report.html").read_text("utf-8")
    assert report.startswith("<!doctype html>")
    only_the_crawler_is_denied_at_any_limit_from_20_to_200(report)


def only_the_crawler_is_denied_at_any_limit_from_20_to_200(report):
    rows = re.findall(
        r"<td>(\d+) per minute</td>(.*?)</tr>", report.partition("<article")[2].partition("</article>")[0]
    )
    clients = {int(limit): int(re.findall(r">([\d,]+)</td>", cells)[1]) for limit, cells in rows}
    assert {number for limit, number in clients.items() if 20 <= limit <= 200} == {1}
    assert clients[15] > 1
