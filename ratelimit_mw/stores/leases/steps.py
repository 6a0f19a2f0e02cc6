"""Work that is written once and done blocking or awaiting: a generator of the calls that it takes."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Call(NamedTuple):
    """One thing to do and wait for, in both ways."""

    blocking: Callable[[], Any]
    awaiting: Callable[[], Awaitable[Any]]


Steps = Generator[Call, Any, T]
"""Yields what to do, is sent what came of it."""


def drive(steps: Steps[T]) -> T:
    """Do what `steps` say, blocking."""
    try:
        call = next(steps)
        while True:
            try:
                result = call.blocking()
            except BaseException as error:  # noqa: BLE001  all are the steps' to deal with
                call = steps.throw(error)
            else:
                call = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


async def adrive(steps: Steps[T]) -> T:
    """Do what `steps` say, awaiting."""
    try:
        call = next(steps)
        while True:
            try:
                result = await call.awaiting()
            except BaseException as error:  # noqa: BLE001  all are the steps' to deal with
                call = steps.throw(error)
            else:
                call = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
