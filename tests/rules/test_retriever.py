"""Newer rules, fetched beside the requests: when they are taken up, what stays, and what is said of bad ones."""

import asyncio
import gc
import logging
import os
import threading
import weakref

import pytest

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw.config.load import Document, load_documents
from ratelimit_mw.process_local import Repeating
from ratelimit_mw.reload.database import RulesDatabase
from ratelimit_mw.reload.watcher import Retriever
from tests.rules.living import limit_of, text
from tests.support.patience import eventually
from tests.support.processes import Forked

case = pytest.param

CLIENT = {"ip": "192.0.2.1"}


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text(text(reload="100ms"))
    return file


@pytest.fixture
def limiter(file):
    with RateLimiter(file) as limiter:
        yield limiter


def watches():
    """The threads that look for newer rules."""
    return sum(thread.name == "ratelimit_mw retriever" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _none_of_another_test():
    if watches():
        gc.collect()  # a limiter that another test left without closing it watches until it is collected
    eventually(lambda: watches() == 0)


def replaced(file, content):
    """As a careful editor saves."""
    new = file.with_suffix(".new")
    new.write_text(content)
    new.replace(file)


class Slow:
    """A source whose look lasts until the test ends it."""

    def __init__(self):
        self.looking, self.end, self.done = threading.Event(), threading.Event(), []

    def look(self):
        self.looking.set()
        self.end.wait(60)
        self.done.append("connected again")
        return 60

    def close(self):
        self.done.append("closed")


def test_a_look_that_runs_when_its_watch_is_stopped_leaves_no_connection():
    slow = Slow()
    watch = Repeating("slow", slow.look, ended=slow.close)
    assert watch.start()
    assert slow.looking.wait(60)
    watch.stop()
    slow.end.set()
    eventually(lambda: len(slow.done) > 1)
    assert slow.done == ["connected again", "closed"]


class TestReload:
    def test_a_file_that_changes_is_taken_up_by_itself(self, file, limiter):
        limiter.check(CLIENT)
        replaced(file, text("7 per minute", reload="100ms"))
        eventually(lambda: limiter.rules.rules and limit_of(limiter) == 7)
        assert limiter.state.source == str(file)
        assert limiter.state.error is None

    def test_nothing_is_watched_before_the_first_request(self, limiter):
        assert watches() == 0
        limiter.check(CLIENT)
        assert watches() == 1

    def test_reload_fetches_at_once(self, file, limiter):
        version = limiter.state.version
        replaced(file, text("7 per minute"))
        limiter.reload()
        assert limit_of(limiter) == 7
        assert limiter.state.version != version

    def test_areload_is_its_twin(self, file, limiter):
        replaced(file, text("7 per minute"))
        asyncio.run(limiter.areload())
        assert limit_of(limiter) == 7

    def test_counters_of_unchanged_rules_go_on(self, file, limiter):
        assert [limiter.check(CLIENT).remaining for _ in range(3)] == [4, 3, 2]
        replaced(file, text("7 per minute", response="{status: 420}"))
        limiter.reload()
        assert limiter.check(CLIENT).remaining == 3

    def test_the_whole_set_is_swapped_not_changed(self, file, limiter):
        old = limiter.engine.current()
        replaced(file, text("7 per minute"))
        limiter.reload()
        assert limiter.engine.current() is not old
        assert limiter.engine.decide(old.attributes.request_from(CLIENT), rules=old).limit == 5

    def test_off_watches_nothing(self, file):
        file.write_text(text(reload="off"))
        with RateLimiter(file) as limiter:
            limiter.check(CLIENT)
            assert watches() == 0
            replaced(file, text("7 per minute"))
            limiter.reload()
            assert limit_of(limiter) == 7

    def test_a_mapping_and_memory_need_no_thread(self):
        with RateLimiter({"domain": "d", "rules": []}) as limiter:
            limiter.check(CLIENT)
            assert watches() == 0

    def test_an_interval_that_changes_holds_from_then_on(self, file, limiter):
        limiter.check(CLIENT)
        replaced(file, text("6 per minute", reload="off"))
        eventually(lambda: limit_of(limiter) == 6)
        eventually(lambda: watches() == 0)


class TestBadRules:
    def test_the_last_good_ones_stay_and_it_is_said_once(self, file, limiter, caplog):
        limiter.check(CLIENT)
        version = limiter.state.version
        replaced(file, "domain: d\nrules:\n  - {name: a, limit: lots}\n")
        eventually(lambda: limiter.state.error)
        for _ in range(3):
            with pytest.raises(ConfigurationError, match=r"rules\.yaml:3:22"):
                limiter.reload()
        assert limit_of(limiter) == 5
        assert limiter.state.version == version
        assert "rules.yaml:3:22: rules[0].limit: 'lots' is not a limit" in limiter.state.error
        said = [record for record in caplog.records if "can't be used" in record.message]
        assert len(said) == 1
        assert said[0].levelno == logging.ERROR
        assert "rules.yaml:3:22: rules[0].limit" in said[0].message

    def test_a_good_one_after_it_clears_the_state(self, file, limiter):
        replaced(file, "nonsense")
        with pytest.raises(ConfigurationError):
            limiter.reload()
        assert limiter.state.error
        replaced(file, text("7 per minute"))
        limiter.reload()
        assert limiter.state.error is None
        assert limit_of(limiter) == 7

    def test_and_so_does_the_good_one_from_before(self, file, limiter):
        good = file.read_text()
        replaced(file, "nonsense")
        with pytest.raises(ConfigurationError):
            limiter.reload()
        replaced(file, good)
        limiter.reload()
        assert limiter.state.error is None

    def test_a_file_that_is_gone_for_a_moment(self, file, limiter, caplog):
        good = file.read_text()
        file.unlink()
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="No such file"):
                limiter.reload()
        assert limit_of(limiter) == 5
        assert caplog.text.count("can't read the rules file") == 1
        file.write_text(good)
        limiter.reload()
        assert limiter.state.error is None

    def test_what_this_app_can_t_use_is_refused(self, file, limiter):
        def check(rules):
            if rules.response.status == 420:
                raise ConfigurationError([])

        limiter.require(check)
        replaced(file, text("7 per minute", response="{status: 420}"))
        for _ in range(2):  # tried once, refused each time
            with pytest.raises(ConfigurationError):
                limiter.reload()
        assert limiter.state.error is not None
        assert limit_of(limiter) == 5

    def test_another_storage_takes_a_restart_and_that_is_said(self, file, limiter, caplog):
        replaced(file, text("7 per minute", storage="{url: 'redis://127.0.0.1:1/0', on_error: deny}"))
        limiter.reload()
        assert "has other storage settings; they apply after a restart" in caplog.text
        assert limiter.check(CLIENT).allowed
        assert limiter.check(CLIENT).limit == 7

    def test_another_policy_needs_none(self, file, limiter, caplog):
        replaced(file, text("7 per minute", storage="{on_error: deny}"))
        limiter.reload()
        assert "another storage" not in caplog.text
        assert [rule.on_error for rule in limiter.rules.rules] == ["deny"]

    def test_a_warning_is_said_once_over_all_reloads(self, file, limiter, caplog):
        for limit in (6, 7, 8):
            rule = f"  - {{name: b, by: user, limit: {{default: {limit} per minute, gold: 99 per minute}}}}\n"
            replaced(file, text() + rule)
            limiter.reload()
        assert caplog.text.count("client.tier is not set") == 1
        assert caplog.text.count("client.secret is empty") == 1

    def test_a_fault_of_the_retriever_ends_nothing(self, file, limiter, caplog):
        faults = []

        def check(_rules):
            if faults:
                raise faults.pop()

        limiter.require(check)
        limiter.check(CLIENT)
        faults.append(RuntimeError("of a kind that nobody has foreseen"))
        replaced(file, text("6 per minute", reload="100ms"))
        eventually(lambda: "the thread that looks for newer rules failed, and continues" in caplog.text)
        replaced(file, text("7 per minute", reload="100ms"))
        eventually(lambda: limit_of(limiter) == 7)


