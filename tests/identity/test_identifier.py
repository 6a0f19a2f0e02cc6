"""Who a counter belongs to: distinct identities never meet, and no secret can be read."""

import logging
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.identifier import NO_PARAMETERS, identifier
from tests.identity.requests import asgi, attributes, identity, settings, wsgi

TOKEN = "tok-4f9d1c-secret"
KNOWN = attributes(
    user="header:Authorization", tier="header:X-Plan", attributes={"shop": "header:X-Shop", "tag {x}": "query:q"}
)
SIGNED = asgi(
    [("Authorization", f"Bearer {TOKEN}"), ("X-Plan", "gold"), ("Host", "Shop.example")], path="/a/", query="q=1"
)
HASH = "[A-Za-z0-9_-]{20}"

TEXTS = [
    pytest.param("ip", r"ip=192\.0\.2\.9", id="ip"),
    pytest.param("remote_address", r"ip=192\.0\.2\.9", id="the long name"),
    pytest.param("user", f"user={HASH}", id="user"),
    pytest.param("tier", f"tier={HASH}", id="tier"),
    pytest.param("method", "method=GET", id="method"),
    pytest.param("host", f"host={HASH}", id="host"),
    pytest.param("path", f"path={HASH}", id="path"),
    pytest.param("path:id", f"path:id={HASH}", id="path parameter"),
    pytest.param("route", "route=/items/%7Bid%7D", id="route"),
    pytest.param("header:Authorization", f"header:authorization={HASH}", id="header"),
    pytest.param("query:q", f"query:q={HASH}", id="query"),
    pytest.param("cookie:s", None, id="an absent cookie"),
    pytest.param("shop", None, id="an absent attribute"),
    pytest.param("path:other", None, id="an absent parameter"),
    pytest.param("global", r"\*", id="global"),
    pytest.param("tag {x}", f"tag%20%7Bx%7D={HASH}", id="a custom name that has to be escaped"),
    pytest.param("ip+user", rf"ip=192\.0\.2\.9\+user={HASH}", id="a pair"),
    pytest.param(" ip + user ", rf"ip=192\.0\.2\.9\+user={HASH}", id="spaces"),
    pytest.param("ip+shop", None, id="a pair with an absent half"),
    pytest.param("user|ip", f"user={HASH}", id="the first"),
    pytest.param("shop|ip", r"ip=192\.0\.2\.9", id="the second, where the first is absent"),
    pytest.param("shop|cookie:s", None, id="neither"),
    pytest.param("(shop+ip)|tier", f"tier={HASH}", id="the second, where the first lacks a part"),
    pytest.param("(user|ip)+method", rf"user={HASH}\+method=GET", id="a group, and another attribute"),
    pytest.param("(shop|ip)+(cookie:s|tier)", rf"ip=192\.0\.2\.9\+tier={HASH}", id="two groups"),
    pytest.param("((shop)|(ip))", r"ip=192\.0\.2\.9", id="parentheses that change nothing"),
]


@pytest.mark.parametrize(("by", "pattern"), TEXTS)
def test_texts(by, pattern):
    text = identity(by, SIGNED, KNOWN, params={"id": "7"}, route="/items/{id}")
    assert text is None if pattern is None else re.fullmatch(pattern, text)


def test_a_method_that_only_a_client_knows_is_hashed():
    assert re.fullmatch(f"method=~{HASH}", identity("method", asgi(method="X-5F8A"), KNOWN))


def test_no_template_no_route():
    assert identity("route", SIGNED, KNOWN) is None


def test_a_parameter_given_by_hand():
    known = attributes()
    assert identity("path:id", known.request_from({"path:id": "7"}), known) == identity(
        "path:id", asgi(), known, {"id": "7"}
    )


