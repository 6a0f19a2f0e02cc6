"""Servers that answer each request with the same bytes: what the transports of the service alone cost.

`python -m bench.constant_servers grpc` answers ShouldRateLimit by grpcio's asyncio server, on asyncio's own loop, which
is what most such servers have. `… http` answers any request by uvicorn, with the settings, the loop and the parser of
the service.
"""

import asyncio
import socket
import sys
from typing import Any

import grpc.aio
import uvicorn
import uvloop

from ratelimit_mw.model import ListStatus
from ratelimit_mw.service.messages import SERVICE, Writer

HEADERS = [(b"x-ratelimit-limit", b"1000000"), (b"x-ratelimit-remaining", b"999999"), (b"x-ratelimit-reset", b"60")]


async def serve_grpc() -> None:
    """Serve the answer that the service gives to the first request of a user."""
    status = ListStatus(True, "by_path", "by_path", 1_000_000, 60.0, "minute", 999_999, False, 60.0)
    constant = Writer().write(True, [status, status])

    async def should_rate_limit(_data: bytes, _context: object) -> bytes:
        return constant

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler: Any = grpc.unary_unary_rpc_method_handler(should_rate_limit)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"ShouldRateLimit": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    say_ready("grpc", port)
    await server.wait_for_termination()


async def serve_http() -> None:
    """Serve the answer that `/auth` gives to a request that passes."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, (b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    found.listen(2048)
    say_ready("http", found.getsockname()[1])
    config = uvicorn.Config(
        app, lifespan="off", log_config=None, access_log=False, proxy_headers=False, server_header=False
    )
    await uvicorn.Server(config).serve([found])


def say_ready(name: str, port: int) -> None:
    """Say where the server can be asked. Its socket takes connections from now on."""
    print(f"ready: {name} at 127.0.0.1:{port}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(serve_grpc()) if sys.argv[1] == "grpc" else uvloop.run(serve_http())
