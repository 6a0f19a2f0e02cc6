"""The HTTP app of the service: `/auth`, decisions as JSON, and the health of the process.

This module is internal: its names may change in any release.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Decision
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.service.access import Right
from ratelimit_mw.service.auth import Auth
from ratelimit_mw.service.checks import MAX_BODY, BadRequest, Check, CheckReader, as_json, as_row, parsed
from ratelimit_mw.service.messages import Refused
from ratelimit_mw.service.ratelimit_pb2 import JsonRateLimitRequest, RateLimitResponse
from ratelimit_mw.service.should_rate_limit import NotPermitted, ShouldRateLimit
from ratelimit_mw.service.state import Service

Endpoint = Callable[[Request], Awaitable[Response]]

BODY_WITHIN = 30.0
"""The seconds within which the body of a request must arrive."""

_MOST_DISCARDED = 16 * MAX_BODY
"""The longest body, in bytes, that is read to its end although it is refused. A connection that is closed with unread
bytes is reset, and the client may lose the response."""

_LONGEST_NUMBER = 20
"""The digits of the greatest Content-Length. Thousands of zeros may precede them, which `int` does not read."""


def http_app(service: Service) -> ASGIApp:
    """Return the app that is served at `--http`."""
    api = _Api(service)
    check, admin = partial(api.guarded, "check"), partial(api.guarded, "admin")
    starlette = Starlette(
        routes=[
            Route("/v1/check", check(api.check), methods=["POST"]),
            Route("/v1/peek", check(api.peek), methods=["POST"]),
            Route("/v1/explain", admin(api.explain), methods=["POST"]),
            Route("/v1/reset", admin(api.reset), methods=["POST"]),
            Route("/json", check(api.json), methods=["GET", "POST"]),
            Route("/healthcheck", api.health),
            *probes(service),
        ]
    )
    return Auth(service, starlette)


def probes(service: Service) -> list[Route]:
    """Return the endpoints that tell the health of the process to any caller: `/livez` and `/readyz`."""

    async def alive(_request: Request) -> Response:
        """200 as long as the event loop runs."""
        return PlainTextResponse("alive\n")

    async def ready(_request: Request) -> Response:
        """200 if a load balancer may send requests."""
        return PlainTextResponse("ready\n") if service.ready else PlainTextResponse("not ready\n", 503)

    return [Route("/livez", alive), Route("/readyz", ready)]


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        BadRequest: It is longer than `MAX_BODY`, or did not arrive within `BODY_WITHIN` seconds. Beyond
            `_MOST_DISCARDED` bytes, the rest of it is not read.
        ClientDisconnect: The client has left.
    """
    parts, size = bytearray(), 0
    told = request.headers.get("content-length", "")[-_LONGEST_NUMBER:]
    if "expect" in request.headers and told.isdecimal() and int(told) > MAX_BODY:  # nothing of it is sent yet
        raise _too_long()
    try:
        async with asyncio.timeout(BODY_WITHIN):
            async for part in request.stream():
                size += len(part)
                if size <= MAX_BODY:
                    parts += part
                elif size > _MOST_DISCARDED:
                    break
    except (TimeoutError, asyncio.CancelledError):  # the server cancels what has not ended within --grace
        raise BadRequest(["the body took too long"], 408, "slow_body") from None
    if size > MAX_BODY:
        raise _too_long()
    return bytes(parts)


def _too_long() -> BadRequest:
    return BadRequest([f"the body is longer than {MAX_BODY} bytes"], 413, "body_too_long")


