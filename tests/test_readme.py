"""What the README shows is what a user copies: every block of it runs."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.apps import ROOT, gunicorn, uvicorn, within_a_minute
from tests.support.rules import load_rules

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# (\w+\.\w+)")


def blocks(language):
    found = [(number, text, NAME.match(text)) for number, (kind, text) in enumerate(BLOCKS) if kind == language]
    return [pytest.param(text, id=name[1] if name else f"block-{number}") for number, text, name in found]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with the files that day one makes: the rules, an app for each framework, a Django project."""
    for _, text in BLOCKS:
        name = NAME.match(text)
        if name:
            (tmp_path / name[1]).write_text(text)
    (tmp_path / "mysite").mkdir()
    (tmp_path / "mysite" / "settings.py").write_text(
        "ROOT_URLCONF = 'mysite.urls'\nALLOWED_HOSTS = ['*']\nUSE_TZ = True\n"
    )
    (tmp_path / "mysite" / "urls.py").write_text("urlpatterns = []\n")
    return tmp_path


def test_the_blocks_were_found():
    assert {kind for kind, _ in BLOCKS} == {"console", "yaml", "python", "http"}
    assert len(blocks("python")) == 4  # one app for each framework


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 165


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_loads(text, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARD", "a")
    path = tmp_path / "ratelimits.yaml"
    path.write_text(text)
    assert load_rules(path).rules


@pytest.mark.parametrize("text", blocks("python"))
def test_python_runs(text, project):
    done = subprocess.run([sys.executable, "-W", "error", "-c", text], cwd=project, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    ("serve", "app"),
    [
        pytest.param(uvicorn, "starlette_main:app", id="Starlette"),
        pytest.param(uvicorn, "fastapi_main:app", id="FastAPI"),
        pytest.param(gunicorn, "flask_main:app", id="Flask"),
        pytest.param(gunicorn, "django_main:application", id="Django"),
    ],
)
def test_on_day_one_the_101st_request_of_a_minute_is_denied(project, serve, app):
    assert re.search(rf"^# \S+ +{serve.__name__} {app}$", README, re.MULTILINE), "the README says to start it so"
    with serve(app, cwd=project) as running, httpx.Client(base_url=running.url) as client:
        within_a_minute()
        answers = [client.get("/") for _ in range(101)]
    assert [answer.status_code for answer in answers] == [404] * 100 + [429]
    first, last = answers[0].headers, answers[-1].headers
    assert (first["X-RateLimit-Limit"], first["X-RateLimit-Remaining"]) == ("100", "99")
    assert last["X-RateLimit-Remaining"] == "0"
    assert last["Cache-Control"] == "no-store"
    assert 1 <= int(last["Retry-After"]) <= 61  # the first to leave a sliding window leaves in the next one
    assert answers[-1].json() == {"message": "Too many requests"}
