"""docs/frameworks.md: every app on it starts, on the rules that stand above it."""

import re
import subprocess
import sys

import pytest

from tests.support.apps import ROOT

BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs/frameworks.md").read_text(), re.MULTILINE | re.DOTALL)
RULES = next(text for kind, text in BLOCKS if kind == "yaml")


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "python"])
def test_it_runs(text, tmp_path):
    (tmp_path / "ratelimits.yaml").write_text(RULES)
    command = [sys.executable, "-W", "error", "-c", text]
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
