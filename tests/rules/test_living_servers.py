"""Rules that change on real servers with several worker processes. `tests/load/test_pushes.py` does it under load."""

import httpx2 as httpx
import pytest

from ratelimit_mw import ConfigurationError, RateLimiter
from tests.rules.living import text
from tests.support.apps import gunicorn
from tests.support.patience import eventually

WSGI = """
import os
from ratelimit_mw import RateLimiter
from ratelimit_mw.wsgi import RateLimitMiddleware

limiter = RateLimiter(os.environ["RULES"])
limiter.check({"ip": "192.0.2.1"})  # before the fork: the parent watches, and its children have to begin anew

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    said = environ["ratelimit.decision"]
    return [f"{os.getpid()} {said.limiter.state.version} {said.rule}".encode()]

app = RateLimitMiddleware(app, limiter=limiter)
"""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="sync"),
        pytest.param(["--threads", "4"], id="gthread", marks=pytest.mark.soak),
        pytest.param(["-k", "gevent"], id="gevent", marks=pytest.mark.soak),
    ],
)
def test_gunicorn_s_workers_watch_for_themselves_after_a_preload(tmp_path, options):
    (tmp_path / "living.py").write_text(WSGI)
    file = tmp_path / "rules.yaml"
    file.write_text(text("5000 per minute", reload="100ms", name="old"))
    with gunicorn("living:app", workers=2, cwd=tmp_path, env={"RULES": str(file)}, args=["--preload", *options]) as app:

        def answers():
            found = [httpx.get(app.url).text.split() for _ in range(12)]
            return {pid: name for pid, _, name in found}

        eventually(lambda: len(answers()) == 2)
        assert set(answers().values()) == {"old"}
        (tmp_path / "new").write_text(text("5000 per minute", reload="100ms", name="new"))
        (tmp_path / "new").replace(file)
        eventually(lambda: (found := answers()) and len(found) == 2 and set(found.values()) == {"new"})


def test_an_async_function_that_a_reload_brings_is_refused_under_wsgi(tmp_path):
    from ratelimit_mw.wsgi import RateLimitMiddleware

    file = tmp_path / "rules.yaml"
    file.write_text(text())
    with RateLimiter(file) as limiter:
        RateLimitMiddleware(lambda *_: [], limiter=limiter)
        source = "python:tests.identity.functions:later"
        rule = "  - {name: b, by: user, limit: 5 per minute}\n"
        file.write_text(text(client=f"{{user: '{source}', secret: s}}") + rule)
        with pytest.raises(ConfigurationError, match="async functions can't be awaited under WSGI: user"):
            limiter.reload()
        assert [each.name for each in limiter.rules.rules] == ["a"]
