"""Counters that the processes of one machine share: `lmdb://` beside memory, Redis on a unix socket, and `limits`.

Counters in memory are not shared: each process has its own. They stand here to show what sharing costs. `limits` has no
store for several processes without a server. Its strategy is the fixed window, the default of the extensions that use
it.
"""

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from itertools import chain, cycle, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.apps import PEER_LIMIT, config
from bench.measure import OURS, Effort, Figure, Remote, Run, alone, beside, in_turn
from bench.traffic import KNOWN, NAMES, STREAMS, Request
from tests.support.servers import BINARIES, Server

MEMORY = "memory://"
REDIS = "Redis, unix socket"
LIMITS_MEMORY = "limits, memory"
PEERS = (REDIS, MEMORY, LIMITS_MEMORY)
SEVERAL = 4
"""Processes at once: twice the cores of the machine that the bars were set on."""

DECISIONS = 4_000  # in each round of the CPU time
COST_ROUNDS = 15
RATE_MS = 200  # of each round at full load
RATE_ROUNDS = 5
PREPARED = 2_000  # requests that each process repeats within a round
PACED = 700  # decisions of each process in a round
PACED_ROUNDS = 5
PAUSE = 0.001  # seconds between two of them
COUNTERS = 1_000_000
TOGETHER = 10  # counters of one request while the file is filled
PER_MINUTE = 60_000_000  # microseconds


def cost(effort: Effort) -> Iterator[Figure]:
    """Processor time of a decision of the store, and of a whole `check`."""
    number, rounds = effort.part(DECISIONS), effort.rounds(COST_ROUNDS)
    bare = "get, put and commit under the same lock"
    with _folder() as folder:
        urls = {OURS: f"lmdb://{folder}/store", MEMORY: MEMORY}
        took = in_turn(
            {bare: (bare_cpu, f"lmdb://{folder}/bare", number)}
            | {who: (decision_cpu, url, number) for who, url in urls.items()},
            rounds,
        )
        yield beside(STORE_TITLE, took[OURS], bare, took[bare], "us", at_most=1.5)
        yield beside(STORE_TITLE, took[OURS], MEMORY, took[MEMORY], "us", detail=True)
        checks = {OURS: f"lmdb://{folder}/check", MEMORY: MEMORY, LIMITS_MEMORY: MEMORY}
        took = in_turn({who: (check_cpu, who, url, number) for who, url in checks.items()}, rounds)
        for peer in (MEMORY, LIMITS_MEMORY):
            yield beside(CHECK_TITLE, took[OURS], peer, took[peer], "us", detail=True)


def rates(effort: Effort) -> Iterator[Figure]:
    """Decisions per second of one process and of four, with one thread each, which ask without a pause."""
    milliseconds, rounds = effort.part(RATE_MS), effort.rounds(RATE_ROUNDS)
    for processes, bar in ((1, 3), (SEVERAL, 1)):
        with _stores() as urls:
            rate = at_once({who: (full_load, who, url, milliseconds) for who, url in urls.items()}, processes, rounds)
        total = {who: [sum(each) for each in values] for who, values in rate.items()}
        for peer in PEERS:
            at_least = bar if peer == REDIS else None
            figures = total[OURS], peer, total[peer], "/s"
            yield beside(rate_title(processes), *figures, at_least=at_least, detail=at_least is None)


def pacing(effort: Effort) -> Iterator[Figure]:
    """The wall time that one decision in a thousand exceeds: four processes, 1 ms between two decisions of each."""
    number, rounds = effort.part(PACED), effort.rounds(PACED_ROUNDS)
    with _stores() as urls:
        asked = {who: (paced, who, urls[who], number) for who in (OURS, REDIS)}
        took = at_once(asked, SEVERAL, rounds)
    slow = {who: [p999(chain(*values)) * 1e3 for values in found] for who, found in took.items()}
    yield alone(PACED_TITLE, slow[OURS], "ms", at_most=1)
    yield beside(PACED_TITLE, slow[OURS], REDIS, slow[REDIS], "ms", detail=True)


