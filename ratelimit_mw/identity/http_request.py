"""Requests of ASGI and WSGI, as rules read them. Both implement `Request`.

The first requests also show mistakes in the setup, such as an untrusted proxy.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from ratelimit_mw.identity.address import canonical
from ratelimit_mw.identity.fields import MOST_LINES, Values, utf8
from ratelimit_mw.identity.path_forms import PLAIN, Forms, Routing, decodings, forms_of, routing_of
from ratelimit_mw.identity.request import Request, routed
from ratelimit_mw.logs import logger

# Lower case; and "-" for "_", too.
_LOWER = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz")
_FOLD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_", b"abcdefghijklmnopqrstuvwxyz-")


_NAME = itemgetter(0)
_SCOPE = itemgetter("path", "root_path", "method", "client")

RequestHead = tuple[Any, ...]
"""The head of a request, on which most plans depend: what makes the request, its path, the prefix of the path, its
method and its peer, as the server gives them, and then the fields that rules read, see `ReadFields`.

Apps may change the path and the prefix in the scope or the environ, so both are kept for a request that is made later.
"""

FIELDS = 5
"""The index in a head where the fields begin that rules read."""


MOST_BYTES = 4096
"""The most memory of the fields of one remembered plan. Most JSON Web Tokens have 600 to 1 500 characters."""

_MOST_HEADERS = 128  # lines; a browser sends about twenty


def _encoded(name: str, spelling: bytes) -> bytes:
    return name.encode("latin-1", "replace").translate(spelling)


class ReadFields:
    """The header fields that rules read, as they stand in a request. All that rules read of its headers is in them.

    Args:
        names: The names of the fields, in lower case.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._folded = frozenset(_encoded(name, _FOLD) for name in self.names)
        self._lengths = frozenset(map(len, self._folded))
        self._keys = [_key(name) for name in sorted(self.names)]
        self._server = "host" in self.names  # without a Host header, the host is the name of the server
        self.routes = "upgrade" in self.names
        """Whether rules may read the app's own routes, of which those of WebSockets depend on this field."""

    def of_scope(self, scope: Mapping[str, Any]) -> Sequence[Any]:
        """Return these fields, then the name and the value of each line of one, by any spelling of its name, in order.

        Return `UNREAD` if the request has too many lines to look at each.
        """
        headers = scope.get("headers") or ()
        if len(headers) > _MOST_HEADERS:
            return UNREAD
        lengths, folded = self._lengths, self._folded
        found: list[Any] = [self]
        for name, value in headers:
            if len(name) in lengths and name.translate(_FOLD) in folded:
                found += name, value
        if self._server:
            server = scope.get("server")
            found += b"", (server and server[0], scope["type"])  # apps may have other routes for WebSockets
        return found

    def of_environ(self, environ: Mapping[str, Any]) -> Sequence[Any]:
        """Return the value of each field, None for one that is absent."""
        found = [*map(environ.get, self._keys)]
        if self._server:
            found.append(environ.get("SERVER_NAME"))
        return found


UNREAD: Sequence[Any] = (ReadFields(()),)
"""In place of the fields of a request whose plan is not remembered. No fields are equal to it."""


class AsgiRequest(Request):
    """A request made from an ASGI scope of type http or websocket.

    `head` is what `asgi_head` has returned for the scope. See `Request`.
    """

    __slots__ = ("_fields", "_names")

    def __init__(
        self, scope: MutableMapping[str, Any], head: RequestHead | None = None, *, routing: Routing = PLAIN
    ) -> None:
        self.context = scope
        self.values: dict[str, str | None] = {}
        self.several: dict[str, Values] = {}
        self._names = 0, b""
        _, path, root, method, self.peer, *self._fields = head or asgi_head(scope)
        self.method = method.upper()
        self.path = path or "/"
        self.forms: Forms | None = None
        if root or routing.root or self.path[0] != "/" or not self.path.isascii():
            prefixes = dict.fromkeys(filter(None, (root, routing.root)))
            self.forms = forms_of(decodings(self.path), prefixes, cuts=routing.cuts)
            if self.forms is not None:
                self.path = self.forms.routed[-1]

    def header_lines(self, name: str) -> list[str]:
        """Return the last `MOST_LINES` lines of a header, in order. The server may pass its name in any case."""
        return self._lines(name, _LOWER)[-MOST_LINES:]

    def field_lines(self, name: str) -> list[str] | None:
        """Return every line behind a name, as `X_User` for `x-user`. See `Request`."""
        lines = self._lines(name, _FOLD)
        if name == "host" and not any(lines):
            server = self.context.get("server")
            return [server[0]] if server and server[0] else []
        return lines if len(lines) <= MOST_LINES else None

    def fields(self, read: ReadFields) -> Sequence[Any]:
        """Return what `ReadFields.of_scope` finds."""
        return read.of_scope(self.context)

    def _lines(self, name: str, spelling: bytes) -> list[str]:
        """Return the lines of a name, in order: all of them, or more than `MOST_LINES` of the last ones.

        `spelling` translates names that differ in their spelling to the same one. The names of all lines are searched
        as one text, because a server accepts thousands of lines.
        """
        sought = _encoded(name, spelling)
        fields = self._fields
        if fields and name in fields[0].names:  # the rules have found all of its lines
            found = zip(fields[1::2], fields[2::2], strict=True)
            return [value.decode("latin-1") for each, value in found if each.translate(spelling) == sought]
        names, needle = self._joined_names().translate(spelling), b"\n%b\n" % sought
        headers = self.context.get("headers") or ()
        lines: list[str] = []
        end, index = len(names), len(headers) + 1
        while (place := names.rfind(needle, 0, end)) >= 0 and len(lines) <= MOST_LINES:
            index -= names.count(b"\n", place, end)
            lines.append(headers[index][1].decode("latin-1"))
            end = place + 1
            index += 1  # the line break at `place` is counted again
        lines.reverse()
        return lines

    def _joined_names(self) -> bytes:
        """Return the names of all header lines, each between two line breaks."""
        headers = self.context.get("headers") or ()
        length, names = self._names
        if length != len(headers):
            names = b"\n%b\n" % b"\n".join(map(_NAME, headers))
            if names.count(b"\n") != len(headers) + 1:  # a server that accepts any character in a name
                names = b"\n%b\n" % b"\n".join([name.replace(b"\n", b" ") for name, _ in headers])
            self._names = len(headers), names
        return names

    @property
    def query_string(self) -> str:
        """The query string, decoded as latin-1."""
        query: bytes = self.context.get("query_string") or b""
        return query.decode("latin-1")


