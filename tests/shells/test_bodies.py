"""Bodies of denials, through both middlewares: templates, HTML for clients that accept it, words of a rule's own."""

import json

import pytest

from ratelimit_mw import ManualClock
from tests.shells.asking import EACH_SHELL, IP, START, limiter

AWAY = "redis://127.0.0.1:1/0"  # a port at which nobody listens
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
LINK = "https://developer.github.com/v3/#rate-limiting"
TYPES = "https://iana.org/assignments/http-problem-types"
pytestmark = EACH_SHELL


def denied(ask, response, *, rule=None, **request):
    everybody = {"name": "everybody", "by": "ip", "limit": "1 per minute", "algorithm": "fixed_window", **(rule or {})}
    engine = limiter(rules=[everybody], response=response)
    assert ask(engine).status == 200
    return ask(engine, **request)


def test_github_s_answer(ask):
    message = "API rate limit exceeded for {ip}. (But here's the good news: Authenticated requests get a higher limit.)"
    answer = denied(ask, {"status": 403, "message": message, "documentation_url": LINK})
    assert answer.status == 403
    assert json.loads(answer.body) == {"message": message.replace("{ip}", IP), "documentation_url": LINK}
    assert answer.rate == ["1", "0", str(START + 40)]


def test_a_template_has_the_shape_that_the_api_s_errors_have(ask):
    template = {
        "error": {
            "code": "{reason}",
            "status": "{status}",
            "title": "{title}",
            "message": "{message}",
            "who": "{rule} by {ip}",
            "wait": "{retry_after}",
            "in_words": "{retry_after} s",
            "limits": ["{limit}", None, "limit of {limit}"],
        },
        "ok": False,
        "version": 1.5,
        "data": None,
    }
    answer = denied(ask, {"body": template, "message": "Slow down, {ip}"})
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body) == {
        "error": {
            "code": "limited",
            "status": 429,
            "title": "Too Many Requests",
            "message": f"Slow down, {IP}",
            "who": f"everybody by {IP}",
            "wait": 40,
            "in_words": "40 s",
            "limits": [1, None, "limit of 1"],
        },
        "ok": False,
        "version": 1.5,
        "data": None,
    }


def test_what_there_is_not_is_null_alone_and_a_word_within_a_text(ask):
    template = {"alone": ["{retry_after}", "{ip}"], "within": "{ip} waits {retry_after}"}
    engine = limiter("0 per minute", response={"body": template})
    assert json.loads(ask(engine, ip=None).body) == {"alone": [None, None], "within": "unknown waits never"}


def test_a_template_while_the_store_is_away(ask):
    rule = {"name": "a", "by": "ip", "limit": "9 per hour", "on_error": "deny"}
    template = {"code": "{reason}", "message": "{message}", "rule": "{rule}", "text": "<{rule}{limit}>"}
    with limiter(rules=[rule], storage=AWAY, response={"body": template, "message": "{ip}"}) as engine:
        answer = ask(engine)
    assert answer.status == 503
    said = {"code": "unavailable", "message": "Service temporarily unavailable", "rule": None, "text": "<>"}
    assert json.loads(answer.body) == said


@pytest.mark.parametrize(
    ("body", "accept", "content_type"),
    [
        pytest.param(["json", "html"], BROWSER, "text/html; charset=utf-8", id="a browser"),
        pytest.param(["json", "html"], "*/*", "application/json", id="fetch and curl"),
        pytest.param(["json", "html"], None, "application/json", id="no word of it"),
        pytest.param(["json", "html"], "application/json", "application/json", id="a program"),
        pytest.param(["json", "html"], "text/html;q=0.5, application/json;q=0.4", "text/html; charset=utf-8", id="q"),
        pytest.param(["json", "html"], "text/html;q=0, */*", "application/json", id="anything but HTML"),
        pytest.param(["json", "html"], "image/png", "application/json", id="neither"),
        pytest.param(["html", "json"], "*/*", "text/html; charset=utf-8", id="the first is what a client gets"),
        pytest.param(["problem", "html"], "application/json", "application/problem+json", id="a problem is JSON"),
        pytest.param(["problem", "text"], "text/*", "text/plain; charset=utf-8", id="some text"),
        pytest.param([{"a": "{message}"}, "html"], "application/json", "application/json", id="a template"),
        pytest.param(["json", "problem"], "application/problem+json", "application/problem+json", id="a problem if so"),
    ],
)
def test_the_client_s_accept_chooses_among_formats(ask, body, accept, content_type):
    answer = denied(ask, {"body": body}, accept=accept)
    assert answer.headers["content-type"] == content_type
    assert answer.headers["vary"] == "Accept"
    assert (b"<!doctype html>" in answer.body) == ("html" in content_type)


