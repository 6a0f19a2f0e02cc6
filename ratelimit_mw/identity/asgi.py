"""A request as ASGI describes it."""

from collections.abc import MutableMapping
from typing import Any

from ratelimit_mw.identity.decoding import cookies_named, parameters_named
from ratelimit_mw.identity.paths import forced_root, framework_of, readings, with_dropped, with_empty_values


class AsgiRequest:
    """The request of an http or websocket scope.

    Where a client sends a cookie or a parameter twice, the last one counts, as it does for Starlette,
    FastAPI, Litestar and Django: read otherwise, every bogus twin would be a new identity.
    """

    __slots__ = ("context", "method", "path", "readings", "values")

    framework = "starlette"
    """Whose way of cutting off `root_path` is followed. See `asgi_requests_of`."""
    forced = ""
    """What the framework cuts off in place of `root_path`; "" for no such setting."""

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        self.context = scope
        self.values: dict[str, str | None] = {}
        self.method: str = scope.get("method", "GET").upper()  # a websocket scope has none
        self.path: str = scope.get("path") or "/"
        self.readings: tuple[str, ...] = ()
        root = self.forced or scope.get("root_path")
        if root or self.path[0] != "/" or not self.path.isascii():
            self._read(root)

    def _read(self, root: str | None) -> None:
        """Read a path on which frameworks may differ, or which a `root_path` stands before."""
        if "route_handler" in self.context:  # Litestar has routed the request, and has cut the path before that
            root = ""
        found = readings(self.path, root or "", self.framework)
        self.path = found[0]
        if not self.path.isascii():
            found = with_dropped(found)
        if len(found) > 1:
            self.readings = found

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


class FalconAsgiRequest(AsgiRequest):
    """The request of a Falcon app, which cuts off no `root_path` and takes an empty segment for a value."""

    __slots__ = ()

    framework = "falcon"

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        super().__init__(scope)
        if self.path[-1] == "/" or "//" in self.path:
            self.readings = with_empty_values(self.readings or (self.path,))


def asgi_requests_of(app: Any) -> type[AsgiRequest]:
    """The class that reads the requests of `app`: where frameworks differ, as the framework inside it does.

    Call it once, when the middleware is made: it looks into the app, and into Django's settings.
    """
    name = framework_of(app)
    if name == "starlette":
        return AsgiRequest
    if name == "falcon":
        return FalconAsgiRequest
    return type("FrameworkRequest", (AsgiRequest,), {"__slots__": (), "framework": name, "forced": forced_root(name)})
