"""Limits inside a Flask app: its views ask for rules by their names. The extra `flask` brings what this needs."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from flask import Response, current_app, request
from werkzeug.exceptions import TooManyRequests

from ratelimit_mw.http.answers import Denial
from ratelimit_mw.http.handle import BlockingHandle
from ratelimit_mw.model import Decision

__all__ = ["RateLimited", "enforce", "limited"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RateLimited(TooManyRequests):
    """A rule denied the request.

    Flask answers as `response` in the rules says. An error handler for this class or for 429 may answer in another
    way. `get_response()` is the answer that the rules want.

    Args:
        decision: What was decided.
        denial: The status, the headers and the body of the answer.

    Attributes:
        decision: What was decided.
        code: The status of the answer.
    """

    def __init__(self, decision: Decision, denial: Denial[str]) -> None:
        # A list: for bytes, werkzeug would set the length again, and a HEAD response has no body.
        super().__init__(response=Response([denial.body], denial.status, denial.headers))
        self.code = denial.status
        self.decision = decision


def enforce(rule: str, cost: int = 1) -> Decision:
    """Decide on the current request by one rule, and charge it if it is allowed.

    If the rule makes the request wait, this call waits.

    Args:
        rule: The name of the rule.
        cost: What the request charges, as a multiple of the rule's `cost`. A whole number from 0.

    Returns:
        The decision.

    Raises:
        RateLimited: The rule denies the request.
        ValueError: The cost is negative.
        RuntimeError: The middleware is not around the app.
    """
    handle = request.environ.get("ratelimit.decision")
    if not isinstance(handle, BlockingHandle):
        raise RuntimeError(
            f"the rule {rule!r} can't be asked for: the middleware is not around this app; write "
            "app.wsgi_app = ratelimit_mw.wsgi.RateLimitMiddleware(app.wsgi_app, config=…)"
        )
    decision, denial = handle.enforce(rule, cost)
    if denial is not None:
        raise RateLimited(decision, denial)
    return decision


def limited(rule: str, cost: int = 1) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a decorator for views, async views too. Each call is first decided by one rule, as `enforce` does.

    It belongs below `@app.route`, which must see the decorated view.

    Args:
        rule: The name of the rule.
        cost: What the request charges, as a multiple of the rule's `cost`. A whole number from 0.

    Raises:
        RateLimited: The rule denies the request. This and the errors of `enforce` are raised when the view is called.
    """

    def decorate(view: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(view)
        def asked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            enforce(rule, cost)
            called: Any = current_app.ensure_sync(view)
            answer: _R = called(*args, **kwargs)
            return answer

        return asked

    return decorate
