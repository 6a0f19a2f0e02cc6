"""What docs/troubleshooting.md shows is what happens: its commands, its snippets and the lines of the log."""

import asyncio
import logging
import re
import shlex
import subprocess
import sys

import httpx
import pytest

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from tests.support.apps import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
RULES = next(text for kind, text in BLOCKS if kind == "yaml")
RULE = {"name": "everything", "by": "ip", "limit": "2 per day"}


def of(kind):
    return [text for found, text in BLOCKS if found == kind]


def get(app, **headers):
    """The status of GET / from 10.0.0.5."""
    return response(app, **headers).status_code


def response(app, **headers):
    async def sent():
        transport = httpx.ASGITransport(app, client=("10.0.0.5", 50000))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            return await client.get("/", headers=headers)

    return asyncio.run(sent())


async def hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.mark.parametrize("text", of("console"))
def test_a_command_prints_what_the_page_shows(text, tmp_path):
    (tmp_path / "ratelimits.yaml").write_text(RULES)
    command, _, shown = text.partition("\n")
    arguments = [sys.executable, "-m", "ratelimit_mw", *shlex.split(command)[2:]]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == shown


def test_the_lines_of_the_log_are_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO, "ratelimit_mw")
    rules = {"domain": "shop", "rules": [RULE]}
    assert get(RateLimitMiddleware(hello, config=rules), **{"X-Forwarded-For": "203.0.113.7"}) == 200
    with RateLimiter(rules, storage="redis://127.0.0.1:1/0") as limiter:
        assert limiter.check({"ip": "203.0.113.7"}).allowed
    path = tmp_path / "ratelimits.yaml"
    path.write_text(RULES)
    with RateLimiter(path) as limiter:
        path.write_text(RULES.replace("limit:", "limt:"))
        with pytest.raises(ConfigurationError):
            limiter.reload()
    shown = [re.escape(" ".join(text.split())).replace("…", ".*") for text in of("text")]
    assert len(shown) >= 4
    assert [line for line in shown if not re.search(line, caplog.text)] == []


def test_two_middlewares_and_a_shadow_denial_are_logged_as_the_page_says(caplog):
    rules = {"domain": "shop", "rules": [RULE | {"limit": "100 per minute"}, RULE | {"name": "s", "shadow": True}]}
    caplog.set_level(logging.INFO, "ratelimit_mw")
    app = RateLimitMiddleware(RateLimitMiddleware(hello, config=rules), config=rules)
    assert [get(app) for _ in range(3)] == [200] * 3
    assert "two middlewares around one app have the domain" in caplog.text
    assert "would have been denied (limited) by rule s, client ip=" in caplog.text


def test_a_shadow_rule_adds_no_headers():
    rules = {"domain": "shop", "rules": [RULE | {"shadow": True}]}
    assert not [name for name in response(RateLimitMiddleware(hello, config=rules)).headers if "ratelimit" in name]


@pytest.mark.parametrize(
    ("word", "note"), [("off", "the switch is off"), ("shadow", "the switch is at shadow"), ("on", "everything' has")]
)
def test_explain_names_the_state_of_the_switch(word, note):
    with RateLimiter({"domain": "shop", "rules": [RULE]}, storage="memory://") as limiter:
        limiter.switch.set(word)
        assert note in str(limiter.explain({"ip": "203.0.113.7"}))


def test_explain_names_the_environment_and_rules_that_wait_for_their_name(monkeypatch):
    monkeypatch.setenv("RATELIMIT_MW", "off")
    rules = {"domain": "shop", "rules": [RULE, RULE | {"name": "mail", "on_demand": True}]}
    with RateLimiter(rules, storage="memory://") as limiter:
        explained = str(limiter.explain({"ip": "203.0.113.7"}))
    assert "RATELIMIT_MW=off is set" in explained
    assert "no match: it applies only when the app asks for it by name" in explained
