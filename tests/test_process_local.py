import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratelimit_mw.process_local import Repeating, event, lazy, lock, reset_after_fork, rlock, workers_of_server
from tests.support.patience import eventually
from tests.support.processes import in_child


class Holder:
    lock = lazy(lock)
    rlock = lazy(rlock)
    event = lazy(event)


def test_it_is_made_once_whichever_threads_ask():
    held, start = Holder(), threading.Barrier(8)

    def ask(_):
        start.wait(30)
        return held.lock

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(8)))) == 1


def test_it_is_not_made_before_and_can_be_made_again():
    held = Holder()
    assert vars(held) == {}
    first = held.lock
    assert held.lock is first
    vars(held).pop("lock", None)
    assert held.lock is not first
    assert Holder().lock is not held.lock


def test_the_child_of_a_fork_makes_it_again_because_a_thread_of_the_parent_may_hold_it():
    held = Holder()
    with held.lock:
        held.event.set()
        assert in_child(lambda: [held.lock.locked(), held.event.is_set()]) == [False, False]
        assert held.lock.locked()


def test_each_maker_looks_up_what_it_calls(monkeypatch):
    for name in ("Lock", "RLock", "Event"):
        monkeypatch.setattr(threading, name, lambda name=name: name)
    held = Holder()
    assert (held.lock, held.rlock, held.event) == ("Lock", "RLock", "Event")
    assert isinstance(Holder.lock, lazy)


@pytest.mark.parametrize(
    ("arguments", "environ", "workers"),
    [
        pytest.param(["/usr/bin/uvicorn", "main:app", "--workers", "4"], {}, 4, id="uvicorn"),
        pytest.param(["/x/uvicorn/__main__.py", "main:app", "--workers=4"], {}, 4, id="python -m uvicorn"),
        pytest.param(["gunicorn", "-w4", "-k", "gevent", "main:app"], {}, 4, id="an option without a space"),
        pytest.param(["gunicorn", "main:app"], {"GUNICORN_CMD_ARGS": "--workers 3"}, 3, id="arguments in a variable"),
        pytest.param(["uvicorn", "main:app"], {"WEB_CONCURRENCY": "8"}, 8, id="WEB_CONCURRENCY"),
        pytest.param(["gunicorn", "-w", "1", "main:app"], {"WEB_CONCURRENCY": "8"}, 1, id="the option before it"),
        pytest.param(["uvicorn", "main:app"], {"WEB_CONCURRENCY": "many"}, 1, id="WEB_CONCURRENCY without a number"),
        pytest.param(["uvicorn", "main:app", "--reload"], {}, 1, id="one worker that is restarted"),
        pytest.param(["gunicorn", "-w", "0", "main:app"], {}, 1, id="none"),
        pytest.param(["work.py", "-w", "4"], {"WEB_CONCURRENCY": "8"}, 1, id="another program"),
        pytest.param([], {}, 1, id="no command line"),
    ],
)
def test_the_workers_of_a_server_are_those_of_its_command_line(arguments, environ, workers):
    assert workers_of_server(arguments, environ) == workers


SITE = """
from ratelimit_mw.wsgi import RateLimitMiddleware
app = RateLimitMiddleware(lambda *_: [], {"domain": "d", "rules": [{"name": "r", "limit": "1 per minute"}]})
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param([], "clients get up to 3 times their limits", id="the file, before WEB_CONCURRENCY"),
        pytest.param(["-w", "2"], "clients get up to 2 times their limits", id="the command line, before the file"),
        pytest.param(["-w", "1"], "a restart resets them", id="one worker"),
    ],
)
def test_workers_in_the_configuration_file_of_gunicorn_are_noticed(tmp_path, words, said):
    (tmp_path / "site_app.py").write_text(SITE)
    (tmp_path / "gunicorn.conf.py").write_text("import os\nworkers = len(os.sep) + 2\n")
    command = [sys.executable, "-m", "gunicorn", "--check-config", *words, "site_app:app"]
    environ = {**os.environ, "WEB_CONCURRENCY": "7"}
    done = subprocess.run(command, check=True, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert said in done.stderr


ORPHAN = """
import multiprocessing, os, time
from ratelimit_mw.process_local import server_of_worker

