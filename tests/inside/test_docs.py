"""docs/frameworks.md and docs/limits-in-code.md: every app on a page starts, on the rules that stand above it."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.apps import ROOT

PAGES = ("frameworks", "limits-in-code")


def apps():
    for page in PAGES:
        text = (ROOT / f"docs/{page}.md").read_text()
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        rules = next(text for kind, text in blocks if kind == "yaml")
        for number, (kind, code) in enumerate(blocks):
            if kind == "python":
                yield pytest.param(code, rules, id=f"{page}-{number}")


@pytest.mark.parametrize(("text", "rules"), list(apps()))
def test_it_runs(text, rules, tmp_path):
    (tmp_path / "ratelimits.yaml").write_text(rules)
    (tmp_path / "project.py").write_text("SECRET_KEY = 'for tests'\nUSE_TZ = True\n")
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "project", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-W", "error", "-c", text]
    done = subprocess.run(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
