"""What is on the wire: requests as calls of the Redis script, commands and replies as bytes. No I/O happens here.

The script is assembled from Lua files: only the algorithms and features that a call needs. The layout of its
arguments and its reply is described in `common.lua`.
"""

import hashlib
import re
import secrets
from collections.abc import Generator, Sequence
from functools import cache, reduce
from itertools import count, repeat
from operator import or_
from struct import Struct, error, pack
from typing import Any, NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS, LUA_PARTS, lua, widened
from ratelimit_mw.errors import CounterError, Late, StoreUnavailable, WrongNode
from ratelimit_mw.model import Quota
from ratelimit_mw.stores.base import DECIDE, ReplyFields, StoreRequest
from ratelimit_mw.stores.redis.faults import refusal

GENERAL = 1
"""The bit of the script for requests of all kinds. Without it, each takes from one counter, on the same terms apart
from their costs."""


class Script(NamedTuple):
    """The text of a script and its SHA-1 digest, by which the server knows it."""

    text: bytes
    digest: bytes


@cache
def script(parts: int, deciding: str = "alike") -> Script:
    """The script made of these parts, a sum of bits: `GENERAL` and the bit of each algorithm.

    Without `GENERAL`, the file `deciding` decides: `alike`, or `single` if there is one request.
    """
    needed = [part for part in LUA_PARTS.values() if parts & 1 << part.number]
    start, ours, algorithms = [], ["common", deciding], [part.deciding for part in needed]
    if parts & GENERAL:
        ours, algorithms = ["common", "several", "decide"], [part.lua for part in needed]
        start = ["local refunds, denials = {}, {}"]
    constants = [f"local {part.constant} = {part.number}" for part in needed]
    own = [lua(name, "ratelimit_mw.stores.redis") for name in ours]
    encoded = "\n".join([*constants, *start, lua("arithmetic"), *algorithms, *own]).encode()
    # Redis identifies scripts by their SHA-1 digest; it is not used for security.
    return Script(encoded, hashlib.sha1(encoded, usedforsecurity=False).hexdigest().encode())


def away(result: object) -> bool:
    """Whether a result shows that the server as a whole is unavailable, such as a replica or a full memory."""
    return isinstance(result, StoreUnavailable) and not isinstance(result, CounterError | WrongNode | Late)


_QUOTA = Struct("<Bdddd")
_CHARGE = Struct("<dd")
_FLAGS = [bytes((flags,)) for flags in range(128)]
_nonces = count(secrets.randbits(48), 4096)  # tells the replies on a connection apart; not secret
_NONCE = Struct("<Q")
_REPLY = Struct("<8sd")
_OUTCOME = Struct("<?qqqq")
_ONE_OUTCOME = Struct("<8sd?qqqq")  # a whole reply
_SHADOW, _LAST, _PEEK, _FORGET, _REFUND, _INSIST, _OVERDRAFT = 1, 2, 4, 8, 16, 32, 64
_FAILED = -2  # stands in place of retry_after
_NO_SCRIPT = ("NOSCRIPT", "No matching script")  # the messages of the server and of redis-py
_GENERAL = re.compile(
    r"\b(OOM|READONLY|MISCONF|NOREPLICAS|MASTERDOWN|NOPERM|ACL failure|NOAUTH|LOADING|BUSY|CLUSTERDOWN|MOVED|ASK"
    r"|TRYAGAIN)\b"
)
"""Error codes that mean that the server refuses all writes, also inside the message of a script error."""

Result = ReplyFields | StoreUnavailable
"""The result of a request."""

Command = tuple[bytes, ...]
"""A command and its arguments, as bytes."""


MOST = 128
"""A batch with this many counters takes no further request, so that no call occupies the server for more than 2 ms."""