def ask(server):
    found = server_of_worker()
    os.kill(server, 9)
    while os.getppid() == server:
        time.sleep(0.01)
    print(found is not None, server_of_worker(), flush=True)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=ask, args=(os.getpid(),)).start()
    time.sleep(60)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/ns/pid"), reason="no /proc here")  # noqa: PTH110
def test_a_worker_whose_server_has_died_belongs_to_none(tmp_path):
    (tmp_path / "orphan.py").write_text(ORPHAN)
    command = [sys.executable, str(tmp_path / "orphan.py")]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=100)
    assert ran.stdout == "True None\n"


class Work:
    """Work that has so much to do, and may be started again while it ends."""

    def __init__(self, *, then=lambda: None):
        self.left, self.done, self.ended, self._then = 0, 0, threading.Event(), then
        self.worker = None  # the thread that works
        self.thread = Repeating("work", self.turn, ended=self.ended.set)

    def turn(self):
        self.worker = threading.current_thread()
        if self.left:
            self.left, self.done = self.left - 1, self.done + 1
            return 0.0
        self._then()
        return None


def test_a_thread_repeats_its_work_until_nothing_is_left_and_may_start_again():
    work = Work()
    for round_ in (1, 2):
        work.left = 5
        work.ended.clear()
        assert work.thread.start()
        assert work.ended.wait(60)
        assert work.done == 5 * round_
        worker = work.worker
        worker.join(60)
        assert not worker.is_alive()
        assert (work.thread.alive, work.worker) == (False, worker)


def test_what_starts_the_thread_while_it_ends_is_not_forgotten():
    def more():
        if not work.done:
            work.left = 1
            assert work.thread.start()

    work = Work(then=more)
    work.thread.start()
    eventually(lambda: work.done == 1)


def test_a_stopped_thread_finishes_its_work_and_takes_no_more():
    begun, end = threading.Event(), threading.Event()

    def turn():
        begun.set()
        end.wait(60)
        return 0.0

    ended = threading.Event()
    thread = Repeating("stopped", turn, ended=ended.set)
    thread.start()
    assert begun.wait(60)
    thread.stop()
    assert not ended.is_set()
    end.set()
    assert ended.wait(60)


def test_a_process_without_room_for_a_thread_says_so_and_tries_again():
    def starts():
        thread = Repeating("large", lambda: None)
        usual = threading.stack_size(1 << 50)  # more than the machine has addresses for
        refused = thread.start()
        threading.stack_size(usual)
        return [refused, thread.alive, thread.start()]

    assert in_child(starts) == [False, False, True]


def test_a_thread_starts_again_in_the_child_of_a_fork():
    thread = Repeating("forked", lambda: 60.0)
    thread.start()
    assert in_child(lambda: [thread.alive, thread.start(), thread.alive]) == [False, True, True]
    thread.stop()


def test_a_child_of_a_fork_leaves_the_event_of_its_parents_thread_alone_which_may_be_locked(monkeypatch):
    touched = []

    class Event(threading.Event):
        def set(self):
            touched.append(self)
            super().set()

    thread = Repeating("forked", lambda: 60.0)
    with monkeypatch.context() as events:  # other threads of the process use events, too
        events.setattr(threading, "Event", Event)
        thread.start()
    touched.clear()
    assert in_child(lambda: [thread.stop(), len(touched)]) == [None, 0]
    thread.stop()
    assert len(touched) == 1


class Making:
    """What makes another object that is reset after a fork, each time that it is reset itself."""

    def __init__(self):
        self.resets = 0
        reset_after_fork(self)

    def after_fork(self):
        self.made = Making()
        self.resets += 1


def test_all_objects_are_reset_in_a_child_even_if_some_make_others():
    makers = [Making() for _ in range(50)]
    assert in_child(lambda: [each.resets for each in makers]) == [1] * 50


class Parent:
    """Is told of a fork. From its beginning on, an object is made between any two lines, as by another thread."""

    def __init__(self):
        self.told = []
        self.made = []
        reset_after_fork(self)

    def before_fork(self):
        sys.settrace(self.make_another)  # until `in_child` has forked

    def make_another(self, *_):
        self.made.append(Making())
        return self.make_another

    def after_fork_in_parent(self):
        self.told.append("parent")

    def after_fork(self):
        self.told.append("child")


def test_objects_that_other_threads_make_during_a_fork_disturb_none():
    parent = Parent()
    assert in_child(lambda: parent.told) == ["child"]
    assert parent.told == ["parent"]
