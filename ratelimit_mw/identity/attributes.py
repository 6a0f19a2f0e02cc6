"""Read the attributes of a request by name, as `ip`, `user` or `header:X-Plan`."""

import re
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from ratelimit_mw.errors import nearest, quoted
from ratelimit_mw.identity import sources
from ratelimit_mw.identity.address import ClientAddress, canonical
from ratelimit_mw.identity.credentials import is_session, reduced
from ratelimit_mw.identity.fields import Values, host_name
from ratelimit_mw.identity.path_forms import cleaned, is_clean
from ratelimit_mw.identity.request import Arguments, EntriesRequest, MappingRequest, Request
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.settings import ClientSettings

_MAX_CACHED_LENGTH = 256  # characters; of longer texts few are cached, so that clients cannot fill the memory
_LONG_CACHED = 4  # longer texts: those of one request, which several rules and readings ask for


def digester(secret: str, domain: str) -> Callable[[str], str]:
    """Return a function that hashes a text to 20 characters of [A-Za-z0-9_-].

    The hash is keyed BLAKE2b. It is the same in every process that has the same secret. Without a secret, the domain
    is the key. The texts are then still unreadable, but someone who knows the domain can test guesses.
    """
    material = b"secret:" + secret.encode() if secret else b"domain:" + domain.encode()
    keyed = blake2b(digest_size=15, key=blake2b(material, digest_size=32).digest(), person=b"ratelimit_mw")

    def digest(text: str) -> str:
        state = keyed.copy()
        state.update(text.encode("utf-8", "surrogatepass"))
        return urlsafe_b64encode(state.digest()).decode("ascii")

    return digest


def _cached(digest: Callable[[str], str]) -> Callable[[str], str]:
    cached, long = lru_cache(maxsize=2048)(digest), lru_cache(maxsize=_LONG_CACHED)(digest)
    return lambda text: cached(text) if len(text) <= _MAX_CACHED_LENGTH else long(text)


Reader = Callable[[Request], str | None]
"""Reads one attribute of a request. The result is None if the attribute is absent."""
Fetch = Callable[[Any], Awaitable[str | None]]

FIRST_REQUESTS = 100
"""The number of requests without a user, or without a counter of a rule, after which this is logged."""

_BUILT_IN = ("ip", "user", "tier", "method", "path", "host")
_PREFIXES = {
    "header": sources.HEADER_NAME,
    "cookie": re.compile(r"[!#-+\--:<>-~]+"),  # see `Cookie`
    "query": re.compile(".+", re.DOTALL),
    "path": re.compile(".+", re.DOTALL),
}
"""The beginnings of names of attributes, with the form of what follows."""
_RAW_PREFIXES = ("header:", "cookie:", "query:")


_SESSION = (
    "the attribute %s is a signed session cookie, which changes while its user stays: each new cookie has counters of "
    "its own. Count by the user in it: scope:session.user, or a python: function that reads the session (logged once)"
)


def canonical_name(name: str) -> str:
    """Return the canonical spelling of an attribute's name: `ip` for the address, lower case for a header."""
    name = name.strip()
    if name == "remote_address":
        return "ip"
    kind, colon, rest = name.partition(":")
    return f"header:{rest.strip().lower()}" if colon and kind == "header" else name


class Absence:
    """Examines the first requests for something that all of them may lack, and warns once if they do.

    Attributes:
        left: The number of requests that are still examined.
    """

    __slots__ = ("_attributes", "_warn", "left")

    def __init__(self, attributes: "Attributes", warn: Callable[[], object]) -> None:
        self._attributes = attributes
        self._warn = warn
        self.left = FIRST_REQUESTS

    def examine(self, request: Request, value: str | None) -> None:
        """Note what a request has, while requests are `left`. One that has it ends the examination."""
        if value is not None:
            self.left = 0
        elif request.context is not None:
            self._attributes.absences += 1
            self.left -= 1
            if not self.left:
                self._warn()


