import asyncio

import pytest

from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import open_store
from tests.stores.contract import Contract


class TestCluster(Contract):
    @pytest.fixture
    def make(self, cluster):
        return lambda *, clock=None, timeout=2: open_store(StorageSettings(url=cluster.url, timeout=timeout), clock)


class TestClusterAwaited(TestCluster):
    def decide(self, store, asks, *, commit=True):
        return asyncio.run(store.adecide(asks, commit=commit))

    def forget(self, store, keys):
        asyncio.run(store.aforget(keys))

    def refund(self, store, asks, charged_at):
        asyncio.run(store.arefund(asks, charged_at))

    def charge(self, store, asks, instead_of=None):
        return asyncio.run(store.acharge(asks, instead_of=instead_of))
