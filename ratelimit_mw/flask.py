"""Limits inside a Flask app: views that ask for rules by name. Requires the extra `flask`."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from flask import Response, current_app, request
from flask.views import View
from werkzeug.exceptions import TooManyRequests

from ratelimit_mw.decision.names import DECORATED
from ratelimit_mw.http.answers import Denial
from ratelimit_mw.http.handle import BlockingHandle
from ratelimit_mw.http.views import handle_in, marked
from ratelimit_mw.model import Decision

__all__ = ["RateLimited", "enforce", "limited"]

_ADVICE = (
    "the middleware is not around this app; write "
    "app.wsgi_app = ratelimit_mw.wsgi.RateLimitMiddleware(app.wsgi_app, config=…)"
)

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

    def __init__(self, decision: Decision, denial: Denial[str]) -> None:
        # A list, because for bytes werkzeug sets the length again, which is 0 for the empty body of a HEAD response.
        super().__init__(response=Response([denial.body], denial.status, denial.headers))
        self.code = denial.status
        self.decision = decision


def enforce(rule: str, cost: int = 1) -> Decision:
    """Decide on the current request by one rule, and charge it if it is allowed.

    If the rule makes the request wait, this call waits.

    Args:
        rule: The name of the rule.
        cost: What the request is charged, as a multiple of the rule's `cost`. A whole number from 0 on.

    Returns:
        The decision.

    Raises:
        RateLimited: The rule denies the request.
        LookupError: There is no rule of this name.
        ValueError: The cost is negative.
        RuntimeError: The middleware is not around the app.
    """
    handle = handle_in(request.environ.get("ratelimit.decision"), BlockingHandle, rule, _ADVICE)
    decision, denial = handle.enforce(rule, cost)
    if denial is not None:
        raise RateLimited(decision, denial)
    return decision


def limited(rule: str, cost: int = 1) -> Callable[[_View], _View]:
    """Make a decorator for views. Before each call, one rule decides on the request, see `enforce`.

    It decorates functions, methods of class-based views, and classes; all of them may be async. A class gets the
    decorator as the last of its `decorators`, so that it comes first; its subclasses inherit it. Write it below
    `@app.route`, which must get the decorated view. A view that is added before the middleware is made may name only
    rules that exist. Otherwise the middleware raises ConfigurationError.

    Args:
        rule: The name of the rule.
        cost: What the request is charged, as a multiple of the rule's `cost`. A whole number from 0 on.

    Raises:
        RateLimited: The rule denies the request. This and the errors of `enforce` are raised when the view is called.
        TypeError: The decorated class is not a subclass of `flask.views.View`.
    """
    DECORATED.add(rule)

    def decorate(view: _View) -> _View:
        decorated: Any = _of_class(view) if isinstance(view, type) else _of_function(view)
        return cast("_View", decorated)

    def _of_class(kind: Any) -> Any:
        if not issubclass(kind, View):
            raise TypeError(f"limited decorates functions, methods and subclasses of flask.views.View, not {kind!r}")
        kind.decorators = [*kind.decorators, _of_function]
        return kind

    def _of_function(view: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(view)
        def asked(*args: Any, **kwargs: Any) -> Any:
            enforce(rule, cost)
            return current_app.ensure_sync(view)(*args, **kwargs)

        return marked(asked, rule, view)

    return decorate
