"""A client that disguises its session cookie, or its host, against real frameworks on real servers.

A session may be served three times. After these, no request with a disguised cookie may reach the handler as that
session, whatever bogus cookie stands beside it. The same holds for a host and its disguises.
"""

import re
import socket
from contextlib import closing

import pytest

from tests.support.apps import gunicorn, hypercorn, uvicorn

HOSTILE = 4

ASGI = ("starlette", "django_asgi")
WSGI = ("flask", "bottle")
MORE = [
    ("litestar", "uvicorn"),
    ("quart", "uvicorn"),
    ("falcon_asgi", "uvicorn"),
    ("django_asgi", "hypercorn"),
    ("django_wsgi", "gunicorn"),
]

SESSIONS = [
    ["sid=REAL", "sid=%d"],
    ["sid=%d", "sid=REAL"],
    ["sid=%d", "sid=REAL", "sid=%d"],
    ["sid=REAL;x=%d", "sid=%d"],
    ["x=%d", "sid=REAL"],
    ["sid=%d; sid=REAL"],
    ["sid=REAL; sid=%d"],
    ["sid=%d; sid=REAL; [; sid=%d"],
    ["\xa0sid=REAL; sid=%d; x=\xe9"],
    ["sid=%d; \xc2\xa0sid=REAL"],
    ["sid=%d; sid\x85=REAL"],
    ["\xc2\x85sid=REAL; x=%d"],
    ["sid=REAL\xa0; x=%d"],
    ["sid=REAL\x1f; x=%d"],
    ["\tsid=\tREAL\t; x=%d"],
    ["sid=%%52EAL; x=%d"],
    ["sid=%%5%dEAL"],
    ['x="; sid=REAL; y=%d"'],
    ['sid="\\122EAL"; x=%d'],
    ["$Version=%d; sid=REAL; $Path=/"],
]
HOSTS = [
    "api.example.com:%d",
    "api.example.com:x%d",
    "api.example.com:80:%d",
    "api.example.com:%d@evil",
    "API.example.com",
]


def ask(url, *, cookies=(), host="example.com"):
    """Whom the app says that it serves; None where it serves nobody."""
    lines = ["GET / HTTP/1.1", f"Host: {host}", *(f"Cookie: {line}" for line in cookies), "Connection: close", "", ""]
    name, port = url.removeprefix("http://").split(":")
    with closing(socket.create_connection((name, int(port)), timeout=60)) as client:
        client.sendall("\r\n".join(lines).encode("latin-1"))
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    found = re.search(rb"<(.*)>", answer) if answer.startswith(b"HTTP/1.1 200") else None
    return found[1].decode("latin-1") if found else None


def numbered(text, n):
    return text.replace("%d", str(n)).replace("%%", "%")


def served(app):
    name, _, server = app.partition(" on ")
    if server == "uvicorn":
        return uvicorn(f"tests.shells.session_apps:{name}", args=["--factory"])
    return {"hypercorn": hypercorn, "gunicorn": gunicorn}[server](f"tests.shells.session_apps:{name}()")


APPS = [
    *(f"{name} on uvicorn" for name in ASGI),
    *(f"{name} on gunicorn" for name in WSGI),
    *(pytest.param(f"{name} on {server}", marks=pytest.mark.soak) for name, server in MORE),
]


@pytest.mark.parametrize("app", APPS)
def test_no_disguise_of_a_cookie_serves_a_session_beyond_its_limit(app):
    with served(app) as running:
        assert [ask(running.url, cookies=["sid=REAL"]) for _ in range(4)] == ["REAL"] * 3 + [None]
        got = [
            (lines, ask(running.url, cookies=[numbered(line, n) for line in lines]))
            for lines in SESSIONS
            for n in range(HOSTILE)
        ]
    assert [lines for lines, session in got if session == "REAL"] == []


def test_no_disguise_of_a_host_serves_it_beyond_its_limit():
    with served("starlette on uvicorn") as running:
        assert [ask(running.url, host="api.example.com") for _ in range(4)] == ["hosted"] * 3 + [None]
        got = [(host, ask(running.url, host=numbered(host, n))) for host in HOSTS for n in range(HOSTILE)]
    assert [host for host, said in got if said == "hosted"] == []


@pytest.mark.parametrize("app", ["starlette on uvicorn", "flask on gunicorn"])
def test_other_sessions_have_a_limit_of_their_own(app):
    with served(app) as running:
        assert [ask(running.url, cookies=[f"theme=dark; sid=S{n}"]) for n in range(9)] == [f"S{n}" for n in range(9)]
