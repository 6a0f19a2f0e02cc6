"""Requests of each kind, from the few things that a test is about."""

from collections.abc import Sequence

from ratelimit_mw.config.kinds import read_network
from ratelimit_mw.config.tree import Place, Scalar
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.identity.identifier import Parameters, identifier
from ratelimit_mw.settings import ClientSettings, Network

Headers = Sequence[tuple[str, str]]


def scope(headers: Headers = (), *, peer: str | None = "192.0.2.9", path: str = "/", query: str = "", **more):
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "root_path": "",
        "query_string": query.encode("latin-1"),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "client": None if peer is None else (peer, 50000),
        **more,
    }


def environ(headers: Headers = (), *, peer: str | None = "192.0.2.9", path: str = "/", query: str = "", **more):
    """As a server makes it: names upper-case with underscores, lines of one name joined by commas."""
    variables = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": query}
    if peer is not None:
        variables["REMOTE_ADDR"] = peer
    for name, value in headers:
        key = "HTTP_" + name.upper().replace("-", "_")
        variables[key] = f"{variables[key]},{value}" if key in variables else value
    return {**variables, **more}


def asgi(headers: Headers = (), **more) -> AsgiRequest:
    return AsgiRequest(scope(headers, **more))


def wsgi(headers: Headers = (), **more) -> WsgiRequest:
    return WsgiRequest(environ(headers, **more))


def _read(network: str) -> Network:
    """As the rules file is read."""
    return read_network(Scalar(network, network, Place()))


def settings(*, trusted: Sequence[str] = (), **more) -> ClientSettings:
    more.setdefault("secret", "a secret of the tests")
    return ClientSettings("shop", trusted_proxies=tuple(map(_read, trusted)), **more)


def attributes(**more) -> Attributes:
    return Attributes(settings(**more))


def identity(by, request, known: Attributes | None = None, params=None, route="") -> str | None:
    return identifier(by, known or attributes())(request, Parameters(params or {}), route)
