"""Where deferred requests are replayed: at an app over HTTP, or in this process. httpx carries them."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

import httpx

from ratelimit_mw.deferral.envelope import Envelope
from ratelimit_mw.worker.lifespan import lifespan

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_CONNECT = 5.0  # seconds


class NotSent(Exception):
    """The app has not heard of the request."""


class Unsendable(Exception):
    """The app has not heard of the request and never will: no HTTP client sends it."""


class Lost(Exception):
    """The app may have heard of the request; what it made of it nobody knows."""


class Answer(NamedTuple):
    """A response. `body` is None where it was longer than what is kept; headers go by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None


class Target(Protocol):
    """Sends a request once, never again by itself."""

    async def send(self, envelope: Envelope, body: bytes, more: Mapping[str, str], most: int) -> Answer:
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

        def client(envelope: Envelope) -> httpx.AsyncClient:
            transport = httpx.ASGITransport(
                stated, raise_app_exceptions=False, client=(envelope.peer or "127.0.0.1", 0)
            )
            return httpx.AsyncClient(transport=transport, timeout=None)  # noqa: S113  the worker has one

        yield _Async(client, httpx.URL("http://app"))


class _Async:
    def __init__(self, client: Callable[[Envelope], httpx.AsyncClient], base: httpx.URL) -> None:
        self._client = client
        self._base = base

    async def send(self, envelope: Envelope, body: bytes, more: Mapping[str, str], most: int) -> Answer:
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

    async def send(self, envelope: Envelope, body: bytes, more: Mapping[str, str], most: int) -> Answer:
        return await asyncio.to_thread(self._send, envelope, body, more, most)

    def _send(self, envelope: Envelope, body: bytes, more: Mapping[str, str], most: int) -> Answer:
        request = _request(httpx.URL("http://app"), envelope, body, more)
        transport = httpx.WSGITransport(self._app, raise_app_exceptions=False, remote_addr=envelope.peer or "127.0.0.1")
        with httpx.Client(transport=transport, timeout=None) as client:  # noqa: S113  the worker has one
            try:
                response = client.send(request)
            except Exception:  # noqa: BLE001  the app's own: a server would say 500
                return Answer(500, {}, b"")
        content = response.content
        return Answer(response.status_code, response.headers, content if len(content) <= most else None)


def _request(base: httpx.URL, envelope: Envelope, body: bytes, more: Mapping[str, str]) -> httpx.Request:
    """What is to be sent. Raises Unsendable where the record makes no request."""
    try:
        return _made(base, envelope, body, more)
    except Exception as error:  # a record of any kind: whatever is wrong with it, it has not been sent
        raise Unsendable(type(error).__name__) from error


def _made(base: httpx.URL, envelope: Envelope, body: bytes, more: Mapping[str, str]) -> httpx.Request:
    lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in envelope.headers]
    lines += [(name.encode(), value.encode()) for name, value in more.items()]
    lines.append((b"accept-encoding", b"identity"))  # what is kept of the answer can be read then
    root = base.raw_path.rstrip(b"/")
    url = base.copy_with(raw_path=root + envelope.target.encode("latin-1"))
    return httpx.Request(envelope.method, url, headers=lines, content=body or None)


def _is_asgi(app: Any) -> bool:
    return inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(getattr(app, "__call__", None))  # noqa: B004
