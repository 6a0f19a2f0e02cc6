import threading
from concurrent.futures import ThreadPoolExecutor

from ratelimit_mw.process_local import condition, event, lazy, lock, rlock


class Holder:
    lock = lazy(lock)
    rlock = lazy(rlock)
    event = lazy(event)
    condition = lazy(condition)


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


def test_each_maker_looks_up_what_it_calls(monkeypatch):
    for name in ("Lock", "RLock", "Event"):
        monkeypatch.setattr(threading, name, lambda name=name: name)
    monkeypatch.setattr(threading, "Condition", lambda lock: f"Condition of a {lock}")
    held = Holder()
    assert (held.lock, held.rlock, held.event) == ("Lock", "RLock", "Event")
    assert held.condition == "Condition of a Lock"
    assert isinstance(Holder.lock, lazy)
