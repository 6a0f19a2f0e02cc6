"""What the servers of one process share: the limiter, the settings, and whether requests are served.

This module is internal: its names may change in any release.
"""

from collections import Counter

from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.service.access import Access
from ratelimit_mw.service.settings import Settings


class Service:
    """The state of the service. All servers are given this object, and all run on one event loop.

    Args:
        settings: The settings.
        limiter: The limiter that decides.
        access: Who may ask.
    """

    def __init__(self, settings: Settings, limiter: RateLimiter, access: Access) -> None:
        self.settings = settings
        self.limiter = limiter
        self.access = access
        self.started = False
        """All ports are open."""
        self.draining = False
        """The service is about to end. It still answers."""
        self.under_way = 0
        """The requests that are being answered."""
        self.asked: Counter[str] = Counter()
        """How many requests each endpoint got, by a constant name: the method of gRPC, or the path of HTTP."""
        self.refused: Counter[str] = Counter()
        """How many requests were refused, by reason. The reasons are constants, never what a client sent."""
        self.unknown_domains = 0
        """How many requests had a domain that the rules do not have. They passed."""

    @property
    def ready(self) -> bool:
        """True if a load balancer may send requests."""
        return self.started and not self.draining

    def refuse(self, reason: str) -> None:
        """Count a refused request, by a constant reason such as "message too long"."""
        self.refused[reason] += 1
