"""A request under ASGI and under WSGI, as rules read it."""

from collections.abc import Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any

from ratelimit_mw.identity import decoding as frameworks
from ratelimit_mw.identity.decoding import (
    Framework,
    forced_root,
    framework_of,
    host_is_plain,
    is_utf8,
    parameters_named,
    plain_cookie,
    readings,
    utf8,
    with_dropped,
    with_empty_values,
    without_broken_bytes,
)
from ratelimit_mw.identity.request import FrameworkReader, Reading, distinct_readings

_FOLD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_", b"abcdefghijklmnopqrstuvwxyz-")


@lru_cache(maxsize=1024)  # names come from the rules, not from requests
def _header_name(name: str) -> tuple[bytes, bytes]:
    """A header's lower-case name as ASGI servers send it, and the same with `-` for `_`."""
    wanted = name.encode("latin-1", "replace")
    return wanted, wanted.replace(b"_", b"-")


class AsgiRequest:
    """The request of an http or websocket scope.

    Where frameworks read it differently, it is read as Starlette does, and `doubtful` is set: see `Request`.
    """

    __slots__ = ("context", "doubtful", "method", "path", "readings", "rows", "values")

    framework = "starlette"
    """Whose way of cutting off `root_path` is followed. See `asgi_requests_of`."""
    ways: Sequence[Framework] = frameworks.ASGI
    """The ways of reading that the app may have. The first one is that of `cookie`, `query` and `header`."""

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        self.context = scope
        self.values: dict[str, str | None] = {}
        self.doubtful = False
        self.rows: tuple[Reading, ...] = ()
        self.method: str = scope.get("method", "GET").upper()  # a websocket scope has none
        self.path: str = scope.get("path") or "/"
        self.readings: tuple[str, ...] = ()
        root = scope.get("root_path")
        if root or self.path[0] != "/" or not self.path.isascii():
            self._read(self.path, root or "")

    def _read(self, path: str, root: str) -> None:
        """Read a path on which frameworks may differ, or which a `root_path` stands before."""
        if "route_handler" in self.context:  # Litestar has routed the request, and has cut the path before that
            root = ""
        found = readings(path, root, self.framework)
        self.path = found[0]
        if not self.path.isascii() and not is_utf8(self.context.get("raw_path")):
            found = with_dropped(found)
        self.readings = found if len(found) > 1 else ()

    def detach(self) -> None:
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
        wanted, folded = _header_name(name)
        length = len(name)
        lines: list[str] = []
        for key, value in self.context.get("headers") or ():
            if len(key) == length:
                if key == wanted or key.lower() == wanted:
                    lines.append(value.decode("latin-1"))
                elif key.translate(_FOLD) == folded:  # some frameworks take `X_User` for `X-User`
                    self.doubtful = True
        return lines

    def header(self, name: str) -> str | None:
        """The first line of a header."""
        lines = self.header_lines(name)
        if len(lines) > 1:
            self.doubtful = True
        return lines[0] if lines else None

    def host(self) -> str | None:
        """The Host header."""
        host = self.header("host")
        if host is None or not host_is_plain(host):
            self.doubtful = True
        return host

    def cookie(self, name: str) -> str | None:
        """A cookie. HTTP/2 may split the header into several lines."""
        lines = self.header_lines("cookie")
        if not lines:
            return None
        plain = plain_cookie(name, lines[0]) if len(lines) == 1 else None
        if plain is not None:
            return plain[0]
        self.doubtful = True
        return self.ways[0].read_cookie(name, lines)

    def query(self, name: str) -> str | None:
        """A query parameter."""
        query = self._query()
        if not query:
            return None
        values = parameters_named(name, query)
        if len(values) > 1 or not query.isascii() or ";" in query:
            self.doubtful = True
            return self.ways[0].read_query(name, query)
        return values[0] if values else None

    def reread(self, names: Mapping[str, FrameworkReader]) -> tuple[Reading, ...]:
        """See `Request`."""
        return distinct_readings(self, names, self.ways)

    def cookie_as(self, framework: Framework, name: str) -> str | None:
        """A cookie, as one framework reads it."""
        lines = self.header_lines("cookie")
        return framework.read_cookie(name, lines) if lines else None

    def query_as(self, framework: Framework, name: str) -> str | None:
        """A query parameter, as one framework reads it."""
        query = self._query()
        return framework.read_query(name, query) if query else None

    def header_as(self, framework: Framework, name: str) -> str | None:
        """A header, as one framework reads it."""
        lines = self.header_lines(name)
        if framework.underscores:
            folded, length = name.encode("latin-1", "replace").translate(_FOLD), len(name)
            lines = [
                value.decode("latin-1")
                for key, value in self.context.get("headers") or ()
                if len(key) == length and key.translate(_FOLD) == folded
            ]
        return framework.header(lines) if lines else None

    def host_as(self, framework: Framework) -> str | None:
        """The host's name, as one framework reads it; the server's own where the request has no Host header."""
        host = self.header_as(framework, "host")
        if host is None and framework is not self.ways[0]:
            server = self.context.get("server")
            host = server[0] if server else None
        return framework.host(host) if host else None

    def _query(self) -> str:
        query: bytes = self.context.get("query_string") or b""
        return query.decode("latin-1")


class FalconAsgiRequest(AsgiRequest):
    """The request of a Falcon app, which cuts off no `root_path` and takes an empty segment for a value."""

    __slots__ = ()

    framework = "falcon"

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        super().__init__(scope)
        if self.path[-1] == "/" or "//" in self.path:
            self.readings = with_empty_values(self.readings or (self.path,))


