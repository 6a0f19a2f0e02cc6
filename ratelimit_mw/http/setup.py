"""What the middlewares do when they are made: the choice of the limiter, and the checks of the setup.

The first requests also show mistakes in the setup, such as an untrusted proxy.
"""

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.identity.address import canonical
from ratelimit_mw.identity.app_routes import knows_routes
from ratelimit_mw.identity.http_request import drops_underscores
from ratelimit_mw.identity.path_forms import apps_inside
from ratelimit_mw.identity.request import Request
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.inline import InlineLimit
from ratelimit_mw.stores import Store

_log = logging.getLogger("ratelimit_mw")


def limiter_for(
    config: str | os.PathLike[str] | Mapping[str, object] | None,
    limiter: RateLimiter | None,
    storage: str | Store | None,
) -> RateLimiter:
    """The limiter of a middleware: `limiter`, or a new one from `config` and `storage`.

    Raises:
        TypeError: both `config` and `limiter` are given, or neither; or `storage` is given with a limiter.
        ConfigurationError: the rules cannot be used.
    """
    if (config is None) is (limiter is None):
        raise TypeError("RateLimitMiddleware takes either a config or a limiter: exactly one of them")
    if config is not None:
        limiter = RateLimiter(config, storage=storage)
    elif storage is not None:
        raise TypeError("RateLimitMiddleware takes storage with a config only: a limiter has its own")
    if not isinstance(limiter, RateLimiter):
        raise TypeError(f"limiter takes a RateLimiter, not {type(limiter).__name__}; rules are given as config")
    names = limiter.engine.planner.names
    if not names.serving:
        names.serving = True
        limiter.require(_warning_of_missing_users())
    return limiter


def refuse_awaited(rules: Rules) -> None:
    """Raise ConfigurationError if the rules have async functions. For servers without an event loop."""
    if rules.attributes.awaited:
        names = ", ".join(name for name, _ in rules.attributes.awaited)
        raise ConfigurationError(
            [Problem(f"async functions can't be awaited under WSGI: {names}", hint="write them as plain functions")]
        )


def _warning_of_missing_users() -> Callable[[Rules], None]:
    """A check that warns of rules by user without a source for the user. Django's middleware needs no source."""
    logged: set[str] = set()

    def warn(rules: Rules) -> None:
        for problem in (problem for part in rules.parts for problem in part.without_user):
            if problem.message not in logged:
                logged.add(problem.message)
                _log.warning("%s", problem)

    return warn


def require_routes(app: object) -> Callable[[Rules], None]:
    """Return a check that refuses rules by the app's own routes if the routes of `app` cannot be read."""
    readable = knows_routes(app)

    def check(rules: Rules) -> None:
        unread = [] if readable else [rule for part in rules.parts for rule in part.compiled if rule.needs_routes]
        if unread:
            hint = "add match.path, or count by path"
            raise ConfigurationError(
                [_without_routes(f"rule {quoted(rule.rule.name)}", " without match.path", hint) for rule in unread]
            )

    return check


def require_routes_of(request: Request, limit: InlineLimit, rules: Rules) -> None:
    """Refuse a limit in code that counts by route if the routes of the app that the middleware wraps are unknown.

    The limit would have nothing to count by. At the start, the views of such an app are unknown, too.

    Raises:
        ConfigurationError: The routes are needed and unknown.
    """
    if type(request).app_route is not Request.app_route:
        return
    rule = rules.parts[0].inline.rules.get(limit)  # None while the rules are still to be read from their database
    if rule is not None and rule.needs_routes:
        hint = "put the middleware around the app itself, or count by path, as in by='ip+path'"
        raise ConfigurationError([_without_routes(f"limit {quoted(limit.limit)} of {limit.name}", "", hint)])


def _without_routes(limit: str, how: str, hint: str) -> Problem:
    return Problem(
        f"the {limit} counts by route{how}, but the routes of this app can't be read: it is not an app of "
        "Starlette, FastAPI, Flask or Django",
        hint=hint,
    )


def built_by_starlette(app: object) -> bool:
    """Whether Starlette builds a middleware around `app`. It does so when its app gets the first scope, a lifespan.

    It puts all middlewares around one that handles exceptions.
    """
    kinds = [kind for each in apps_inside(app) for kind in type(each).__mro__]
    return any(kind.__module__ == "starlette.middleware.exceptions" for kind in kinds)