class TestThreads:
    def test_closed_it_watches_no_more_and_asked_again_it_does(self, file):
        limiter = RateLimiter(file)
        limiter.check(CLIENT)
        limiter.close()
        eventually(lambda: watches() == 0)
        replaced(file, text("7 per minute", reload="100ms"))
        eventually(lambda: limit_of(limiter) == 7)
        limiter.close()

    def test_one_that_nobody_holds_ends_by_itself(self, file):
        limiter = RateLimiter(file)
        limiter.check(CLIENT)
        gone = weakref.ref(limiter.engine.retriever)
        del limiter
        gc.collect()
        eventually(lambda: gc.collect() >= 0 and gone() is None)
        eventually(lambda: watches() == 0)

    def test_many_first_requests_begin_one(self, file, limiter):
        barrier = threading.Barrier(20)

        def ask():
            barrier.wait()
            limiter.check(CLIENT)

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert watches() == 1

    def test_several_event_loops_share_it(self, file, limiter):
        async def ask():
            return (await limiter.acheck(CLIENT)).limit

        assert asyncio.run(ask()) == 5
        replaced(file, text("7 per minute", reload="100ms"))
        eventually(lambda: asyncio.run(ask()) == 7)

    def test_no_more_threads(self, file, limiter, monkeypatch, caplog):
        def refuse(_thread):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert limiter.check(CLIENT).allowed
        assert "not watched: can't start new thread" in caplog.text

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_a_fork_s_child_watches_for_itself(self, file, limiter):
        limiter.check(CLIENT)
        read, write = os.pipe()

        def work():
            limiter.check(CLIENT)
            os.write(write, b"asked")
            eventually(lambda: limit_of(limiter) == 7)

        child = Forked(work)
        os.close(write)
        assert os.read(read, 5) == b"asked"
        replaced(file, text("7 per minute", reload="100ms"))
        child.result()
        os.close(read)
        eventually(lambda: limit_of(limiter) == 7)


