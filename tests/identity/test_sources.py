"""Where attributes come from, and that no source raises or tells a secret."""

import asyncio
import logging
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.authentication import BaseUser, SimpleUser, UnauthenticatedUser

from ratelimit_mw.identity.sources import compiled
from tests.identity.functions import TOKEN
from tests.identity.requests import asgi, attributes, wsgi

FUNCTIONS = "python:tests.identity.functions"


@pytest.mark.parametrize("interface", [asgi, wsgi])
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("header:X-API-Key", "k1", id="header"),
        pytest.param("header:x-api-key", "k1", id="header, any case"),
        pytest.param("header: X-API-Key ", "k1", id="spaces in the source"),
        pytest.param("header:X-Empty", None, id="empty header"),
        pytest.param("header:X-Absent", None, id="absent header"),
        pytest.param("cookie:session", "c1", id="cookie"),
        pytest.param("cookie:Session", None, id="cookies have a case"),
        pytest.param("query:key", "q1", id="query"),
        pytest.param("query:empty", None, id="empty parameter"),
    ],
)
def test_sources_that_both_interfaces_have(interface, source, expected):
    request = interface([("X-Api-Key", " k1 "), ("X-Empty", " "), ("Cookie", "session=c1")], query="key=q1&empty=")
    assert attributes(user=source).reader("user")(request) == expected


class Unfinished(BaseUser):
    """As a user of AuthenticationMiddleware may write it: display_name alone."""

    is_authenticated = True
    display_name = "ann"


class Raising:
    is_authenticated = True

    @property
    def identity(self):
        raise LookupError(TOKEN)


class Old:
    """A user of the time when is_authenticated was a method."""

    def __init__(self, known):
        self.known = known
        self.id = 3

    def is_authenticated(self):
        return self.known


DJANGO = SimpleNamespace(is_authenticated=True, pk=42, username="ann")
ANONYMOUS = SimpleNamespace(is_authenticated=False, pk=None, id=None, username="")

WALKS = [
    pytest.param("user", SimpleUser("ann"), "ann", id="Starlette's user"),
    pytest.param("user.username", SimpleUser("ann"), "ann", id="its attribute"),
    pytest.param("user", UnauthenticatedUser(), None, id="Starlette's nobody"),
    pytest.param("user.identity", UnauthenticatedUser(), None, id="nobody's identity"),
    pytest.param("user.display_name", UnauthenticatedUser(), None, id="nobody's name"),
    pytest.param("user", Unfinished(), "ann", id="a user without an identity"),
    pytest.param("user", DJANGO, "42", id="Django's user by primary key"),
    pytest.param("user.pk", DJANGO, "42", id="its key"),
    pytest.param("user.username", ANONYMOUS, None, id="Django's nobody"),
    pytest.param("user", ANONYMOUS, None, id="Django's nobody, whole"),
    pytest.param("user", Old(True), "3", id="is_authenticated as a method"),
    pytest.param("user", Old(False), None, id="is_authenticated as a method, false"),
    pytest.param("user.id", {"id": 7}, "7", id="a key"),
    pytest.param("user.id.x", {"id": {"x": "deep"}}, "deep", id="keys in keys"),
    pytest.param("user.inner.id", {"inner": SimpleNamespace(id=UUID(int=5))}, str(UUID(int=5)), id="a UUID"),
    pytest.param("user.id", {"id": None}, None, id="None"),
    pytest.param("user.id", {"id": ""}, None, id="empty"),
    pytest.param("user.id.x", {"id": None}, None, id="beyond None"),
    pytest.param("user.absent", {"id": 1}, None, id="an absent key"),
    pytest.param("user.x", "text", None, id="a step into text"),
    pytest.param("user", "ann", "ann", id="text"),
    pytest.param("other", "ann", None, id="an absent start"),
    pytest.param("a.user.id", None, None, id="an absent start of several"),
]


@pytest.mark.parametrize(("path", "value", "expected"), WALKS)
@pytest.mark.parametrize("kind", ["scope", "environ"])
def test_a_path_into_scope_and_environ(kind, path, value, expected, caplog):
    request = asgi(user=value) if kind == "scope" else wsgi(user=value)
    assert attributes(user=f"{kind}:{path}").reader("user")(request) == expected
    assert caplog.text == ""


def test_a_key_may_hold_dots():
    known = attributes(user="environ:beaker.session.user_id", tier="environ:wsgi.url_scheme")
    request = wsgi(**{"beaker.session": {"user_id": 5}, "wsgi.url_scheme": "https"})
    assert known.reader("user")(request) == "5"
    assert known.reader("tier")(request) == "https"


def test_each_interface_has_its_own_word():
    assert attributes(user="scope:REMOTE_USER").reader("user")(wsgi(REMOTE_USER="ann")) is None
    assert attributes(user="environ:user").reader("user")(asgi(user="ann")) is None
    assert attributes(user="environ:REMOTE_USER").reader("user")(wsgi(REMOTE_USER="ann")) == "ann"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param(Raising(), "LookupError was raised at", id="a property that raises"),
        pytest.param(
            SimpleNamespace(is_authenticated=True),
            "type SimpleNamespace is not text",
            id="a user without a name",
        ),
        pytest.param(object(), "a value of type object is not text", id="any object"),
        pytest.param(True, "a value of type bool is not text", id="a truth value"),
        pytest.param([TOKEN], "a value of type list is not text", id="a list"),
        pytest.param(TOKEN.encode(), "a value of type bytes is not text", id="bytes"),
    ],
)
def test_what_is_no_identity_is_absent_and_said_once(value, said, caplog):
    read = attributes(user="scope:user").reader("user")
    assert read(asgi(user=value)) is read(asgi(user=value)) is None
    assert [record.name for record in caplog.records] == ["ratelimit_mw"]
    assert said in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param("method_of", "GET", id="text"),
        pytest.param("number", "7", id="a number"),
        pytest.param("unique", str(UUID(int=5)), id="a UUID"),
        pytest.param("nobody", None, id="None"),
        pytest.param("empty", None, id="empty"),
        pytest.param("Namespace.inside", "nested", id="inside a class"),
    ],
)
def test_python_functions_get_the_scope(function, expected, caplog):
    assert attributes(user=f"{FUNCTIONS}:{function}").reader("user")(asgi()) == expected
    assert caplog.text == ""


