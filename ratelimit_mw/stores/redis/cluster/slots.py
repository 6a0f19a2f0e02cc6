"""What one node of a cluster is asked: one script call for each slot, all in one write. No I/O here."""

from collections.abc import Sequence

from redis.crc import key_slot

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.redis.endpoint import Address, redirection
from ratelimit_mw.stores.redis.inquiry import Elsewhere, Inquiry, Spoilt
from ratelimit_mw.stores.redis.wire import Command, Conversation, Message, called, decode, encode, numbers
from ratelimit_mw.stores.redis.wire import unknown as unknown_script

SLOTS = 16_384

_ROUNDS = 4
"""Volleys at most: a script was not there, a slot that moves makes its inquiries travel alone, which may need other
scripts, and once more."""


class Redirected(Elsewhere):
    """Another node is the one to ask: for good, or with `asking` this once. An empty host is the answering node's."""

    def __init__(self, address: Address, *, asking: bool) -> None:
        super().__init__(f"another node serves the slot: {address[0]}:{address[1]}")
        self.address = address
        self.asking = asking


def slot_of(key: str) -> int:
    """The slot in which `key` lies: that of what stands in its first braces."""
    return key_slot(key.encode())


def converse_by_slot(inquiries: Sequence[Inquiry], now: int | None, known: set[bytes]) -> Conversation:
    """Decide `inquiries`, each slot's in a script call of its own, for no call may reach over several.

    The answer to an inquiry that this node would not take is an `Elsewhere`. `known` are the scripts that it has.
    """
    results: list[Reply | StoreUnavailable] = [StoreUnavailable("the node would not take the script")] * len(inquiries)
    calls = _by_slot(inquiries)
    number = numbers(inquiries)
    for _ in range(_ROUNDS):
        asked = [[inquiries[place] for place in call] for call in calls]
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


def _by_slot(inquiries: Sequence[Inquiry]) -> list[list[int]]:
    """The places of the inquiries that may share a script call."""
    calls: dict[int, list[int]] = {}
    for place, (_, intent) in enumerate(inquiries):
        calls.setdefault(-1 - place if intent.asking else intent.slot, []).append(place)
    return list(calls.values())


def _is_asking(group: Sequence[Inquiry]) -> bool:
    """Whether its slot is on its way to this node, which says no unless it is told that we know."""
    return group[0][1].asking


def _moves(reply: object) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith(("ASK ", "TRYAGAIN"))


def _answers(reply: object, message: Message, group: Sequence[Inquiry]) -> Sequence[Reply | StoreUnavailable]:
    if isinstance(reply, Exception):
        return [_refusal(str(reply)) for _ in group]  # each raises its own
    return decode(reply, message, group)


def _refusal(text: str) -> StoreUnavailable:
    """What an error reply to a whole call means."""
    word = text.partition(" ")[0]
    if word in ("MOVED", "ASK") and (address := redirection(text)):
        return Redirected(address, asking=word == "ASK")
    if word == "TRYAGAIN":
        return Elsewhere(text)
    if "slot not served" in text:
        return Spoilt(text)  # no node has this slot; the others are well
    return StoreUnavailable(text)
