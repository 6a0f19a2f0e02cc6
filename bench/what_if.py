"""The what-if of a replay: fifty limits at once for a million requests of fifty thousand clients, by each algorithm."""

import random
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Effort, Figure, Run, alone, in_turn
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.model import SECOND, Quota

REQUESTS = 1_000_000
CLIENTS = 50_000
LIMITS = 50
PERIOD = 60 * SECOND
BARS = {
    "fixed_window": 500,
    "token_bucket": 6_000,
    "leaky_bucket": 6_000,
    "sliding_log": 6_000,
    "bucketed_window": 6_000,
    "sliding_window": 6_000,
}
"""The most milliseconds of each algorithm."""


def curves(effort: Effort) -> Iterator[Figure]:
    """CPU time of the curve of each algorithm, and the memory that its process takes for all that.

    A quick run takes a part of the requests and multiplies the time.
    """
    contestants = {name: (deciding, name, effort.part(REQUESTS)) for name in BARS}
    for name, taken in in_turn(contestants, effort.rounds(3)).items():
        yield alone(name, taken, "ms", at_most=BARS[name])
    memory = in_turn({name: (taking, name, effort.part(REQUESTS)) for name in BARS}, 1)
    for name, taken in memory.items():
        yield alone(f"{name}: memory of the process", taken, "MB", at_most=400, detail=True)


def deciding(name: str, requests: int) -> Run:
    """Make the curve of one limit: sort the arrivals by client, and decide on them at each limit."""
    import numpy as np

    from ratelimit_mw.foresight.what_if.exact import Sequences, decide_all

    way = ALGORITHMS[name].at_all_limits
    assert way is not None
    times, clients = arrivals(requests)
    quotas = [_quota(name, limit) for limit in range(2, 2 + 2 * LIMITS, 2)]

    def run() -> float:
        begun = time.process_time()
        owners = np.frombuffer(clients, np.int64)
        order = np.argsort(owners, kind="stable")
        counters, starts = np.unique(owners[order], return_index=True)
        sequences = Sequences(np.frombuffer(times, np.int64)[order], np.ones(requests, np.bool_), starts)
        decided = decide_all(way, sequences, counters, quotas)
        assert decided.denied[0] > decided.denied[-1] > 0
        return (time.process_time() - begun) * 1000 * REQUESTS / requests

    return run


def taking(name: str, requests: int) -> Run:
    """The largest memory of a new process that makes one curve. The child of a fork begins with that of its parent."""
    code = f"from bench.what_if import deciding, largest; deciding({name!r}, {requests})(); print(largest())"

    def run() -> float:
        command = [sys.executable, "-c", code]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    return run


def largest() -> float:
    """Return the largest memory that this program has had, in MB. That of `getrusage` is kept over an exec."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def arrivals(requests: int) -> tuple[array, array]:
    """The times and the clients of requests, 150 a second in random order, and clients by Zipf's law."""
    chance = random.Random(16)
    weights = [1 / rank for rank in range(1, CLIENTS + 1)]
    clients = array("q", chance.choices(range(CLIENTS), weights, k=requests))
    span = requests * SECOND // 150
    return array("q", sorted(chance.randrange(span) for _ in range(requests))), clients


def _quota(name: str, limit: int) -> Quota:
    bucket = name in ("token_bucket", "leaky_bucket")
    return Quota(name, limit, PERIOD, limit if bucket else 0, longest_wait=2 * PERIOD if name == "leaky_bucket" else 0)
