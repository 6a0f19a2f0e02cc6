"""The slots of a Redis Cluster, and which node has them."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis.crc import key_slot

from ratelimit_mw.errors import CounterError, Redirected, StoreUnavailable, WrongNode
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.base import StoreRequest
from ratelimit_mw.stores.redis.codec import (
    Command,
    Conversation,
    Message,
    called,
    decode,
    encode,
    numbers,
)
from ratelimit_mw.stores.redis.codec import unknown as unknown_script
from ratelimit_mw.stores.redis.connection import HANDSHAKE_TIMEOUT, Blocking
from ratelimit_mw.stores.redis.endpoint import Address, redirection

SLOTS = 16_384

_ROUNDS = 4
"""Volleys at most: a script was not there, a slot that moves makes its requests travel alone, which may need other
scripts, and once more."""


def slot_of(key: str) -> int:
    """The slot in which `key` lies: that of what stands in its first braces."""
    return key_slot(key.encode())


def converse_by_slot(requests: Sequence[StoreRequest], now: int | None, known: set[bytes]) -> Conversation:
    """Decide `requests`, each slot's in a script call of its own, for no call may reach over several.

    The answer to an request that this node would not take is an `WrongNode`. `known` are the scripts that it has.
    """
    results: list[Reply | StoreUnavailable] = [StoreUnavailable("the node would not take the script")] * len(requests)
    calls = _by_slot(requests)
    number = numbers(requests)
    for _ in range(_ROUNDS):
        asked = [[requests[place] for place in call] for call in calls]
        messages = [encode(group, now, next(number)) for group in asked]
        volley: list[Command] = []
        taught: set[bytes] = set()
        for group, message in zip(asked, messages, strict=True):
            if _is_asking(group):
                volley.append((b"ASKING",))
            volley.append(called(message, by_name=message.script.digest in taught | known))
            taught.add(message.script.digest)  # by the first of a volley
        replies = iter((yield volley))
        again: list[list[int]] = []
        for call, group, message in zip(calls, asked, messages, strict=True):
            if _is_asking(group):
                next(replies)
            reply = next(replies)
            if unknown_script(reply):
                known.discard(message.script.digest)
                again.append(call)
            elif len(call) > 1 and _moves(reply):
                again += [[place] for place in call]  # some of its keys are here and some are gone already
            else:
                answers = _answers(reply, message, group)
                for place, answer in zip(call, answers, strict=True):
                    results[place] = answer
                    if isinstance(answer, Reply):
                        known.add(message.script.digest)
        calls = again
        if not calls:
            break
    return results


def _by_slot(requests: Sequence[StoreRequest]) -> list[list[int]]:
    """The places of the requests that may share a script call."""
    calls: dict[int, list[int]] = {}
    for place, (_, intent) in enumerate(requests):
        calls.setdefault(-1 - place if intent.asking else intent.slot, []).append(place)
    return list(calls.values())


def _is_asking(group: Sequence[StoreRequest]) -> bool:
    """Whether its slot is on its way to this node, which says no unless it is told that we know."""
    return group[0][1].asking


def _moves(reply: object) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith(("ASK ", "TRYAGAIN"))


def _answers(reply: object, message: Message, group: Sequence[StoreRequest]) -> Sequence[Reply | StoreUnavailable]:
    if isinstance(reply, Exception):
        return [_refusal(str(reply)) for _ in group]  # each raises its own
    return decode(reply, message, group)


def _refusal(text: str) -> StoreUnavailable:
    """What an error reply to a whole call means."""
    word = text.partition(" ")[0]
    if word in ("MOVED", "ASK") and (address := redirection(text)):
        return Redirected(address, asking=word == "ASK")
    if word == "TRYAGAIN":
        return WrongNode(text)
    if "slot not served" in text:
        return CounterError(text)  # no node has this slot; the others are well
    return StoreUnavailable(text)


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
