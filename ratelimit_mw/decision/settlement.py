"""Settles the charges of a request: the response or calls of the app keep, refund or increase them."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.decision.storage import InFlight, InFlightPlace, Storage
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Reply, Rule
from ratelimit_mw.process_local import lazy, lock
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.base import Intent, Steps, adrive, drive

ReadHeader = Callable[[str], str | None]
"""Returns the value of a response header by its name in lower case; None if there is no such header."""


class Move(NamedTuple):
    """One call to the store.

    Attributes:
        asks: the counters, each with the cost to refund or to charge.
        charged_at: the time of the charge that is refunded. If it is None, the call charges `asks`, even above
            the limit.
        takers: for a charge, the records that grow by it, in the order of `asks`.
    """

    asks: Sequence[Ask]
    charged_at: int | None
    takers: "Sequence[_Taken]" = ()


class _Taken:
    """What the request took from one counter. `parts` are pairs of the time of a charge and its amount."""

    __slots__ = ("_counted", "ask", "closed", "parts", "place", "remaining", "rule")

    def __init__(self, place: int, rule: Rule, ask: Ask, at: int, remaining: int) -> None:
        self.place = place
        self.rule = rule
        self.ask = ask
        self.remaining = remaining
        self.parts = [(at, ask.cost)] if ask.cost else []
        self.closed = False
        self._counted: tuple[int, bool] | None = None

    @property
    def amount(self) -> int:
        return sum(amount for _, amount in self.parts)

    def give_back(self, amount: int) -> list[tuple[int, int]]:
        """Remove `amount` from `parts`, the latest first. Returns the times and amounts to refund."""
        returned: list[tuple[int, int]] = []
        while amount > 0 and self.parts:
            at, taken = self.parts.pop()
            back = min(taken, amount)
            if back < taken:
                self.parts.append((at, taken - back))
            returned.append((at, back))
            amount -= back
        return returned

    def counts(self, status: int, header: ReadHeader) -> bool:
        """Whether a response with this status is charged. A function of the app is called once for a response."""
        counts = self.rule.counts
        if counts is None:
            return True
        if self._counted is None or self._counted[0] != status:
            self._counted = status, counts(status, header)
        return self._counted[1]

    def due(self, status: int, header: ReadHeader) -> int:
        """The amount to charge after a response with this status; to refund if negative."""
        rule = self.rule
        if not self.counts(status, header):
            return -self.amount
        return rule.cost_after(header) - self.ask.cost if rule.cost_after else 0


class Account:
    """The account of one admitted request. Its methods return moves, which `Settlement` carries out.

    Threads and tasks may share it. A refund is recorded before the store is called, so that nothing is refunded
    twice. What cannot be refunded stays charged.
    """

    def __init__(self, verdict: Verdict, store: Store, in_flight: InFlight) -> None:
        self.store = store
        self._verdict = weakref.ref(verdict)  # the verdict refers to its account: avoid a reference cycle
        self._lock = threading.Lock()
        self._in_flight = in_flight
        self._taken: list[_Taken] = []
        self._concluded = False
        in_flight_asks: list[Ask] = []
        if verdict.allowed:
            for place, ((rule, ask), outcome) in enumerate(zip(verdict.charges, verdict.outcomes, strict=True)):
                if outcome.allowed and ALGORITHMS[ask.quota.algorithm].in_flight:
                    in_flight_asks += [ask] if ask.cost else []
                elif outcome.allowed:
                    self._taken.append(_Taken(place, rule, ask, verdict.now, outcome.remaining))
        self._in_flight_place: InFlightPlace | None = (
            in_flight.hold(in_flight_asks, verdict.now) if in_flight_asks else None
        )
        self.holds = self._in_flight_place is not None
        """Whether the request holds a concurrent place until the response has ended."""
        self.settles = self.holds or any(
            taken.rule.counts is not None or taken.rule.cost_after for taken in self._taken
        )
        """Whether the charges depend on the response."""

    def more(self, amount: int, charged: set[str]) -> list[Move]:
        """Return the moves that charge `amount` more to each counter, except those whose keys are in `charged`.

        Their keys are added to it: a request may have several accounts, and the same counter in two of them.
        """
        with self._lock:
            takers = [taken for taken in self._taken if not taken.closed and taken.ask.key not in charged]
            for taken in takers:
                charged.add(taken.ask.key)
                self._note(taken, amount)
        asks = [taken.ask._replace(cost=amount) for taken in takers]
        return [Move(asks, None, takers)] if amount and asks else []

    def back(self, amount: int | None, left: dict[str, int] | None = None) -> list[Move]:
        """Return the moves that refund `amount` to each counter; None refunds everything.

        Args:
            amount: How much to refund.
            left: How much of `amount` is left by the key of the counter, if other accounts of the same request have
                refunded some of it. What this account refunds is subtracted.
        """
        left = {} if left is None else left
        wanted: list[tuple[_Taken, int]] = []
        with self._lock:
            for taken in self._taken:
                back = taken.amount
                if amount is not None:
                    back = min(back, left.setdefault(taken.ask.key, amount))
                    left[taken.ask.key] -= back
                wanted.append((taken, back))
            return self._returns(wanted)

    def charged(self, move: Move, at: int) -> None:
        """Record that the store has charged `move` at its time `at`."""
        with self._lock:
            for taken, ask in zip(move.takers, move.asks, strict=True):
                taken.parts.append((at, ask.cost))

    def show(self, status: int, header: ReadHeader) -> None:
        """Update `remaining` in the verdict for a response with this status, before `conclude` is called."""
        with self._lock:
            for taken in self._taken:
                self._show(taken, taken.remaining - taken.due(status, header))

    def conclude(self, status: int, header: ReadHeader) -> list[Move]:
        """Return the moves that settle by the response: refunds for what does not count, charges for what costs more.

        Only the first call settles. Later calls return no moves.
        """
        with self._lock:
            if self._concluded:
                return []
            self._concluded = True
            due = [(taken, taken.due(status, header)) for taken in self._taken]
            for taken, _ in due:
                taken.closed = not taken.counts(status, header)
            owing = [(taken, amount) for taken, amount in due if amount > 0]
            for taken, amount in owing:
                self._note(taken, amount)
            moves = self._returns([(taken, -amount) for taken, amount in due if amount < 0])
        if owing:
            asks = [taken.ask._replace(cost=amount) for taken, amount in owing]
            moves.append(Move(asks, None, [taken for taken, _ in owing]))
        return moves

    def end(self) -> list[Move]:
        """Return the moves that release the concurrent places of the request."""
        place, self._in_flight_place = self._in_flight_place, None
        at = None if place is None else self._in_flight.end(place)
        return [] if place is None or at is None else [Move(place.asks, at)]

    def _note(self, taken: _Taken, amount: int) -> None:
        taken.remaining -= amount
        self._show(taken, taken.remaining)

    def _show(self, taken: _Taken, remaining: int) -> None:
        verdict = self._verdict()
        if verdict is not None:
            verdict.show(taken.place, remaining)

    def _returns(self, wanted: Sequence[tuple[_Taken, int]]) -> list[Move]:
        together: dict[int, list[Ask]] = {}
        for taken, amount in wanted:
            for at, back in taken.give_back(amount):
                self._note(taken, -back)
                together.setdefault(at, []).append(taken.ask._replace(cost=back))
        return [Move(asks, at) for at, asks in together.items()]


class Settlement:
    """Opens the accounts of requests and carries out their moves."""

    _opening = lazy(lock)

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._tasks: set[asyncio.Task[None]] = set()  # an event loop holds only weak references to them

    def account(self, verdict: Verdict) -> Account:
        """The account of the request that `verdict` decided. It is opened on the first call."""
        if verdict.account is None:
            with self._opening:
                if verdict.account is None:
                    storage = self._storage
                    store = storage.local if verdict.local else storage.store
                    in_flight = storage.in_flight_here if verdict.local else storage.in_flight
                    verdict.account = Account(verdict, store, in_flight)
        account: Account = verdict.account
        return account

    @staticmethod
    def settle(account: Account, moves: Sequence[Move]) -> None:
        """Carry out the moves of an account. If the store is unavailable, a move has no effect."""
        drive(account.store, _carried_out(account, moves))

    @staticmethod
    async def asettle(account: Account, moves: Sequence[Move]) -> None:
        """The awaitable twin of `settle`."""
        await adrive(account.store, _carried_out(account, moves))

    async def asettle_anyway(self, account: Account, moves: Sequence[Move]) -> None:
        """Do what `asettle` does, even if this task is cancelled."""
        if moves:
            await asyncio.shield(self.settle_soon(account, moves))

    def settle_soon(self, account: Account, moves: Sequence[Move]) -> "asyncio.Task[None]":
        """Carry out the moves in a separate task, which continues if the request's task is cancelled."""
        task = asyncio.ensure_future(self.asettle(account, moves))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _carried_out(account: Account, moves: Sequence[Move]) -> Steps[None]:
    for move in moves:
        with suppress(StoreUnavailable):
            reply: Reply = yield move.asks, Intent(charged_at=move.charged_at, insist=move.charged_at is None)
            if move.charged_at is None:
                account.charged(move, reply.now)
