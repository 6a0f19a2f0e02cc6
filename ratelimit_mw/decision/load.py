"""The load of a process: how it is measured, the share of requests to shed, and how far elastic limits are open."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from ratelimit_mw.identity.request import Request
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.model import Charge, Priority
from ratelimit_mw.process_local import lazy, lock
from ratelimit_mw.settings import LoadSettings

_MIN_INTERVAL = 0.5  # seconds between two readings; the processor's clocks are too coarse for a shorter interval
_CGROUP = Path("/sys/fs/cgroup")


class Processor:
    """Measures the share of the processor in use, from 0 to 1, over half a second or more.

    It is the greater of two shares. The first is the CPU time of the process relative to one core, because Python
    hardly uses more. The second is the CPU time of its control group relative to the quota of that group, if it has
    one (Linux, cgroup v2). The share is 0 until there are two readings to compare.
    """

    def __init__(self, cgroup: Path | None = None) -> None:
        self._cgroup = _own_cgroup() if cgroup is None else cgroup
        self._at = time.monotonic()
        self._process = time.process_time()
        self._group = self._group_seconds()
        self._share = 0.0

    def share(self, now: float) -> float:
        """The share in use. `now` is in seconds of the monotonic clock."""
        elapsed = now - self._at
        if elapsed >= _MIN_INTERVAL:
            process, group = time.process_time(), self._group_seconds()
            share = (process - self._process) / elapsed
            cores = self._cores()
            if cores and group is not None and self._group is not None:
                share = max(share, (group - self._group) / elapsed / cores)
            self._share = min(max(share, 0.0), 1.0)
            self._at, self._process, self._group = now, process, group
        return self._share

    def _group_seconds(self) -> float | None:
        for line in _read(self._cgroup / "cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            if name == "usage_usec":
                return int(value) / 1e6
        return None

    def _cores(self) -> float:
        """The number of cores that the group may use; 0 if it is not limited."""
        quota, _, period = _read(self._cgroup / "cpu.max").strip().partition(" ")
        return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else 0.0


def _own_cgroup() -> Path:
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::/"):
            return _CGROUP / line.removeprefix("0::/")
    return _CGROUP


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):  # not Linux, or not readable
        return ""


EASES = 0.02
"""The pressure falls by at most this much per second. It takes 15 seconds from full load to no shedding. If it fell
much faster, too many requests would be admitted before the load shows them."""

RETURNS_IN = 5.0
"""The shortest wait, in seconds, that a shed request is asked for. The longest is twice that."""

_GOLDEN = 0.6180339887498949  # (√5 − 1) / 2


Band = tuple[float, float]
"""Two loads. Above the first, some requests are shed. From the second on, all requests are shed."""

BANDS: dict[Priority, Band] = {"low": (0.7, 0.85), "normal": (0.9, 1.0), "critical": (0.95, 1.05)}
"""The bands of load in which requests of each priority are shed, in ascending order. The second load of `critical` is
never reached."""


def pressure_after(before: float, load: float, elapsed: float) -> float:
    """The pressure (the recent peak of the load, from 0 to 1), if it was `before` and `elapsed` seconds have passed.

    It rises with the load at once and falls by `EASES` per second. A clock that steps back eases nothing.
    """
    return max(load, before - EASES * max(elapsed, 0.0), 0.0)


def share_shed(level: float, band: Band) -> float:
    """The share of requests to shed at a pressure, from 0 to 1. It grows linearly within `band`."""
    begins, full = band
    if level <= begins:
        return 0.0
    return 1.0 if level >= full else (level - begins) / (full - begins)


def turn(number: int) -> float:
    """A number from 0 to 1. The `number`-th request is shed if it is less than the share to shed.

    The fractional parts of the multiples of the golden ratio fill the interval evenly (Knuth, TAOCP vol. 3, 6.4,
    theorem S). Of n requests in a row, n × share ± 3 are shed. Two clients whose requests alternate lose the same
    share. If every second request were shed, one of them would lose all.
    """
    return number * _GOLDEN % 1.0


def retry_after_shed(drawn: float, share: float) -> float:
    """The seconds that a shed request with the turn `drawn` must wait. They differ, so that not all return at once."""
    return RETURNS_IN * (1.0 + drawn / share)


FULL_LAG = 0.07
"""An event loop that wakes up this many seconds late is fully loaded (the default of node's toobusy-js)."""

FULL_QUEUE = 0.1
"""A process whose requests wait this many seconds for a thread is fully loaded (the interval of CoDel, RFC 8289)."""

OPENS_IN = 5.0
CLOSES_IN = 1.0
"""Seconds in which an elastic limit opens and closes fully. It closes faster, but not at once: a spike may be short."""

_REOPENS_AT = 0.9
_MEMORY = 1.0  # time constant of the smoothed load, in seconds

BRISK = 0.3
"""Time constant, in seconds, of the load that sheds requests. Shorter than `_MEMORY`, because queues grow fast."""


def load_of(*, lag: float = 0.0, queued: float = 0.0, busy: float = 0.0, cpu: float = 0.0) -> float:
    """The load from 0 to 1. It is the load of the scarcest resource.

    Args:
        lag: how late the event loop wakes up, in seconds. Each is 0 if it was not measured.
        queued: how long a request waited for a thread, in seconds.
        busy: the share of the capacity that requests in flight take.
        cpu: the share of the processor in use.
    """
    return min(max(lag / FULL_LAG, queued / FULL_QUEUE, busy, cpu, 0.0), 1.0)


def smoothed(average: float, value: float, elapsed: float, memory: float = _MEMORY) -> float:
    """The exponential moving average with the time constant `memory`, after `value` held for `elapsed` seconds."""
    return value + (average - value) * exp(-max(elapsed, 0.0) / memory)


class Opening(NamedTuple):
    """How far an elastic limit is open at the time `at`: `share` is from 0 to 1, `rising` says in which direction."""

    share: float
    rising: bool
    at: float


def first_opening(load: float, below: float, now: float) -> Opening:
    """The opening of a limit that is asked for the first time. It is fully open or fully closed."""
    return Opening(1.0, True, now) if load < below else Opening(0.0, False, now)


def opening_after(opening: Opening, load: float, below: float, now: float) -> Opening:
    """The opening at `now`, if the load was `load` since `opening` was calculated.

    A limit that has begun to close opens again only at a load below 90 % of `below` (hysteresis).
    """
    elapsed = max(now - opening.at, 0.0)
    rising = load < (below if opening.rising else below * _REOPENS_AT)
    share = opening.share + (elapsed / OPENS_IN if rising else -elapsed / CLOSES_IN)
    return Opening(min(max(share, 0.0), 1.0), rising, max(now, opening.at))


_EVERY = 0.1  # seconds between two measurements of the load and of the event loop
_IDLE = 10.0  # seconds without a request after which the event loop is no longer measured

_STARTED = re.compile(r"\s*(?:t=)?([0-9]{9,17}(?:\.[0-9]{1,9})?)\s*")
_YEAR_2286 = 10**10  # in seconds; a greater number is in milliseconds or microseconds

ASGI_CAPACITY = 100
WSGI_CAPACITY = 8
"""The defaults of `load: {capacity: N}`, for an event loop and for a threaded server: how many requests in flight count
as a full load."""


def time_in_queue(request: Request, trusted: Callable[[Request], bool]) -> float:
    """The seconds since a trusted proxy received the request (X-Request-Start); 0 if that is unknown.

    Proxies write seconds, milliseconds or microseconds since the epoch, with or without a leading "t=". A time that
    is in the future or more than a minute old is ignored, because it comes from a clock that differs from ours.
    """
    written = _STARTED.fullmatch(request.header("x-request-start") or "")
    if written is None or not trusted(request):
        return 0.0
    started = float(written[1])
    while started > _YEAR_2286:
        started /= 1000
    waited = time.time() - started
    return waited if 0.0 < waited < 60.0 else 0.0


class Meter:
    """Turns what the middlewares report about requests, event loops and queues into a load from 0 to 1.

    Without a middleware (`check()` in a program that serves no requests), only the processor is measured. With
    `settings.source`, the load is what that function returns. If the function fails, nothing depends on a guess: the
    load counts as 1, so no elastic limit opens, and the pressure counts as 0, so no request is shed.

    Any thread may use a meter.

    Args:
        settings: the `load` section of the rules.
        clock: returns the time in seconds.
    """

    _lock = lazy(lock)
    _here = lazy(set[object])
    """The requests in flight."""

    def __init__(self, settings: LoadSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.clock = clock
        self.processor = Processor()
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._openings: dict[float, Opening] = {}
        self._pressure = self._pressed_at = 0.0
        self._looked_at = -_EVERY
        self._asked_at = 0.0
        self._load: float | None = None
        self._brisk = 0.0  # the load with the shorter time constant `BRISK`
        self._capacity = settings.capacity or ASGI_CAPACITY
        self._lag = self._queued = 0.0
        self._due: float | None = None
        self._once = Once()

    def arrived(self, capacity: int, request: object) -> None:
        """Count a request that has come to a middleware.

        Args:
            capacity: the number of requests in flight that is a full load, unless `load: {capacity:}` is set.
            request: identifies the request, so that `left` may be called twice for it after an interruption.
        """
        self._here.add(request)
        self._capacity = self.settings.capacity or capacity
        self._asked_at = self.clock()

    def left(self, request: object) -> None:
        """Stop counting a request whose response has ended."""
        self._here.discard(request)

    @property
    def in_flight(self) -> int:
        """How many requests have come to a middleware and have not left it."""
        return len(self._here)

    def queued(self, seconds: float) -> None:
        """Report that a request waited this many seconds before it reached the process."""
        self._queued = max(self._queued, seconds)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure how late this loop wakes up. The measurement stops when no request has come for a while."""
        if loop not in self._loops:
            self._loops.add(loop)
            self._wake(loop)

    def load(self) -> float:
        """The current load, from 0 to 1."""
        now = self.clock()
        elapsed = now - self._looked_at
        if self._load is None or elapsed >= _EVERY:
            with self._lock:
                if self.settings.source is not None:
                    reported = self._reported(self.settings.source)
                    self._load, self._brisk = (1.0, 0.0) if reported is None else (reported, reported)
                else:
                    measured = self._measured(now)
                    first = self._load is None
                    self._load = measured if self._load is None else smoothed(self._load, measured, elapsed)
                    self._brisk = measured if first else smoothed(self._brisk, measured, elapsed, BRISK)
                self._looked_at = now
        return self._load

    def share(self, below: float) -> float:
        """How far an elastic limit with this `below` is open, from 0 to 1."""
        load, now = self.load(), self.clock()
        before = self._openings.get(below)
        opening = first_opening(load, below, now) if before is None else opening_after(before, load, below, now)
        self._openings[below] = opening
        return opening.share

    def pressure(self) -> float:
        """The recent peak of the load, from 0 to 1. It decides which requests are shed."""
        self.load()
        now = self.clock()
        self._pressure = pressure_after(self._pressure, self._brisk, now - self._pressed_at)
        self._pressed_at = max(now, self._pressed_at)
        return self._pressure

    def stretched(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        """`charges` with each elastic quota replaced by the one that the current load permits."""
        found = []
        for charge in charges:
            elastic = charge.ask.quota.elastic
            if elastic is not None:
                quota = elastic.quotas[int(self.share(elastic.below) * (len(elastic.quotas) - 1))]
                charge = Charge(charge.rule, charge.ask._replace(quota=quota))  # noqa: PLW2901 - the charge as it is asked now
            found.append(charge)
        return found

    def _measured(self, now: float) -> float:
        overdue = now - self._due if self._due is not None else 0.0
        # The request that is being decided is in flight too. Alone it is no load.
        busy = max(self.in_flight - 1, 0) / self._capacity
        lag, queued, self._lag, self._queued = max(self._lag, overdue), self._queued, 0.0, 0.0
        return load_of(lag=lag, queued=queued, busy=busy, cpu=self.processor.share(now))

    def _reported(self, source: Callable[..., object]) -> float | None:
        """The load that the user's function returns, clamped to 0 to 1; None if it fails or returns NaN."""
        try:
            load = float(source())  # type: ignore[arg-type]  # float() raises for what is not a number
        except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
            self._complain(type(error).__name__)
            return None
        if not 0.0 <= load <= 1.0:
            self._complain(f"{load!r} is not from 0 to 1")
            return None if load != load else min(max(load, 0.0), 1.0)  # noqa: PLR0124 - true of NaN only
        return load

    def _complain(self, what: str) -> None:
        self._once(logger.warning, "load: %s: %s (logged once)", self.settings.name, what)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self.clock()
        if self._due is not None:
            self._lag = max(self._lag, now - self._due)
        if now - self._asked_at > _IDLE:
            self._loops.discard(loop)
            self._due, self._lag = None, 0.0
            return
        self._due = now + _EVERY
        loop.call_later(_EVERY, self._wake, loop)
