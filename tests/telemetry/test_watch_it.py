"""The page docs/watch-it.md: its table is that of the code, and its examples do what it says."""

import os
import re
import subprocess
import sys

import pytest

from ratelimit_mw.telemetry import MEASURES
from tests.support.apps import ROOT

PAGE = (ROOT / "docs" / "watch-it.md").read_text("utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TEXT = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_table_has_the_metrics_of_the_code():
    rows = re.findall(r"^\| `(ratelimit_\w+)(?:{(.*)})?` \| (.*) \|$", PAGE, re.MULTILINE)
    assert rows == [(each.name, ",".join(each.labels), each.about) for each in MEASURES]


def test_the_alerts_of_the_page_are_those_of_the_file():
    alerts = (ROOT / "examples" / "observability" / "alerts.yaml").read_text("utf-8")
    assert set(re.findall(r"`(RateLimit\w+)` \|", PAGE)) == set(re.findall(r"alert: (\w+)", alerts))


_PROJECT = """
SECRET_KEY = "of the test"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "mysite.settings"
RATELIMIT = {"domain": "django", "rules": [{"name": "all", "by": "ip", "limit": "2 per hour"}]}
urlpatterns = []
"""

_VISIT_ASGI = """
from tests.operations.visiting import visit_asgi
print(visit_asgi(app, "/_limits/state.json", root="", headers={"Authorization": "Bearer the token of this test"}).body)
"""

_VISIT_WSGI = """
from tests.operations.visiting import visit_wsgi
app = type("App", (), {"wsgi": staticmethod(%s)})
print(visit_wsgi(app, "/_limits/state.json", root="", headers={"Authorization": "Bearer the token of this test"}).body)
"""


def run(code, folder, **environment):
    """Run code in a process of its own, and return what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROMETHEUS")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples_run_and_print_what_the_page_says(tmp_path):
    assert len(PYTHON) == 8
    printed = run("\n".join(each for each in PYTHON if "Page(" not in each), tmp_path)
    assert set(TEXT[0].splitlines()) <= set(printed.splitlines())


@pytest.mark.parametrize(
    ("example", "visit", "domain"),
    [
        pytest.param(0, _VISIT_ASGI, "shop", id="FastAPI"),
        pytest.param(1, _VISIT_WSGI % "app.wsgi_app", "shop", id="Flask"),
        pytest.param(2, _VISIT_WSGI % "application", "django", id="Django"),
    ],
)
def test_each_example_of_the_page_runs_alone(tmp_path, example, visit, domain):
    (tmp_path / "mysite").mkdir()
    (tmp_path / "mysite" / "settings.py").write_text(_PROJECT)
    code = [each for each in PYTHON if "Page(" in each][example]
    printed = run(code + visit, tmp_path, LIMITS_TOKEN="the token of this test")
    assert f'{{"domain":"{domain}"' in printed


def test_requests_for_a_page_inside_the_middleware_are_part_of_requests(tmp_path):
    assert 'still part of "Requests"' in PAGE
    (example, *_) = (each for each in PYTHON if "Page(" in each)
    counts = "print(dict(limiter.tally.snapshot().requests))"
    printed = run(example + 3 * _VISIT_ASGI + counts, tmp_path, LIMITS_TOKEN="the token of this test")
    assert printed.count('b\'{"domain":"shop"') == 3  # more than the limit allows
    assert "'unlimited': 3" in printed
