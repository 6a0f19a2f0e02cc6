"""What is made in the process that uses it, and not before."""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class late(Generic[T]):  # noqa: N801  a descriptor, as `property` is one
    """An attribute that `make` makes when it is first asked for, once, whichever threads ask.

    For locks and events under which somebody may wait. Under `gunicorn --preload -k gevent` an app is loaded and forked
    before `threading` is patched: a lock of that time knows nothing of greenlets, and the first that had to wait for
    it would stop the whole worker. So `make` is one of those below, which look up what they call.
    `vars(instance).pop(name, None)` has it made anew.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "late[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self._name, self._make())  # atomic: all get the same


def lock() -> threading.Lock:
    """A lock of this process."""
    return threading.Lock()


def rlock() -> threading.RLock:
    """A reentrant lock of this process."""
    return threading.RLock()


def event() -> threading.Event:
    """An event of this process."""
    return threading.Event()


def condition() -> threading.Condition:
    """A condition of this process; its lock is a plain one, the quickest to take."""
    return threading.Condition(threading.Lock())
