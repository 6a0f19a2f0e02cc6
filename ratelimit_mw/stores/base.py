"""What a store is, and the bounds of what it accepts."""

from collections.abc import Coroutine, Iterator, Sequence
from math import ceil
from typing import Any, Protocol, runtime_checkable

from ratelimit_mw.model import Ask, Reply


@runtime_checkable
class Connectable(Protocol):
    """A store that can be connected before the first request comes. Both methods wait for a second at most."""

    def connect(self) -> None:
        """Connect for threads. A store that is away is no error: requests find out for themselves."""

    async def aconnect(self) -> None:
        """Connect the running event loop."""


@runtime_checkable
class Store(Protocol):
    """Counters, decided several at a time and all or nothing, by the store's own clock.

    Every method may be called from any thread, and every `a…` twin from any event loop. A store that can't
    answer in time raises StoreUnavailable, and nothing else.
    """

    def decide(self, asks: Sequence[Ask], *, commit: bool = True) -> Reply:
        """Admit the request if all its enforced asks allow it, and only then charge them.

        `commit=False` says what would be decided, and charges nothing.
        """
        ...

    def adecide(self, asks: Sequence[Ask], *, commit: bool = True) -> Coroutine[Any, Any, Reply]:
        """The awaitable twin of `decide`: an `async def`, or what hands on another's coroutine without a step more."""
        ...

    def forget(self, keys: Sequence[str]) -> None:
        """Make these counters as if unused."""

    async def aforget(self, keys: Sequence[str]) -> None:
        """The awaitable twin of `forget`."""

    def refund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """Give back the cost of each of `asks`, as a decision charged it whose `Reply.now` was `charged_at`.

        Best effort: never below zero, and what time has taken back by itself is not looked for in later windows.
        A cost below zero is charged, over the limit too, to a window that a decision has charged before.
        """

    async def arefund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """The awaitable twin of `refund`."""

    def keys(self, prefix: str) -> Iterator[str]:
        """The counters whose keys begin with `prefix`, in no order: for operators, never for a request.

        Those that come or go meanwhile may be among them or not, and so may other keys of the same prefix.
        """
        ...

    def charge(self, asks: Sequence[Ask], *, instead_of: int | None = None) -> int:
        """Charge the cost of each of `asks` now, over the limit too, and return when that was, to refund it by.

        With `instead_of`, what was charged at that time is given back in the same step. What is beyond the limit is a
        debt; see `algorithms.widened`.
        """
        ...

    async def acharge(self, asks: Sequence[Ask], *, instead_of: int | None = None) -> int:
        """The awaitable twin of `charge`."""
        ...

    def close(self) -> None:
        """Let go of what the store holds open. Twice is fine."""

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""


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