class DjangoAsgiRequest(AsgiRequest):
    """The request of a Django app. `script_name` is its FORCE_SCRIPT_NAME, which takes the place of `root_path`."""

    __slots__ = ()

    framework = "django"
    script_name = ""

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        super().__init__(scope)
        if self.script_name and self.script_name != scope.get("root_path"):
            self._read(scope.get("path") or "/", self.script_name)


def asgi_requests_of(app: Any) -> type[AsgiRequest]:
    """The class that reads the requests of `app`: where frameworks differ, as the framework inside it does.

    Call it once, when the middleware is made: it looks into the app, and into Django's settings.
    """
    name = framework_of(app)
    if name == "starlette":
        return AsgiRequest
    if name == "falcon":
        return FalconAsgiRequest
    if script_name := forced_root(name):
        own = {"__slots__": (), "framework": name, "script_name": script_name}
        return type("ForcedRequest", (DjangoAsgiRequest,), own)
    return type("FrameworkRequest", (AsgiRequest,), {"__slots__": (), "framework": name})


class WsgiRequest:
    """The request of a WSGI environ.

    The environ spells the header `X-Forwarded-For` and the header `X_Forwarded_For` alike, so a server or
    a proxy that passes underscores on lets a client forge what its proxy sets; gunicorn, nginx and
    Werkzeug's server drop such names by default. Where frameworks read it differently, it is read as Flask does, and
    `doubtful` is set: see `Request`.
    """

    __slots__ = ("context", "doubtful", "method", "path", "readings", "rows", "values")

    ways: Sequence[Framework] = frameworks.WSGI
    """The ways of reading that the app may have. The first one is that of `cookie` and `query`."""

    def __init__(self, environ: dict[str, Any]) -> None:
        self.context = environ
        self.values: dict[str, str | None] = {}
        self.doubtful = False
        self.rows: tuple[Reading, ...] = ()
        self.method: str = environ.get("REQUEST_METHOD", "GET").upper()
        path: str = environ.get("PATH_INFO") or "/"
        self.readings: tuple[str, ...] = ()
        if not path.isascii():
            given, path = path, utf8(path)
            dropped = without_broken_bytes(given)
            if dropped != path:
                self.readings = (dropped, path)
        self.path = path

    @property
    def peer(self) -> str | None:
        """REMOTE_ADDR; None where the server leaves it out or empty, as on a unix socket."""
        return self.context.get("REMOTE_ADDR") or None

    def header_lines(self, name: str) -> list[str]:
        """The header as one line: a WSGI server has already joined the several that it may have been."""
        value = self.header(name)
        return [] if value is None else [value]

    def header(self, name: str) -> str | None:
        """The header, its lines joined by commas."""
        key = name.upper().replace("-", "_")
        value: str | None = self.context.get(key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}")
        return value

    def host(self) -> str | None:
        """The Host header."""
        host = self.header("host")
        if host is None or not host_is_plain(host):
            self.doubtful = len(self.ways) > 1 or self.doubtful
        return host

    def cookie(self, name: str) -> str | None:
        """A cookie."""
        text = self.header("cookie")
        if not text:
            return None
        plain = plain_cookie(name, text)
        if plain is not None:
            return plain[0]
        self.doubtful = len(self.ways) > 1 or self.doubtful
        return self.ways[0].read_cookie(name, (text,))

    def query(self, name: str) -> str | None:
        """A query parameter."""
        query: str = self.context.get("QUERY_STRING") or ""
        if not query:
            return None
        values = parameters_named(name, query)
        if len(values) > 1 or not query.isascii() or ";" in query:
            self.doubtful = len(self.ways) > 1 or self.doubtful
            return self.ways[0].read_query(name, query)
        return values[0] if values else None

    def reread(self, names: Mapping[str, FrameworkReader]) -> tuple[Reading, ...]:
        """See `Request`."""
        return distinct_readings(self, names, self.ways)

    def cookie_as(self, framework: Framework, name: str) -> str | None:
        """A cookie, as one framework reads it."""
        text = self.header("cookie")
        return framework.read_cookie(name, (text,)) if text else None

    def query_as(self, framework: Framework, name: str) -> str | None:
        """A query parameter, as one framework reads it."""
        query = self.context.get("QUERY_STRING")
        return framework.read_query(name, query) if query else None

    def header_as(self, framework: Framework, name: str) -> str | None:  # noqa: ARG002 - the server has joined the lines
        """A header, as every framework reads it."""
        return self.header(name)

    def host_as(self, framework: Framework) -> str | None:
        """The host's name, as one framework reads it; the server's own where the request has no Host header."""
        host = self.header("host")
        if host is None and framework is not self.ways[0]:
            host = self.context.get("SERVER_NAME")
        return framework.host(host) if host else None


class DjangoRequest(WsgiRequest):
    """The request of a Django app: read as Django does, and not otherwise."""

    __slots__ = ()

    ways = (frameworks.WSGI_DJANGO,)


class FalconRequest(WsgiRequest):
    """The request of a Falcon app, which takes an empty segment of a path for a value."""

    __slots__ = ()

    def __init__(self, environ: dict[str, Any]) -> None:
        super().__init__(environ)
        if self.path[-1] == "/" or "//" in self.path:
            self.readings = with_empty_values(self.readings or (self.path,))


def wsgi_requests_of(app: Any) -> type[WsgiRequest]:
    """The class that reads the requests of `app`: where frameworks differ, as the framework inside it does."""
    name = framework_of(app)
    return {"django": DjangoRequest, "falcon": FalconRequest}.get(name, WsgiRequest)
