"""What servers print of the package's log without any configuration: in processes of their own."""

import logging
import subprocess
import sys

import pytest
from httpx import get

from ratelimit_mw.logs import install, name_lines
from tests.support.apps import ROOT, uvicorn
from tests.support.patience import eventually


def printed(code):
    """What a program prints to stderr."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return ran.stderr


BASE = "import logging, ratelimit_mw\nlog = logging.getLogger('ratelimit_mw')\n"


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        ("", "ratelimit_mw: first line\nratelimit_mw:   second 5\n"),
        ("logging.basicConfig()\n", "WARNING:ratelimit_mw:first line\n  second 5\n"),
        ("log.addHandler(logging.NullHandler())\n", ""),
    ],
)
def test_each_line_has_the_name_of_the_logger_once(setup, expected):
    assert printed(f"{BASE}{setup}log.warning('first line\\n  second %s', 5)") == expected


def test_a_second_installation_adds_nothing():
    install()
    assert logging.getLogger("ratelimit_mw").filters.count(name_lines) == 1


def test_uvicorn_shows_a_reload_without_any_configuration(tmp_path):
    rules = tmp_path / "rules.yaml"
    text = "domain: d\nreload: 100ms\nstorage: {timeout: 5s}\nrules: [{name: a, limit: 5 per minute}]\n"
    rules.write_text(text, "utf-8")
    (tmp_path / "app_with_rules.py").write_text(
        "from starlette.applications import Starlette\n"
        "from ratelimit_mw.asgi import RateLimitMiddleware\n"
        "app = RateLimitMiddleware(Starlette(), 'rules.yaml')\n",
        "utf-8",
    )
    env = {"PYTHONPATH": str(ROOT)}
    with uvicorn("app_with_rules:app", cwd=tmp_path, env=env) as app:
        assert get(app.url).status_code == 404  # watching begins with the first request
        rules.write_text(text.replace("5 per", "6 per"), "utf-8")
        assert eventually(lambda: "\nratelimit_mw: rules: version " in app.log)
