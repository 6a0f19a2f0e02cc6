"""What the rest of the package knows of a request, whichever way it came in."""

from typing import Any, Protocol


class Request(Protocol):
    """One request, read lazily. Nothing here raises, whatever the client sent.

    `method` is upper-case, and "GET" for a WebSocket; `path` is as the app's router sees it: decoded
    once, less the mount's prefix, at least "/". Both are "" where `check()` was not given them.
    `readings` are all that routers may make of the path, where they differ: the one that names the counters first,
    `path` among them, () where it is the only one.
    `values` remembers the attributes already read, by canonical name ("ip", "user", "header:x-plan" …).
    `context` is the ASGI scope or the WSGI environ, and None for attributes given to `check()`.
    """

    method: str
    path: str
    readings: tuple[str, ...]
    values: dict[str, str | None]
    context: Any

    @property
    def peer(self) -> str | None:
        """The address of the other end of the connection, as the server wrote it; None where it has none."""
        ...

    def header_lines(self, name: str) -> list[str]:
        """Every line of a header, in order. `name` is lower-case."""
        ...

    def header(self, name: str) -> str | None:
        """The first line of a header, which is what frameworks read; None where it is absent."""
        ...

    def cookie(self, name: str) -> str | None:
        """A cookie, decoded. Sent twice, it is the one that the interface's frameworks read."""
        ...

    def query(self, name: str) -> str | None:
        """A query parameter, decoded. Sent twice, it is the one that the interface's frameworks read."""
        ...