def size(effort: Effort) -> Iterator[Figure]:
    """What a million counters take on the disk."""
    number = effort.part(COUNTERS)
    with _folder() as folder:
        path = folder / "million"
        fill = Remote(filled, f"lmdb://{path}", number)
        try:
            entries = fill()
        finally:
            fill.close()
        megabytes = path.stat().st_blocks * 512 / 2**20 * COUNTERS / number
    yield alone(SIZE_TITLE, [megabytes], "MB", at_most=120, note=f"{entries} counters")


STORE_TITLE = "a decision of the store: CPU"
CHECK_TITLE = f"check: CPU, {NAMES['Zipf']}"
PACED_TITLE = f"check, {SEVERAL} processes with 1 ms between decisions: p99.9"
SIZE_TITLE = "a million counters: size of the file"


def rate_title(processes: int) -> str:
    """The title of the decisions per second of this number of processes."""
    return f"check at full load, {processes} process{'es' * (processes > 1)} of one thread"


def p999(values: Iterable[float]) -> float:
    """The value that one in a thousand exceeds."""
    found = sorted(values)
    return found[math.ceil(0.999 * len(found)) - 1]


def at_once(contestants: Mapping[str, tuple[Any, ...]], processes: int, rounds: int) -> dict[str, list[list[Any]]]:
    """As `in_turn`, but each contestant is several processes, which start their rounds together.

    Args:
        contestants: By name, what `Remote` is called with. The function gets a barrier as its first argument.
        processes: How many processes each contestant is.
        rounds: How many rounds are kept.

    Returns:
        By name and round, what each process returned.
    """
    context = get_context("spawn")
    taken: dict[str, list[list[Any]]] = {name: [] for name in contestants}
    with ExitStack() as stack, ThreadPoolExecutor(processes) as pool:
        groups: dict[str, list[Remote]] = {}
        barriers = {name: context.Barrier(processes, timeout=60) for name in contestants}  # to be kept until the end
        for name, (make, *arguments) in contestants.items():
            groups[name] = [Remote(make, barriers[name], *arguments) for _ in range(processes)]
            for remote in groups[name]:
                stack.callback(remote.close)
        for number in range(rounds + 1):
            for name, group in groups.items():
                values = list(pool.map(Remote.__call__, group))
                if number:
                    taken[name].append(values)
    return taken


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for data files, in memory if possible, as the default of `lmdb://`."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="rlmw-bench-", dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


@contextmanager
def _stores() -> Iterator[dict[str, str]]:
    """The storage URL of each contestant, with an empty server and no file."""
    with _folder() as folder, Server(BINARIES[0]) as server:
        yield {OURS: f"lmdb://{folder}/shared", REDIS: server.unix_url, MEMORY: MEMORY, LIMITS_MEMORY: MEMORY}


# --------------------------------------------------------------------- contestants, see `bench.measure.Remote`


def decision_cpu(url: str, number: int) -> Run:
    """Microseconds of the processor for a decision of a store about one counter, of which 1 000 exist.

    The store is asked as by plans that are known: their counters have their places.
    """
    from ratelimit_mw.model import Ask, Quota
    from ratelimit_mw.settings import StorageSettings
    from ratelimit_mw.stores.memory import MemoryStore
    from ratelimit_mw.stores.shared import open_store

    store = MemoryStore() if url == MEMORY else open_store(StorageSettings(url=url, timeout=5.0), None)
    quota = Quota("sliding_window", 1_000_000_000, PER_MINUTE)
    asked = [(Ask(key, quota),) for key in _keys()]
    decide, place = store.decider(asked[0])
    return _timed(decide, list(map(place, asked)), number)


def bare_cpu(url: str, number: int) -> Run:
    """The least that such a decision can be: read a value of the same size, write it, and commit, under the lock."""
    from ratelimit_mw.stores.shared.file import Location, open_data, open_environment
    from ratelimit_mw.stores.shared.table import encode

    location = Location.parse(url)
    data = open_data(location)
    environment = open_environment(data, location.path)
    entries = [encode(key) for key in _keys()]
    value = bytes(VALUE)

    def decide(entry: bytes) -> None:
        flock(data.fd, LOCK_EX | LOCK_NB)
        try:
            with environment.begin(write=True) as txn:
                txn.get(entry)
                txn.put(entry, value)
        finally:
            flock(data.fd, LOCK_UN)

    return _timed(decide, entries, number)


