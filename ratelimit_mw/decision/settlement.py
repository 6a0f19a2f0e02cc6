"""What requests have taken, settled with the store that charged them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from ratelimit_mw.decision.account import Account, Move
from ratelimit_mw.decision.storage import Storage
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.late import late, lock

_settling: set[asyncio.Task[None]] = set()
"""A loop knows its tasks weakly only."""


class Settlement:
    """Opens the accounts of requests, and carries out what they say."""

    _opening = late(lock)

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
