"""The HTTP app of the service.

This module is internal: its names may change in any release.
"""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw.service.state import Service


def http_app(service: Service) -> Starlette:
    """Return the app that is served at `--http`."""

    async def alive(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("alive\n")

    async def ready(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("ready\n") if service.ready else PlainTextResponse("not ready\n", 503)

    return Starlette(routes=[Route("/livez", alive), Route("/readyz", ready)])
