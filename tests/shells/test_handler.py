"""`response.handler` and `header_names`: what an app changes in its denials, and what it gets if it does so wrongly."""

import json
import logging
import math
import re
from collections import UserDict

import pytest

from tests.shells.asking import EACH_SHELL, IP, limiter
from tests.support.apps import ROOT

seen = []


def redirect(context, decision):
    seen.append((context, decision))
    return 303, {"Location": "/slow-down", "X-RateLimit-Limit": "few"}, ""


def as_json(context, decision):
    return None, None, {"rule": decision.rule, "reason": decision.reason}


def page(context, decision):
    return 503, {"Content-Type": "text/html", "X-Shop": " closed "}, b"<p>wait"


def nothing(context, decision):
    return None


def raises(context, decision):
    raise KeyError("a secret")


class LateFailure(UserDict):
    """Headers that fail only when they are read."""

    def __iter__(self):
        raise RuntimeError("a secret")


def nested(depth=10_000):
    found = []
    for _ in range(depth):
        found = [found]
    return found


class Awaitable:
    def __await__(self):
        yield


WRONG = {
    "text": "no",
    "too short": (429, {}),
    "status": ("429", {}, ""),
    "flag": (True, {}, ""),
    "no body allowed": (204, {}, ""),
    "header list": (429, "X-A: b", ""),
    "pairs": (429, [("X-A", "b")], ""),
    "header name": (429, {"X A": "b"}, ""),
    "number": (429, {"X-A": 5}, ""),
    "line break": (429, {"X-A": "b\r\nX-B: c"}, ""),
    "length": (429, {"Content-Length": "5"}, ""),
    "body": (429, {}, 5),
    "no json": (429, {}, {"a": {1}}),
    "late failure": (429, LateFailure(), ""),
    "too deep": (429, {}, nested()),
    "of the connection": (429, {"Connection": "close"}, ""),
    "awaitable": Awaitable(),
}
wrong = "text"


def returns_wrong(context, decision):
    return WRONG[wrong]


def denied(ask, function, **options):
    engine = limiter(
        "0 per minute", response={"handler": f"python:tests.shells.test_handler:{function}", **options.pop("also", {})}
    )
    return ask(engine, **options)


CONFIGURED = {"message": "Too many requests"}


@EACH_SHELL
def test_a_handler_makes_the_status_the_headers_and_the_body(ask):
    seen.clear()
    answer = denied(ask, "redirect")
    ((context, decision),) = seen
    assert (answer.status, answer.body, answer.headers["location"]) == (303, b"", "/slow-down")
    assert answer.headers["content-length"] == "0"
    assert answer.headers["x-ratelimit-limit"] == "few"
    assert answer.headers["x-ratelimit-remaining"] == "0"
    assert (decision.rule, decision.reason) == ("everybody", "limited")
    assert {"path", "PATH_INFO"} & context.keys()


@EACH_SHELL
def test_what_a_handler_leaves_out_is_configured(ask):
    answer = denied(ask, "as_json", also={"status": 420})
    assert (answer.status, json.loads(answer.body)) == (420, {"rule": "everybody", "reason": "limited"})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert json.loads(denied(ask, "nothing").body) == CONFIGURED


def wait(context, decision):
    return None, None, {"retry_after": decision.retry_after, "text": "Infinity", "not": math.nan}


@EACH_SHELL
def test_a_wait_without_end_is_null_in_a_body_of_json(ask):
    assert denied(ask, "wait").body == b'{"retry_after": null, "text": "Infinity", "not": null}'


@EACH_SHELL
def test_a_body_of_bytes_has_the_type_that_the_handler_gives_it(ask):
    answer = denied(ask, "page")
    assert (answer.status, answer.body, answer.headers["x-shop"]) == (503, b"<p>wait", "closed")
    assert (answer.headers["content-type"], answer.headers["content-length"]) == ("text/html", "7")


