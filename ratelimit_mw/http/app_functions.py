"""The functions that an app passes to `limited`: they get a request or a response, and never fail a request.

They may be async. An exception is logged once for each function, and the function then has a default answer.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ratelimit_mw.decision.planning import whole
from ratelimit_mw.identity.sources import described
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.rules.inline import text_of_key

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
