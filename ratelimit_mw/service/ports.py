"""The ports of the service. They are bound before anything is served, so that a taken port is reported.

This module is internal: its names may change in any release.
"""

import errno
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.service.settings import Address, Settings, flag_of

_BACKLOG = 2048
"""The connections that may wait to be accepted. The servers set it again."""


_OTHERS = 512
"""The descriptors for everything but connections of callers."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


def allow_descriptors(settings: Settings) -> None:
    """Let this process open as many descriptors as its connections may need, as far as the system allows."""
    wanted = len(settings.addresses) * settings.max_connections + _OTHERS
    soft, hard = getrlimit(RLIMIT_NOFILE)
    most = wanted if hard == RLIM_INFINITY else min(wanted, hard)
    if soft != RLIM_INFINITY and soft < most:
        setrlimit(RLIMIT_NOFILE, (most, hard))


def are_exhausted() -> bool:
    """Return True if the process or the machine has no descriptor for a further connection."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in _EXHAUSTED
    return False


def bind(addresses: Mapping[str, Address]) -> Mapping[str, socket.socket]:
    """Bind a socket to each address. None of them listens yet.

    SO_REUSEPORT is not set, because it would hide that a port is taken.

    Args:
        addresses: The addresses, by the names of their settings.

    Raises:
        ConfigurationError: Addresses are taken or cannot be bound. The error has every problem found.
    """
    sockets: dict[str, socket.socket] = {}
    problems: list[Problem] = []
    for name, address in addresses.items():
        try:
            sockets[name] = _bound(address)
        except (OSError, UnicodeError) as error:  # UnicodeError: the host is no name
            problems.append(_unusable(name, address, error))
    if problems:
        close(sockets, addresses)
        raise ConfigurationError(problems)
    return sockets


def listen(sockets: Mapping[str, socket.socket], addresses: Mapping[str, Address]) -> None:
    """Let all sockets listen. Of sockets that are bound to the same port, only one can.

    Two flags may name one port in different ways (`localhost` and `127.0.0.1`), or two processes start at once.

    Raises:
        ConfigurationError: A port is taken. All sockets are closed.
    """
    problems: list[Problem] = []
    for name, each in sockets.items():
        try:
            each.listen(_BACKLOG)
        except OSError as error:
            problems.append(_unusable(name, addresses[name], error))
    if problems:
        close(sockets, addresses)
        raise ConfigurationError(problems)


def _unusable(name: str, address: Address, error: Exception) -> Problem:
    return Problem(f"{flag_of(name)}: {address} can't be used: {getattr(error, 'strerror', None) or error}")


def close(sockets: Mapping[str, socket.socket], addresses: Mapping[str, Address]) -> None:
    """Close bound sockets, and remove the files of unix sockets."""
    for name, each in sockets.items():
        each.close()
        release(addresses[name])


def bound_address(found: socket.socket, address: Address) -> Address:
    """Return the address to which a socket is bound: the host as an address, and the port that the system chose."""
    return address if address.path else Address(*found.getsockname()[:2])


def release(address: Address) -> None:
    """Remove the file of a unix socket."""
    if address.path:
        with suppress(FileNotFoundError):
            Path(address.path).unlink()


def _bound(address: Address) -> socket.socket:
    if address.path:
        _remove_unused(address.path)
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: object = address.path
    else:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    try:
        # A process that ended a moment ago must not keep the port taken. Ports that are served stay taken.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(target)  # type: ignore[arg-type]  # an address of this family
    except BaseException:
        found.close()
        raise
    return found


def _remove_unused(path: str) -> None:
    """Remove the file of a unix socket on which no process listens any more."""
    with suppress(FileNotFoundError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            if Path(path).is_socket():
                Path(path).unlink()
