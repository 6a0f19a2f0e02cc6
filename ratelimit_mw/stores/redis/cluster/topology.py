"""Which node of a cluster serves which slot, as far as this process has heard."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.stores.redis.blocking import Blocking
from ratelimit_mw.stores.redis.cluster.slots import SLOTS, slot_of
from ratelimit_mw.stores.redis.connecting import HANDSHAKE_TIMEOUT
from ratelimit_mw.stores.redis.endpoint import Address

_AGE = 1.0
"""Seconds between two questions about all slots, however many redirections come."""


class Topology:
    """The slots' addresses: none at first, then what some node says, corrected by each redirection.

    `seeds` are the addresses to begin with, `connect` makes a connection to one, and `away` tells which are better
    not asked. No request waits for any of this: it asks a node that it knows, and hears which other one to ask.
    """

    def __init__(
        self, seeds: Sequence[Address], connect: Callable[[Address], Blocking], away: Callable[[Address], bool]
    ) -> None:
        self._seeds = seeds
        self._connect = connect
        self._away = away
        self._slots: list[Address | None] = [None] * SLOTS
        self._asker: threading.Thread | None = None
        self._asked = float("-inf")

    def serving(self, slot: int) -> Address:
        """Who serves `slot`, or else somebody who knows."""
        address = self._slots[slot]
        if address is None:
            self._ask_soon()
            return min(self._seeds, key=self._away)
        return address

    def nodes(self) -> set[Address]:
        """Those that serve a slot, as some node says now. Raises StoreUnavailable where none answers."""
        self.ask()
        return set(filter(None, self._slots))

    def tag_at(self, address: Address) -> str | None:
        """A hash tag whose slot `address` serves; None where it serves none by now."""
        tags = (f"{{{number}}}" for number in range(SLOTS))
        return next((tag for tag in tags if self._slots[slot_of(tag)] == address), None)

    def correct(self, slot: int, address: Address) -> None:
        """Learn that `slot` has moved, and soon what else has."""
        self._slots[slot] = address
        self._ask_soon()

    def ask(self) -> None:
        """Ask one node after the other about all slots. Raises StoreUnavailable where none answers."""
        known = {*self._seeds, *filter(None, self._slots)}
        failure = StoreUnavailable("the cluster has no node")
        for address in sorted(known, key=lambda address: (self._away(address), random.random())):
            try:
                self._slots = self._told_by(address)
            except StoreUnavailable as error:
                failure = error
            else:
                return
        raise failure

    def _ask_soon(self) -> None:
        """Ask in a thread, which ends with the answer."""
        now = time.monotonic()
        if now < self._asked + _AGE or (self._asker and self._asker.is_alive()):
            return
        self._asked = now
        self._asker = threading.Thread(target=self._ask_quietly, name="ratelimit_mw cluster", daemon=True)
        try:
            self._asker.start()
        except RuntimeError:  # no more threads: the redirections have to do
            self._asker = None

    def _ask_quietly(self) -> None:
        try:
            self.ask()
        except StoreUnavailable:
            return  # the requests find out for themselves

    def _told_by(self, address: Address) -> list[Address | None]:
        connection = self._connect(address)
        try:
            rows = connection.carry(_question(), time.monotonic() + HANDSHAKE_TIMEOUT)
        finally:
            connection.close()
        return _table(rows, address[0])


def _question() -> Any:
    (reply,) = yield ((b"CLUSTER", b"SLOTS"),)
    if isinstance(reply, Exception):
        raise StoreUnavailable(str(reply))
    return reply


def _table(rows: Any, asked: str) -> list[Address | None]:
    """What CLUSTER SLOTS says. A node that does not know its own name is at the host that was `asked`."""
    slots: list[Address | None] = [None] * SLOTS
    try:
        for start, end, (host, port, *_), *_ in rows:
            address = (host.decode() if host else asked, int(port))
            slots[start : end + 1] = [address] * (end + 1 - start)
    except (TypeError, ValueError, AttributeError):
        raise StoreUnavailable(f"no table of slots: {rows!r:.80}") from None
    return slots
