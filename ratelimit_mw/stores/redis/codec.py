"""How decisions travel to Redis and back: the script, what a call asks, and its packing. No I/O here."""

import hashlib
import re
import secrets
from collections.abc import Generator, Iterable, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import count
from struct import Struct, error
from typing import Any, NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS, PARTS, Part, lua, widened
from ratelimit_mw.errors import CounterError, Late, StoreUnavailable, WrongNode
from ratelimit_mw.model import Outcome, Quota, Reply
from ratelimit_mw.stores.base import DECIDE, StoreRequest

SEVERAL = 1
"""The part for requests that want more than to take from one counter."""

_REFUNDS = "\nrefunds["
"""Where the second half of an algorithm's file begins, which is for `SEVERAL` alone."""


class Script(NamedTuple):
    """A script, and what the server calls it."""

    text: bytes
    digest: bytes


@cache
def script(parts: int) -> Script:
    """The script of these parts, a sum of bits: `SEVERAL`, and the bits of each algorithm."""
    several = bool(parts & SEVERAL)
    needed = [part for part in PARTS.values() if parts & 1 << part.number]
    algorithms = [part.lua for part in needed]
    if not several:
        algorithms = [text.partition(_REFUNDS)[0] for text in algorithms]
    ours = ["common", "several", "decide"] if several else ["common", "decide"]
    text = "\n".join([_constants(needed), lua("arithmetic"), *algorithms, *map(_own, ours)])
    # Redis names scripts so; nothing secret hangs on it.
    encoded = text.encode()
    return Script(encoded, hashlib.sha1(encoded, usedforsecurity=False).hexdigest().encode())


def _constants(needed: Sequence[Part]) -> str:
    """The numbers by the names that the Lua files have for them; several.lua knows that of a ban."""
    constants = dict.fromkeys((*needed, PARTS["ban"]))
    return "\n".join(f"local {part.constant} = {part.number}" for part in constants)


def _own(name: str) -> str:
    return files("ratelimit_mw.stores.redis").joinpath(f"{name}.lua").read_text(encoding="utf-8")


def away(result: object) -> bool:
    """True for an answer after which its connection is worth nothing: a master turned replica, a full memory."""
    return isinstance(result, StoreUnavailable) and not isinstance(result, CounterError | WrongNode | Late)


_QUOTA = Struct("<Bdddd")
_CHARGE = Struct("<dd")
_FLAGS = [bytes((flags,)) for flags in range(64)]
_nonces = count(secrets.randbits(48), 4096)  # a reply is told from the others on its connection; it is no secret
_NONCE = Struct("<Q")
_REPLY = Struct("<8sd")
_OUTCOME = Struct("<?qqqq")
_outcome = partial(tuple.__new__, Outcome)
_SHADOW, _LAST, _PEEK, _FORGET, _REFUND, _INSIST = 1, 2, 4, 8, 16, 32
_FAILED = -2  # in the place of retry_after
_NO_SCRIPT = ("NOSCRIPT", "No matching script")  # as the server says it, and as redis-py does
_GENERAL = re.compile(
    r"\b(OOM|READONLY|MISCONF|NOREPLICAS|MASTERDOWN|NOPERM|NOAUTH|LOADING|BUSY|CLUSTERDOWN|MOVED|ASK|TRYAGAIN)\b"
)
"""What a script says when the server refuses to write at all, with or without the script's line before it."""

Command = tuple[bytes, ...]
"""A command and its arguments. Bytes alone: hiredis crashes where a signal's handler raises while it converts."""


MOST = 128
"""Counters from which on a batch takes no further request: no call holds the server for more than about 2 ms."""


class Batch(list[StoreRequest]):
    """Inquiries that travel together. `nonce` is the first of the numbers by which the replies to them are known.

    A conversation about one batch can be held again from its beginning: it asks for the same by the same numbers.
    """

    __slots__ = ("nonce",)

    def __init__(self, requests: Iterable[StoreRequest]) -> None:
        super().__init__(requests)
        self.nonce = next(_nonces)


def numbers(requests: Sequence[StoreRequest]) -> "count[int]":
    """The numbers for the calls of one conversation, in turn."""
    return count(requests.nonce if isinstance(requests, Batch) else next(_nonces))


class Message(NamedTuple):
    """A script call: the script and its arguments, and what a reply to it has to show."""

    script: Script
    arguments: Command
    nonce: bytes
    asked: int
    alone: bool


def encode(requests: Sequence[StoreRequest], now: int | None, number: int | None = None) -> Message:
    """The script call that decides `requests` in order, at `now` or by the server's clock.

    `number` marks its reply; without one the call has the number of the batch, or a new one.
    """
    if number is None:
        number = requests.nonce if type(requests) is Batch else next(_nonces)
    nonce = _NONCE.pack(number)
    keys: list[bytes] = []
    packed: list[bytes] = []
    parts = 0
    alone = True  # each request has one ask, as most have
    for asks, intent in requests:
        if intent is DECIDE and len(asks) == 1:  # nearly always, and it is to take one
            key, quota, cost, shadow = asks[0]
            known = _packed.get(id(quota))
            if cost == 1 and not shadow and known is not None and known.quota is quota:
                keys.append(key.encode())
                packed.append(known.taking_one)
                parts |= known.part
                continue
        commit, forget, charged_at, _, _, insist = intent
        last = len(asks) - 1
        if last:
            alone, parts = False, parts | SEVERAL
        common = 0 if commit else _PEEK
        if forget or insist or charged_at is not None:
            common |= _FORGET * forget | _INSIST * insist | _REFUND * (charged_at is not None)
            if insist:  # what must not be denied may go into debt
                asks = [ask._replace(quota=widened(ask.quota)) for ask in asks]  # noqa: PLW2901
        for key, quota, cost, shadow in asks:
            keys.append(key.encode())
            known = _packed.get(id(quota))
            if known is None or known.quota is not quota:
                known = _pack_quota(quota)
            parts |= known.part
            flags = common | _SHADOW if shadow else common
            if flags:
                parts |= SEVERAL
            if last == 0:
                flags |= _LAST
            last -= 1
            packed += (_FLAGS[flags], known.packed, _CHARGE.pack(cost, charged_at or 0))
    time = b"" if now is None else b"%d" % now
    return Message(script(parts), (b"%d" % len(keys), *keys, nonce, time, b"".join(packed)), nonce, len(keys), alone)


