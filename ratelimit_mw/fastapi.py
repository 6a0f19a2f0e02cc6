"""Limits inside a FastAPI app: dependencies that ask for rules by name. Requires the extra `fastapi`."""

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Unpack

from ratelimit_mw.errors import ConfigurationError, Problem, extra

with extra("fastapi"):
    from fastapi import FastAPI, HTTPException, Response, WebSocket, WebSocketException
    from starlette.datastructures import MutableHeaders
    from starlette.requests import HTTPConnection, Request
    from starlette.types import ASGIApp

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.http.answers import DenialResponse, phrase
from ratelimit_mw.http.limits_in_code import LimitInCode, LimitOptions, limit_in_code, name_of_view
from ratelimit_mw.http.responses import lifespan_with
from ratelimit_mw.http.setup import Found, limiter_for, routes_below, rules_of_view
from ratelimit_mw.http.websocket import close_code
from ratelimit_mw.identity.request import flat
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import Decision
from ratelimit_mw.rules.inline import InlineLimit
from ratelimit_mw.starlette import refunds_of, response_of
from ratelimit_mw.stores import Store

__all__ = ["RateLimited", "add_rate_limits", "limited"]

_ADVICE = "the middleware is not around this app; write ratelimit_mw.fastapi.add_rate_limits(app, config)"
_OF_THE_BODY = frozenset({b"content-type", b"content-length"})


class RateLimited(HTTPException):
    """A rule denied the request.

    After `add_rate_limits`, the `response` section of the rules makes the answer. Without it, FastAPI answers as for
    any HTTPException, with the same status and headers.

    Args:
        decision: The decision of the rule.
        denial: The status, the headers and the body of the answer.

    Attributes:
        decision: The decision of the rule.
        response: The answer by the `response` section, as a Starlette response.
    """

    def __init__(self, decision: Decision, denial: DenialResponse[str]) -> None:
        self.decision = decision
        self.response = response_of(denial)
        own = [line for line in self.response.raw_headers if line[0] not in _OF_THE_BODY]
        super().__init__(denial.status, phrase(denial.status), MutableHeaders(raw=own))  # it keeps repeated headers


@dataclass(frozen=True)
class Limited:
    """A dependency, see `limited`. Those with the same arguments are equal, so they charge a request once.

    Attributes:
        limit: The rule or the limit that is asked for.
    """

    limit: LimitInCode

    def of(self, endpoint: object) -> str | InlineLimit:
        """Return what is asked for requests to an endpoint. Dependencies have no stack, so the name has the limit."""
        limit = self.limit.rule
        if isinstance(limit, str) or limit.shared:
            return limit
        words = [self.limit.text, *(f"by {entry}" for entry in limit.by), *filter(None, [limit.algorithm])]
        return limit._replace(name=f"{name_of_view(endpoint)}[{' '.join(words)}]")

    def __post_init__(self) -> None:
        # FastAPI asks this attribute whether the call is to be awaited. The method is not async, so that it can refuse
        # a function at once.
        object.__setattr__(self, "__call__", self._decide)

    @property
    def dependency(self) -> NoReturn:
        """Raises TypeError. FastAPI reads this if the list `dependencies` has this object in place of `Depends(…)`."""
        raise TypeError(f"limited makes a dependency: write dependencies=[Depends({self.written})]")

    @property
    def written(self) -> str:
        """The call that made this object, for messages."""
        return f"limited({self.limit.text!r})"

    def __call__(self, connection: HTTPConnection) -> Awaitable[Decision]:
        """Decide on a request or a WebSocket.

        Raises:
            RateLimited: the rule denies the request. This and the next two are raised by the awaitable.
            WebSocketException: the rule denies a WebSocket, and the server cannot send a response to it.
            RuntimeError: the middleware is not around the app.
            TypeError: the dependency is used as a decorator.
        """
        given: object = connection  # a function, if this is used as a decorator
        if not isinstance(given, HTTPConnection):
            raise TypeError(
                f"limited of ratelimit_mw.fastapi makes a dependency, and does not decorate {given!r}: write "
                f"dependencies=[Depends({self.written})] in the decorator of the route, or decorate with limited of "
                "ratelimit_mw.starlette"
            )
        return self._decide(connection)

    async def _decide(self, connection: HTTPConnection) -> Decision:
        scope = connection.scope
        rule = self.of(scope.get("endpoint"))
        found, later = scope.get("ratelimit"), refunds_of(connection)
        decision, denial = await self.limit.aenforce(rule, found, connection, later)
        if denial is None:
            return decision
        code = close_code(scope, denial.status)
        raise RateLimited(decision, denial) if code is None else WebSocketException(code)


