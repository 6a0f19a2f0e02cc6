"""Replay deferred requests to an app over HTTP."""

from collections.abc import Mapping
from typing import NamedTuple

import httpx

from ratelimit_mw.deferral.stored_request import StoredRequest
from ratelimit_mw.errors import Lost, NotSent, Unsendable

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class AppResponse(NamedTuple):
    """A response. `body` is None if it was too long to be kept. The names in `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None


class Target:
    """The app at a URL. Proxies of the environment are not used.

    Args:
        url: The URL of the app.
        transport: What sends the requests, for tests. None: connections to the URL.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)  # a request on an idle connection may be lost
        self._client = httpx.AsyncClient(limits=limits, timeout=None, trust_env=False, transport=transport)  # noqa: S113  the worker has one
        self._base = httpx.URL(url)

    async def send(self, stored: StoredRequest, body: bytes, more: Mapping[str, str], most: int) -> AppResponse:
        """Send a request once, with additional headers (`more`). Return the response, with at most `most` bytes of it.

        Raises:
            NotSent: The request did not reach the app.
            Unsendable: The stored request is not a valid HTTP request.
            Lost: The result is unknown. It is also unknown if the call is cancelled.
        """
        request = _request(self._base, stored, body, more)
        try:
            response = await self._client.send(request, stream=True)
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
        except httpx.HTTPError as error:
            raise Lost(type(error).__name__) from error
        return AppResponse(response.status_code, response.headers, None if kept is None else b"".join(kept))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


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
