"""What a request asks of a server, and what the server may say in place of an answer."""

from collections.abc import Sequence
from typing import NamedTuple

from ratelimit_mw.algorithms import NOTHING, widened
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask


class Intent(NamedTuple):
    """What is to be done about a request's asks: to decide on them, unless it says something else.

    `commit=False` looks without charging; `forget` drops the counters. With `charged_at` nothing is decided: what a
    decision of that time charged is given back, and the outcomes are a look at what is left. With `insist` everything
    is charged, and what was charged at that time is given back before; the outcomes are of no use. On a cluster all
    keys lie in `slot`, and `asking` follows its redirection.
    """

    commit: bool = True
    forget: bool = False
    charged_at: int | None = None
    slot: int = 0
    asking: bool = False
    insist: bool = False


DECIDE = Intent()

Inquiry = tuple[Sequence[Ask], Intent]
"""One request's asks, decided together: a plain pair, for one is made for each request."""


def charging(asks: Sequence[Ask], instead_of: int | None, slot: int = 0) -> Inquiry:
    """The inquiry that charges these asks, over the limit too."""
    wide = [ask._replace(quota=widened(ask.quota)) for ask in asks]
    return wide, Intent(charged_at=instead_of, insist=True, slot=slot)


def forgetting(keys: Sequence[str], slot: int = 0) -> Inquiry:
    """The inquiry that makes these counters as if unused."""
    return [Ask(key, NOTHING) for key in keys], Intent(forget=True, slot=slot)


class Spoilt(StoreUnavailable):
    """One request's own counters can't be used (a key of another type, say); the store itself is well."""


class Elsewhere(StoreUnavailable):
    """Nothing was done: this node of a cluster is well, but it was not the one to ask, or not the moment."""


class NoAnswer(StoreUnavailable):
    """Nothing came within the deadline: no answer, or no connection."""


class Late(StoreUnavailable):
    """One request was not answered in time. Others are, so the store itself is well."""


def away(result: object) -> bool:
    """True for an answer after which its connection is worth nothing: a master turned replica, a full memory."""
    return isinstance(result, StoreUnavailable) and not isinstance(result, Spoilt | Elsewhere | Late)
