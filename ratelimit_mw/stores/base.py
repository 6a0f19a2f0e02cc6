"""What a store is, what it is asked, and how one store wraps another; and the bounds of what stores admit."""

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Generator, Iterator, Sequence
from math import ceil
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.model import Ask, Reply

T = TypeVar("T")


class Intent(NamedTuple):
    """What a store does about the asks of a request. It decides on them, unless a field says something else.

    With `commit=False` it looks: it answers what it would decide, and charges nothing.

    With `forget` it makes the counters as if unused.

    With `charged_at` it gives back the cost of each ask, as a decision charged it whose `Reply.now` was `charged_at`.
    Best effort: a counter never falls below zero, and what time has taken back already is not looked for in later
    windows. A cost below zero is charged, over the limit too, to a window that a decision has charged before.

    With `insist` it charges the cost of each ask now, over the limit too. What is beyond the limit is a debt; see
    `algorithms.widened`. What was charged at `charged_at`, if that is set too, is given back in the same step.

    `slot` and `asking` are for the nodes of a Redis Cluster: all keys lie in `slot`, and `asking` follows its
    redirection. Every other store ignores them.
    """

    commit: bool = True
    forget: bool = False
    charged_at: int | None = None
    slot: int = 0
    asking: bool = False
    insist: bool = False

    @property
    def decides(self) -> bool:
        """Whether the reply has an outcome for each ask: this is a decision, or a look at one."""
        return not self.forget and not self.insist and self.charged_at is None


DECIDE = Intent()
"""Admit the request if all its enforced asks allow it, and only then charge them."""

LOOK = Intent(commit=False)
"""Say what would be decided."""

StoreRequest = tuple[Sequence[Ask], Intent]
"""The asks of one request, answered together: a plain pair, because one is made for each request."""


def forgetting(keys: Sequence[str]) -> StoreRequest:
    """The request that makes these counters as if unused."""
    return [Ask(key, NOTHING) for key in keys], Intent(forget=True)


@runtime_checkable
class Connectable(Protocol):
    """A store that can be connected before the first request comes. Both methods wait for a second at most."""

    def connect(self) -> None:
        """Connect for threads. A store that is away is no error: requests find out for themselves."""

    async def aconnect(self) -> None:
        """Connect the running event loop."""


class Store(ABC):
    """Counters, decided several at a time and all or nothing, by the store's own clock.

    A store defines `ask`, `aask` and `keys`, and `close` if it holds something open. All other methods put their
    question as a request. Every method may be called from any thread, and every `a…` twin from any event loop.
    A store that can't answer in time raises StoreUnavailable, and nothing else.
    """

    remote: ClassVar[bool] = True
    """Whether a call goes over a network. Only then denials are remembered, and leases and shards are used."""

    shared: ClassVar[bool] = True
    """Whether other processes see the same counters."""

    @abstractmethod
    def ask(self, request: StoreRequest) -> Reply:
        """Do what the request's intent says. `Reply.now` is the store's clock.

        A decision or a look has one outcome for each ask, in order. The outcomes of other intents have no meaning.
        """

    @abstractmethod
    def aask(self, request: StoreRequest) -> Coroutine[Any, Any, Reply]:
        """The awaitable twin of `ask`. It never blocks the event loop."""

    @abstractmethod
    def keys(self, prefix: str) -> Iterator[str]:
        """The counters whose keys begin with `prefix`, in no order: for operators, never for a request.

        Counters that come or go during the call may be among them or not, and so may other keys of the same prefix.
        """

    def close(self) -> None:  # noqa: B027  most stores in memory hold nothing open
        """Let go of what the store holds open. Twice is fine."""

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        self.close()

    def decide(self, asks: Sequence[Ask], *, commit: bool = True) -> Reply:
        """Admit the request if all its enforced asks allow it, and only then charge them.

        `commit=False` says what would be decided, and charges nothing.
        """
        return self.ask((asks, DECIDE if commit else LOOK))

    def adecide(self, asks: Sequence[Ask], *, commit: bool = True) -> Coroutine[Any, Any, Reply]:
        """The awaitable twin of `decide`."""
        return self.aask((asks, DECIDE if commit else LOOK))

    def forget(self, keys: Sequence[str]) -> None:
        """Make these counters as if unused."""
        self.ask(forgetting(keys))

    async def aforget(self, keys: Sequence[str]) -> None:
        """The awaitable twin of `forget`."""
        await self.aask(forgetting(keys))

    def refund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """Give back what a decision charged at `charged_at`; see `Intent`."""
        self.ask((asks, Intent(charged_at=charged_at)))

    async def arefund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """The awaitable twin of `refund`."""
        await self.aask((asks, Intent(charged_at=charged_at)))

    def charge(self, asks: Sequence[Ask], *, instead_of: int | None = None) -> int:
        """Charge the asks now, over the limit too, and return when that was, to refund it by; see `Intent`.

        With `instead_of`, what was charged at that time is given back in the same step.
        """
        return self.ask((asks, Intent(charged_at=instead_of, insist=True))).now

    async def acharge(self, asks: Sequence[Ask], *, instead_of: int | None = None) -> int:
        """The awaitable twin of `charge`."""
        return (await self.aask((asks, Intent(charged_at=instead_of, insist=True)))).now


