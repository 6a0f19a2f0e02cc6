"""Django: the middleware, the decorator for single views, and the requests that rules read."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial, wraps
from importlib import import_module
from typing import Any, TypeVar, cast

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve
from django.utils.module_loading import import_string
from django.views import View

from ratelimit_mw.decision.load import ASGI_CAPACITY, WSGI_CAPACITY, time_in_queue
from ratelimit_mw.decision.settlement import Account, Move
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import ConfigurationError
from ratelimit_mw.http.answers import Answers, Denial, LatestAnswers, phrase
from ratelimit_mw.http.asked import UNSET, Placed, asked
from ratelimit_mw.http.handle import AsyncHandle, Enforced, FirstRequests, Handle, TwinHandle
from ratelimit_mw.http.setup import refuse_awaited
from ratelimit_mw.http.views import handle_in, marked
from ratelimit_mw.identity.http_request import AsgiRequest, DjangoRequest
from ratelimit_mw.identity.request import Request
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import SECOND, Decision
from ratelimit_mw.rules.domains import Rules, declare, rule_names, unknown_rule
from ratelimit_mw.rules.inline import InlineLimit

__all__ = ["RateLimitMiddleware", "TwinHandle", "limited", "limiter"]

ADVICE = "add 'ratelimit_mw.django.RateLimitMiddleware' to MIDDLEWARE"
"""How to add the middleware."""

_log = logging.getLogger("ratelimit_mw")
_logged: set[str] = set()
"""The kinds of exceptions that are logged already."""


class Environ(DjangoRequest):
    """A Django request under WSGI. Its user is looked up when a rule needs it."""

    __slots__ = ("_visit",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit.environ)
        self._visit = visit
        _read_changes(self, visit)

    @property
    def user(self) -> str | None:
        """The primary key of the logged-in user; None if no user is logged in."""
        return user_of(self._visit)


class Scope(AsgiRequest):
    """A Django request under ASGI; see `Environ`."""

    __slots__ = ("_visit",)

    framework = "django"

    def __init__(self, visit: Any) -> None:
        super().__init__(visit.scope)
        if visit.script_name and visit.script_name != visit.scope.get("root_path"):  # by FORCE_SCRIPT_NAME
            self._read(visit.scope.get("path") or "/", visit.script_name)
        self._visit = visit
        _read_changes(self, visit)

    @property
    def user(self) -> str | None:
        """See `Environ.user`."""
        return user_of(self._visit)


def _read_changes(request: Environ | Scope, visit: Any) -> None:
    """Read the method and the path as Django routes them, because an earlier middleware may have changed both.

    In `request.path`, all bytes that are not UTF-8 are the same character. Django keeps them distinct.
    """
    request.method = (visit.method or "GET").upper()
    path = visit.path_info or "/"
    found = request.readings or (request.path,)
    if path not in found:
        if "\N{REPLACEMENT CHARACTER}" in request.path:
            request.readings = (*found, path)
        else:
            request.path, request.readings = path, (path, *found)


def visitor(visit: Any) -> Environ | Scope:
    """The request in the form that rules read."""
    return Scope(visit) if hasattr(visit, "scope") else Environ(visit)


def user_of(visit: Any) -> str | None:
    """The primary key of the logged-in user; None if there is none.

    The user is found by the session or by the authenticators of a REST framework view. This may query the database, so
    it blocks. An error is logged once and means that no user is logged in.
    """
    try:
        user: Any = getattr(visit, "user", None)
        if user is None or not user.is_authenticated:
            user = _by_rest_framework(visit)
        key = user.pk if user is not None and user.is_authenticated else None
    except Exception as error:  # noqa: BLE001 - a backend of the project's own may raise anything
        kind = type(error).__name__
        if kind not in _logged:
            _logged.add(kind)
            _log.warning("the user of a request counts as absent: %s was raised (logged once)", kind)
        return None
    return None if key is None else str(key)


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


class DjangoHandle(TwinHandle):
    """The handle of a Django request. Its user is looked up in a thread, because that may query the database.

    Attributes:
        throttled: The denial of a throttle of Django REST framework. The response has its headers.
    """

    __slots__ = ("throttled",)

    def __init__(self, verdict: Verdict, limiter: RateLimiter, request: Request, rules: Rules) -> None:
        super().__init__(verdict, limiter, request, rules)
        self.throttled: Enforced | None = None

    async def _asking(self) -> AsyncHandle:
        request = self._read_again()
        if "user" not in request.values and _reads_user(self._rules):
            request.values["user"] = await sync_to_async(lambda: getattr(request, "user", None))()
        return _PreparedHandle(self._verdict, self._limiter, request, self._rules)


class _PreparedHandle(AsyncHandle):
    """A handle whose request was just read again."""

    __slots__ = ()

    def _read_again(self) -> Request:
        return self._request


class _UnlimitedHandle(TwinHandle):
    """The handle of a request under `RATELIMIT = None`. It allows everything, whatever the rule."""

    __slots__ = ()

    def __init__(self) -> None:
        nothing: Any = None
        super().__init__(Verdict((), None), nothing, nothing, nothing)

    def charge(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    refund = charge

    def check(self, *_: Any, **__: Any) -> Decision:
        """Return a decision that allows the request."""
        return self.decision

    def enforce(self, *_: Any, **__: Any) -> Enforced:
        """Return a decision that allows the request."""
        return Enforced(self.decision, None)

    async def acharge(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    arefund = acharge

    async def acheck(self, *_: Any, **__: Any) -> Decision:
        """See `check`."""
        return self.decision

    async def aenforce(self, *_: Any, **__: Any) -> Enforced:
        """See `enforce`."""
        return Enforced(self.decision, None)


def _reads_user(rules: Rules) -> bool:
    """Whether a rule uses the user that Django knows."""
    return rules.client.user is None and any("user" in part.attributes.used for part in rules.parts)


def answer(denial: Denial[str]) -> HttpResponse:
    """The response to a request that is denied."""
    status, headers, body = denial
    return HttpResponse(body, status=status, reason=phrase(status), headers=dict(headers))


def add_headers(answers: Answers[str], response: HttpResponseBase, handle: DjangoHandle) -> None:
    """Add the rate-limit headers to `response`."""
    if handle.throttled is not None:
        add_throttled(response, handle)
    elif answers.rated:
        own: Any = response.items()
        for name, value in answers.add_headers(own, handle.reported)[len(own) :]:
            response[name] = value


def _switched_off() -> bool:
    """Whether the setting is None. A missing setting is a mistake."""
    return hasattr(settings, "RATELIMIT") and settings.RATELIMIT is None


def add_throttled(response: HttpResponseBase, handle: DjangoHandle) -> None:
    """Add the headers of a denial by a throttle to the response of Django REST framework, which has its own body."""
    denial = handle.throttled.denial if handle.throttled is not None else None
    for name, value in denial.headers if denial is not None else ():
        if name not in _OF_THE_BODY and not response.has_header(name):
            response[name] = value


_OF_THE_BODY = frozenset({"Content-Type", "Content-Length"})

_lock = threading.Lock()
_made: tuple[Any, RateLimiter, bool] | None = None  # one per process, because each test client makes a middleware


def limiter() -> RateLimiter:
    """Return the limiter that the setting `RATELIMIT` specifies.

    The setting has the rules, as for `RateLimiter`, or a limiter of your own. A limiter is given as an object or by its
    import path, as in "python:mysite.limits:limiter".

    Raises:
        ImproperlyConfigured: The setting is missing, is None or has another type.
        ConfigurationError: The rules cannot be used. The error has every problem found.
    """
    global _made
    wanted = getattr(settings, "RATELIMIT", None)
    with _lock:
        if _made is None or _made[0] is not wanted:
            before, _made = _made, (wanted, *_limiter_of(wanted))
            _made[1].engine.planner.names.serving = True
            if before is not None and before[2]:
                before[1].close()
        return _made[1]


def limiter_in_use() -> RateLimiter | None:
    """The limiter of the setting, or None if the project does not have the middleware."""
    return limiter() if any(name.startswith(f"{__name__}.") for name in settings.MIDDLEWARE) else None


def _limiter_of(wanted: Any) -> tuple[RateLimiter, bool]:
    """The limiter for this value of the setting, and whether it was made here."""
    if isinstance(wanted, str) and wanted.startswith("python:"):
        wanted = import_string(wanted.removeprefix("python:").replace(":", "."))
    if isinstance(wanted, RateLimiter):
        return wanted, False
    if isinstance(wanted, str | os.PathLike | Mapping):
        return RateLimiter(wanted), True
    raise ImproperlyConfigured(
        f"RATELIMIT is {_named(wanted)}: it must be the path of the rules, "
        "a mapping with the rules, a RateLimiter, or the import path of one, as in python:mysite.limits:limiter"
    )


def _named(wanted: Any) -> str:
    """What a wrong setting is, in words."""
    if wanted is None:
        return "None, so there is no limiter" if hasattr(settings, "RATELIMIT") else "missing"
    return type(wanted).__name__


_names: set[str] = set()
"""The rule names in the decorators of this project."""

_limits: dict[InlineLimit, None] = {}
"""The limits in the decorators of this project."""

_NOT_A_VIEW = "django.utils.decorators:"  # `method_decorator` also decorates a function that is never called

FINDERS: list[Callable[[], Iterable[str | InlineLimit]]] = []
"""Functions that find further rules and limits in the views of this project."""


def _check(app_configs: object, **_options: object) -> list[checks.CheckMessage]:  # noqa: ARG001 - Django's interface
    """The system check: the rules can be used, and they have what the decorators of the views ask for."""
    if _switched_off():
        return []
    try:
        rules = limiter().rules
    except ConfigurationError as error:
        return [checks.Error(str(problem), id="ratelimit_mw.E001") for problem in error.problems]
    except (ImproperlyConfigured, ImportError) as error:
        return [checks.Error(str(error), id="ratelimit_mw.E002")]
    found: set[str | InlineLimit] = set().union(_names, _limits)
    with suppress(Exception):  # Django's own check of the URLs reports these errors
        import_module(settings.ROOT_URLCONF)
        found = set().union(_names, _limits, *(find() for find in FINDERS))
    if rules.source is not None:  # the rules are still to be read from their database
        return []
    known = rule_names(rules)
    unknown = sorted(rule for rule in found if isinstance(rule, str) and rule not in known)
    problems = [unknown_rule(name, known) for name in unknown]
    for limit in sorted(rule for rule in found if isinstance(rule, InlineLimit)):
        try:
            declare(rules, limit)
        except ConfigurationError as error:
            problems += error.problems
    return [checks.Error(str(problem), id="ratelimit_mw.E003") for problem in problems]


checks.register(_check)


class RateLimitMiddleware:
    """Passes to the project's views the requests that the rules allow, and answers all others.

    The setting `RATELIMIT` has the rules, see `limiter`. With `RATELIMIT = None`, all requests pass uncounted. A change
    of the setting, as by `override_settings` in tests, applies from the next request on.

    This middleware must come after AuthenticationMiddleware in MIDDLEWARE. The `user` of a rule is the primary key of
    the logged-in user, unless `client.user` is set. `request.ratelimit` is the decision, see `TwinHandle`.

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
        if not _switched_off():
            self._use_limiter()

    def _use_limiter(self) -> None:
        """Use the limiter of the setting."""
        self._limiter = limiter()
        self._engine = self._limiter.engine
        self._answers = LatestAnswers(name=str, value=str)
        self._request: Callable[[Any], Environ | Scope] = FirstRequests(self, visitor, self._limiter, None)
        if not self._awaits:
            self._limiter.require(refuse_awaited)
            self._engine.connect()
        if self._limiter.rules.deferring:
            _log.warning(
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
            visit.ratelimit = _UnlimitedHandle()
            passed: HttpResponseBase | Awaitable[HttpResponseBase] = self.get_response(request)
            return passed
        return self._aserve(request) if self._awaits else self._serve(request)

    def _serve(self, request: Any) -> HttpResponseBase:
        rules = self._engine.current()
        asked = self._request(request)
        around = self._decided_around(request, asked)
        if around is not None:
            response: HttpResponseBase = self.get_response(request)
            around.reported = request.ratelimit.reported
            add_throttled(response, request.ratelimit)
            return response
        with self._load(rules, asked) as busy:
            verdict = self._engine.decide_in_turn(asked, rules=rules)
            handle, answers = self._begun(request, asked, rules, verdict)
            if not verdict.allowed:
                self._engine.report(verdict, rules, asked)
                return answer(answers.denial(verdict, asked))
            account = self._account(rules, verdict)
            try:
                response = self.get_response(request)
            except BaseException:
                self._end(account)
                raise
            _keep(busy, response)
        if account is not None:
            self._engine.settlement.settle(account, self._concluded(account, response))
        add_headers(answers, response, handle)
        return response

    async def _aserve(self, request: Any) -> HttpResponseBase:
        rules = self._engine.current()
        asked = self._request(request)
        if _reads_user(rules):
            asked.values["user"] = await sync_to_async(user_of)(request)
        around = self._decided_around(request, asked)
        if around is not None:
            response: HttpResponseBase = await self.get_response(request)
            around.reported = request.ratelimit.reported
            add_throttled(response, request.ratelimit)
            return response
        with self._load(rules, asked) as busy:
            verdict = await self._engine.adecide(asked, rules=rules)
            handle, answers = self._begun(request, asked, rules, verdict)
            if not verdict.allowed:
                self._engine.report(verdict, rules, asked)
                return answer(answers.denial(verdict, asked))
            account = self._account(rules, verdict)
            try:
                if verdict.delay:
                    await asyncio.sleep(verdict.delay / SECOND)
                response = await self.get_response(request)
            except BaseException:
                if account is not None:
                    self._engine.settlement.settle_soon(account, account.end())
                raise
            _keep(busy, response)
        if account is not None:
            await self._engine.settlement.asettle(account, self._concluded(account, response))
        add_headers(answers, response, handle)
        return response

    def _decided_around(self, request: Any, asked: Environ | Scope) -> Handle | None:
        """The handle of the middleware around the project if it has decided. That one also adds the headers."""
        around = asked.context.get("ratelimit" if isinstance(asked, Scope) else "ratelimit.decision")
        if not isinstance(around, Handle) or around.domain != self._limiter.rules.domain:
            return None
        request.ratelimit = DjangoHandle.of(around, asked)
        return around

    def _begun(
        self, request: Any, asked: Environ | Scope, rules: Rules, verdict: Verdict
    ) -> tuple[DjangoHandle, Answers[str]]:
        handle = DjangoHandle(verdict, self._limiter, asked, rules)
        request.ratelimit = handle
        return handle, self._answers.of(rules)

    def _account(self, rules: Rules, verdict: Verdict) -> Account | None:
        """The account of a request if it depends on the response, otherwise None."""
        account = self._engine.settlement.account(verdict) if rules.settling else None
        return account if account is not None and account.settles else None

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
        _at_close(response, lambda: self._end(account))
        return moves

    def _end(self, account: Account | None) -> None:
        if account is not None:
            self._engine.settlement.settle(account, account.end())

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


def _keep(busy: ExitStack, response: Any) -> None:
    """Keep the stack open until a streamed response is closed, because it occupies its thread or task until then."""
    if response.streaming:
        _at_close(response, busy.pop_all().close)


def _at_close(response: Any, then: Callable[[], None]) -> None:
    """Call `then` after the server has closed the response."""
    close = response.close

    def close_and_then() -> None:
        try:
            close()
        finally:
            then()

    response.close = close_and_then  # only for this response


_View = TypeVar("_View", bound=Callable[..., Any])


def limited(
    rule: str,
    cost: int = 1,
    *,
    by: str | Sequence[str] | None = None,
    shared: str | None = None,
    key: Callable[[Any], Any] | None = None,
) -> Callable[[_View], _View]:
    """Make a decorator for views. Before each call, a rule or a limit decides on the request.

    It decorates functions, class-based views and their methods, of Django and of Django REST framework; all of them may
    be async. Django's `method_decorator` takes it as well. Above a class, it applies to each request of the class and
    of its subclasses. Several may be stacked.

    If the rule makes the request wait, the view waits. If the rule denies the request, the response is made by the
    `response` section of the rules.

    Args:
        rule: The name of a rule, or a limit in the form of a rules file, such as "5 per minute". A text that reads as
            a limit is one. A limit has counters of its own for each view and each place in the stack.
        cost: What the request is charged, as a multiple of the rule's `cost`. A whole number from 0 on.
        by: What a limit counts by, as in a rules file: "user|ip", or a list. None: the address.
        shared: A name for a limit. All views whose limit has this name share its counters.
        key: A function from the request to what is counted in place of `by`: a text, a number, a UUID or None. It may
            be async. None, "" or an exception (logged once) counts as absent: the rule or the limit does not apply.

    Raises:
        ConfigurationError: The text begins with a number, but is not a limit, or the limit cannot be used. What
            depends on the rules is raised when the view is called.
        TypeError: The decorated class is not a class-based view.
        LookupError: There is no rule of this name.
        ValueError: The cost is negative.
        RuntimeError: The middleware is not in MIDDLEWARE. This and the two errors before it are raised when the view is
            called.
    """
    wanted = asked(rule, cost, by, shared, key)
    if not wanted.is_limit:
        _names.add(rule)

    def decorate(view: _View) -> _View:
        decorated: Any = of_class(view) if isinstance(view, type) else of_function(view)
        return cast("_View", decorated)

    def of_class(kind: Any) -> Any:
        if not issubclass(kind, View):
            raise TypeError(f"limited decorates functions, methods and subclasses of View, not {kind!r}")
        placed = wanted.above(kind.dispatch)._replace(view=kind)
        kind.dispatch = limiting(kind.dispatch, placed)
        return kind

    def of_function(view: Callable[..., Any]) -> Callable[..., Any]:
        return limiting(view, wanted.above(view))

    def limiting(view: Callable[..., Any], placed: Placed) -> Callable[..., Any]:
        bound = placed.of(placed.view)
        if isinstance(bound, InlineLimit) and not bound.name.startswith(_NOT_A_VIEW):
            _limits[bound] = None

        def rule_of(owner: object) -> str | InlineLimit:
            """The rule or the limit. That of a decorated class is named by the class of its object."""
            return placed.of(type(owner)) if isinstance(placed.view, type) else bound

        @wraps(view)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            if _is_dispatch_of_async(view, _self_of(args)):
                return awaiting(*args, **kwargs)
            request, asked_for = _request_of(args, kwargs), rule_of(_self_of(args))
            handle = _handle(request, asked_for)
            found = UNSET if wanted.key is None else wanted.key.read(request, _sync)
            denial = handle.enforce(asked_for, cost, key=found).denial
            return view(*args, **kwargs) if denial is None else answer(denial)

        @wraps(view)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            request, asked_for = _request_of(args, kwargs), rule_of(_self_of(args))
            handle = _handle(request, asked_for)
            found = UNSET if wanted.key is None else await wanted.key.aread(request)
            denial = (await handle.aenforce(asked_for, cost, key=found)).denial
            return await view(*args, **kwargs) if denial is None else answer(denial)

        return marked(awaiting if iscoroutinefunction(view) else blocking, placed, view)

    return decorate


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


def _sync(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, which may be async, as a plain one."""
    return async_to_sync(function) if iscoroutinefunction(function) else function


def _self_of(args: tuple[Any, ...]) -> View | None:
    """The object of a class-based view, if the arguments are those of a method."""
    return args[0] if args and isinstance(args[0], View) else None


def _request_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The request among the arguments of a view: the second argument if the first is `self`."""
    given = args if _self_of(args) is None else args[1:]
    return given[0] if given else kwargs["request"]


def _handle(request: Any, rule: str | InlineLimit) -> TwinHandle:
    return handle_in(getattr(request, "ratelimit", None), TwinHandle, rule, ADVICE)
