"""The middleware for the setting MIDDLEWARE, and requests of Django in the form that rules read, with their users.

Projects import the middleware from `ratelimit_mw.django`; this module is internal.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any
from weakref import finalize, ref

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve

from ratelimit_mw.decision.load import ASGI_CAPACITY, WSGI_CAPACITY, time_in_queue
from ratelimit_mw.decision.settlement import Account, Move
from ratelimit_mw.django.project import limiter, register_views, switched_off
from ratelimit_mw.django.views import (
    DjangoHandle,
    UnlimitedHandle,
    add_headers,
    add_throttled,
    answer,
    reads_user,
    synchronous,
)
from ratelimit_mw.http.answers import LatestAnswers
from ratelimit_mw.http.handle import RequestHandle
from ratelimit_mw.http.setup import refuse_awaited
from ratelimit_mw.identity.http_request import UNREAD, AsgiRequest, FirstRequests, ReadFields, WsgiRequest
from ratelimit_mw.identity.path_forms import Forms, Routing
from ratelimit_mw.identity.request import Request, of_django
from ratelimit_mw.logs import logger
from ratelimit_mw.model import SECOND
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores.base import NO_STORE, Step, Steps, adrive, drive


class Visit(Request):
    """A Django request. Its user is looked up when a rule needs it."""

    __slots__ = ()
    path: str
    forms: Forms | None
    _visit: "ref[Any]"
    """Django's object, which refers to the handle, which refers to this request."""

    def _read_changes(self, visit: Any) -> None:
        """Read the method and the path as Django routes them, because an earlier middleware may have changed both.

        In `self.path`, all bytes that are not UTF-8 are the same character. Django keeps them distinct.
        """
        self.method = (visit.method or "GET").upper()
        path = visit.path_info or "/"
        if path != self.path:
            every, _ = self.forms or Forms((self.path,), ())
            ordered = (*every, path) if "\N{REPLACEMENT CHARACTER}" in self.path else (path, *every)
            self.path = path
            self.forms = Forms(tuple(dict.fromkeys(ordered)), (path,))

    @property
    def user(self) -> str | None:
        """The primary key of the logged-in user; None if no user is logged in."""
        return user_of(self._visit())

    def app_route(self) -> str | None:
        """The template of the view's URL pattern."""
        return of_django(self.path, self._urlconf)

    def fields(self, read: ReadFields) -> Sequence[Any]:
        """See `Request`. `UNREAD` if rules read the URL patterns, and another middleware has chosen them."""
        return UNREAD if read.routes and self._urlconf else super().fields(read)

    @property
    def _urlconf(self) -> Any:
        return getattr(self._visit(), "urlconf", None)


class Environ(Visit, WsgiRequest):
    """A Django request under WSGI."""

    __slots__ = ("_visit",)

    def __init__(self, visit: Any) -> None:
        WsgiRequest.__init__(self, visit.environ)
        self._visit = ref(visit)
        self._read_changes(visit)


class Scope(Visit, AsgiRequest):
    """A Django request under ASGI."""

    __slots__ = ("_visit",)

    def __init__(self, visit: Any) -> None:
        routing = Routing(visit.script_name or "")  # FORCE_SCRIPT_NAME or `root_path`
        AsgiRequest.__init__(self, visit.scope, routing=routing)
        self._visit = ref(visit)
        self._read_changes(visit)


def user_of(visit: Any) -> str | None:
    """The primary key of the logged-in user; None if there is none.

    The user is found by the session or by the authenticators of a REST framework view. This may query the database, so
    it blocks. An error is logged once and means that no user is logged in. So does None in place of a request that has
    ended.
    """
    if visit is None:
        return None
    try:
        user: Any = getattr(visit, "user", None)
        if user is None or not user.is_authenticated:
            user = _by_rest_framework(visit)
        key = user.pk if user is not None and user.is_authenticated else None
    except Exception as error:  # noqa: BLE001 - a backend of the project's own may raise anything
        _log_absent(type(error).__name__)
        return None
    return None if key is None else str(key)


@cache
def _log_absent(kind: str) -> None:
    """Log that the user of a request counts as absent. It is done once for each kind of exception."""
    logger.warning("the user of a request counts as absent: %s was raised (logged once)", kind)


