"""Support for the tests of an app: a pytest plugin, and the limiter behind an app.

The plugin is loaded by `pytest_plugins = ["ratelimit_mw.testing"]` in the `conftest.py` at the root of the tests. Its
fixtures do nothing unless a test asks for them. They apply to all limiters of the process, also to those that the test
makes. Under pytest-xdist, the plugin gives the counters of each worker keys of their own.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from ratelimit_mw.asgi import RateLimitMiddleware as AsgiMiddleware
from ratelimit_mw.clock import ManualClock, machine_clock_is
from ratelimit_mw.decision.kill_switch import force
from ratelimit_mw.errors import StoreUnavailable, quoted
from ratelimit_mw.limiter import LIMITERS, RateLimiter
from ratelimit_mw.reload.controls import Setting
from ratelimit_mw.rules.compiled import TEST_WORKER
from ratelimit_mw.wsgi import RateLimitMiddleware as WsgiMiddleware

__all__ = ["fresh_rate_limits", "limiter_of", "no_rate_limits", "rate_limit_clock"]

_INNER = (
    "app", "wsgi_app", "application", "handler", "middleware_stack", "router", "routes", "mounts", "__self__",
    "__wrapped__",
)  # fmt: skip
"""The attributes in which apps, routes, middlewares and test clients keep the apps behind them."""

_MOST = 100_000  # objects that are looked at for a limiter


@contextmanager
def forced(word: str) -> Iterator[None]:
    """Set the switch of every limiter of this process, also of those that are made within the block.

    Args:
        word: `on`, `shadow` or `off`.
    """
    before = force(Setting(word, source="tests"))
    try:
        _update_switches()
        yield
    finally:
        force(before)
        _update_switches()


def _update_switches() -> None:
    for limiter in list(LIMITERS):
        limiter.engine.planner.switch.update()


def pytest_configure() -> None:
    """Give the counters of each worker of pytest-xdist keys of their own, also in the processes that it starts."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        os.environ[TEST_WORKER] = worker


class _ClockOfTest(ManualClock):
    """The clock of `rate_limit_clock`. It raises RuntimeError if a limiter decides by the clock of a server."""

    def __init__(self) -> None:
        super().__init__()
        self._before = WeakKeyDictionary({limiter: _decisions(limiter) for limiter in LIMITERS})

    def advance(self, seconds: float) -> None:
        self.require_drive()
        super().advance(seconds)

    def set(self, epoch_seconds: float) -> None:
        self.require_drive()
        super().set(epoch_seconds)

    def require_drive(self) -> None:
        """Raise RuntimeError if a limiter that this clock does not drive has decided since the test began."""
        for limiter in list(LIMITERS):
            driven = limiter.clock is not None or not limiter.engine.storage.store.remote
            if not driven and _decisions(limiter) > self._before.get(limiter, 0):
                raise RuntimeError(
                    f"rate_limit_clock does not drive the limiter of {quoted(limiter.rules.domain)}, which counts at a "
                    "server and by its clock: make it with RateLimiter(…, clock=rate_limit_clock), or count in memory://"
                )


def _decisions(limiter: RateLimiter) -> int:
    """How many requests a limiter has decided on."""
    return sum(limiter.tally.snapshot().requests.values())


@pytest.fixture
def no_rate_limits() -> Iterator[None]:
    """All requests pass during the test, uncounted."""
    with forced("off"):
        yield


@pytest.fixture
def fresh_rate_limits() -> Iterator[None]:
    """All counters are unused when the test begins, and again after its end. See `RateLimiter.reset_all`.

    The records of denials and the counts of shadow rules begin again, too.
    """
    _reset_all()
    yield
    _reset_all()


@pytest.fixture
def rate_limit_clock(fresh_rate_limits: None) -> Iterator[ManualClock]:  # noqa: ARG001
    """All limits use this `ManualClock` during the test. Counters are fresh, as with `fresh_rate_limits`.

    It drives the limiters whose counters are on this machine. A limiter over Redis uses the clock of the server, unless
    it is made with this clock: `RateLimiter(config, clock=rate_limit_clock)`. If another one has decided, moving the
    clock raises RuntimeError, and so does the end of the test.
    """
    clock = _ClockOfTest()
    with machine_clock_is(clock):
        yield clock
    clock.require_drive()


def _reset_all() -> None:
    for limiter, is_open in list(LIMITERS.items()):
        limiter.engine.forget_reports()
        if is_open:
            limiter.reset_all()
        else:  # a test client closes its app's limiter with each lifespan, and the next one uses it again
            with suppress(StoreUnavailable):
                limiter.reset_all()
            limiter.close()


def limiter_of(app: object) -> RateLimiter:
    """Return the limiter that decides for an app.

    A Starlette app makes its middlewares at its first request. If that has not come yet, they are made now, and no
    further middleware can be added.

    Args:
        app: The app: of Starlette, FastAPI or Flask, Django's `application` or its test client, or any app inside of
            middlewares. Mounted apps and the apps of a dispatcher are searched, too. If several limiters are found, the
            outermost is returned.

    Raises:
        LookupError: The app has no limiter that can be found.
        ConfigurationError: The middleware is made now, and its rules cannot be used.
    """
    waiting: list[Any] = [app]
    seen: dict[int, Any] = {}  # the objects are kept, so that their ids stay theirs
    for each in waiting:  # it grows: the outermost apps come first
        if id(each) in seen or len(seen) >= _MOST:
            continue
        seen[id(each)] = each
        found = _limiter_at(each)
        if found is not None:
            return found
        waiting += _inside(each)
    raise LookupError(f"{quoted(type(app).__qualname__)} has no RateLimitMiddleware around it or in it")


def _limiter_at(app: Any) -> RateLimiter | None:
    """The limiter of a middleware of ours, of a Starlette app that has one, or of a Django project."""
    if isinstance(app, AsgiMiddleware | WsgiMiddleware):
        return app.limiter
    if any(kind.__module__ == "django.core.handlers.base" for kind in type(app).__mro__):
        from ratelimit_mw.django.project import limiter_in_use

        return limiter_in_use()
    for each in getattr(app, "user_middleware", ()):
        kind, arguments = getattr(each, "cls", None), getattr(each, "kwargs", {})
        if isinstance(kind, type) and issubclass(kind, AsgiMiddleware):
            if arguments.get("limiter") is not None:
                given: RateLimiter = arguments["limiter"]
                return given
            if app.middleware_stack is None:  # as the app does at its first request
                app.middleware_stack = app.build_middleware_stack()
    return None


def _inside(app: Any) -> list[Any]:
    """The objects in which the limiter of an app may be."""
    found: list[Any] = []
    for name in _INNER:
        value = getattr(app, name, None)
        if isinstance(value, Mapping):
            found += value.values()
        elif isinstance(value, Sequence) and not isinstance(value, str):
            found += value
        elif value is not None:
            found.append(value)
    return found
