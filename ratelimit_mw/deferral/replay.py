"""Replay deferred requests: to an app in this process, or to a server over HTTP."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, Protocol

import httpx

from ratelimit_mw.deferral.stored_request import StoredRequest
from ratelimit_mw.errors import Lost, NotSent, Unsendable
from ratelimit_mw.identity.fields import MOST_LINES, Values
from ratelimit_mw.identity.request import HttpFields


class DeferredRequest(HttpFields):
    """A stored request, as rules read it. See `identity.request.Request`.

    Attributes that were read when the request arrived keep their values. A rule that is newer than the request may
    need other attributes. These are read from the stored headers and the stored target. The original scope or environ
    is gone.
    """

    __slots__ = ("_stored", "context", "forms", "method", "path", "several", "values")

    def __init__(self, stored: StoredRequest) -> None:
        self._stored = stored
        self.context: dict[str, Any] = {}  # not None, because the request will have a response
        self.method = stored.method
        self.path = stored.path
        self.forms = stored.forms
        self.values = dict(stored.values)
        self.several: dict[str, Values] = dict(stored.several)

    @property
    def peer(self) -> str | None:
        """The address of the original connection's other end."""
        return self._stored.peer

    def header_lines(self, name: str) -> list[str]:
        """Return every stored line of a header, in order."""
        return [value for key, value in self._stored.headers if key == name]

    def header(self, name: str) -> str | None:
        """Return the first stored line of a header."""
        return self._stored.header(name)

    def field_lines(self, name: str) -> list[str] | None:
        """Return every stored line behind a name."""
        wanted = name.replace("_", "-")
        lines = [value for key, value in self._stored.headers if key.replace("_", "-") == wanted]
        return lines if len(lines) <= MOST_LINES else None

    @property
    def query_string(self) -> str:
        """The query string of the stored target."""
        return self._stored.target.partition("?")[2]


Message = MutableMapping[str, Any]
App = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Any]


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[dict[str, Any]]:
    """Run the ASGI lifespan of `app`, from its startup to its shutdown. Yield its state, which requests must get.

    Raises RuntimeError if the startup fails. An app without lifespan support runs without one, as under a server.
    """
    state: dict[str, Any] = {}
    events: asyncio.Queue[Message] = asyncio.Queue()
    messages: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    running = asyncio.ensure_future(app(scope, events.get, messages.put))
    await events.put({"type": "lifespan.startup"})
    answer = await _next_message(running, messages)
    if answer.get("type") == "lifespan.startup.failed":
        with suppress(Exception):
            await running
        raise RuntimeError(f"the app's startup failed: {answer.get('message', '')}")
    try:
        yield state
    finally:
        if answer:
            await events.put({"type": "lifespan.shutdown"})
            await _next_message(running, messages)
        with suppress(Exception):  # the app has logged its own error
            await running


async def _next_message(running: "asyncio.Future[None]", messages: "asyncio.Queue[Message]") -> Message:
    """Return the app's next message, or an empty one if the app ends without a message."""
    received = asyncio.ensure_future(messages.get())
    await asyncio.wait((running, received), return_when=asyncio.FIRST_COMPLETED)
    if received.done():
        return received.result()
    received.cancel()
    return {}


_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_CONNECT = 5.0  # seconds


class Answer(NamedTuple):
    """A response. `body` is None if it was too long to be kept. The names in `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None


class Target(Protocol):
    """Sends a request once. It never retries."""

    async def send(self, stored: StoredRequest, body: bytes, more: Mapping[str, str], most: int) -> Answer:
        """Send a request with additional headers (`more`) and return the response. Keep at most `most` bytes of it.

        Raises:
            NotSent: The request did not reach the app.
            Unsendable: The stored request is not a valid HTTP request.
            Lost: The result is unknown. It is also unknown if the call is cancelled.
        """
        ...


@asynccontextmanager
async def over_http(url: str) -> AsyncIterator[Target]:
    """Return a target that sends requests to the app at `url`. Proxies of the environment are not used."""
    limits = httpx.Limits(
        max_keepalive_connections=0
    )  # a request on an idle connection that the app closes would be lost
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:  # noqa: S113  the worker's
        yield _AsyncTarget(lambda _: client, httpx.URL(url))


@asynccontextmanager
async def in_process(app: Any) -> AsyncIterator[Target]:
    """Return a target that calls the app: an ASGI app with its lifespan, or a WSGI app in threads."""
    if not _is_asgi(app):
        yield _BlockingTarget(app)
        return
    async with lifespan(app) as state:

        async def stated(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        def client(stored: StoredRequest) -> httpx.AsyncClient:
            transport = httpx.ASGITransport(stated, raise_app_exceptions=False, client=(stored.peer or "127.0.0.1", 0))
            return httpx.AsyncClient(transport=transport, timeout=None)  # noqa: S113  the worker has one

        yield _AsyncTarget(client, httpx.URL("http://app"))


class _AsyncTarget:
    def __init__(self, client: Callable[[StoredRequest], httpx.AsyncClient], base: httpx.URL) -> None:
        self._client = client
        self._base = base

    async def send(self, stored: StoredRequest, body: bytes, more: Mapping[str, str], most: int) -> Answer:
        request = _request(self._base, stored, body, more)
        client = self._client(stored)
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
        except Exception as error:  # an app in this process may raise anything
            raise Lost(type(error).__name__) from error
        return Answer(response.status_code, response.headers, None if kept is None else b"".join(kept))


class _BlockingTarget:
    def __init__(self, app: Any) -> None:
        self._app = app

    async def send(self, stored: StoredRequest, body: bytes, more: Mapping[str, str], most: int) -> Answer:
        return await asyncio.to_thread(self._send, stored, body, more, most)

    def _send(self, stored: StoredRequest, body: bytes, more: Mapping[str, str], most: int) -> Answer:
        request = _request(httpx.URL("http://app"), stored, body, more)
        transport = httpx.WSGITransport(self._app, raise_app_exceptions=False, remote_addr=stored.peer or "127.0.0.1")
        with httpx.Client(transport=transport, timeout=None) as client:  # noqa: S113  the worker has one
            try:
                response = client.send(request)
            except Exception:  # noqa: BLE001  the app's own: a server would say 500
                return Answer(500, {}, b"")
        content = response.content
        return Answer(response.status_code, response.headers, content if len(content) <= most else None)


def _request(base: httpx.URL, stored: StoredRequest, body: bytes, more: Mapping[str, str]) -> httpx.Request:
    """Build the HTTP request. Raises Unsendable if the stored request is not a valid one."""
    try:
        return _build(base, stored, body, more)
    except Exception as error:  # whatever is wrong with the stored request, it was not sent
        raise Unsendable(type(error).__name__) from error


def _build(base: httpx.URL, stored: StoredRequest, body: bytes, more: Mapping[str, str]) -> httpx.Request:
    lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in stored.headers]
    lines += [(name.encode(), value.encode()) for name, value in more.items()]
    lines.append((b"accept-encoding", b"identity"))  # so that the stored response is readable
    root = base.raw_path.rstrip(b"/")
    url = base.copy_with(raw_path=root + stored.target.encode("latin-1"))
    return httpx.Request(stored.method, url, headers=lines, content=body or None)


def _is_asgi(app: Any) -> bool:
    return inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(getattr(app, "__call__", None))  # noqa: B004
