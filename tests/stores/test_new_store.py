"""A new store, added as docs/add-a-store.md says: its file and its line are taken from that page."""

import asyncio
import importlib
import re
import sys

import pytest

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter, stores
from ratelimit_mw.settings import StorageSettings
from tests.stores.contract import Contract
from tests.support.apps import ROOT

PAGE = (ROOT / "docs" / "add-a-store.md").read_text("utf-8")
MODULE, LINE = re.findall(r"^```(?:python|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

FILE = {"domain": "shop", "storage": {"url": "metered://"}, "rules": [{"name": "api", "limit": "2 per minute"}]}
IP = {"ip": "192.0.2.1"}


@pytest.fixture
def added(tmp_path, monkeypatch):
    """The store of the page, in the folder of the stores and in the table, and removed afterwards."""
    (tmp_path / "metered.py").write_text(MODULE, "utf-8")
    monkeypatch.setattr(stores, "__path__", [*stores.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    ((scheme, kind),) = eval(f"{{{LINE}}}", {"StoreKind": stores.StoreKind}).items()
    monkeypatch.setitem(stores.STORES, scheme, kind)
    yield
    sys.modules.pop(kind.opens.partition(":")[0], None)


class TestContract(Contract):
    @pytest.fixture
    def make(self, added):
        return lambda *, clock=None, timeout=10: stores.open_store(
            StorageSettings(url="metered://", timeout=timeout), clock
        )


def test_a_limiter_decides_by_the_store(added):
    with RateLimiter(FILE, clock=ManualClock()) as limiter:
        assert [limiter.check(IP).allowed for _ in range(3)] == [True, True, False]
        assert not asyncio.run(limiter.acheck(IP)).allowed
        assert limiter.engine.storage.store.decisions == 4


def test_leases_and_bans_go_with_the_store(added):
    rule = {"name": "api", "limit": "2 per minute", "consistency": "lease"}
    ban = {"after": "1 denial", "for": "10 minutes"}
    for keys in ({}, {"ban": ban, "consistency": "strict"}):
        with RateLimiter({**FILE, "rules": [{**rule, **keys}]}, clock=ManualClock()) as limiter:
            assert [limiter.check(IP).allowed for _ in range(4)] == [True, True, False, False]
            assert limiter.check(IP).banned == bool(keys)


def test_a_scheme_that_is_not_in_the_table_is_unknown():
    with pytest.raises(ConfigurationError, match="unknown storage scheme 'metered'"):
        RateLimiter(FILE)
