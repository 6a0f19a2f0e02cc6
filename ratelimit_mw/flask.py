"""Limits inside a Flask app: its views ask for rules by their names. The extra `flask` brings what this needs."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from flask import Response, current_app, request
from werkzeug.exceptions import TooManyRequests

from ratelimit_mw.http.answers import Denial
from ratelimit_mw.http.handle import BlockingHandle
from ratelimit_mw.model import Decision

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RateLimited(TooManyRequests):
    """A rule has denied the request.

    Flask answers it as the rules file says under `response`. An error handler for this class or for 429 may answer
    otherwise: `decision` says what was decided, `code` is the status and `get_response()` the answer that is meant.
    """

    def __init__(self, decision: Decision, denial: Denial[str]) -> None:
        # A list, for of bytes werkzeug would write the length anew, which for HEAD is that of no body.
        super().__init__(response=Response([denial.body], denial.status, denial.headers))
        self.code = denial.status
        self.decision = decision


def enforce(rule: str, cost: int = 1) -> Decision:
    """Decide on the current request by the rule of that name, and charge it `cost` if it is allowed.

    Where the rule makes it wait, it waits here. Raises RateLimited where it is denied, ValueError for a negative
    cost, and RuntimeError where the middleware is not around the app.
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
    """A decorator of views, async ones too: each call is decided by the rule of that name first, see `enforce`.

    It belongs under `@app.route`, which has to see the decorated view.
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
