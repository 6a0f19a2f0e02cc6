"""The WSGI middleware to the letter of PEP 3333, with its validator on both sides."""

import io
import sys
from wsgiref.handlers import SimpleHandler
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import pytest
from flask import Flask, request
from flask.testing import FlaskClient

from ratelimit_mw import ConfigurationError
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.shells.asking import IP, limiter, rules

RATED = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]


def environ(path="/", **more):
    made = {"REMOTE_ADDR": IP, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": "", **more}
    setup_testing_defaults(made)
    return made


def served(app, **more):
    """What a server of the standard library puts on the wire for one request."""
    wire = io.BytesIO()
    handler = SimpleHandler(io.BytesIO(), wire, sys.stderr, environ(SERVER_PROTOCOL="HTTP/1.0", **more))
    handler.http_version = "1.0"
    handler.run(app)
    head, _, body = wire.getvalue().partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    return status.removeprefix("HTTP/1.0 "), dict(line.split(": ", 1) for line in lines), body


def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


def generator(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"hel"
    yield b"lo"


def writer(environ, start_response):
    write = start_response("200 OK", [("Content-Type", "text/plain")])
    write(b"hel")
    return [b"lo"]


class Iterator:
    """An app that is a class, as PEP 3333 has it: the instance is the iterable."""

    def __init__(self, environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        self.chunks = [b"hel", b"lo"]

    def __iter__(self):
        return self

    def __next__(self):
        if self.chunks:
            return self.chunks.pop(0)
        raise StopIteration


EACH_APP = pytest.mark.parametrize(
    "app",
    [
        pytest.param(hello, id="a list"),
        pytest.param(generator, id="start_response at the first iteration"),
        pytest.param(writer, id="write()"),
        pytest.param(Iterator, id="a class"),
    ],
)


@EACH_APP
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_wsgiref_validate_is_content_outside_and_inside(app, method):
    limited = validator(RateLimitMiddleware(validator(app), limiter=limiter("1 per minute")))
    status, headers, body = served(limited, REQUEST_METHOD=method)
    assert (status, body) == ("200 OK", b"hello")
    assert [headers[name] for name in RATED] == ["1", "0", "1700000040"]

    status, headers, body = served(limited, REQUEST_METHOD=method)
    assert status == "429 Too Many Requests"
    assert headers["Retry-After"] == "40"
    assert headers["Content-Length"] == str(len(b'{"message": "Too many requests"}'))
    assert body == (b"" if method == "HEAD" else b'{"message": "Too many requests"}')


@pytest.mark.parametrize(
    ("status", "line"),
    [
        pytest.param(403, "403 Forbidden", id="GitHub's"),
        pytest.param(420, "420 Denied", id="one that no RFC has"),
        pytest.param(503, "503 Service Unavailable", id="unavailable"),
    ],
)
def test_the_status_line_of_a_denial(status, line):
    engine = limiter("0 per minute", response={"status": status})
    assert served(validator(RateLimitMiddleware(hello, limiter=engine)))[0] == line


def test_a_denial_comes_before_the_app():
    def app(environ, start_response):
        raise AssertionError("called")

    assert served(RateLimitMiddleware(app, limiter=limiter("0 per minute")))[0] == "429 Too Many Requests"


def test_start_response_comes_no_earlier_than_the_app_calls_it():
    started = []
    app = RateLimitMiddleware(generator, limiter=limiter())
    body = app(environ(), lambda *arguments: started.append(arguments))
    assert started == []
    assert next(body) == b"hel"
    assert [name for name, _ in started[0][1]] == ["Content-Type", *RATED]


def test_the_app_s_iterable_goes_back_as_it_is():
    """So each yield is one yield, len() stays known, and close() and wsgi.file_wrapper are the server's."""
    wrapped = FileWrapper(io.BytesIO(b"a file"))

    def app(environ, start_response):
        start_response("200 OK", [])
        return wrapped

    assert RateLimitMiddleware(app, limiter=limiter())(environ(), lambda *_: None) is wrapped


def test_streaming_is_never_buffered():
    made = []

    def app(environ, start_response):
        start_response("200 OK", [])
        for number in range(3):
            made.append(number)
            yield b"%d" % number

    body = RateLimitMiddleware(app, limiter=limiter())(environ(), lambda *_: None)
    for number in range(3):
        assert next(body) == b"%d" % number
        assert made == list(range(number + 1))


@pytest.mark.parametrize("fails", [False, True])
def test_close_is_called_always(fails):
    closed = []

    class Body:
        def __iter__(self):
            yield b"a"
            if fails:
                raise LookupError("halfway")

        def close(self):
            closed.append(True)

    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return Body()

    wire = io.BytesIO()
    errors = io.StringIO()
    SimpleHandler(io.BytesIO(), wire, errors, environ()).run(RateLimitMiddleware(app, limiter=limiter()))
    assert closed == [True]
    assert ("halfway" in errors.getvalue()) is fails


def test_write_is_the_server_s_own():
    def write(data): ...

    got = []

    def app(environ, start_response):
        got.append(start_response("200 OK", []))
        return []

    RateLimitMiddleware(app, limiter=limiter())(environ(), lambda *_: write)
    assert got == [write]


def test_exc_info_is_passed_on_and_only_where_it_was_given():
    calls = []

    def app(environ, start_response):
        start_response("200 OK", [])
        try:
            raise LookupError("late")
        except LookupError:
            start_response("500 Oh", [], sys.exc_info())
            start_response("500 Oh", [], exc_info=sys.exc_info())
        start_response("200 OK", [], None)
        return []

    RateLimitMiddleware(app, limiter=limiter())(environ(), lambda *arguments: calls.append(arguments))
    assert [len(arguments) for arguments in calls] == [2, 3, 3, 2]
    assert all(arguments[2][0] is LookupError for arguments in calls[1:3])
    assert all([name for name, _ in arguments[1]] == RATED for arguments in calls)


def test_an_app_that_fails_after_it_began_answers_with_the_error_s_headers():
    """As PEP 3333's own example does; the validator watches both sides."""

    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            raise LookupError("before anything was sent")
        except LookupError:
            start_response("500 Oops", [("Content-Type", "text/plain"), ("X-Error", "1")], sys.exc_info())
        return [b"sorry"]

    status, headers, body = served(validator(RateLimitMiddleware(validator(app), limiter=limiter())))
    assert (status, headers["X-Error"], headers["X-RateLimit-Limit"], body) == ("500 Oops", "1", "2", b"sorry")


def test_what_start_response_raises_reaches_the_app():
    def app(environ, start_response):
        with pytest.raises(LookupError, match="headers were sent"):
            start_response("500 Oh", [])
        return []

    def start_response(*arguments):
        raise LookupError("headers were sent")

    assert RateLimitMiddleware(app, limiter=limiter())(environ(), start_response) == []


def test_the_app_s_exceptions_propagate():
    def app(environ, start_response):
        raise LookupError("the app's own")

    with pytest.raises(LookupError, match="the app's own"):
        RateLimitMiddleware(app, limiter=limiter())(environ(), lambda *_: None)


def test_the_app_s_list_of_headers_is_left_alone():
    own = [("Content-Type", "text/plain")]

    def app(environ, start_response):
        start_response("200 OK", own)
        return []

    calls = []
    RateLimitMiddleware(app, limiter=limiter())(environ(), lambda *arguments: calls.append(arguments))
    assert own == [("Content-Type", "text/plain")]
    assert type(calls[0][1]) is list, "PEP 3333 says a list, and no subclass"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param("/größe/🦉", "429 Too Many Requests", id="as it is"),
        pytest.param("/grosse/🦉", "200 OK", id="another path"),
    ],
)
def test_utf_8_paths(path, status):
    """PATH_INFO holds the bytes of the path, each as one character."""
    closed = {"name": "closed", "by": "route", "limit": "0 per hour", "match": {"path": "/größe/{name}"}}
    app = validator(RateLimitMiddleware(hello, limiter=limiter(rules=[closed])))
    assert served(app, path=path.encode().decode("latin-1"))[0] == status


def test_one_engine_for_both_interfaces():
    from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
    from tests.shells.asking import http_scope, serve

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    engine = limiter("1 per minute")
    assert served(RateLimitMiddleware(hello, limiter=engine))[0] == "200 OK"
    assert serve(Asgi(app, limiter=engine), http_scope())[0]["status"] == 429


# ------------------------------------------------------------------------------------------------ Flask


def flask_app(**middleware):
    app = Flask(__name__)

    @app.get("/")
    def index():
        return {"remaining": request.environ["ratelimit.decision"].remaining}

    @app.get("/stream")
    def stream():
        return app.response_class(iter(["a", "b"]), mimetype="text/plain")

    @app.get("/broken")
    def broken():
        raise LookupError("a bug")

    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, **middleware)
    return app


