"""How a deferred request is replayed: to an app in the process, or to a server."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, Protocol

import httpx

from ratelimit_mw.deferral.stored_request import StoredRequest
from ratelimit_mw.errors import Lost, NotSent, Unsendable
from ratelimit_mw.identity.decoding import cookies_named, parameters_named, with_invalid_bytes_dropped
from ratelimit_mw.identity.request import Alternative, FrameworkReader


class DeferredRequest:
    """See `identity.request.Request`. What the rules have read of it when it came, they find again.

    Only what rules read that are newer than the request is read from what was kept of it: of a cookie or a parameter
    sent twice the last one, and nothing of the scope or the environ that it once had. It is read
    again in every way in which it could be read when it came.
    """

    __slots__ = ("_envelope", "alternatives", "ambiguous", "context", "method", "path", "readings", "values")

    def __init__(self, envelope: StoredRequest) -> None:
        self._envelope = envelope
        self.context: dict[str, Any] = {}  # not None, for there will be a response
        self.method = envelope.method
        self.path = envelope.path
        self.readings = with_invalid_bytes_dropped((envelope.path,)) if "\ufffd" in envelope.path else ()
        self.values = dict(envelope.values)
        self.alternatives: tuple[Alternative, ...] = envelope.rows
        self.ambiguous = bool(envelope.rows)

    @property
    def peer(self) -> str | None:
        """The address at the other end of the connection that it came on."""
        return self._envelope.peer

    def header_lines(self, name: str) -> list[str]:
        """Every line of a header that was kept, in order."""
        return [value for key, value in self._envelope.headers if key == name]

    def header(self, name: str) -> str | None:
        """The first line of a header that was kept."""
        return self._envelope.header(name)

    def host(self) -> str | None:
        """The Host header."""
        return self.header("host")

    def cookie(self, name: str) -> str | None:
        """The last cookie of that name."""
        values = cookies_named(name, "; ".join(self.header_lines("cookie")))
        return values[-1] if values else None

    def query(self, name: str) -> str | None:
        """The last query parameter of that name."""
        values = parameters_named(name, self._envelope.target.partition("?")[2])
        return values[-1] if values else None

    def read_alternatives(self, readers: Mapping[str, FrameworkReader]) -> tuple[Alternative, ...]:  # noqa: ARG002 - it was read on arrival
        """The ways in which it was read when it came."""
        return self.alternatives


Message = MutableMapping[str, Any]
App = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Any]


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[dict[str, Any]]:
    """Run `app` from its startup to its shutdown; what it keeps in its state is what requests are to find in theirs.

    Raises RuntimeError where the startup fails. An app that knows no lifespan does without, as under a server.
    """
    state: dict[str, Any] = {}
    orders: asyncio.Queue[Message] = asyncio.Queue()
    said: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    running = asyncio.ensure_future(app(scope, orders.get, said.put))
    await orders.put({"type": "lifespan.startup"})
    answer = await _answer(running, said)
    if answer.get("type") == "lifespan.startup.failed":
        with suppress(Exception):
            await running
        raise RuntimeError(f"the app's startup failed: {answer.get('message', '')}")
    try:
        yield state
    finally:
        if answer:
            await orders.put({"type": "lifespan.shutdown"})
            await _answer(running, said)
        with suppress(Exception):  # whatever it says now, it has been said to its own log
            await running


async def _answer(running: "asyncio.Future[None]", said: "asyncio.Queue[Message]") -> Message:
    """What the app says next; nothing where it ends without a word."""
    heard = asyncio.ensure_future(said.get())
    await asyncio.wait((running, heard), return_when=asyncio.FIRST_COMPLETED)
    if heard.done():
        return heard.result()
    heard.cancel()
    return {}


_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_CONNECT = 5.0  # seconds


class Answer(NamedTuple):
    """A response. `body` is None where it was longer than what is kept; headers go by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None


class Target(Protocol):
    """Sends a request once, never again by itself."""

    async def send(self, envelope: StoredRequest, body: bytes, more: Mapping[str, str], most: int) -> Answer:
        """The response to a request with `more` headers, of whose body `most` bytes are kept.

        Raises NotSent, Unsendable or Lost. To cancel it is to lose it.
        """
        ...