@pytest.mark.parametrize(
    ("by", "message"),
    [
        pytest.param("", "an attribute is missing in", id="empty"),
        pytest.param("ip+", "an attribute is missing in", id="nothing after a plus"),
        pytest.param("|ip", "an attribute is missing in", id="nothing before a bar"),
        pytest.param("ip||user", "an attribute is missing in", id="nothing between"),
        pytest.param("ip+usr", "'usr' is not an attribute; known attributes: remote_address", id="a typo"),
        pytest.param(
            "user|ip+path",
            r"'user|ip\+path' can be read in two ways \(write \(user\|ip\)\+path or user\|\(ip\+path\)",
            id="two readings",
        ),
        pytest.param(
            "host + (ip|user+path) | tier",
            r"write \(ip\|user\)\+path or ip\|\(user\+path\)",
            id="two readings in a group",
        ),
        pytest.param(
            "(a|b)+c|d+e", r"write \(a\|b\)\+\(c\|d\)\+e or \(\(a\|b\)\+c\)\|\(d\+e\)", id="two readings of groups"
        ),
        pytest.param("(ip", "an unmatched parenthesis", id="a group that is not closed"),
        pytest.param("ip)", "an unmatched parenthesis", id="a group that is not opened"),
        pytest.param("(" * 5000 + "ip" + ")" * 5000, "more than 64 parentheses", id="groups within groups"),
        pytest.param("()", "an attribute is missing in", id="an empty group"),
        pytest.param("ip(user)", "an unmatched parenthesis", id="no operator before a group"),
        pytest.param("+".join(["(ip|user)"] * 9), "more than 64 choices", id="too many choices"),
        pytest.param("header:", "is not an attribute", id="a header without a name"),
        pytest.param("scope:user", "is not an attribute", id="a source is no attribute"),
    ],
)
def test_a_by_that_cannot_be_is_refused(by, message):
    with pytest.raises(ValueError, match=message):
        identifier(by, attributes())


@pytest.mark.parametrize("interface", [asgi, wsgi])
@pytest.mark.parametrize("peer", [None, "", "testclient", "x" * 8000, "1.2.3.4.5"])
def test_unknown_addresses_share_one_identity_and_say_so_once(interface, peer, caplog):
    known = attributes()
    count_by = identifier("ip", known)
    assert {count_by(interface(peer=peer), NO_PARAMETERS, "") for _ in range(2)} == {"ip=?"}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert ("TestClient" if peer else "client.trusted_hops") in caplog.text


def test_an_unknown_address_is_a_last_resort():
    request = asgi([("Authorization", "Bearer t")], peer=None)
    known = attributes(user="header:Authorization")
    assert identity("ip|user", request, known) == identity("user", request, known)
    assert identity("ip|user", asgi(peer=None), known) == "ip=?"
    assert identity("(ip+method)|ip", asgi(peer=None), known) == "ip=?+method=GET"


def test_a_user_named_like_an_address_is_another():
    known = attributes(user="header:X-User")
    user = asgi([("X-User", "192.0.2.9")])
    assert identity("user|ip", user, known) != identity("user|ip", asgi(peer="192.0.2.9"), known)


def test_case_matters_in_users():
    known = attributes(user="header:X-User")
    assert identity("user", asgi([("X-User", "Ann")]), known) != identity("user", asgi([("X-User", "ann")]), known)


def test_path_disguises_share_an_identity():
    spellings = ["/a/b", "//a/b", "/a//b", "/a/b/", "/a/./b", "/x/../a/b", "/a/b\n"]
    assert len({identity("path", asgi(path=path)) for path in spellings}) == 1
    assert identity("path", asgi(path="/A/b")) != identity("path", asgi(path="/a/b"))


def test_bogus_tokens_do_not_touch_the_ip_counter_nor_the_victims():
    known = attributes(user="header:Authorization")
    bogus = [asgi([("Authorization", f"Bearer bogus-{n}")], peer="203.0.113.66") for n in range(50)]
    victim = asgi([("Authorization", "Bearer real")], peer="192.0.2.1")
    assert {identity("ip", request, known) for request in bogus} == {"ip=203.0.113.66"}
    assert identity("user", victim, known) not in {identity("user", request, known) for request in bogus}
    guesses = [asgi([("Authorization", "Bearer real")], peer=f"203.0.113.{n}") for n in range(50)]
    assert identity("ip+user", victim, known) not in {identity("ip+user", request, known) for request in guesses}


EVERY = ("user", "tier", "header:Authorization", "header:X-Key", "cookie:s", "query:q", "shop", "path", "path:id")


