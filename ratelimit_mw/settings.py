"""The settings of a rules file: the parts that are not rules. They are checked, and defaults are filled in.

This module is internal: its names may change in any release.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Literal, NamedTuple

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Where the counters are.

    Attributes:
        url: The URL of the store.
        timeout: The seconds that one decision may wait for the store.
        on_error: The decision while the store is unavailable: `allow`, `deny` or `local`.
        max_counters: The most counters in memory.
        interval: How often a process synchronises its own decisions with the store, in seconds.
        required: Whether the first start of a server fails if the store is away.
        trial: What tries a service. It is made of the other sections of the file.
    """

    url: str = "memory://"
    timeout: float = 0.1
    on_error: str = "allow"
    max_counters: int = 1_000_000
    interval: float = 1.0
    required: bool = False
    trial: str = ""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How clients are identified.

    Attributes:
        domain: The domain of the rules.
        trusted_proxies: The proxies that are trusted to report the client's address.
        trusted_hops: The number of trusted proxies in front of the app.
        ip_header: The header in which they report it.
        ipv6_prefix: The number of leading bits that identify an IPv6 client.
        user: The source of the user, such as `header:Authorization`. None if there is none.
        tier: The source of the tier. None if there is none.
        secret: The key of the hashes in counters' keys. If it is empty, the domain is used.
        attributes: The sources of the custom attributes, by name.
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


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Where the load of a process comes from.

    Attributes:
        source: A function that returns the load. None: the package measures it.
        name: The name of the function in the rules file.
        capacity: The number of requests in flight that is a full load. None: the default for ASGI or WSGI.
    """

    source: Callable[..., object] | None = None
    name: str = ""
    capacity: int | None = None


PLACEHOLDERS = ("ip", "rule", "limit", "period", "retry_after")
"""The placeholders of a message."""

BODY_PLACEHOLDERS = (*PLACEHOLDERS, "message", "status", "title", "reason")
"""The placeholders of a body's template."""

Body = str | Mapping[str, object]
"""A format of bodies (json, problem, text or html), or the template of a JSON body."""


class HeaderNames(NamedTuple):
    """The names of the headers in the group `x-ratelimit`."""

    limit: str = "X-RateLimit-Limit"
    remaining: str = "X-RateLimit-Remaining"
    reset: str = "X-RateLimit-Reset"
    over: str = "X-RateLimit-Over"


class HandlerSettings(NamedTuple):
    """The function of the app that makes the responses of denials, and its name in the rules file."""

    function: Callable[..., object]
    name: str


@dataclass(frozen=True, slots=True)
class DeferSettings:
    """How requests are deferred that a rule with `on_limit: defer` would deny.

    Attributes:
        path: The folder of the status pages.
        max_length: The most requests in the queue.
        max_each: The most requests of one identity in the queue.
        max_body: The largest body of a request, in bytes.
        max_attempts: The number of failures after which a request is parked.
        keep: The longest time that a request waits, in seconds. Its result is kept for the same time.
        below: The load below which requests are replayed.
        headers: The request headers that are kept, in lower case. None: all.
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
class ObserveSettings:
    """What the log of denials and the live page have.

    Attributes:
        denials: The most records in a minute for each rule and process.
        identity: How a record names the client: as in the `key` of its counter, `hashed`, or not at all (`none`).
        live: True if each process that decides reports to the live page.
    """

    denials: int = 10
    identity: Literal["key", "hashed", "none"] = "key"
    live: bool = False


@dataclass(frozen=True, slots=True)
class ResponseSettings:
    """The status, headers and body of denials.

    Attributes:
        status: The status.
        headers: The groups of headers about limits.
        header_names: The names of the headers in the group `x-ratelimit`.
        reset: Whether X-RateLimit-Reset is an `epoch` time or a number of seconds (`delta`).
        body: The formats. The client's Accept selects one of them.
        message: The message. It may contain {ip} {rule} {limit} {period} {retry_after}.
        documentation_url: The URL of a page about the limits.
        handler: The function of the app that makes the responses. None: the other settings make them.
    """

    status: int = 429
    headers: tuple[str, ...] = ("x-ratelimit", "retry-after")
    header_names: HeaderNames = field(default_factory=HeaderNames)
    reset: str = "epoch"
    body: tuple[Body, ...] = ("json",)
    message: str = "Too many requests"
    documentation_url: str | None = None
    handler: HandlerSettings | None = None
