"""Requests of ASGI and WSGI, as rules read them. Both implement `Request`."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import lru_cache, partial
from typing import Any

from ratelimit_mw.identity import decoding
from ratelimit_mw.identity.decoding import Framework, host_is_plain, parameters_named, plain_cookie, utf8
from ratelimit_mw.identity.path_forms import PLAIN, Forms, Routing, decodings, forms_of, routing_of
from ratelimit_mw.identity.request import Alternative, FrameworkReader, distinct_alternatives

# Lower case, and "-" for "_".
_FOLD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_", b"abcdefghijklmnopqrstuvwxyz-")


@lru_cache(maxsize=1024)  # names come from the rules, not from requests
def _header_name(name: str) -> tuple[bytes, bytes]:
    """Return a lower-case header name as bytes, and the same with `-` for `_`."""
    wanted = name.encode("latin-1", "replace")
    return wanted, wanted.replace(b"_", b"-")


class AsgiRequest:
    """A request made from an ASGI scope of type http or websocket.

    A value that frameworks read differently is read as Starlette reads it, and sets `ambiguous`. See `Request`.
    """

    __slots__ = ("alternatives", "ambiguous", "context", "forms", "method", "path", "values")

    frameworks: Sequence[Framework] = decoding.ASGI
    """The frameworks that the app may use. `cookie`, `query` and `header` read as the first one does."""

    def __init__(self, scope: MutableMapping[str, Any], routing: Routing = PLAIN) -> None:
        self.context = scope
        self.values: dict[str, str | None] = {}
        self.ambiguous = False
        self.alternatives: tuple[Alternative, ...] = ()
        self.method: str = scope.get("method", "GET").upper()  # a websocket scope has none
        self.path: str = scope.get("path") or "/"
        self.forms: Forms | None = None
        root = scope.get("root_path")
        if root or routing.root or self.path[0] != "/" or not self.path.isascii():
            prefixes = dict.fromkeys(filter(None, (root, routing.root)))
            self.forms = forms_of(decodings(self.path), prefixes, cuts=routing.cuts)
            if self.forms is not None:
                self.path = self.forms.routed[-1]

    def detach(self) -> None:
        """Replace the scope with a copy that does not refer back to this request.

        Without the reference cycle the request is freed at once, not by the garbage collector.
        """
        self.context = scope = dict(self.context)
        scope.pop("ratelimit", None)

    @property
    def peer(self) -> str | None:
        """The address of the connection's other end, or None on a unix socket."""
        client = self.context.get("client")
        return client[0] if client else None

    def header_lines(self, name: str) -> list[str]:
        """Return every line of a header, in order. The server may pass its name in any case."""
        wanted, folded = _header_name(name)
        length = len(name)
        lines: list[str] = []
        for key, value in self.context.get("headers") or ():
            if len(key) == length:
                if key == wanted or key.lower() == wanted:
                    lines.append(value.decode("latin-1"))
                elif key.translate(_FOLD) == folded:  # some frameworks read `X_User` as `X-User`
                    self.ambiguous = True
        return lines

    def header(self, name: str) -> str | None:
        """Return the first line of a header."""
        lines = self.header_lines(name)
        if len(lines) > 1:
            self.ambiguous = True
        return lines[0] if lines else None

    def host(self) -> str | None:
        """Return the Host header."""
        host = self.header("host")
        if host is None or not host_is_plain(host):
            self.ambiguous = True
        return host

    def cookie(self, name: str) -> str | None:
        """Return a cookie. HTTP/2 may split the Cookie header into several lines."""
        lines = self.header_lines("cookie")
        if not lines:
            return None
        plain = plain_cookie(name, lines[0]) if len(lines) == 1 else None
        if plain is not None:
            return plain[0]
        self.ambiguous = True
        return self.frameworks[0].read_cookie(name, lines)

    def query(self, name: str) -> str | None:
        """Return a query parameter."""
        query = self._query()
        if not query:
            return None
        values = parameters_named(name, query)
        if len(values) > 1 or not query.isascii() or ";" in query:
            self.ambiguous = True
            return self.frameworks[0].read_query(name, query)
        return values[0] if values else None

    def read_alternatives(self, readers: Mapping[str, FrameworkReader]) -> tuple[Alternative, ...]:
        """Return the alternatives of the request. See `Request`."""
        return distinct_alternatives(self, readers, self.frameworks)

    def cookie_as(self, framework: Framework, name: str) -> str | None:
        """Return a cookie as a framework reads it."""
        lines = self.header_lines("cookie")
        return framework.read_cookie(name, lines) if lines else None

    def query_as(self, framework: Framework, name: str) -> str | None:
        """Return a query parameter as a framework reads it."""
        query = self._query()
        return framework.read_query(name, query) if query else None

    def header_as(self, framework: Framework, name: str) -> str | None:
        """Return a header as a framework reads it."""
        lines = self.header_lines(name)
        if framework.underscores:
            folded, length = name.encode("latin-1", "replace").translate(_FOLD), len(name)
            lines = [
                value.decode("latin-1")
                for key, value in self.context.get("headers") or ()
                if len(key) == length and key.translate(_FOLD) == folded
            ]
        return framework.join_lines(lines) if lines else None

    def host_as(self, framework: Framework) -> str | None:
        """Return the host's name as a framework reads it. Without a Host header most use the server's own name."""
        host = self.header_as(framework, "host")
        if host is None and framework is not self.frameworks[0]:
            server = self.context.get("server")
            host = server[0] if server else None
        return framework.host(host) if host else None

    def _query(self) -> str:
        query: bytes = self.context.get("query_string") or b""
        return query.decode("latin-1")


