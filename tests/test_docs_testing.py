"""docs/testing.md: the files on the page are a test suite, which passes."""

import re
import subprocess
import sys

from tests.support.apps import ROOT

PAGE = (ROOT / "docs/testing.md").read_text()
FILES = dict(re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def test_the_tests_on_the_page_pass(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PAGE.count('def test_')} passed" in done.stdout


def test_the_page_shows_four_frameworks():
    assert len([name for name in FILES if name.startswith("test_")]) == 5
