"""The forms of a path: with and without prefixes, with bytes that are not UTF-8, and the spellings of each."""

from itertools import islice

import pytest

from ratelimit_mw.identity.path_forms import (
    PLAIN,
    Forms,
    Routing,
    apps_inside,
    cleaned,
    forms_of,
    routing_of,
    spellings,
)
from tests.identity.requests import asgi, wsgi
from tests.support.routers import ASGI


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("/a/b", "/a/b", id="clean already"),
        pytest.param("/", "/", id="root"),
        pytest.param("", "/", id="empty"),
        pytest.param("//a///b", "/a/b", id="double slashes"),
        pytest.param("/a/b/", "/a/b", id="a slash at the end"),
        pytest.param("/a/./b/../c", "/a/c", id="dot segments"),
        pytest.param("/../../a", "/a", id="above the root"),
        pytest.param("/a/..", "/", id="back to the root"),
        pytest.param("/a/.b/c..", "/a/.b/c..", id="names with dots"),
        pytest.param("a", "/a", id="relative"),
        pytest.param("/a\n", "/a", id="a line feed at the end"),
        pytest.param("/a\0//b", "/a\0/b", id="a NUL cuts nothing"),
        pytest.param("/A/%2e%2e", "/A/%2e%2e", id="case and percent signs are the router's"),
    ],
)
def test_cleaned(path, expected):
    assert cleaned(path) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("/a", ("/a",), id="clean already"),
        pytest.param("/a/", ("/a", "/a/"), id="a slash at the end"),
        pytest.param("//a", ("/a", "//a"), id="double slashes"),
        pytest.param("/.well-known/a", ("/.well-known/a",), id="a name with a dot"),
        pytest.param("//a/../b", ("/b", "//a/../b", "/a/../b"), id="dot segments that some routers keep"),
        pytest.param("a/b", ("/a/b", "a/b"), id="no slash at the start"),
        pytest.param("/../a\n", ("/a", "/../a\n", "/../a"), id="a line feed that some routers ignore"),
    ],
)
def test_spellings(path, expected):
    assert spellings(path) == expected


@pytest.mark.parametrize(
    ("path", "prefixes", "expected"),
    [
        pytest.param("/a", [], None, id="one form"),
        pytest.param("/a", ["/api"], None, id="another prefix"),
        pytest.param("/api/a", ["/api"], (("/a", "/api/a"), ("/a",)), id="a prefix"),
        pytest.param("/api", ["/api"], (("/", "/api"), ("/",)), id="the prefix alone"),
        pytest.param("/apia", ["/api"], (("a", "/apia"), ("/apia",)), id="within a segment"),
        pytest.param("/x/api/a", ["/api"], (("/a", "/x/api/a"), ("/x/api/a",)), id="not at the start"),
        pytest.param("/v1/api/a", ["/v1", "/v1/api"], (("/api/a", "/a", "/v1/api/a"), ("/a",)), id="the last prefix"),
        pytest.param("/v1/a", ["/v1", "/api"], (("/a", "/v1/a"), ("/v1/a",)), id="a prefix that the app ignores"),
        pytest.param("http://h/a?b", [], (("/a", "http://h/a?b"), ("http://h/a?b", "/a")), id="an absolute target"),
        pytest.param("http://[/a", [], None, id="a target whose host is broken"),
    ],
)
def test_forms(path, prefixes, expected):
    assert forms_of([path], prefixes) == (expected and Forms(*expected))


def test_an_app_that_does_not_cut_routes_by_the_whole_path():
    assert forms_of(["/api/a"], ["/api"], cuts=False) == Forms(("/a", "/api/a"), ("/api/a",))


@pytest.mark.parametrize("request_", [asgi(path="/a\ufffd"), wsgi(path="/a\xff")], ids=["asgi", "wsgi"])
def test_bytes_that_are_not_utf_8_are_replaced_and_dropped(request_):
    assert (request_.path, request_.forms) == ("/a\ufffd", Forms(("/a", "/a\ufffd"), ("/a", "/a\ufffd")))


def test_text_that_is_utf_8_has_one_form_under_wsgi():
    own = wsgi(path="/a\xef\xbf\xbd\xc3\xa9")
    assert (own.path, own.forms) == ("/a\ufffd\xe9", None)


class Wrapper:
    def __init__(self, app):
        self.app = app

    def __call__(self):
        raise NotImplementedError


def test_the_prefix_of_an_app_is_found_inside_other_middlewares():
    made = {name: make() for name, make in ASGI.items() if name != "django"}
    assert {name: routing_of(app) for name, app in made.items()} == {
        **dict.fromkeys(made, PLAIN),  # `root_path` of Quart is a folder
        "falcon": Routing(cuts=False),
    }
    made["fastapi"].root_path = "/api"
    assert routing_of(Wrapper(Wrapper(made["fastapi"]))) == Routing("/api")


def test_each_app_inside_is_found_once_even_if_they_hold_each_other_and_a_class_is_none():
    inner = Wrapper(Wrapper)
    outer = Wrapper(inner)
    inner.wsgi_app = outer
    assert list(islice(apps_inside(outer), 9)) == [outer, inner]
