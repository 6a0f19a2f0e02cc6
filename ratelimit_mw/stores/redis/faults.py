"""Which errors of a server or of a socket are faults that waiting cannot heal, and what heals them."""

import contextlib
import re
import socket
import ssl

from ratelimit_mw.errors import PermanentFault, StoreUnavailable

_NO_TLS = "use redis:// instead of rediss://, or the port for TLS"
_TLS = "use rediss:// instead of redis://, or the port without TLS"

_REMEDIES = [
    (r"WRONGPASS|invalid password|invalid username-password", "correct the user and the password in the storage URL"),
    (r"NOAUTH", "write the password into the storage URL, as in redis://:password@host:6379/0"),
    (
        r"without any password configured|no password is set",
        "remove the password from the storage URL, or set one on the server",
    ),
    (
        r"NOPERM|ACL failure in script",
        "permit the server's user the commands and keys that the package needs, see the page on storage",
    ),
    (r"DB index is out of range|invalid DB index", "write the number of a database that the server has, such as /0"),
    (
        r"SELECT is not allowed in cluster mode|^MOVED |^CROSSSLOT ",
        "the server is a node of a cluster: use redis+cluster://",
    ),
    (r"cluster support disabled", "the server is not a node of a cluster: use redis:// or rediss://"),
    (r"unknown command .?SENTINEL", "the server is no Sentinel: use redis://, or the port of the Sentinels"),
    (
        r"unknown command",
        "correct the host and the port in the storage URL: this server runs no scripts. For a Sentinel use redis+sentinel://",
    ),
    (r"No such master with that name", "correct the name of the service in the storage URL"),
    (
        r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|wrong version number|record layer failure",
        _NO_TLS,
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        "renew the server's certificate, or name its authority with ssl_ca_certs in the storage URL",
    ),
]
"""What a message contains, and the remedy. The first that matches counts."""

_KNOWN = [(re.compile(pattern, re.IGNORECASE), remedy) for pattern, remedy in _REMEDIES]

_PATIENCE = 0.5
"""Seconds in which a server must answer when its kind of port is tried."""

_ALERT = b"\x15\x03"
"""The first bytes of a server that speaks TLS and was sent something else."""

_TLS_RECORDS = (b"\x15", b"\x16")
"""The first byte of a record of TLS: of an alert, and of a handshake."""


def refusal(text: str) -> StoreUnavailable:
    """The exception for the message of a server or a socket: a `PermanentFault` if waiting does not help."""
    for pattern, remedy in _KNOWN:
        if pattern.search(text):
            return PermanentFault(text, remedy)
    return StoreUnavailable(text)


def unavailable(error: Exception) -> StoreUnavailable:
    """The exception for one of redis-py or of a socket."""
    return refusal(str(error) or type(error).__name__)


def not_redis(greeting: bytes) -> PermanentFault:
    """The exception for a server whose first bytes are not Redis's."""
    if greeting.startswith(_ALERT):
        return PermanentFault("the server speaks TLS", _TLS)
    remedy = "correct the host and the port in the storage URL"
    return PermanentFault(f"the server is not a Redis server: it sent {greeting[:40]!r}", remedy)


def mismatch(url: str, address: tuple[str, int] | None, failure: str) -> PermanentFault | None:
    """The fault if `url` speaks TLS to a port without it, or the reverse. None if that is not the case.

    Neither server says so: one waits for more, the other closes the connection. The port is tried the other way.

    Args:
        url: The URL of the server.
        address: Its host and port; None for a Unix socket.
        failure: How the connection failed.
    """
    if address is None:
        return None
    with contextlib.suppress(OSError):
        if url.startswith("rediss:"):
            if "refused" not in failure and _answers_plainly(address):
                return PermanentFault(f"the port speaks no TLS ({failure})", _NO_TLS)
        elif re.search("closed|reset", failure, re.IGNORECASE) and _answers_tls(address):
            return PermanentFault(f"the port speaks TLS ({failure})", _TLS)
    return None


def _answers_plainly(address: tuple[str, int]) -> bool:
    with socket.create_connection(address, _PATIENCE) as plain:
        plain.sendall(b"PING\r\n")
        return plain.recv(1) in (b"+", b"-")


def _answers_tls(address: tuple[str, int]) -> bool:
    # A socket of `ssl` would stay open if the server resets the connection while it is wrapped.
    greeting = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(
            ssl.MemoryBIO(), greeting, server_hostname="redis"
        ).do_handshake()
    with socket.create_connection(address, _PATIENCE) as plain:
        plain.sendall(greeting.read())
        return plain.recv(1) in _TLS_RECORDS
