"""Processes that use a shared store, for its tests."""

import json
import subprocess
import sys

from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import open_store
from tests.stores.shared_kills import ASKS
from tests.support.apps import LONG, ROOT
from tests.support.processes import spawn

PRELUDE = """
import fcntl, os, signal, sys, threading, time
from tests.stores.shared import one, opened
url, path = sys.argv[1], sys.argv[1].removeprefix("lmdb://")
"""


def opened(url, *, timeout=20, clock=None, most=1_000_000):
    return open_store(StorageSettings(url=url, timeout=timeout, max_counters=most), clock)


def one(key="d:r:{x}", limit=1_000_000, name="fixed_window", period=LONG, cost=1):
    return [Ask(key, Quota(name, limit, period), cost)]


def taken(store, asks):
    """How much is used of each ask."""
    looked = store.decide([ask._replace(cost=0) for ask in asks], commit=False)
    return [ask.quota.limit - outcome.remaining for ask, outcome in zip(asks, looked.outcomes, strict=True)]


def start(url, code, *before):
    """A process that runs `code`, where `url`, `path`, `one` and `opened` are known. It is in a group of its own."""
    return spawn([*before, sys.executable, "-c", PRELUDE + code, url], cwd=ROOT, stdout=subprocess.PIPE)


def killed_at_any_moment(url, kills):
    """Let workers be killed, and check that what they decided is counted exactly."""
    args = [sys.executable, "-m", "tests.stores.shared_kills", url, str(kills)]
    printed = subprocess.run(args, cwd=ROOT, check=True, capture_output=True, text=True, timeout=50 + kills).stdout
    result = json.loads(printed)
    store = opened(url, timeout=20)
    assert store.decide(one()).outcomes[0].allowed  # whoever was killed has freed the lock
    counted = taken(store, ASKS)
    store.close()
    assert len(set(counted)) == 1
    assert result["died"] == 0
    assert result["acknowledged"] <= counted[0] <= result["attempted"]
    assert result["acknowledged"] > 0