def _by_rest_framework(visit: Any) -> Any:
    """The user that the authenticators of the view recognise. The view itself authenticates again later."""
    try:
        view = resolve(visit.path_info, getattr(visit, "urlconf", None)).func
    except Resolver404:
        return None
    kind: Any = getattr(view, "cls", None)
    if not hasattr(kind, "initialize_request"):
        return None
    from rest_framework.exceptions import APIException

    made: Any = kind(**getattr(view, "initkwargs", {}))
    made.action_map = getattr(view, "actions", None) or {}
    missing = object()
    before = getattr(visit, "user", missing)
    try:
        made.request = made.initialize_request(visit)
        return made.request.user
    except APIException:  # for example an invalid token, which the view will answer
        return None
    finally:  # the framework has set `user` of the request
        if before is missing:
            vars(visit).pop("user", None)
        else:
            visit.user = before


class RateLimitMiddleware:
    """Passes to the project's views the requests that the rules allow, and answers all others.

    The setting `RATELIMIT` has the rules, see `limiter`. With `RATELIMIT = None`, all requests pass uncounted. A change
    of the setting, as by `override_settings` in tests, applies from the next request on.

    This middleware must come after AuthenticationMiddleware in MIDDLEWARE. The `user` of a rule is the primary key of
    the logged-in user, unless `client.user` is set. `request.ratelimit` is the decision, see `BlockingHandle`.

    With "ratelimit_mw.django" in INSTALLED_APPS, `manage.py check` reports rules that cannot be used, and names in
    `limited` that no rule has.

    Under ASGI it is asynchronous if the next middleware is. Under WSGI it refuses rules that name an async function. If
    the WSGI or ASGI middleware around the project has decided on a request by rules of the same domain, this
    middleware does not decide again.

    Args:
        get_response: The next middleware or the view. Django passes it.

    Raises:
        ImproperlyConfigured: The setting is missing or has another type.
        ConfigurationError: The rules cannot be used. The error has every problem found.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._awaits = iscoroutinefunction(get_response)
        if self._awaits:
            markcoroutinefunction(self)
        self._wanted = getattr(settings, "RATELIMIT", None)
        if not switched_off():
            self._use_limiter()

    def _use_limiter(self) -> None:
        """Use the limiter of the setting."""
        self._limiter = limiter()
        self._engine = self._limiter.engine
        self._answers = LatestAnswers(name=str, value=str)
        self._first = FirstRequests(self._limiter.engine.current, None, partial(register_views, self._limiter))
        if not self._awaits:
            self._limiter.require(refuse_awaited)
            self._engine.storage.connect()
        if self._limiter.rules.deferring:
            logger.warning(
                "on_limit: defer works only with the middlewares ratelimit_mw.wsgi and ratelimit_mw.asgi around the "
                "application; ratelimit_mw.django.RateLimitMiddleware denies these requests"
            )

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Serve one request."""
        wanted = getattr(settings, "RATELIMIT", None)
        if wanted is not self._wanted and wanted is not None:
            self._use_limiter()
        self._wanted = wanted
        if wanted is None:
            visit: Any = request  # stubs of Django do not have the attribute
            visit.ratelimit = UnlimitedHandle(request.method or "")
            passed: HttpResponseBase | Awaitable[HttpResponseBase] = self.get_response(request)
            return passed
        steps = self._steps(request)
        return adrive(NO_STORE, steps) if self._awaits else drive(NO_STORE, steps)

    def _steps(self, request: Any) -> Steps[HttpResponseBase]:
        """Serve one request. Yields the steps that block or are awaited."""
        rules = self._engine.current()
        asked = self._request_of(request)
        if self._awaits and reads_user(rules):  # reading it may query the database
            asked.values["user"] = yield Step(user_of, sync_to_async(user_of), request)
        around = self._decided_around(request, asked)
        if around is not None:
            response = yield from self._served(request, request.ratelimit)
            around.reported = request.ratelimit.reported
            add_throttled(response, request.ratelimit)
            return response
        with self._load(rules, asked) as busy:
            engine = self._engine
            decide = partial(engine.decide_in_turn, rules=rules), partial(engine.adecide, rules=rules)
            verdict = yield Step(*decide, asked)
            answers = self._answers.of(rules)
            request.ratelimit = handle = DjangoHandle(verdict, self._limiter, asked, answers)
            if not verdict.simple:
                engine.report(verdict, rules, asked)
            if not verdict.allowed:
                return answer(answers.denial(verdict, asked))
            handle.open_account()
            response = yield from self._served(request, handle, verdict.delay)
            if response.streaming:  # it occupies its thread or task until it is closed
                end = busy.pop_all().close
                self._at_end(response, end, end)
                finalize(response, end)  # if an outer middleware replaces it, as by a 304, it is not closed
        add_headers(answers, response, handle)
        return response

    def _served(self, request: Any, handle: DjangoHandle, delay: int = 0) -> Steps[Any]:
        """Return the response of the project, after what the request was charged is settled by it."""
        settlement = self._engine.settlement
        try:
            if self._awaits and delay:
                yield Step(time.sleep, asyncio.sleep, delay / SECOND)
            response = yield Step(self.get_response, self.get_response, request)
        except BaseException:
            for account in handle.unsettled:
                if self._awaits:
                    settlement.settle_soon(account, account.end())
                else:
                    settlement.settle(account, account.end())
            raise
        for account in handle.unsettled:
            moves = self._concluded(account, response)
            yield Step(partial(settlement.settle, account), partial(settlement.asettle, account), moves)
        for refund in handle.refunds:
            yield Step(partial(refund.settle, sync=synchronous), refund.asettle, response)
        return response

    def _request_of(self, request: HttpRequest) -> Environ | Scope:
        asked = Scope(request) if hasattr(request, "scope") else Environ(request)
        if self._first.left:
            self._first.examine(asked)
        return asked

    def _decided_around(self, request: Any, asked: Environ | Scope) -> RequestHandle | None:
        """The handle of the middleware around the project if it has decided. That one also adds the headers."""
        around = asked.context.get("ratelimit" if isinstance(asked, Scope) else "ratelimit.decision")
        if not isinstance(around, RequestHandle) or around.domain != self._limiter.rules.domain:
            return None
        request.ratelimit = around.as_kind(DjangoHandle, asked)
        return around

    def _concluded(self, account: Account, response: Any) -> list[Move]:
        """The moves that settle by the response. Concurrent places are released when a streaming response is closed."""

        def header(name: str) -> str | None:
            value: str | None = response.get(name)
            return value

        account.show(response.status_code, header)
        moves = account.conclude(response.status_code, header)
        if not account.holds:
            return moves
        if not response.streaming:
            return [*moves, *account.end()]
        settlement = self._engine.settlement
        self._at_end(
            response,
            lambda: settlement.settle(account, account.end()),
            lambda: settlement.settle_soon(account, account.end()),
        )
        return moves

    def _at_end(self, response: Any, then: Callable[[], None], soon: Callable[[], object]) -> None:
        """Call `then` when a streaming response is closed or raises.

        Under ASGI, Django does not close a response that raises. An async stream calls `soon` at its end instead: it
        must not block. So does the task of the request if it raises or is cancelled.
        """
        close = response.close

        def close_and_then() -> None:
            try:
                close()
            finally:
                then()

        response.close = close_and_then  # only for this response
        if self._awaits:
            parts = response.streaming_content
            response.streaming_content = _until_end(parts, soon) if response.is_async else _until_error(parts, then)
            task: Any = asyncio.current_task()
            # Django does not close the response if the server's `send` raises.
            task.add_done_callback(lambda done: soon() if done.cancelled() or done.exception() else None)

    def _load(self, rules: Rules, asked: Environ | Scope) -> ExitStack:
        """Count the request in the meter of the load, if the rules need it, until the returned stack is closed."""
        busy = ExitStack()
        if rules.metered:
            meter = self._engine.planner.meter(rules)
            if self._awaits:
                meter.watch(asyncio.get_running_loop())
            elif waited := time_in_queue(asked, rules.attributes.from_proxy):
                meter.queued(waited)
            busy.callback(meter.left, asked)
            meter.arrived(ASGI_CAPACITY if self._awaits else WSGI_CAPACITY, asked)
        return busy


async def _until_end(parts: AsyncIterator[bytes], then: Callable[[], object]) -> AsyncIterator[bytes]:
    """Yield the parts of a response, and call `then` at the end."""
    try:
        async for part in parts:
            yield part
    finally:
        then()


def _until_error(parts: Iterable[bytes], then: Callable[[], object]) -> Iterator[bytes]:
    """Yield the parts of a response, and call `then` if they raise."""
    try:
        yield from parts
    except Exception:
        then()
        raise
