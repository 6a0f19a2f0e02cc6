"""Storage URLs taken apart: of one server, or of several."""

import re
from typing import NamedTuple

_URL = re.compile(r"(?P<scheme>[^:/?#]*)://(?P<netloc>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?")


class Parts(NamedTuple):
    """The parts of `scheme://credentials@hosts/path?query`, each as it is written."""

    scheme: str
    credentials: str
    hosts: str
    path: str
    query: str


def split(url: str) -> Parts:
    """The parts of a URL. Raises ValueError where it has none.

    The library's own `urlsplit` takes one host, and refuses several of which one is an IPv6 address.
    """
    found = _URL.match(url)
    if not found:
        raise ValueError(f"it has to be scheme://host:port, not {url!r}")
    credentials, _, hosts = found["netloc"].rpartition("@")
    return Parts(found["scheme"], credentials, hosts, found["path"], found["query"] or "")


def shown(url: str) -> str:
    """The URL without its user, password and options, for a log."""
    parts = split(url)
    return f"{parts.scheme}://{parts.hosts}{parts.path}"