def test_python_functions_get_the_environ():
    assert attributes(user=f"{FUNCTIONS}:variable").reader("user")(wsgi()) == "GET by environ"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        pytest.param("raises", "RuntimeError was raised at", id="an exception"),
        pytest.param("a_list", "a value of type list is not text", id="a list"),
        pytest.param("truth", "a value of type bool is not text", id="a truth value"),
        pytest.param("coroutine_in_disguise", "a value of type coroutine is not text", id="a coroutine, closed"),
    ],
)
@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_a_function_that_fails_is_absent_and_said_once(interface, function, said, caplog):
    read = attributes(user=f"{FUNCTIONS}:{function}").reader("user")
    assert read(interface()) is read(interface()) is None
    assert len(caplog.records) == 1
    assert f"{FUNCTIONS}:{function} counts as absent" in caplog.text
    assert said in caplog.text
    assert TOKEN not in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


def resolved(known, request):
    asyncio.run(known.resolve(request))
    return known.reader("user")(request)


@pytest.mark.parametrize(
    ("function", "expected"),
    [pytest.param("later", "/ later", id="a function"), pytest.param("instance", "from an object", id="an object")],
)
def test_async_functions_are_awaited_under_asgi(function, expected):
    known = attributes(user=f"{FUNCTIONS}:{function}")
    assert known.awaited == ()  # nobody has asked for the user yet
    known.reader("user")
    assert [name for name, _ in known.awaited] == ["user"]
    known.reader("user")
    assert len(known.awaited) == 1
    assert resolved(known, asgi()) == expected


def test_what_is_known_is_not_awaited_again():
    known = attributes(user=f"{FUNCTIONS}:later")
    known.reader("user")
    request = asgi()
    request.values["user"] = "ann"
    assert resolved(known, request) == "ann"
    assert resolved(known, known.request_from({"user": "bob"})) == "bob"
    assert resolved(known, known.request_from({})) is None


def test_an_async_function_that_raises_is_absent_and_said_once(caplog):
    known = attributes(user=f"{FUNCTIONS}:raises_later")
    known.reader("user")
    assert resolved(known, asgi()) is resolved(known, asgi()) is None
    assert len(caplog.records) == 1
    assert TOKEN not in caplog.text


def test_an_async_function_is_absent_under_wsgi_and_said_once(caplog):
    read = attributes(user=f"{FUNCTIONS}:later").reader("user")
    assert read(wsgi()) is read(wsgi()) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{FUNCTIONS}:later counts as absent: an async function can't be called under WSGI (logged once)"
    ]


def test_a_cancelled_request_stays_cancelled():
    async def cancelled(_):
        raise asyncio.CancelledError

    known = attributes()
    known.awaited = (("user", cancelled),)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(known.resolve(asgi()))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param("", "write one of header: cookie: query: scope: environ: python:", id="empty"),
        pytest.param("Authorization", "is not a source", id="a bare name"),
        pytest.param("headers:X", "is not a source", id="an unknown word"),
        pytest.param("header:", "followed by a name", id="no name"),
        pytest.param("cookie: ", "followed by a name", id="a blank name"),
        pytest.param("python:os", "write python:package.module:function", id="no function"),
        pytest.param("python::f", "write python:package.module:function", id="no module"),
        pytest.param("python:no.such.module:f", "can't be imported: ModuleNotFoundError", id="no such module"),
        pytest.param("python:tests.identity.broken_module:f", "RuntimeError: no database", id="a broken module"),
        pytest.param(f"{FUNCTIONS}:absent", "has no callable 'absent'", id="no such function"),
        pytest.param(f"{FUNCTIONS}:not_callable", "has no callable 'not_callable'", id="not a function"),
        pytest.param("python:..:f", "can't be imported", id="no module's name"),
    ],
)
def test_a_source_that_cannot_be_is_refused_with_a_reason(source, message):
    with pytest.raises(ValueError, match=message):
        compiled(source)


@given(st.text(st.characters(max_codepoint=255), max_size=40))
def test_any_authorization_header_is_read(header):
    value = attributes(user="header:Authorization").reader("user")(asgi([("Authorization", header)]))
    assert value is None or value.strip()


@given(st.text("abcXYZ019-._~+/=", min_size=1, max_size=20), st.text("abcXYZ019-._~+/=", min_size=1, max_size=20))
def test_two_schemes_never_collide(one, other):
    read = attributes(user="header:Authorization").reader("user")
    values = {
        read(asgi([("Authorization", header)])) for header in (f"Bearer {one}", f"Token {one}", f"Bearer {other}")
    }
    assert len(values) == (2 if one == other else 3)
