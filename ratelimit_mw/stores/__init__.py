"""Stores of counters: the table of their URL schemes, and the functions that open and wrap them.

This package is internal: its names may change in any release.
"""

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import quote

from ratelimit_mw.clock import Clock
from ratelimit_mw.model import Quota
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.bans import BanBegun, Bans
from ratelimit_mw.stores.base import Store
from ratelimit_mw.stores.deny_cache import DenyCache

if TYPE_CHECKING:
    from ratelimit_mw.stores.lease_store import Leases

__all__ = ["Store"]

SCHEMES = {
    "memory": "ratelimit_mw.stores.memory",
    "redis": "ratelimit_mw.stores.redis.store",
    "rediss": "ratelimit_mw.stores.redis.store",
    "unix": "ratelimit_mw.stores.redis.store",
    "redis+sentinel": "ratelimit_mw.stores.redis.store",
    "redis+cluster": "ratelimit_mw.stores.redis.cluster",
    "lmdb": "ratelimit_mw.stores.shared",
}
"""The schemes of storage URLs. Each value is a module whose `open_store(settings, clock)` opens the store."""


_NAMED_BY_DOMAIN = frozenset({"lmdb"})


def with_domain(url: str, domain: str) -> str:
    """The URL of a storage, with the domain of the rules as its name if it must have one and has none."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in _NAMED_BY_DOMAIN and rest[:1] in ("", "?"):
        return f"{scheme}://{quote(domain, safe='')}{rest}"
    return url


def open_store(settings: StorageSettings, clock: Clock | None = None) -> Store:
    """The store that `settings.url` names. It connects on first use.

    Raises:
        ValueError: the URL does not name a store.
    """
    scheme, separator, _ = settings.url.partition("://")
    if scheme not in SCHEMES:
        begins = f"begins with {scheme!r}" if separator else "has no '://'"  # the rest may have a password
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise ValueError(f"storage url {begins}: it must begin with one of {known}")
    module = import_module(SCHEMES[scheme])  # imported on demand: redis-py is slow to import
    store: Store = module.open_store(settings, clock)
    return DenyCache(store, clock=clock) if store.remote else store


def with_leases_and_shards(
    store: Store, quotas: Sequence[Quota], clock: Clock | None = None, *, interval: float = 1.0
) -> "tuple[Store, Leases | None]":
    """Wrap `store` with leases and shards if one of `quotas` needs them. Bans and the deny cache stay outermost.

    Returns:
        The store to ask, and the leases that must be settled at the end (None if there are none).
    """
    if all(quota.consistency == "strict" and quota.shards == 1 for quota in quotas):
        return store, None
    if isinstance(store, Bans | DenyCache):
        store.beneath, leases = with_leases_and_shards(store.beneath, quotas, clock, interval=interval)
        return store, leases
    if not store.remote:  # no network calls to save, and no nodes to spread counters over
        return store, None
    from ratelimit_mw.stores.lease_store import Leases  # imported on demand: most rules are strict
    from ratelimit_mw.stores.shards import Shards

    leases = Leases(Shards(store), clock, interval=interval)
    return leases, leases


def innermost(store: Store) -> Store:
    """The store beneath the bans and the deny cache."""
    while isinstance(store, Bans | DenyCache):
        store = store.beneath
    return store


def with_bans(store: Store, quotas: Iterable[Quota], begun: BanBegun) -> Store:
    """Wrap `store` with bans if one of `quotas` needs them and it has none yet. `begun` is called for each new ban."""
    return Bans(store, begun) if not isinstance(store, Bans) and any(quota.ban for quota in quotas) else store
