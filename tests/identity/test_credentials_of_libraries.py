"""The spellings of one credential that real libraries accept are one identity, and one client to a limit.

`make oldest` runs these tests with PyJWT 2.8, which accepts hundreds of spellings of a token. Newer versions accept
one.
"""

import asyncio
import string
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version

import flask
import jwt
import pytest
from django.core.signing import BadSignature, Signer, TimestampSigner
from itsdangerous import Signer as ItsDangerous
from itsdangerous import TimestampSigner as Timed
from itsdangerous import URLSafeTimedSerializer
from jose import jwt as python_jose
from joserfc import jwt as joserfc
from joserfc.jwk import OctKey
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.identity.requests import attributes, environ, identity
from tests.shells.asking import exchange, http_scope

with warnings.catch_warnings(record=True):  # Authlib replaces this module by joserfc, which is below
    authlib = import_module("authlib.jose").JsonWebToken(["HS256"])

KEY = "a key of more than sixty-four characters, as an algorithm of 512 bits asks for"
DJANGO = {"key": KEY, "fallback_keys": []}  # so that no settings are read
CLAIMS = {"sub": "ann"}
STRAY = " !~,:.\té=-+/A"
TAILS = ("=", "==", "===", "=A", "==A", "==AAAA", "=junk", "=:junk junk", "=!=!=x", " ", "\n")


def spellings(token: str, separator: str) -> Iterator[str]:
    """Spellings of a token, whether or not a library accepts them."""
    head, _, signature = token.rpartition(separator)
    for stray in STRAY:
        for number in range(1, 5):  # decoders that add the padding by the length accept some of the numbers only
            for place in range(0, len(signature) + 1, 3):
                yield f"{head}{separator}{signature[:place]}{stray * number}{signature[place:]}"
    for last in string.ascii_letters + string.digits + "-_":
        yield f"{head}{separator}{signature[:-1]}{last}"
    for tail in TAILS:
        yield token + tail
        yield tail + token
    yield f"{head}{separator}{signature.translate(str.maketrans('-_', '+/'))}"
    for place in range(0, len(head), 3):
        yield f"{head[:place]}!!!!{head[place:]}{separator}{signature}"


def accepts(verify: Callable[[str], object], token: str) -> bool:
    try:
        return bool(verify(token))
    except Exception:  # noqa: BLE001 - each library has exceptions of its own
        return False


def pyjwt(algorithm: str):
    token = jwt.encode(CLAIMS, KEY, algorithm=algorithm)
    return token, lambda text: jwt.decode(text, KEY, algorithms=[algorithm])


def credentials():
    timed, plain = Timed(KEY), ItsDangerous(KEY)
    serializer = URLSafeTimedSerializer(KEY, salt="cookie-session")
    yield "itsdangerous, signed", ".", plain.sign("ann").decode(), plain.unsign, True
    yield "itsdangerous, with its time", ".", timed.sign("ann").decode(), timed.unsign, True
    yield "itsdangerous, as Flask", ".", serializer.dumps(CLAIMS), serializer.loads, True
    for algorithm in ("HS256", "HS384", "HS512"):
        token, verify = pyjwt(algorithm)
        yield f"PyJWT, {algorithm}", ".", token, verify, version("PyJWT").startswith("2.8.")
    token = python_jose.encode(CLAIMS, KEY, algorithm="HS256")
    yield "python-jose", ".", token, lambda text: python_jose.decode(text, KEY, algorithms=["HS256"]), True
    token = authlib.encode({"alg": "HS256"}, CLAIMS, KEY).decode()
    yield "Authlib", ".", token, lambda text: authlib.decode(text, KEY), True
    key = OctKey.import_key(KEY)
    token = joserfc.encode({"alg": "HS256"}, CLAIMS, key)
    yield "joserfc", ".", token, lambda text: joserfc.decode(text, key).claims, False
    django, dated = Signer(**DJANGO), TimestampSigner(**DJANGO)
    yield "Django, signed", ":", django.sign("ann"), django.unsign, False
    yield "Django, a signed cookie", ":", dated.sign("ann"), dated.unsign, False
    token = dated.sign_object({"sub": "ann" * 99}, compress=True)
    yield "Django, a compressed session", ":", token, dated.unsign_object, False


@pytest.mark.parametrize(
    ("separator", "token", "verify", "lenient"),
    [pytest.param(*fields, id=name) for name, *fields in credentials()],
)
def test_each_spelling_of_a_token_that_a_library_accepts_is_one_identity(separator, token, verify, lenient):
    accepted = {text for text in spellings(token, separator) if accepts(verify, text)}
    known = attributes(user="cookie:session")
    found = {identity("user", known.request_from({"cookie:session": text.strip()}), known) for text in accepted}
    assert (len(found), len(accepted) > 100) == (1, lenient)


