"""Workers that decide on a shared store, and are killed at any moment: `python -m tests.stores.shared_kills URL KILLS`.

Prints how many requests they attempted and how many were acknowledged, as JSON. Each request charges all of `ASKS`.
"""

import json
import mmap
import os
import random
import signal
import struct
import sys
import time

from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import open_store
from tests.support.apps import LONG

ASKS = [
    Ask("d:a:{x}", Quota("fixed_window", 10**9, LONG)),
    Ask("d:b:{x}", Quota("sliding_window", 10**9, LONG)),
    Ask("d:c:{x}", Quota("bucketed_window", 10**9, LONG)),
]
WORKERS = 4


def work(url, slot, counts):
    store = open_store(StorageSettings(url=url, timeout=20))
    attempted, acknowledged = struct.unpack_from("<QQ", counts, 16 * slot)
    while True:
        attempted += 1
        struct.pack_into("<Q", counts, 16 * slot, attempted)
        assert store.decide(ASKS).admits(ASKS)
        acknowledged += 1
        struct.pack_into("<Q", counts, 16 * slot + 8, acknowledged)


def started(url, slot, counts):
    pid = os.fork()
    if pid == 0:
        try:
            work(url, slot, counts)
        finally:
            os._exit(1)
    return pid


def attempted(counts):
    return sum(struct.unpack_from("<Q", counts, 16 * slot)[0] for slot in range(WORKERS))


def acknowledged(counts):
    return sum(struct.unpack_from("<Q", counts, 16 * slot + 8)[0] for slot in range(WORKERS))


def main(url, kills):
    rng = random.Random(kills)
    counts = mmap.mmap(-1, 4096)
    workers = [started(url, slot, counts) for slot in range(WORKERS)]
    died = 0
    for _ in range(kills):
        time.sleep(rng.uniform(0, 0.006))
        slot = rng.randrange(WORKERS)
        os.kill(workers[slot], signal.SIGKILL)
        died += os.waitstatus_to_exitcode(os.waitpid(workers[slot], 0)[1]) != -signal.SIGKILL
        workers[slot] = started(url, slot, counts)
    while not acknowledged(counts):  # on a busy machine, no worker may have lived long enough
        time.sleep(0.001)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(json.dumps({"attempted": attempted(counts), "acknowledged": acknowledged(counts), "died": died}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