class TestDatabase:
    def test_a_push_is_taken_up_before_the_interval_of_its_rules(self, any_server):
        database = RulesDatabase(any_server.url)
        database.push([Document("r.yaml", text("5 per minute", reload="1h").encode())])
        with RateLimiter(any_server.url) as limiter:
            limiter.check(CLIENT)
            database.push([Document("r.yaml", text("7 per minute", reload="1h").encode())])
            eventually(lambda: limit_of(limiter) == 7)
            assert limiter.state.version == "2"
        database.close()

    def test_a_server_that_goes_and_comes_back(self, fresh_server, caplog):
        database = RulesDatabase(fresh_server.url)
        document = [Document("r.yaml", text("5 per minute", reload="100ms").encode())]
        database.push(document)
        with RateLimiter(fresh_server.url) as limiter:
            limiter.check(CLIENT)
            fresh_server.kill()
            eventually(lambda: limiter.state.error)
            assert limit_of(limiter) == 5
            fresh_server.start()
            eventually(lambda: "is empty" in (limiter.state.error or ""))
            assert limit_of(limiter) == 5
            database.push(document)
            database.push([Document("r.yaml", text("7 per minute", reload="100ms").encode())])
            eventually(lambda: limit_of(limiter) == 7)
            assert limiter.state.error is None
        database.close()

    def test_a_file_that_begins_to_speak_of_a_database_is_followed(self, any_server, file, limiter):
        limiter.check(CLIENT)
        database = RulesDatabase(any_server.url)
        database.push([Document("r.yaml", text("7 per minute").encode())])
        replaced(file, f"domain: d\nreload: 1m\nrules: {{source: '{any_server.url}'}}\n")
        eventually(lambda: limit_of(limiter) == 7)
        database.push([Document("r.yaml", text("8 per minute").encode())])
        eventually(lambda: limit_of(limiter) == 8)
        database.close()


def test_a_retriever_needs_rules_to_begin_with():
    with pytest.raises(ConfigurationError, match="can't read the rules file"):
        Retriever("no/such/file.yaml")


def test_compiling_leaves_the_garbage_collector_alone(monkeypatch):
    for name in ("disable", "enable", "freeze", "unfreeze", "set_threshold", "collect"):
        monkeypatch.setattr(gc, name, None)  # calling it would raise
    made = load_documents([Document("r.yaml", text("5/s").encode())], environ={})
    assert len(made.rules) == 1
