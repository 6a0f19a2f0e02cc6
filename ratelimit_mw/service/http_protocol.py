"""uvicorn's HTTP protocol, with another answer to what is not valid HTTP.

A proxy may pass on header bytes that this server refuses: nginx accepts a vertical tab in a value. uvicorn answers 400,
which nginx's `auth_request` takes for a failure of the service. If nginx is told to let requests pass then, a client
with such a header would have no limits. The answer is therefore a denial.

This module is internal: its names may change in any release.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ratelimit_mw.service.state import Service

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

    class HttpProtocol(base):  # type: ignore[misc]  # uvicorn chooses its base when it is imported
        """One connection."""

        def send_400_response(self, _message: str) -> None:
            service.refuse("malformed_http")
            self.transport.write(_DENIAL)
            self.transport.close()

    return HttpProtocol
