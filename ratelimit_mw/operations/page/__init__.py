"""The live page: what limits do now, in a browser. `Page` is an ASGI app and a WSGI app."""

import asyncio
import hashlib
import hmac
import json
import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, cached_property
from importlib import resources
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any
from wsgiref.types import StartResponse

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.http.responses import Message, ReadyResponse, Receive, Send, asyncio_runs
from ratelimit_mw.identity.address import UNKNOWN_ADDRESS
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.operations.live import live_of
from ratelimit_mw.stores.memory import MemoryStore

if TYPE_CHECKING:
    from ratelimit_mw.telemetry.prometheus import Exposition

__all__ = ["Page"]


PageRequest = AsgiRequest | WsgiRequest


def _path_below(scope: Message) -> str:
    """Return the path of a scope below the one under which the page is mounted. A proxy may show both elsewhere."""
    path, root = scope.get("path") or "", (scope.get("root_path") or "").rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):  # most servers and frameworks send the whole path
        path = path[len(root) :]
    return path


def _token_of(request: PageRequest) -> str | None:
    """Return the token of the header Authorization: after Bearer, or the password of Basic. None without either."""
    scheme, _, rest = (request.header("authorization") or "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest
    if scheme.lower() != "basic":
        return None
    try:
        return b64decode(rest.strip(), validate=True).decode("utf-8", "replace").partition(":")[2]
    except ValueError:
        return ""  # it is no token, but an attempt


def text_answer(status: int, text: str, *headers: tuple[str, str]) -> ReadyResponse:
    """Return an answer that is one sentence."""
    return ReadyResponse(status, [("Content-Type", "text/plain; charset=utf-8"), *headers], f"{text}\n".encode())


SHORTEST = 16
"""The fewest characters of a token."""

_ATTEMPTS = Quota("sliding_log", limit=10, period=60 * SECOND)
_MAX_COUNTERS = 10_000


_CHALLENGE = ("WWW-Authenticate", 'Basic realm="live page", charset="UTF-8"')  # so that browsers ask for the token


class PageAccess:
    """Tests tokens. Threads and event loops may share it.

    After ten wrong attempts from one address within a minute, none from it is admitted. The right token is refused
    then, too, because otherwise the limit would not slow down a guesser. The counters are those of this process.

    Args:
        token: The token. See `fault_of`.
        clock: The clock of the limit. None: that of the machine.
    """

    def __init__(self, token: str, clock: Clock | None = None) -> None:
        self._token = _hash(token)
        self._store = MemoryStore(max_counters=_MAX_COUNTERS, clock=clock or SystemClock())

    def refusal(self, address: str, token: str | None) -> ReadyResponse | None:
        """Return the answer to a visitor whose token is not right. None if it is.

        Args:
            address: The identity of the client's address.
            token: The token. None if the request has none, which is not an attempt.
        """
        if token is None:
            text = "Send the token as 'Authorization: Bearer TOKEN', or as the password of HTTP Basic."
            return text_answer(401, text, _CHALLENGE)
        right = hmac.compare_digest(_hash(token.strip()), self._token)
        (outcome,) = self._store.decide([Ask(f"address:{address}", _ATTEMPTS)], commit=not right).outcomes
        if not outcome.allowed:
            seconds = -(-outcome.retry_after // SECOND)
            text = f"Too many wrong attempts. Try again in {seconds} s."
            return text_answer(429, text, ("Retry-After", str(seconds)))
        return None if right else text_answer(401, "The token is not right.", _CHALLENGE)


def fault_of(token: object) -> str:
    """Return what is wrong with a token, or ""."""
    if not isinstance(token, str):
        return f"the token is {type(token).__name__}, not a string"
    if len(token) < SHORTEST:
        return f"the token has {len(token)} character{'s' * (len(token) != 1)}: it must have at least {SHORTEST}"
    if not (token.isascii() and token.isprintable()) or token != token.strip():
        return "the token has a character that a header cannot send: only printable ASCII without spaces around it can"
    return ""


def _hash(text: str) -> bytes:
    """Return the hash of a text of a client. A comparison of hashes does not tell the length of the right text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


Guard = Callable[[Any], bool | Awaitable[bool]]

_NEEDED = (
    f"the live page needs a token of at least {SHORTEST} characters, as in Page(limiter, token=os.environ['TOKEN']), "
    "or a guard, as in Page(limiter, guard=is_admin): it shows addresses and users of clients, so it has no open mode"
)
_SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers of all answers. The page has a Content-Security-Policy of its own."""

_POLICY = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


class Page:
    """A web page that shows what the limits do now: how much they deny, to which clients, and by which rule.

    It is an ASGI app and a WSGI app. Mount it under any path of your app: `app.mount("/_limits", Page(limiter, …))`.
    Below that path, `/` is the page, `/state.json` its data, and `/metrics` the metrics for Prometheus. The page only
    reads: it cannot change a limit.

    A visitor sends the token as `Authorization: Bearer TOKEN`, or as the password of HTTP Basic, which browsers ask
    for. After ten wrong attempts of one address within a minute, the answer is 429.

    Args:
        limiter: The limiter that the middleware uses. It is not closed with the page.
        token: The token. 16 or more characters of printable ASCII that cannot be guessed.
        guard: A function that admits visitors, such as one that reads the session of your app. It is called for each
            request, with the scope under ASGI and the environ under WSGI. Only if it returns True is the visitor
            admitted. All other values are answered with 403, and exceptions pass to the server. Under ASGI, it may be
            an async function; other functions must not block the event loop. With a token as well, a visitor needs
            both.

    Raises:
        ValueError: There is neither a token nor a guard, or the token cannot be used.
    """

    def __init__(self, limiter: RateLimiter, *, token: str | None = None, guard: Guard | None = None) -> None:
        if token is None and guard is None:
            raise ValueError(_NEEDED)
        fault = "" if token is None else fault_of(token)
        if fault:
            raise ValueError(f"{fault}. {_NEEDED}")
        if guard is not None and not callable(guard):
            raise ValueError(f"the guard is {type(guard).__name__}, not a function. {_NEEDED}")
        self._limiter = limiter
        self._access = None if token is None else PageAccess(token, limiter.clock)
        self._guard = guard
        self._live = live_of(limiter)
        self._live.begin(id(self))

    def __call__(self, *arguments: Any) -> Any:
        """Serve one request: `(scope, receive, send)` under ASGI, `(environ, start_response)` under WSGI."""
        return self.wsgi(*arguments) if len(arguments) == 2 else self.asgi(*arguments)

    async def asgi(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one scope of ASGI. For a server or a framework that must see an async function.

        Args:
            scope: The scope: a request, or a WebSocket, which is refused.
            receive: The function of the server.
            send: The function of the server.
        """
        if scope["type"] == "http":
            path, admits = _path_below(scope), self._guard is None or self._guard(scope)
            admitted = (await admits if isinstance(admits, Awaitable) else admits) is True
            answer = self._answer(AsgiRequest(scope), path or "/", admitted)
            if answer is None:  # under trio only a limiter in memory works, which waits for no store
                answer = await asyncio.to_thread(self._data, path) if asyncio_runs() else self._data(path)
            await _secured(answer).asgi(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})  # before it is accepted, so the server answers 403
        else:  # a server serves on after an error about the lifespan
            raise ValueError(f"the live page cannot serve {scope['type']!r}")

    def wsgi(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request of WSGI.

        Args:
            environ: The environ.
            start_response: The function of the server.
        """
        path, admits = environ.get("PATH_INFO") or "/", self._guard is None or self._guard(environ)
        if iscoroutine(admits):
            admits.close()
            raise TypeError("the guard of the live page is an async function, which WSGI cannot await")
        answer = self._answer(WsgiRequest(environ), path, admits is True) or self._data(path)
        return _secured(answer).wsgi(environ, start_response)

    def close(self) -> None:
        """Stop sending what this process knows to other processes. The limiter stays open."""
        self._live.end(id(self))

    def _answer(self, request: PageRequest, path: str, admitted: bool) -> ReadyResponse | None:
        """Answer a request. None if the answer is `_data`. The guard comes first, so that others learn nothing."""
        if not admitted:
            return text_answer(403, "You may not see this page.")
        if path not in ("/", "/state.json", "/metrics"):
            return text_answer(404, "There is no such page. The live page is at /, its data are at /state.json.")
        if request.method not in ("GET", "HEAD"):
            return text_answer(405, "Only GET and HEAD are allowed: this page changes nothing.", ("Allow", "GET, HEAD"))
        refused = None if self._access is None else self._access.refusal(self._address(request), _token_of(request))
        return refused or (_page() if path == "/" else None)

    def _address(self, request: PageRequest) -> str:
        """Return the identity of the visitor's address, by the `client` of the limiter's rules."""
        address = self._limiter.rules.attributes.client_address.network(request)
        return UNKNOWN_ADDRESS if address is None else address

    def _data(self, path: str) -> ReadyResponse:
        """Return the data of the page, or the metrics. May wait for the store."""
        if path == "/metrics":
            return self._metrics()
        body = json.dumps(self._live.state(), separators=(",", ":"))
        return ReadyResponse(200, [("Content-Type", "application/json")], body.encode())

    def _metrics(self) -> ReadyResponse:
        """Return the metrics, as Prometheus reads them."""
        try:
            exposition = self._exposition
        except ModuleNotFoundError:
            return text_answer(501, "The metrics need prometheus_client: pip install 'ratelimit_mw[prometheus]'")
        text = exposition.text()
        if not text:  # PROMETHEUS_MULTIPROC_DIR is set
            return text_answer(501, "The processes export no metrics: call ratelimit_mw.telemetry.prometheus.export.")
        return ReadyResponse(200, [("Content-Type", exposition.content_type)], text)

    @cached_property
    def _exposition(self) -> "Exposition":
        from ratelimit_mw.telemetry.prometheus import Exposition

        return Exposition(self._limiter)


def _secured(answer: ReadyResponse) -> ReadyResponse:
    """Add the headers of all answers that this one does not have."""
    return answer._replace(headers=[*{**_SECURITY_HEADERS, **dict(answer.headers)}.items()])


def _page() -> ReadyResponse:
    """Return the page. It has no data: its script fetches them. Each answer has a nonce of its own."""
    nonce = secrets.token_urlsafe(16)
    html = _text("page.html").replace("{{nonce}}", nonce)
    html = html.replace("{{style}}", _text("page.css")).replace("{{script}}", _text("page.js"))
    headers = [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", _POLICY.format(nonce))]
    return ReadyResponse(200, headers, html.encode())


@cache
def _text(name: str) -> str:
    """Return a file of this package."""
    return resources.files("ratelimit_mw.operations.page").joinpath(name).read_text("utf-8")
