import logging
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from ratelimit_mw import RateLimiter
from ratelimit_mw.cli.app import app

SHOP = """\
domain: shop
client: {user: header:Authorization, tier: header:X-Plan, secret: s}
exempt:
  - path: /health
rules:
  - {name: everything, limit: 100 per minute}
  - name: login
    match: {path: /login, methods: [POST]}
    by: [ip, user]
    limit: [5 per minute, 20 per hour]
    algorithm: sliding_log
    replaces: everything
  - {name: api, match: {path: '/api/items/{id:int}'}, by: user|ip, limit: {default: 5 per hour, gold: 50 per hour}}
"""


def app_limiter(storage):
    """The limiter of an app with the folder's rules. It waits for a store on a busy machine."""
    rules = yaml.safe_load(Path("ratelimits.yaml").read_text("utf-8"))
    return RateLimiter({**rules, "storage": {"timeout": "5s"}}, storage=storage)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function from a command line to its exit code, what it printed, and what it said on stderr.

    It runs in a folder that has the shop's rules.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATELIMIT_RULES", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("ratelimits.yaml").write_text(SHOP, "utf-8")
    log = logging.getLogger("ratelimit_mw")
    handlers = list(log.handlers)

    def invoke(*words, typed=None):
        result = CliRunner().invoke(app, words, input=typed, env={"COLUMNS": "100", "NO_COLOR": "1"})
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    yield invoke
    log.handlers = handlers
