"""A request whose counters lie in several slots of a cluster: one inquiry each, and one reply of them all. No I/O."""

from collections.abc import Mapping, Sequence

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Outcome, Reply
from ratelimit_mw.stores.redis.cluster.parts import Moment, Result
from ratelimit_mw.stores.redis.inquiry import Inquiry, Intent

_SILENT = Outcome(True, 0, 0)


class Spanning:
    """One request's way from `inquiries`, one a slot, over what `returns` gives back, to its `reply`.

    Its parts are all or nothing: where one denies, what the others took is given back.
    """

    def __init__(self, asks: Sequence[Ask], places: Mapping[int, Sequence[int]], *, commit: bool) -> None:
        self._asks = asks
        self._places = places
        self._commit = commit
        self.inquiries: list[Inquiry] = [
            ([asks[place] for place in own], Intent(commit, slot=slot)) for slot, own in places.items()
        ]
        self._results: list[Result] = []
        self._returned: list[int] = []

    def returns(self, results: Sequence[Result]) -> list[Inquiry]:
        """The inquiries that give back what was taken, now that `results` came; none unless some part denies.

        Where a part is silent and no other denies, the request goes by `on_error`, and the rest stays charged.
        """
        self._results = list(results)
        taken: dict[int, Inquiry] = {}
        denied = False
        for number, (inquiry, result) in enumerate(zip(self.inquiries, results, strict=True)):
            if isinstance(result, Reply):
                if result.admits(inquiry[0]):
                    taken[number] = _refund(inquiry, result)
                else:
                    denied = True
        if not denied or not self._commit:
            return []
        self._returned = list(taken)
        return list(taken.values())

    def reply(self, looks: Sequence[Result]) -> Reply:
        """The reply to the whole, now that `looks` came to what was returned.

        Raises StoreUnavailable where a part is silent, unless another denies: that is certain enough, and of the
        silent one the reply says that it does not deny.
        """
        for number, look in zip(self._returned, looks, strict=True):
            was = self._results[number]
            if isinstance(look, Reply) and isinstance(was, Reply):
                outcomes = zip(was.outcomes, look.outcomes, strict=True)
                self._results[number] = Reply(was.now, [new if old.allowed else old for old, new in outcomes])
        said = [_SILENT] * len(self._asks)
        moments: dict[int, int] = {}
        silence: StoreUnavailable | None = None
        for (slot, own), result in zip(self._places.items(), self._results, strict=True):
            if isinstance(result, Reply):
                moments[slot] = result.now
                for place, outcome in zip(own, result.outcomes, strict=True):
                    said[place] = outcome
            else:
                silence = result
        if silence and not (moments and self._denied(said)):
            raise silence
        return Reply(Moment.latest(moments), said)

    def _denied(self, said: Sequence[Outcome]) -> bool:
        return not all(outcome.allowed or ask.shadow for ask, outcome in zip(self._asks, said, strict=True))


def _refund(inquiry: Inquiry, reply: Reply) -> Inquiry:
    asks, intent = inquiry
    # What a shadow rule would have denied was not taken.
    taken = [
        ask if outcome.allowed else ask._replace(cost=0) for ask, outcome in zip(asks, reply.outcomes, strict=True)
    ]
    return taken, Intent(charged_at=reply.now, slot=intent.slot)
