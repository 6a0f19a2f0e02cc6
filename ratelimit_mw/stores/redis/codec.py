"""What is on the wire: requests as calls of the Redis script, commands and replies as bytes. No I/O happens here.

The script is assembled from Lua files: only the algorithms and features that a call needs. The layout of its
arguments and its reply is described in `decide.lua`.
"""

import hashlib
import re
import secrets
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import count
from struct import Struct, error
from typing import Any, NamedTuple

import hiredis

from ratelimit_mw.algorithms import ALGORITHMS, LUA_PARTS, LuaPart, lua, widened
from ratelimit_mw.errors import CounterError, ErrorReply, Late, StoreUnavailable, WrongNode
from ratelimit_mw.model import Outcome, Quota, Reply
from ratelimit_mw.stores.base import DECIDE, StoreRequest

SEVERAL = 1
"""The bit of `several.lua`, for requests that do more than take from one counter."""

_REFUNDS = "\nrefunds["
"""The beginning of the second half of an algorithm's Lua file, which only `SEVERAL` needs."""


class Script(NamedTuple):
    """The text of a script and its SHA-1 digest, by which the server knows it."""

    text: bytes
    digest: bytes


@cache
def script(parts: int) -> Script:
    """The script made of these parts, a sum of bits: `SEVERAL` and the bit of each algorithm."""
    several = bool(parts & SEVERAL)
    needed = [part for part in LUA_PARTS.values() if parts & 1 << part.number]
    algorithms = [part.lua for part in needed]
    if not several:
        algorithms = [text.partition(_REFUNDS)[0] for text in algorithms]
    ours = ["common", "several", "decide"] if several else ["common", "decide"]
    text = "\n".join([_constants(needed), lua("arithmetic"), *algorithms, *map(_own, ours)])
    encoded = text.encode()
    # Redis identifies scripts by their SHA-1 digest; it is not used for security.
    return Script(encoded, hashlib.sha1(encoded, usedforsecurity=False).hexdigest().encode())


def _constants(needed: Sequence[LuaPart]) -> str:
    """Lua constants for the numbers of the algorithms, and for that of bans, which several.lua uses."""
    constants = dict.fromkeys((*needed, LUA_PARTS["ban"]))
    return "\n".join(f"local {part.constant} = {part.number}" for part in constants)


def _own(name: str) -> str:
    return files("ratelimit_mw.stores.redis").joinpath(f"{name}.lua").read_text(encoding="utf-8")


def away(result: object) -> bool:
    """Whether a result shows that the server as a whole is unavailable, such as a replica or a full memory."""
    return isinstance(result, StoreUnavailable) and not isinstance(result, CounterError | WrongNode | Late)


_QUOTA = Struct("<Bdddd")
_CHARGE = Struct("<dd")
_FLAGS = [bytes((flags,)) for flags in range(64)]
_nonces = count(secrets.randbits(48), 4096)  # tells the replies on a connection apart; not secret
_NONCE = Struct("<Q")
_REPLY = Struct("<8sd")
_OUTCOME = Struct("<?qqqq")
_outcome = partial(tuple.__new__, Outcome)
_SHADOW, _LAST, _PEEK, _FORGET, _REFUND, _INSIST = 1, 2, 4, 8, 16, 32
_FAILED = -2  # stands in place of retry_after
_NO_SCRIPT = ("NOSCRIPT", "No matching script")  # the messages of the server and of redis-py
_GENERAL = re.compile(
    r"\b(OOM|READONLY|MISCONF|NOREPLICAS|MASTERDOWN|NOPERM|NOAUTH|LOADING|BUSY|CLUSTERDOWN|MOVED|ASK|TRYAGAIN)\b"
)
"""Error codes that mean that the server refuses all writes, also inside the message of a script error."""

Command = tuple[bytes, ...]
"""A command and its arguments, as bytes: hiredis crashes if a signal handler raises while it converts other types."""


MOST = 128
"""A batch with this many counters takes no further request, so that no call occupies the server for more than 2 ms."""


class Batch(list[StoreRequest]):
    """Requests that are sent together. `nonce` is the first of the numbers that identify the replies.

    A conversation about a batch can be repeated from its beginning, because it uses the same numbers again.
    """

    __slots__ = ("nonce",)

    def __init__(self, requests: Iterable[StoreRequest]) -> None:
        super().__init__(requests)
        self.nonce = next(_nonces)