class _Api:
    """The endpoints. The methods answer one request each."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._limiter = service.limiter
        self._should_rate_limit = ShouldRateLimit(service)

    def guarded(self, right: Right, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint for callers that have this right. It also answers bodies that cannot be read."""

        async def answer(request: Request) -> Response:
            self._service.asked[request.scope["path"]] += 1  # one of the routes
            if refusal := refused_caller(self._service, request, right):
                return refusal
            try:
                return await endpoint(request)
            except BadRequest as error:
                self._service.refuse(error.reason)
                headers = None if error.status == 400 else {"Connection": "close"}
                return JSONResponse({"problems": error.problems}, error.status, headers)
            except (ClientDisconnect, asyncio.CancelledError):  # the server cancels what has not ended within --grace
                # It is not sent to a client that has left.
                return JSONResponse({"problems": ["the service ended before it could answer"]}, 503)

        return answer

    async def check(self, request: Request) -> Response:
        """`/v1/check`: decide and charge."""
        as_status = _wants_status(request)
        checks, several, rows = await self._checks(request)
        if as_status and several:
            raise BadRequest(["?status=429 is only for one check: each decision of a list has its own status"])
        decisions = await self._each(self._limiter.acheck, checks)
        if several:
            return self._several(decisions, rows=rows)
        (decision,) = decisions
        if decision.allowed or not as_status:
            return JSONResponse(as_json(decision))
        wait = decision.retry_after
        headers = {} if math.isinf(wait) else {"Retry-After": str(max(1, math.ceil(wait)))}
        return JSONResponse(as_json(decision), _status(self._limiter.rules, decision), headers)

    async def peek(self, request: Request) -> Response:
        """`/v1/peek`: decide without charging."""
        checks, several, rows = await self._checks(request)
        decisions = await self._each(self._limiter.apeek, checks)
        return self._several(decisions, rows=rows) if several else JSONResponse(as_json(decisions[0]))

    def _several(self, decisions: Sequence[Decision | None], *, rows: bool) -> Response:
        """Several decisions, and what the denials of their rules say to clients if it is not the usual."""
        listed = {"rows": [*map(as_row, decisions)]} if rows else {"decisions": as_json(decisions)}
        names = {decision.rule for decision in decisions if decision is not None}
        told = {
            rule.name: {"status": rule.status, "message": rule.message, "hidden": rule.hidden}
            for rule in reversed(self._limiter.rules.rules)
            if rule.name in names and (rule.status is not None or rule.message is not None or rule.hidden)
        }
        return JSONResponse({**listed, **({"rules": told} if told else {})})

    async def explain(self, request: Request) -> Response:
        """`/v1/explain`: explain a decision."""
        check = self._reader().one(parsed(await read_body(request)))
        explanation = await self._limiter.aexplain(check.attributes, check.cost, domain=check.domain, **check.named)
        return JSONResponse(as_json(explanation), 503 if explanation.error else 200)

    async def reset(self, request: Request) -> Response:
        """`/v1/reset`: reset the counters of a client."""
        check = self._reader().one(parsed(await read_body(request)), with_cost=False)
        try:
            await self._limiter.areset(check.attributes, domain=check.domain, **check.named)
        except StoreUnavailable:
            return JSONResponse({"problems": ["the store does not answer"]}, 503)
        return JSONResponse({"reset": True})

    async def json(self, request: Request) -> Response:
        """`/json`: ShouldRateLimit as proto3-JSON, as envoyproxy/ratelimit reads and writes it. A denial is a 429."""
        asked = _request_of(parsed(await read_body(request)))
        authorization = request.headers.get("authorization")
        may_refund = partial(self._service.access.allows, "refund", authorization)
        try:
            answer = await self._should_rate_limit.answer(asked, may_refund)
        except Refused as error:
            return JSONResponse({"problems": [str(error)]}, 403 if isinstance(error, NotPermitted) else 400)
        response = RateLimitResponse.FromString(answer)
        denied = response.overall_code == RateLimitResponse.OVER_LIMIT
        return JSONResponse(MessageToDict(response), 429 if denied else 200)

    async def health(self, _request: Request) -> Response:
        """`/healthcheck`: the answers of envoyproxy/ratelimit."""
        return PlainTextResponse("OK") if self._service.ready else Response(status_code=500)

    def _reader(self) -> CheckReader:
        return CheckReader(self._limiter.engine.current())

    async def _checks(self, request: Request) -> tuple[list[Check], bool, bool]:
        """The checks of a request, whether it has a list of them, and whether it wants rows."""
        value: Any = parsed(await read_body(request))
        checks, several = self._reader().checks(value)
        return checks, several, several and value.get("rows", False)

    @staticmethod
    async def _each(ask: Callable[..., Awaitable[Decision]], checks: list[Check]) -> list[Any]:
        """Decide on all checks in order. They are sent to a remote store together. None is for an unknown rule."""

        async def by_name(check: Check) -> Decision | None:
            try:
                return await ask(check.attributes, check.cost, domain=check.domain, **check.named)
            except LookupError:
                return None

        asked = [by_name(each) if each[3] else ask(each[0], each[1], domain=each[2]) for each in checks]
        return await asyncio.gather(*asked)


_FORM = (
    "the body is not the request of ShouldRateLimit as proto3-JSON, as in "
    '{"domain": "shop", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}], "hitsAddend": 1}'
)


def _request_of(value: object) -> bytes:
    """Return the wire message of a request of `/json`.

    Args:
        value: The request, as `json.loads` returns it.

    Raises:
        BadRequest: The value is not a request. The error does not say where: the text of the library quotes the value.
    """
    if not isinstance(value, dict):
        raise BadRequest([_FORM])
    try:
        return ParseDict(value, JsonRateLimitRequest()).SerializeToString()
    except ParseError:
        raise BadRequest([_FORM]) from None


def refused_caller(service: Service, request: Request, right: Right) -> Response | None:
    """Return the answer to a caller that does not have a right, or None.

    A page in the browser of an operator reaches the ports on loopback. Browsers send the origin of the page along.
    """
    if "origin" in request.headers:
        service.refuse("browser")
        return JSONResponse({"problems": ["pages in browsers may not ask"]}, 403)
    access = service.access
    authorization = request.headers.get("authorization")
    if access.allows(right, authorization):
        return None
    peer = request.client.host if request.client is not None else "unix"
    service.refuse("unauthorized", "a caller at %s was refused: this needs a token for %r", peer, right)
    if access.allows("check", authorization):
        return JSONResponse({"problems": ["this needs an admin token"]}, 403)
    return JSONResponse(
        {"problems": ["this needs a token: Authorization: Bearer TOKEN"]}, 401, {"WWW-Authenticate": "Bearer"}
    )


def _wants_status(request: Request) -> bool:
    """Return True for `?status=429`: the status tells the decision."""
    pairs = request.query_params.multi_items()
    if pairs not in ([], [("status", "429")]):
        raise BadRequest(["the query may only be status=429"])
    return bool(pairs)


_STATUSES = {"unavailable": 503, "shed": 503, "blocked": 403}


def _status(rules: Rules, decision: Decision) -> int:
    """Return the status of a denial, as the middlewares send it."""
    known = _STATUSES.get(decision.reason or "")
    if known is not None:
        return known
    own = (rule.rule.status for part in rules.parts for rule in part.compiled if rule.rule.name == decision.rule)
    return next(own, None) or rules.response.status
