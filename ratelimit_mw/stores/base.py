"""The interface of stores, the requests that they answer, and the base class of stores that wrap others.

Also the interface of records: named texts under a key, with a common version. They keep rules, overrides and the kill
switch. Requests do not use records, so each call may take a second.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.errors import VersionConflict
from ratelimit_mw.model import Ask, Outcome, Reply, Row
from ratelimit_mw.process_local import lazy, lock

T = TypeVar("T")


class Intent(NamedTuple):
    """What a store does with the asks of a request. By default it decides on them.

    Attributes:
        commit: whether to charge. With False, the store only looks: it replies what it would decide.
        forget: make the counters as if unused.
        charged_at: refund the cost of each ask. The time is the `Reply.now` of the call that charged it. The refund
            is best effort: a counter never falls below zero, and a charge that has left its window is not refunded
            in a later one. A negative cost is charged, even above the limit, to a window that was charged before.
        slot: the slot that all keys belong to, for the nodes of a Redis Cluster. Other stores ignore it.
        asking: whether to follow a redirection with ASKING, for the nodes of a Redis Cluster. Other stores ignore it.
        insist: charge the cost of each ask now, even above the limit. What exceeds the limit is a debt (see
            `algorithms.widened`). If `charged_at` is set too, that charge is refunded in the same step.
    """

    commit: bool = True
    forget: bool = False
    charged_at: int | None = None
    slot: int = 0
    asking: bool = False
    insist: bool = False

    @property
    def decides(self) -> bool:
        """Whether the store decides or looks, so that the reply has an outcome for each ask."""
        return not self.forget and not self.insist and self.charged_at is None


DECIDE = Intent()
"""Admit the request if all its enforced asks allow it, and only then charge them."""

LOOK = Intent(commit=False)
"""Reply what would be decided, and charge nothing."""

StoreRequest = tuple[Sequence[Ask], Intent]
"""The asks that a store answers in one step, and what to do with them.