VALUE = 25
"""Bytes that the store writes for a sliding window: its stamp and its state."""


def _keys() -> list[str]:
    return [f"shop:everything:sw60:{{ip={Request(number, '/').address}}}" for number in range(KNOWN)]


def _timed(ask: Callable[[Any], object], asked: list[Any], number: int) -> Run:
    """Microseconds of the processor for each call. All of `asked` are called once before."""
    for each in asked:
        ask(each)
    coming = cycle(asked)

    def run() -> float:
        requests = list(islice(coming, number))
        start = time.process_time()
        for each in requests:
            ask(each)
        return (time.process_time() - start) / number * 1e6

    return run


def check_cpu(who: str, url: str, number: int) -> Run:
    """Microseconds of the processor for a `check`, or for what a peer calls for it."""
    prepare, ask = _checker(who, url)
    coming = STREAMS["Zipf"]()

    def run() -> float:
        prepared = [prepare(request) for request in islice(coming, number)]
        start = time.process_time()
        for each in prepared:
            ask(each)
        return (time.process_time() - start) / number * 1e6

    return run


def full_load(barrier: Any, who: str, url: str, milliseconds: int) -> Run:
    """Decisions per second of one process, which starts together with the others and asks without a pause."""
    prepare, ask = _checker(who, url)
    coming = STREAMS["Zipf"]()

    def run() -> float:
        prepared = [prepare(request) for request in islice(coming, PREPARED)]
        barrier.wait()
        start = time.perf_counter()
        end, count, requests = start + milliseconds / 1e3, 0, cycle(prepared)
        while (now := time.perf_counter()) < end:
            ask(next(requests))
            count += 1
        return count / (now - start)

    return run


def paced(barrier: Any, who: str, url: str, number: int) -> Run:
    """Seconds of the wall clock that each decision took, with 1 ms before each."""
    prepare, ask = _checker(who, url)
    coming = STREAMS["Zipf"]()

    def run() -> list[float]:
        took = []
        prepared = [prepare(request) for request in islice(coming, number)]
        barrier.wait()
        for each in prepared:
            time.sleep(PAUSE)
            start = time.perf_counter()
            ask(each)
            took.append(time.perf_counter() - start)
        return took

    return run


def filled(url: str, number: int) -> Run:
    """Fills a file with this number of counters. The run returns how many it has."""
    from ratelimit_mw.model import Ask, Quota
    from ratelimit_mw.settings import StorageSettings
    from ratelimit_mw.stores.base import DECIDE
    from ratelimit_mw.stores.shared import open_store

    def run() -> int:
        quota = Quota("sliding_window", 100, PER_MINUTE)
        store = open_store(StorageSettings(url=url, timeout=5.0), None)
        for first in range(0, number, TOGETHER):
            keys = (
                f"shop:everything:sw60:{{ip={Request(each, '/').address}}}" for each in range(first, first + TOGETHER)
            )
            store.ask(([Ask(key, quota) for key in keys], DECIDE))
        return sum(1 for _ in store.keys(""))

    return run


def _checker(who: str, url: str) -> tuple[Callable[[Request], Any], Callable[[Any], object]]:
    """How a contestant prepares a request, and how it decides it."""
    if not who.startswith("limits"):
        from ratelimit_mw import RateLimiter

        return Request.attributes, RateLimiter(config(), storage=url).check
    from limits import parse
    from limits.storage import storage_from_string
    from limits.strategies import FixedWindowRateLimiter

    strategy, item = FixedWindowRateLimiter(storage_from_string(url)), parse(PEER_LIMIT)
    return _address, lambda address: strategy.hit(item, address)


def _address(request: Request) -> str:
    return request.address
