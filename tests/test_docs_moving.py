"""docs/moving.md: every app runs and limits as the page says, and every snippet of its tables is read."""

import os
import re
import subprocess
import sys

import pytest
import yaml

from ratelimit_mw import flask as in_flask
from tests.support.apps import ROOT
from tests.support.rules import load_rules

PAGE = (ROOT / "docs" / "moving.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
SETTINGS = """
SECRET_KEY = "for tests"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth"]
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
REST_FRAMEWORK = {"UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser"}
"""
ASGI = """
from fastapi.testclient import TestClient
with TestClient(module.app) as client:
    def ask(method, path, times, **headers):
        return [client.request(method, path, headers=headers).status_code for _ in range(times)]
"""
FLASK = """
client = module.app.test_client()
def ask(method, path, times, **headers):
    return [client.open(path, method=method, headers=headers).status_code for _ in range(times)]
"""
DJANGO = """
import django
django.setup()
from django.test import Client
client = Client()
def ask(method, path, times, **form):
    return [client.generic(method, path, **form).status_code for _ in range(times)]
"""
CHECKS = {
    "shop_fastapi": f"""{ASGI}
    assert ask("GET", "/search", 6) == [200] * 5 + [429]
    assert ask("GET", "/export", 6, **{{"X-User": "ann"}}) == [200] * 5 + [429]
    assert ask("GET", "/export", 1, **{{"X-User": "bob"}}) == [200]
    assert ask("POST", "/mail", 4) == [200] * 3 + [429]
    assert ask("GET", "/health", 200) == [200] * 200
    assert "429" in module.app.openapi()["paths"]["/mail"]["post"]["responses"]
""",
    "shop_flask": f"""{FLASK}
assert ask("POST", "/login", 4) == [401] * 3 + [429]
assert ask("GET", "/search", 6, **{{"X-Tenant": "a"}}) == [200] * 5 + [429]
assert ask("GET", "/search", 1, **{{"X-Tenant": "b"}}) == [200]
assert ask("GET", "/search", 6) == [200] * 5 + [429]
def sign_in(name, *passwords):
    return [client.post("/sign-in", data={{"name": name, "password": each}}).status_code for each in passwords]
assert sign_in("ann", *["correct"] * 4, "wrong", "correct", "wrong", "wrong") == [200] * 4 + [401, 200, 401, 429]
assert sign_in("bob", "wrong") == [401]
assert ask("POST", "/mail", 3) == [200] * 2 + [429]
assert client.post("/mail").text == "slow down"
""",
    "chat_fastapi": f"""{ASGI}
    from starlette.websockets import WebSocketDisconnect
    assert ask("GET", "/", 3) == [200] * 2 + [429]
    for messages in ("hello", "above the limit"), ("above the limit, on a new connection",):
        with client.websocket_connect("/chat") as socket:
            for message in messages:
                socket.send_text(message)
                try:
                    assert socket.receive_text() == message == "hello"
                except WebSocketDisconnect as closed:
                    assert (closed.code, message.startswith("above")) == (1008, True)
""",
    "shop_django": """
assert ask("GET", "/mail", 3) == [200, 200, 403]
logins = [client.post("/login", {"username": name}).status_code for name in ("ann", "ann", "ann", "ann", "bob")]
assert logins == [200, 200, 200, 403, 200]
assert [client.get("/search").content for _ in range(2)] == [b"all results", b"few results"]
assert ask("GET", "/export", 3) == [200, 200, 403]
""",
    "shop_rest": """
assert ask("GET", "/search", 3) == [200, 200, 429]
assert ask("POST", "/mail", 4) == [200] * 3 + [429]
denied = client.post("/mail")
assert denied.json()["detail"].startswith("Request was throttled. Expected available in ")
assert denied["X-RateLimit-Limit"] == "3"
""",
    "mails": "",
}
URLS = {
    "shop_django": """
from django.urls import path
from shop_django import Export, login, mail, search
urlpatterns = [path("mail", mail), path("login", login), path("search", search), path("export", Export.as_view())]
""",
    "shop_rest": """
from django.urls import path
from shop_rest import Mail, Search
urlpatterns = [path("mail", Mail.as_view()), path("search", Search.as_view())]
""",
}


def blocks(section, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)


def afters():
    for section in SECTIONS:
        for text in blocks(section, "python"):
            if found := re.match(r"# after: (\w+)\.py\n", text):
                yield pytest.param(section, found[1], text, id=found[1])


@pytest.mark.parametrize(("section", "name", "text"), list(afters()))
def test_the_app_after_the_move_limits_as_the_page_says(section, name, text, tmp_path):
    for rules in blocks(section, "yaml"):
        (tmp_path / "ratelimits.yaml").write_text(long_lived(rules))
    (tmp_path / f"{name}.py").write_text(long_lived(text))
    settings = SETTINGS + "".join(each for each in blocks("django-ratelimit", "python") if "settings.py" in each)
    for file, content in (("project.py", settings), ("urls.py", URLS.get(name, ""))):
        (tmp_path / file).write_text(content)
    setup = DJANGO if name in URLS else ""
    check = f"import importlib\n{setup}\nmodule = importlib.import_module({name!r})\n{CHECKS[name]}"
    environ = {key: value for key, value in os.environ.items() if key != "REDIS_URL"}
    environ |= {"DJANGO_SETTINGS_MODULE": "project", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-W", "error", "-c", check]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("True\nTrue\nFalse\nTrue\n0\n" if name == "mails" else "")


def long_lived(text):
    """The same with windows of years, none of which ends while a slow machine runs the test."""
    years = {"minute": 8, "hour": 9, "h": 9, "day": 10, "d": 10, "5 seconds": 8}
    return re.sub(
        r"(?<=\d)(?:/| per )(minute|hour|day|h|d|5 seconds)\b", lambda found: f" per {years[found[1]]} years", text
    )


def test_every_section_has_an_app():
    libraries = ["slowapi", "flask-limiter", "fastapi-limiter", "django-ratelimit", "Django REST framework", "limits"]
    firsts = {name: blocks(name, "python")[0].split(":")[0] for name in libraries}
    assert firsts == dict.fromkeys(libraries, "# after")
    assert {each.id for each in afters()} == CHECKS.keys()


def snippets():
    """The code in the second column of the tables."""
    for section, text in SECTIONS.items():
        for row in re.findall(r"^\| .* \|$", text, re.MULTILINE)[2:]:
            cells = [cell.replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row)]
            yield from (pytest.param(code, id=f"{section}: {code}") for code in re.findall("`([^`]+)`", cells[2]))


FILE = re.compile(r"(?:storage|client|response|exempt|domain|rules): ")
RULE = re.compile(r"\{match: |\{after: |(?:algorithm|ban|by|count|limit): ")
FOUND = [each for each in snippets() if FILE.match(each.values[0]) or RULE.match(each.values[0])]
LIMITS = [each for each in snippets() if each.values[0].startswith("limited(")]


@pytest.mark.parametrize("code", FOUND)
def test_a_snippet_of_a_rules_file_loads(code, tmp_path, monkeypatch):
    functions = "def answer(request, decision): ...\nuser_of = limit_of_plan = lambda scope: None\n"
    (tmp_path / "shop_fastapi.py").write_text(functions)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_fastapi", raising=False)  # as another test wrote it
    given = yaml.safe_load(code)
    rule = {"name": "x", "limit": "5/minute"}
    file = {"domain": "shop", "client": {"user": "header:X-User", "tier": "header:X-Plan"}}
    if FILE.match(code):
        file |= {"rules": [rule]} | given
    else:
        file["rules"] = [rule | {"match": {"path": "/search"}} | given]
    assert load_rules(file).domain == "shop"


@pytest.mark.parametrize("code", LIMITS)
def test_a_limit_in_a_decorator_is_read(code):
    assert callable(eval(code, {"limited": in_flask.limited}))


def test_the_snippets_were_found():
    assert len(FOUND) > 25
    assert len(LIMITS) > 10
