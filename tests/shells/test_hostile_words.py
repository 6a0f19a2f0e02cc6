"""Whoever writes names, messages and requests: no word becomes markup, a line of a header, or a part of JSON."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimit_mw.bodies import BodyContent, filled, format_of, is_constant
from tests.shells.asking import ask_asgi, ask_wsgi, limiter
from tests.structured_fields import read

HOSTILE = (
    *("<script>alert(1)</script>", "</title>", "<!--", "]]>", "&lt;", "'", '"', "\\", "\r\n", "\r\nX-Evil: 1", "\0"),
    *("{ip}", "{message}", "{rule}", "{", "}", '","evil":"', "\u2028", "\ud800", "\udfff", "🦉", "é", ";q=9", ', "'),
)
words = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=4), max_size=6).map("".join)
anything = st.fixed_dictionaries(
    {"ip": words | st.none(), "rule": words, "limit": st.integers(), "retry_after": st.integers()}
)
messages = st.lists(st.sampled_from(["{ip}", "{rule}", "{limit}", " "]) | words, max_size=5).map("".join)


def said(given, message):
    filled_words = {
        **given,
        "message": filled(message, given),
        "status": 429,
        "title": "Too Many Requests",
        "reason": "limited",
    }
    return BodyContent(filled_words, "about:blank", "Too Many Requests", [given["rule"]], None)


class Markup(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.text = [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, sorted(name for name, _ in attrs)))

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")

    def handle_comment(self, data):
        self.tags.append("!--")

    def handle_data(self, data):
        self.text += data


def sent(text):
    return text.encode("utf-8", "replace").decode()


def of_json(text):
    """A text as JSON reads it: two halves of a character side by side are that character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@given(given=anything, message=messages)
@example(given={"ip": "{message}", "rule": "{ip}", "limit": 1, "retry_after": 1}, message="{ip}{rule}")
@example(given={"ip": None, "rule": "\ud800\udfff", "limit": 0, "retry_after": 0}, message="")
def test_each_format_takes_words_as_words(given, message):
    meant, rule = filled(message, given), of_json(given["rule"])
    read, client = of_json(meant), of_json("unknown" if given["ip"] is None else given["ip"])
    telling = said(given, message)
    assert json.loads(format_of("json").render(telling)) == {"message": read}
    problem = json.loads(format_of("problem").render(telling))
    assert (problem["detail"], problem["violated-policies"]) == (read, [rule])
    assert format_of("text").render(telling).decode() == sent(meant)
    template = {"a": ["{message}", "<{ip}>"], "{rule}": "{rule}"}
    assert json.loads(format_of(template).render(telling)) == {
        "a": [read, f"<{client}>"],
        "{rule}": rule,
    }


@given(given=anything, message=messages)
def test_no_word_is_markup(given, message):
    made = format_of("html")
    benign = Markup(made.render(said({"ip": "a", "rule": "b", "limit": 1, "retry_after": 1}, "c")).decode())
    body = made.render(said(given, message)).decode()
    assert Markup(body).tags == benign.tags
    text = sent(filled(message, given))
    if not re.search(r"[\0\r\x80-\x9f]|[\ufdd0-\ufdef]|[\ufffe\uffff]", text):  # which HTML reads as something else
        assert text in Markup(body).text


def test_what_is_kept_is_what_is_the_same_for_everybody():
    assert is_constant({"a": ["{message}", 1, {"b": "{status} {title} {reason}"}], "c": None})
    assert not is_constant({"a": [{"b": "{ip}"}]})


NAMES = ['a"b', "back\\slash", "<b>", "größer 🦉", "{ip}", "a, b;q=1", "%0D%0AX-Evil: 1", "'"]
SAFE = re.compile(r"[ -~]*")


def engine(*body):
    headers = ["x-ratelimit", "ratelimit", "retry-after"]
    return limiter(
        response={"body": list(body), "message": "{ip} {rule} {limit}", "headers": headers},
        rules=[{"name": name, "by": "ip", "limit": ["0 per minute", "5/s"]} for name in NAMES],
        client={"trusted_hops": 2},
    )


ENGINES = [engine("problem", "html", "text"), engine("html", {"error": "{message} {rule} {ip}"})]


@pytest.mark.parametrize("ask", [ask_asgi, ask_wsgi])
@given(
    accept=st.text(st.characters(max_codepoint=255), max_size=40)
    | st.sampled_from(["text/html", "text/plain", "text/html\r\nX-Evil: 1", "*/*;q=\0"]),
    ip=words,
    method=st.sampled_from(["GET", "HEAD", "P\r\nOST"]),
)
def test_no_request_makes_a_header_of_its_own(ask, accept, ip, method):
    for engine in ENGINES:
        answer = ask(engine, accept=accept, ip=ip, method=method)
        assert answer.status == 429
        for name, value in answer.fields:
            assert SAFE.fullmatch(name)
            assert SAFE.fullmatch(value)
        assert len(read(answer.headers["ratelimit-policy"])) == 2 * len(NAMES)
        assert b"alert" not in answer.body
