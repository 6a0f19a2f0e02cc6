"""Hostile test 37: line breaks in names make no header and no line of a log."""

import logging

import pytest

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter

RULE = {"name": "a", "by": "ip", "limit": "1 per minute"}
BREAKS = ["\r\n", "\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\0"]


@pytest.mark.parametrize("sign", BREAKS, ids=ascii)
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(lambda name: {"domain": "d", "rules": [{**RULE, "name": name}]}, id="a rule"),
        pytest.param(lambda name: {"domain": name, "rules": [RULE]}, id="a domain"),
        pytest.param(
            lambda name: {"domain": "d", "attributes": {name: "header:X"}, "rules": [RULE]}, id="an attribute"
        ),
    ],
)
def test_a_name_that_is_sent_holds_none(config, sign):
    with pytest.raises(ConfigurationError) as refused:
        RateLimiter(config(f"a{sign}X-Evil: 1"))
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize("sign", BREAKS, ids=ascii)
def test_what_a_client_sends_makes_no_line_of_the_log(caplog, sign):
    caplog.set_level(logging.DEBUG)
    evil = f"a{sign}ERROR forged"
    rules = [
        {**RULE, "by": "user", "shadow": True},
        {**RULE, "name": "b", "by": "user", "ban": {"after": "1 denial", "for": "1 minute"}},
        {**RULE, "name": "c", "by": ["ip", "path"], "on_error": "allow"},
    ]
    config = {"domain": "d", "client": {"user": "header:U", "secret": "s"}, "rules": rules}
    with RateLimiter(config, clock=ManualClock()) as limiter:
        denied = [limiter.check({"user": evil, "ip": evil, "path": evil}).allowed for _ in range(5)]
        limiter.overrides.set({"user": evil}, rule="b", limit="3 per minute", comment=evil)
    assert denied[-1] is False
    messages = [record.getMessage() for record in caplog.records]
    assert any("ban" in message for message in messages)
    assert [message for message in messages if sign in message] == []
