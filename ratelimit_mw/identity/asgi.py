"""A request as ASGI describes it."""

from collections.abc import MutableMapping
from typing import Any

from ratelimit_mw.identity.decoding import cookies_named, parameters_named


class AsgiRequest:
    """The request of an http or websocket scope.

    Where a client sends a cookie or a parameter twice, the last one counts, as it does for Starlette,
    FastAPI, Litestar and Django: read otherwise, every bogus twin would be a new identity.
    """

    __slots__ = ("context", "method", "path", "values")

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        self.context = scope
        self.values: dict[str, str | None] = {}
        self.method: str = scope.get("method", "GET").upper()  # a websocket scope has none
        path: str = scope.get("path") or "/"
        root = scope.get("root_path")
        # Mounts set root_path and leave the path whole; some servers send it without the prefix.
        if root and path.startswith(root) and path[len(root) : len(root) + 1] in {"", "/"}:
            path = path[len(root) :]
        self.path = path or "/"

    def part(self) -> None:
        """Go on with a copy of the scope: one that holds what holds it is freed by the garbage collector alone."""
        self.context = scope = dict(self.context)
        scope.pop("ratelimit", None)

    @property
    def peer(self) -> str | None:
        """The client's end of the connection; None on a unix socket."""
        client = self.context.get("client")
        return client[0] if client else None

    def header_lines(self, name: str) -> list[str]:
        """Every line of a header, in order, whatever the case in which the server passed its name."""
        wanted, length = name.encode("latin-1", "replace"), len(name)
        return [
            value.decode("latin-1")
            for key, value in self.context.get("headers") or ()
            if len(key) == length and key.lower() == wanted
        ]

    def header(self, name: str) -> str | None:
        """The first line of a header."""
        lines = self.header_lines(name)
        return lines[0] if lines else None

    def cookie(self, name: str) -> str | None:
        """The last cookie of that name. HTTP/2 may split the header into several lines."""
        values = cookies_named(name, "; ".join(self.header_lines("cookie")))
        return values[-1] if values else None

    def query(self, name: str) -> str | None:
        """The last query parameter of that name."""
        values = parameters_named(name, (self.context.get("query_string") or b"").decode("latin-1"))
        return values[-1] if values else None