@asynccontextmanager
async def over_http(url: str) -> AsyncIterator[Target]:
    """The app at `url`, which is spoken to directly: no proxy of the environment's is asked."""
    limits = httpx.Limits(max_keepalive_connections=0)  # an idle connection that the app closes would lose a request
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:  # noqa: S113  the worker's
        yield _Async(lambda _: client, httpx.URL(url))


@asynccontextmanager
async def in_process(app: Any) -> AsyncIterator[Target]:
    """The app itself: ASGI, with its lifespan, or WSGI, in threads."""
    if not _is_asgi(app):
        yield _Blocking(app)
        return
    async with lifespan(app) as state:

        async def stated(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        def client(envelope: StoredRequest) -> httpx.AsyncClient:
            transport = httpx.ASGITransport(
                stated, raise_app_exceptions=False, client=(envelope.peer or "127.0.0.1", 0)
            )
            return httpx.AsyncClient(transport=transport, timeout=None)  # noqa: S113  the worker has one

        yield _Async(client, httpx.URL("http://app"))


class _Async:
    def __init__(self, client: Callable[[StoredRequest], httpx.AsyncClient], base: httpx.URL) -> None:
        self._client = client
        self._base = base

    async def send(self, envelope: StoredRequest, body: bytes, more: Mapping[str, str], most: int) -> Answer:
        request = _request(self._base, envelope, body, more)
        client = self._client(envelope)
        try:
            response = await client.send(request, stream=True)
            try:
                kept: list[bytes] | None = []
                length = 0
                async for part in response.aiter_bytes():
                    length += len(part)
                    kept = None if kept is None or length > most else [*kept, part]
            finally:
                await response.aclose()
        except _NOT_SENT as error:
            raise NotSent(str(error)) from error
        except Exception as error:  # an app in this process may end in any way
            raise Lost(type(error).__name__) from error
        return Answer(response.status_code, response.headers, None if kept is None else b"".join(kept))


class _Blocking:
    def __init__(self, app: Any) -> None:
        self._app = app

    async def send(self, envelope: StoredRequest, body: bytes, more: Mapping[str, str], most: int) -> Answer:
        return await asyncio.to_thread(self._send, envelope, body, more, most)

    def _send(self, envelope: StoredRequest, body: bytes, more: Mapping[str, str], most: int) -> Answer:
        request = _request(httpx.URL("http://app"), envelope, body, more)
        transport = httpx.WSGITransport(self._app, raise_app_exceptions=False, remote_addr=envelope.peer or "127.0.0.1")
        with httpx.Client(transport=transport, timeout=None) as client:  # noqa: S113  the worker has one
            try:
                response = client.send(request)
            except Exception:  # noqa: BLE001  the app's own: a server would say 500
                return Answer(500, {}, b"")
        content = response.content
        return Answer(response.status_code, response.headers, content if len(content) <= most else None)


def _request(base: httpx.URL, envelope: StoredRequest, body: bytes, more: Mapping[str, str]) -> httpx.Request:
    """What is to be sent. Raises Unsendable where the record makes no request."""
    try:
        return _made(base, envelope, body, more)
    except Exception as error:  # a record of any kind: whatever is wrong with it, it has not been sent
        raise Unsendable(type(error).__name__) from error


def _made(base: httpx.URL, envelope: StoredRequest, body: bytes, more: Mapping[str, str]) -> httpx.Request:
    lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in envelope.headers]
    lines += [(name.encode(), value.encode()) for name, value in more.items()]
    lines.append((b"accept-encoding", b"identity"))  # what is kept of the answer can be read then
    root = base.raw_path.rstrip(b"/")
    url = base.copy_with(raw_path=root + envelope.target.encode("latin-1"))
    return httpx.Request(envelope.method, url, headers=lines, content=body or None)


def _is_asgi(app: Any) -> bool:
    return inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(getattr(app, "__call__", None))  # noqa: B004