@pytest.mark.parametrize("body", ["json", ["html"], {"a": "b"}])
def test_where_nothing_is_to_be_chosen_nothing_varies(ask, body):
    answer = denied(ask, {"body": body}, accept=BROWSER)
    assert "vary" not in answer.headers
    assert answer.headers["content-type"].startswith("text/html" if body == ["html"] else "application/json")


def test_the_page_of_a_browser(ask):
    answer = denied(ask, {"body": "html", "message": "Slow down, <{ip}> & co"})
    text = answer.body.decode()
    assert "<h1>Too Many Requests</h1>" in text
    assert f"<p>Slow down, &lt;{IP}&gt; &amp; co</p>" in text


@pytest.mark.parametrize("body", [["json", "html"], ["problem", "text"], [{"wait": "{retry_after}"}, "html"]])
@pytest.mark.parametrize("accept", [BROWSER, "text/plain", "*/*"])
def test_head_has_the_headers_that_get_would_have(ask, body, accept):
    response = {"body": body, "headers": ["x-ratelimit", "ratelimit", "retry-after"]}
    head, get = (denied(ask, response, method=method, accept=accept) for method in ("HEAD", "GET"))
    assert head.body == b""
    assert head.fields == get.fields
    assert head.headers["content-length"] == str(len(get.body)) != "0"


def test_a_rule_s_own_status_and_words(ask):
    own = {
        "name": "lockout",
        "limit": "1 per minute",
        "response": {"status": 423, "message": "Locked for {retry_after} s"},
    }
    answer = denied(ask, {"body": "problem", "status": 403, "message": "not so fast"}, rule=own)
    assert (answer.status, json.loads(answer.body)["detail"]) == (423, "Locked for 40 s")
    other = denied(ask, {"body": "problem", "status": 403, "message": "not so fast"})
    assert (other.status, json.loads(other.body)["detail"]) == (403, "not so fast")


def test_all_policies_that_are_violated_are_named(ask):
    rules = [
        {"name": name, "by": "ip", "limit": limit, "algorithm": "fixed_window", "shadow": name == "shadow"}
        for name, limit in (("a", "1 per hour"), ("shadow", "1 per day"), ("b", "1 per minute"), ("wide", "9 per day"))
    ]
    engine = limiter(rules=rules, response={"body": "problem"}, clock=ManualClock(START))
    ask(engine)
    problem = json.loads(ask(engine).body)
    assert (problem["type"], problem["violated-policies"]) == (f"{TYPES}#quota-exceeded", ["a", "b"])


def test_a_ban_is_abnormal_usage(ask):
    banned = {"limit": "1 per minute", "ban": {"after": "2 denials in 1 minute", "for": "1 hour"}}
    engine = limiter(rules=[{"name": "login", "by": "ip", **banned}], response={"body": "problem"})
    said = [ask(engine) for _ in range(5)]
    problem = json.loads(said[-1].body)
    assert problem["type"] == f"{TYPES}#abnormal-usage-detected"
    assert (problem["status"], problem["violated-policies"]) == (429, ["login"])
    assert int(said[-1].headers["retry-after"]) > 60


def test_an_operator_s_block_is_no_quota(ask):
    block = {"client": {"ip": IP}, "block": True}
    answer = ask(limiter(overrides=[block], response={"body": "problem", "headers": ["ratelimit", "retry-after"]}))
    assert (answer.status, json.loads(answer.body)) == (
        403,
        {"type": "about:blank", "title": "Forbidden", "status": 403, "detail": "Forbidden"},
    )
    assert set(answer.headers) == {"content-type", "content-length", "cache-control"}