def limited(
    rule: str | Callable[[Any], Any], cost: int | Callable[[Any], Any] = 1, **options: Unpack[LimitOptions]
) -> Limited:
    """Make a dependency that decides by one rule or limit, as in `Depends(limited("mail"))`.

    The dependency charges the request if it is allowed, waits if the rule makes it wait, and returns the Decision. It
    needs the middleware, which `add_rate_limits` adds; without it, a request raises RuntimeError. An endpoint may have
    several.

    Args:
        rule: The name of a rule, or a limit in the form of a rules file, such as "5 per minute", or a function that
            gets the request and returns such a limit. A limit has counters of its own for each endpoint.
        cost: What the request is charged, as a multiple of the rule's `cost`: a whole number of at least 0, or a
            function that gets the request and returns it. Any other value counts as 1, and is logged once.
        options: The options, see `LimitOptions`.

    Raises:
        RateLimited: The rule denies the request. It is raised when the dependency is called.
        ConfigurationError: The text begins with a number, but is not a limit, or the limit cannot be used. What
            depends on the rules is raised at the start of the app, or when the dependency is called.
        LookupError: There is no rule of this name. It is raised when the dependency is called. With
            `add_rate_limits`, usually the app does not even start, because the names are checked in the lifespan.
        ValueError: The cost is negative. It is raised when the dependency is called.
    """
    return Limited(limit_in_code(rule, cost, options, advice=_ADVICE))


def add_rate_limits(
    app: FastAPI,
    config: str | os.PathLike[str] | Mapping[str, object] | None = None,
    *,
    limiter: RateLimiter | None = None,
    storage: str | Store | None = None,
) -> None:
    """Add the middleware to a FastAPI app, and the error handler and OpenAPI entries that `limited` needs.

    Denials by `limited` are answered like those of the middleware. The OpenAPI schema describes the denial in each
    operation with such a dependency. The app does not start if a dependency names an unknown rule, or a rule that
    depends on the response.

    Args:
        app: The app.
        config: The rules, as for `RateLimiter`.
        limiter: An engine that is already made, which several apps may share. It is not closed with the app.
        storage: Where the counters are, as for `RateLimiter`. It is allowed with `config` only.

    Raises:
        TypeError: Both `config` and `limiter` are given, or neither; or `app` is not a FastAPI app.
        ConfigurationError: The rules cannot be used. The error has every problem found.
    """
    if not isinstance(app, FastAPI):
        raise TypeError(
            f"the first argument is not a FastAPI app, but a {type(app).__name__}: write add_rate_limits(app, config)"
        )
    used = limiter_for(config, limiter, storage)
    app.add_middleware(_Middleware, within=app, limiter=used, owned=limiter is None)
    handler: Any = _answer  # Starlette has types for handlers of requests and of WebSockets, not for one of both
    app.add_exception_handler(RateLimited, handler)
    openapi = app.openapi

    def documented() -> dict[str, Any]:
        schema = openapi()
        _document(app, schema, used)
        return schema

    app.openapi = documented  # type: ignore[method-assign]  # FastAPI's documentation says to extend it so


async def _answer(connection: Request | WebSocket, denied: Any) -> Response | None:
    """The answer to a denied request. A WebSocket is answered here, as older versions of Starlette do not do so."""
    response: Response = denied.response
    if isinstance(connection, WebSocket):
        await connection.send_denial_response(response)
        return None
    return response


class _Middleware(RateLimitMiddleware):
    """Also checks the names in dependencies, which routes of included routers have. Closes an owned limiter."""

    def __init__(self, app: ASGIApp, *, within: FastAPI, limiter: RateLimiter, owned: bool) -> None:
        super().__init__(app, limiter=limiter)
        self._within = within
        self._lifespan = lifespan_with(app, limiter, owned=owned)

    def _routes(self) -> Iterator[Any]:
        return routes_below(self._within.router, RateLimitMiddleware)

    def _asked(self) -> Iterable[Found]:
        for route in self._routes():
            endpoint = getattr(route, "endpoint", None)
            if hasattr(route, "dependant"):
                _require_depends(endpoint)
            yield from rules_of_view(endpoint)
            yield from (Found((endpoint, each), each.of(endpoint), each.limit) for each in _limits_of(route))


def _require_depends(endpoint: Any) -> None:
    """Refuse an endpoint with `limited(…)` as a default: without `Depends`, FastAPI takes it for a value."""
    for each in inspect.signature(endpoint).parameters.values():
        if isinstance(each.default, Limited):
            message = f"{name_of_view(endpoint)}: {each.name}={each.default.written} limits nothing"
            raise ConfigurationError([Problem(message, hint=f"write {each.name}=Depends({each.default.written})")])


def _limits_of(route: Any) -> list[Limited]:
    """The limits in the dependencies of a route."""
    found, waiting = [], [route.dependant] if getattr(route, "dependant", None) is not None else []
    while waiting:
        dependant = waiting.pop()
        waiting += dependant.dependencies
        if isinstance(dependant.call, Limited):
            found.append(dependant.call)
    return found


def _document(app: FastAPI, schema: dict[str, Any], limiter: RateLimiter) -> None:
    """Add the denial to the OpenAPI operations with a limit, unless they describe a response of that status."""
    own = {rule.name: rule.status for rule in limiter.rules.rules if rule.status}
    paths = schema.get("paths", {})
    for route in flat(app.routes):
        limits: list[Found | Limited] = [*rules_of_view(getattr(route, "endpoint", None)), *_limits_of(route)]
        statuses = {own.get(each.limit.text) or limiter.rules.response.status for each in limits}
        for method in getattr(route, "methods", None) or ():  # a WebSocket has none
            operation = paths.get(route.path_format, {}).get(method.lower())
            if operation is not None:
                for status in sorted(statuses):
                    operation.setdefault("responses", {}).setdefault(str(status), {"description": phrase(status)})