def flask_client(**middleware) -> FlaskClient:
    return flask_app(**middleware).test_client()


def test_flask_end_to_end():
    client = flask_client(limiter=limiter("2 per minute"))
    first = client.get("/")
    assert (first.json, first.headers["X-RateLimit-Remaining"]) == ({"remaining": 1}, "1")
    assert client.head("/").headers["X-RateLimit-Remaining"] == "0"
    denied = client.get("/")
    assert (denied.status, denied.json) == ("429 Too Many Requests", {"message": "Too many requests"})
    assert denied.headers["Cache-Control"] == "no-store"


def test_flask_s_errors_are_limited_too():
    client = flask_client(limiter=limiter("3 per minute"))
    answers = [client.get("/nothing"), client.post("/"), client.get("/broken"), client.get("/nothing")]
    assert [answer.status_code for answer in answers] == [404, 405, 500, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["2", "1", "0", "0"]


def test_flask_streams_through_it():
    answer = flask_client(limiter=limiter()).get("/stream")
    assert (answer.text, answer.headers["X-RateLimit-Remaining"]) == ("ab", "1")


@pytest.mark.parametrize(
    ("framework", "cookies"),
    [
        pytest.param("flask", "session=ann; session=bogus{}", id="Flask reads the first"),
        pytest.param("django", "session=bogus{}; session=ann", id="Django reads the last"),
    ],
)
def test_a_cookie_s_bogus_twin_buys_no_budget(framework, cookies):
    seen = []
    by_session = {"name": "sessions", "by": "session", "limit": "2 per minute"}
    app = {"flask": flask_reading_a_cookie, "django": django_reading_a_cookie}[framework](seen)
    engine = limiter(attributes={"session": "cookie:session"}, rules=[by_session])
    middleware = RateLimitMiddleware(app, limiter=engine)
    statuses = []
    for number in range(3):
        environ = {"HTTP_COOKIE": cookies.format(number)}
        setup_testing_defaults(environ)
        answer = middleware(environ, lambda status, _headers, *_: statuses.append(status[:3]))
        getattr(answer, "close", list)()
    assert (statuses, seen) == (["200", "200", "429"], ["ann", "ann"])


def flask_reading_a_cookie(seen):
    import flask

    app = flask.Flask("app")

    @app.get("/")
    def index():
        seen.append(flask.request.cookies["session"])
        return ""

    return app.wsgi_app


def django_reading_a_cookie(seen):
    from django.conf import settings
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpResponse

    if not settings.configured:
        settings.configure(USE_TZ=True)

    class App(WSGIHandler):
        """Django's own, less the project: no middleware, no URLs."""

        def load_middleware(self, is_async=False):
            pass

        def get_response(self, request):
            seen.append(request.COOKIES["session"])
            return HttpResponse()

    return App()


def test_in_a_dispatcher_each_app_sees_its_own_paths():
    from werkzeug.middleware.dispatcher import DispatcherMiddleware
    from werkzeug.test import Client

    only = [{"name": "items", "by": "ip", "limit": "1 per hour", "match": {"path": "/items"}}]
    mounted = RateLimitMiddleware(hello, limiter=limiter(rules=only))
    client = Client(DispatcherMiddleware(hello, {"/api": mounted}))
    address = {"REMOTE_ADDR": IP}
    assert client.get("/items", environ_base=address).headers.get("X-RateLimit-Limit") is None
    assert [client.get("/api/items", environ_base=address).status_code for _ in range(2)] == [200, 429]


# ----------------------------------------------------------------------------------------- construction


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="neither"),
        pytest.param({"config": rules(), "limiter": limiter()}, id="both"),
        pytest.param({"limiter": limiter(), "storage": "memory://"}, id="storage beside a limiter"),
    ],
)
def test_exactly_one_of_config_and_limiter(arguments):
    with pytest.raises(TypeError, match="RateLimitMiddleware takes"):
        RateLimitMiddleware(hello, **arguments)


def test_a_broken_config_raises_at_construction_with_every_problem():
    with pytest.raises(ConfigurationError) as raised:
        flask_app(config={"domain": "d", "rules": [{"name": "a", "limit": "5 per minit"}, {"nam": "b"}]})
    assert "minit" in str(raised.value)
    assert "nam" in str(raised.value)


async def who(environ):
    return "someone"


def test_an_async_function_can_t_be_awaited_here():
    """Else its attribute would be absent, and the rule that counts by it would limit nobody."""
    config = rules(client={"user": f"python:{__name__}:who"})
    config["rules"][0]["by"] = "user"
    with pytest.raises(ConfigurationError, match="async functions can't be awaited under WSGI: user"):
        RateLimitMiddleware(hello, config)
