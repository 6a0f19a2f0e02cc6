"""Limits in code: what `limited` asks for in each framework, a rule by its name or an inline limit, and its functions.

An inline limit needs a name, because the name is part of its counters' keys and has to be the same after a restart. It
is the module and the qualified name of the view, and the place in the stack of decorators: "shop.views:send[1]" is the
limit that is written directly above the function.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypedDict, TypeVar, cast

from ratelimit_mw.config.words.overrides import read_methods, reads_as_limit, validate_inline
from ratelimit_mw.decision.settlement import Settlement
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.http.handle import BlockingHandle, Enforced, RequestHandle
from ratelimit_mw.identity.sources import described
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.model import Decision
from ratelimit_mw.rules.inline import SAMPLE, UNSET, InlineLimit, text_of_key
from ratelimit_mw.stores.base import NO_STORE, Step, Steps, adrive, drive
from ratelimit_mw.units import whole

RULES_OF_VIEW = "ratelimit_rules"
"""The attribute of a decorated view that has what its decorators ask for (`Placed`), the outermost first."""

LIMITED_AS = "ratelimit_limited_as"
"""The attribute of a function below `limited`: pairs of the function and what `limited` made of it."""

_H = TypeVar("_H", bound=RequestHandle)
_V = TypeVar("_V", bound=Callable[..., Any])


Synchronous = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
"""Makes a plain function of one that may be async."""


class Purpose(NamedTuple):
    """What the app passes a function for.

    Attributes:
        name: The argument of `limited`.
        read: Makes an answer of what the function returns. Raises TypeError if it has another type.
        default: The answer if the function raises.
        consequence: What follows from that answer, for the log.
    """

    name: str
    read: Callable[[Any], Any]
    default: Any
    consequence: str


def _text_of_limit(limit: object) -> str:
    if not (limit is None or isinstance(limit, str)):
        raise TypeError(f"a function returns a limit as a string, such as '5 per minute', not {type(limit).__name__}")
    return " ".join((limit or "").split())


def _cost(cost: object) -> int:
    if cost is None:
        return 1
    if isinstance(cost, bool):
        raise TypeError("a function returns a cost as a whole number, not bool")
    return whole(cost)


KEY = Purpose("key", text_of_key, "", "counts as absent, and the limit does not apply")
LIMIT = Purpose("limit", _text_of_limit, "", "counts as absent, and on_error decides")
COST = Purpose("cost", _cost, 1, "counts as 1")
EXEMPT_WHEN = Purpose("exempt_when", bool, False, "counts as false, and the limit applies")
REFUND_WHEN = Purpose("refund_when", bool, False, "counts as false, and nothing is refunded")


@dataclass(frozen=True, slots=True)
class AppFunction:
    """A function of the app, with its purpose. Two with the same function and the same purpose are equal."""

    function: Callable[[Any], Any]
    purpose: Purpose
    once: Once = field(default_factory=Once, compare=False)

    def __post_init__(self) -> None:
        """Raise TypeError for what cannot be called with one argument. Some functions in C do not tell."""
        try:
            inspect.signature(self.function).bind(None)
        except ValueError:
            return
        except TypeError:
            what = "response" if self.purpose is REFUND_WHEN else "request"
            message = f"{self.purpose.name} takes a function that gets the {what}, not {self.function!r}"
            raise TypeError(message) from None

    def read(self, argument: object, sync: Synchronous) -> Any:
        """Return the answer for a request or a response."""
        try:
            return self.purpose.read(sync(self.function)(argument))
        except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
            return self._failed(described(error))

    async def aread(self, argument: object) -> Any:
        """Do what `read` does, awaitable. The function may be async."""
        try:
            found = self.function(argument)
            return self.purpose.read(await found if inspect.isawaitable(found) else found)
        except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
            return self._failed(described(error))

    def _failed(self, reason: str) -> Any:
        message = "the %s of a limit %s: %s (logged once)"
        self.once(logger.warning, message, self.purpose.name, self.purpose.consequence, reason)
        return self.purpose.default


class LimitOptions(TypedDict, total=False):
    """The options of `limited`. They are the same in all frameworks.

    `by`, `algorithm` and `shared` belong to a limit; a rule has its own. The functions may be async. An exception in
    one is logged once.

    Attributes:
        by: What a limit counts by, as in a rules file: "user|ip", or a list. None: the address.
        algorithm: The algorithm of a limit, as in a rules file. None: the default.
        shared: A name for a limit. All views whose limit has this name share its counters.
        methods: The methods that are counted, such as ["POST"]. HEAD counts as GET. None: all of them.
        key: A function that gets the request and returns what to count by in place of `by`: a text, a number, a UUID or
            None. None, "" or an exception counts as absent: the rule or the limit does not apply.
        exempt_when: A function that gets the request. If it returns true, the rule or the limit does not apply.
        refund_when: A function that gets the response. If it returns true, what the rule or the limit charged is
            refunded. The response is that of the framework; in Starlette and FastAPI it has no body. If the app raises,
            the status is 500. A place of an `N concurrent` limit is free after every response.
    """

    by: str | Sequence[str] | None
    algorithm: str | None
    shared: str | None
    methods: Sequence[str] | None
    key: Callable[[Any], Any] | None
    exempt_when: Callable[[Any], Any] | None
    refund_when: Callable[[Any], Any] | None


class Refund(NamedTuple):
    """What is refunded if `refund_when` says so of the response.

    Attributes:
        when: The function.
        handle: The handle of the request.
        verdict: What has charged the request.
    """

    when: AppFunction
    handle: RequestHandle
    verdict: Verdict

    def settle(self, response: object, sync: Synchronous = lambda function: function) -> None:
        """Refund if the function says so."""
        if self.when.read(response, sync):
            Settlement.settle(*self.handle.refund_of(self.verdict))

    async def asettle(self, response: object) -> None:
        """Do what `settle` does, awaitable."""
        if await self.when.aread(response):
            await Settlement.asettle(*self.handle.refund_of(self.verdict))


_PASSED = Enforced(Decision(True), None)


class LimitInCode(NamedTuple):
    """What one `limited(…)` asks for. Made by `limit_in_code`.

    Attributes:
        advice: How to add the middleware, for the error where it is missing.
        text: The name of a rule, the text of a limit, or the name of the function that returns it.
        rule: The name of the rule, or the limit. It has a name if it is shared. Otherwise each view has its own.
        cost: What each request is charged, or the function that returns it.
        methods: The methods that are counted. None: all of them.
        limit: Returns the text of the limit of a request. None: the text is `text`.
        key: Returns what is counted in place of `by`. None: `by`.
        exempt_when: Returns whether a request is not counted.
        refund_when: Returns whether a response is refunded.
    """

    advice: str
    text: str
    rule: str | InlineLimit
    cost: int | AppFunction
    methods: frozenset[str] | None = None
    limit: AppFunction | None = None
    key: AppFunction | None = None
    exempt_when: AppFunction | None = None
    refund_when: AppFunction | None = None

    @property
    def is_own(self) -> bool:
        """True for a limit of which each view has its own."""
        return isinstance(self.rule, InlineLimit) and not self.rule.shared

    def named(self, name: str) -> str | InlineLimit:
        """Return the name of the rule, or the inline limit. It has this name, unless it is shared."""
        rule = self.rule
        return rule if isinstance(rule, str) or rule.shared else rule._replace(name=name)

    def above(self, view: object, owner: type | None = None) -> "Placed":
        """Return what a decorator asks for that is written above `view`, or above `owner`, whose `dispatch` it is."""
        place = 1 + sum(each.limit.is_own for each in _placed_on(view))
        return Placed(self, owner or view, place)

    def enforce(
        self,
        rule: str | InlineLimit,
        found: object,
        request: object,
        later: Callable[[Refund], object],
        sync: Synchronous = lambda function: function,
    ) -> Enforced:
        """Decide on the current request, and wait for its turn.

        Args:
            rule: The rule or the limit, as `named` or `Placed.of` returns it.
            found: What is where the middleware puts the handle.
            request: The request, for the functions of the app.
            later: Keeps a refund until there is a response.
            sync: Makes a plain function of a function of the app, which may be async.

        Raises:
            RuntimeError: There is no handle, because the middleware is not around the app.
        """
        handle = handle_in(found, BlockingHandle, rule, self.advice)
        return drive(NO_STORE, self._steps(rule, handle, request, later, sync))

    async def aenforce(
        self, rule: str | InlineLimit, found: object, request: object, later: Callable[[Refund], object]
    ) -> Enforced:
        """Do what `enforce` does, awaitable."""
        handle = handle_in(found, RequestHandle, rule, self.advice)
        return await adrive(NO_STORE, self._steps(rule, handle, request, later))

    def _steps(
        self,
        rule: str | InlineLimit,
        handle: Any,
        request: object,
        later: Callable[[Refund], object],
        sync: Any = None,
    ) -> Steps[Enforced]:
        """Ask the functions of the app, and then the handle. Only steps that block need `sync`."""

        def answer(function: AppFunction) -> Step:
            return Step(partial(function.read, sync=sync), function.aread, request)

        if self.methods is not None and handle.method not in self.methods:
            return _PASSED
        if self.exempt_when is not None and (yield answer(self.exempt_when)):
            return _PASSED
        text = None if self.limit is None else (yield answer(self.limit))
        key = UNSET if self.key is None else (yield answer(self.key))
        cost = (yield answer(self.cost)) if isinstance(self.cost, AppFunction) else self.cost
        wanted = {"key": key, "limit": text}
        enforced: Enforced = yield Step(
            partial(handle.enforce, **wanted), partial(handle.aenforce, **wanted), rule, cost
        )
        charged = handle.latest if enforced.denial is None else None
        if self.refund_when is not None and charged is not None:
            later(Refund(self.refund_when, handle, charged))
        return enforced


class Placed(NamedTuple):
    """What a decorator asks for, in its place.

    Attributes:
        limit: What it asks for.
        view: The function or the class that it decorates.
        place: Its place among the inline limits of the view. The lowest is 1.
    """

    limit: LimitInCode
    view: object
    place: int

    def of(self, owner: type | None) -> str | InlineLimit:
        """Return the name of the rule, or the limit. That of a decorated class is named by `owner`: it or an heir."""
        view = owner if isinstance(self.view, type) else self.view
        return self.limit.named(f"{name_of_view(view)}[{self.place}]" if self.limit.is_own else "")

    def marked(self, limited: Any) -> Any:
        """Return what `limited` made of a view, with a note of what it asks for above what those below it ask for.

        `limited` was made by `functools.wraps`, so it refers to what it wraps.
        """
        setattr(limited, RULES_OF_VIEW, (self, *_placed_on(limited)))
        if not isinstance(self.view, type):
            for below in wrapped_by(self.view):
                if hasattr(below, "__dict__"):
                    vars(below)[LIMITED_AS] = (*getattr(below, LIMITED_AS, ()), (below, limited))
        return limited


def decorator(of_class: Callable[[Any], Any], of_function: Callable[[Any], Any]) -> Callable[[_V], _V]:
    """Return the decorator that decorates classes by one function, and all else by the other."""

    def decorate(view: _V) -> _V:
        given: object = view
        if not callable(given):
            message = f"limited decorates views, not {view!r}; a rule with match: {{path: …}} limits many views"
            raise TypeError(message)
        return cast("_V", (of_class if isinstance(view, type) else of_function)(view))

    return decorate


def wrapped_by(view: Any) -> Iterator[Any]:
    """Yield a function and all functions that it wraps, as `functools.wraps` notes them."""
    while view is not None:
        yield view
        view = view.func if isinstance(view, partial) else getattr(view, "__wrapped__", None)


def _placed_on(view: object) -> tuple[Placed, ...]:
    """Return the notes of a view. `functools.wraps` copies those of what it wraps, but a partial has none."""
    notes = (getattr(each, RULES_OF_VIEW, ()) for each in wrapped_by(view))
    return next(filter(None, notes), ())


def handle_in(found: object, kind: type[_H], rule: str | InlineLimit, advice: str) -> _H:
    """Return the handle of the current request.

    Args:
        found: What is where the middleware puts the handle.
        kind: The class of the handle.
        rule: The rule that is asked for.
        advice: How to add the middleware.

    Raises:
        RuntimeError: There is no handle, because the middleware is not around the app.
    """
    if not isinstance(found, kind):
        name = rule if isinstance(rule, str) else rule.name
        raise RuntimeError(f"the rule {name!r} cannot be used: {advice}")
    return found


def limit_in_code(
    rule: str | Callable[[Any], Any], cost: int | Callable[[Any], Any], options: LimitOptions, *, advice: str
) -> LimitInCode:
    """Read the arguments of `limited`.

    Args:
        rule: The name of a rule, the text of a limit, or a function from a request to the text of a limit.
        cost: What each request will be charged, or a function from a request to it.
        options: The options.
        advice: How to add the middleware.

    Raises:
        ConfigurationError: The text begins with a number, but is not a limit; the limit cannot be used; options that
            belong to a limit are given with the name of a rule; or `by` and `key` are both given.
        TypeError: An argument has another type, or there is no such option.
    """
    if unknown := sorted(options.keys() - LimitOptions.__annotations__.keys()):
        known = ", ".join(LimitOptions.__annotations__)
        raise TypeError(f"limited has no option {unknown[0]!r}; known: {known}")
    by, shared, algorithm = options.get("by"), options.get("shared"), options.get("algorithm")
    function = _function(rule, LIMIT) if callable(rule) else None
    if function is None and not isinstance(rule, str):
        raise TypeError(f"limited takes the name of a rule, or a limit such as '5 per minute', not {rule!r}")
    if not (by is None or isinstance(by, str) or all(isinstance(entry, str) for entry in by)):
        raise TypeError(f"by takes an attribute such as 'user|ip', or a list of them, not {by!r}")
    for name, value in (("shared", shared), ("algorithm", algorithm)):
        if not (value is None or isinstance(value, str)):
            raise TypeError(f"{name} takes a name, not {value!r}")
    text = rule if isinstance(rule, str) else name_of_view(rule)
    methods = options.get("methods")
    read = LimitInCode(
        advice,
        text,
        text,
        AppFunction(cost, COST) if callable(cost) else cost,
        methods=None if methods is None else read_methods(text, methods),
        limit=function,
        key=_function(options.get("key"), KEY),
        exempt_when=_function(options.get("exempt_when"), EXEMPT_WHEN),
        refund_when=_function(options.get("refund_when"), REFUND_WHEN),
    )
    if function is None and not reads_as_limit(text):
        _refuse_options_of_limits(text, {"by": by, "shared": shared, "algorithm": algorithm})
        return read
    entries = () if by is None else (by,) if isinstance(by, str) else tuple(by)
    if by is not None and not entries:
        raise ConfigurationError([Problem(f"limited({quoted(text)}): by must not be empty", hint="leave it out")])
    if by is not None and read.key is not None:
        message = f"limited({quoted(text)}): by can't be combined with key, which takes its place"
        raise ConfigurationError([Problem(message, hint="remove by")])
    text = " ".join(text.split())
    computed = function is not None
    limit = InlineLimit(
        shared or "", SAMPLE if computed else text, entries, shared is not None, algorithm or "", computed
    )
    validate_inline(limit, cost if isinstance(cost, int) else 1)
    return read._replace(text=text, rule=limit)


def _function(given: Callable[[Any], Any] | None, purpose: Purpose) -> AppFunction | None:
    return None if given is None else AppFunction(given, purpose)


def _refuse_options_of_limits(rule: str, options: dict[str, object]) -> None:
    """Raise ConfigurationError if the name of a rule comes with an option that belongs to a limit."""
    for option, value in options.items():
        if value is not None:
            message = f"{option} belongs to a limit, but {quoted(rule)} is the name of a rule"
            hint = "all views that name a rule share it" if option == "shared" else f"write {option} in the rules file"
            raise ConfigurationError([Problem(f"limited({quoted(rule)}): {message}", hint=hint)])


def name_of_view(view: Any) -> str:
    """Return the module and the qualified name of a view, such as "shop.views:send".

    A function that a framework makes from a class is named by its class, or by the name that the framework gave it.
    """
    owner = getattr(view, "view_class", None) or getattr(view, "cls", None)  # Django's and REST framework's as_view()
    if isinstance(owner, type):
        return f"{owner.__module__}:{owner.__qualname__}"
    owner = _class_of_method(view)
    if owner is not None:
        return f"{owner.__module__}:{owner.__qualname__}.{view.__name__}"
    if isinstance(view, partial):
        return name_of_view(view.func)
    if not hasattr(view, "__qualname__"):  # an object that can be called
        view = type(view)
    name: str = view.__qualname__
    if name.rpartition(".")[2] != view.__name__:  # renamed, as by Flask's as_view()
        name = view.__name__
    return f"{view.__module__}:{name}"


def _class_of_method(view: Any) -> type | None:
    """Return the class if `view` is a bound method that Django's `method_decorator` passes to a decorator."""
    for each in wrapped_by(view):
        if isinstance(each, partial) and inspect.ismethod(each.func) and hasattr(each, "__name__"):
            return type(each.func.__self__)
    return None
