"""Apps that route as real ones do. Each answers `login` if a request reached its login, and `other` otherwise."""

import re

from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def login(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("login")


async def other(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("other")


starlette_app = Starlette(routes=[Route("/login", login), Route("/", other)])

flask_app = Flask(__name__)
flask_app.url_map.strict_slashes = False
flask_app.add_url_rule("/login", view_func=lambda: "login", endpoint="login")
flask_app.add_url_rule("/", view_func=lambda: "other", endpoint="other")


def lenient_app(environ, start_response):
    """Take for the login what any framework does: `/Login` (Express, IIS), `/login.json` (Rails), `/login;x` (Java)."""
    segments = []
    for segment in environ["PATH_INFO"].lower().replace("\\", "/").split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    found = len(segments) == 1 and re.split(r"[.;?#\s\0]", segments[0], maxsplit=1)[0] == "login"
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"login" if found else b"other"]
