"""A signal handler that raises while a command is packed. hiredis crashes there where it converts an int."""

import signal
import sys
import textwrap
from subprocess import PIPE

import pytest

from tests.support.apps import ROOT
from tests.support.processes import end, spawn

PACKING = """
    import signal, sys
    from ratelimit_mw.model import Ask, Quota
    from ratelimit_mw.stores.redis.topology import converse_by_slot
    from ratelimit_mw.stores.base import DECIDE
    from ratelimit_mw.stores.redis.codec import converse, packed

    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    asks = [Ask(f"d:r{n}:{{x}}", Quota("fixed_window", 100, 3_600_000_000)) for n in range(50)]
    converse = {"one server": converse, "a cluster": converse_by_slot}[sys.argv[1]]
    pipeline = next(converse([(asks, DECIDE)], 10**15, set()))
    assert all(type(word) is bytes for command in pipeline for word in command)
    signal.signal(signal.SIGALRM, interrupt)
    times = 0
    while times < 3_000:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0001)  # once
            while True:
                packed(pipeline)
        except Interrupted:
            times += 1
    print("fine")
"""


@pytest.mark.parametrize("way", ["one server", "a cluster"])
def test_a_signal_handler_that_raises_while_a_command_is_packed_crashes_nothing(way):
    process = spawn([sys.executable, "-c", textwrap.dedent(PACKING), way], cwd=ROOT, stdout=PIPE)
    with process:
        try:
            said = process.stdout.read()
            assert process.wait(60) != -signal.SIGSEGV
            assert said == b"fine\n"
        finally:
            end(process)
