"""What the tests of rules files have in common."""

import tempfile
from contextlib import chdir
from pathlib import Path

from ratelimit_mw import ConfigurationError
from ratelimit_mw.identity.http_request import AsgiRequest
from tests.support.rules import load_rules


def problems_of(text, environ=None):
    """What is said of a file with this text, which goes by the name r.yaml."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("r.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        try:
            load_rules("r.yaml", environ=environ or {})
        except ConfigurationError as error:
            return [str(problem) for problem in error.problems]
    return []


def load_text(text, environ=None):
    """The rules of a file with this text."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False, encoding="utf-8") as file:
        file.write(text)
    try:
        return load_rules(file.name, environ=environ or {})
    finally:
        Path(file.name).unlink()


def rules(*listed, **more):
    """A rule set of these rules; each is by ip and 5 per minute, if it does not say otherwise."""
    named = [{"name": f"r{n}", "limit": "5 per minute", **rule} for n, rule in enumerate(listed)]
    return load_rules({"domain": "d", "rules": named, **more}, environ={})


def request(path="/", method="GET", headers=(), ip="192.0.2.1", **scope):
    """A request under ASGI."""
    lines = [(name.encode(), value.encode()) for name, value in dict(headers).items()]
    client = (ip, 1234) if ip else None
    return AsgiRequest({"type": "http", "method": method, "path": path, "headers": lines, "client": client, **scope})


def applied(rule_set, *args, **kwargs):
    """The names of the rules that apply to a request, in order, once for each counter."""
    return [charge.rule.name for charge in rule_set.plan(request(*args, **kwargs))]


def identities(rule_set, *args, **kwargs):
    """What stands between the braces of each key."""
    return [charge.ask.key.partition("{")[2].rstrip("}") for charge in rule_set.plan(request(*args, **kwargs))]