def refuse_wsgi_app(app: object) -> None:
    """Raise TypeError if `app` is known to be a WSGI app. For the ASGI middleware."""
    if not _is_coroutine(app) and _takes(app, 2) and not _takes(app, 3):
        raise TypeError(_mistaken(app, "asgi", "wsgi"))


def refuse_asgi_app(app: object) -> None:
    """Raise TypeError if `app` is known to be an ASGI app, or a Flask object. For the WSGI middleware."""
    if _is_coroutine(app) or (_takes(app, 3) and not _takes(app, 2)):
        raise TypeError(_mistaken(app, "wsgi", "asgi"))
    if hasattr(app, "wsgi_app") and hasattr(app, "view_functions"):
        raise TypeError(
            "a Flask object can't be wrapped, only its wsgi_app: write "
            "app.wsgi_app = RateLimitMiddleware(app.wsgi_app, …)"
        )


def _is_coroutine(app: object) -> bool:
    method = inspect.getattr_static(type(app), "__call__", None)
    return inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(method)


def _takes(app: Any, count: int) -> bool:
    """Whether `app` can be called with this many arguments. False if that is unknown."""
    try:
        inspect.signature(app).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def _mistaken(app: object, used: str, needed: str) -> str:
    name = getattr(app, "__qualname__", None) or type(app).__qualname__
    return (
        f"ratelimit_mw.{used}.RateLimitMiddleware is for {used.upper()} apps, but {quoted(name)} is one for "
        f"{needed.upper()}: use ratelimit_mw.{needed}.RateLimitMiddleware"
    )


_EXAMINED = 100
"""The number of requests that are examined."""

_FORWARDING = ("X-Forwarded-For", "Forwarded", "X-Real-IP")


class FirstRequests:
    """Examines the first requests of a middleware, and logs each mistake in the setup that they show, once.

    Args:
        limiter: The limiter of the middleware.
        key: The key of the scope or the environ that holds the handle of an outer middleware. None if an outer
            middleware is allowed.
        look: Is called once, at the first request.
    """

    def __init__(self, limiter: RateLimiter, key: str | None, look: Callable[[], None] | None = None) -> None:
        self._limiter = limiter
        self._key = key
        self._look = look
        self._proxied = False
        self.left = _EXAMINED
        """The number of requests that are still to be examined."""

    def examine(self, request: Request) -> None:
        """Examine a request. Call it as long as some are left."""
        self.left -= 1
        if self._look is not None:
            look, self._look = self._look, None
            look()
        if not self._proxied:
            self._proxied = self._is_proxied(request)
        if self._key is not None:
            self._examine_handle(request.context.get(self._key))

    def _is_proxied(self, request: Request) -> bool:
        """Whether the request came through a proxy. Logs a proxy that is not trusted, or whose header can be forged."""
        parts = self._limiter.engine.current().parts
        header = parts[0].attributes.client_address.header
        if header is None:
            return any("ip" in part.attributes.used for part in parts) and self._is_untrusted(request)
        if "-" not in header or "wsgi.version" not in request.context or request.header(header) is None:
            return False
        if not drops_underscores(request.context):
            _log.warning(
                "a proxy is trusted for %s, but this WSGI server is not known to drop header names with '_': it "
                "may take a client's %s for the same header, and the client then chooses its address. Let the "
                "proxy drop such names (nginx does; Envoy: headers_with_underscores_action: REJECT_REQUEST), or "
                "use gunicorn or waitress. If your proxy drops them, ignore this (logged once)",
                header.title(),
                header.title().replace("-", "_"),
            )
        return True

    def _is_untrusted(self, request: Request) -> bool:
        peer = request.peer
        for name in _FORWARDING:
            value = ",".join(request.header_lines(name.lower()))
            # A server that trusts its proxy, as uvicorn does, has already replaced the peer by the reported address.
            if value and not (peer and peer in value):
                _log.warning(
                    "a request came with %s, but client.trusted_proxies and client.trusted_hops are not set: it is "
                    "counted as %s. If this is your proxy, all of its clients share one counter: add it to "
                    "client.trusted_proxies. If no proxy of yours sets the header, ignore this (logged once)",
                    name,
                    canonical(peer) or "unknown",  # any other text may be a secret
                )
                return True
        return False

    def _examine_handle(self, around: object) -> None:
        domain = self._limiter.engine.current().domain
        if getattr(around, "domain", None) == domain:
            self._key = None
            _log.warning(
                "two middlewares around one app have the domain %r: each request is charged twice. Remove one of them, "
                "or give them rules of different domains (logged once)",
                domain,
            )
