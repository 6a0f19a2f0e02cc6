"""What `limited` asks for in each framework: a rule by its name, or an inline limit.

An inline limit needs a name, because the name is part of its counters' keys and has to be the same after a restart. It
is the module and the qualified name of the view, and the place in the stack of decorators: "shop.views:send[1]" is the
limit that is written directly above the function.
"""

import inspect
import logging
import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from ratelimit_mw.config.at_runtime import reads_as_limit, validate_inline
from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.rules.inline import InlineLimit

RULES_OF_VIEW = "ratelimit_rules"
"""The attribute of a decorated view that has what its decorators ask for (`Placed`), the outermost first."""


class _Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "the rule's by"

    def __repr__(self) -> str:
        return self.value


UNSET = _Unset.UNSET
"""The key of an app that sets none."""

Key = str | int | UUID | None | _Unset
"""What an app may count by in place of a rule's `by`."""

_log = logging.getLogger("ratelimit_mw")


def text_of_key(key: object) -> str:
    """Return a key as text. "" if it is absent. Raises TypeError if it is not a text, a whole number or a UUID."""
    if key is None:
        return ""
    if isinstance(key, str):
        return str.__str__(key)  # an enum that is a str counts as the text that it equals
    if isinstance(key, (int, UUID)) and not isinstance(key, bool):
        return str(key)
    raise TypeError(f"key takes a text, a whole number or a UUID, not {type(key).__name__}")


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

    def read(self, request: object, sync: Callable[[Any], Any] = lambda function: function) -> str:
        """Return the key of a request. `sync` makes a plain function of one that may be async."""
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
        """Log an exception by its type and its line. Its message may have a secret."""
        if not self._logged:
            self._logged = True
            trace = traceback.extract_tb(error.__traceback__)[-1]
            _log.warning(
                "the key of a limit counts as absent, and the limit does not apply: "
                "%s was raised at %s:%s (logged once)",
                type(error).__name__,
                trace.filename,
                trace.lineno,
            )
        return ""


class Asked(NamedTuple):
    """What one `limited(…)` asks for. Made by `asked`.

    Attributes:
        text: The name of a rule, or the text of a limit.
        by: The entries of `by` of a limit. Empty: the default.
        shared: The name under which views share a limit. Empty: each view has counters of its own.
        is_limit: True for a limit.
        key: Returns what is counted in place of `by`. None: `by`.
    """

    text: str
    by: tuple[str, ...] = ()
    shared: str = ""
    is_limit: bool = False
    key: KeyFunction | None = None

    def named(self, name: str) -> str | InlineLimit:
        """Return the name of the rule, or the inline limit. It has this name, unless it is shared."""
        if not self.is_limit:
            return self.text
        return InlineLimit(self.shared or name, self.text, self.by, bool(self.shared))

    def above(self, view: object) -> "Placed":
        """Return what a decorator asks for that is written above `view`, a function or a class."""
        below: tuple[Placed, ...] = getattr(view, RULES_OF_VIEW, ())
        return Placed(self, view, 1 + sum(each.asked.is_limit and not each.asked.shared for each in below))


class Placed(NamedTuple):
    """What a decorator asks for, in its place.

    Attributes:
        asked: What it asks for.
        view: The function or the class that it decorates.
        place: Its place among the inline limits of the view. The lowest is 1.
    """

    asked: Asked
    view: object
    place: int

    def of(self, view: object) -> str | InlineLimit:
        """Return the name of the rule, or the limit. `view` is what was decorated, or a subclass of it."""
        return self.asked.named(f"{name_of_view(view)}[{self.place}]" if self.asked.is_limit else "")


def asked(
    rule: str,
    cost: int,
    by: str | Sequence[str] | None,
    shared: str | None,
    key: Callable[[Any], Any] | None = None,
) -> Asked:
    """Read the arguments of `limited`.

    Args:
        rule: The name of a rule, or the text of a limit.
        cost: What each request will be charged.
        by: What the limit counts by. None: the default of a rule.
        shared: The name under which views share the limit. None: each view has counters of its own.
        key: A function from a request to what is counted in place of `by`. None: `by`.

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
        return Asked(rule, key=function)
    entries = () if by is None else (by,) if isinstance(by, str) else tuple(by)
    limit = InlineLimit(shared or "", " ".join(rule.split()), entries, shared is not None)
    if by is not None and not entries:
        raise ConfigurationError([Problem(f"limited({quoted(rule)}): by must not be empty", hint="leave it out")])
    if by is not None and key is not None:
        message = f"limited({quoted(rule)}): by can't be combined with key, which takes its place"
        raise ConfigurationError([Problem(message, hint="remove by")])
    validate_inline(limit, cost if type(cost) is int else 1)
    return Asked(limit.limit, entries, limit.name, is_limit=True, key=function)


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
    while view is not None:
        if isinstance(view, partial) and inspect.ismethod(view.func) and hasattr(view, "__name__"):
            return type(view.func.__self__)
        view = getattr(view, "__wrapped__", None)
    return None
