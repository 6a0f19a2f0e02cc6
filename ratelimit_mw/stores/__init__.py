"""Stores of counters: the table of their kinds, and the functions that open and wrap them.

This package is internal: its names may change in any release.
"""

import re
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import Invalid, nearest, quoted
from ratelimit_mw.model import Quota
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.base import MemoryRecords, Records, Store, Wrapper
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
    """The store that `settings.url` names, without wrappers. It connects on first use.

    Raises:
        ValueError: the URL does not name a store.
    """
    store: Store = resolve_name(kind_of(settings.url).opens)(settings, clock)  # late: redis-py is slow to import
    return store


def open_records(url: str) -> Records:
    """Records at a storage URL. They connect on first use. Raises ValueError for a malformed URL."""
    opens = kind_of(url).records
    records: Records = resolve_name(opens)(url) if opens else MemoryRecords()
    return records


class Stack:
    """A store and the wrappers that rules need: from below shards, leases, bans, and the deny cache.

    Args:
        store: the store.
        clock: the user's clock; None for the system's.
        begun: is called for each ban that begins.
        interval: the seconds between two settlements of leases.
        cached: whether denials by a store that is called over a network are cached.
    """

    def __init__(
        self, store: Store, clock: Clock | None, begun: BanBegun, *, interval: float = 1.0, cached: bool = False
    ) -> None:
        self.store = store
        self._clock = clock
        self._begun = begun
        self._interval = interval
        self._shards: Wrapper | None = None
        self.leases: Leases | None = None
        """What must be settled at the end; None if no rule has needed leases."""
        self._bans: Bans | None = None
        self._cache = DenyCache(store, clock=clock) if cached and store.remote else None

    def wrapped(self, quotas: Sequence[Quota]) -> Store:
        """Return the store with the wrappers that `quotas` need, and those that others have needed."""
        # Without network calls, leases save nothing. Leases and shards are imported late: most rules need none.
        if self.store.remote and not self._shards and any(quota.shards > 1 for quota in quotas):
            from ratelimit_mw.stores.shards import Shards

            self._shards = Shards(self.store)
        if self.store.remote and not self.leases and any(quota.consistency != "strict" for quota in quotas):
            from ratelimit_mw.stores.lease_store import Leases

            self.leases = Leases(self.store, self._clock, interval=self._interval)
        if not self._bans and any(quota.penalty for quota in quotas):
            self._bans = Bans(self.store, self._begun)
        outermost = self.store
        for wrapper in (self._shards, self.leases, self._bans, self._cache):
            if wrapper is not None:
                wrapper.beneath = outermost
                outermost = wrapper
        return outermost
