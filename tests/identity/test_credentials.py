"""Whose credential a header has, and the one spelling of a signed value."""

import base64
import logging
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.identity.credentials import SHORTEST, credential, reduced
from tests.identity.requests import asgi, attributes, identity, wsgi
from tests.support.steps import steps

SIGNATURE = "AbC-_" * 5 + "XY"  # 27 characters; the last one has two unused bits
TOKEN = f"payload.{SIGNATURE}"


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


SIGV4 = "AWS4-HMAC-SHA256 Credential={}/20260101/eu-1/s3/aws4_request, SignedHeaders=host, Signature={}"
OAUTH = 'OAuth realm="x", oauth_consumer_key="{}", oauth_nonce="{}", oauth_signature="{}"'


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param("Bearer abc", "abc", id="bearer"),
        pytest.param("bEARER  abc ", "abc", id="any case, any space"),
        pytest.param("Token abc", "token abc", id="token"),
        pytest.param("abc", "abc", id="no scheme"),
        pytest.param("Bearer token abc", "bearer token abc", id="a bearer's token that looks like a scheme"),
        pytest.param(f"Bearer {TOKEN[:-3]} {TOKEN[-3:]}", f"{TOKEN[:-3]} {TOKEN[-3:]}", id="a blank in a signature"),
        pytest.param(f"{TOKEN[:-3]} {TOKEN[-3:]}", f"{TOKEN[:-3]} {TOKEN[-3:]}", id="the same without a scheme"),
        pytest.param(basic("ann:secret"), "basic ann", id="basic by the user name"),
        pytest.param(basic("ann:other:x"), "basic ann", id="basic with another password"),
        pytest.param(basic("ann"), "basic ann", id="basic without a password"),
        pytest.param("Basic a", "basic?", id="basic that can't be decoded"),
        pytest.param(basic("a:b")[:-1], "basic a", id="basic without its padding"),
        pytest.param(basic("a:b")[:8] + "!" + basic("a:b")[8:], "basic a", id="basic with a stray character"),
        pytest.param(basic(":key"), None, id="basic with an empty name, whose password is the key"),
        pytest.param('Digest username="ann", realm="r", nonce="1"', "digest ann", id="digest by the user name"),
        pytest.param('Digest nonce="2",USERNAME=ann', "digest ann", id="digest in another order and case"),
        pytest.param('Digest realm="username=eve", username="a\\"n"', 'digest a"n', id="digest with quotes"),
        pytest.param("Digest username*=UTF-8''a%6En, nonce=1", "digest ann", id="digest, extended"),
        pytest.param('Digest username="a", username="b"', "digest?", id="digest of two users"),
        pytest.param('Digest username="ann', "digest ann", id="digest that is not closed"),
        pytest.param(SIGV4.format("KEY", "1"), "aws4-hmac-sha256 KEY", id="SigV4 by the access key"),
        pytest.param(OAUTH.format("k%65y", "1", "s"), "oauth key", id="OAuth 1 by the consumer key"),
        pytest.param("OAuth abc", "oauth abc", id="OAuth with an opaque token"),
        pytest.param("Bearer", None, id="a scheme without a credential"),
        pytest.param("Bearer   ", None, id="a scheme and spaces"),
        pytest.param("", None, id="empty"),
        pytest.param("  ", None, id="spaces"),
        pytest.param(None, None, id="absent"),
    ],
)
@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_an_authorization_header_counts_by_its_client(interface, header, expected):
    request = interface([] if header is None else [("Authorization", header)])
    assert attributes(user="header:Authorization").reader("user")(request) == expected


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(f"payload.{SIGNATURE}=", id="padding"),
        pytest.param(f"payload.{SIGNATURE}===A!", id="what follows the padding"),
        pytest.param(f"payload.{SIGNATURE[:-1]}Z", id="unused bits"),
        pytest.param(f"payload.{SIGNATURE.replace('-', '+').replace('_', '/')}", id="the standard alphabet"),
        pytest.param(f"payload. {SIGNATURE[:9]}!é\n{SIGNATURE[9:]} ", id="stray characters"),
        pytest.param(f"payload.{SIGNATURE[:9]}:{SIGNATURE[9:]}", id="the other separator"),
        pytest.param(f"payload.{SIGNATURE[:8]}=={SIGNATURE[8:]}", id="padding where none can be"),
    ],
)
@pytest.mark.parametrize("separator", [".", ":"])
def test_a_signature_has_one_spelling(value, separator):
    if separator == ":":
        value = value.translate({ord("."): ":", ord(":"): "~"})
    assert reduced(value) == f"payload{separator}{SIGNATURE[:-1]}Y"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="empty"),
        pytest.param("tok=en+with/base64==", id="no segments"),
        pytest.param(SIGNATURE + "=", id="a signature alone"),
        pytest.param(f"a.{SIGNATURE[:-1]}!!", id="a last segment with too few characters"),
        pytest.param(f"a.{SIGNATURE}!{SIGNATURE[:2]}", id="a length that no base64 has"),
        pytest.param(f"{SIGNATURE}!.{SIGNATURE[:5]}!", id="a long segment that is not the last"),
        pytest.param("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", id="a user agent"),
    ],
)
def test_an_opaque_value_stays_as_it_is(value):
    assert reduced(value) == value


