"""The plan of a request that frameworks read in different ways: what it asks in each of them, together.

The app's framework reads it in one of them, and the limiter does not know in which. So a rule counts a request if it
matches in any reading, under each identity that a reading gives it. What spares a request something (an exemption, a
rule that replaces another, a tier) has to hold in all of them.
"""

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

from ratelimit_mw.identity.attributes import Reader
from ratelimit_mw.identity.request import Reading, Request
from ratelimit_mw.model import Charge

T = TypeVar("T")

Planning = Callable[[Request], Sequence[Charge]]


def plan_in_doubt(
    request: Request, readings: Sequence[Reading], tier: Reader | None, plan: Planning, blocked: Sequence[Charge]
) -> Sequence[Charge]:
    """The charges of `plan` for each reading of a request, each counter once and at its highest cost.

    A reading that lacks an attribute which another has adds the charges of further rules alone: `by: user|ip` counts a
    user who is there in one reading, and not the address as well. `blocked` is passed on.
    """
    if tier is not None and len({_in(reading, request, tier) for reading in readings}) > 1:
        readings = [{**reading, "tier": None} for reading in readings]  # as of a request without one
    found: dict[str, Charge] = {}
    counted: set[str] = set()
    for absent, reading in sorted(((_absent(reading), reading) for reading in readings), key=lambda each: each[0]):
        charges = _in(reading, request, plan)
        if charges is blocked:
            return charges
        for charge in charges:
            known = found.get(charge.ask.key)
            if known is None and absent and charge.rule.name in counted:
                continue
            if known is None or known.ask.cost < charge.ask.cost:
                found[charge.ask.key] = charge
        counted.update([charge.rule.name for charge in charges])
    return tuple(found.values())


def _absent(reading: Reading) -> int:
    return sum(value is None for name, value in reading.items() if name != "tier")


def _in(reading: Reading, request: Request, ask: Callable[[Request], T]) -> T:
    """What `ask` says of the request in one reading. What is not in doubt is read once, and kept for the others."""
    view = copy.copy(request)
    view.values = {**request.values, **reading}
    said = ask(view)
    request.values.update((name, value) for name, value in view.values.items() if name not in reading)
    return said
