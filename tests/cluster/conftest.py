"""Groups of real servers. What is `fresh` is the test's own, to break.

`cluster`    three masters with replicas, without a key
`sentinels`  three Sentinels, a master and its replica
"""

from collections.abc import Iterator

import pytest

from tests.cluster.nodes import Cluster, SentinelGroup
from tests.support.servers import BINARIES


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    if not BINARIES:
        pytest.skip("no Redis or Valkey server on this machine")
    with Cluster(BINARIES[0]) as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: Cluster) -> Cluster:
    _cluster.flush()
    return _cluster


@pytest.fixture
def fresh_cluster() -> Iterator[Cluster]:
    with Cluster(BINARIES[0]) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def sentinels() -> Iterator[SentinelGroup]:
    with SentinelGroup(BINARIES[0]) as group:
        yield group


@pytest.fixture
def fresh_sentinels() -> Iterator[SentinelGroup]:
    with SentinelGroup(BINARIES[0]) as group:
        yield group