def numbers(requests: Sequence[StoreRequest]) -> "count[int]":
    """Iterates over the numbers for the calls of one conversation."""
    return count(requests.nonce if isinstance(requests, Batch) else next(_nonces))


class Message(NamedTuple):
    """A script call: the script, its arguments, and what its reply must contain.

    Attributes:
        script: the script to call.
        arguments: the arguments of EVAL or EVALSHA after the script.
        nonce: the bytes with which the reply must begin.
        asked: the number of outcomes in the reply.
        alone: whether each request has exactly one ask.
    """

    script: Script
    arguments: Command
    nonce: bytes
    asked: int
    alone: bool


def encode(requests: Sequence[StoreRequest], now: int | None, number: int | None = None) -> Message:
    """Encode the script call that decides `requests` in order.

    Args:
        requests: the requests.
        now: the time in microseconds, or None for the server's clock.
        number: identifies the reply; None for the number of the batch, or a new one.
    """
    if number is None:
        number = requests.nonce if type(requests) is Batch else next(_nonces)
    nonce = _NONCE.pack(number)
    keys: list[bytes] = []
    packed: list[bytes] = []
    parts = 0
    alone = True
    for asks, intent in requests:
        if intent is DECIDE and len(asks) == 1:  # the usual case: take 1 from one counter
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
    """Decode the reply to a script call into one result for each request.

    If the counters of a request could not be read or written, its result is a `StoreUnavailable`, or its subclass
    `CounterError` if only these counters are at fault. The other requests get their replies.

    Raises:
        StoreUnavailable: the reply is malformed or belongs to another call.
    """
    try:
        nonce, time = _REPLY.unpack_from(reply)  # raises for what is not bytes of this length
        now, end = int(time), _REPLY.size + message.asked * _OUTCOME.size
        outcomes: list[Outcome] = list(map(_outcome, _OUTCOME.iter_unpack(reply[_REPLY.size : end])))
        complaint = reply[end:]
    except (TypeError, ValueError, OverflowError, error):
        raise StoreUnavailable(f"the store's reply is not a decision: {reply!r:.80}") from None
    if nonce != message.nonce or len(outcomes) != message.asked:
        raise StoreUnavailable("the store's reply belongs to another request")
    if message.alone and not complaint:
        return [tuple.__new__(Reply, (now, (outcome,), None)) for outcome in outcomes]
    if complaint and all(outcome.retry_after != _FAILED for outcome in outcomes):
        raise StoreUnavailable("the store's reply is longer than expected")
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
    """A packed quota, the part of the script that it needs, and a packed ask that takes 1 and ends its request."""

    quota: Quota
    part: int
    packed: bytes
    taking_one: bytes


def _pack_quota(quota: Quota) -> _Packed:
    if len(_packed) >= _MOST_QUOTAS:
        _packed.clear()
    part = LUA_PARTS[quota.algorithm]
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
"""Packed quotas by the id of the quota, because hashing a quota costs more than packing it. Each entry also holds its
quota, so that the id cannot be reused."""

_MOST_QUOTAS = 4096


Conversation = Generator[Sequence[Command], Any, list[Reply | StoreUnavailable]]
"""A generator that yields pipelines of commands, is sent the list of their replies, and returns the results.

The caller does the I/O. An error reply is sent as an exception object.
"""


def converse(requests: Sequence[StoreRequest], now: int | None, known: set[bytes]) -> Conversation:
    """Decide `requests` in one script call.

    `known` has the digests of the scripts that the server has. The first call that needs a script sends its text,
    because trying EVALSHA first would take two round trips.
    """
    message = encode(requests, now)
    digest = message.script.digest
    if digest in known:
        (reply,) = yield ((b"EVALSHA", digest, *message.arguments),)
    else:
        (reply,) = yield (script_call(message, by_name=False),)
    if isinstance(reply, Exception):
        if is_unknown_script(reply):
            (reply,) = yield (script_call(message, by_name=False),)
        if isinstance(reply, Exception):
            raise StoreUnavailable(str(reply))
    if digest not in known:
        known.add(digest)
    return decode(reply, message, requests)


def script_call(message: Message, *, by_name: bool) -> Command:
    """The command for a script call: EVALSHA if `by_name`, otherwise EVAL with the text of the script."""
    if by_name:
        return (b"EVALSHA", message.script.digest, *message.arguments)
    return (b"EVAL", message.script.text, *message.arguments)


def is_unknown_script(reply: object) -> bool:
    """Whether the reply says that the server does not have the script."""
    return isinstance(reply, Exception) and str(reply).startswith(_NO_SCRIPT)


