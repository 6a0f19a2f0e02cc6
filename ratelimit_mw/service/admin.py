"""The admin app of the service: metrics, the rules in force, and the state of the process.

This module is internal: its names may change in any release.
"""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ratelimit_mw.service.api import refused_caller
from ratelimit_mw.service.checks import as_json
from ratelimit_mw.service.metrics import Metrics
from ratelimit_mw.service.rules_text import rules_text
from ratelimit_mw.service.state import Service


def admin_app(service: Service) -> Starlette:
    """Return the app that is served at `--admin`. With a token file, every endpoint needs an admin token."""
    metrics = Metrics(service)

    async def show_metrics(_request: Request) -> Response:
        """`/metrics`: the metrics, as Prometheus reads them."""
        content, content_type = metrics.exposition()
        return Response(content, headers={"Content-Type": content_type})

    async def show_rules(_request: Request) -> Response:
        """`/rlconfig`: the rules in force."""
        return PlainTextResponse(rules_text(service.limiter))

    async def show_state(_request: Request) -> Response:
        """`/stats`: the state of the process."""
        return JSONResponse(_state(service))

    def guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return refused_caller(service, request, "admin") or await endpoint(request)

        return answer

    endpoints = {"/metrics": show_metrics, "/rlconfig": show_rules, "/stats": show_state}
    return Starlette(routes=[Route(path, guarded(endpoint)) for path, endpoint in endpoints.items()])


def _state(service: Service) -> dict[str, object]:
    rules = service.limiter.state
    return {
        "ready": service.ready,
        "draining": service.draining,
        "under_way": service.under_way,
        "asked": dict(service.asked),
        "refused": dict(service.refused),
        "unknown_domains": service.unknown_domains,
        "rules": as_json(
            {
                "version": rules.version,
                "loaded_at": rules.loaded_at,
                "newest": rules.error is None,
                "overrides": rules.overrides,
            }
        ),
    }
