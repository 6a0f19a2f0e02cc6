"""docs/essentials.md: short, and what its tables and its file say is so."""

import re

import pytest
import yaml
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette

from ratelimit_mw import RateLimiter, asgi, fastapi, wsgi
from tests.support.apps import ROOT
from tests.support.rules import load_rules

PAGE = (ROOT / "docs" / "essentials.md").read_text("utf-8")
(RULES,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def cells(title):
    """The first cell of each row of a table, without its marks."""
    (table,) = re.findall(rf"^\| {re.escape(title)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [(row[2:].split(" | ")[0].replace("\\|", "|"), row) for row in table.splitlines()]


def values(title):
    return [value for cell, _ in cells(title) for value in re.findall("`([^`]+)`", cell)]


def test_the_page_is_short():
    assert len(PAGE.split()) <= 1500


@pytest.mark.parametrize("by", values("`by`"))
def test_each_by_is_read(by):
    rule = {"name": "r", "by": yaml.safe_load(by), "limit": "100 per minute"}
    assert load_rules({"domain": "d", "client": {"user": "scope:user"}, "rules": [rule]}).parts


@pytest.mark.parametrize("limit", values("`limit`"))
def test_each_limit_is_read(limit):
    rule = {"name": "r", "limit": yaml.safe_load(limit)}
    assert load_rules({"domain": "d", "client": {"tier": "scope:plan"}, "rules": [rule]}).parts


@pytest.mark.parametrize("algorithm", values("`algorithm`"))
def test_each_algorithm_exists(algorithm):
    assert load_rules({"domain": "d", "rules": [{"name": "r", "limit": "9 per minute", "algorithm": algorithm}]})


@pytest.mark.parametrize(
    ("framework", "app"), [("Starlette", Starlette()), ("FastAPI", FastAPI()), ("Flask", Flask("shop"))]
)
def test_each_line_adds_the_middleware(framework, app, tmp_path, monkeypatch):
    (tmp_path / "ratelimits.yaml").write_text(RULES)
    monkeypatch.chdir(tmp_path)
    (line,) = [re.findall("`([^`]+)`", row)[0] for name, row in cells("framework") if name == framework]
    exec(line, {"app": app, "asgi": asgi, "wsgi": wsgi, "fastapi": fastapi})
    (added,) = [middleware.cls for middleware in getattr(app, "user_middleware", [])] or [type(app.wsgi_app)]
    assert issubclass(added, (asgi.RateLimitMiddleware, wsgi.RateLimitMiddleware))


def test_the_rule_of_the_login_denies_the_sixth_failed_try(tmp_path):
    (tmp_path / "ratelimits.yaml").write_text(RULES)
    with RateLimiter(tmp_path / "ratelimits.yaml", storage="memory://") as limiter:
        tries = [limiter.check({"ip": "203.0.113.7", "path": "/login", "method": "POST"}) for _ in range(6)]
    assert [each.allowed for each in tries] == [True] * 5 + [False]
    assert tries[5].rule == "login"