It is a plain pair because one is made for each request.
"""


ReplyFields = tuple[int, Sequence[Row], int | None]
"""The fields of a `Reply`. The outcomes may be plain tuples of their fields."""

_outcome: Callable[[type[Outcome], Row], Outcome] = tuple.__new__


def complete(fields: ReplyFields) -> Reply:
    """Return the `Reply` with these fields. Outcomes that are plain tuples become `Outcome`s."""
    if isinstance(fields, Reply):
        return fields
    now, rows, only = fields
    return Reply(now, [row if isinstance(row, Outcome) else _outcome(Outcome, row) for row in rows], only)


Decider = tuple[Callable[[Any], ReplyFields], Callable[[Sequence[Ask]], Any]]
"""A function that decides on a request, and one that returns its argument (a true value): the place of the counters."""


Denied = Callable[[Sequence[Ask], int, Reply], object]
"""Is told of a denial: the asks, a monotonic time in microseconds before the store decided, and its reply."""


def forget_request(keys: Sequence[str]) -> StoreRequest:
    """The request that makes these counters as if unused."""
    return [Ask(key, NOTHING) for key in keys], Intent(forget=True)


class Store(ABC):
    """Counters under keys. A store decides on several counters in one atomic step, by its own clock.

    A subclass defines `ask`, `aask` and `keys`, and `close` if it keeps connections. All other methods call `ask` or
    `aask`. Any thread may call any method. An event loop calls `aask`, `aconnect` and `aclose`.

    Every method raises StoreUnavailable, and no other error, if the store cannot answer in time.
    """

    remote: bool = True
    """Whether a call goes over a network. Only such a store gets a deny cache, leases and shards."""

    waits: bool = True
    """Whether `ask` may have to wait. An event loop then calls `aask`."""

    decides: bool = False
    """Whether it decides by rules of its own, with a `ServiceReply`."""

    @property
    def late_requests(self) -> int:
        """How many requests of this process had no answer in time while others had. For metrics."""
        return 0

    @abstractmethod
    def ask(self, request: StoreRequest) -> Reply:
        """Carry out the intent of the request on its asks.

        Returns:
            The time of the store (`Reply.now`) and, for a decision or a look, one outcome for each ask in order. The
            outcomes of other intents have no meaning.
        """

    @abstractmethod
    def aask(self, request: StoreRequest) -> Coroutine[Any, Any, Reply]:
        """The awaitable twin of `ask`. It never blocks the event loop."""

    def reply_to(self, request: StoreRequest, denied: Denied | None = None) -> Awaitable[ReplyFields]:
        """As `aask`, for callers that only await the fields of the reply. It may raise at once, before it is awaited.

        A store may return a future here, which takes less time than a coroutine.

        Args:
            request: the request.
            denied: is told if the request is denied, before the caller gets the reply.
        """
        reply = self.aask(request)
        return reply if denied is None else tell_denials(reply, request[0], denied)

    def decider(self, asks: Sequence[Ask]) -> Decider | None:  # noqa: ARG002  for subclasses
        """What does what `ask` does for `DECIDE`. None: the store takes several steps.

        The functions are called with these asks, and with others that differ in their keys alone.
        """
        return self.ask, lambda asks: (asks, DECIDE)

    @abstractmethod
    def keys(self, prefix: str) -> Iterator[str]:
        """The keys of counters that begin with `prefix`, in no order. For operators; requests do not use it.

        A counter that is made or dropped during the call may be missing. Keys that are no counters may be included.
        """

    def connect(self, domain: str) -> None:  # noqa: B027  a store in memory has nothing to connect
        """Connect for threads, before the first request comes. Returns after three seconds at the latest.

        It makes a decision, on a key of `domain`, or checks that one can be made. If that fails, it logs it and raises
        StoreUnavailable.
        """

    async def aconnect(self, domain: str) -> None:
        """The counterpart of `connect` for the running event loop."""
        self.connect(domain)

    def close(self) -> None:  # noqa: B027  a store in memory has nothing to close
        """Close all connections. May be called twice."""

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        self.close()

    def decide(self, asks: Sequence[Ask], *, commit: bool = True) -> Reply:
        """Admit the request if all its enforced asks allow it, and only then charge them.

        With `commit=False`, reply what would be decided, and charge nothing.
        """
        return self.ask((asks, DECIDE if commit else LOOK))

    def forget(self, keys: Sequence[str]) -> None:
        """Make these counters as if unused."""
        self.ask(forget_request(keys))

    def refund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """Refund the cost of each ask, which was charged at the time `charged_at` of the store; see `Intent`."""
        self.ask((asks, Intent(charged_at=charged_at)))

    def charge(self, asks: Sequence[Ask], *, instead_of: int | None = None) -> int:
        """Charge the asks now, even above the limit; see `Intent`.

        Args:
            asks: the counters, each with the cost to charge.
            instead_of: the time of an earlier charge, which is refunded in the same step; None for none.

        Returns:
            The time of the charge, which `refund` takes as `charged_at`.
        """
        return self.ask((asks, Intent(charged_at=instead_of, insist=True))).now


async def tell_denials(reply: Awaitable[ReplyFields], asks: Sequence[Ask], denied: Denied) -> ReplyFields:
    """Wait for the reply to these asks, which the store has not begun, and tell `denied` if one of them is denied."""
    asked_at = time.monotonic_ns() // 1000
    answer = complete(await reply)
    if not all(outcome.allowed for outcome in answer.outcomes):
        denied(asks, asked_at, answer)
    return answer


class Wait(Protocol):
    """Something that steps can wait for, such as the call of another thread."""

    def result(self) -> object:
        """Block until it has ended."""

    async def awaited(self) -> object:
        """The awaitable twin of `result`."""


class Step:
    """A call that blocks, and its awaitable twin, with the same arguments. It is a `Wait`."""

    __slots__ = ("_arguments", "_awaiting", "_blocking")

    def __init__(
        self, blocking: Callable[..., object], awaiting: Callable[..., Awaitable[object]], *arguments: object
    ) -> None:
        self._blocking, self._awaiting, self._arguments = blocking, awaiting, arguments

    def result(self) -> object:
        """See `Wait`."""
        return self._blocking(*self._arguments)

    async def awaited(self) -> object:
        """See `Wait`."""
        return await self._awaiting(*self._arguments)


Steps = Generator[StoreRequest | Wait, Any, T]
"""A generator that makes several calls. It yields requests for the store beneath and is sent their replies.

