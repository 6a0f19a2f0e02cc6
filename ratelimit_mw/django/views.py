"""The decorator for views, the handle in `request.ratelimit`, and the responses to denied requests.

Projects import `limited` from `ratelimit_mw.django`; this module is internal.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar, Unpack

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.views import View

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.http.answers import Answers, DenialResponse, phrase
from ratelimit_mw.http.handle import BlockingHandle, Enforced
from ratelimit_mw.http.limits_in_code import LimitOptions, Placed, Refund, decorator, limit_in_code
from ratelimit_mw.identity.request import MappingRequest, Request
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import Decision
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.inline import InlineLimit

ADVICE = "add 'ratelimit_mw.django.RateLimitMiddleware' to MIDDLEWARE"
"""How to add the middleware."""


_View = TypeVar("_View", bound=Callable[..., Any])


def limited(
    rule: str | Callable[[Any], Any],
    cost: int | Callable[[Any], Any] = 1,
    **options: Unpack[LimitOptions],
) -> Callable[[_View], _View]:
    """Make a decorator for views. Before each call, a rule or a limit decides on the request.

    It decorates functions, class-based views and their methods, of Django and of Django REST framework; all of them may
    be async. Django's `method_decorator` takes it as well. Above a class, it applies to each request of the class and
    of its subclasses. Several may be stacked.

    If the rule makes the request wait, the view waits. If the rule denies the request, the response is made by the
    `response` section of the rules.

    Args:
        rule: The name of a rule, or a limit in the form of a rules file, such as "5 per minute", or a function that
            gets the request and returns such a limit. A limit has counters of its own for each view and each place in
            the stack.
        cost: What the request is charged, as a multiple of the rule's `cost`: a whole number of at least 0, or a
            function that gets the request and returns it. Any other value counts as 1, and is logged once.
        options: The options, see `LimitOptions`.

    Raises:
        ConfigurationError: The text begins with a number, but is not a limit, or the limit cannot be used. What
            depends on the rules is raised when the view is called.
        TypeError: The decorated class is not a class-based view.
        LookupError: There is no rule of this name.
        ValueError: The cost is negative.
        RuntimeError: The middleware is not in MIDDLEWARE. This and the two errors before it are raised when the view is
            called.
    """
    limit = limit_in_code(rule, cost, options, advice=ADVICE)

    def of_class(kind: Any) -> Any:
        if not issubclass(kind, View):
            raise TypeError(f"limited decorates functions, methods and subclasses of View, not {kind!r}")
        kind.dispatch = limiting(kind.dispatch, limit.above(kind.dispatch, kind))
        return kind

    def of_function(view: Callable[..., Any]) -> Any:
        return limiting(view, limit.above(view))

    def limiting(view: Callable[..., Any], placed: Placed) -> Any:
        bound = None if isinstance(placed.view, type) else placed.of(None)

        def wanted_by(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str | InlineLimit, Any, Any]:
            """The rule or the limit, the handle and the request."""
            request = _request_of(args, kwargs)
            return bound or placed.of(type(args[0])), getattr(request, "ratelimit", None), request

        @wraps(view)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            if _is_dispatch_of_async(view, _self_of(args)):
                return awaiting(*args, **kwargs)
            denial = limit.enforce(*wanted_by(args, kwargs), refund_later, synchronous).denial
            return view(*args, **kwargs) if denial is None else answer(denial)

        @wraps(view)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            denial = (await limit.aenforce(*wanted_by(args, kwargs), refund_later)).denial
            return await view(*args, **kwargs) if denial is None else answer(denial)

        return placed.marked(awaiting if iscoroutinefunction(view) else blocking)

    return decorator(of_class, of_function)


def _is_dispatch_of_async(view: Any, owner: object) -> bool:
    """Whether `view` is the `dispatch` of a class with async methods. It is no coroutine function, but returns one.

    Args:
        view: A function, which gets the object of the class as its first argument. Or what `method_decorator` makes: a
            partial of the bound method, which other decorators may have wrapped.
        owner: The object of the class, if it is the first argument.
    """
    if getattr(view, "__name__", None) != "dispatch":
        return False
    while view is not None and not isinstance(view, partial):
        view = getattr(view, "__wrapped__", None)
    return bool(getattr(owner if view is None else getattr(view.func, "__self__", None), "view_is_async", False))


def _self_of(args: tuple[Any, ...]) -> View | None:
    """The object of a class-based view, if the arguments are those of a method."""
    return args[0] if args and isinstance(args[0], View) else None


def _request_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The request among the arguments of a view: the second argument if the first is `self`."""
    given = args if _self_of(args) is None else args[1:]
    return given[0] if given else kwargs["request"]


