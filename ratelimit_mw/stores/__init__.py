"""Stores of counters: the table of their kinds, and the functions that open and wrap them.

This package is internal: its names may change in any release.
"""

import re
from collections.abc import Iterable, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import Invalid, nearest, quoted
from ratelimit_mw.model import Quota
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.base import MemoryRecords, Records, Store
from ratelimit_mw.stores.denials import BanBegun, Bans, DenyCache

if TYPE_CHECKING:
    from ratelimit_mw.stores.lease_store import Leases

__all__ = ["Store"]


class StoreKind(NamedTuple):
    """One row of the table of stores.

    Attributes:
        opens: The function `(settings, clock)` that opens the store, as "package.module:name".
        records: The function `(url)` that opens the overrides and the switch, in the same form. "" if each process
            has its own, in its memory.
        server: Whether the store is a server. A server can also keep the rules database and deferred requests.
        named_by_domain: Whether a URL without a name gets the domain of the rules as its name.
        decides: Whether it decides by rules of its own. The file of the app then has none.
    """

    opens: str
    records: str = ""
    server: bool = False
    named_by_domain: bool = False
    decides: bool = False


_SERVICE = StoreKind("ratelimit_mw.stores.service:open_store", decides=True)
_SERVER = StoreKind(
    "ratelimit_mw.stores.redis.store:open_store", "ratelimit_mw.stores.redis.records:RedisRecords", True
)

STORES = {
    "memory": StoreKind("ratelimit_mw.stores.memory:open_store"),
    "redis": _SERVER,
    "rediss": _SERVER,
    "unix": _SERVER,
    "redis+sentinel": _SERVER,
    "redis+cluster": _SERVER._replace(opens="ratelimit_mw.stores.redis.cluster:open_store"),
    "lmdb": StoreKind(
        "ratelimit_mw.stores.shared:open_store", "ratelimit_mw.stores.shared.records:FileRecords", named_by_domain=True
    ),
    "https": _SERVICE,
    "http": _SERVICE,
}
"""The kinds of stores, by the scheme of their URLs."""


_NUMBERED = frozenset({"redis", "rediss"})
_PARTS = re.compile(r"([^/?#]*)(?:/([^?#]*))?(?:\?([^#]*))?(?:#(.*))?", re.DOTALL)


