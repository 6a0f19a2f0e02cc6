"""What docs/descriptors.md shows loads."""

import re
from pathlib import Path

import pytest

from tests.rules.corpus import problems_of

PAGE = (Path(__file__).parents[2] / "docs" / "descriptors.md").read_text("utf-8")


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_its_files_load(text):
    assert problems_of(text) == []


def test_the_example_of_several_lists_prints_what_the_page_says(tmp_path, monkeypatch, capsys):
    code, printed = re.search(r"```python\n(from ratelimit_mw.*?)```.*?```text\n(.*?)```", PAGE, re.DOTALL).groups()
    (tmp_path / "messaging.yaml").write_text(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
    monkeypatch.chdir(tmp_path)
    exec(code, names := {})
    names["limiter"].close()
    assert capsys.readouterr().out == printed
