"""What shadow rules would have denied."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from ratelimit_mw.decision.storage import Shadows
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.model import Ask, Charge, Outcome, Quota, Reply, Rule


class Slow(str):
    """A name at which every look-up lets the other threads go first."""

    __slots__ = ()

    def __hash__(self):
        time.sleep(0)
        return super().__hash__()


def test_threads_count_each_of_their_denials():
    shadows, start = Shadows(), threading.Barrier(8)
    ask = Ask("k", Quota("fixed_window", 1, 1), 1, True)
    verdict = Verdict([Charge(Rule(Slow("r"), shadow=True), ask)], Reply(5, [Outcome(False, 0, 1, 1)]))

    def count(_):
        start.wait(30)
        for _ in range(200):
            shadows.count(verdict)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert shadows.denials == {"r": 1600}
