"""What a response settles: charges that are kept, given back or changed."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.decision.storage import InFlight, Lease, Storage
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Rule
from ratelimit_mw.process_local import lazy, lock
from ratelimit_mw.stores import Store

ReadHeader = Callable[[str], str | None]
"""Reads a response's header, whose name is given in lower case."""


class Move(NamedTuple):
    """One call to the store: `asks` give back what was charged at `charged_at`, or (None) take more, into debt too."""

    asks: Sequence[Ask]
    charged_at: int | None
    takers: "Sequence[_Taken]" = ()


class _Taken:
    """What was taken from one counter: how much, and when."""

    __slots__ = ("ask", "closed", "parts", "place", "remaining", "rule")

    def __init__(self, place: int, rule: Rule, ask: Ask, at: int, remaining: int) -> None:
        self.place = place
        self.rule = rule
        self.ask = ask
        self.remaining = remaining
        self.parts = [(at, ask.cost)] if ask.cost else []
        self.closed = False

    @property
    def amount(self) -> int:
        return sum(amount for _, amount in self.parts)

    def give_back(self, amount: int) -> list[tuple[int, int]]:
        """Take `amount` from what was taken, the last first."""
        returned: list[tuple[int, int]] = []
        while amount > 0 and self.parts:
            at, taken = self.parts.pop()
            back = min(taken, amount)
            if back < taken:
                self.parts.append((at, taken - back))
            returned.append((at, back))
            amount -= back
        return returned

    def due(self, status: int, header: ReadHeader) -> int:
        """How much more a response makes of what was taken; less, where it is below zero."""
        rule = self.rule
        if rule.counts is not None and status not in rule.counts:
            return -self.amount
        return rule.cost_after(header) - self.ask.cost if rule.cost_after else 0


class Account:
    """The account of one admitted request. What it returns as moves is for the limiter to carry out.

    Any thread and task may use it; what is given back is marked so before the store hears of it, so it never goes back
    twice, and what can't be given back stays charged.
    """

    def __init__(self, verdict: Verdict, store: Store, in_flight: InFlight) -> None:
        self.store = store
        self._verdict = weakref.ref(verdict)  # which knows its account: both ways, neither would go by itself
        self._lock = threading.Lock()
        self._in_flight = in_flight
        self._taken: list[_Taken] = []
        self._concluded = False
        held: list[Ask] = []
        if verdict.allowed:
            for place, ((rule, ask), outcome) in enumerate(zip(verdict.charges, verdict.outcomes, strict=True)):
                if outcome.allowed and ALGORITHMS[ask.quota.algorithm].in_flight:
                    held += [ask] if ask.cost else []
                elif outcome.allowed:
                    self._taken.append(_Taken(place, rule, ask, verdict.now, outcome.remaining))
        self._lease: Lease | None = in_flight.hold(held, verdict.now) if held else None
        self.holds = self._lease is not None
        """Whether something is held until the response has ended."""
        self.settles = self.holds or any(
            taken.rule.counts is not None or taken.rule.cost_after for taken in self._taken
        )
        """Whether the response has to be looked at."""

    def more(self, amount: int) -> list[Move]:
        """Take `amount` more from each counter."""
        with self._lock:
            takers = [taken for taken in self._taken if not taken.closed]
            for taken in takers:
                self._note(taken, amount)
        asks = [taken.ask._replace(cost=amount) for taken in takers]
        return [Move(asks, None, takers)] if amount and asks else []

    def back(self, amount: int | None) -> list[Move]:
        """Give back `amount` to each counter, None: everything."""
        with self._lock:
            return self._returns([(taken, taken.amount if amount is None else amount) for taken in self._taken])

    def charged(self, move: Move, at: int) -> None:
        """The store has charged a move, at `at`."""
        with self._lock:
            for taken, ask in zip(move.takers, move.asks, strict=True):
                taken.parts.append((at, ask.cost))

    def show(self, status: int, header: ReadHeader) -> None:
        """Let the verdict say what remains after a response of that status, before it is concluded."""
        with self._lock:
            for taken in self._taken:
                self._say(taken, taken.remaining - taken.due(status, header))

    def conclude(self, status: int, header: ReadHeader) -> list[Move]:
        """What follows from the response, the first time; what counts not is given back, what costs more is charged."""
        with self._lock:
            if self._concluded:
                return []
            self._concluded = True
            due = [(taken, taken.due(status, header)) for taken in self._taken]
            for taken, _ in due:
                taken.closed = taken.rule.counts is not None and status not in taken.rule.counts
            owing = [(taken, amount) for taken, amount in due if amount > 0]
            for taken, amount in owing:
                self._note(taken, amount)
            moves = self._returns([(taken, -amount) for taken, amount in due if amount < 0])
        if owing:
            asks = [taken.ask._replace(cost=amount) for taken, amount in owing]
            moves.append(Move(asks, None, [taken for taken, _ in owing]))
        return moves

    def end(self) -> list[Move]:
        """Give back what was held until now."""
        lease, self._lease = self._lease, None
        at = None if lease is None else self._in_flight.end(lease)
        return [] if lease is None or at is None else [Move(lease.asks, at)]

    def _note(self, taken: _Taken, amount: int) -> None:
        taken.remaining -= amount
        self._say(taken, taken.remaining)

    def _say(self, taken: _Taken, remaining: int) -> None:
        verdict = self._verdict()
        if verdict is not None:  # else nobody can look at it any more
            verdict.show(taken.place, remaining)

    def _returns(self, wanted: Sequence[tuple[_Taken, int]]) -> list[Move]:
        together: dict[int, list[Ask]] = {}
        for taken, amount in wanted:
            for at, back in taken.give_back(amount):
                self._note(taken, -back)
                together.setdefault(at, []).append(taken.ask._replace(cost=back))
        return [Move(asks, at) for at, asks in together.items()]


_settling: set[asyncio.Task[None]] = set()
"""A loop knows its tasks weakly only."""


class Settlement:
    """Opens the accounts of requests, and carries out what they say."""

    _opening = lazy(lock)

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def account(self, verdict: Verdict) -> Account:
        """What the request of a verdict has taken, and can give back."""
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
        """Carry out what an account says. What can't be returned stays charged, and what can't be charged is free."""
        for move in moves:
            with suppress(StoreUnavailable):
                if move.charged_at is None:
                    account.charged(move, account.store.charge(move.asks))
                else:
                    account.store.refund(move.asks, move.charged_at)

    @staticmethod
    async def asettle(account: Account, moves: Sequence[Move]) -> None:
        """The awaitable twin of `settle`."""
        for move in moves:
            with suppress(StoreUnavailable):
                if move.charged_at is None:
                    account.charged(move, await account.store.acharge(move.asks))
                else:
                    await account.store.arefund(move.asks, move.charged_at)

    def settle_soon(self, account: Account, moves: Sequence[Move]) -> "asyncio.Task[None]":
        """Do so in a task of its own, which goes on when the request's is cancelled."""
        task = asyncio.ensure_future(self.asettle(account, moves))
        _settling.add(task)
        task.add_done_callback(_settling.discard)
        return task
