import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.support.apps import ROOT
from tests.support.processes import end, in_child, interruptible, spawn

# That a process is gone is seen by the end of a pipe that it held open.


def test_a_child_that_ignores_sigterm_is_killed():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = spawn([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"up\n"
        assert end(process, grace=0.1) == -signal.SIGKILL


def test_a_stopped_child_hears_sigterm():
    process = spawn(["sleep", "60"])
    process.send_signal(signal.SIGSTOP)
    assert end(process) == -signal.SIGTERM


def test_an_interruptible_child_hears_sigint_although_the_tests_ignore_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = spawn(interruptible(["sh", "-c", "echo up; exec sleep 60"]), stdout=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert process.stdout.readline() == b"up\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT
        finally:
            end(process, grace=0)


def test_what_a_child_leaves_behind_ends_with_it():
    process = spawn(["sh", "-c", "sleep 60 & echo up"], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"up\n"
        end(process)
        assert process.stdout.read() == b""


def test_children_end_when_the_tests_are_killed():
    code = """
        import time
        from tests.support.processes import spawn
        spawn(["sleep", "60"])
        print("up", flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE) as tests:
        assert tests.stdout.readline() == b"up\n"
        tests.kill()
        assert tests.stdout.read() == b""


def test_the_child_of_a_fork_that_raises_fails_its_test_and_ends():
    def work():
        raise KeyError("lost")

    with pytest.raises(AssertionError, match=r"in work\n.*\nKeyError: 'lost'"):
        in_child(work)


def test_the_child_of_a_fork_that_is_hung_is_ended_with_its_stack(monkeypatch):
    monkeypatch.setattr("tests.support.processes._HUNG", 0.1)
    with pytest.raises(AssertionError, match="Timeout"):
        in_child(lambda: time.sleep(60))
