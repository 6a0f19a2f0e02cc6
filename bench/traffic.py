"""The traffic that all rows are measured with, defined once.

Each request is made as a web server makes it: from the bytes of its head. No name, value, address or path is an object
that an earlier request had, so no dictionary finds it by identity and no hash is already computed.

There are four streams of requests:

* `Zipf`: 100 000 clients. The most active client sends 1/1 parts of the requests, the second 1/2, the third 1/3, and
  so on (Zipf's law with an exponent of 1). The numbers in the paths follow the same law. This is the traffic meant
  wherever a row names no other.
* `known`: 1 000 clients, each with one path of its own. The app has seen all of them before.
* `one`: one client that asks for one path. This is the best case of every limiter.
* `new`: clients only that the app has never seen, each with a path that it has never seen. This is the worst case.

Every request has the seven headers of a browser, a bearer token and a cookie.
"""

import base64
import io
import random
import re
import sys
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import accumulate, count, cycle
from typing import Any, NamedTuple

CLIENTS = 100_000
KNOWN = 1_000
FIRST_NEW = 1_000_000  # the numbers of new clients and new paths begin here, past all others

TEMPLATES = (
    "/",
    "/items",
    "/items/{item:int}",
    "/items/{item:int}/reviews",
    "/search",
    "/users/{user:int}",
    "/users/{user:int}/orders/{order:int}",
    "/api/v1/carts/{cart:int}",
)
"""The routes of the app. Starlette and this package's rules write a parameter like this."""

WITH_NUMBERS = tuple(template for template in TEMPLATES if "{" in template)
PARAMETER = re.compile(r"\{(\w+):int\}")


def flask_template(template: str) -> str:
    """The template as Flask writes it: `/items/<int:item>`."""
    return PARAMETER.sub(r"<int:\1>", template)


class Request(NamedTuple):
    """One request: which client sends it, and for which path."""

    client: int
    path: str

    @property
    def address(self) -> str:
        """The client's IPv4 address. No two of the first 2^28 clients share one, and neighbours are far apart."""
        number = self.client * 2_654_435_761 % 2**28
        return f"{64 + (number >> 24)}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"

    def head(self) -> bytes:
        """The head of the request, as it comes from the client's socket."""
        digest = blake2b(self.client.to_bytes(8, "big"), digest_size=63).digest()
        token = base64.urlsafe_b64encode(digest).decode()
        lines = (
            f"GET {self.path} HTTP/1.1",
            "Host: shop.example.com",
            "Connection: keep-alive",
            "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:144.0) Gecko/20100101 Firefox/144.0",
            "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "Accept-Language: en-GB,en;q=0.7,de;q=0.3",
            "Accept-Encoding: gzip, deflate, br, zstd",
            "Referer: https://shop.example.com/items",
            f"Authorization: Bearer {token}",
            f"Cookie: theme=dark; session={token[:32]}; _ga=GA1.2.{self.client}.1763683260",
        )
        return "\r\n".join(lines).encode()

    def scope(self) -> dict[str, Any]:
        """The ASGI scope that a server makes of the request (its keys are those of uvicorn)."""
        first, *lines = self.head().split(b"\r\n")
        method, target, _ = first.split(b" ")
        headers = []
        for line in lines:
            name, _, value = line.partition(b": ")
            headers.append((name.lower(), value))
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": ("127.0.0.1", 8000),
            "client": (self.address, 1024 + self.client % 60_000),
            "scheme": "http",
            "method": method.decode(),
            "root_path": "",
            "path": target.decode(),
            "raw_path": target,
            "query_string": b"",
            "headers": headers,
            "state": {},
        }

    def environ(self) -> dict[str, Any]:
        """The WSGI environ that a server makes of the request (its keys are those of gunicorn)."""
        first, *lines = self.head().decode("latin-1").split("\r\n")
        method, target, protocol = first.split(" ")
        made: dict[str, Any] = {
            "wsgi.errors": sys.stderr,
            "wsgi.version": (1, 0),
            "wsgi.multithread": True,
            "wsgi.multiprocess": True,
            "wsgi.run_once": False,
            "wsgi.input": io.BytesIO(),
            "wsgi.url_scheme": "http",
            "SERVER_SOFTWARE": "bench",
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "8000",
            "SERVER_PROTOCOL": protocol,
            "REQUEST_METHOD": method,
            "QUERY_STRING": "",
            "RAW_URI": target,
            "SCRIPT_NAME": "",
            "PATH_INFO": target,
            "REMOTE_ADDR": self.address,
            "REMOTE_PORT": str(1024 + self.client % 60_000),
        }
        for line in lines:
            name, _, value = line.partition(": ")
            made[f"HTTP_{name.upper().replace('-', '_')}"] = value
        return made

    def attributes(self) -> dict[str, str]:
        """What `RateLimiter.check` is told of the request."""
        return {"remote_address": self.address, "method": "GET", "path": "".join(self.path)}


def filled(template: str, number: int) -> str:
    """The template with its parameters replaced by this number."""
    return PARAMETER.sub(str(number), template)


def one() -> Iterator[Request]:
    """One client, one path."""
    while True:
        yield Request(7, filled("/items/{item:int}", 42))


def known() -> Iterator[Request]:
    """1 000 clients in a mixed order, again and again, each with its own path."""
    requests = [Request(n, filled(WITH_NUMBERS[n % len(WITH_NUMBERS)], n)) for n in range(KNOWN)]
    random.Random(1).shuffle(requests)
    return cycle(requests)


def zipf() -> Iterator[Request]:
    """100 000 clients, by Zipf's law. The same requests each time."""
    dice = random.Random(1)
    shares = list(accumulate(1 / rank for rank in range(1, CLIENTS + 1)))
    numbers = range(CLIENTS)
    while True:
        clients = dice.choices(numbers, cum_weights=shares, k=1000)
        items = dice.choices(numbers, cum_weights=shares, k=1000)
        for client, item, template in zip(clients, items, dice.choices(TEMPLATES, k=1000), strict=True):
            yield Request(client, filled(template, item))


def new() -> Iterator[Request]:
    """Clients and paths that no earlier request of this stream had."""
    for number in count(FIRST_NEW):
        yield Request(number, filled(WITH_NUMBERS[number % len(WITH_NUMBERS)], number))


STREAMS: dict[str, Callable[[], Iterator[Request]]] = {"one": one, "known": known, "Zipf": zipf, "new": new}
NAMES = {
    "one": "one known client",
    "known": "1 000 known clients",
    "Zipf": "100 000 clients by Zipf",
    "new": "new clients and paths only",
}
"""What figures call the streams."""

SEEN = {"one": 500, "known": 2 * KNOWN, "Zipf": 20_000, "new": 1_000}
"""How many requests of a stream an app serves before the first that is measured."""