class Wait(Protocol):
    """Something that ends by itself, for steps to wait for."""

    def result(self) -> object:
        """Wait until it is over."""

    async def awaited(self) -> object:
        """The awaitable twin of `result`."""


Steps = Generator[StoreRequest | Wait, Any, T]
"""What takes several calls: yields requests for the store beneath, and is sent their replies. It may yield a `Wait`."""

Call = tuple[StoreRequest, Any]
"""The request for the store beneath, and a note that `answered` gets with the reply to it."""


class Wrapper(Store):
    """A store around the store `beneath`. Two hooks transform what is asked and what is answered.

    A subclass overrides `asked`, and `answered` where the reply matters. Neither does any I/O: the blocking and the
    awaiting way are written once, here.
    """

    def __init__(self, beneath: Store) -> None:
        self.beneath = beneath

    def asked(self, request: StoreRequest) -> Call | Reply | Steps[Reply]:
        """Return what to ask beneath in place of `request`: one call, or steps if it takes several; or the reply.

        `answered` is called only after one call. Steps conclude by themselves: they return the reply.
        """
        return request, None

    def answered(self, asked: StoreRequest, note: Any, reply: Reply) -> Reply:  # noqa: ARG002  for subclasses
        """Return the reply to the request for which `asked` was asked beneath, now that `reply` came."""
        return reply

    def ask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        plan = self.asked(request)
        if isinstance(plan, Reply):
            return plan
        if isinstance(plan, tuple):
            asked, note = plan
            return self.answered(asked, note, self.beneath.ask(asked))
        return drive(self.beneath, plan)

    async def aask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        plan = self.asked(request)
        if isinstance(plan, Reply):
            return plan
        if isinstance(plan, tuple):
            asked, note = plan
            return self.answered(asked, note, await self.beneath.aask(asked))
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
    """Take the steps over `store`, blocking, and return what they return."""
    try:
        step = next(steps)
        while True:
            try:
                result: object = store.ask(step) if isinstance(step, tuple) else step.result()
            except BaseException as error:  # noqa: BLE001  the steps deal with all of them
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
            except BaseException as error:  # noqa: BLE001  the steps deal with all of them
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


def worst_over_admission(
    processes: int, limit: int, *, rate: float | None = None, interval: float = 1.0, delay: float = 0.1
) -> int:
    """How much more than `limit` a `write_back` counter may admit in a window, while the store answers.

    No process admits more than the limit by its own count, so P of them admit (P − 1) × limit too much. With `rate`,
    what one process is asked for per second, it is also at most 2 × P × rate × (interval + delay): what a process
    admits is charged within `interval` and the `delay` of the call (both in seconds), and known to the others as
    long after that again.
    """
    most = (processes - 1) * limit
    if rate is None:
        return most
    return min(most, ceil(2 * processes * rate * (interval + delay)))


def worst_under_admission(
    processes: int, limit: int, *, rate: float | None = None, interval: float = 1.0, cost: int = 1
) -> int:
    """How much of `limit` a `lease` counter may leave unused when it denies a request of `cost`.

    That is what the other processes hold and have not spent. Each holds at most twice what it spent in the interval
    before (`rate`: the most that one process is asked for per second), and `cost` more; all of them never more than
    the limit.
    """
    if processes == 1:
        return cost - 1
    if rate is None:
        return limit
    return min(limit, ceil((processes - 1) * (2 * rate * interval + cost)) + cost - 1)


def worst_unused_of_shards(shards: int, cost: int = 1, *, weighs: bool = False) -> int:
    """How much of a sharded limit may be left when it denies a request of `cost`: more fits into no single shard.

    `weighs` is for `sliding_window`, which rounds what the previous window weighs up in each shard.
    """
    return shards * (cost - 1) + (shards - 1 if weighs else 0)