def decode(reply: Any, message: Message, requests: Sequence[StoreRequest]) -> list[Reply | StoreUnavailable]:
    """What the script said to each request. Raises StoreUnavailable for the reply to some other call.

    A request whose counters could not be read or written gets a StoreUnavailable in its place: a `CounterError` where
    only these counters are at fault. The others get their replies.
    """
    try:
        nonce, time = _REPLY.unpack_from(reply)  # the unpacking itself is the check
        now, end = int(time), _REPLY.size + message.asked * _OUTCOME.size
        outcomes: list[Outcome] = list(map(_outcome, _OUTCOME.iter_unpack(reply[_REPLY.size : end])))
        complaint = reply[end:]
    except (TypeError, ValueError, OverflowError, error):
        raise StoreUnavailable(f"the store answered with something else than a decision: {reply!r:.80}") from None
    if nonce != message.nonce or len(outcomes) != message.asked:
        raise StoreUnavailable("the store answered another request than the one that was asked")
    if message.alone and not complaint:
        return [tuple.__new__(Reply, (now, (outcome,), None)) for outcome in outcomes]
    if complaint and all(outcome.retry_after != _FAILED for outcome in outcomes):
        raise StoreUnavailable("the store answered with more than was asked")
    replies: list[Reply | StoreUnavailable] = []
    start = 0
    for asks, *_ in requests:
        own = outcomes[start : start + len(asks)]
        start += len(asks)
        failed = any(outcome.retry_after == _FAILED for outcome in own)
        replies.append(_failure(complaint) if failed else Reply(now, own))
    return replies


def _failure(complaint: bytes) -> StoreUnavailable:
    text = complaint.decode(errors="replace")
    return StoreUnavailable(text) if _GENERAL.search(text) else CounterError(text)


class _Packed(NamedTuple):
    """A quota packed, the part of the script that it needs, and an ask that takes one and is its request's last."""

    quota: Quota
    part: int
    packed: bytes
    taking_one: bytes


def _pack_quota(quota: Quota) -> _Packed:
    if len(_packed) >= _MOST_QUOTAS:
        _packed.clear()
    part = PARTS[quota.algorithm]
    packed = _QUOTA.pack(part.number, *_numbers(quota))
    taking_one = b"".join((_FLAGS[_LAST], packed, _CHARGE.pack(1, 0)))
    known = _packed[id(quota)] = _Packed(quota, part.bits, packed, taking_one)
    return known


def _numbers(quota: Quota) -> tuple[int, int, int, int]:
    ban = quota.ban
    if ban is not None and quota.algorithm == "ban":
        return ban.after + ban.growth * 65_536, ban.within, ban.lasts, ban.longest
    extra = quota.burst if ALGORITHMS[quota.algorithm].has_burst else quota.buckets
    return quota.limit, quota.period, extra, quota.max_wait


_packed: dict[int, _Packed] = {}
"""By identity, for a quota's hash costs more than packing it. It keeps the quota, whose id is else used again."""

_MOST_QUOTAS = 4096


Conversation = Generator[Sequence[Command], Any, list[Reply | StoreUnavailable]]
"""Yields volleys of commands, is sent a list of their replies for each, returns what was decided.

The I/O is the caller's; an error reply is an exception, given as a value.
"""


def converse(requests: Sequence[StoreRequest], now: int | None, known: set[bytes]) -> Conversation:
    """Decide `requests` in one script call. `known` are the digests of those that the server has.

    A script travels with the first call that needs it: to ask for it by name first would take two round trips.
    """
    message = encode(requests, now)
    digest = message.script.digest
    if digest in known:
        (reply,) = yield ((b"EVALSHA", digest, *message.arguments),)
    else:
        (reply,) = yield (called(message, by_name=False),)
    if isinstance(reply, Exception):
        if unknown(reply):
            (reply,) = yield (called(message, by_name=False),)
        if isinstance(reply, Exception):
            raise StoreUnavailable(str(reply))
    if digest not in known:
        known.add(digest)
    return decode(reply, message, requests)


def called(message: Message, *, by_name: bool) -> Command:
    """The command for a script call: by the script's name, or with its text."""
    if by_name:
        return (b"EVALSHA", message.script.digest, *message.arguments)
    return (b"EVAL", message.script.text, *message.arguments)


def unknown(reply: object) -> bool:
    """True where the server does not know the script."""
    return isinstance(reply, Exception) and str(reply).startswith(_NO_SCRIPT)
