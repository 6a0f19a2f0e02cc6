"""The admin app of the service: metrics, the rules in force, and the state of the process.

In the text of the rules, the line of a descriptor is as envoyproxy/ratelimit writes it. A rule has its limits in words.

This module is internal: its names may change in any release.
"""

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from ipaddress import ip_address

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ratelimit_mw.decision.explanation import limit_in_words
from ratelimit_mw.envoy.tree import DEFAULT, DescriptorLimit
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import Quota
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.service.access import Right
from ratelimit_mw.service.api import probes, refused_caller
from ratelimit_mw.service.metrics import Metrics
from ratelimit_mw.service.settings import Address
from ratelimit_mw.service.state import Service
from ratelimit_mw.units import UNITS

_UNIT_NAMES = {period: name.upper() for name, period in UNITS.items() if name != "millisecond"}


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
        """`/stats`: the counts of envoyproxy/ratelimit."""
        return PlainTextResponse(metrics.stats())

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


def rules_text(limiter: RateLimiter) -> str:
    """Return the rules of a limiter, one line for each limit."""
    state, rules = limiter.state, limiter.rules
    since = datetime.fromtimestamp(state.loaded_at, UTC).isoformat(timespec="seconds")
    lines = [f"# version {state.version}, since {since}"]
    if state.error is not None:
        lines.append("# newer rules cannot be used; the reason is in the log")
    for part in rules.parts:
        lines += _lines(part)
    return "\n".join(lines) + "\n"


def _lines(part: RuleSet) -> Iterator[str]:
    if part.shadow:
        yield f"# the domain {part.domain} is in shadow: nothing is enforced"
    for rule in part.compiled:
        yield f"{part.domain}.{rule.rule.name}: {_of_rule(rule)}"
    for limit in part.descriptors.limits if part.descriptors is not None else ():
        yield f"{part.domain}.{limit.rule.name}: {_of_descriptor(limit)}"


def _of_rule(rule: CompiledRule) -> str:
    words = [_of_limits(rule), f"by {', '.join(rule.by)}"]
    if rule.match.templates:
        words.append(f"path {', '.join(rule.match.templates)}")
    if rule.match.methods:
        words.append(f"methods {', '.join(rule.match.methods)}")
    words += [word for word, is_set in (("on demand", rule.on_demand), ("shadow", rule.rule.shadow)) if is_set]
    return "; ".join(words)


def _of_limits(rule: CompiledRule) -> str:
    if rule.read_limit is not None:
        return "the limit of a function"
    tiers = [f"{tier}: {_and(quota for _, quota in counters)}" for tier, counters in (rule.tiers or {}).items()]
    own = _and(rule.limits)
    return ", ".join([*tiers, f"others: {own}" if tiers else own])


def _and(quotas: Iterator[Quota] | tuple[Quota, ...]) -> str:
    return " and ".join([f"{limit_in_words(quota)} ({quota.algorithm})" for quota in quotas]) or "no limit"


def _of_descriptor(limit: DescriptorLimit) -> str:
    quota, rule = limit.quota, limit.rule
    if quota is None:
        return "unlimited"
    flags = f"shadow_mode: {str(rule.shadow).lower()}, quota_mode: {str(bool(rule.quota_group)).lower()}"
    unit = _UNIT_NAMES.get(quota.period)
    if unit is None or quota.algorithm != DEFAULT:
        return f"{_and((quota,))}, {flags}"
    return f"unit={unit} requests_per_unit={quota.limit}, {flags}"