@pytest.mark.parametrize(
    ("length", "known"),
    [
        pytest.param(27, 16, id="two unused bits"),
        pytest.param(28, 64, id="no unused bits"),
        pytest.param(30, 4, id="four unused bits"),
    ],
)
def test_the_last_character_counts_by_the_bits_that_a_decoder_uses(length, known):
    last = string.ascii_letters + string.digits + "-_"
    assert len({reduced("a." + "A" * (length - 1) + character) for character in last}) == known


def test_segments_before_the_signature_stay_as_they_are():
    assert reduced(f"p!=.q =.{SIGNATURE}=") == f"p!=.q =.{SIGNATURE[:-1]}Y"


TEXTS = st.text(st.sampled_from("aZ9-_+/=.:! é"), max_size=80)


@given(TEXTS)
def test_reducing_twice_is_reducing_once(value):
    assert reduced(reduced(value)) == reduced(value)


def is_signed(value: str) -> bool:
    """By the definition in the documentation, written in another way than the code under test."""
    characters = [c for c in value if c.isascii() and (c.isalnum() or c in "-_+/")]
    return ("." in value or ":" in value) and len(characters) >= SHORTEST


@given(st.lists(TEXTS.filter(lambda value: not is_signed(value)), min_size=2, max_size=5, unique=True))
def test_no_two_opaque_values_become_one(values):
    assert [reduced(value) for value in values] == values


SIGNATURES = st.binary(min_size=20, max_size=70)


@given(
    head=st.text(st.sampled_from("aZ9-_=! "), max_size=9),
    signatures=st.lists(SIGNATURES, min_size=2, max_size=4, unique=True),
    separator=st.sampled_from(".:"),
)
def test_values_with_different_signatures_never_become_one(head, signatures, separator):
    values = [f"{head}{separator}{base64.urlsafe_b64encode(each).decode()}" for each in signatures]
    assert len({reduced(value) for value in values}) == len(values)


@given(heads=st.lists(st.text(max_size=20), min_size=2, max_size=4, unique=True), signature=SIGNATURES)
def test_values_with_different_payloads_never_become_one(heads, signature):
    values = [f"{head}.{base64.urlsafe_b64encode(signature).decode()}" for head in heads]
    assert len({reduced(value) for value in values}) == len(values)


@pytest.mark.parametrize(
    ("by", "client", "header", "one"),
    [
        pytest.param("user", {"user": "header:Authorization"}, "Authorization", True, id="the user"),
        pytest.param("header:X-Token", {}, "X-Token", True, id="a header"),
        pytest.param("token", {"attributes": {"token": "header:X-Token"}}, "X-Token", True, id="an attribute"),
        pytest.param("path", {}, "X-Token", True, id="nothing that a client wrote"),
    ],
)
def test_every_value_of_a_header_is_counted_in_one_spelling(by, client, header, one):
    known = attributes(**client)
    found = {identity(by, asgi([(header, value)]), known) for value in (TOKEN, TOKEN + "=", TOKEN[:-1] + "Z")}
    assert len(found) == 1


def test_a_user_that_the_app_has_verified_is_never_changed():
    known = attributes(user="scope:user")
    assert identity("user", asgi(user=TOKEN), known) != identity("user", asgi(user=TOKEN + "="), known)


def test_a_condition_compares_the_value_as_it_was_sent():
    assert attributes().reader("header:x-token")(asgi([("X-Token", TOKEN + "=")])) == TOKEN + "="


def test_a_long_value_takes_few_steps():
    hostile = [steps(lambda text=text: reduced("a." + text * 32_000)) for text in ("=", "A=", "!", "A", ".", ":A")]
    hostile.append(steps(lambda: credential("Digest " + "a=1," * 16_000)))
    assert max(hostile) < 3_000, hostile


def as_pythons_decoder_reads(text):
    """The data characters that `binascii.a2b_base64` reads, by its rule, one character at a time."""
    found, pads = "", 0
    for character in text:
        if character != "=":
            found, pads = found + character, 0
        elif len(found) % 4 >= 2:
            pads += 1
            if len(found) % 4 + pads >= 4:
                break
    return found


@given(st.text("AB=", max_size=40))
def test_a_signature_ends_where_pythons_decoder_ends(text):
    head = "S" * 28
    whole = as_pythons_decoder_reads(head + text)
    assert len(whole) % 4 == 1 or reduced(f"a.{head}{text}") == reduced(f"a.{whole}")


SESSION = f"eyJ1IjoxfQ.aBcDeF.{SIGNATURE}"


@pytest.mark.parametrize(
    ("value", "warned"),
    [
        pytest.param(SESSION, True, id="a session of itsdangerous"),
        pytest.param(SESSION.replace(".", ":"), True, id="a session of Django"),
        pytest.param(f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.{SIGNATURE}", False, id="a JWT"),
        pytest.param("opaque", False, id="an opaque token"),
    ],
)
def test_a_session_cookie_is_logged_once_with_the_remedy(value, warned, caplog):
    caplog.set_level(logging.WARNING)
    known = attributes(user="cookie:session")
    for sent in (value, value + "=", value):
        assert identity("user", asgi([("Cookie", f"session={sent}")]), known)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == warned
    assert all("scope:session.user" in message and value not in message for message in messages)
