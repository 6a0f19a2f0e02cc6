"""Which errors of a server or of a socket are faults that waiting cannot heal, and what heals them."""

import re

from ratelimit_mw.errors import PermanentFault, StoreUnavailable

_REMEDIES = [
    (r"WRONGPASS|invalid password|invalid username-password", "correct the user and the password in the storage URL"),
    (r"NOAUTH", "write the password into the storage URL, as in redis://:password@host:6379/0"),
    (
        r"without any password configured|no password is set",
        "remove the password from the storage URL, or set one on the server",
    ),
    (r"NOPERM", "permit the server's user the commands and keys that the package needs, see the page on storage"),
    (r"DB index is out of range|invalid DB index", "write the number of a database that the server has, such as /0"),
    (
        r"SELECT is not allowed in cluster mode|^MOVED |^CROSSSLOT ",
        "the server is one of a cluster: use redis+cluster://",
    ),
    (r"cluster support disabled", "the server is not one of a cluster: use redis:// or rediss://"),
    (r"unknown command .?SENTINEL", "the server is no Sentinel: use redis://, or the port of the Sentinels"),
    (
        r"unknown command",
        "correct the host and the port in the storage URL: this server has no scripts. For a Sentinel use redis+sentinel://",
    ),
    (r"No such master with that name", "correct the name of the service in the storage URL"),
    (
        r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|wrong version number|record layer failure",
        "the port speaks no TLS: use redis:// instead of rediss://, or the port for TLS",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        "renew the server's certificate, or name its authority with ssl_ca_certs in the storage URL",
    ),
]
"""What a message contains, and the remedy. The first that matches counts."""

_KNOWN = [(re.compile(pattern, re.IGNORECASE), remedy) for pattern, remedy in _REMEDIES]

_ALERT = b"\x15\x03"
"""The first bytes of a server that speaks TLS and was sent something else."""


def refusal(text: str) -> StoreUnavailable:
    """The exception for the message of a server or a socket: a `PermanentFault` if waiting does not help."""
    for pattern, remedy in _KNOWN:
        if pattern.search(text):
            return PermanentFault(text, remedy)
    return StoreUnavailable(text)


def stranger(greeting: bytes) -> PermanentFault:
    """The exception for a server whose first bytes are not Redis's."""
    if greeting.startswith(_ALERT):
        return PermanentFault("the server speaks TLS", "use rediss:// instead of redis://, or the port without TLS")
    remedy = "correct the host and the port in the storage URL"
    return PermanentFault(f"the server is no Redis: it sent {greeting[:40]!r}", remedy)
