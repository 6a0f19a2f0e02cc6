"""The parts of a rules file that are not rules, checked and complete: plain values, no behaviour.

This module is internal: its names may change in any release.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Where the counters live. `timeout` (seconds) is what one decision may wait for the store.

    `interval` (seconds) is how often a process settles with the store what it decided by itself.
    """

    url: str = "memory://"
    timeout: float = 0.1
    on_error: str = "allow"
    max_counters: int = 1_000_000
    interval: float = 1.0


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client is known. `user`, `tier` and the values of `attributes` are sources, as `header:Authorization`.

    `secret` keys the hashes of whatever enters a counter's key; where it is empty, `domain` stands in.
    """

    domain: str
    trusted_proxies: tuple[Network, ...] = ()
    trusted_hops: int = 0
    ip_header: str = "X-Forwarded-For"
    ipv6_prefix: int = 64
    user: str | None = None
    tier: str | None = None
    secret: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


Band = tuple[float, float]
"""Two loads: above the first some requests are shed, from the second on all of them."""


class Bands(NamedTuple):
    """At which loads the requests of each priority are shed. The second of `critical` is never reached."""

    low: Band = (0.7, 0.85)
    normal: Band = (0.9, 1.0)
    critical: Band = (0.95, 1.05)


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How the load of a process is known: from `source`, a function that returns it, or by measuring.

    `capacity` is how many requests in flight are a full load; None: what is usual under ASGI and under WSGI. `shed`
    says at which loads requests are turned away, where rules have priorities.
    """

    source: Callable[..., object] | None = None
    name: str = ""
    capacity: int | None = None
    shed: Bands = field(default_factory=Bands)


PLACEHOLDERS = ("ip", "rule", "limit", "retry_after")
"""What a message may hold in braces."""

BODY_PLACEHOLDERS = (*PLACEHOLDERS, "message", "status", "title", "reason")
"""What a template of a body may."""

Body = str | Mapping[str, object]
"""A format of bodies: json, problem, text or html; or a template, the JSON that a body is to be."""


class HeaderGroups(NamedTuple):
    """The groups of headers that speak of limits: on responses of the app, and on denials."""

    allowed: tuple[str, ...] = ("x-ratelimit", "retry-after")
    denied: tuple[str, ...] = ("x-ratelimit", "retry-after")


@dataclass(frozen=True, slots=True)
class DeferSettings:
    """How requests are put off that a rule with `on_limit: defer` would deny.

    `path` is the folder of the pages that tell what became of them. At most `max_length` lie in the queue, `max_each`
    of one identity, each with at most `max_body` bytes; they wait `keep` seconds at most, and what became of them is
    known for so long. `headers` are those that are kept (lower case), None: all. What fails `max_attempts` times is
    parked. They are tried while the load is below `below`.
    """

    path: str = "/.ratelimit/deferred"
    max_length: int = 1_000
    max_each: int = 100
    max_body: int = 65_536
    max_attempts: int = 5
    keep: float = 86_400.0
    below: float = 0.7
    headers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ResponseSettings:
    """What a denied client is told. `message` may hold {ip} {rule} {limit} {retry_after}.

    Of several formats of `body` the client's Accept chooses; `page` is the HTML one's, if not our own.
    """

    status: int = 429
    headers: HeaderGroups = field(default_factory=HeaderGroups)
    reset: str = "epoch"
    body: tuple[Body, ...] = ("json",)
    page: str | None = None
    message: str = "Too many requests"
    documentation_url: str | None = None