class Attributes:
    """The attributes that a rules file can name, with a reader for each.

    Each attribute is read at most once per request. An empty value counts as absent.

    Args:
        client: the checked settings of the section `client`.
        once: logs the warnings. Pass one to several objects, and each warning is logged once for all of them.

    Raises:
        ValueError: a source cannot be compiled or imported.
    """

    def __init__(self, client: ClientSettings, once: Once | None = None) -> None:
        self._client = client
        self._sources = _compiled(client)
        self._readers: dict[str, Reader] = {}
        self._once = once or Once()
        self.used: Collection[str] = self._readers.keys()
        """The names of the attributes that a rule uses."""
        self.custom = frozenset(name for name in self._sources if name not in _BUILT_IN)
        """The names that the rules file defines under `attributes`."""
        self.absences = 0
        """How many requests were counted as lacking what rules count by."""
        self._accepted: frozenset[str] = frozenset()
        self.accepts_all = False
        """Whether `request_from` ignores unknown names, because the rules are still to be read from their source."""
        self._known_names = lru_cache(maxsize=1024)(self._known_name)
        self.client_address = ClientAddress(client, self._once)
        """Reads the attribute `ip`."""
        self._digested = digester(client.secret, client.domain)
        self.digest = _cached(self._digested)
        """Hashes values that must not be readable in a counter's key. See `digester`."""
        self.digest_of = lru_cache(maxsize=1024)(self._digest_of)
        """Returns the function that hashes the values of an attribute: one hash for all spellings of a credential."""
        self.identifiers: dict[str, Callable[..., str | None]] = {}
        """The functions that `identifier` has compiled, by the text of `by`."""
        self.identifiers_of: dict[tuple[str, ...], tuple[Callable[..., str | None], ...]] = {}
        """The same for the whole lists of entries, see `identifiers`."""
        self.awaited: tuple[tuple[str, Fetch], ...] = ()
        """The async functions of the attributes that were asked for so far. `resolve` awaits them."""
        self.address: Reader = self.client_address.read
        """Reads the client's whole address, which is not cut to its network. Messages and network matches need it."""

    def from_proxy(self, request: Request) -> bool:
        """Return True if the peer is a trusted proxy, whose headers are believed."""
        return self.client_address.trusts(canonical(request.peer), 0)

    def known(self, name: str) -> bool:
        """Return True if `reader` accepts the name."""
        name = canonical_name(name)
        kind, _, rest = name.partition(":")
        return (
            name in _BUILT_IN
            or name in self._sources
            or (kind in _PREFIXES and bool(_PREFIXES[kind].fullmatch(rest.strip())))
        )

    def names(self) -> tuple[str, ...]:
        """Return the known names, for messages. `header:N` stands for `header:` with any name."""
        return ("remote_address", *_BUILT_IN, *(f"{prefix}:N" for prefix in _PREFIXES), *sorted(self.custom))

    def accept(self, names: Iterable[str]) -> None:
        """Let `request_from` ignore these names, which the rules of another domain use."""
        self._accepted = frozenset(names)

    def reader(self, name: str) -> Reader:
        """Return the function that reads the attribute of this name. Raises ValueError for an unknown name.

        "path:N" is a path parameter. Only the rule that matched knows its value, so this reader returns only a value
        that was passed to `check()`.
        """
        name = canonical_name(name)
        if name not in self._readers:
            self._readers[name] = self._make_reader(name)
        return self._readers[name]

    def source(self, text: str) -> Reader:
        """Return the function that reads a source without a name, as "python:package.module:function".

        Raises `Invalid` if the text is not a source.
        """
        name = canonical_name(text)
        if name not in self._readers:
            self._readers[name] = self._source_reader(name, sources.compiled(text))
        return self._readers[name]

    def await_those_of(self, other: "Attributes") -> None:
        """Let `resolve` also await the async functions of another domain."""
        for name, _ in other.awaited:
            (self.reader if self.known(name) else self.source)(name)

    @property
    def headers(self) -> frozenset[str] | None:
        """The names of all headers that the attributes in use are read from, in lower case.

        None if an attribute may be read from anything except headers, the method, the path and the peer.
        """
        found = {self.client_address.header} if self.client_address.header else set()
        for name in self._readers:
            headers = self._headers_of(name)
            if headers is None:
                return None
            found.update(headers)
        return frozenset(found)

    @property
    def reads_path(self) -> bool:
        """Whether an attribute in use may be read from the path."""
        return self.headers is None or any(name.partition(":")[0] in {"path", "route"} for name in self._readers)

    def request_of(self, given: Arguments | Request) -> Request:
        """Return a request with what `check()` was given. If `given` is a request, it is returned unchanged.

        Raises ValueError for an unknown attribute, and TypeError for another type.
        """
        if type(given) is dict or isinstance(given, Mapping):  # the second takes much longer
            return self.request_from(given, ignore_unknown=self.accepts_all)
        if isinstance(given, Sequence):
            return EntriesRequest(given)
        if not hasattr(given, "several"):  # it is not a request
            raise TypeError(f"attributes must be a mapping or a list of (key, value) pairs, not {given!r:.80}")
        return given

    def request_from(self, attributes: Mapping[str, object], *, ignore_unknown: bool = False) -> MappingRequest:
        """Return a request that is made of attributes, as `check()` takes them.

        Raises ValueError for an unknown name, unless `ignore_unknown` is set.
        """
        values: dict[str, str | None] = {"ip": None, "method": None, "path": None, "host": None}
        raw: dict[str, str] = {}
        known_name = self._known_names
        for name, value in attributes.items():
            canonical, is_raw = known_name(name)
            if canonical is None and not ignore_unknown and name.strip() not in self._accepted:
                raise ValueError(f"{quoted(name)} is not an attribute ({nearest(name.strip(), self.names())})")
            if type(value) is str:
                text = value
            else:  # an enum that is a str counts as the text that it equals
                text = "" if value is None else str.__str__(value) if isinstance(value, str) else str(value)
            if text and canonical is not None:
                (raw if is_raw else values)[canonical] = text
        method, path, host = values["method"] or "", values["path"] or "", values["host"]
        self.client_address.put(values["ip"], values)
        if method:
            method = method.upper()
            values["method"] = _counted_method(method)
        if path:
            values["path"] = path if is_clean(path) else cleaned(path)
        if host:
            values["host"] = host_name(host)
        return MappingRequest(values, raw, method=method, path=path)

    def network(self, text: str) -> str | None:
        """Return the value of the attribute `ip` for an address: canonical, and cut to its network if it is IPv6.

        A prefix length in `text` is ignored. The result is None if `text` is not an address.
        """
        values: dict[str, str | None] = {}
        self.client_address.put(text, values)
        return values["ip"]

    async def resolve(self, request: Request) -> None:
        """Await the functions in `awaited` for a request, so that the readers find their values."""
        if request.context is None:
            return
        for name, fetch in self.awaited:
            if name not in request.values:
                request.values[name] = await fetch(request.context)

    def warn_without_secret(self) -> None:
        """Log once that the hashes are keyed with the domain alone. Call it for each secret attribute."""
        if not self._client.secret:
            self._once(
                logger.warning,
                "client.secret is empty: the hashes of users, tokens and cookies in counters' keys are keyed with the "
                "domain %r alone, so anyone who can read the store can test guesses; set client.secret to the same "
                "value in every process",
                self._client.domain,
                extra={"ratelimit_topic": "secret"},
            )

    def warn_without_counter(self, by: tuple[str, ...]) -> None:
        """Log that the rules with this `by` had no counter for any of the first requests that they matched."""
        self._once(
            logger.warning,
            "the rules by %s had nothing to count by in the first %d requests that they matched, so they did not "
            "apply: count by %s|ip to count such requests by address (logged once)",
            ", ".join(by),
            FIRST_REQUESTS,
            by[0],
            about=by,
        )

    def _make_reader(self, name: str) -> Reader:
        if name == "ip":
            return self.client_address.network
        if name == "host":
            return _first_of(name, lambda request: request.hosts())
        if name in _DIRECT:
            return _cached_reader(name, _DIRECT[name])
        if name in self._sources:
            return self._source_reader(name, self._sources[name])
        if not self.known(name):
            raise ValueError(f"{name!r} is not an attribute; known attributes: {', '.join(self.names())}")
        if name.startswith(_RAW_PREFIXES):
            return self._source_reader(name, sources.compiled(name))
        if name == "user":  # without a source, the user is the one that the framework authenticated
            return self._user_reader(lambda request: getattr(request, "user", None))
        return lambda request: request.values.get(name)  # a path parameter

    def _source_reader(self, name: str, source: sources.AttributeSource) -> Reader:
        if source.fetch is not None:
            self.awaited += ((name, source.fetch),)
        read = _first_of(name, source.read)
        return self._user_reader(read) if name == "user" else read

    def _user_reader(self, read: Reader) -> Reader:
        """Return the reader of the user. It warns once if none of the first requests has a user."""
        absence = Absence(self, self._warn_of_absent_users)

        def reader(request: Request) -> str | None:
            values = request.values
            if "user" in values:
                return values["user"]
            value = values["user"] = read(request)
            if absence.left:
                absence.examine(request, value)
            return value

        return reader

    def _warn_of_absent_users(self) -> None:
        self._once(
            logger.warning,
            "a rule reads the user, but none of the first %d such requests had one (client.user is %s): by: user "
            "leaves them out, and user|ip counts them by address (logged once)",
            FIRST_REQUESTS,
            self._client.user or "not set",
        )

    def _digest_of(self, name: str) -> Callable[[str], str]:
        raw = name.startswith(_RAW_PREFIXES) and self.known(name)
        source = sources.compiled(name) if raw else self._sources.get(name)
        if source is None or not source.from_client:
            return self.digest

        def digest(value: str) -> str:
            if "." not in value and ":" not in value:  # it has no signature
                return self._digested(value)
            spelling = reduced(value)
            if is_session(spelling):
                self._once(logger.warning, _SESSION, name)
            return self._digested(spelling)

        return _cached(digest)

    def _headers_of(self, name: str) -> tuple[str, ...] | None:
        if name in ("ip", "method", "path") or name.startswith("path:"):
            return ()
        if name in {"host", "route"}:  # some routes are those of one host, or of WebSockets
            return ("host",) if name == "host" else ("host", "connection", "upgrade")
        source = sources.compiled(name) if name.startswith(_RAW_PREFIXES) else self._sources.get(name)
        return None if source is None or source.header is None else (source.header,)

    def _known_name(self, name: str) -> tuple[str | None, bool]:
        """Return the canonical name, or None if it is unknown, and whether sources read the value."""
        if not isinstance(name, str):
            raise TypeError(f"the name of an attribute must be a string, not {name!r:.80}")
        canonical = canonical_name(name) if name == "route" or self.known(name) else None
        return canonical, canonical is not None and canonical.startswith(_RAW_PREFIXES)


