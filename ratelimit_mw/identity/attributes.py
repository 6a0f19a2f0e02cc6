"""A request's attributes by name: who sent it, and what for."""

import logging
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from ratelimit_mw.identity import sources
from ratelimit_mw.identity.address import ClientAddress, canonical
from ratelimit_mw.identity.decoding import cleaned, host_name
from ratelimit_mw.identity.request import FrameworkReader, MappingRequest, Reading, Request
from ratelimit_mw.settings import ClientSettings

_CACHED = 256  # characters; the cache must not grow with the length of what clients send


def digester(secret: str, domain: str) -> Callable[[str], str]:
    """A function from a text to 20 characters of [A-Za-z0-9_-], the same in every process that has the secret.

    Without a secret, the domain is the key. The texts are then unreadable, but a reader who knows the domain can test
    guesses.
    """
    material = b"secret:" + secret.encode() if secret else b"domain:" + domain.encode()
    keyed = blake2b(digest_size=15, key=blake2b(material, digest_size=32).digest(), person=b"ratelimit_mw")

    def digest(text: str) -> str:
        state = keyed.copy()
        state.update(text.encode("utf-8", "surrogatepass"))
        return urlsafe_b64encode(state.digest()).decode("ascii")

    cached = lru_cache(maxsize=2048)(digest)
    return lambda text: cached(text) if len(text) <= _CACHED else digest(text)


logger = logging.getLogger("ratelimit_mw")

Reader = Callable[[Request], str | None]
Fetch = Callable[[Any], Awaitable[str | None]]

_BUILT_IN = ("ip", "user", "tier", "method", "path", "host")
_PREFIXES = ("header", "cookie", "query", "path")
_RAW = ("header:", "cookie:", "query:")


def canonical_name(name: str) -> str:
    """The one spelling of an attribute's name: short for the address, lower case for a header."""
    name = name.strip()
    if name == "remote_address":
        return "ip"
    kind, colon, rest = name.partition(":")
    return f"header:{rest.strip().lower()}" if colon and kind == "header" else name


