"""What tests do on a machine that is busy with something else: they wait for long."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

WITHIN = 60.0


def eventually(condition: Callable[[], Any], within: float = WITHIN, every: float = 0.01) -> Any:
    """Return what `condition()` is once it is true; what is never so fails the test."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it did not come about within {within:g} s"
        time.sleep(every)
    return found


async def aeventually(condition: Callable[[], Any], meanwhile: Callable[[], object] = lambda: None) -> Any:
    """The awaitable twin of `eventually`; `meanwhile` is called between two looks."""
    deadline = time.monotonic() + WITHIN
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it did not come about within {WITHIN:g} s"
        meanwhile()
        await asyncio.sleep(0.01)
    return found


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """What is within has to take less than that."""
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    assert took < seconds, f"{took:.3f} s"
