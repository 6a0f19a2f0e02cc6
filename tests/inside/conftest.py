from uuid import uuid4

import pytest


@pytest.fixture
def me():
    """The headers of a client that nobody has seen before."""
    return {"X-Client": uuid4().hex}


@pytest.fixture(scope="module")
def redis(_pool):
    from tests.conftest import _newest

    return _pool.get(_newest())
