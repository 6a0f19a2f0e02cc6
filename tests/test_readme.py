"""What the README shows is what a user copies: every block of it runs."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from ratelimit_mw.config.load import load_rules
from tests.support.apps import ROOT, gunicorn, uvicorn, within_a_minute

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
    assert len(blocks("python")) >= 7
    assert len(KINDS) >= 8


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_loads(text, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARD", "a")
    path = tmp_path / "ratelimits.yaml"
    path.write_text(text)
    assert load_rules(path).rules


KINDS = re.findall(r"^\| \[([^]]+)\]\(docs/[^)]+\) \| `([^`]+)` \|", README, re.MULTILINE)


@pytest.mark.parametrize("snippet", [pytest.param(snippet, id=kind) for kind, snippet in KINDS])
def test_each_kind_of_the_table_is_part_of_a_rule(snippet, tmp_path):
    rule = {"name": "r", "limit": "100 per minute"} | yaml.safe_load(snippet if snippet[0] == "{" else f"{{{snippet}}}")
    (tmp_path / "ratelimits.yaml").write_text(yaml.safe_dump({"domain": "d", "rules": [rule]}))
    assert load_rules(tmp_path / "ratelimits.yaml").rules


RESPONSES = README.partition("### Responses")[2].partition("\n### ")[0]
SETTINGS = [
    pytest.param(key, snippet, id=f"{key}: {snippet}")
    for key, row in re.findall(r"^\| `(status|headers|reset|body)` \| (.*) \|$", RESPONSES, re.MULTILINE)
    for snippet in re.findall("`([^`]+)`", row)
    if snippet not in {"X-RateLimit-Reset", "Accept"}
]


@pytest.mark.parametrize(("key", "snippet"), SETTINGS)
def test_each_setting_of_responses_loads(key, snippet):
    rule = {"name": "r", "limit": "100 per minute"}
    assert load_rules({"domain": "d", "response": {key: yaml.safe_load(snippet)}, "rules": [rule]}).response


def test_what_a_rule_says_of_its_responses_loads():
    assert len(SETTINGS) >= 15
    (snippet,) = re.findall(r"^A rule may .* `(response: {.*})`", RESPONSES, re.MULTILINE)
    (rule,) = load_rules(
        {"domain": "d", "rules": [{"name": "r", "limit": "0/s", **yaml.safe_load(f"{{{snippet}}}")}]}
    ).rules
    assert (rule.status, rule.message, rule.hidden) == (423, "Locked", True)


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