def asgi_head(
    scope: MutableMapping[str, Any], make: Callable[..., AsgiRequest] = AsgiRequest, read: ReadFields | None = None
) -> RequestHead:
    """Return the head of a request, which `make` makes later, with the fields that are `read`."""
    try:
        path, root, method, client = _SCOPE(scope)
    except KeyError:  # a websocket scope has no method
        path, root, method = scope.get("path", ""), scope.get("root_path", ""), scope.get("method", "GET")
        client = scope.get("client")
    head = make, path, root, method, client[0] if client else None  # None on a unix socket
    return head if read is None else (*head, *read.of_scope(scope))


def detached_scope(scope: MutableMapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a scope that does not refer to the handle.

    Without the reference cycle the request is freed at once, not by the garbage collector.
    """
    copied = {**scope}
    copied.pop("ratelimit", None)
    return copied


def asgi_requests_of(app: Any) -> Callable[..., AsgiRequest]:
    """Return the function that makes the requests of `app`. Call it once, because it looks at the apps inside."""
    routing, kind = routing_of(app), routed(AsgiRequest, app)
    return kind if routing == PLAIN else partial(kind, routing=routing)


def _without_invalid_bytes(path: str) -> str:
    """Decode a path of PEP 3333 (bytes as latin-1) as UTF-8, without the bytes that are not UTF-8."""
    try:
        return path.encode("latin-1").decode("utf-8", "ignore")
    except UnicodeEncodeError:  # the server decoded it as UTF-8 already
        return path


class WsgiRequest(Request):
    """A request made from a WSGI environ.

    `head` is what `wsgi_head` has returned for the environ. See `Request`.

    The environ has the same key for the headers `X-Forwarded-For` and `X_Forwarded_For`. If the server or a proxy
    passes header names with underscores on, a client can forge the headers that the proxy sets. gunicorn, nginx and
    Werkzeug's server drop such names by default.
    """

    __slots__ = ()

    def __init__(self, environ: dict[str, Any], head: RequestHead | None = None) -> None:
        self.context = environ
        self.values: dict[str, str | None] = {}
        self.several: dict[str, Values] = {}
        _, path, _, method, self.peer, *_ = head or wsgi_head(environ)
        self.method = method.upper()
        path = path or "/"
        self.forms: Forms | None = None
        if path[0] != "/" or not path.isascii():
            self.forms = forms_of(dict.fromkeys((_without_invalid_bytes(path), utf8(path))))
            path = self.forms.routed[-1] if self.forms is not None else utf8(path)
        self.path = path

    def header_lines(self, name: str) -> list[str]:
        """Return the header as one line. A WSGI server has already joined its lines."""
        value = self.header(name)
        return [] if value is None else [value]

    def header(self, name: str) -> str | None:
        """Return the header. The server has joined its lines with commas."""
        value: str | None = self.context.get(_key(name))
        return value

    def field_lines(self, name: str) -> list[str] | None:
        """Return the line behind a name. See `Request`."""
        value = self.header(name) or (self.context.get("SERVER_NAME") if name == "host" else None)
        return [value] if value else []

    def fields(self, read: ReadFields) -> Sequence[Any]:
        """Return what `ReadFields.of_environ` finds."""
        return read.of_environ(self.context)

    @property
    def query_string(self) -> str:
        """The query string, decoded as latin-1."""
        query: str = self.context.get("QUERY_STRING") or ""
        return query


def _key(name: str) -> str:
    """Return the key of a header in an environ."""
    key = name.upper().replace("-", "_")
    return key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"


_DROPPING = ("gunicorn/", "Werkzeug/", "waitress", "gevent/", "Apache/")
"""The beginnings of the names of the servers that drop header names with underscores."""


def drops_underscores(environ: Mapping[str, Any]) -> bool:
    """Return whether the server of this environ is known to drop header names with underscores.

    All others may write a client's `X_Forwarded_For` where they write `X-Forwarded-For`. Django's `runserver` has the
    name of wsgiref's server, which keeps them; only the class of its input is its own.
    """
    name = environ.get("SERVER_SOFTWARE") or ""
    return name.startswith(_DROPPING) or type(environ.get("wsgi.input")).__module__.startswith("django.core.")


def wsgi_head(
    environ: dict[str, Any], make: Callable[..., WsgiRequest] = WsgiRequest, read: ReadFields | None = None
) -> RequestHead:
    """Return the head of a request, which `make` makes later, with the fields that are `read`."""
    head = (
        make,
        environ.get("PATH_INFO", ""),
        "",  # the server has cut SCRIPT_NAME off the path
        environ.get("REQUEST_METHOD", "GET"),
        environ.get("REMOTE_ADDR") or None,  # absent or empty on a unix socket
    )
    return head if read is None else (*head, *read.of_environ(environ))


def detached_environ(environ: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an environ that does not refer to the handle. See `detached_scope`.

    The copy also lacks what the app has added and what refers to the environ, such as the request of Flask, which
    would keep it alive. Such a request takes itself out of the environ, but not out of a copy.
    """
    copied = {**environ}
    added: dict[str, Any] = {}
    while copied and (item := copied.popitem())[0] != "ratelimit.decision":  # the server has added those before it
        try:
            refers = _read(item[1], "environ") is environ
        except Exception:  # noqa: BLE001  AttributeError, or what a property of the app's object raises
            refers = False
        if not refers:
            added[item[0]] = item[1]
    copied |= added
    return copied


_read = object.__getattribute__
"""Reads an attribute without `__getattr__` of the object, which may load a session, or raise anything."""


_EXAMINED = 100
"""The number of requests that are examined."""

_FORWARDING = ("X-Forwarded-For", "Forwarded", "X-Real-IP")


class FirstRequests:
    """Examines the first requests of a middleware, and logs each mistake in the setup that they show, once.

    Args:
        current: Returns the rules in force.
        key: The key of the scope or the environ that holds the handle of an outer middleware. None if an outer
            middleware is allowed.
        look: Is called once, at the first request.
    """

    def __init__(self, current: Callable[[], Any], key: str | None, look: Callable[[], None] | None = None) -> None:
        self._current = current
        self._key = key
        self._look = look
        self._proxied = False
        self.left = _EXAMINED
        """The number of requests that are still to be examined."""

    def examine(self, request: Request) -> None:
        """Examine a request. Call it as long as some are left."""
        self.left -= 1
        if self._look is not None:
            look, self._look = self._look, None
            look()
        if not self._proxied:
            self._proxied = self._is_proxied(request)
        if self._key is not None:
            self._examine_handle(request.context.get(self._key))

    def _is_proxied(self, request: Request) -> bool:
        """Whether the request came through a proxy. Logs a proxy that is not trusted, or whose header can be forged."""
        parts = self._current().parts
        header = parts[0].attributes.client_address.header
        if header is None:
            return any("ip" in part.attributes.used for part in parts) and self._is_untrusted(request)
        if "-" not in header or "wsgi.version" not in request.context or request.header(header) is None:
            return False
        if not drops_underscores(request.context):
            logger.warning(
                "a proxy is trusted for %s, but this WSGI server is not known to drop header names with '_': it "
                "may take a client's %s for the same header, and the client then chooses its address. Let the "
                "proxy drop such names (nginx does; Envoy: headers_with_underscores_action: REJECT_REQUEST), or "
                "use gunicorn or waitress. If your proxy drops them, ignore this (logged once)",
                header.title(),
                header.title().replace("-", "_"),
            )
        return True

    def _is_untrusted(self, request: Request) -> bool:
        peer = request.peer
        for name in _FORWARDING:
            value = ",".join(request.header_lines(name.lower()))
            # A server that trusts its proxy, as uvicorn does, has already replaced the peer by the reported address.
            if value and not (peer and peer in value):
                logger.warning(
                    "a request came with %s, but client.trusted_proxies and client.trusted_hops are not set: it is "
                    "counted as %s. If this is your proxy, all of its clients share one counter: add it to "
                    "client.trusted_proxies. If no proxy of yours sets the header, ignore this (logged once)",
                    name,
                    canonical(peer) or "unknown",  # any other text may be a secret
                )
                return True
        return False

    def _examine_handle(self, around: object) -> None:
        domain = self._current().domain
        if getattr(around, "domain", None) == domain:
            self._key = None
            logger.warning(
                "two middlewares around one app have the domain %r: each request is charged twice. Remove one of them, "
                "or give them rules of different domains (logged once)",
                domain,
            )