class DjangoHandle(BlockingHandle):
    """The handle of a Django request. Its user is looked up in a thread, because that may query the database.

    Attributes:
        throttled: The denial of a throttle of Django REST framework. The response has its headers.
        refunds: What is asked of `refund_when` when the response is known.
    """

    def __init__(self, verdict: Verdict, limiter: RateLimiter, request: Request, answers: Answers[str]) -> None:
        super().__init__(verdict, limiter, request, answers)
        self.throttled: Enforced | None = None
        self.refunds: list[Refund] = []

    async def _aread_again(self) -> Request:
        request = self._read_again()
        if "user" not in request.values and reads_user(self._rules):
            request.values["user"] = await sync_to_async(lambda: getattr(request, "user", None))()
        return request


class UnlimitedHandle(BlockingHandle):
    """The handle of a request under `RATELIMIT = None`. It allows everything, whatever the rule."""

    def __init__(self, method: str) -> None:
        nothing: Any = None
        super().__init__(Verdict((), None), nothing, MappingRequest({}, method=method), nothing)

    def _more(self, amount: Any) -> Any:  # noqa: ARG002 - nothing is charged
        return ()

    _back = _more

    def check(self, *_: Any, **__: Any) -> Decision:
        """Return a decision that allows the request."""
        return self.decision

    def enforce(self, *_: Any, **__: Any) -> Enforced:
        """Return a decision that allows the request."""
        return Enforced(self.decision, None)

    async def acheck(self, *_: Any, **__: Any) -> Decision:
        """See `check`."""
        return self.decision

    async def aenforce(self, *_: Any, **__: Any) -> Enforced:
        """See `enforce`."""
        return Enforced(self.decision, None)


def reads_user(rules: Rules) -> bool:
    """Whether a rule uses the user that Django knows."""
    return rules.client.user is None and any("user" in part.attributes.used for part in rules.parts)


def refund_later(refund: Refund) -> None:
    """Keep a refund until the response is known."""
    if isinstance(refund.handle, DjangoHandle):  # all handles that charge are of this type
        refund.handle.refunds.append(refund)


def synchronous(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, which may be async, as a plain one."""
    return async_to_sync(function) if iscoroutinefunction(function) else function


def answer(denial: DenialResponse[str]) -> HttpResponse:
    """The response to a request that is denied."""
    status, headers, body = denial
    response = HttpResponse(body, status=status, reason=phrase(status))
    _add(response, headers)
    return response


def add_headers(answers: Answers[str], response: HttpResponseBase, handle: DjangoHandle) -> None:
    """Add the rate-limit headers to `response`."""
    if handle.throttled is not None:
        add_throttled(response, handle)
    else:
        own: Any = response.items()
        for name, value in answers.add_headers(own, handle.reported)[len(own) :]:
            response[name] = value


def add_throttled(response: HttpResponseBase, handle: DjangoHandle) -> None:
    """Add the headers of a denial by a throttle to the response of Django REST framework, which has its own body."""
    denial = handle.throttled.denial if handle.throttled is not None else None
    if denial is not None:
        own = {name.lower() for name, _ in response.items()} | _OF_THE_BODY
        _add(response, [line for line in denial.headers if line[0].lower() not in own])


_OF_THE_BODY = frozenset({"content-type", "content-length"})


def _add(response: HttpResponseBase, headers: Iterable[tuple[str, str]]) -> None:
    """Add the headers of a denial."""
    for name, value in headers:
        response[name] = value
