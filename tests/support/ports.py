"""Ports for servers that cannot choose one by themselves, or that come back on the same one.

The system gives the ports of its own range, from 32768 or later, to all clients and to all servers that let it choose.
A free port of that range may be taken before it is used, even by a client that tries to connect to it. The ports given
here are below that range.
"""

import contextlib
import random
import socket

_FIRST, _END = 10_000, 32_768
_chance = random.SystemRandom()  # other processes of the tests must not choose the same ones


def free_ports(number: int, *, and_above: int = 0) -> list[int]:
    """Return different free ports. The port that is `and_above` higher than each is free, too, and none of them."""
    found: set[int] = set()
    end = _FIRST + and_above if and_above else _END
    while len(found) < number:
        port = _chance.randrange(_FIRST, end)
        if _is_free(port) and _is_free(port + and_above):
            found.add(port)
    return list(found)


def free_port() -> int:
    """Return a free port."""
    (port,) = free_ports(1)
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False
