"""A request as rules read it: its interface, and one made from a mapping of attributes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from ratelimit_mw.identity.decoding import Framework

Reading = Mapping[str, str | None]
"""One way to read a request: the attributes on which the ways differ, by name."""


class Request(Protocol):
    """One request, read lazily. Nothing here raises, whatever the client sent.

    `method` is upper-case, and "GET" for a WebSocket; `path` is as the app's router sees it: decoded
    once, less the mount's prefix, at least "/". Both are "" where `check()` was not given them.
    `readings` are all that routers may make of the path, where they differ: the one that names the counters first,
    `path` among them, () where it is the only one.
    `values` remembers the attributes already read, by canonical name ("ip", "user", "header:x-plan" …).
    `context` is the ASGI scope or the WSGI environ, and None for attributes given to `check()`.

    `doubtful` is set by reading something that frameworks read differently. `rows` are then the ways in which the rules
    have read the request; see `reread`.
    """

    method: str
    path: str
    readings: tuple[str, ...]
    values: dict[str, str | None]
    context: Any
    doubtful: bool
    rows: tuple[Reading, ...]

    @property
    def peer(self) -> str | None:
        """The address of the other end of the connection, as the server wrote it; None where it has none."""
        ...

    def header_lines(self, name: str) -> list[str]:
        """Every line of a header, in order. `name` is lower-case."""
        ...

    def header(self, name: str) -> str | None:
        """The first line of a header, which is what most frameworks read; None where it is absent."""
        ...

    def host(self) -> str | None:
        """The Host header; None where it is absent."""
        ...

    def cookie(self, name: str) -> str | None:
        """A cookie, decoded. Sent twice, it is the one that the interface's frameworks read."""
        ...

    def query(self, name: str) -> str | None:
        """A query parameter, decoded. Sent twice, it is the one that the interface's frameworks read."""
        ...

    def reread(self, names: "Mapping[str, FrameworkReader]") -> tuple[Reading, ...]:
        """The ways in which frameworks read the attributes of these names. Each holds the names that are in doubt.

        Empty where all of them agree.
        """
        ...


class Rereadable(Protocol):
    """A request that can be read as a certain framework reads it."""

    def cookie_as(self, framework: Framework, name: str) -> str | None:
        """A cookie."""
        ...

    def query_as(self, framework: Framework, name: str) -> str | None:
        """A query parameter."""
        ...

    def header_as(self, framework: Framework, name: str) -> str | None:
        """A header."""
        ...

    def host_as(self, framework: Framework) -> str | None:
        """The host's name."""
        ...


FrameworkReader = Callable[[Rereadable, Framework], str | None]
"""Reads an attribute as a certain framework does."""


def distinct_readings(
    request: Rereadable, names: Mapping[str, FrameworkReader], ways: Sequence[Framework]
) -> tuple[Reading, ...]:
    """The distinct ways in which these frameworks read attributes, each with those alone on which they differ."""
    columns = {name: [again(request, way) for way in ways] for name, again in names.items()}
    doubtful = {name: column for name, column in columns.items() if len(set(column)) > 1}
    rows = dict.fromkeys(zip(*doubtful.values(), strict=True))
    return tuple(dict(zip(doubtful, row, strict=True)) for row in rows)


class MappingRequest:
    """Attributes given by hand. What is not given is absent: there is no header, cookie or scope to ask.

    `values` holds the attributes under their canonical names, `raw` the headers, cookies and query
    parameters among them, which are read like those of any request: `tier: header:X-Plan` finds a given
    "header:X-Plan".
    """

    __slots__ = ("context", "doubtful", "method", "path", "raw", "readings", "rows", "values")

    def __init__(
        self,
        values: dict[str, str | None],
        raw: Mapping[str, str] = MappingProxyType({}),
        *,
        method: str = "",
        path: str = "",
    ) -> None:
        self.context = None
        self.doubtful = False
        self.rows: tuple[Reading, ...] = ()
        self.values = values
        self.raw = raw
        self.method = method
        self.path = path
        self.readings: tuple[str, ...] = ()

    @property
    def peer(self) -> None:
        """None: an address that was given stands in `values`."""
        return

    def header_lines(self, name: str) -> list[str]:
        """The header as one line, if it was given."""
        value = self.header(name)
        return [] if value is None else [value]

    def header(self, name: str) -> str | None:
        """A header, if it was given as "header:N"."""
        return self.raw.get(f"header:{name}")

    def cookie(self, name: str) -> str | None:
        """A cookie, if it was given as "cookie:N"."""
        return self.raw.get(f"cookie:{name}")

    def query(self, name: str) -> str | None:
        """A query parameter, if it was given as "query:N"."""
        return self.raw.get(f"query:{name}")

    def host(self) -> str | None:
        """A host, if it was given as "header:host"."""
        return self.header("host")

    def reread(self, names: Mapping[str, FrameworkReader]) -> tuple[Reading, ...]:  # noqa: ARG002 - no name is in doubt
        """None: what was given by hand is read in one way."""
        return ()


Entry = tuple[str, str]
"""A key and its value."""


class EntriesRequest(MappingRequest):
    """One list of entries, in order, and no attributes. Raises ValueError for what is no (key, value) pair."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[Sequence[str | None]]) -> None:
        super().__init__({})
        self.entries: tuple[Entry, ...] = tuple([_entry(entry) for entry in entries])


def _entry(entry: Sequence[str | None]) -> Entry:
    if isinstance(entry, str) or len(entry) != 2:
        raise ValueError(f"a list of entries is made of (key, value) pairs, and this is no pair: {entry!r:.80}")
    key, value = entry
    return str(key), "" if value is None else str(value)
