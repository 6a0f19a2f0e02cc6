"""A call to the store, slot by slot: the inquiries that it comes to, and when they were answered. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Reply
from ratelimit_mw.stores.redis.cluster.slots import slot_of
from ratelimit_mw.stores.redis.inquiry import Inquiry, Intent, charging, forgetting

Result = Reply | StoreUnavailable
"""What became of an inquiry."""


class Moment(int):
    """When a request over several slots was decided: the latest of their nodes' clocks, and each in `of_slot`.

    Who gives something back says when it was charged, by the number in the reply; each node wants its own.
    """

    of_slot: Mapping[int, int]

    @classmethod
    def latest(cls, of_slot: Mapping[int, int]) -> Self:
        """The one number that stands for all."""
        moment = cls(max(of_slot.values()))
        moment.of_slot = of_slot
        return moment


def by_slot(keys: Sequence[str]) -> dict[int, list[int]]:
    """The slots in which `keys` lie, and the places of those in each. To ask nothing any slot will do."""
    places: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(slot_of(key), []).append(place)
    return places or {0: []}


def forgetting_all(keys: Sequence[str]) -> list[Inquiry]:
    """The inquiries that make these counters as if unused."""
    return [forgetting([keys[place] for place in places], slot) for slot, places in by_slot(keys).items()]


def refunds(asks: Sequence[Ask], charged_at: int) -> list[Inquiry]:
    """The inquiries that give back what was charged at that moment."""
    return [
        ([asks[place] for place in places], Intent(charged_at=_in_slot(charged_at, slot), slot=slot))
        for slot, places in by_slot([ask.key for ask in asks]).items()
    ]


def charges(asks: Sequence[Ask], slots: Mapping[int, Sequence[int]], instead_of: int | None) -> list[Inquiry]:
    """The inquiries that charge these asks, which lie in `slots` as `by_slot` says."""
    return [
        charging([asks[place] for place in places], None if instead_of is None else _in_slot(instead_of, slot), slot)
        for slot, places in slots.items()
    ]


def when(slots: Iterable[int], results: Sequence[Result]) -> int:
    """When it was done, in each slot. Raises StoreUnavailable where some slot is silent."""
    times: dict[int, int] = {}
    for slot, result in zip(slots, results, strict=True):
        if isinstance(result, StoreUnavailable):
            raise result
        times[slot] = result.now
    return Moment.latest(times)


def _in_slot(moment: int, slot: int) -> int:
    """A moment by the clock of the node that serves `slot`."""
    return moment.of_slot.get(slot, moment) if isinstance(moment, Moment) else moment
