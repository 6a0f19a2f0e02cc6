"""The same routes in the routers of nine frameworks, to compare with what rules match.

Each handler notes the template of its route in `ran`. Two kinds of values are known not to be counted, and are not
noted: what Pydantic reads and Python's own type does not, and Falcon's empty values. An app is called as a real server
calls it: `scopes` and `environs` make what uvicorn, hypercorn, gunicorn and wsgiref make of a request's target.
"""

import asyncio
import inspect
import io
import sys
import types
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit
from uuid import UUID

from hypothesis import strategies as st

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi

TEMPLATES = (
    "/login",
    "/slash/",
    "/items/{id:int}",
    "/items/{id:int}/edit",
    "/prices/{x:float}",
    "/things/{u:uuid}",
    "/users/{name}",
    "/users/{name}/edit",
    "/{tenant}/enter",
    "/files/{rest:path}",
)

# One rule for each route. The limits never deny: what counts is only shown.
CONFIG = {
    "domain": "d",
    "rules": [
        {"name": f"r{n}", "match": {"path": template}, "by": "ip", "limit": "1000000 per second"}
        for n, template in enumerate(TEMPLATES)
    ],
}

ran: list[str] = []


def _plain(template: str) -> str:
    for kind in (":int", ":float", ":uuid"):
        template = template.replace(kind, "")
    return template


def _angled(template: str, *, kinds: Iterable[str] = ("int", "float", "uuid", "path")) -> str:
    template = template.replace("{name}", "<name>").replace("{tenant}", "<tenant>")
    for kind in kinds:
        for name in ("id", "x", "u", "rest"):
            template = template.replace(f"{{{name}:{kind}}}", f"<{kind}:{name}>")
    return template


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    def handler(template: str) -> Any:
        async def handle(request: Any) -> Any:
            ran.append(template)
            return PlainTextResponse("")

        return handle

    return Starlette(routes=[Route(template, handler(template)) for template in TEMPLATES])


def fastapi() -> Any:
    from fastapi import FastAPI, Request

    app = FastAPI()

    def route(template: str, handler: Callable[..., Any]) -> None:
        app.add_api_route(_plain(template), handler)

    def without(template: str) -> Any:
        async def handle() -> None:
            ran.append(template)

        return handle

    def with_one(template: str, name: str, kind: type) -> Any:
        async def handle(request: Request, **values: Any) -> None:
            try:
                kind(request.path_params[name])
            except ValueError:
                if kind is not int or not float(request.path_params[name]).is_integer():
                    return
            ran.append(template)

        own = (("request", Request), (name, kind))
        handle.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, annotation=type_) for each, type_ in own]
        )
        return handle

    for template in TEMPLATES:
        name, _, kind = template.partition("{")[2].partition("}")[0].partition(":")
        types_ = {"int": int, "float": float, "uuid": UUID}
        route(template, with_one(template, name, types_.get(kind, str)) if name else without(template))
    return app


def litestar() -> Any:
    from litestar import Litestar, get

    def handler(template: str) -> Any:
        @get(template.replace("{name}", "{name:str}").replace("{tenant}", "{tenant:str}"))
        async def handle() -> None:
            ran.append(template)

        return handle

    # Litestar would set the level of the root logger, for all tests that come after.
    return Litestar([handler(template) for template in TEMPLATES], openapi_config=None, logging_config=None)


def quart() -> Any:
    from quart import Quart

    return _with_rules(Quart("d"))


def flask() -> Any:
    from flask import Flask

    return _with_rules(Flask("d")).wsgi_app


def _with_rules(app: Any) -> Any:
    for n, template in enumerate(TEMPLATES):
        app.add_url_rule(_angled(template), f"e{n}", lambda template=template, **_: ran.append(template) or "")
    return app


def _falcon_routes(app: Any, resource: Callable[[str], Any]) -> Any:
    for template in TEMPLATES:
        app.add_route(template, resource(template))
    return app


def falcon() -> Any:
    import falcon

    class Resource:
        def __init__(self, template: str) -> None:
            self.template = template

        def on_get(self, request: Any, response: Any, **values: Any) -> None:
            if "" not in values.values():
                ran.append(self.template)

    return _falcon_routes(falcon.App(), Resource)


def falcon_asgi() -> Any:
    import falcon.asgi

    class Resource:
        def __init__(self, template: str) -> None:
            self.template = template

        async def on_get(self, request: Any, response: Any, **values: Any) -> None:
            if "" not in values.values():
                ran.append(self.template)

    return _falcon_routes(falcon.asgi.App(), Resource)


