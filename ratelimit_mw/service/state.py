"""What the servers of one process share: the limiter, the settings, and whether requests are served.

This module is internal: its names may change in any release.
"""

import logging
import time
from collections import Counter

from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.logs import LineLimit
from ratelimit_mw.service.access import Access, Certificates
from ratelimit_mw.service.settings import Settings
from ratelimit_mw.snapshots import Histogram

logger = logging.getLogger("ratelimit_mw.service")

_MOST_LINES = 10
"""The lines of the log in a minute about one kind of refused requests."""

ERRORS = ("redis_error", "service_error")
"""The kinds of errors of ShouldRateLimit, as envoyproxy/ratelimit names them."""

RESPONSE_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the histogram of response times, in seconds: those of envoyproxy/ratelimit, and three below."""


class Service:
    """The state of the service. All servers are given this object, and all run on one event loop.

    Args:
        settings: The settings.
        limiter: The limiter that decides.
        access: Who may ask.
        certificates: The certificates of TCP ports. None without TLS.
    """

    def __init__(
        self, settings: Settings, limiter: RateLimiter, access: Access, certificates: Certificates | None = None
    ) -> None:
        self.settings = settings
        self.limiter = limiter
        self.access = access
        self.certificates = certificates
        self.started = False
        """All ports are open."""
        self.draining = False
        """The service is about to end. It still answers."""
        self.asked: Counter[str] = Counter()
        """How many requests each endpoint got, by a constant name: the method of gRPC, or the path of HTTP."""
        self.refused: Counter[str] = Counter()
        """How many requests were refused, by reason. The reasons are constants, never what a client sent."""
        self.errors: dict[str, int] = dict.fromkeys(ERRORS, 0)
        """How many calls of ShouldRateLimit the store or the service could not decide."""
        self.shadowed = 0
        """How many calls passed because the switch is at shadow."""
        self.seconds = Histogram(RESPONSE_BOUNDS, [0] * (len(RESPONSE_BOUNDS) + 1))
        """How long the calls of ShouldRateLimit took by gRPC."""
        self.unknown_domains = 0
        """How many requests had a domain that the rules do not have. They passed."""
        self._lines = LineLimit()
        if certificates is not None:
            certificates.refused = self._refuse_handshake

    @property
    def ready(self) -> bool:
        """True if a load balancer may send requests."""
        return self.started and not self.draining

    def refuse(self, reason: str, message: str = "", *arguments: object) -> None:
        """Count a refused request, by a constant reason such as "message too long". A message is logged by `warn`."""
        self.refused[reason] += 1
        if message:
            self.warn(reason, message, *arguments)

    def warn(self, subject: str, message: str, *arguments: object) -> None:
        """Log what callers can cause, at most ten times a minute.

        Args:
            subject: What the line is about, a constant.
            message: The line. Neither it nor its arguments may have what a client sent.
            arguments: The arguments of the message.
        """
        omitted = self._lines.omitted(subject, _MOST_LINES, time.monotonic_ns() // 1_000)
        if omitted is not None:
            more = f" ({omitted} more of these were not logged)" if omitted else ""
            logger.warning("%s%s", message % arguments, more)

    def _refuse_handshake(self, reason: str) -> None:
        self.refuse("tls_handshake", "a caller of --http or --admin was refused in its TLS handshake: %s", reason)
