"""A request as WSGI describes it."""

from collections.abc import Mapping, Sequence
from typing import Any

from ratelimit_mw.identity import frameworks
from ratelimit_mw.identity.decoding import parameters_named, plain_cookie, utf8
from ratelimit_mw.identity.frameworks import Framework, host_is_plain
from ratelimit_mw.identity.paths import framework_of, with_empty_values, without_broken_bytes
from ratelimit_mw.identity.request import Again, Reading, read_again


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

    def reread(self, names: Mapping[str, Again]) -> tuple[Reading, ...]:
        """See `Request`."""
        return read_again(self, names, self.ways)

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
