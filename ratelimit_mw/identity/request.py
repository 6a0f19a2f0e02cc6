"""The interface of a request as rules read it, and the requests that `check()` makes of its arguments."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from ratelimit_mw.identity.decoding import Framework
from ratelimit_mw.identity.path_forms import Forms

T = TypeVar("T")

Alternative = Mapping[str, str | None]
"""One framework's way to read an ambiguous request: the values of the attributes that frameworks read differently."""


class Request(Protocol):
    """One request, which is read lazily. No method raises, whatever the client sent.

    Frameworks read some requests differently, for example one with two cookies of the same name. Reading such a value
    sets `ambiguous`. `read_alternatives` then reads the request as each framework does, and the rules are tried with
    each alternative.
    """

    method: str
    """The method in upper case: "GET" for a WebSocket, "" if `check()` was given none."""
    path: str
    """The path as the app's router sees it: decoded once and without the mount's prefix. "" only in `check()`."""
    forms: Forms | None
    """All forms of the path that rules are matched with. None if `path` is the only one."""
    values: dict[str, str | None]
    """The attributes that were already read, by canonical name ("ip", "user", "header:x-plan")."""
    context: Any
    """The ASGI scope or the WSGI environ. None for attributes given to `check()`."""
    ambiguous: bool
    """True if a value was read that frameworks read differently."""
    alternatives: tuple[Alternative, ...]
    """What the rules got from `read_alternatives` for this request."""

    @property
    def peer(self) -> str | None:
        """The address of the connection's other end, as the server wrote it. None if there is no address."""
        ...

    def header_lines(self, name: str) -> list[str]:
        """Return every line of a header, in order. `name` is lower-case."""
        ...

    def header(self, name: str) -> str | None:
        """Return the first line of a header, which most frameworks read. None if the header is absent."""
        ...

    def host(self) -> str | None:
        """Return the Host header. None if it is absent."""
        ...

    def cookie(self, name: str) -> str | None:
        """Return a decoded cookie. Of several, it is the one that most frameworks of the interface read."""
        ...

    def query(self, name: str) -> str | None:
        """Return a decoded query parameter. Of several, it is the one that most frameworks of the interface read."""
        ...

    def read_alternatives(self, readers: "Mapping[str, FrameworkReader]") -> tuple[Alternative, ...]:
        """Read these attributes as each framework does. Return the distinct results.

        Each result holds only the attributes that frameworks read differently. () if all frameworks agree.
        """
        ...


class FrameworkReadable(Protocol):
    """A request that can be read as a given framework reads it. Absent values are None."""

    def cookie_as(self, framework: Framework, name: str) -> str | None:
        """Return a cookie as the framework reads it."""
        ...

    def query_as(self, framework: Framework, name: str) -> str | None:
        """Return a query parameter as the framework reads it."""
        ...

    def header_as(self, framework: Framework, name: str) -> str | None:
        """Return a header as the framework reads it."""
        ...

    def host_as(self, framework: Framework) -> str | None:
        """Return the host's name as the framework reads it."""
        ...


FrameworkReader = Callable[[FrameworkReadable, Framework], str | None]
"""Reads one attribute as a given framework reads it."""


def distinct_alternatives(
    request: FrameworkReadable, readers: Mapping[str, FrameworkReader], frameworks: Sequence[Framework]
) -> tuple[Alternative, ...]:
    """Read attributes as each of the frameworks does. See `Request.read_alternatives`."""
    columns = {name: [read(request, framework) for framework in frameworks] for name, read in readers.items()}
    ambiguous = {name: column for name, column in columns.items() if len(set(column)) > 1}
    rows = dict.fromkeys(zip(*ambiguous.values(), strict=True))
    return tuple(dict(zip(ambiguous, row, strict=True)) for row in rows)


def alternatives_in_order(
    request: Request, tier: Callable[[Request], str | None] | None
) -> list[tuple[int, Alternative]]:
    """Return (number of absent attributes, alternative) for each alternative, the fewest absent first.

    `tier` reads the tier of a request. If the alternatives have different tiers, the tier counts as absent in all.
    """
    found: Sequence[Alternative] = request.alternatives
    if tier is not None and len({for_alternative(each, request, tier) for each in found}) > 1:
        found = [{**each, "tier": None} for each in found]
    return sorted(((_absent(each), each) for each in found), key=lambda pair: pair[0])


def _absent(alternative: Alternative) -> int:
    return sum(value is None for name, value in alternative.items() if name != "tier")


def for_alternative(alternative: Alternative, request: Request, ask: Callable[[Request], T]) -> T:
    """Call `ask` with one alternative of a request. Attributes that are not ambiguous are read once for all."""
    view = copy.copy(request)
    view.values = {**request.values, **alternative}
    answer = ask(view)
    request.values.update((name, value) for name, value in view.values.items() if name not in alternative)
    return answer


class MappingRequest:
    """A request made of the attributes that are passed to `check()`. All other attributes are absent.

    Args:
        values: the attributes by canonical name.
        raw: the headers, cookies and query parameters among them. Sources read them as they read any request:
            `tier: header:X-Plan` reads the attribute "header:X-Plan".
        method: the method in upper case, or "".
        path: the path, or "".
    """

    __slots__ = ("alternatives", "ambiguous", "context", "forms", "method", "path", "raw", "values")

    def __init__(
        self,
        values: dict[str, str | None],
        raw: Mapping[str, str] = MappingProxyType({}),
        *,
        method: str = "",
        path: str = "",
    ) -> None:
        self.context = None
        self.ambiguous = False
        self.alternatives: tuple[Alternative, ...] = ()
        self.values = values
        self.raw = raw
        self.method = method
        self.path = path
        self.forms: Forms | None = None

    @property
    def peer(self) -> None:
        """None. An address that was given is in `values`."""
        return

    def header_lines(self, name: str) -> list[str]:
        """Return the header as one line, if it was given."""
        value = self.header(name)
        return [] if value is None else [value]

    def header(self, name: str) -> str | None:
        """Return a header, if it was given as "header:N"."""
        return self.raw.get(f"header:{name}")

    def cookie(self, name: str) -> str | None:
        """Return a cookie, if it was given as "cookie:N"."""
        return self.raw.get(f"cookie:{name}")

    def query(self, name: str) -> str | None:
        """Return a query parameter, if it was given as "query:N"."""
        return self.raw.get(f"query:{name}")

    def host(self) -> str | None:
        """Return a host, if it was given as "header:host"."""
        return self.header("host")

    def read_alternatives(self, readers: Mapping[str, FrameworkReader]) -> tuple[Alternative, ...]:  # noqa: ARG002 - never ambiguous
        """Return (). Attributes given to `check()` are never ambiguous."""
        return ()


Entry = tuple[str, str]
"""The key and the value of one entry of a descriptor."""


class EntriesRequest(MappingRequest):
    """A request made of the ordered (key, value) pairs of one Envoy descriptor. It has no other attributes.

    Raises ValueError for an entry that is not a (key, value) pair.
    """

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[Sequence[str | None]]) -> None:
        super().__init__({})
        self.entries: tuple[Entry, ...] = tuple([_entry(entry) for entry in entries])


def _entry(entry: Sequence[str | None]) -> Entry:
    if isinstance(entry, str) or len(entry) != 2:
        raise ValueError(f"entries must be (key, value) pairs, but one is {entry!r:.80}")
    key, value = entry
    return str(key), "" if value is None else str(value)
