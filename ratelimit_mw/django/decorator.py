"""A rule before a view."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction

from ratelimit_mw.django.answering import answer
from ratelimit_mw.shells.handle import TwinHandle

_View = TypeVar("_View", bound=Callable[..., Any])


def limited(rule: str, cost: int = 1) -> Callable[[_View], _View]:
    """A decorator of views, async ones too: each call is decided by the rule of that name first, and charged `cost`.

    Where the rule makes it wait, it waits; where it denies, the response is as the rules file says. Methods take it by
    Django's `method_decorator`. Raises RuntimeError where the middleware is missing, ValueError for a negative cost.
    """

    def decorate(view: _View) -> _View:
        @wraps(view)
        def asked(request: Any, *args: Any, **kwargs: Any) -> Any:
            _, denial = _handle(request, rule).enforce(rule, cost)
            return view(request, *args, **kwargs) if denial is None else answer(denial)

        @wraps(view)
        async def awaited(request: Any, *args: Any, **kwargs: Any) -> Any:
            _, denial = await _handle(request, rule).aenforce(rule, cost)
            return await view(request, *args, **kwargs) if denial is None else answer(denial)

        decorated: Any = awaited if iscoroutinefunction(view) else asked
        return cast("_View", decorated)

    return decorate


def _handle(request: Any, rule: str) -> TwinHandle:
    handle = getattr(request, "ratelimit", None)
    if not isinstance(handle, TwinHandle):
        raise RuntimeError(
            f"the rule {rule!r} can't be asked for: put 'ratelimit_mw.django.RateLimitMiddleware' into MIDDLEWARE"
        )
    return handle
