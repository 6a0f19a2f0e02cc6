"""Fixtures that every test may ask for.

`server`        one test for each server version on this machine, the older ones in `make soak`; as new for each test
`any_server`    the newest Valkey alone, for tests to which the version makes no difference
`oldest_server` Redis 6.2 alone, for the contract of stores
`fresh_server`  a process of the test's own, to pause, kill and misconfigure
`each_server`   as `server`, but never flushed: for hypothesis, which runs many examples in one test
`chromium`      a real browser, for one module: `asyncio.run` fails in its tests
`clock`         a clock that stands still until the test moves it
`storage`       the URL of a store: in memory, and on `any_server` in `make soak`

Under pytest-xdist each process has servers of its own.
"""

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings

from ratelimit_mw import ManualClock
from tests.support import apps
from tests.support.patience import eventually
from tests.support.processes import dismiss
from tests.support.servers import BINARIES, EACH_BINARY, Binary, Server

# The suite tries the same examples each time, so that a red run speaks of the change it ran on. Not quite: hypothesis
# takes constants from the modules that are imported, so other code, or a part of the suite alone, has other examples.
# `pytest --hypothesis-profile=thorough` looks for new ones, and takes its time. No deadlines: other work may hold the
# machine up.
settings.register_profile("suite", deadline=None, max_examples=100, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=5_000)
settings.load_profile("suite")


class _Pool:
    """Servers that run for the session, one for each version, started when first asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._servers: dict[Binary, Server] = {}

    def get(self, binary: Binary) -> Server:
        server = self._servers.get(binary)
        if server is None or not server.alive:
            server = self._servers[binary] = self._stack.enter_context(Server(binary))
        return server

    def close(self) -> None:
        self._stack.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="on one server version, and without apps on real servers")


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # thousands of tests and their modules last as long as the session: no collection has to look at them


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("quick"):
        left_out = [item for item in items if not _is_quick(item)]
        items[:] = [item for item in items if _is_quick(item)]
        config.hook.pytest_deselected(items=left_out)


def _is_quick(item: pytest.Item) -> bool:
    """Whether a test runs on the newest server or on none, in a file that starts no app on a real server."""
    assert isinstance(item, pytest.Function)
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    starts_apps = any(getattr(each, "__module__", None) == apps.__name__ for each in vars(item.module).values())
    return not starts_apps and not any(isinstance(each, Binary) and each != _newest() for each in parameters)


def pytest_unconfigure() -> None:
    dismiss()


def pytest_runtest_setup() -> None:
    """Set the levels of loggers, because Litestar, `serve` and the worker change them for the whole process."""
    logging.getLogger().setLevel(logging.WARNING)
    for name in tuple(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "ratelimit_mw":
            logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def _pool() -> Iterator[_Pool]:
    pool = _Pool()
    yield pool
    pool.close()


@pytest.fixture(scope="session", params=EACH_BINARY)
def each_server(request: pytest.FixtureRequest, _pool: _Pool) -> Server:
    return _pool.get(request.param)


@pytest.fixture
def server(each_server: Server) -> Server:
    _await_probes()
    each_server.flush()
    return each_server


@pytest.fixture(scope="module")
def chromium():
    from tests.support.browser import browser  # few tests need playwright

    with browser() as started:
        yield started


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands at 20 seconds into a minute, as windows are counted."""
    return ManualClock(1_700_000_000)


@pytest.fixture(params=["memory", pytest.param("Redis", marks=pytest.mark.soak)])
def storage(request: pytest.FixtureRequest) -> str:
    """The URL of a store of each kind. The contract of stores and the twins show that both decide alike."""
    return "memory://" if request.param == "memory" else request.getfixturevalue("any_server").url


@pytest.fixture
def any_server(_pool: _Pool) -> Server:
    server = _pool.get(_newest())
    _await_probes()
    server.flush()
    return server


@pytest.fixture
def oldest_server(_pool: _Pool) -> Server:
    _newest()
    server = _pool.get(BINARIES[-1])
    _await_probes()
    server.flush()
    return server


@pytest.fixture
def fresh_server() -> Iterator[Server]:
    with Server(_newest()) as server:
        yield server


def _await_probes() -> None:
    """Wait for the probes of earlier tests. Their keys and calls would count as those of the next test."""
    eventually(lambda: not any(thread.name == "ratelimit_mw probe" for thread in threading.enumerate()))


def _newest() -> Binary:
    if not BINARIES:
        pytest.skip("no Redis or Valkey server on this machine")
    return BINARIES[0]
