"""The load of a process: how it is measured, which share of requests it sheds, which elastic limits it opens."""

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from math import exp, inf
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Charge
from ratelimit_mw.process_local import lazy, lock
from ratelimit_mw.settings import Band, LoadSettings

_AT_LEAST = 0.5  # seconds between two readings: a shorter span says nothing
_CGROUP = Path("/sys/fs/cgroup")


class Processor:
    """The share in use, from 0 to 1, over half a second or more; 0 before there is anything to compare.

    It is the greater of two: the process's own time against one core, for Python uses hardly more than one, and
    its control group's against the quota of that group, where it has one (Linux, cgroup v2).
    """

    def __init__(self, cgroup: Path | None = None) -> None:
        self._cgroup = _own_cgroup() if cgroup is None else cgroup
        self._at = time.monotonic()
        self._process = time.process_time()
        self._group = self._group_seconds()
        self._share = 0.0

    def share(self, now: float) -> float:
        """The share in use; `now` is by the monotonic clock."""
        elapsed = now - self._at
        if elapsed >= _AT_LEAST:
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
        """How many cores the group may use; 0 where nothing limits it."""
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
    except (OSError, UnicodeDecodeError):  # another system, or nothing that it lets us see
        return ""


EASES = 0.02
"""How much pressure falls in a second, at most: from a full load to one that sheds nothing takes fifteen. If it fell
much faster, more would be let in than there is room for before the load shows it."""

RETURNS_IN = 5.0
"""The least that who was shed is asked to wait; the most is twice that."""

_GOLDEN = 0.6180339887498949


class Pressure(NamedTuple):
    """What the load has been of late, at a moment."""

    level: float
    at: float


NONE = Pressure(0.0, -inf)
"""Where the load was never looked at."""


def pressed(before: Pressure, load: float, now: float) -> Pressure:
    """The pressure at `now`, under a load that is that high."""
    at = max(now, before.at)
    return Pressure(max(load, before.level - EASES * (at - before.at), 0.0), at)


def share_shed(level: float, band: Band) -> float:
    """The share that is shed at a pressure, from 0 to 1."""
    begins, all_of_it = band
    if level <= begins:
        return 0.0
    return 1.0 if level >= all_of_it else (level - begins) / (all_of_it - begins)


def turn(number: int) -> float:
    """From 0 to 1: the `number`-th request is shed where this is less than the share.

    The multiples of the golden ratio, less their whole part, fill the interval evenly, however many they are and of
    whichever clients: out of n requests in a row n × share are shed, give or take three, and two clients who take turns
    are shed alike, which by counting to two they would not be.
    """
    return number * _GOLDEN % 1.0


def comes_back_in(drawn: float, share: float) -> float:
    """Seconds after which a request may come back whose turn was `drawn`: spread, so that not all come at once."""
    return RETURNS_IN * (1.0 + drawn / share)


FULL_LAG = 0.07
"""An event loop that wakes up so much too late is fully loaded (the mark of node's toobusy)."""

FULL_QUEUE = 0.1
"""So is a process whose requests wait so long for a thread (CoDel's interval)."""

OPENS_IN = 5.0
CLOSES_IN = 1.0
"""A limit opens with care, and gives back at once, but for the second in which the load may have been a spike."""

_REOPENS_AT = 0.9
_MEMORY = 1.0  # seconds that a smoothed load looks back

BRISK = 0.3
"""So much it looks back where it sheds requests: a queue grows faster than a limit needs to close."""


class Signals(NamedTuple):
    """What a process sees of its load; 0 where there is nothing to see.

    `lag` and `queued` are seconds: how late the event loop wakes up, how long a request waited for a thread. `busy`
    is the share of the capacity that requests in flight take, and `cpu` the share of the processor in use.
    """

    lag: float = 0.0
    queued: float = 0.0
    busy: float = 0.0
    cpu: float = 0.0


def load_of(signals: Signals) -> float:
    """The load: that of the scarcest of what the process needs."""
    lag, queued, busy, cpu = signals
    return min(max(lag / FULL_LAG, queued / FULL_QUEUE, busy, cpu, 0.0), 1.0)


def smoothed(average: float, value: float, elapsed: float, memory: float = _MEMORY) -> float:
    """The moving average that looks back `memory` seconds, now that `value` held for `elapsed`."""
    return value + (average - value) * exp(-max(elapsed, 0.0) / memory)


class Opening(NamedTuple):
    """How far a limit is open at a moment: `share` from 0 to 1, and whether that rises or falls."""

    share: float
    rising: bool
    at: float


def begun(load: float, below: float, now: float) -> Opening:
    """The opening of a limit that was never asked for: there is nothing yet to move smoothly from."""
    return Opening(1.0, True, now) if load < below else Opening(0.0, False, now)


def moved(opening: Opening, load: float, below: float, now: float) -> Opening:
    """The opening at `now`, under a load that held since it was last moved."""
    elapsed = max(now - opening.at, 0.0)
    rising = load < (below if opening.rising else below * _REOPENS_AT)
    share = opening.share + (elapsed / OPENS_IN if rising else -elapsed / CLOSES_IN)
    return Opening(min(max(share, 0.0), 1.0), rising, max(now, opening.at))


_log = logging.getLogger("ratelimit_mw")

_EVERY = 0.1  # seconds between two looks at the load, and between two at the event loop
_IDLE = 10.0  # seconds without a request after which nobody looks at the event loop

