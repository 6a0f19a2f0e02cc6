"""Apps that say whose session they serve, under a limit of three requests of a session: one in each framework.

A server calls the function of an app's name. Only its own framework is imported, so the module also
runs beside the oldest versions that the package admits.
"""

from typing import Any

CONFIG = {
    "domain": "sessions",
    "storage": {"timeout": "5s"},
    "client": {"user": "cookie:sid"},
    "rules": [
        {"name": "own", "by": "user", "limit": "3 per day"},
        {"name": "host", "match": {"host": "api.example.com"}, "by": "global", "limit": "3 per day"},
    ],
}


def starlette() -> Any:
    """A route of its own for one host, and the cookie on all others."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Host, Route

    from ratelimit_mw.asgi import RateLimitMiddleware

    async def session(request: Any) -> Any:
        return PlainTextResponse(f"<{request.cookies.get('sid')}>")

    async def hosted(request: Any) -> Any:
        return PlainTextResponse("<hosted>")

    inner = Starlette(routes=[Route("/", hosted)])
    return RateLimitMiddleware(Starlette(routes=[Host("api.example.com", inner), Route("/", session)]), CONFIG)


def _django() -> None:
    import django
    from django.conf import settings
    from django.http import HttpResponse
    from django.urls import path

    def session(request: Any) -> Any:
        return HttpResponse(f"<{request.COOKIES.get('sid')}>")

    globals()["urlpatterns"] = [path("", session)]
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], USE_TZ=True, SECRET_KEY="s")
    django.setup()


def django_asgi() -> Any:
    """Django under ASGI."""
    _django()
    from django.core.asgi import get_asgi_application

    from ratelimit_mw.asgi import RateLimitMiddleware

    return RateLimitMiddleware(get_asgi_application(), CONFIG)


def django_wsgi() -> Any:
    """Django under WSGI."""
    _django()
    from django.core.wsgi import get_wsgi_application

    from ratelimit_mw.wsgi import RateLimitMiddleware

    return RateLimitMiddleware(get_wsgi_application(), CONFIG)


def flask() -> Any:
    """Flask, and with it Werkzeug."""
    from flask import Flask, request

    from ratelimit_mw.wsgi import RateLimitMiddleware

    app = Flask("sessions")
    app.add_url_rule("/", view_func=lambda: f"<{request.cookies.get('sid')}>", endpoint="session")
    return RateLimitMiddleware(app.wsgi_app, CONFIG)


def litestar() -> Any:
    """Litestar."""
    from litestar import Litestar, Request, get

    from ratelimit_mw.asgi import RateLimitMiddleware

    @get("/", media_type="text/plain")
    async def session(request: Request[Any, Any, Any]) -> str:
        return f"<{request.cookies.get('sid')}>"

    return RateLimitMiddleware(Litestar([session]), CONFIG)


def quart() -> Any:
    """Quart."""
    from quart import Quart, request

    from ratelimit_mw.asgi import RateLimitMiddleware

    app = Quart("sessions")

    @app.get("/")
    async def session() -> str:
        return f"<{request.cookies.get('sid')}>"

    return RateLimitMiddleware(app, CONFIG)


def falcon_asgi() -> Any:
    """Falcon under ASGI."""
    import falcon
    from falcon.asgi import App

    from ratelimit_mw.asgi import RateLimitMiddleware

    class Session:
        async def on_get(self, request: Any, response: Any) -> None:
            response.content_type = falcon.MEDIA_TEXT
            response.text = f"<{request.cookies.get('sid')}>"

    app = App()
    app.add_route("/", Session())
    return RateLimitMiddleware(app, CONFIG)


def bottle() -> Any:
    """Bottle."""
    from bottle import Bottle, request

    from ratelimit_mw.wsgi import RateLimitMiddleware

    app = Bottle()
    app.route("/", callback=lambda: f"<{request.get_cookie('sid')}>")
    return RateLimitMiddleware(app, CONFIG)
