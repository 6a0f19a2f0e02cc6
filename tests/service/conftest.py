"""Fixtures for tests of the HTTP app within their own process.

`server`        the server that the tests of a module share. It hides the `server` of all tests, which is a Redis
`client`        a client of the service `made`, which the module provides as a fixture
"""

import pytest

from tests.service.http_service import one_server


@pytest.fixture(scope="module")
def server():
    with one_server() as found:
        yield found


@pytest.fixture
def client(server, made):
    return server.use(made=made)
