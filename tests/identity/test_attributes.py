"""The names that rules speak of, and the same values whichever way a request comes in."""

import re

import pytest

from ratelimit_mw.identity.attributes import Attributes
from tests.identity.requests import asgi, attributes, identity, settings, wsgi


@pytest.mark.parametrize(
    "name", ["remote_address", "ip", " ip ", "user", "tier", "header:X", "cookie:a", "query:a", "path:id", "plan"]
)
def test_known_names(name):
    known = attributes(attributes={"plan": "header:X-Plan"})
    assert known.known(name)
    assert callable(known.reader(name))


@pytest.mark.parametrize(
    "name", ["", "IP", "address", "header:", "header", "headers:X", "scope:user", "plan", " address"]
)
def test_unknown_names(name):
    known = attributes()
    assert not known.known(name)
    with pytest.raises(ValueError, match="is not an attribute; known attributes: remote_address, ip, user"):
        known.reader(name)


def test_spellings_of_a_name_share_a_reader():
    known = attributes()
    assert known.reader("remote_address") is known.reader("ip")
    assert known.reader("header:X-Plan") is known.reader("header: x-plan")
    assert known.reader("cookie:A") is not known.reader("cookie:a")


def test_a_custom_attribute_may_be_named_like_a_prefix():
    known = attributes(attributes={"query": "header:X-Query"})
    assert known.reader("query")(asgi([("X-Query", "all")])) == "all"


def test_a_bad_source_is_refused_at_start():
    with pytest.raises(ValueError, match="is not a source"):
        attributes(attributes={"plan": "X-Plan"})


@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_each_attribute_is_read_once(interface):
    known = attributes(user="header:Authorization", attributes={"plan": "cookie:plan"})
    request = interface([("Authorization", "Bearer t"), ("Cookie", "plan=gold"), ("X-A", "1")], path="/a/", query="q=2")
    names = ("ip", "user", "tier", "method", "path", "plan", "header:X-A", "query:q")
    expected = ["192.0.2.9", "t", None, "GET", "/a", "gold", "1", "2"]
    assert [known.reader(name)(request) for name in names] == expected
    request.context.clear()
    assert [known.reader(name)(request) for name in names] == expected


def test_the_whole_address_is_there_for_messages_and_networks():
    known, request = attributes(), asgi(peer="2001:db8::7")
    assert known.address(request) == "2001:db8::7"
    assert known.reader("ip")(request) == "2001:db8::/64"


GIVEN = [
    pytest.param({"remote_address": "203.0.113.7"}, "ip", "203.0.113.7", id="the long name"),
    pytest.param({"ip": "203.0.113.7"}, "ip", "203.0.113.7", id="the short name"),
    pytest.param({"ip": "::ffff:203.0.113.7"}, "ip", "203.0.113.7", id="mapped"),
    pytest.param({"ip": "2001:db8::7"}, "ip", "2001:db8::/64", id="ipv6"),
    pytest.param({"ip": "2001:db8::/64"}, "ip", "2001:db8::/64", id="an identity's own text"),
    pytest.param({"ip": "nonsense"}, "ip", None, id="no address"),
    pytest.param({}, "ip", None, id="no address given"),
    pytest.param({"user": "ann"}, "user", "ann", id="user"),
    pytest.param({"user": 7}, "user", "7", id="a number"),
    pytest.param({"user": None}, "user", None, id="None"),
    pytest.param({"user": ""}, "user", None, id="empty"),
    pytest.param({"tier": "gold"}, "tier", "gold", id="tier"),
    pytest.param({"header:X-Tier": "gold"}, "tier", "gold", id="the header that the tier comes from"),
    pytest.param({"header:X-Plan": "gold"}, "header:x-plan", "gold", id="header"),
    pytest.param({"header:authorization": "Bearer t"}, "user", "t", id="the header that the user comes from"),
    pytest.param({"cookie:s": "1"}, "cookie:s", "1", id="cookie"),
    pytest.param({"query:q": "1"}, "query:q", "1", id="query"),
    pytest.param({"path:id": "1"}, "path:id", "1", id="path parameter"),
    pytest.param({"path": "/a//b/"}, "path", "/a/b", id="path"),
    pytest.param({"method": "post"}, "method", "POST", id="method"),
    pytest.param({"host": "Shop.example:80"}, "host", "shop.example", id="host"),
    pytest.param({"plan": "gold"}, "plan", "gold", id="custom"),
    *(
        pytest.param({}, name, None, id=f"{name} not given")
        for name in ("user", "tier", "path", "method", "host", "plan")
    ),
]


@pytest.mark.parametrize(("mapping", "name", "expected"), GIVEN)
def test_attributes_given_by_hand(mapping, name, expected):
    known = attributes(user="header:Authorization", tier="header:X-Tier", attributes={"plan": "scope:plan"})
    assert known.reader(name)(known.request_from(mapping)) == expected


def test_an_unknown_attribute_is_a_value_error_with_the_nearest_name():
    known = attributes(attributes={"plan": "scope:plan"})
    for name, hint in (("ipp", "ip"), ("headr:X-Plan", "header:N"), ("paln", "plan")):
        with pytest.raises(ValueError, match=rf"'{name}' is not an attribute \(did you mean '{hint}'\?\)"):
            known.request_from({name: "x"})
    with pytest.raises(ValueError, match=r"'banana' is not an attribute \(known: remote_address, ip, .*, plan\)"):
        known.request_from({"banana": "x"})


def test_given_path_and_method_are_there_for_the_matcher():
    request = attributes().request_from({"path": "/a//b", "method": "head"})
    assert (request.path, request.method) == ("/a//b", "HEAD")
    nothing = attributes().request_from({})
    assert (nothing.path, nothing.method) == ("", "")


def test_by_hand_and_over_http_one_identity():
    known = attributes(user="header:Authorization")
    by_hand = known.request_from({"remote_address": "2001:db8::1", "user": "t", "path": "/a"})
    for request in (
        asgi([("Authorization", "Bearer t")], peer="2001:db8::2", path="/a/"),
        wsgi([("Authorization", "bearer t")], peer="2001:db8::3", path="//a"),
    ):
        assert identity("ip+user+path", request, known) == identity("ip+user+path", by_hand, known)


def test_python_sources_see_nothing_of_what_is_given_by_hand():
    known = attributes(user="python:tests.identity.functions:raises", tier="python:tests.identity.functions:later")
    assert known.reader("user")(known.request_from({})) is None
    assert known.reader("tier")(known.request_from({})) is None


def test_settings_without_a_secret_still_make_attributes():
    assert Attributes(settings(secret="")).digest("a") != attributes().digest("a")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (None, TypeError, "attributes must be a mapping or a list of (key, value) pairs, not None"),
        ({"ip"}, TypeError, "attributes must be a mapping or a list of (key, value) pairs, not {'ip'}"),
        ({5: "x"}, TypeError, "the name of an attribute must be a string, not 5"),
        ([5], ValueError, "entries must be (key, value) pairs, but one is 5"),
        (b"ip", ValueError, "entries must be (key, value) pairs, but one is 105"),
    ],
)
def test_what_is_no_attributes_is_an_error_that_says_what_is_right(given, error, message):
    known = attributes()
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        known.request_of(given)
