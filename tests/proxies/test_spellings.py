"""No spelling of a path avoids its limit behind a real proxy with the files of examples/service.

A client that has used up the limit of `/login` sends each spelling. It must not reach the login: it is denied, refused
or redirected, or it is another path for the app. Real apps decide which spellings are the login.
"""

import contextlib
from http.client import HTTPConnection

import httpx2
import pytest

from tests.proxies.running import project
from tests.support.apps import gunicorn, uvicorn

SPELLINGS = """
/login /login? /login?x=1 /login# /login#x
/LOGIN /Login /lOGIN?x=1
/%6Cogin /%6c%6f%67%69%6e /%4COGIN /lo%67in?x=1
//login ///login //login?x=1 //%6Cogin
/./login /%2e/login /%2E/login /./%2e//login
/../login /x/../login /x/%2e%2e/login /x/.%2E/login /x//../../login /x/y/../../login
/login/ /login// /login/? /login/?x=1 /login/. /login/%2e /login/x/.. /login/./
/%2flogin /%2Flogin /login%2f /login%2F /x%2f..%2flogin /x%2F../login /x/..%2Flogin /%2e%2flogin /login%2f?x=1
/\\login \\login /x\\..\\login /%5clogin /%5Clogin /login\\ /login%5c /x%5c..%5clogin
/login;x /login;x=1 /login/;x /login%3bx /login%3Bx?y
/login.json /login.html?x /login. /login%2ejson
/login%20 /login%09 /login%0a /login%00 /login+ /login%3f /login%3Fx=1 /login%23 /login%23x
/%256Cogin /%252flogin /login%252f /%25%36%43ogin
/login%c0%af /%c1%accogin /%ef%bc%8flogin
http://shop.example/login http://shop.example//login HTTP://shop.example/%6Cogin http://shop.example/x/../login?x
"""


def uvicorn_at(port):
    return uvicorn("tests.proxies.routing:starlette_app", args=["--port", str(port)])


def gunicorn_at(port, app):
    return gunicorn(f"tests.proxies.routing:{app}", args=["--bind", f"127.0.0.1:{port}"])


APPS = [
    pytest.param(uvicorn_at, id="Starlette under uvicorn"),
    pytest.param(lambda port: gunicorn_at(port, "flask_app"), id="Flask under gunicorn"),
    pytest.param(lambda port: gunicorn_at(port, "lenient_app"), id="an app that takes what any framework does"),
]


def reached(url, spelling, client):
    """Whether a GET of this spelling got the answer of the login."""
    port = int(url.rpartition(":")[2])
    connection = HTTPConnection("127.0.0.1", port, 60, source_address=(client, 0))
    with contextlib.closing(connection):
        connection.putrequest("GET", spelling, skip_host=True)
        connection.putheader("Host", "shop.example")
        connection.endheaders()
        return connection.getresponse().read() == b"login"


def assert_every_spelling_is_limited(url):
    client = "127.0.0.2"
    assert [reached(url, "/login", client) for _ in range(3)] == [True, True, False]
    assert [each for each in SPELLINGS.split() if reached(url, each, client)] == []
    assert reached(url, "/login", "127.0.0.3"), "another client has limits of its own"


@pytest.mark.parametrize("app", APPS)
def test_no_spelling_of_a_path_avoids_its_limit_behind_envoy(app):
    with project() as here, app(here.port[18090]):
        here.edit("ratelimits.yaml", "requests_per_unit: 3,", "requests_per_unit: 1000,")  # the address alone
        with here.service("ratelimits.yaml"), here.envoy("envoy.yaml") as envoy:
            assert_every_spelling_is_limited(envoy.url)


@pytest.mark.parametrize("app", APPS)
def test_no_spelling_of_a_path_avoids_its_limit_behind_nginx(app):
    with project() as here, app(here.port[18090]):
        here.edit("ratelimits-nginx.yaml", "path: /login, methods: [POST]", "path: /login")
        here.edit("ratelimits-nginx.yaml", "limit: 5 per", "limit: 1000 per")
        here.edit("ratelimits-nginx.yaml", "limit: 3 per", "limit: 2 per")
        with here.service("ratelimits-nginx.yaml"), here.nginx() as url:
            assert_every_spelling_is_limited(url)
            assert httpx2.get(f"{url}/?path=%5clogin").text == "other", "a query may have a backslash"