def bottle() -> Any:
    import bottle

    app = bottle.Bottle()
    for template in TEMPLATES:
        if "uuid" not in template:
            kinds = ("int", "float", "path")
            angled = _angled(template)
            for kind in kinds:
                for name in ("id", "x", "rest"):
                    angled = angled.replace(f"<{kind}:{name}>", f"<{name}:{kind}>")
            app.route(angled)(lambda template=template, **_: ran.append(template) or "")
    return app


def _django_routes() -> str:
    """The name of a module with the routes for Django."""
    from django.conf import settings
    from django.http import HttpResponse
    from django.urls import path

    if not settings.configured:  # by another test of this process
        settings.configure(USE_TZ=True)
    import django

    django.setup()

    def view(template: str) -> Any:
        def handle(request: Any, **_: Any) -> Any:
            ran.append(template)
            return HttpResponse("")

        return handle

    module = types.ModuleType("routes_of_django")
    listed = [template for template in TEMPLATES if "float" not in template]
    module.urlpatterns = [path(_angled(each)[1:], view(each)) for each in listed]  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    return module.__name__


def django_settings(**options: Any) -> AbstractContextManager[Any]:
    """What a handler of Django has to find while it is made, and while it is called."""
    from django.test import override_settings

    own = {"ALLOWED_HOSTS": ["*"], "MIDDLEWARE": [], "APPEND_SLASH": False}
    return override_settings(**{"ROOT_URLCONF": _django_routes(), **own, **options})


def django() -> Any:
    from django.core.handlers.wsgi import WSGIHandler

    return WSGIHandler()


def django_asgi() -> Any:
    from django.core.handlers.asgi import ASGIHandler

    return ASGIHandler()


ASGI = {
    "starlette": starlette,
    "fastapi": fastapi,
    "litestar": litestar,
    "quart": quart,
    "falcon": falcon_asgi,
    "django": django_asgi,
}
WSGI = {"flask": flask, "bottle": bottle, "falcon": falcon, "django": django}


def limiter() -> RateLimiter:
    """An engine with one rule for each route."""
    return RateLimiter(CONFIG, clock=ManualClock(1_700_000_000))


def scopes(target: bytes, root: str = "") -> Iterable[dict[str, Any]]:
    """What uvicorn and hypercorn make of a target."""
    raw, _, query = target.partition(b"?")
    for path, raw_path in ((root + unquote(raw.decode("ascii")), root.encode() + raw), (unquote(raw.decode()), raw)):
        yield {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": root,
            "headers": [(b"host", b"h")],
            "client": ("203.0.113.7", 40000),
            "server": ("127.0.0.1", 8000),
            "extensions": {},
            "state": {},
        }


def environs(target: bytes) -> Iterable[dict[str, Any]]:
    """What gunicorn and wsgiref make of a target."""
    text = target.decode("latin-1")
    try:
        parts = urlsplit("." + text)._replace() if text.startswith("//") else urlsplit(text)
        path = parts.path[1:] if text.startswith("//") else parts.path
    except ValueError:
        path = text
    for found in dict.fromkeys((path, text.partition("?")[0])):
        yield {
            "REQUEST_METHOD": "GET",
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(found.encode("latin-1")).decode("latin-1"),
            "QUERY_STRING": text.partition("?")[2],
            "SERVER_NAME": "h",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "203.0.113.7",
            "HTTP_HOST": "h",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(),
            "wsgi.errors": io.StringIO(),
        }


class Routed:
    """A framework's app under the middleware. `missed` says which routes ran without their rule."""

    def __init__(self, kind: str, name: str, **options: Any) -> None:
        self.kind, self.name = kind, name
        self._stack = ExitStack()
        if name == "django":
            self._stack.enter_context(django_settings(**options))
        app = (ASGI if kind == "asgi" else WSGI)[name]()
        self.app: Any = (Asgi if kind == "asgi" else Wsgi)(app, limiter=limiter())
        self.loop = asyncio.new_event_loop()

    def close(self) -> None:
        self.loop.close()
        self._stack.close()

    def missed(self, target: bytes, root: str = "") -> list[tuple[str, str]]:
        """The routes whose handlers ran though their rules counted nothing, each with the path."""
        found = []
        for request in scopes(target, root) if self.kind == "asgi" else environs(target):
            ran.clear()
            policies = self._ask(request)
            path = request.get("path", request.get("PATH_INFO"))
            counted = {TEMPLATES[int(policy.rule[1:])] for policy in policies}
            found += [(template, str(path)) for template in ran if template not in counted]
        return found

    def ran(self, target: bytes, root: str = "") -> list[str]:
        """The routes whose handlers ran."""
        every = []
        for request in scopes(target, root) if self.kind == "asgi" else environs(target):
            ran.clear()
            self._ask(request)
            every += ran
        return every

    def _ask(self, request: dict[str, Any]) -> Iterable[Any]:
        if self.kind == "asgi":
            self.loop.run_until_complete(served(self.app, request))
            return request["ratelimit"].policies
        body = self.app(request, lambda *_: io.BytesIO().write)
        for _ in body:
            pass
        getattr(body, "close", lambda: None)()
        return request["ratelimit.decision"].policies