_pack: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]  # it takes any tuple of bytes


def packed(pipeline: Sequence[Command]) -> bytes:
    """Commands encoded in the Redis protocol."""
    return b"".join(map(_pack, pipeline))


PENDING = object()
"""What `Replies.get` returns until the next reply is complete."""

MAX_ITEMS = 1_000_000
"""The most items in one reply, at all depths together. The largest expected reply is a cluster's map of slots."""

_MAX_BYTES = 64 * 1024 * 1024
"""The most bytes in one text. The largest expected text is a file of rules."""

_LONGEST_LINE = 64 * 1024
_DEEPEST = 8

_TEXT, _ARRAY, _NUMBER, _STATUS, _ERROR = b"$*:+-"


class Replies:
    """An incremental parser of the Redis protocol (RESP2): takes bytes as they arrive and returns whole replies.

    `items` is the most items that the arrays of one reply may have together; with 0, arrays are refused.
    """

    def __init__(self, items: int = MAX_ITEMS) -> None:
        self._items = items
        self._data = bytearray()
        self._open: list[tuple[list[object], int]] = []
        """The incomplete arrays, the outermost first, each with its expected number of items."""
        self._left = items

    def only(self, data: bytes) -> bytes | None:
        """The text, if `data` is exactly one text reply, which is the usual case. Otherwise feed it and return None."""
        if data[:1] == b"$" and not self._data and not self._open:
            start = data.find(b"\r\n", 1, 12) + 2
            if (
                1 < start < len(data) - 1
                and data[1 : start - 2] == b"%d" % (len(data) - start - 2)
                and data[-2:] == b"\r\n"
            ):
                return data[start:-2]
        self._data += data
        return None

    def feed(self, data: bytes) -> None:
        """Add more bytes."""
        self._data += data

    def get(self) -> object:
        """The next reply, or PENDING. An error reply is returned as an ErrorReply.

        Raises StoreUnavailable if the bytes are not a valid reply.
        """
        if not self._data:
            return PENDING
        while True:
            value = self._next()
            if value is PENDING:
                return PENDING
            if type(value) is _Header:
                if self._begin(value.items):
                    continue
                value = []
            while self._open:
                items, wanted = self._open[-1]
                items.append(value)
                if len(items) < wanted:
                    break
                self._open.pop()
                value = items
            else:
                self._left = self._items
                return value

    def _begin(self, items: int) -> bool:
        """Open an array. Returns False if it is empty, and so complete."""
        self._left -= items
        if self._left < 0 or len(self._open) >= _DEEPEST:
            raise StoreUnavailable(f"the server sent an unexpected array of {items} items")
        if items:
            self._open.append(([], items))
        return items > 0

    def _next(self) -> object:
        """The next text, number, error or nil, the header of the next array, or PENDING."""
        data = self._data
        end = data.find(b"\r\n")
        if end < 0:
            # Refuse an invalid first byte at once, because its line may never end.
            if len(data) > _LONGEST_LINE or (data and data[0] not in b"$*:+-"):
                raise self._garbled()
            return PENDING
        kind = data[0]
        if kind == _TEXT:
            size = self._size(end, _MAX_BYTES)
            if size < 0:
                del data[: end + 2]
                return None
            start = end + 2
            end = start + size
            if len(data) < end + 2:
                return PENDING
            if data[end : end + 2] != b"\r\n":
                raise self._garbled()
            value: object = bytes(data[start:end])
        elif kind == _ARRAY:
            size = self._size(end, MAX_ITEMS)
            value = _Header(size) if size >= 0 else None
        elif kind == _NUMBER:
            value = self._number(end)
        elif kind == _STATUS:
            value = bytes(data[1:end])
        elif kind == _ERROR:
            value = ErrorReply(data[1:end].decode(errors="replace"))
        else:
            raise self._garbled()
        del data[: end + 2]
        return value

    def _size(self, end: int, most: int) -> int:
        size = self._number(end)
        if not -1 <= size <= most:
            raise self._garbled()
        return size

    def _number(self, end: int) -> int:
        try:
            return int(self._data[1:end])
        except ValueError:
            raise self._garbled() from None

    def _garbled(self) -> StoreUnavailable:
        return StoreUnavailable(f"the server sent an invalid reply: {bytes(self._data[:40])!r}")


class _Header:
    """The header of an array, with its number of items."""

    __slots__ = ("items",)

    def __init__(self, items: int) -> None:
        self.items = items
