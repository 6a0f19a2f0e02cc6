"""What a store is: the one place where counters live, and where a decision is atomic."""

from collections.abc import Coroutine, Iterator, Sequence
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
