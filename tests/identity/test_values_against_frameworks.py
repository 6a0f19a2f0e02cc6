"""The limiter reads the cookie and the parameter that the app reads: else a bogus twin would be a new identity."""

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.identity.wsgi import DjangoRequest, WsgiRequest
from tests.identity.requests import asgi, environ

PIECES = ("s=", "s=1", "s=2", "t=3", "s", "=", ";", "; ", "&", '"', "\\061", "\\", "%31", "%", "+", " ", ",", "é")
lines = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


def starlette(cookies, query):
    from starlette.requests import Request

    ours = asgi([("cookie", cookies)], query=query)
    theirs = Request(ours.context)
    return ours, theirs.cookies.get("s"), theirs.query_params.get("s")


def flask(cookies, query):
    from flask import Request

    built = environ([("Cookie", cookies)], query=query)
    theirs = Request(built)
    return WsgiRequest(built), theirs.cookies.get("s"), theirs.args.get("s")


def django(cookies, query):
    from django.conf import settings
    from django.core.handlers.wsgi import WSGIRequest

    if not settings.configured:
        settings.configure(USE_TZ=True)
    built = environ([("Cookie", cookies)], query=query, **{"wsgi.input": BytesIO()})
    theirs = WSGIRequest(built)
    return DjangoRequest(built), theirs.COOKIES.get("s"), theirs.GET.get("s")


@pytest.mark.parametrize("framework", [starlette, flask, django])
@given(cookies=lines, query=lines)
def test_what_the_app_reads_is_what_the_limiter_reads(framework, cookies, query):
    # What is not ASCII travels as bytes read as latin-1, and each framework has its own way to decode that.
    ours, cookie, parameter = framework(cookies.replace("é", "Ã©"), query.replace("é", "%C3%A9"))
    if cookie:
        assert ours.cookie("s") in {cookie, cookie.encode().decode("latin-1")}
    if parameter:
        assert ours.query("s") == parameter