def asgi_requests_of(app: Any) -> Callable[[MutableMapping[str, Any]], AsgiRequest]:
    """Return the function that makes the requests of `app`. Call it once, because it looks at the apps inside."""
    routing = routing_of(app)
    return AsgiRequest if routing == PLAIN else partial(AsgiRequest, routing=routing)


def _without_invalid_bytes(path: str) -> str:
    """Decode a path of PEP 3333 (bytes as latin-1) as UTF-8, without the bytes that are not UTF-8."""
    try:
        return path.encode("latin-1").decode("utf-8", "ignore")
    except UnicodeEncodeError:  # the server decoded it as UTF-8 already
        return path


class WsgiRequest:
    """A request made from a WSGI environ.

    A value that frameworks read differently is read as Flask reads it, and sets `ambiguous`. See `Request`.

    The environ has the same key for the headers `X-Forwarded-For` and `X_Forwarded_For`. If the server or a proxy
    passes header names with underscores on, a client can forge the headers that the proxy sets. gunicorn, nginx and
    Werkzeug's server drop such names by default.
    """

    __slots__ = ("alternatives", "ambiguous", "context", "forms", "method", "path", "values")

    frameworks: Sequence[Framework] = decoding.WSGI
    """The frameworks that the app may use. `cookie` and `query` read as the first one does."""

    def __init__(self, environ: dict[str, Any]) -> None:
        self.context = environ
        self.values: dict[str, str | None] = {}
        self.ambiguous = False
        self.alternatives: tuple[Alternative, ...] = ()
        self.method: str = environ.get("REQUEST_METHOD", "GET").upper()
        path: str = environ.get("PATH_INFO") or "/"
        self.forms: Forms | None = None
        if path[0] != "/" or not path.isascii():
            self.forms = forms_of(dict.fromkeys((_without_invalid_bytes(path), utf8(path))))
            path = self.forms.routed[-1] if self.forms is not None else utf8(path)
        self.path = path

    def detach(self) -> None:
        """Replace the environ with a copy that does not refer back to this request. See `AsgiRequest.detach`.

        The copy also lacks what the app has added and what refers to the environ, such as the request of Flask, which
        would keep it alive. Such a request takes itself out of the environ, but not out of a copy.
        """
        environ = self.context
        self.context = kept = dict(environ)
        for name in reversed(environ):
            if name == "ratelimit.decision":  # the server has added the rest
                break
            if getattr(environ[name], "environ", None) is environ:
                del kept[name]
        kept.pop("ratelimit.decision", None)

    @property
    def peer(self) -> str | None:
        """REMOTE_ADDR, or None if it is absent or empty, as on a unix socket."""
        return self.context.get("REMOTE_ADDR") or None

    def header_lines(self, name: str) -> list[str]:
        """Return the header as one line. A WSGI server has already joined its lines."""
        value = self.header(name)
        return [] if value is None else [value]

    def header(self, name: str) -> str | None:
        """Return the header. The server has joined its lines with commas."""
        key = name.upper().replace("-", "_")
        value: str | None = self.context.get(key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}")
        return value

    def host(self) -> str | None:
        """Return the Host header."""
        host = self.header("host")
        if host is None or not host_is_plain(host):
            self.ambiguous = len(self.frameworks) > 1 or self.ambiguous
        return host

    def cookie(self, name: str) -> str | None:
        """Return a cookie."""
        text = self.header("cookie")
        if not text:
            return None
        plain = plain_cookie(name, text)
        if plain is not None:
            return plain[0]
        self.ambiguous = len(self.frameworks) > 1 or self.ambiguous
        return self.frameworks[0].read_cookie(name, (text,))

    def query(self, name: str) -> str | None:
        """Return a query parameter."""
        query: str = self.context.get("QUERY_STRING") or ""
        if not query:
            return None
        values = parameters_named(name, query)
        if len(values) > 1 or not query.isascii() or ";" in query:
            self.ambiguous = len(self.frameworks) > 1 or self.ambiguous
            return self.frameworks[0].read_query(name, query)
        return values[0] if values else None

    def read_alternatives(self, readers: Mapping[str, FrameworkReader]) -> tuple[Alternative, ...]:
        """Return the alternatives of the request. See `Request`."""
        return distinct_alternatives(self, readers, self.frameworks)

    def cookie_as(self, framework: Framework, name: str) -> str | None:
        """Return a cookie as a framework reads it."""
        text = self.header("cookie")
        return framework.read_cookie(name, (text,)) if text else None

    def query_as(self, framework: Framework, name: str) -> str | None:
        """Return a query parameter as a framework reads it."""
        query = self.context.get("QUERY_STRING")
        return framework.read_query(name, query) if query else None

    def header_as(self, framework: Framework, name: str) -> str | None:  # noqa: ARG002 - the server has joined the lines
        """Return a header. Every framework reads it alike."""
        return self.header(name)

    def host_as(self, framework: Framework) -> str | None:
        """Return the host's name as a framework reads it. Without a Host header most use the server's own name."""
        host = self.header("host")
        if host is None and framework is not self.frameworks[0]:
            host = self.context.get("SERVER_NAME")
        return framework.host(host) if host else None


class DjangoRequest(WsgiRequest):
    """A request to a Django app. It is read as Django reads it, so it is never ambiguous."""

    __slots__ = ()

    frameworks = (decoding.WSGI_DJANGO,)


_DROPPING = ("gunicorn/", "Werkzeug/", "waitress", "gevent/", "Apache/")
"""The beginnings of the names of the servers that drop header names with underscores."""


def drops_underscores(environ: Mapping[str, Any]) -> bool:
    """Return whether the server of this environ is known to drop header names with underscores.

    All others may write a client's `X_Forwarded_For` where they write `X-Forwarded-For`. Django's `runserver` has the
    name of wsgiref's server, which keeps them; only the class of its input is its own.
    """
    name = environ.get("SERVER_SOFTWARE") or ""
    return name.startswith(_DROPPING) or type(environ.get("wsgi.input")).__module__.startswith("django.core.")
