"""The slots of a Redis Cluster: how a node is asked about several slots, and the map from slots to nodes."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

from redis.crc import key_slot

from ratelimit_mw.errors import CounterError, Redirected, StoreUnavailable, WrongNode
from ratelimit_mw.process_local import Repeating
from ratelimit_mw.stores.base import StoreRequest
from ratelimit_mw.stores.redis.codec import (
    Command,
    Conversation,
    Message,
    Result,
    decode,
    encode,
    is_unknown_script,
    numbers,
    script_call,
)
from ratelimit_mw.stores.redis.connection import HANDSHAKE_TIMEOUT
from ratelimit_mw.stores.redis.endpoint import Address, Blocking, first_answer, redirection
from ratelimit_mw.stores.redis.faults import refusal

_chance = random.Random()  # separate, so that the app's seeded random numbers are not disturbed

SLOTS = 16_384

_ROUNDS = 4
"""The most round trips for one batch.

One is the normal call. A second is needed if the node lacks a script. The requests of a migrating slot are repeated one
by one, which may again need other scripts."""


def slot_of(key: str) -> int:
    """The slot of `key`, which is the hash of the text in its first braces (the hash tag)."""
    return key_slot(key.encode())


def converse_by_slot(requests: Sequence[StoreRequest], now: int | None, known: set[bytes]) -> Conversation:
    """Decide `requests` with one script call for each slot, because a call must not use several slots.

    The result of a request whose slot this node does not serve is a `WrongNode`. `known` has the digests of the
    scripts that the node has.
    """
    results: list[Result] = [StoreUnavailable("the node refuses to load the script")] * len(requests)
    calls = _by_slot(requests)
    number = numbers()
    for _ in range(_ROUNDS):
        asked = [[requests[place] for place in call] for call in calls]
        messages = [encode(group, now, next(number)) for group in asked]
        pipeline: list[Command] = []
        sent: set[bytes] = set()
        for group, message in zip(asked, messages, strict=True):
            if _is_asking(group):
                pipeline.append((b"ASKING",))
            pipeline.append(script_call(message, by_name=message.script.digest in sent | known))
            sent.add(message.script.digest)  # the first call of a pipeline loads the script for the others
        replies = iter((yield pipeline))
        again: list[list[int]] = []
        for call, group, message in zip(calls, asked, messages, strict=True):
            if _is_asking(group):
                next(replies)
            reply = next(replies)
            if is_unknown_script(reply):
                known.discard(message.script.digest)
                again.append(call)
            elif len(call) > 1 and isinstance(reply, Exception) and str(reply).startswith(("ASK ", "TRYAGAIN")):
                again += [[place] for place in call]  # some keys are still on this node, others have moved
            else:
                answers = _answers(reply, message, group)
                for place, answer in zip(call, answers, strict=True):
                    results[place] = answer
                    if isinstance(answer, tuple):
                        known.add(message.script.digest)
        calls = again
        if not calls:
            break
    return results


def _by_slot(requests: Sequence[StoreRequest]) -> list[list[int]]:
    """The indices of the requests, grouped by the script call that they may share."""
    calls: dict[int, list[int]] = {}
    for place, (_, intent) in enumerate(requests):
        calls.setdefault(-1 - place if intent.asking else intent.slot, []).append(place)
    return list(calls.values())


def _is_asking(group: Sequence[StoreRequest]) -> bool:
    """Whether the slot is being imported by this node, which then requires ASKING before the call."""
    return group[0][1].asking


def _answers(reply: object, message: Message, group: Sequence[StoreRequest]) -> Sequence[Result]:
    if isinstance(reply, Exception):
        return [_refusal(str(reply)) for _ in group]  # one exception for each request, because each raises it
    return decode(reply, message, group)


def _refusal(text: str) -> StoreUnavailable:
    """The exception for an error reply to a whole call."""
    word = text.partition(" ")[0]
    if word in ("MOVED", "ASK") and (address := redirection(text)):
        return Redirected(address, asking=word == "ASK")
    if word == "TRYAGAIN":
        return WrongNode(text)
    if "slot not served" in text:
        return CounterError(text)  # no node has this slot, but the other slots are served
    return StoreUnavailable(text) if word == "MOVED" else refusal(text)


_MIN_INTERVAL = 1.0
"""Seconds between two CLUSTER SLOTS commands, however many redirections arrive."""


class Topology:
    """The map from slots to addresses. It is read from a node with CLUSTER SLOTS and corrected by each redirection.

    Requests do not wait for the map: they are sent to a node that is known, which redirects them if necessary.

    Args:
        seeds: the addresses in the storage URL.
        connect: makes a connection to an address.
        away: whether the node at an address is unavailable; such nodes are asked last.
    """

    def __init__(
        self, seeds: Sequence[Address], connect: Callable[[Address], Blocking], away: Callable[[Address], bool]
    ) -> None:
        self.seeds = seeds
        self._connect = connect
        self._away = away
        self._slots: list[Address | None] = [None] * SLOTS
        self._refreshing = Repeating("cluster", self._refresh_quietly)
        self._refreshed_at = float("-inf")

    def serving(self, slot: int) -> Address:
        """The address of the node that serves `slot`; if it is not known, a seed, which redirects."""
        address = self._slots[slot]
        if address is None:
            self._refresh_soon()
            return min(self.seeds, key=self._away)
        return address

    def nodes(self) -> set[Address]:
        """The addresses of all nodes that serve a slot, read again. Raises StoreUnavailable if no node answers."""
        self.refresh()
        return set(filter(None, self._slots))

    def tag_at(self, address: Address) -> str | None:
        """A hash tag whose slot the node at `address` serves; None if it serves no slot."""
        tags = (f"{{{number}}}" for number in range(SLOTS))
        return next((tag for tag in tags if self._slots[slot_of(tag)] == address), None)

    def correct(self, slot: int, address: Address) -> None:
        """Record that `slot` has moved, and refresh the whole map soon."""
        self._slots[slot] = address
        self._refresh_soon()

    def refresh(self) -> None:
        """Read the map from the first node that answers. Raises StoreUnavailable if no node answers."""
        known = {*self.seeds, *filter(None, self._slots)}
        addresses = sorted(known, key=lambda address: (self._away(address), _chance.random()))
        self._slots = first_answer(addresses, self._read_from)

    def _refresh_soon(self) -> None:
        """Refresh the map in a separate thread."""
        now = time.monotonic()
        if now >= self._refreshed_at + _MIN_INTERVAL:
            self._refreshed_at = now
            self._refreshing.start()  # if there is no thread, redirections still correct the map

    def _refresh_quietly(self) -> None:
        with suppress(StoreUnavailable):  # requests to these nodes fail and report it
            self.refresh()

    def _read_from(self, address: Address) -> list[Address | None]:
        with closing(self._connect(address)) as connection:
            rows = connection.ask((b"CLUSTER", b"SLOTS"), HANDSHAKE_TIMEOUT)
        return _table(rows, address[0])


def _table(rows: Any, asked: str) -> list[Address | None]:
    """The map in a reply to CLUSTER SLOTS. A node without a host name is at the host that was `asked`."""
    slots: list[Address | None] = [None] * SLOTS
    try:
        for start, end, (host, port, *_), *_ in rows:
            address = (host.decode() if host else asked, int(port))
            slots[start : end + 1] = [address] * (end + 1 - start)
    except (TypeError, ValueError, AttributeError):
        raise StoreUnavailable(f"unexpected reply to CLUSTER SLOTS: {rows!r:.80}") from None
    return slots
