"""What docs/descriptors.md shows loads."""

import re
from pathlib import Path

import pytest

from tests.rules.corpus import problems_of

PAGE = (Path(__file__).parents[2] / "docs" / "descriptors.md").read_text("utf-8")


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_its_files_load(text):
    assert problems_of(text) == []
