"""The metrics of one limiter as text, for `/metrics` of the live page.

This module is internal: its names may change in any release.
"""

import os
from collections.abc import Iterable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.telemetry.prometheus import export

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Exposition:
    """Writes the metrics of a limiter, from a registry of its own.

    If the environment has `PROMETHEUS_MULTIPROC_DIR`, they are read from the files that the app's own `export(limiter)`
    fills in each process. A second export would add every request to these files twice.

    Args:
        limiter: The limiter.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            self._registry.register(_OfAllProcesses())
        else:
            export(limiter, self._registry)

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus. Empty if there are none."""
        return generate_latest(self._registry)


class _OfAllProcesses(Collector):
    """The metrics of this package among those of an app, summed over its processes."""

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this moment."""
        every: Iterable[Metric] = MultiProcessCollector(CollectorRegistry()).collect()  # type: ignore[no-untyped-call]
        return [metric for metric in every if metric.name.startswith("ratelimit_")]