def check_url(url: str) -> None:
    """Check the scheme of a storage URL, the URL of a service, and the port and the database in the URL of a server.

    Messages show only its scheme and its database, because the rest may contain a password.

    A `/`, `?` or `#` in a password ends it early: its beginning is then read as a port, and its end as a database.
    redis-py uses database 0 for a path that is not the number of a database.

    Raises:
        Invalid: the URL is malformed.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        hint = "for example memory:// or redis://localhost:6379/0"
        variable = "to read a variable of the environment, write ${NAME}"
        raise Invalid("is not a storage URL", variable if url.startswith("$") else hint)
    if scheme not in STORES:
        meant = scheme.replace("rediss+", "redis+")
        hint = f"for TLS write {meant}://…?tls=true" if meant in STORES else nearest(scheme, STORES)
        if scheme in ("grpc", "grpcs"):
            hint = "to ask a service, ask its HTTP port, as in https://:TOKEN@limits:8443"
        raise Invalid(f"unknown storage scheme {quoted(scheme)}", hint)
    if STORES[scheme].decides:
        _check_service(url)
    if not STORES[scheme].server:
        return
    authority, path, query, fragment = _PARTS.fullmatch(rest).groups("")  # type: ignore[union-attr]  # it matches every text
    hosts = authority.rpartition("@")[2]
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts.split(",")]
    in_path = "@" in path and (scheme != "unix" or hosts != "")
    if in_path or "@" in query.partition("=")[0] + fragment or not all(map(_is_port, ports)):
        raise Invalid(
            "its port is not a number from 1 to 65535, or its password has a /, ? or #",
            "write %2F, %3F and %23 in a password",
        )
    path = path.removesuffix("/")
    if scheme in _NUMBERED and path and not (path.isascii() and path.isdigit()):
        message = f"{quoted(path)} is not the number of a database"
        raise Invalid(message, "for example redis://localhost:6379/0; domain: separates apps in one database")


def _check_service(url: str) -> None:
    """Check the URL of a service. What a request carries must not cross a network in plain text."""
    hint = "for example https://:TOKEN@limits:8443, with %2F, %3F and %23 for /, ? and # in the token"
    try:
        parts = urlsplit(url)
        usable = parts.hostname and parts.port != 0 and parts.path in ("", "/") and not parts.fragment
    except ValueError:
        raise Invalid("is not the URL of a service", hint) from None
    if not usable or not _TOKEN.fullmatch(unquote(parts.password or "")):
        raise Invalid("is not the URL of a service", hint)
    if parts.scheme == "http" and not _LOOPBACK.fullmatch(parts.hostname or ""):
        raise Invalid("plain text is only for a service on this machine", "use https:// for one on another machine")


_TOKEN = re.compile(r"[\x21-\x7e]*")
_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")


def _is_port(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65_536)


def kind_of(url: str) -> StoreKind:
    """The kind of the store that a URL names. Raises ValueError if there is none, see also `check_url`."""
    try:
        check_url(url)
    except Invalid as error:
        raise Invalid(f"{error} ({error.hint})") from None
    return STORES[url.partition("://")[0]]


def with_domain(url: str, domain: str) -> str:
    """The URL of a storage, with the domain of the rules as its name if it must have one and has none."""
    scheme, separator, rest = url.partition("://")
    if separator and rest[:1] in ("", "?") and kind_of(url).named_by_domain:
        return f"{scheme}://{quote(domain, safe='')}{rest}"
    return url


def open_store(settings: StorageSettings, clock: Clock | None = None) -> Store:
    """The store that `settings.url` names. It connects on first use.

    Raises:
        ValueError: the URL does not name a store.
    """
    store: Store = resolve_name(kind_of(settings.url).opens)(settings, clock)  # late: redis-py is slow to import
    return DenyCache(store, clock=clock) if store.remote else store


def open_records(url: str) -> Records:
    """Records at a storage URL. They connect on first use. Raises ValueError for a malformed URL."""
    opens = kind_of(url).records
    records: Records = resolve_name(opens)(url) if opens else MemoryRecords()
    return records


def with_leases_and_shards(
    store: Store, quotas: Sequence[Quota], clock: Clock | None = None, *, interval: float = 1.0
) -> "tuple[Store, Leases | None]":
    """Wrap `store` with leases and with shards, if one of `quotas` needs them and it has none yet.

    Bans and the deny cache stay outermost, and leases are above shards.

    Returns:
        The store to ask, and the leases that must be settled at the end (None if `quotas` need none).
    """
    leased = any(quota.consistency != "strict" for quota in quotas)
    sharded = any(quota.shards > 1 for quota in quotas)
    if not (leased or sharded):
        return store, None
    if isinstance(store, Bans | DenyCache):
        store.beneath, leases = with_leases_and_shards(store.beneath, quotas, clock, interval=interval)
        return store, leases
    if not store.remote:  # no network calls to save, and no nodes to spread counters over
        return store, None
    from ratelimit_mw.stores.lease_store import Leases  # imported on demand: most rules are strict
    from ratelimit_mw.stores.shards import Shards

    leases = store if isinstance(store, Leases) else None
    beneath = leases.beneath if leases else store
    if sharded and not isinstance(beneath, Shards):
        beneath = Shards(beneath)
    if leases:
        leases.beneath = beneath
    elif leased:
        leases = Leases(beneath, clock, interval=interval)
    return leases or beneath, leases


def innermost(store: Store) -> Store:
    """The store beneath the bans and the deny cache."""
    while isinstance(store, Bans | DenyCache):
        store = store.beneath
    return store


def with_bans(store: Store, quotas: Iterable[Quota], begun: BanBegun) -> Store:
    """Wrap `store` with bans if one of `quotas` needs them and it has none yet. The deny cache stays outermost.

    `begun` is called for each new ban.
    """
    if isinstance(store, DenyCache):
        store.beneath = with_bans(store.beneath, quotas, begun)
        return store
    return Bans(store, begun) if not isinstance(store, Bans) and any(quota.penalty for quota in quotas) else store