_STARTED = re.compile(r"\s*(?:t=)?([0-9]{9,17}(?:\.[0-9]{1,9})?)\s*")
_YEAR_2286 = 10**10  # in seconds; a greater number is of smaller units

ASGI_CAPACITY = 100
WSGI_CAPACITY = 8
"""What is taken for a full load where `load: {capacity: N}` does not say: requests of a loop, and threads."""


def time_in_queue(request: Request, trusted: Callable[[Request], bool]) -> float:
    """The seconds since a trusted proxy took the request in (X-Request-Start); 0 where nobody says.

    Proxies write seconds, milliseconds or microseconds since the epoch, with "t=" before it or without. What is
    more than a minute old, or yet to come, is another clock's.
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
    """What the middlewares tell it of requests, loops and queues becomes a load, and quotas that go by it.

    Without a middleware (`check()` in a program that serves nothing) the processor alone tells. With
    `settings.source` that function tells: what it returns is a load; where it fails the load is full, so that no
    limit is stretched on a guess, and there is no pressure, so that no request is shed on one. Any thread may call it.
    """

    _lock = lazy(lock)

    def __init__(self, settings: LoadSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._clock = clock
        self._processor = Processor()
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._openings: dict[float, Opening] = {}
        self._pressure = NONE
        self._looked_at = -_EVERY
        self._asked_at = 0.0
        self._load: float | None = None
        self._brisk = 0.0  # the same, of a shorter time
        self._here: set[object] = set()
        self._capacity = settings.capacity or ASGI_CAPACITY
        self._lag = self._queued = 0.0
        self._due: float | None = None
        self._failed = False
        self._process = os.getpid()

    def arrived(self, capacity: int, request: object | None = None) -> None:
        """A request has come to a middleware that takes `capacity` of them for a full load, if nothing else says.

        `request` stands for it, and leaves as often as need be: what is interrupted is counted once, or not at all.
        """
        if self._process != os.getpid():  # forked: the requests in flight are the parent's
            self._here, self._process = set(), os.getpid()
        self._here.add(object() if request is None else request)
        self._capacity = self.settings.capacity or capacity
        self._asked_at = self._clock()

    def left(self, request: object | None = None) -> None:
        """Its response is done; without a name any of them has left."""
        if request is not None:
            self._here.discard(request)
        elif self._here:
            self._here.pop()

    @property
    def _in_flight(self) -> int:
        return len(self._here)

    def queued(self, seconds: float) -> None:
        """A request has waited for so long before it came."""
        self._queued = max(self._queued, seconds)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look how late this loop wakes up, as long as requests come."""
        if loop not in self._loops:
            self._loops.add(loop)
            self._wake(loop)

    def load(self) -> float:
        """The load by now, from 0 to 1."""
        now = self._clock()
        elapsed = now - self._looked_at
        if self._load is None or elapsed >= _EVERY:
            with self._lock:
                if self.settings.source is not None:
                    told = self._told(self.settings.source)
                    self._load, self._brisk = (1.0, 0.0) if told is None else (told, told)
                else:
                    measured = load_of(self._signals(now))
                    first = self._load is None
                    self._load = measured if self._load is None else smoothed(self._load, measured, elapsed)
                    self._brisk = measured if first else smoothed(self._brisk, measured, elapsed, BRISK)
                self._looked_at = now
        return self._load

    def share(self, below: float) -> float:
        """How far a limit is open that closes at the load `below`: from 0 to 1."""
        load, now = self.load(), self._clock()
        before = self._openings.get(below)
        opening = begun(load, below, now) if before is None else moved(before, load, below, now)
        self._openings[below] = opening
        return opening.share

    def pressure(self) -> float:
        """What sheds requests: the load's recent peak, from 0 to 1."""
        self.load()
        self._pressure = pressure = pressed(self._pressure, self._brisk, self._clock())
        return pressure.level

    def stretched(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        """`charges` with elastic quotas as far open as the load lets them be."""
        found = []
        for charge in charges:
            elastic = charge.ask.quota.elastic
            if elastic is not None:
                quota = elastic.quotas[int(self.share(elastic.below) * (len(elastic.quotas) - 1))]
                charge = Charge(charge.rule, charge.ask._replace(quota=quota))  # noqa: PLW2901 - as it is asked now
            found.append(charge)
        return found

    def _signals(self, now: float) -> Signals:
        overdue = now - self._due if self._due is not None else 0.0
        # The request that asks is in flight itself; alone it is no load.
        busy = max(self._in_flight - 1, 0) / self._capacity
        signals = Signals(max(self._lag, overdue), self._queued, busy, self._processor.share(now))
        self._lag = self._queued = 0.0
        return signals

    def _told(self, source: Callable[..., object]) -> float | None:
        """What the source says; None where that is no load."""
        try:
            load = float(source())  # type: ignore[arg-type]  # whatever it returns, float() has the say
        except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
            self._complain(type(error).__name__)
            return None
        if not 0.0 <= load <= 1.0:
            self._complain(f"{load!r} is not from 0 to 1")
            return None if load != load else min(max(load, 0.0), 1.0)  # noqa: PLR0124 - true of NaN only
        return load

    def _complain(self, what: str) -> None:
        if not self._failed:
            self._failed = True
            _log.warning("load: %s: %s (said once)", self.settings.name, what)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._clock()
        if self._due is not None:
            self._lag = max(self._lag, now - self._due)
        if now - self._asked_at > _IDLE:
            self._loops.discard(loop)
            self._due, self._lag = None, 0.0
            return
        self._due = now + _EVERY
        loop.call_later(_EVERY, self._wake, loop)
