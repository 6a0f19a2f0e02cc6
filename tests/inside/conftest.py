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
def served(serve, app, redis, workers=2, **options):
    """A client of the app behind a server, on a Redis."""
    env = {"REDIS_URL": redis.url}
    with serve(app, workers=workers, env=env, **options) as running, httpx.Client(base_url=running.url) as client:
        yield client


@pytest.fixture(scope="module")
def redis(_pool):
    from tests.conftest import _newest

    return _pool.get(_newest())


@pytest.fixture(scope="module")
def by_gunicorn(redis):
    return lambda app, **options: served(gunicorn, app, redis, **options)


@pytest.fixture(scope="module")
def by_uvicorn(redis):
    return lambda app, **options: served(uvicorn, app, redis, **options)
