"""The ports of the service. They are bound before anything is served, so that a taken port is reported at the start.

This module is internal: its names may change in any release.
"""

import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.service.settings import Address, flag_of


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
        except OSError as error:
            problems.append(Problem(f"{flag_of(name)}: {address} can't be used: {error.strerror or error}"))
    if problems:
        close(sockets, addresses)
        raise ConfigurationError(problems)
    return sockets


def close(sockets: Mapping[str, socket.socket], addresses: Mapping[str, Address]) -> None:
    """Close bound sockets, and remove the files of unix sockets."""
    for name, each in sockets.items():
        each.close()
        release(addresses[name])


def bound_address(found: socket.socket, address: Address) -> Address:
    """Return the address with the port that the system has chosen, if it was 0."""
    return address if address.path else address._replace(port=found.getsockname()[1])


def release(address: Address) -> None:
    """Remove the file of a unix socket."""
    if address.path:
        with suppress(FileNotFoundError):
            Path(address.path).unlink()


def _bound(address: Address) -> socket.socket:
    if address.path:
        return _bound_unix(address.path)
    family, kind, protocol, _, target = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    found = socket.socket(family, kind, protocol)
    try:
        # A process that ended a moment ago must not keep the port taken. Ports that are served stay taken.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(target)
    except BaseException:
        found.close()
        raise
    return found


def _bound_unix(path: str) -> socket.socket:
    """Bind a unix socket. The file of a process that no longer listens is replaced."""
    with suppress(FileNotFoundError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            if Path(path).is_socket():
                Path(path).unlink()
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(path)
    except BaseException:
        found.close()
        raise
    return found
