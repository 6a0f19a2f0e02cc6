"""The handle in `request.ratelimit`, and the responses to denied requests. This module is internal."""

from collections.abc import Callable, Iterable
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpResponse
from django.http.response import HttpResponseBase

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.http.answers import Answers, DenialResponse, phrase
from ratelimit_mw.http.handle import BlockingHandle, Enforced
from ratelimit_mw.http.limits_in_code import Refund
from ratelimit_mw.identity.request import MappingRequest, Request
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import Decision
from ratelimit_mw.rules.domains import Rules


class DjangoHandle(BlockingHandle):
    """The handle of a Django request. Its user is looked up in a thread, because that may query the database.

    Attributes:
        throttled: The denial of a throttle of Django REST framework. The response has its headers.
        refunds: What is asked of `refund_when` when the response is known.
    """

    __slots__ = ("refunds", "throttled")

    def __init__(self, verdict: Verdict, limiter: RateLimiter, request: Request, rules: Rules) -> None:
        super().__init__(verdict, limiter, request, rules)
        self.throttled: Enforced | None = None
        self.refunds: list[Refund] = []

    async def _aread_again(self) -> Request:
        request = self._read_again()
        if "user" not in request.values and reads_user(self._rules):
            request.values["user"] = await sync_to_async(lambda: getattr(request, "user", None))()
        return request


class UnlimitedHandle(BlockingHandle):
    """The handle of a request under `RATELIMIT = None`. It allows everything, whatever the rule."""

    __slots__ = ()

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
    """Add the headers of a denial. A `response.handler` may repeat a name, but Django has one value for each name.

    The values of a repeated header are joined, which has the same meaning (RFC 9110, section 5.3). Only cookies cannot
    be joined; Django has them apart.
    """
    added: set[str] = set()
    for name, value in headers:
        key = name.lower()
        if key == "set-cookie":
            response.cookies.load(value)
        else:
            response[name] = f"{response[name]}, {value}" if key in added else value
            added.add(key)