@pytest.mark.parametrize("interface", [asgi, wsgi])
@pytest.mark.parametrize("by", [*EVERY, "+".join(EVERY[:-1]), "|".join(EVERY)])
def test_the_token_appears_nowhere(interface, by, caplog):
    caplog.set_level(logging.DEBUG)
    headers = [(name, f"{TOKEN}!") for name in ("X-Key", "X-Plan", "X-Shop", "X-Forwarded-For")]
    headers += [("Authorization", f"Bearer {TOKEN}"), ("Cookie", f"s={TOKEN}")]
    known = Attributes(
        settings(secret="", user="header:Authorization", tier="header:X-Plan", attributes={"shop": "header:X-Shop"})
    )
    request = interface(headers, path=f"/reset/{TOKEN}", query=f"q={TOKEN}", peer=None)
    text = identity(f"{by}+ip" if "|" not in by else by, request, known, params={"id": TOKEN})
    assert text
    for piece in (TOKEN, TOKEN[:10], TOKEN[-10:]):
        assert piece not in text
        assert piece not in caplog.text


def test_the_secret_keys_the_hashes():
    one, same, other = (Attributes(settings(secret=secret)).digest(TOKEN) for secret in ("a", "a", "b"))
    assert one == same != other
    assert Attributes(settings(secret="shop")).digest(TOKEN) != Attributes(settings(secret="")).digest(TOKEN)


def test_a_missing_secret_is_said_once_and_only_where_it_matters(caplog):
    known = Attributes(settings(secret="", user="header:Authorization"))
    for by in ("ip", "method", "path", "path:id", "tier", "host", "route", "global"):
        identifier(by, known)
    assert caplog.text == ""
    for by in ("user", "ip+user", "header:X", "cookie:s"):
        identifier(by, known)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "client.secret is empty" in caplog.text


def test_a_secret_is_not_missed(caplog):
    identifier("user", attributes(user="header:Authorization"))
    assert caplog.text == ""


def test_long_tokens_are_not_kept():
    digest = attributes().digest
    cache = next(cell.cell_contents for cell in digest.__closure__ if hasattr(cell.cell_contents, "cache_info"))
    digest("x" * 8000)
    assert cache.cache_info().currsize == 0
    digest("short")
    assert cache.cache_info().currsize == 1


value = st.sampled_from(["a", "A", "b", "a+b", "ip=a", "~a", "1.1.1.1"]) | st.text(min_size=1, max_size=30)
single = st.sampled_from(["user", "tier", "shop", "host", "method", "path:id", "ip"])
address = st.sampled_from(["1.1.1.1", "2.2.2.2", "2001:db8::1", "2001:db8::2"]) | st.ip_addresses().map(str)
everything = st.fixed_dictionaries(
    {**dict.fromkeys(["user", "tier", "shop", "host", "method", "path:id"], value), "ip": address}
)


@given(everything, everything, st.lists(single, min_size=1, max_size=2, unique=True))
def test_distinct_identities_have_distinct_texts(one, other, names):
    requests = [KNOWN.request_from(mapping) for mapping in (one, other)]
    values = [[KNOWN.reader(name)(request) for name in names] for request in requests]
    assume(all(None not in row for row in values))  # a host of dots alone is absent
    first, second = (identity("+".join(names), request, KNOWN) for request in requests)
    assert (first == second) == (values[0] == values[1])


@given(st.dictionaries(single, value), st.lists(single, min_size=1, max_size=4))
def test_a_text_never_breaks_out_of_its_braces(mapping, names):
    for sign in "+|":
        text = identity(sign.join(names), KNOWN.request_from(mapping), KNOWN)
        assert text is None or re.fullmatch(r"[A-Za-z0-9_.:/%=?~+*-]+", text)


@given(st.text(min_size=1), st.text(min_size=1))
def test_distinct_routes_have_distinct_texts(one, other):
    texts = [identity("route", SIGNED, KNOWN, route=route) for route in (one, other)]
    assert (texts[0] == texts[1]) == (one == other)
    assert not set("{}+|") & set(texts[0])
