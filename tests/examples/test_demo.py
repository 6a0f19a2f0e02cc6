import subprocess
import sys

import pytest

from tests.support.apps import ROOT


@pytest.mark.parametrize("args", [pytest.param([], id="memory"), pytest.param(["--redis"], id="two workers on Redis")])
def test_the_demo_holds_what_it_claims(args):
    done = subprocess.run(
        [sys.executable, "examples/demo.py", *args], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("429  <--") == 3
    assert done.stdout.count("s later") == 3


def test_the_demo_fails_where_a_claim_does_not_hold(tmp_path):
    (tmp_path / "examples").mkdir()
    for name in ("demo.py", "starlette_app.py", "ratelimits.yaml"):
        text = (ROOT / "examples" / name).read_text().replace("default: 5 per 10 seconds", "default: 50 per 10 seconds")
        (tmp_path / "examples" / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 1
    assert "demo: not so: anonymous, by address" in done.stderr