@EACH_SHELL
def test_a_head_request_gets_the_headers_and_no_body(ask):
    answer = denied(ask, "page", method="HEAD")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (503, b"", "7")


@EACH_SHELL
def test_after_an_exception_the_configured_answer_is_sent_and_one_line_is_logged(ask, caplog):
    engine = limiter("0 per minute", response={"handler": "python:tests.shells.test_handler:raises"})
    middle = ask(engine)
    assert (middle.status, json.loads(middle.body)) == (429, CONFIGURED)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "response.handler python:tests.shells.test_handler:raises: KeyError was raised at " in line
    assert "secret" not in line


@EACH_SHELL
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_result_is_logged_and_the_configured_answer_is_sent(ask, kind, caplog, monkeypatch):
    monkeypatch.setattr("tests.shells.test_handler.wrong", kind)
    answer = denied(ask, "returns_wrong")
    assert (answer.status, json.loads(answer.body)) == (429, CONFIGURED)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "secret" not in line


def test_errors_of_a_handler_are_logged_once(caplog):
    from ratelimit_mw.http.handler import DenialHandler
    from ratelimit_mw.settings import HandlerSettings

    handler = DenialHandler(HandlerSettings(raises, "python:raises"), name=str, value=str)
    configured = (429, [("Content-Type", "text/plain")], b"no")
    assert [handler.answer({}, None, configured) for _ in range(3)] == [configured] * 3
    assert len(caplog.records) == 1


@EACH_SHELL
def test_the_handler_of_the_page_answers_as_the_page_says(ask, monkeypatch):
    page = (ROOT / "docs/headers-and-bodies.md").read_text()
    (code,) = re.findall(r"^```python\n# mysite/denials.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = {}
    exec(code, names)
    monkeypatch.setattr("tests.shells.test_handler.nothing", names["answer"])
    ban = {"after": "2 denials in 1 minute", "for": "1 hour"}
    engine = limiter(
        rules=[{"name": "everything", "limit": "1 per minute", "algorithm": "fixed_window", "ban": ban}],
        response={"handler": "python:tests.shells.test_handler:nothing"},
    )
    answers = [ask(engine) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 429, 303]
    assert json.loads(answers[1].body) == {"error": {"code": "limited", "retry_after": 40.0}}
    assert answers[2].headers["location"] == "/slow-down"


@EACH_SHELL
def test_the_headers_have_the_names_of_the_file(ask):
    names = {"limit": "RateLimit-Limit", "remaining": "X-Left", "over": "X-Over"}
    engine = limiter(
        rules=[{"name": "a", "limit": "1 per minute", "throttle": {"soft": "100%"}, "algorithm": "fixed_window"}],
        response={"header_names": names},
    )
    answers = [ask(engine) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    for answer in answers:
        assert (answer.headers["ratelimit-limit"], answer.headers["x-left"]) == ("1", "0")
        assert "x-ratelimit-reset" in answer.headers
        assert not {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-over"} & answer.headers.keys()
    assert answers[1].headers["x-over"] == "soft"


@EACH_SHELL
def test_a_renamed_header_that_the_app_sets_is_kept(ask):
    answer = ask(limiter(response={"header_names": {"limit": "X-Limit"}}), own=[("X-Limit", "mine")])
    assert (answer.headers["x-limit"], "x-ratelimit-remaining" in answer.headers) == ("mine", False)


@pytest.mark.parametrize(
    ("limit", "message"),
    [("0 per minute", "0 per minute"), ("0 per 2 hours", "0 per 2 hours"), ("0 concurrent", "0 per ")],
)
@EACH_SHELL
def test_a_message_may_name_the_period_of_the_limit(ask, limit, message):
    rules = [{"name": "a", "limit": limit}]
    answer = ask(limiter(rules=rules, response={"message": "{limit} per {period}", "body": "text"}), ip=IP)
    assert answer.body.decode() == message