It may also yield a `Wait`. What it returns is the result.
"""

NO_STORE: Any = None
"""The store of steps that yield no request."""

Call = tuple[StoreRequest, Any]
"""The request for the store beneath, and a note for `answered`; with None, the reply is passed on as it is."""


class Wrapper(Store):
    """A store that wraps the store `beneath`. Two hooks transform the requests and the replies.

    A subclass overrides `asked`, and also `answered` if it uses the replies. The hooks do no I/O. The blocking and
    the awaiting calls are both made here.
    """

    def __init__(self, beneath: Store) -> None:
        self.beneath = beneath
        self.remote = beneath.remote
        self.waits = beneath.waits

    def asked(self, request: StoreRequest) -> Call | Reply | Steps[Reply]:
        """Return how to answer `request`.

        Returns:
            A `Call` to the store beneath, whose reply is passed to `answered` if it has a note; or `Steps` if several
            calls are needed, which return the reply themselves; or the `Reply`, without a call.
        """
        return request, None

    def answered(self, asked: StoreRequest, note: Any, reply: Reply) -> Reply:  # noqa: ARG002  for subclasses
        """Return the reply to the original request.

        Args:
            asked: the request that the store beneath has answered.
            note: the note that `asked()` returned with that request.
            reply: the reply of the store beneath.
        """
        return reply

    def ask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        plan = self.asked(request)
        if isinstance(plan, Reply):
            return plan
        if isinstance(plan, tuple):
            asked, note = plan
            reply = self.beneath.ask(asked)
            return reply if note is None else self.answered(asked, note, reply)
        return drive(self.beneath, plan)

    def aask(self, request: StoreRequest) -> Coroutine[Any, Any, Reply]:
        """See `Store`."""
        return self._carried_out(self.asked(request))

    def reply_to(self, request: StoreRequest, denied: Denied | None = None) -> Awaitable[ReplyFields]:
        """See `Store`. A request that is passed on as it is takes no coroutine here. A reply of `asked` is not told."""
        plan = self.asked(request)
        if type(plan) is tuple and plan[1] is None:
            return self.beneath.reply_to(plan[0], denied)
        carried_out = self._carried_out(plan)
        return carried_out if denied is None or type(plan) is Reply else tell_denials(carried_out, request[0], denied)

    async def _carried_out(self, plan: Call | Reply | Steps[Reply]) -> Reply:
        if isinstance(plan, Reply):
            return plan
        if isinstance(plan, tuple):
            asked, note = plan
            reply = complete(await self.beneath.reply_to(asked))
            return reply if note is None else self.answered(asked, note, reply)
        return await adrive(self.beneath, plan)

    def keys(self, prefix: str) -> Iterator[str]:
        """See `Store`."""
        return self.beneath.keys(prefix)

    def close(self) -> None:
        """See `Store`."""
        self.beneath.close()

    async def aclose(self) -> None:
        """See `Store`."""
        await self.beneath.aclose()


def drive(store: Store, steps: Steps[T]) -> T:
    """Carry out the steps over `store`, with blocking calls, and return their result."""
    try:
        step = next(steps)
        while True:
            try:
                result: object = store.ask(step) if isinstance(step, tuple) else step.result()
            except BaseException as error:  # noqa: BLE001  the steps handle all exceptions
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


async def adrive(store: Store, steps: Steps[T]) -> T:
    """The awaitable twin of `drive`."""
    try:
        step = next(steps)
        while True:
            try:
                result: object = await store.aask(step) if isinstance(step, tuple) else await step.awaited()
            except BaseException as error:  # noqa: BLE001  the steps handle all exceptions
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


def time_of(now: int, key: str) -> int:
    """The time of the counter `key` in a reply with the time `now`. In a cluster, each node has its own clock."""
    of_key: Callable[[str], int] | None = getattr(now, "of_key", None)
    return of_key(key) if of_key else now


class Records(ABC):
    """Texts by name under each key. Every method may raise StoreUnavailable. Records may be used after a fork."""

    name: str
    """The name of the storage in logs."""

    @abstractmethod
    def read(self, key: str, names: Sequence[str] | None = None) -> tuple[int, dict[str, str]]:
        """The version and the texts by name. With `names`, only the texts of these names that exist."""

    @abstractmethod
    def write(
        self, key: str, put: Mapping[str, str], drop: Collection[str] = (), *, expected: int | None = None
    ) -> int:
        """Set the texts `put` and delete the names `drop` in one atomic step, and return the new version.

        Raises VersionConflict, without a change, if the version is not the `expected` one (None for any).
        """

    def version(self, key: str) -> int:
        """The number of changes to the texts under `key`; 0 if there are none."""
        return self.read(key, ())[0]

    def close(self) -> None:  # noqa: B027  only a server has connections
        """Close all connections. May be called twice."""


Texts = dict[str, tuple[int, dict[str, str]]]
"""The version and the texts by name, by key."""


def read_from(texts: Texts, key: str, names: Sequence[str] | None) -> tuple[int, dict[str, str]]:
    """See `Records.read`."""
    version, known = texts.get(key, (0, {}))
    return version, {name: text for name, text in known.items() if names is None or name in names}


def write_to(texts: Texts, key: str, put: Mapping[str, str], drop: Collection[str], expected: int | None) -> int:
    """See `Records.write`."""
    version, known = texts.get(key, (0, {}))
    if expected is not None and expected != version:
        raise VersionConflict(version)
    texts[key] = version + 1, {**{name: text for name, text in known.items() if name not in drop}, **put}
    return version + 1


class MemoryRecords(Records):
    """Records in the memory of this process."""

    _lock = lazy(lock)

    def __init__(self) -> None:
        self.name = "this process's memory"
        self._texts: Texts = {}

    def read(self, key: str, names: Sequence[str] | None = None) -> tuple[int, dict[str, str]]:
        """See `Records`."""
        return read_from(self._texts, key, names)

    def write(
        self, key: str, put: Mapping[str, str], drop: Collection[str] = (), *, expected: int | None = None
    ) -> int:
        """See `Records`."""
        with self._lock:
            return write_to(self._texts, key, put, drop, expected)
