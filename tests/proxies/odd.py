"""Requests as browsers do not send them. None of them may pass a proxy without being counted."""

import socket

_END = b"Host: a\r\nConnection: close\r\n"
_GET = b"GET / HTTP/1.1\r\n" + _END

REQUESTS = {
    "bytes in the path that are not UTF-8": b"GET /\xff\xfe HTTP/1.1\r\n" + _END + b"\r\n",
    "an absolute target": b"GET http://other.example/login HTTP/1.1\r\n" + _END + b"\r\n",
    "a method that is not known": b"BREW / HTTP/1.1\r\n" + _END + b"\r\n",
    "a long query": b"GET /?" + b"a" * 7000 + b" HTTP/1.1\r\n" + _END + b"\r\n",
    "a path with quotes": b'GET /"<> HTTP/1.1\r\n' + _END + b"\r\n",
    "an encoded zero byte": b"GET /%00%2e%2e/x HTTP/1.1\r\n" + _END + b"\r\n",
    "a fragment": b"GET /a#b HTTP/1.1\r\n" + _END + b"\r\n",
    "an expectation": b"POST / HTTP/1.1\r\n" + _END + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    "a chunked body": b"POST / HTTP/1.1\r\n" + _END + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "a body of a GET": _GET + b"Content-Length: 3\r\n\r\nabc",
    "an upgrade": b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n",
    "long headers": _GET + b"".join(b"X-%d: %b\r\n" % (n, b"b" * 7000) for n in range(3)) + b"\r\n",
    "many headers": _GET + b"".join(b"X-%d: b\r\n" % n for n in range(90)) + b"\r\n",
    "headers that are not UTF-8": _GET + b"Cookie: \xff=\xfe\r\nX-Forwarded-For: \xff,,\r\n\r\n",
    "a vertical tab in a header": _GET + b"X-Any: a\x0bb\r\n\r\n",
    "odd names of headers": _GET + b"X_Original_URI: /x\r\nX!#$%&'*+.^`|~: 1\r\n\r\n",
    "conditions": _GET + b'If-Match: "x"\r\nRange: bytes=0-1\r\n\r\n',
    "the headers of another proxy": _GET + b"X-Forwarded-Uri: /x\r\nX-Forwarded-Method: GET\r\n\r\n",
    "no host": b"GET / HTTP/1.0\r\n\r\n",
}  # fmt: skip


def sent(url: str, data: bytes, client: str) -> bytes:
    """The response to these bytes, which come from a loopback address of their own."""
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 60, source_address=(client, 0)) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def fate(response: bytes) -> str:
    """Whether a response was "counted", "refused" by a status from 400 to 499 without being counted, or "missed"."""
    head = response.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")[0].lower()
    if b"\r\nx-ratelimit-remaining: " in head:
        return "counted"
    status = head.split()[1] if head else b"closed"
    return "refused" if status.startswith((b"4", b"closed")) else "missed"
