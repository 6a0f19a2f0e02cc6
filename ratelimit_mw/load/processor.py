"""How much of the processor this process uses, of what it may use."""

import time
from pathlib import Path

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
