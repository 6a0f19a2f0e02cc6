"""The admin app of the service: metrics, the rules in force, and the state of the process.

This module is internal: its names may change in any release.
"""

from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ratelimit_mw.service.access import Right
from ratelimit_mw.service.api import probes, refused_caller
from ratelimit_mw.service.checks import as_json
from ratelimit_mw.service.metrics import Metrics
from ratelimit_mw.service.rules_text import rules_text
from ratelimit_mw.service.settings import Address
from ratelimit_mw.service.state import Service


def admin_app(service: Service) -> Starlette:
    """Return the app that is served at `--admin`. With a token file, all but the probes need an admin token."""
    metrics = Metrics(service)
    settings = service.settings
    right: Right = "check" if settings.token_file is None else "admin"  # without tokens, this port is on loopback
    # A browser reads this port for a page of the web if the name of that page leads to this machine (DNS rebinding).
    # It sends no Origin then, but the name as the Host. Tokens and certificates prevent this, too.
    by_local_name = settings.token_file is None and settings.tls_cert is None and _is_tcp(settings.admin)

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
            refusal = refused_caller(service, request, right)
            if refusal is None and by_local_name and not _is_local(request.headers.get("host", "")):
                service.refuse("host")
                refusal = JSONResponse({"problems": [_NOT_LOCAL]}, 421)
            return refusal or await endpoint(request)

        return answer

    endpoints = {"/metrics": show_metrics, "/rlconfig": show_rules, "/stats": show_state}
    routes = [Route(path, guarded(endpoint)) for path, endpoint in endpoints.items()]
    return Starlette(routes=[*routes, *probes(service)])


_NOT_LOCAL = "the Host of a request must be localhost or a loopback address, or the service needs a token file"


def _is_tcp(address: Address | None) -> bool:
    return address is not None and not address.path


def _is_local(host: str) -> bool:
    """True if a header `Host`, with or without a port, is `localhost` or a loopback address."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    try:
        return name.lower() == "localhost" or ip_address(name).is_loopback
    except ValueError:  # another name
        return False


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
