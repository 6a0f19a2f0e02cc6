from contextlib import contextmanager
from uuid import uuid4

import httpx
import pytest

from tests.support.apps import gunicorn, uvicorn


@pytest.fixture
def me():
    """The headers of a client that nobody has seen before."""
    return {"X-Client": uuid4().hex}


@contextmanager
def served(serve, app, redis):
    """A client of the app behind a server with two workers, on a Redis."""
    with serve(app, workers=2, env={"REDIS_URL": redis.url}) as running, httpx.Client(base_url=running.url) as client:
        yield client


@pytest.fixture(scope="module")
def redis(_pool):
    from tests.conftest import _newest

    return _pool.get(_newest())


@pytest.fixture(scope="module")
def by_gunicorn(redis):
    return lambda app: served(gunicorn, app, redis)


@pytest.fixture(scope="module")
def by_uvicorn(redis):
    return lambda app: served(uvicorn, app, redis)
