"""The page docs/watch-it.md: its table is that of the code, and its examples do what it says."""

import os
import re
import subprocess
import sys

from ratelimit_mw.telemetry.measures import MEASURES
from tests.support.apps import ROOT

PAGE = (ROOT / "docs" / "watch-it.md").read_text("utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TEXT = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_table_has_the_metrics_of_the_code():
    rows = re.findall(r"^\| `(ratelimit_\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", PAGE, re.MULTILINE)
    assert rows == [
        (each.name, each.kind, ", ".join(f"`{label}`" for label in each.labels), each.about) for each in MEASURES
    ]


def test_the_alerts_of_the_page_are_those_of_the_file():
    alerts = (ROOT / "examples" / "observability" / "alerts.yaml").read_text("utf-8")
    assert set(re.findall(r"`(RateLimit\w+)` \|", PAGE)) == set(re.findall(r"alert: (\w+)", alerts))


def test_the_examples_run_and_print_what_the_page_says(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PROMETHEUS")}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(PYTHON)],
        env={**environment, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(PYTHON) == 6
    assert set(TEXT[0].splitlines()) <= set(done.stdout.splitlines())