async def served(app: Any, scope: dict[str, Any]) -> list[dict[str, Any]]:
    """What an ASGI app sends to a client that does not leave."""
    waiting, sent = [{"type": "http.request", "body": b"", "more_body": False}], []

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    with suppress(Exception):  # a router that raises has run no handler, or has noted it
        await app(scope, receive, send)
    return sent


BLANKS = ("", "", "", "%20", "%0D", "%0A", "%09", "%C2%A0", "%C2%85", "%1C")
DIGITS = ("7", "7", "0", "07", "1_0", "_7", "7_", "%EF%BC%97", "%D9%A3", "0-7", "00")
UUID_TEXT = "0e0cbbd4-1a6d-4f23-9c5e-2f8f10a1b2c3"
UUIDS = (
    *(UUID_TEXT, UUID_TEXT.upper(), UUID_TEXT.replace("-", ""), "-".join(UUID_TEXT.replace("-", ""))),
    *(f"{{{UUID_TEXT}}}", f"urn:uuid:{UUID_TEXT}", f"{UUID_TEXT}-", UUID_TEXT.replace("0", "%D9%A0", 1)),
)
WORDS = ("bob", "7", "", "..", ".", "a.b", "%FF", "a%2Fb", ";x", "%00", "%EF%BF%BD", "a%0A", "login", "+7", "%C0%AF")
SLASHES = ("/", "/", "/", "/", "//", "/./", "/x/../")
BEFORE = ("", "", "", "", "http://h", "foo:", "%0A", "//h", "%20", "/..", "/")
BEHIND = ("", "", "", "", "/", "%0A", ";x", "?q", "%3Fq", "%23f", "/.", "//", "/..", "%00")
BROKEN = ("%FF", "%C3", "%C0%AF", "%ED%A0%80", "%EF%BF%BD")
TOKENS = (*SLASHES, *BEFORE, *BEHIND, *BROKEN, *BLANKS, "%2F", "%2e", "%5C", "%25", "*", ":", "@", "+", "-", "_", "api")
ROOTS = ("", "", "/api", "/api/", "/", "/a%b", "/items")


@st.composite
def _numbers(draw: st.DrawFn, *, whole: bool) -> str:
    sign, digits = draw(st.sampled_from(("", "", "+", "-"))), draw(st.sampled_from(DIGITS))
    behind = ("", "", ".0", ".", "e0", "_.0") if whole else (".5", ".5", "", ".", "e5", "_.5", "._5", ".%D9%A3")
    number = f"{sign}{digits}{draw(st.sampled_from(behind))}"
    return draw(st.sampled_from(BLANKS)) + number + draw(st.sampled_from(BLANKS))


VALUES = {
    "int": _numbers(whole=True),
    "float": st.one_of(_numbers(whole=False), st.sampled_from(("nan", "inf", "-inf", ".5", "in_f"))),
    "uuid": st.sampled_from(UUIDS),
    "path": st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map("/".join),
    "": st.sampled_from(WORDS),
}


@st.composite
def requests_to(draw: st.DrawFn, kind: str) -> tuple[bytes, str]:
    """A target that may reach one of the routes, spelled in an unusual way, and the `root_path` of its server.

    At most a few things are unusual at once, so that many targets do reach a handler.
    """
    target = draw(st.sampled_from(TEMPLATES))
    while "{" in target:
        before, _, rest = target.partition("{")
        parameter, _, after = rest.partition("}")
        target = before + draw(VALUES[parameter.partition(":")[2]]) + after
    for unusual in draw(st.lists(st.sampled_from(("slash", "ends", "broken", "token", "no slash")), max_size=2)):
        place = draw(st.integers(0, len(target)))
        if unusual == "slash":
            head, slash, tail = target[:place].rpartition("/")
            target = head + (draw(st.sampled_from(SLASHES)) if slash else "") + tail + target[place:]
        elif unusual == "ends":
            target = draw(st.sampled_from(BEFORE)) + target + draw(st.sampled_from(BEHIND))
        elif unusual == "no slash":
            target = target.lstrip("/")
        else:
            token = draw(st.sampled_from(BROKEN if unusual == "broken" else TOKENS))
            target = target[:place] + token + target[place:]
    if kind == "wsgi":
        return target.encode(), ""
    root = draw(st.sampled_from(ROOTS))
    prefixes = ("", root, f"/x{root}", f"{root}/", root.lstrip("/"), f"http://h{root}")
    return (draw(st.sampled_from(prefixes)) + target if root else target).encode(), root