def numbers() -> "count[int]":
    """Iterates over the numbers for the calls of one conversation."""
    return count(next(_nonces))


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
        number: identifies the reply; None for a new one.
    """
    if number is None:
        number = next(_nonces)
    nonce = _NONCE.pack(number)
    time = b"" if now is None else b"%d" % now
    if len(requests) == 1:
        asks, intent = requests[0]
        if intent is DECIDE and len(asks) == 1:
            ((key, quota, cost, shadow),) = asks
            if cost == 1 and not shadow:
                known = _packed_quota(quota)  # with an overdraft, its two terms are all terms of the message
                arguments = b"1", key.encode(), nonce, time, known.taking_one, b""
                return Message(script(known.part, "single"), arguments, nonce, 1, True)
    calls = _simple_calls(requests) if len(requests) >= _MANY else None
    keys, parts, terms, places, alone = calls or _calls(requests)
    return Message(script(parts), (b"%d" % len(keys), *keys, nonce, time, terms, places), nonce, len(keys), alone)


_MANY = 8
"""The number of requests from which `_simple_calls` is faster than `_calls`."""

_Calls = tuple[Sequence[bytes], int, bytes, bytes, bool]
"""The keys of the asks, the parts of the script that they need, the terms, the places of the asks' terms among them
(empty if all have the first; without `GENERAL`, their costs), and whether each request has exactly one ask."""


def _simple_calls(requests: Sequence[StoreRequest]) -> _Calls | None:
    """Encode many requests that each take from one counter, which is the usual case. None for other requests."""
    asks = [asks[0] for asks, intent in requests if intent is DECIDE and len(asks) == 1]
    if len(asks) < len(requests):
        return None
    keys, quotas, costs, shadows = zip(*asks, strict=True)
    if any(shadows):
        return None
    # Only C code runs for each request here.
    encoded = list(map(str.encode, keys))
    if len(set(map(id, quotas))) == 1:
        first = _packed_quota(quotas[0])
        if first.quota.overdraft:
            return None
        alike = costs.count(costs[0]) == len(costs)  # the costs of leases differ
        return encoded, first.part, first.taking(costs[0]), b"" if alike else pack(f"<{len(costs)}d", *costs), True
    kinds = list(zip(map(id, quotas), costs, strict=True))
    quota_of = dict(zip(kinds, quotas, strict=True))
    known = [(_packed_quota(quota), cost) for (_, cost), quota in quota_of.items()]
    if any(each.quota.overdraft for each, _ in known):
        return None
    places = _places(list(map(dict(zip(quota_of, count())).__getitem__, kinds)))
    parts = reduce(or_, [each.part for each, _ in known], GENERAL)
    return encoded, parts, b"".join([each.taking(cost) for each, cost in known]), places, True


def _calls(requests: Sequence[StoreRequest]) -> _Calls:
    """Encode all asks of these requests."""
    keys: list[bytes] = []
    place_of: dict[bytes, int] = {}
    places: list[int] = []
    parts = 0
    alone = True
    for asks, intent in requests:
        commit, forget, charged_at, _, _, insist = intent
        last = len(asks) - 1
        if last:
            alone, parts = False, parts | GENERAL
        common = 0 if commit else _PEEK
        if forget or insist or charged_at is not None:
            common |= _FORGET * forget | _INSIST * insist | _REFUND * (charged_at is not None)
            if insist:  # what must not be denied may go into debt
                asks = [ask._replace(quota=widened(ask.quota)) for ask in asks]  # noqa: PLW2901
        for key, quota, cost, shadow in asks:
            keys.append(key.encode())
            known = _packed_quota(quota)
            parts |= known.part
            if cost == 1 and intent is DECIDE and not (shadow or quota.overdraft):  # the usual case
                places.append(place_of.setdefault(known.taking_first if last else known.taking_one, len(place_of)))
                last -= 1
                continue
            flags = common | _SHADOW if shadow else common
            of_charge = charged_at or 0
            if quota.overdraft and cost and commit and intent.decides:
                wide = _packed_quota(widened(quota)).taking_one
                flags |= _OVERDRAFT
                of_charge = place_of.setdefault(wide, len(place_of))
            if flags:
                parts |= GENERAL
            if last == 0:
                flags |= _LAST
            last -= 1
            terms = b"".join((_FLAGS[flags], known.packed, _CHARGE.pack(cost, of_charge)))
            places.append(place_of.setdefault(terms, len(place_of)))
    if len(place_of) == 1:
        return keys, parts, b"".join(place_of), b"", alone
    return keys, parts | GENERAL, b"".join(place_of), _places(places), alone


def _places(places: Sequence[int]) -> bytes:
    return pack(f"<{len(places)}H", *places)


def decode(reply: Any, message: Message, requests: Sequence[StoreRequest]) -> list[Result]:
    """Decode the reply to a script call into one result for each request.

    If the counters of a request could not be read or written, its result is a `StoreUnavailable`, or its subclass
    `CounterError` if only these counters are at fault. The other requests get their replies.

    Raises:
        StoreUnavailable: the reply is malformed or belongs to another call.
    """
    try:
        if message.asked == 1 == len(requests) and len(reply) == _ONE_OUTCOME.size:  # the cheapest way for this case
            nonce, time, *outcome = _ONE_OUTCOME.unpack(reply)
            if nonce == message.nonce:
                return [(int(time), (tuple(outcome),), None)]
        nonce, time = _REPLY.unpack_from(reply)  # raises for what is not bytes of this length
        now, end = int(time), _REPLY.size + message.asked * _OUTCOME.size
        outcomes = list(_OUTCOME.iter_unpack(reply[_REPLY.size : end]))
        first_error = reply[end:]
    except (TypeError, ValueError, OverflowError, error):
        raise StoreUnavailable(f"the store's reply is not a decision: {reply!r:.80}") from None
    if nonce != message.nonce or len(outcomes) != message.asked:
        raise StoreUnavailable("the store's reply belongs to another request")
    if message.alone and not first_error:
        # Only C code runs for each reply here: zip makes the tuples (now, (outcome,), None).
        return list(zip(repeat(now), zip(outcomes), repeat(None)))
    if first_error and all(retry_after != _FAILED for _, _, _, retry_after, _ in outcomes):
        raise StoreUnavailable("the store's reply is longer than expected")
    replies: list[Result] = []
    start = 0
    for asks, *_ in requests:
        own = outcomes[start : start + len(asks)]
        start += len(asks)
        failed = first_error and any(retry_after == _FAILED for _, _, _, retry_after, _ in own)
        replies.append(_failure(first_error) if failed else (now, own, None))
    return replies


def _failure(first_error: bytes) -> StoreUnavailable:
    text = first_error.decode(errors="replace")
    return refusal(text) if _GENERAL.search(text) else CounterError(text)


class _Packed(NamedTuple):
    """A packed quota, the part of the script that it needs, and the packed terms that take 1.

    `taking_one` ends a request, and `taking_first` does not. With an overdraft, `taking_one` also has the terms of the
    widened quota, as number 1.
    """

    quota: Quota
    part: int
    packed: bytes
    taking_one: bytes
    taking_first: bytes

    def taking(self, cost: int) -> bytes:
        """The packed terms that take `cost` and end a request, of a quota without an overdraft."""
        return self.taking_one if cost == 1 else b"".join((_FLAGS[_LAST], self.packed, _CHARGE.pack(cost, 0)))


def _packed_quota(quota: Quota) -> _Packed:
    known = _packed.get(id(quota))
    if known is None or known.quota is not quota:
        if len(_packed) >= _MOST_QUOTAS:
            _packed.clear()
        part = LUA_PARTS[quota.algorithm]
        packed = _QUOTA.pack(part.number, *ALGORITHMS[quota.algorithm].in_lua(quota))
        taking_one, bits = b"".join((_FLAGS[_LAST], packed, _CHARGE.pack(1, 0))), part.bits
        if quota.overdraft:
            wide = _packed_quota(widened(quota)).taking_one
            taking_one, bits = b"".join((_FLAGS[_LAST | _OVERDRAFT], packed, _CHARGE.pack(1, 1), wide)), bits | GENERAL
        taking_first = b"".join((_FLAGS[0], packed, _CHARGE.pack(1, 0)))
        known = _packed[id(quota)] = _Packed(quota, bits, packed, taking_one, taking_first)
    return known


_packed: dict[int, _Packed] = {}
"""Packed quotas by the id of the quota, because hashing a quota costs more than packing it. Each entry also holds its
quota, so that the id cannot be reused."""

_MOST_QUOTAS = 4096


Conversation = Generator[Sequence[Command], Any, list[Result]]
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
    (reply,) = yield (script_call(message, by_name=digest in known),)
    if isinstance(reply, Exception):
        if is_unknown_script(reply):
            (reply,) = yield (script_call(message, by_name=False),)
        if isinstance(reply, Exception):
            raise refusal(str(reply))
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


class _Headers(dict[int, bytes]):
    """The header of a text in the Redis protocol, by its length. Those of short texts are kept."""

    def __missing__(self, length: int) -> bytes:
        header = b"$%d" % length
        if length < _SHORT:
            self[length] = header
        return header


_SHORT = 4096
_texts = _Headers()


def packed(pipeline: Sequence[Command]) -> bytes:
    """Commands encoded in the Redis protocol."""
    return b"".join(map(_pack, pipeline))


def _pack(command: Command) -> bytes:
    if len(command) == _WORDS:
        a, b, c, d, e, f, g, h = command
        return _CALL % (len(a), a, len(b), b, len(c), c, len(d), d, len(e), e, len(f), f, len(g), g, len(h), h)
    # Only C code runs for each word.
    words = [b""] * (2 * len(command) + 2)
    words[0] = b"*%d" % len(command)
    words[1:-1:2] = map(_texts.__getitem__, map(len, command))
    words[2:-1:2] = command
    return b"\r\n".join(words)


_WORDS = 8
"""The number of words of the usual command: a script call about one counter."""

_CALL = b"*8\r\n" + _WORDS * b"$%d\r\n%b\r\n"


def only_text(data: bytes) -> bytes | None:
    """The text, if `data` is exactly one text reply in the Redis protocol, which is the usual case. Otherwise None."""
    header, _, text = data.partition(b"\r\n")
    return text[:-2] if text[-2:] == b"\r\n" and header == _texts[len(text) - 2] else None
