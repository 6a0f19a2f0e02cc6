"""Limits inside a Starlette app: endpoints that ask for rules by name. Requires the extra `starlette`."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, Unpack

from ratelimit_mw.errors import extra

with extra("starlette"):
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import HTTPConnection
    from starlette.responses import Response
    from starlette.websockets import WebSocket, WebSocketState

from ratelimit_mw.http.answers import DenialResponse
from ratelimit_mw.http.limits_in_code import LimitOptions, Refund, decorator, limit_in_code
from ratelimit_mw.http.responses import REFUNDS
from ratelimit_mw.http.websocket import close_code

__all__ = ["limited"]

_ADVICE = (
    "the middleware is not around this app; write app.add_middleware(ratelimit_mw.asgi.RateLimitMiddleware, config=…)"
)

_CLASSES = "HTTPEndpoint or WebSocketEndpoint"

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def limited(
    rule: str | Callable[[Any], Any],
    cost: int | Callable[[Any], Any] = 1,
    **options: Unpack[LimitOptions],
) -> Callable[[_Endpoint], _Endpoint]:
    """Make a decorator for endpoints. Before each call, one rule or limit decides on the request.

    It decorates functions that take a request or a WebSocket, subclasses of HTTPEndpoint and WebSocketEndpoint, and
    their methods. Functions may be async or not, and may take further arguments, as endpoints of FastAPI do.

    If the rule makes the request wait, the endpoint waits. If the rule denies the request, the response is made by the
    `response` section of the rules. A WebSocket that is accepted already is closed with the code 1008.

    Args:
        rule: The name of a rule, or a limit in the form of a rules file, such as "5 per minute", or a function that
            gets the request and returns such a limit. A limit has counters of its own for each endpoint and each place
            in the stack.
        cost: What the request is charged, as a multiple of the rule's `cost`: a whole number of at least 0, or a
            function that gets the request and returns it. Any other value counts as 1, and is logged once.
        options: The options, see `LimitOptions`. On a class, the functions get a connection without a body.

    Raises:
        ConfigurationError: The text begins with a number, but is not a limit, or the limit cannot be used. What
            depends on the rules is raised at the start of the app, or when the endpoint is called.
        TypeError: The decorated class is no endpoint, or the decorated function has no argument for the request. The
            latter is raised at the first call if the function has other arguments.
        LookupError: There is no rule of this name. It is raised when the endpoint is called. Usually the app does not
            even start, because the names are checked in the lifespan.
        ValueError: The cost is negative. It is raised when the endpoint is called.
        RuntimeError: The middleware is not around the app. It is raised when the endpoint is called.
    """
    limit = limit_in_code(rule, cost, options, advice=_ADVICE)

    def of_class(kind: Any) -> Any:
        dispatch: Any = getattr(kind, "dispatch", None)
        if not inspect.iscoroutinefunction(dispatch):
            raise TypeError(f"limited decorates functions, and subclasses of {_CLASSES}, not {kind!r}")
        placed = limit.above(dispatch, kind)

        @wraps(dispatch)
        async def dispatched(self: Any) -> None:
            found, connection = self.scope.get("ratelimit"), HTTPConnection(self.scope)
            later = refunds_of(connection)
            denial = (await limit.aenforce(placed.of(type(self)), found, connection, later)).denial
            if denial is None:
                await dispatch(self)
            elif (code := close_code(self.scope, denial.status)) is None:
                await response_of(denial)(self.scope, self.receive, self.send)
            else:
                await self.send({"type": "websocket.close", "code": code})

        kind.dispatch = placed.marked(dispatched)
        return kind

    def of_function(endpoint: Callable[..., Any]) -> Any:
        if not inspect.signature(endpoint).parameters:
            raise TypeError(_without_request(endpoint))
        awaits = inspect.iscoroutinefunction(endpoint)
        placed = limit.above(endpoint)
        wanted = placed.of(None)

        @wraps(endpoint)
        async def limiting(*args: Any, **kwargs: Any) -> Any:
            connection = _connection(endpoint, *args, *kwargs.values())
            found, later = connection.scope.get("ratelimit"), refunds_of(connection)
            denial = (await limit.aenforce(wanted, found, connection, later)).denial
            if denial is not None:
                return await _answer(connection, denial)
            if awaits:
                return await endpoint(*args, **kwargs)
            response = await run_in_threadpool(endpoint, *args, **kwargs)
            return await response if inspect.isawaitable(response) else response  # of an object with async `__call__`

        return placed.marked(limiting)

    return decorator(of_class, of_function)


def _connection(endpoint: Callable[..., Any], *arguments: Any) -> HTTPConnection:
    """The request or WebSocket among the arguments of an endpoint."""
    for argument in arguments:
        if isinstance(argument, HTTPConnection):
            return argument
    raise TypeError(_without_request(endpoint))


def _without_request(endpoint: Callable[..., Any]) -> str:
    name = getattr(endpoint, "__qualname__", None) or repr(endpoint)
    return f"limited needs the request: give {name} an argument for it, as in {name}(request: Request)"


def refunds_of(connection: HTTPConnection) -> Callable[[Refund], None]:
    """Return what keeps a refund until the response to this request starts. A WebSocket has no response."""

    def later(refund: Refund) -> None:
        async def settle(status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
            response = Response(None, status)
            response.raw_headers = list(headers)
            await refund.asettle(response)

        if connection.scope["type"] == "http":
            if REFUNDS not in connection.scope:
                raise RuntimeError(
                    "the middleware did not find this route with refund_when at the start of the app: add the route "
                    "before; if another middleware is around the app, it must have the app in its attribute `app`"
                )
            connection.scope[REFUNDS].append(settle)

    return later


def response_of(denial: DenialResponse[str]) -> Response:
    """The response to a denied request. A header may be there twice, as Set-Cookie."""
    response = Response(denial.body, denial.status)
    response.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in denial.headers]
    return response


async def _answer(connection: HTTPConnection, denial: DenialResponse[str]) -> Response | None:
    """The answer to a request. A WebSocket is answered or closed here, because its endpoint returns no response."""
    if not isinstance(connection, WebSocket):
        return response_of(denial)
    code = close_code(connection.scope, denial.status)
    if connection.application_state is WebSocketState.CONNECTED:
        await connection.close(1008)
    elif code is None:
        await connection.send_denial_response(response_of(denial))
    else:
        await connection.close(code)
    return None
