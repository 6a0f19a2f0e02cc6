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


_PROJECT = """
SECRET_KEY = "of the test"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "settings"
RATELIMIT = {"domain": "django", "rules": [{"name": "all", "by": "ip", "limit": "2 per hour"}]}
urlpatterns = []
"""

_CHECK = """
from tests.operations.visiting import visit_asgi, visit_wsgi

def visit_dispatched(app):
    return visit_wsgi(type("App", (), {"wsgi": staticmethod(app)}), "/_limits/state.json", root="", headers=headers)

headers = {"Authorization": "Bearer the token of this test"}
print("Django", visit_dispatched(application).body)
print("Flask", visit_dispatched(app.wsgi_app).body)
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
    assert len(PYTHON) == 9
    printed = run("\n".join(each for each in PYTHON if "Page(" not in each), tmp_path)
    assert set(TEXT[0].splitlines()) <= set(printed.splitlines())


def test_the_page_is_mounted_as_the_examples_say(tmp_path):
    (tmp_path / "settings.py").write_text(_PROJECT)
    fastapi, *others = (each for each in PYTHON if "Page(" in each)
    check = 'print("FastAPI", visit_asgi(app, "/_limits/state.json", root="", headers=headers).body)'
    imports, _, rest = _CHECK.partition("print(")
    environment = {"LIMITS_TOKEN": "the token of this test", "DJANGO_SETTINGS_MODULE": "settings"}
    printed = run("\n".join([imports, fastapi, check, *others, f"print({rest}"]), tmp_path, **environment)
    assert re.findall(r"^(\w+) b'{\"domain\":\"(\w+)\"", printed, re.MULTILINE) == [
        ("FastAPI", "shop"),
        ("Django", "django"),
        ("Flask", "shop"),
    ]