def _first_of(name: str, read: Callable[[Request], Values]) -> Reader:
    """Return a reader of the first of all values that `read` finds. It notes several in `Request.several`.

    It keeps the first in `Request.values`.
    """

    def reader(request: Request) -> str | None:
        values = request.values
        if name in values:
            return values[name]
        found = read(request)
        if len(found) > 1:
            request.several[name] = found
        value = values[name] = found[0] if found else None
        return value

    return reader


def _cached_reader(name: str, read: Reader) -> Reader:
    """Return a reader that keeps the value in `Request.values`."""

    def reader(request: Request) -> str | None:
        values = request.values
        if name in values:
            return values[name]
        value = values[name] = read(request)
        return value

    return reader


def _compiled(client: ClientSettings) -> dict[str, sources.AttributeSource]:
    named = {canonical_name(name): text for name, text in client.attributes.items()}
    own = {"user": client.user, "tier": client.tier}
    return {name: sources.compiled(text) for name, text in {**own, **named}.items() if text}


def _counted_method(method: str) -> str | None:
    return "GET" if method == "HEAD" else method or None


def _method(request: Request) -> str | None:
    return _counted_method(request.method)


def _path(request: Request) -> str | None:
    return cleaned(request.path if request.forms is None else request.forms.every[0])


def _app_route(request: Request) -> str | None:
    return request.app_route()


_DIRECT: dict[str, Reader] = {"method": _method, "path": _path, "route": _app_route}

read_app_route = _cached_reader("route", _app_route)
"""Reads the template of the app's own route, or the route that `check()` was given."""
