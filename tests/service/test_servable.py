"""Rules that a service cannot serve are refused with their places, all at once."""

import pytest

from ratelimit_mw.errors import ConfigurationError
from ratelimit_mw.service.runner import prepare
from ratelimit_mw.service.servable import require_servable, unservable
from ratelimit_mw.service.settings import Settings
from tests.support.rules import load_rules

RULES = """\
domain: shop
client: {secret: s, trusted_proxies: [127.0.0.1]}
rules:
  - {name: served, by: ip, limit: 5 per minute}
  - name: counted
    by: ip
    limit: 5 per minute
    count: {status: 401}
  - {name: open, by: ip, limit: 5 concurrent}
  - {name: several, by: ip, limit: [5 per minute, 2 concurrent]}
  - name: tokens
    by: ip
    limit: 5 per minute
    cost: "response:X-Cost"
  - {name: later, by: ip, limit: 5 per minute, on_limit: defer, match: {methods: [POST]}}
  - {name: socket, by: ip, limit: 5 per minute, messages: close}
"""
PLACES = [(8, "count"), (9, "limit"), (10, "limit"), (14, "cost"), (15, "on_limit"), (16, "messages")]


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "ratelimits.yaml"
    found.write_text(RULES)
    return found


def settings(path, **more):
    return Settings(rules=str(path), grpc=None, admin=None, http=None, **more)


def test_each_rule_that_needs_the_response_is_refused_with_its_line(path):
    problems = unservable(load_rules(path), str(path))
    assert [(problem.line, problem.file) for problem in problems] == [(line, str(path)) for line, _ in PLACES]
    for problem, (_, key) in zip(problems, PLACES, strict=True):
        assert f"].{key}: the rule " in problem.message
        assert "--ignore-unservable" in problem.hint


def test_the_service_does_not_start_with_such_rules(path):
    with pytest.raises(ConfigurationError) as raised:
        prepare(settings(path))
    assert len(raised.value.problems) == len(PLACES)
    assert f"{path}:8:5: rules[1].count: the rule 'counted' can't be served" in str(raised.value)


def test_the_service_starts_with_such_rules_if_they_are_ignored(path):
    service, _ = prepare(settings(path, ignore_unservable=True))
    assert service.limiter.check({"ip": "203.0.113.7"}).allowed
    service.limiter.close()


def test_rules_of_a_folder_are_refused_with_their_files(tmp_path, path):
    (tmp_path / "blog.yaml").write_text("domain: blog\nrules:\n  - {name: r, by: ip, limit: 2 concurrent}\n")
    files = {problem.file for problem in unservable(load_rules(tmp_path), str(tmp_path))}
    assert files == {str(path), str(tmp_path / "blog.yaml")}


def test_rules_without_a_file_are_refused_by_their_index(path):
    with pytest.raises(ConfigurationError, match=r"^rules\[1\]\.count: the rule 'counted' can't be served"):
        require_servable(load_rules(path), "redis://127.0.0.1/0")


def test_rules_that_can_be_served_have_no_problem():
    rules = [{"name": "r", "by": "ip", "limit": {"free": "1 per minute", "default": "2 per minute"}}]
    assert unservable(load_rules({"domain": "shop", "rules": rules})) == ()