class Attributes:
    """The attributes that a rules file can speak of, each with the way to read it.

    Made from checked settings; a source that can't be compiled or imported raises ValueError. Each
    attribute is read at most once a request. A value that is empty is absent. `logged` remembers what was logged.
    """

    def __init__(self, client: ClientSettings, logged: set[str] | None = None) -> None:
        self._client = client
        self._sources = _compiled(client)
        self._readers: dict[str, Reader] = {}
        self._framework_readers: dict[str, FrameworkReader] = {}
        self._logged: set[str] = set() if logged is None else logged
        self._spelled = lru_cache(maxsize=1024)(self._known_name)
        self.client_address = ClientAddress(client, self._logged)
        """Reads the attribute `ip`."""
        self.digest = digester(client.secret, client.domain)
        """The keyed hash of what must not be read in a counter's key: 20 characters of [A-Za-z0-9_-]."""
        self.identifiers: dict[str, Callable[..., str | None]] = {}
        """Those that `identifier` has compiled, by the text of `by`."""
        self.awaited: tuple[tuple[str, Fetch], ...] = ()
        """The async functions behind the attributes asked for so far; `resolve` awaits them."""
        self.address: Reader = self.client_address.read
        """The client's whole address, not cut to its network: for messages, and for what matches networks."""

    def from_proxy(self, request: Request) -> bool:
        """True where the request comes from a proxy that is trusted to say what happened before."""
        return self.client_address.trusts(canonical(request.peer), 0)

    def known(self, name: str) -> bool:
        """True where `reader` knows the name."""
        name = canonical_name(name)
        kind, _, rest = name.partition(":")
        return name in _BUILT_IN or name in self._sources or (kind in _PREFIXES and bool(rest))

    def names(self) -> tuple[str, ...]:
        """The names that can be listed, for messages: those with a colon stand for any name behind it."""
        custom = (name for name in self._sources if name not in _BUILT_IN)
        return ("remote_address", *_BUILT_IN, *(f"{prefix}:N" for prefix in _PREFIXES), *custom)

    def reader(self, name: str) -> Reader:
        """The function that reads an attribute of a request, or ValueError for an unknown name.

        "path:N" is a path parameter, which only a matching rule knows; its reader sees what `check()` was given.
        """
        name = canonical_name(name)
        if name not in self._readers:
            self._readers[name] = self._made(name)
        return self._readers[name]

    def source(self, text: str) -> Reader:
        """The function that reads a source which has no name, as "python:package.module:function".

        Raises ValueError for what is none.
        """
        name = f" {text}"  # no attribute's name starts with a space
        if name not in self._readers:
            source = sources.compiled(text)
            if source.fetch is not None:
                self.awaited += ((name, source.fetch),)
            self._readers[name] = self._of_source(name, source)
        return self._readers[name]

    def reread(self, request: Request) -> tuple[Reading, ...]:
        """The ways in which frameworks read a request that is `doubtful`; empty where all agree."""
        return request.reread(self._framework_readers) if self._framework_readers else ()

    def reads(self, name: str) -> bool:
        """Return True if a rule uses the attribute of that name."""
        return name in self._readers

    @property
    def headers(self) -> frozenset[str] | None:
        """The headers that what was asked for is read from, in lower case, beside the method, the path and the peer.

        None where something is, or may be, read from anything else.
        """
        found = {self.client_address.header} if self.client_address.header else set()
        for name in self._readers:
            headers = self._headers_of(name)
            if headers is None:
                return None
            found.update(headers)
        return frozenset(found)

    def request_from(self, attributes: Mapping[str, object]) -> MappingRequest:
        """A request of attributes given by hand, under any spelling of their names; unknown names are ignored."""
        values: dict[str, str | None] = {"ip": None, "method": None, "path": None, "host": None}
        raw: dict[str, str] = {}
        for name, value in attributes.items():
            canonical = self._spelled(name)
            # An enum that is a str counts as the text that it equals.
            text = "" if value is None else str.__str__(value) if isinstance(value, str) else str(value)
            if text and canonical is not None:
                (raw if canonical.startswith(_RAW) else values)[canonical] = text
        method, path, host = values["method"] or "", values["path"] or "", values["host"]
        values |= self.client_address.spelled(values["ip"])
        if method:
            method = method.upper()
            values["method"] = _counted_method(method)
        if path:
            values["path"] = cleaned(path)
        if host:
            values["host"] = host_name(host)
        return MappingRequest(values, raw, method=method, path=path)

    def network(self, text: str) -> str | None:
        """The address in `text` as the attribute `ip` has it: in its one spelling, cut to its network if it is IPv6."""
        return self.client_address.spelled(text)["ip"]

    async def resolve(self, request: Request) -> None:
        """Await the `awaited` functions for a request, so that the readers find their values."""
        if request.context is None:
            return
        for name, fetch in self.awaited:
            if name not in request.values:
                request.values[name] = await fetch(request.context)

    def warn_without_secret(self) -> None:
        """Log, once, that the hashes are keyed by the domain alone. Called if an attribute is secret."""
        if not self._client.secret and "secret" not in self._logged:
            self._logged.add("secret")
            logger.warning(
                "client.secret is empty: users, tokens and cookies enter counters' keys hashed with the domain %r "
                "alone, and who can read the store can check guesses; set client.secret, the same in every process",
                self._client.domain,
            )

    def _made(self, name: str) -> Reader:
        if name == "ip":
            return self.client_address.network
        if name == "host":
            self._framework_readers[name] = lambda request, framework: request.host_as(framework)
        if name in _DIRECT:
            return _remembered(name, _DIRECT[name])
        if name in self._sources:
            source = self._sources[name]
            if source.fetch is not None:
                self.awaited += ((name, source.fetch),)
            return self._of_source(name, source)
        if not self.known(name):
            raise ValueError(f"{name!r} is no attribute; there are {', '.join(self.names())}")
        if name.startswith(_RAW):
            return self._of_source(name, sources.compiled(name))
        if name == "user":  # without a source: the user that the framework knows
            return _remembered(name, lambda request: getattr(request, "user", None))
        return lambda request: request.values.get(name)  # a path parameter

    def _of_source(self, name: str, source: sources.AttributeSource) -> Reader:
        if source.read_as is not None:
            self._framework_readers[name] = source.read_as
        return _remembered(name, source.read)

    def _headers_of(self, name: str) -> tuple[str, ...] | None:
        if name in ("ip", "method", "path") or name.startswith("path:"):
            return ()
        if name == "host":
            return (name,)
        source = sources.compiled(name) if name.startswith(_RAW) else self._sources.get(name)
        return None if source is None or source.header is None else (source.header,)

    def _known_name(self, name: str) -> str | None:
        return canonical_name(name) if self.known(name) else None


def _remembered(name: str, read: Reader) -> Reader:
    def reader(request: Request) -> str | None:
        values = request.values
        if name in values:
            return values[name]
        value = values[name] = read(request)
        return value

    return reader


def _compiled(client: ClientSettings) -> dict[str, sources.AttributeSource]:
    named = {canonical_name(name): text for name, text in client.attributes.items()}
    for name in named:
        if name in _BUILT_IN or name.startswith(tuple(f"{prefix}:" for prefix in _PREFIXES)):
            raise ValueError(f"attributes can't define {name!r}, which every request has; choose another name")
    own = {"user": client.user, "tier": client.tier}
    return {name: sources.compiled(text) for name, text in {**own, **named}.items() if text}


def _counted_method(method: str) -> str | None:
    return "GET" if method == "HEAD" else method or None


def _method(request: Request) -> str | None:
    return _counted_method(request.method)


def _path(request: Request) -> str | None:
    return cleaned(request.readings[0] if request.readings else request.path)


def _host(request: Request) -> str | None:
    return host_name(request.host() or "")


_DIRECT: dict[str, Reader] = {"method": _method, "path": _path, "host": _host}
