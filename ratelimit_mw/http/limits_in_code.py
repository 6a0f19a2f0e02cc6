"""Limits in code: what `limited` asks for in each framework, a rule by its name or an inline limit.

An inline limit needs a name, because the name is part of its counters' keys and has to be the same after a restart. It
is the module and the qualified name of the view, and the place in the stack of decorators: "shop.views:send[1]" is the
limit that is written directly above the function.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from ratelimit_mw.config.at_runtime import reads_as_limit, validate_inline
from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.http.handle import BlockingHandle, Enforced, RequestHandle
from ratelimit_mw.identity.sources import described
from ratelimit_mw.rules.inline import UNSET, InlineLimit, Key, text_of_key

RULES_OF_VIEW = "ratelimit_rules"
"""The attribute of a decorated view that has what its decorators ask for (`Placed`), the outermost first."""

LIMITED_AS = "ratelimit_limited_as"
"""The attribute of a function below `limited`: pairs of the function and what `limited` made of it."""

_log = logging.getLogger("ratelimit_mw")

_H = TypeVar("_H", bound=RequestHandle)
_V = TypeVar("_V", bound=Callable[..., Any])

Synchronous = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
"""Makes a plain function of one that may be async."""


class KeyFunction:
    """The `key` of `limited`: a function from a request to what is counted.

    An exception is logged once and means that there is no key. Objects of the same function are equal.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._logged = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyFunction) and self._function == other._function

    def __hash__(self) -> int:
        return hash(self._function)

    def read(self, request: object, sync: Synchronous) -> str:
        """Return the key of a request."""
        try:
            return text_of_key(sync(self._function)(request))
        except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
            return self._failed(error)

    async def aread(self, request: object) -> str:
        """Return the key of a request. The function may be async."""
        try:
            found = self._function(request)
            return text_of_key(await found if inspect.isawaitable(found) else found)
        except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
            return self._failed(error)

    def _failed(self, error: Exception) -> str:
        if not self._logged:
            self._logged = True
            message = "the key of a limit counts as absent, and the limit does not apply: %s (logged once)"
            _log.warning(message, described(error))
        return ""


class LimitInCode(NamedTuple):
    """What one `limited(…)` asks for. Made by `limit_in_code`.

    Attributes:
        advice: How to add the middleware, for the error where it is missing.
        text: The name of a rule, or the text of a limit.
        cost: What each request is charged.
        by: The entries of `by` of a limit. Empty: the default.
        shared: The name under which views share a limit. Empty: each view has counters of its own.
        is_limit: True for a limit.
        key: Returns what is counted in place of `by`. None: `by`.
    """

    advice: str
    text: str
    cost: int
    by: tuple[str, ...] = ()
    shared: str = ""
    is_limit: bool = False
    key: KeyFunction | None = None

    def named(self, name: str) -> str | InlineLimit:
        """Return the name of the rule, or the inline limit. It has this name, unless it is shared."""
        if not self.is_limit:
            return self.text
        return InlineLimit(self.shared or name, self.text, self.by, bool(self.shared))

    def above(self, view: object, owner: type | None = None) -> "Placed":
        """Return what a decorator asks for that is written above `view`, or above `owner`, whose `dispatch` it is."""
        below: tuple[Placed, ...] = getattr(view, RULES_OF_VIEW, ())
        place = 1 + sum(each.limit.is_limit and not each.limit.shared for each in below)
        return Placed(self, owner or view, place)

    def enforce(
        self, rule: str | InlineLimit, found: object, request: object, sync: Synchronous = lambda function: function
    ) -> Enforced:
        """Decide on the current request, and wait for its turn.

        Args:
            rule: The rule or the limit, as `named` or `Placed.of` returns it.
            found: What is where the middleware puts the handle.
            request: The request, for the function `key`.
            sync: Makes a plain function of the function `key`, which may be async.

        Raises:
            RuntimeError: There is no handle, because the middleware is not around the app.
        """
        handle = handle_in(found, BlockingHandle, rule, self.advice)
        return handle.enforce(rule, self.cost, key=UNSET if self.key is None else self.key.read(request, sync))

    async def aenforce(self, rule: str | InlineLimit, found: object, request: object) -> Enforced:
        """Do what `enforce` does, awaitable."""
        handle = handle_in(found, RequestHandle, rule, self.advice)
        key: Key = UNSET if self.key is None else await self.key.aread(request)
        return await handle.aenforce(rule, self.cost, key=key)


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
        return self.limit.named(f"{name_of_view(view)}[{self.place}]" if self.limit.is_limit else "")

    def marked(self, limited: Any) -> Any:
        """Return what `limited` made of a view, with a note of what it asks for above what those below it ask for.

        `limited` was made by `functools.wraps`, so it has the notes of what it wraps.
        """
        setattr(limited, RULES_OF_VIEW, (self, *getattr(limited, RULES_OF_VIEW, ())))
        if not isinstance(self.view, type):
            for below in wrapped_by(self.view):
                if hasattr(below, "__dict__"):
                    vars(below)[LIMITED_AS] = (*getattr(below, LIMITED_AS, ()), (below, limited))
        return limited