def test_a_signature_of_django_that_is_respelled_is_refused():
    signer = Signer(**DJANGO)
    with pytest.raises(BadSignature):
        signer.unsign(signer.sign("ann") + "=")


RULES = {
    "domain": "d",
    "storage": {"timeout": "5s"},
    "client": {"secret": "s"},
    "rules": [{"name": "three", "by": "user|ip", "limit": "3 per minute"}],
}


def limiter(source: str) -> RateLimiter:
    return RateLimiter({**RULES, "client": {"secret": "s", "user": source}}, clock=ManualClock(1_700_000_000))


def hundred(token: str, verify: Callable[[str], object]) -> list[str]:
    """Spellings of a token that the app accepts and that every parser of cookies reads alike."""
    readable = set(string.ascii_letters + string.digits + "-_.=!~:")
    found = [text for text in dict.fromkeys(spellings(token, ".")) if set(text) <= readable and accepts(verify, text)]
    return found[:100]


def flask_session() -> tuple[flask.Flask, list[str]]:
    app = flask.Flask("shop")
    app.secret_key = KEY

    @app.get("/")
    def home():
        return flask.session["user"]

    serializer = app.session_interface.get_signing_serializer(app)
    return app, hundred(serializer.dumps({"user": "ann"}), serializer.loads)


def test_one_flask_session_passes_no_more_than_its_limit():
    app, cookies = flask_session()
    with limiter("cookie:session") as own:
        app.wsgi_app = Wsgi(app.wsgi_app, limiter=own)
        client = app.test_client(use_cookies=False)
        statuses = [client.get("/", headers={"Cookie": f"session={cookie}"}).status_code for cookie in cookies]
    assert statuses == [200] * 3 + [429] * 97


def requests_to(app, headers: list[tuple[str, str]], own: RateLimiter) -> list[int]:
    """The statuses of one request for each header, to an ASGI app under a limiter."""

    async def ask() -> list[int]:
        async with own:
            wrapped = Asgi(app, limiter=own)
            sent = [[(name.encode(), value.encode("latin-1"))] for name, value in headers]
            return [(await exchange(wrapped, {**http_scope("/"), "headers": each}))[0]["status"] for each in sent]

    return asyncio.run(ask())


def test_one_starlette_session_passes_no_more_than_its_limit():
    async def home(request):
        return PlainTextResponse(request.session["user"])

    signer = Timed(KEY)
    token = signer.sign("eyJ1c2VyIjogImFubiJ9").decode()  # {"user": "ann"}
    app = Starlette(routes=[Route("/", home)], middleware=[Middleware(SessionMiddleware, secret_key=KEY)])
    headers = [("cookie", f"session={text}") for text in hundred(token, signer.unsign)]
    assert requests_to(app, headers, limiter("cookie:session")) == [200] * 3 + [429] * 97


@pytest.mark.parametrize("blank", [pytest.param(" ", id="blanks"), pytest.param("", id="stray characters")])
def test_one_json_web_token_passes_no_more_than_its_limit(blank):
    token = python_jose.encode(CLAIMS, KEY, algorithm="HS256")

    async def home(scope, receive, send):
        text = dict(scope["headers"])[b"authorization"].decode("latin-1").partition(" ")[2]
        user = python_jose.decode(text, KEY, algorithms=["HS256"])["sub"]
        await PlainTextResponse(user)(scope, receive, send)

    at = [len(token) - place for place in range(40)]
    respelled = [f"{token[:place]}{blank * 4}{token[place:]}" for place in at] if blank else []
    found = respelled or hundred(token, lambda text: python_jose.decode(text, KEY, algorithms=["HS256"]))
    headers = [("authorization", f"Bearer {text}") for text in found]
    assert requests_to(home, headers, limiter("header:Authorization")) == [200] * 3 + [429] * (len(found) - 3)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param('Digest username="ann", nonce="{0}", nc={0}, response="{0}"', id="Digest"),
        pytest.param("AWS4-HMAC-SHA256 Credential=K/1/eu/s3/aws4_request, Signature={0}", id="SigV4"),
        pytest.param('OAuth oauth_nonce="{0}", oauth_consumer_key="k", oauth_signature="{0}"', id="OAuth 1"),
    ],
)
def test_a_header_that_differs_in_each_request_passes_no_more_than_its_limit(header):
    requests = [environ([("Authorization", header.format(number))]) for number in range(100)]
    with limiter("header:Authorization") as own:
        app = Wsgi(lambda _, start: [start("200 OK", []), b""][1:], limiter=own)
        statuses: list[str] = []
        for each in requests:
            list(app(each, lambda status, *_: statuses.append(status[:3])))
    assert statuses == ["200"] * 3 + ["429"] * 97
