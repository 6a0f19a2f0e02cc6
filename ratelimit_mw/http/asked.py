"""What `limited` asks for in each framework: a rule by its name, or an inline limit.

An inline limit needs a name, because the name is part of its counters' keys and has to be the same after a restart. It
is the module and the qualified name of the view, and the place in the stack of decorators: "shop.views:send[1]" is the
limit that is written directly above the function.
"""

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from ratelimit_mw.config.inline import reads_as_limit, validate_inline
from ratelimit_mw.decision.names import DECORATED
from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.rules.inline import InlineLimit
from ratelimit_mw.rules.ruleset import Features

RULES_OF_VIEW = "ratelimit_rules"
"""The attribute of a decorated view that has what its decorators ask for (`Placed`), the outermost first."""


class Asked(NamedTuple):
    """What one `limited(…)` asks for. Made by `asked`.

    Attributes:
        text: The name of a rule, or the text of a limit.
        by: The entries of `by` of a limit. Empty: the default.
        shared: The name under which views share a limit. Empty: each view has counters of its own.
        is_limit: True for a limit.
    """

    text: str
    by: tuple[str, ...] = ()
    shared: str = ""
    is_limit: bool = False

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


def asked(rule: str, cost: int, by: str | Sequence[str] | None, shared: str | None) -> Asked:
    """Read the arguments of `limited`.

    Args:
        rule: The name of a rule, or the text of a limit.
        cost: What each request will be charged.
        by: What the limit counts by. None: the default of a rule.
        shared: The name under which views share the limit. None: each view has counters of its own.

    Raises:
        ConfigurationError: The text begins with a number, but is not a limit; the limit cannot be used; or `by` or
            `shared` is given with the name of a rule.
        TypeError: An argument has another type.
    """
    if not isinstance(rule, str):
        raise TypeError(f"limited takes the name of a rule, or a limit such as '5 per minute', not {rule!r}")
    if not (by is None or isinstance(by, str) or all(isinstance(entry, str) for entry in by)):
        raise TypeError(f"by takes an attribute such as 'user|ip', or a list of them, not {by!r}")
    if not (shared is None or isinstance(shared, str)):
        raise TypeError(f"shared takes a name, not {shared!r}")
    if not reads_as_limit(rule):
        for key, value in (("by", by), ("shared", shared)):
            if value is not None:
                message = f"{key} belongs to a limit, but {quoted(rule)} is the name of a rule"
                hint = "write by in the rules file" if key == "by" else "all views that name a rule share it"
                raise ConfigurationError([Problem(f"limited({quoted(rule)}): {message}", hint=hint)])
        DECORATED.add(rule)
        return Asked(rule)
    entries = () if by is None else (by,) if isinstance(by, str) else tuple(by)
    limit = InlineLimit(shared or "", " ".join(rule.split()), entries, shared is not None)
    if by is not None and not entries:
        raise ConfigurationError([Problem(f"limited({quoted(rule)}): by must not be empty", hint="leave it out")])
    validate_inline(limit, cost if type(cost) is int else 1)
    Features.demanding = True
    return Asked(limit.limit, entries, limit.name, is_limit=True)


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