def decorator(of_class: Callable[[Any], Any], of_function: Callable[[Any], Any]) -> Callable[[_V], _V]:
    """Return the decorator that decorates classes by one function, and all else by the other."""

    def decorate(view: _V) -> _V:
        return cast("_V", (of_class if isinstance(view, type) else of_function)(view))

    return decorate


def wrapped_by(view: Any) -> Iterator[Any]:
    """Yield a function and all functions that it wraps, as `functools.wraps` notes them."""
    while view is not None:
        yield view
        view = view.func if isinstance(view, partial) else getattr(view, "__wrapped__", None)


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
    rule: str,
    cost: int,
    by: str | Sequence[str] | None,
    shared: str | None,
    key: Callable[[Any], Any] | None = None,
    *,
    advice: str,
) -> LimitInCode:
    """Read the arguments of `limited`.

    Args:
        rule: The name of a rule, or the text of a limit.
        cost: What each request will be charged.
        by: What the limit counts by. None: the default of a rule.
        shared: The name under which views share the limit. None: each view has counters of its own.
        key: A function from a request to what is counted in place of `by`. None: `by`.
        advice: How to add the middleware.

    Raises:
        ConfigurationError: The text begins with a number, but is not a limit; the limit cannot be used; `by` or
            `shared` is given with the name of a rule; or `by` and `key` are both given.
        TypeError: An argument has another type.
    """
    if not isinstance(rule, str):
        raise TypeError(f"limited takes the name of a rule, or a limit such as '5 per minute', not {rule!r}")
    if not (by is None or isinstance(by, str) or all(isinstance(entry, str) for entry in by)):
        raise TypeError(f"by takes an attribute such as 'user|ip', or a list of them, not {by!r}")
    if not (shared is None or isinstance(shared, str)):
        raise TypeError(f"shared takes a name, not {shared!r}")
    if not (key is None or callable(key)):
        raise TypeError(f"key takes a function from the request to what is counted, not {key!r}")
    function = None if key is None else KeyFunction(key)
    if not reads_as_limit(rule):
        for argument, value in (("by", by), ("shared", shared)):
            if value is not None:
                message = f"{argument} belongs to a limit, but {quoted(rule)} is the name of a rule"
                hint = "write by in the rules file" if argument == "by" else "all views that name a rule share it"
                raise ConfigurationError([Problem(f"limited({quoted(rule)}): {message}", hint=hint)])
        return LimitInCode(advice, rule, cost, key=function)
    entries = () if by is None else (by,) if isinstance(by, str) else tuple(by)
    limit = InlineLimit(shared or "", " ".join(rule.split()), entries, shared is not None)
    if by is not None and not entries:
        raise ConfigurationError([Problem(f"limited({quoted(rule)}): by must not be empty", hint="leave it out")])
    if by is not None and key is not None:
        message = f"limited({quoted(rule)}): by can't be combined with key, which takes its place"
        raise ConfigurationError([Problem(message, hint="remove by")])
    validate_inline(limit, cost if type(cost) is int else 1)
    return LimitInCode(advice, limit.limit, cost, entries, limit.name, is_limit=True, key=function)


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
