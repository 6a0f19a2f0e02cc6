"""A request as WSGI describes it."""

from typing import Any

from ratelimit_mw.identity.decoding import cookies_as_flask, cookies_named, parameters_named
from ratelimit_mw.identity.paths import framework_of, with_dropped, with_empty_values


class WsgiRequest:
    """The request of a WSGI environ.

    The environ spells the header `X-Forwarded-For` and the header `X_Forwarded_For` alike, so a server or
    a proxy that passes underscores on lets a client forge what its proxy sets; gunicorn, nginx and
    Werkzeug's server drop such names by default. Where a client sends a cookie or a parameter twice, the first one
    counts, as it does for Flask.
    """

    __slots__ = ("context", "method", "path", "readings", "values")

    _cookies = staticmethod(cookies_as_flask)
    _of_several = 0

    def __init__(self, environ: dict[str, Any]) -> None:
        self.context = environ
        self.values: dict[str, str | None] = {}
        self.method: str = environ.get("REQUEST_METHOD", "GET").upper()
        path: str = environ.get("PATH_INFO") or "/"
        self.readings: tuple[str, ...] = ()
        if not path.isascii():
            path = _utf8(path)
            found = with_dropped((path,))
            if len(found) > 1:
                self.readings = found
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

    def cookie(self, name: str) -> str | None:
        """The first cookie of that name (Django: the last)."""
        values = self._cookies(name, self.context.get("HTTP_COOKIE") or "")
        return values[self._of_several] if values else None

    def query(self, name: str) -> str | None:
        """The first query parameter of that name (Django: the last)."""
        values = parameters_named(name, self.context.get("QUERY_STRING") or "")
        return values[self._of_several] if values else None


class DjangoRequest(WsgiRequest):
    """The request of a Django app, for which the last one counts of what a client sends twice."""

    __slots__ = ()

    _cookies = staticmethod(cookies_named)
    _of_several = -1


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


def _utf8(path: str) -> str:
    """The path that PEP 3333 passes as bytes read as latin-1.

    What is not UTF-8 becomes U+FFFD, as in Werkzeug and Falcon: broken bytes merge, they never buy a counter.
    """
    try:
        return path.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:  # a server that decoded it already
        return path
