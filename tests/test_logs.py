"""What servers print of the package's log without any configuration: in processes of their own."""

import subprocess
import sys

import pytest
from httpx import get

from ratelimit_mw.logs import LineLimit
from ratelimit_mw.model import SECOND
from tests.support.apps import ROOT, uvicorn
from tests.support.patience import eventually


def printed(code):
    """What a program prints to stderr."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return ran.stderr


BASE = "import logging, ratelimit_mw.asgi\nlog = logging.getLogger('ratelimit_mw')\n"


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


def test_lines_about_each_subject_are_limited_and_the_next_says_how_many_were_omitted():
    lines, start = LineLimit(), 1_700_000_000 * SECOND
    assert [lines.omitted("a", 2, start) for _ in range(5)] == [0, 0, None, None, None]
    assert lines.omitted("b", 2, start) == 0
    assert lines.omitted("a", 2, start + 59 * SECOND) is None
    assert [lines.omitted("a", 2, start + 60 * SECOND) for _ in range(3)] == [4, 0, None]
    assert lines.omitted("a", 2, start + 180 * SECOND) == 1
    assert lines.omitted("none", 0, start) is None
    lines.reset()
    assert lines.omitted("a", 2, start + 180 * SECOND) == 0


def test_the_subjects_whose_lines_are_counted_are_bounded():
    lines = LineLimit()
    assert [lines.omitted("first", 1, 0) for _ in range(2)] == [0, None]
    for number in range(1_500):
        lines.omitted(f"shop/rule{number}", 1, 0)
    assert lines.omitted("first", 1, 0) == 0
