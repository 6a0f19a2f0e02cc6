import pytest

from tests.stores.contract import Awaited, Contract
from tests.stores.test_contract import opened


class TestCluster(Contract):
    @pytest.fixture
    def make(self, cluster):
        return lambda **options: opened(cluster.url, **options)


@pytest.mark.soak
class TestClusterAwaited(Awaited, TestCluster):
    """The same, from event loops."""
