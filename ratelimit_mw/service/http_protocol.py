"""uvicorn's HTTP protocol, with another answer to what is not valid HTTP, and an end to connections that ask nothing.

A proxy may pass on header bytes that this server refuses: nginx accepts a vertical tab in a value. uvicorn answers 400,
which nginx's `auth_request` takes for a failure of the service. If nginx is told to let requests pass then, a client
with such a header would have no limits. The answer is therefore a denial. uvicorn also warns of each such request, so
that clients could fill the log: the service warns in its place, at most ten times a minute.

uvicorn waits for ever for the head of a request, so that a caller could use up the connections of the process.

This module is internal: its names may change in any release.
"""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ratelimit_mw.service.state import Service

_FIRST_HEAD = 30.0
"""The seconds within which the head of the first request of a connection must arrive."""

_NEXT_HEAD = 120.0
"""The seconds after which a connection is looked at again. One without a further request since then is closed."""

_BODY = b"The request is not valid HTTP.\n"
_DENIAL = (
    b"HTTP/1.1 403 Forbidden\r\n"
    b"content-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\n"
    b"x-ratelimit-status: 400\r\n"
    b"connection: close\r\n"
    b"\r\n%s"
) % (len(_BODY), _BODY)


def protocol_of(service: Service) -> type[asyncio.Protocol]:
    """Return the protocol class for `uvicorn.Config(http=…)`. It counts what it refuses."""
    base: Any = AutoHTTPProtocol
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    class HttpProtocol(base):  # type: ignore[misc]  # uvicorn chooses its base when it is imported
        """One connection."""

        connections: set[Any]  # of this port
        cycle: Any
        loop: asyncio.AbstractEventLoop

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._look_again = self.loop.call_later(_FIRST_HEAD, self._look, None)
            if len(self.connections) > service.settings.max_connections:
                service.refuse("too_many_connections")
                service.warn("too_many_connections", "a connection was closed: the port has --max-connections of them")
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._look_again.cancel()
            super().connection_lost(exc)

        def _look(self, last: Any) -> None:
            """End the connection if the last request is still the one of the last look, and is answered."""
            if self.cycle is last and (last is None or self.cycle.response_complete):
                service.refuse("slow_http")
                self.transport.abort()
            else:
                self._look_again = self.loop.call_later(_NEXT_HEAD, self._look, self.cycle)

        def send_400_response(self, _message: str) -> None:
            service.refuse("malformed_http")
            service.warn("malformed_http", "a caller of --http or --admin sent what is not valid HTTP")
            self.transport.write(_DENIAL)
            self.transport.close()

    return HttpProtocol
