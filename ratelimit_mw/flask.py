"""Limits inside a Flask app: views that ask for rules by name. Requires the extra `flask`."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, Unpack

from ratelimit_mw.errors import extra

with extra("flask"):
    from flask import Request, Response, after_this_request, current_app, request, request_tearing_down
    from flask.views import View
    from werkzeug.exceptions import TooManyRequests

from ratelimit_mw.http.answers import DenialResponse
from ratelimit_mw.http.handle import BlockingHandle, Enforced
from ratelimit_mw.http.limits_in_code import LimitOptions, Refund, decorator, handle_in, limit_in_code
from ratelimit_mw.model import Decision
from ratelimit_mw.rules.inline import UNSET, Key

__all__ = ["RateLimited", "enforce", "limited"]

_ADVICE = (
    "the middleware is not around this app; write "
    "app.wsgi_app = ratelimit_mw.wsgi.RateLimitMiddleware(app.wsgi_app, config=…)"
)

_HANDLE = "ratelimit.decision"
_REFUNDS = "ratelimit.refunds"

_View = TypeVar("_View", bound=Callable[..., Any])


class RateLimited(TooManyRequests):
    """A rule denied the request.

    The `response` section of the rules makes the answer. An error handler for this class or for 429 may answer in
    another way. `get_response()` returns the answer by the `response` section.

    Args:
        decision: The decision of the rule.
        denial: The status, the headers and the body of the answer.

    Attributes:
        decision: The decision of the rule.
        code: The status of the answer.
    """

    def __init__(self, decision: Decision, denial: DenialResponse[str]) -> None:
        # A list, because for bytes werkzeug sets the length again, which is 0 for the empty body of a HEAD response.
        super().__init__(response=Response([denial.body], denial.status, denial.headers))
        self.code = denial.status
        self.decision = decision


def enforce(rule: str, cost: int = 1, *, key: Key = UNSET, limit: str | None = None) -> Decision:
    """Decide on the current request by one rule, and charge it if it is allowed.

    If the rule makes the request wait, this call waits.

    Args:
        rule: The name of the rule.
        cost: What the request is charged, as a multiple of the rule's `cost`. A whole number of at least 0.
        key: What the rule counts by in place of its `by`: a text, a whole number or a UUID. It is hashed. With None or
            "", the rule does not apply, as if an attribute were absent.
        limit: A limit in place of the rule's, in the form of a rules file, such as "5 per hour".

    Returns:
        The decision.

    Raises:
        RateLimited: The rule denies the request.
        LookupError: There is no rule of this name.
        ValueError: The cost is negative, or the rule cannot have this limit.
        TypeError: The key or the limit has another type.
        RuntimeError: The middleware is not around the app.
    """
    handle = handle_in(request.environ.get(_HANDLE), BlockingHandle, rule, _ADVICE)
    return _allowed(handle.enforce(rule, cost, key=key, limit=limit))


def _allowed(enforced: Enforced) -> Decision:
    decision, denial = enforced
    if denial is not None:
        raise RateLimited(decision, denial)
    return decision


def limited(
    rule: str | Callable[[Request], Any],
    cost: int | Callable[[Request], Any] = 1,
    **options: Unpack[LimitOptions],
) -> Callable[[_View], _View]:
    """Make a decorator for views. Before each call, one rule or limit decides on the request, see `enforce`.

    It decorates functions, methods of class-based views, and classes; all of them may be async. Several may be stacked.
    A class gets the decorator as the last of its `decorators`, so that it comes first; its subclasses inherit it. Write
    it below `@app.route`, which must get the decorated view. A view that is added before the middleware is made may
    name only rules that exist. Otherwise the middleware raises ConfigurationError.

    Args:
        rule: The name of a rule, or a limit in the form of a rules file, such as "5 per minute", or a function that
            gets the request and returns such a limit. A limit has counters of its own for each view and each place in
            the stack.
        cost: What the request is charged, as a multiple of the rule's `cost`: a whole number of at least 0, or a
            function that gets the request and returns it. Any other value counts as 1, and is logged once.
        options: The options, see `LimitOptions`.

    Raises:
        RateLimited: The rule denies the request. This and the errors of `enforce` are raised when the view is called.
        ConfigurationError: The text begins with a number, but is not a limit, or the limit cannot be used. What
            depends on the rules is raised by the middleware, or when the view is called.
        TypeError: The decorated class is not a subclass of `flask.views.View`.
    """
    limit = limit_in_code(rule, cost, options, advice=_ADVICE)
    if limit.refund_when is not None:
        request_tearing_down.connect(_settle_without_response)

    def of_class(kind: Any) -> Any:
        if not issubclass(kind, View):
            raise TypeError(f"limited decorates functions, methods and subclasses of flask.views.View, not {kind!r}")
        kind.decorators = [*kind.decorators, of_function]
        return kind

    def of_function(view: Callable[..., Any]) -> Any:
        placed = limit.above(view)
        wanted = placed.of(None)

        @wraps(view)
        def limiting(*args: Any, **kwargs: Any) -> Any:
            sync = current_app.ensure_sync
            _allowed(limit.enforce(wanted, request.environ.get(_HANDLE), request, _refund_later, sync))
            return sync(view)(*args, **kwargs)

        return placed.marked(limiting)

    return decorator(of_class, of_function)


def _refund_later(refund: Refund) -> None:
    """Refund when the response of the current request is known, also that of an error handler."""
    request.environ.setdefault(_REFUNDS, []).append(refund)
    after_this_request(_settled)


def _settled(response: Any) -> Any:
    for refund in request.environ.pop(_REFUNDS, ()):
        refund.settle(response, current_app.ensure_sync)
    return response


def _settle_without_response(*_: object, **__: object) -> None:
    """Refund as for a status 500. With PROPAGATE_EXCEPTIONS, Flask makes no response for a view that raises."""
    _settled(Response(status=500))
