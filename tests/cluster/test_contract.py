import pytest

from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import open_store
from tests.stores.contract import Awaited, Contract


class TestCluster(Contract):
    @pytest.fixture
    def make(self, cluster):
        return lambda *, clock=None, timeout=10: open_store(StorageSettings(url=cluster.url, timeout=timeout), clock)


@pytest.mark.soak
class TestClusterAwaited(Awaited, TestCluster):
    """The same, from event loops."""
