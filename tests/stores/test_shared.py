"""What holds of the shared store beyond the contract: processes, faults of the file, and its bound."""

import asyncio
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter
from ratelimit_mw.deferral import deferrals_of
from ratelimit_mw.errors import CounterError, Late, NameTaken, PermanentFault, StoreUnavailable
from ratelimit_mw.model import SECOND, Quota
from ratelimit_mw.stores.base import DECIDE
from ratelimit_mw.stores.shared import file
from ratelimit_mw.stores.shared.file import Location
from ratelimit_mw.stores.shared.store import SharedStore
from ratelimit_mw.stores.shared.table import Table
from tests.algorithms.histories import HistoryClock, conversations
from tests.algorithms.test_twins import Keeping, done
from tests.stores.contract import MINUTE
from tests.stores.shared import killed_at_any_moment, one, opened, start, taken
from tests.support.counts import shadow_denials
from tests.support.interrupts import at_every_line
from tests.support.patience import WITHIN, eventually
from tests.support.processes import end, in_child

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="lmdb:// does not work on Windows")

HOUR = 3_600 * SECOND
PAGES = "leaf_pages", "branch_pages", "overflow_pages"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def as_another_user(act):
    """What `act` returns in a process of the user 65534."""

    def run():
        os.setgroups([])
        os.setgid(65_534)
        os.setuid(65_534)
        return act()

    return in_child(run)


def on_a_tmpfs(folder, size, url, code):
    """What a process prints that sees a tmpfs of this size as `folder`, in a namespace of its own.

    No other process sees the tmpfs, and it goes with the process, whatever happens to the test.
    """
    namespace = ["unshare", "--mount", "--user", "--map-root-user"]
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run([*namespace, *mount], check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting in a namespace is not allowed here")
    process = start(url, f"import subprocess\nsubprocess.run({mount}, check=True)\n{code}", *namespace)
    printed = process.communicate()[0].decode()
    assert end(process) == 0
    return printed


_examples = itertools.count()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "counters"


@pytest.fixture
def url(path):
    return f"lmdb://{path}"


@pytest.fixture
def store(url):
    store = opened(url)
    yield store
    store.close()


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    return f"lmdb://{tmp_path_factory.mktemp('histories')}/counters"


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(conversations())
def test_any_history_has_the_same_outcomes_in_memory_and_in_the_file(histories, steps):
    clock, prefix = HistoryClock(), f"{next(_examples)}:"
    memory, store = Keeping(clock=clock), opened(histories, clock=clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "_make_room", lambda *_: None)  # as in `Keeping`
        for now, requests in steps:
            clock.time = now
            for asks, intent in requests:
                own = [ask._replace(key=prefix + ask.key) for ask in asks]
                assert done(store, own, intent) == done(memory, own, intent)
    store.close()


class TestProcesses:
    def test_workers_that_are_killed_at_any_moment_leave_exact_counters(self, url):
        killed_at_any_moment(url, 20)

    def test_processes_and_threads_together_admit_exactly_the_limit(self, url):
        code = """
store, admitted = opened(url), []
asks = one(limit=100)
def work(): admitted.append(sum(store.decide(asks).admits(asks) for _ in range(25)))
threads = [threading.Thread(target=work) for _ in range(4)]
sys.stdin.read(1)
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(admitted))
"""
        processes = [start(url, code) for _ in range(4)]
        assert sum(int(process.communicate()[0]) for process in processes) == 100
        assert [end(process) for process in processes] == [0] * 4

    def test_event_loops_of_processes_admit_exactly_the_limit(self, url):
        code = """
import asyncio
from ratelimit_mw.stores.base import DECIDE
store, asks = opened(url), one(limit=100)
async def run(): return await asyncio.gather(*(store.aask((asks, DECIDE)) for _ in range(100)))
print(sum(reply.admits(asks) for reply in asyncio.run(run())))
"""
        processes = [start(url, code) for _ in range(3)]
        assert sum(int(process.communicate()[0]) for process in processes) == 100
        assert [end(process) for process in processes] == [0] * 3

    def test_the_places_of_a_killed_worker_come_back(self, url):
        process = start(
            url,
            """
asks = one(limit=2, name="concurrency", period=10_000_000, cost=2)
assert opened(url).decide(asks).admits(asks)
os.kill(os.getpid(), signal.SIGKILL)
""",
        )
        process.communicate()
        assert end(process) == -signal.SIGKILL
        clock = ManualClock(time.time())
        store = opened(url, clock=clock)
        place = one(limit=2, name="concurrency", period=10 * SECOND)
        assert not store.decide(place).admits(place)
        clock.advance(12)
        assert store.decide(place).admits(place)
        store.close()

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_a_fork_during_the_transactions_of_threads_counts_exactly(self, store):
        stopped, decided = threading.Event(), []

        def work():
            while not stopped.is_set():
                decided.append(store.decide(one()).outcomes[0].allowed)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        children = 20
        for _ in range(children):
            assert in_child(lambda: store.decide(one()).outcomes[0].allowed)
        stopped.set()
        for thread in threads:
            thread.join()
        assert taken(store, one()) == [len(decided) + children]

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_a_fork_within_a_transaction_leaves_it_to_its_thread(self, url):
        class Forking(ManualClock):
            forks = False

            def now(self):
                if self.forks:
                    self.forks = False
                    in_child(lambda: None)
                return super().now()

        clock = Forking(time.time())
        store = opened(url, clock=clock)
        for clock.forks in (False, True, False):  # by the clock, which is asked within a transaction
            assert store.decide(one()).outcomes[0].allowed
            assert in_child(lambda: store.decide(one()).outcomes[0].allowed)
        assert taken(store, one()) == [6]
        store.close()

    def test_a_child_neither_frees_the_lock_of_its_parent_nor_keeps_it_after_its_death(self, url):
        code = """
store = opened(url)
store.decide(one())
handle = store._handle
fcntl.flock(handle._data.fd, fcntl.LOCK_EX)
if os.fork() == 0:
    del store, handle
    sys.stdout.write("ready\\n"); sys.stdout.flush()
    time.sleep(60)
time.sleep(60)
"""
        process = start(url, code)
        try:
            assert process.stdout.readline() == b"ready\n"
            impatient = opened(url, timeout=0.05)
            with pytest.raises(StoreUnavailable):
                impatient.decide(one())
            impatient.close()
            process.kill()
            store = opened(url)
            assert store.decide(one()).outcomes[0].remaining == 999_998
            store.close()
        finally:
            process.stdout.close()
            end(process)

    def test_processes_in_two_pid_namespaces_share_the_counters(self, url, store):
        unshare = ["unshare", "--pid", "--fork", "--user", "--map-root-user"]
        if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode != 0:
            pytest.skip("unshare is not allowed here")
        code = "store = opened(url)\nfor _ in range(200): store.decide(one())"
        processes = [start(url, code, *unshare) for _ in range(2)]
        for process in processes:
            process.communicate()
        assert [end(process) for process in processes] == [0, 0]
        assert taken(store, one()) == [400]


class TestAStoppedHolder:
    """A process that is stopped while it has the lock."""

    @pytest.fixture
    def holder(self, url, store):
        store.decide(one())
        code = """
fd = os.open(path, os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX)
sys.stdout.write("locked\\n"); sys.stdout.flush()
os.kill(os.getpid(), signal.SIGSTOP)
"""
        process = start(url, code)
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.stdout.close()
        end(process)

    def test_costs_a_request_the_timeout_and_then_nothing_until_it_goes_on(self, url, holder):
        store = opened(url, timeout=0.2)
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"was not free within 0\.2 s"):
            store.decide(one())
        assert time.monotonic() - started >= 0.2
        with pytest.raises(StoreUnavailable, match="is away"):
            store.decide(one())
        os.kill(holder.pid, signal.SIGCONT)
        eventually(lambda: not store.away)
        assert store.decide(one()).outcomes[0].allowed
        store.close()

    def test_is_told_from_holders_that_take_turns_before_the_first_decision_of_a_process(self, path, url, holder):
        """They keep the lock from this process, but change the file. A busy machine must not open the breaker."""
        store, ended = opened(url, timeout=0.2), threading.Event()

        def change():
            with path.open("r+b") as file:
                while not ended.wait(0.01):
                    os.pwrite(file.fileno(), os.pread(file.fileno(), 1, 0), 0)

        others = threading.Thread(target=change)
        others.start()
        try:
            with pytest.raises(Late, match="was not free"):
                store.decide(one())
            assert not store.away
        finally:
            ended.set()
            others.join()
            store.close()

    def test_leaves_the_event_loop_running(self, url, holder):
        store = opened(url, timeout=0.5)

        async def run():
            ticks = 0
            decision = asyncio.ensure_future(store.aask((one(), DECIDE)))
            while not decision.done():
                await asyncio.sleep(0)
                ticks += 1
            with pytest.raises(StoreUnavailable, match="was not free"):
                await decision
            return ticks

        assert asyncio.run(run()) > 3  # a loop that is held up has one or two
        store.close()

    def test_in_another_thread_leaves_the_event_loop_running_too(self, url):
        store, locked, ended = opened(url, timeout=0.1), threading.Event(), threading.Event()

        def hold(_table, _asked):
            locked.set()
            return ended.wait(WITHIN)

        other = threading.Thread(target=store._open().attempt, args=(hold, None))
        other.start()
        try:
            assert locked.wait(WITHIN)
            with pytest.raises(StoreUnavailable, match="was not free"):
                asyncio.run(store.aask((one(), DECIDE)))
            assert not ended.is_set()
        finally:
            ended.set()
            other.join()
            store.close()

    def test_applies_on_error(self, url, holder):
        rules = {"domain": "d", "storage": {"url": url, "timeout": "50ms"}, "rules": [{"name": "a", "limit": 1}]}
        rules["rules"] = [{"name": "a", "by": "ip", "limit": "1 per year", "on_error": "deny"}]
        with RateLimiter(rules) as limiter:
            assert limiter.check({"ip": "192.0.2.1"}).reason == "unavailable"


class TestFile:
    def test_a_deleted_file_is_made_again_within_a_second(self, path, store, caplog):
        store.decide(one(cost=7))
        path.unlink()
        eventually(lambda: store.decide(one()).outcomes[0].remaining > 999_993)
        assert [record.message for record in caplog.records] == [
            f"store {path} was deleted or replaced: the counters start from zero"
        ]
        assert path.exists()

    def test_a_file_replaced_by_another_store_is_used(self, url, path, tmp_path, store):
        other = opened(f"lmdb://{tmp_path}/other")
        other.decide(one(cost=500))
        other.close()
        store.decide(one())
        (tmp_path / "other").rename(path)
        eventually(lambda: taken(store, one()) == [500])

    def test_a_file_replaced_by_garbage_is_unavailable_until_it_is_deleted(self, path, store):
        store.decide(one())
        path.with_name("garbage").write_bytes(b"x" * 100_000)
        path.with_name("garbage").rename(path)

        def unavailable():
            try:
                store.decide(one())
            except StoreUnavailable:
                return True
            return False

        eventually(unavailable)
        assert path.read_bytes() == b"x" * 100_000
        path.unlink()
        eventually(lambda: not unavailable())

    @pytest.mark.parametrize(
        ("make", "problem"),
        [
            pytest.param(lambda path: path.write_bytes(b""), "is not a file of this store", id="empty"),
            pytest.param(lambda path: path.write_bytes(b"x" * 50_000), "is not a file of this store", id="garbage"),
            pytest.param(lambda path: path.mkdir(), "Is a directory", id="a folder"),
            pytest.param(os.mkfifo, "is not a regular file", id="a fifo"),
            pytest.param(lambda path: path.symlink_to("/etc/passwd"), "is a symbolic link", id="a link"),
        ],
    )
    def test_what_is_no_store_is_an_error_at_start_and_stays_as_it_is(self, store, path, caplog, make, problem):
        make(path)
        before = path.lstat()
        with pytest.raises(PermanentFault):
            store.connect("d")
        assert store.away
        with pytest.raises(PermanentFault, match=problem):
            store._open().attempt(Table.keys, (b"\0", lambda: 0))
        (record,) = caplog.records
        assert (record.levelname, problem in record.message) == ("ERROR", True)
        assert "Waiting does not help: name another file in storage.url" in record.message
        after = path.lstat()
        assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
        path.rmdir() if path.is_dir() else path.unlink()
        eventually(lambda: not store.away)
        assert taken(store, one()) == [0]

    def test_a_folder_that_does_not_exist_is_an_error_until_it_does(self, tmp_path, caplog):
        store = opened(f"lmdb://{tmp_path}/missing/counters")
        with pytest.raises(PermanentFault):
            store.connect("d")
        assert store.away
        assert "does not exist" in caplog.records[0].message
        assert "Waiting does not help: create it" in caplog.records[0].message
        (tmp_path / "missing").mkdir()
        eventually(lambda: not store.away)
        assert store.decide(one()).outcomes[0].allowed
        store.close()

    @pytest.mark.parametrize("size", [3_000, 4_096, 8_192, 100_000])
    def test_a_truncated_file_is_set_aside(self, url, path, store, caplog, size):
        store.decide(one())
        store.close()
        os.truncate(path, size)
        again = opened(url)
        assert again.decide(one()).outcomes[0].remaining == 999_999
        assert path.with_name("counters.bad").stat().st_size == size
        assert [(each.levelname, each.message) for each in caplog.records] == [
            ("ERROR", f"store {path} is truncated: it is now {path}.bad, and the counters start from zero")
        ]
        again.close()

    @pytest.mark.parametrize("size", [4_096, 8_192])
    def test_a_file_that_is_truncated_while_it_is_used_does_not_end_the_process(self, url, path, size):
        code = """
store = opened(url)
for number in range(2_000): store.decide(one(f"d:r:{{{number}}}"))
os.truncate(path, SIZE)
print(store.decide(one("d:r:{7}")).outcomes[0].remaining)
"""
        process = start(url, code.replace("SIZE", str(size)))
        assert process.communicate()[0] == b"999999\n"
        assert end(process) == 0
        assert path.with_name("counters.bad").stat().st_size == size

    def test_processes_that_find_a_truncated_file_set_it_aside_once_and_count_exactly(self, url, path, store):
        store.decide(one())
        store.close()
        os.truncate(path, 8_192)
        path.with_name("counters.bad").write_bytes(b"older")
        code = """
store, asks = opened(url), one(limit=100)
print(sum(store.decide(asks).admits(asks) for _ in range(50)))
"""
        processes = [start(url, code) for _ in range(4)]
        assert sum(int(process.communicate()[0]) for process in processes) == 100
        assert [end(process) for process in processes] == [0] * 4
        assert path.with_name("counters.bad").stat().st_size == 8_192

    def test_a_process_that_stops_while_it_sets_the_file_aside_costs_the_timeout(self, url, path, store):
        store.decide(one())
        store.close()
        os.truncate(path, 8_192)
        code = """
fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)
sys.stdout.write("locked\\n"); sys.stdout.flush()
os.kill(os.getpid(), signal.SIGSTOP)
"""
        process = start(url, code)
        assert process.stdout.readline() == b"locked\n"
        impatient = opened(url, timeout=0.2)
        with pytest.raises(StoreUnavailable, match="was not free"):
            impatient.decide(one())
        assert impatient.away
        process.kill()
        process.communicate()
        eventually(lambda: not impatient.away)
        assert impatient.decide(one()).outcomes[0].remaining == 999_999
        impatient.close()
        end(process)

    def test_a_file_without_our_mark_is_not_touched_although_it_was_ours(self, url, path, store):
        store.decide(one())
        store.close()
        os.truncate(path, 100)
        again = opened(url)
        with pytest.raises(PermanentFault, match="is not a file of this store"):
            again.decide(one())
        assert path.stat().st_size == 100
        again.close()

    def test_a_damaged_file_is_set_aside_while_it_is_used(self, path, store, caplog):
        for number in range(2_000):
            store.decide(one(f"d:r:{{{number}}}"))
        with path.open("r+b") as file:
            for page in range(2, path.stat().st_size // 4_096):
                os.pwrite(file.fileno(), b"\0" * 16, page * 4_096)
        for number in range(200):
            assert store.decide(one(f"d:new:{{{number}}}")).outcomes[0].remaining == 999_999
        assert path.with_name("counters.bad").exists()
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert f"store {path} is damaged (" in caplog.text
        assert f"it is now {path}.bad, and the counters start from zero" in caplog.text

    def test_a_file_of_another_version_is_not_touched(self, url, path):
        store = opened(f"{url}?size=1MB")
        store.decide(one())
        store.close()
        raw = path.read_bytes()
        path.write_bytes(raw.replace(b"ratelimit_mw 2", b"ratelimit_mw 1"))
        again = opened(f"{url}?size=1MB")
        with pytest.raises(PermanentFault, match="is of another version of this package"):
            again.decide(one())
        again.close()

    def test_a_file_with_wider_permissions_is_an_error_until_they_are_right(self, url, path, store, caplog):
        store.decide(one())
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)
        again = opened(url)
        with pytest.raises(PermanentFault):
            again.connect("d")
        assert again.away
        assert "has the mode 644, which is wider than 600" in caplog.text
        assert "Waiting does not help: chmod 600 it, or delete it: the counters start from zero" in caplog.text
        path.chmod(0o600)
        eventually(lambda: not again.away)
        assert again.decide(one()).outcomes[0].remaining == 999_998
        again.close()

    def test_a_file_shared_with_the_group_has_its_mode(self, url, path):
        store = opened(f"{url}?mode=660")
        store.decide(one())
        store.close()
        assert path.stat().st_mode & 0o777 == 0o660
        narrow = opened(url)
        with pytest.raises(PermanentFault, match="wider than 600"):
            narrow.decide(one())
        narrow.close()

    @as_root
    def test_root_may_load_an_app_whose_file_is_a_workers_but_does_not_use_it(self, url, path, store):
        store.decide(one())
        store.close()
        os.chown(path, 65_534, 65_534)
        loaded = opened(url)
        loaded.connect("d")
        assert not loaded.away
        with pytest.raises(PermanentFault, match="belongs to the user 65534, but this process runs as the user 0"):
            loaded.decide(one())
        loaded.close()

    def test_a_descriptor_that_other_code_has_closed_is_opened_again(self, store, tmp_path):
        store.decide(one())

        def descriptor():
            return store._handle._data.fd

        os.close(descriptor())
        with (tmp_path / "other").open("wb") as other:  # has the same number
            assert other.fileno() == descriptor()
            eventually(lambda: descriptor() != other.fileno() or not store.decide(one()))
            other.write(b"still open")
        assert store.decide(one()).outcomes[0].allowed

    def test_a_closed_store_leaves_no_descriptor_open(self, tmp_path):
        before = list(Path("/dev/fd").iterdir())
        for number in range(3):
            store = opened(f"lmdb://{tmp_path}/counters{number}")
            assert store.decide(one()).outcomes[0].allowed
            store.close()
        assert len(list(Path("/dev/fd").iterdir())) == len(before)

    def test_nothing_is_created_before_the_first_decision(self, path, store):
        assert not path.exists()
        store.decide(one())
        assert [each.name for each in path.parent.iterdir()] == ["counters"]

    def test_listing_the_counters_does_not_create_the_file(self, path, store):
        """An administrator may ask before the first request, and the file would not belong to the workers."""
        assert list(store.keys("")) == []
        assert not path.exists()

    def test_what_killed_processes_left_half_made_is_removed(self, path, store):
        names = [f"counters.{'a' * 16}.new", f"counters.{'b' * 16}.new", "counters.of-a-user.new"]
        for name in names:
            path.with_name(name).touch()
        for name in names[1:]:
            os.utime(path.with_name(name), (0, 0))
        store.decide(one())
        assert sorted(each.name for each in path.parent.iterdir()) == ["counters", names[0], names[2]]

    def test_after_a_reboot_the_counters_start_from_zero(self, url, path):
        store = opened(f"{url}?size=1MB")
        store.decide(one(cost=7))
        store.close()
        raw = path.read_bytes()
        assert raw.count(file.boot_id()) == 1
        path.write_bytes(raw.replace(file.boot_id(), b"0" * 36))
        assert taken(opened(url), one()) == [0]

    def test_the_package_is_named_where_it_is_missing(self, url, monkeypatch):
        monkeypatch.setitem(sys.modules, "lmdb", None)
        with pytest.raises(ValueError, match=r"pip install 'ratelimit_mw\[shared\]'"):
            opened(url)


class TestLocation:
    @pytest.mark.parametrize(
        ("url", "location"),
        [
            ("lmdb:///run/app/limits", Location("/run/app/limits")),
            ("lmdb:///run/a%20b?mode=660&size=64MB", Location("/run/a b", 0o660, 64 << 20)),
        ],
    )
    def test_a_url_has_its_parts(self, url, location):
        assert Location.parse(url) == location

    def test_a_name_is_a_file_in_memory_or_a_temporary_one(self):
        """It ends with the id of its owners and the version of its format."""
        urls = "lmdb://shop", "lmdb://a%2Fb", "lmdb://", "lmdb://shop?mode=660"
        assert [Path(Location.parse(url).path).name for url in urls] == [
            f"ratelimit_mw-shop.u{os.geteuid()}.v2.lmdb",
            f"ratelimit_mw-a%2Fb.u{os.geteuid()}.v2.lmdb",
            f"ratelimit_mw.u{os.geteuid()}.v2.lmdb",
            f"ratelimit_mw-shop.g{os.getegid()}.v2.lmdb",
        ]

    @pytest.mark.parametrize(
        ("url", "problem"),
        [
            ("lmdb://name/and/path", "the name or the path of a file"),
            ("lmdb:///run/folder/", "the name or the path of a file"),
            ("lmdb://shop?mode=777", "mode=660 to share .*, not 'mode=777'"),
            ("lmdb://shop?size=5", "from 1MB to 1024GB"),
            ("lmdb://shop?max=5", "the options of an lmdb URL are .*, not 'max=5'"),
            ("lmdb:///run/a#b", "the name or the path of a file"),
            ("lmdb://shop?mode", "the options of an lmdb URL"),
        ],
    )
    def test_a_url_that_cannot_be_read_is_refused(self, url, problem):
        with pytest.raises(ValueError, match=problem):
            Location.parse(url)

    def test_the_domain_names_the_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr("ratelimit_mw.stores.shared.file._MEMORY", tmp_path)
        rules = [{"name": "a", "by": "ip", "limit": "2 per year"}]
        with RateLimiter({"domain": "a shop", "storage": {"url": "lmdb://?size=1MB"}, "rules": rules}) as limiter:
            assert limiter.check({"ip": "192.0.2.1"}).remaining == 1
        assert [each.name for each in tmp_path.iterdir()] == [f"ratelimit_mw-a%20shop.u{os.geteuid()}.v2.lmdb"]


class TestTheFolderOfAllUsers:
    """Its files have names that any user can take first."""

    @pytest.fixture
    def folder(self, monkeypatch):
        """Not a `tmp_path`, which only this user can read."""
        with tempfile.TemporaryDirectory() as folder:
            monkeypatch.setattr("ratelimit_mw.stores.shared.file._MEMORY", Path(folder))
            Path(folder).chmod(0o1777)
            yield Path(folder)

    def test_an_empty_file_of_this_user_is_set_aside(self, folder):
        store = opened("lmdb://shop")
        path = Path(store.location.path)
        path.touch(0o600)
        assert store.decide(one()).outcomes[0].allowed
        assert sorted(each.name for each in folder.iterdir()) == [path.name, f"{path.name}.bad"]
        store.close()

    @as_root
    @pytest.mark.parametrize(
        "take",
        [
            pytest.param(lambda path: path.touch(0o600), id="an empty file"),
            pytest.param(lambda path: path.with_name("ready").rename(path), id="a file of the store"),
            pytest.param(lambda path: path.mkdir(), id="a folder"),
            pytest.param(lambda path: path.symlink_to("/etc/passwd"), id="a link"),
            pytest.param(os.mkfifo, id="a fifo"),
        ],
    )
    def test_where_another_user_has_taken_the_name_a_process_counts_for_itself(self, folder, caplog, take):
        store, asks = opened("lmdb://shop"), one(limit=3)
        path = Path(store.location.path)
        ready = opened(f"lmdb://{folder}/ready")
        assert as_another_user(lambda: ready.decide(asks).outcomes[0].allowed)
        as_another_user(lambda: take(path) and None)
        with pytest.raises(NameTaken):
            store.connect("d")
        assert [store.decide(asks).admits(asks) for _ in range(5)] == [True] * 3 + [False] * 2
        assert asyncio.run(store.aask((asks, DECIDE))).admits(asks) is False
        assert list(store.keys("d:")) == ["d:r:{x}"]
        assert not store.away
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        assert f"{path} belongs to the user 65534): this process counts for itself: delete it as root" in record.message
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        assert store.decide(asks).outcomes[0].remaining == 2
        assert path.stat().st_uid == os.geteuid()
        store.close()

    @as_root
    def test_a_name_that_is_taken_while_the_store_is_away_ends_that(self, folder, caplog):
        """The file is replaced by one of this user that cannot be used, and then by one of another user."""
        store, asks = opened("lmdb://shop"), one(limit=3)
        path, theirs = Path(store.location.path), folder / "theirs"
        path.write_text("not a file of counters")
        with pytest.raises(PermanentFault):
            store.decide(asks)
        assert store.away
        theirs.touch()
        os.chown(theirs, 65_534, 65_534)
        theirs.rename(path)  # in one step, because probes may make the file at any time
        eventually(lambda: not store.away)
        assert [store.decide(asks).admits(asks) for _ in range(4)] == [True] * 3 + [False]
        store.close()

    @as_root
    def test_a_file_that_is_shared_with_another_group_does_not_count_as_ours(self, folder):
        """The process is in that group, too, but the name has the id of its main group."""
        ready = opened(f"lmdb://{folder}/ready?mode=660")
        ready.decide(one())
        ready.close()
        path = Path(opened("lmdb://shop?mode=660").location.path)
        (folder / "ready").rename(path)
        os.chown(path, 65_534, 4_242)

        def refused():
            os.setgroups([4_242])
            with pytest.raises(NameTaken):
                opened("lmdb://shop?mode=660").connect("d")
            return True

        assert in_child(refused)

    @as_root
    def test_a_damaged_file_whose_new_name_is_not_free_is_deleted(self, folder, caplog):
        def recovered():
            store = opened("lmdb://shop")
            store.decide(one())
            store.close()
            os.truncate(store.location.path, 8_192)
            return store.location.path

        path = Path(as_another_user(recovered))
        path.with_name(f"{path.name}.bad").mkdir()
        assert as_another_user(lambda: opened("lmdb://shop").decide(one()).outcomes[0].remaining) == 999_999
        assert path.with_name(f"{path.name}.bad").is_dir()
        assert path.stat().st_size > 8_192


def told_by_the_table(store, question):
    """What no decision tells: the pages and the transactions of the file."""
    return store._handle.attempt(lambda table, _: question(table), None)


class TestBound:
    def test_a_full_map_counts_new_clients(self, url, path):
        store = opened(f"{url}?size=1MB")
        for number in range(15_000):
            assert store.decide(one(f"d:r:{{{number}}}")).outcomes[0].remaining == 999_999
        assert path.stat().st_blocks * 512 <= (1 << 20) + (64 << 10)  # the file system may need some for itself
        assert 4_000 < sum(1 for _ in store.keys("d:")) < 15_000
        store.close()

    def test_large_counters_that_fill_the_map_give_way(self, url):
        store = opened(f"{url}?size=1MB")
        for number in range(300):
            log = one(f"d:r:{{{number}}}", limit=2_000, name="sliding_log", cost=1_000)
            assert store.decide(log).outcomes[0].remaining == 1_000
            assert store.decide(log).outcomes[0].remaining == 0
        store.close()

    def test_a_counter_larger_than_the_map_fails_alone(self, url, caplog):
        store = opened(f"{url}?size=1MB")
        large = one("d:r:{large}", limit=1_000_000, name="sliding_log", cost=100_000)
        with pytest.raises(CounterError, match=r"has no room for the counters: set a larger \?size="):
            store.decide(large)
        assert "has no room for the counters" in caplog.text
        assert not store.away
        assert store.decide(one("d:r:{small}")).outcomes[0].allowed
        store.close()

    @pytest.mark.parametrize("most", [1, 7, 1_000])
    def test_there_are_never_more_than_max_counters(self, url, most):
        store = opened(url, most=most)
        for number in range(2 * most + 50):
            assert store.decide(one(f"d:r:{{{number}}}")).outcomes[0].allowed
        assert 0.9 * most <= sum(1 for _ in store.keys("")) <= most
        store.close()

    def test_a_used_up_counter_outlives_a_flood(self, url):
        store = opened(url, most=500)
        login = one("d:login:{ip=me}", limit=5, cost=5)
        assert store.decide(login).admits(login)
        for number in range(3_000):
            store.decide(one(f"d:other:{{header:X={number}}}", limit=5))
        assert not store.decide(login).admits(login)
        store.close()

    def test_what_has_expired_goes_as_new_ones_come(self, url, clock):
        store = opened(url, clock=clock)
        for number in range(2_000):
            store.decide(one(f"d:r:{{a{number}}}", period=MINUTE))
        clock.advance(61)
        for number in range(2_000):
            store.decide(one(f"d:r:{{b{number}}}", period=HOUR))
        with_expired = told_by_the_table(store, lambda table: table.txn.stat()["entries"])
        assert with_expired <= 2_200
        assert sum(1 for _ in store.keys("d:")) == 2_000
        store.close()

    def test_long_keys_are_distinct_counters_with_their_whole_name(self, store):
        keys = [f"d:r:{{{'ä' * 300}{number}}}" for number in range(5)]
        for number, key in enumerate(keys, 1):
            for _ in range(number):
                store.decide(one(key))
        assert [taken(store, one(key)) for key in keys] == [[1], [2], [3], [4], [5]]
        assert sorted(store.keys("d:r:{ä")) == sorted(keys)
        assert sorted(store.keys("d:r:{b")) == []

    def test_a_flood_on_the_smallest_file_leaves_no_decision_undecided(self, url, caplog):
        """Counters that are used stay, no decision takes more than a few transactions, and the pages stay full."""
        store = opened(f"{url}?size=1MB")
        logins = [one(f"d:login:{{ip={number}}}", limit=4, cost=4) for number in range(50)]
        halves = [one(f"d:half:{{ip={number}}}", limit=4, cost=2) for number in range(50)]
        for asks in (*logins, *halves):
            assert store.decide(asks).admits(asks)
        environment, before, most = told_by_the_table(store, lambda table: table.environment), 0, 0
        for number in range(20_000):
            store.decide(one(f"d:r:{{ip=10.{number >> 16}.{number >> 8 & 255}.{number & 255}:{number}}}"))
            transactions = environment.info()["last_txnid"]
            before, most = transactions, max(most, transactions - before) if number else 0
        assert 2 <= most <= 9
        assert [store.decide(asks).admits(asks) for asks in logins] == [False] * 50
        assert sum(taken(store, asks)[0] for asks in halves) >= 2 * 25
        pages, entries = told_by_the_table(store, lambda table: (table.txn.stat()["leaf_pages"], table._count()))
        assert pages <= 128
        assert entries > 25 * pages
        assert caplog.records == []
        store.close()

    def test_counters_that_become_large_give_way(self, url, path, caplog):
        store = opened(f"{url}?size=1MB")
        for cost in (1, 500, 500):
            for number in range(300):
                log = one(f"d:r:{{{number}}}", limit=2_000, name="sliding_log", cost=cost)
                assert store.decide(log).outcomes[0].allowed
                pages = told_by_the_table(store, lambda table: sum(map(table.txn.stat().get, PAGES)))
                assert pages <= 128
        assert caplog.records == []
        assert [each.name for each in path.parent.iterdir()] == ["counters"]
        store.close()

    def test_requests_that_change_most_pages_of_the_file_leave_it_usable(self, url):
        """Each writes a hundred new counters, all over the file, so that few pages are free after it."""
        store = opened(f"{url}?size=1MB")
        for number in range(200):
            asks = [one(f"d:r:{{{number}:{each}}}")[0] for each in range(100)]
            assert store.decide(asks).admits(asks)
        assert store.decide(one("d:r:{new}")).outcomes[0].remaining == 999_999
        store.close()

    @pytest.mark.parametrize("size", ["600k", "2m"])
    def test_a_disk_that_others_fill_stops_only_the_growth(self, url, path, size):
        code = """
folder = os.path.dirname(path)
store = opened(url)
known = [one(f"d:k:{{{number}}}", limit=20, cost=2) for number in range(50)]
for asks in known: store.decide(asks)
with open(folder + "/others", "wb", 0) as others:
    try:
        while others.write(bytes(4096)): pass
    except OSError:
        pass
assert os.statvfs(folder).f_bavail == 0
for number in range(20_000):
    assert store.decide(one(f"d:r:{{{number}}}")).outcomes[0].remaining == 999_999
    if number % 200 == 0:
        for asks in known[:2]: store.decide(asks)
print(store.decide(known[0]).admits(known[0]), store.away, os.statvfs(folder).f_bavail)
"""
        assert on_a_tmpfs(path.parent, size, url, code) == "False False 0\n"

    def test_a_disk_without_any_room_fails_the_requests_that_need_some(self, url):
        """The limit of a file's size stands in for a file system that cannot reserve space."""
        code = """
import resource
from ratelimit_mw.errors import CounterError
store = opened(url)
store.decide(one())
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
refused = 0
for number in range(2_000):
    try:
        store.decide(one(f"d:r:{{{number}}}"))
    except CounterError:
        refused += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(refused > 0, store.away, store.decide(one()).outcomes[0].allowed)
"""
        process = start(url, code)
        assert process.communicate()[0] == b"True False True\n"
        assert end(process) == 0

    def test_a_tmpfs_that_is_too_small_is_never_outgrown(self, url, path):
        code = """
folder = os.path.dirname(path)
store = opened(url)
for number in range(15_000):
    assert store.decide(one(f"d:r:{{{number}}}")).outcomes[0].allowed
with open(folder + "/rest", "wb") as rest:
    rest.write(b"x" * (os.statvfs(folder).f_bavail * 4_096))
print(store.decide(one("d:r:{new}")).outcomes[0].allowed)
"""
        assert on_a_tmpfs(path.parent, "1m", url, code) == "True\n"

    def test_a_tmpfs_without_a_bound_does_not_count_as_full(self, url, path):
        code = """
store = opened(url)
for number in range(500):
    store.decide(one(f"d:r:{{{number}}}"))
print(sum(1 for _ in store.keys("d:")))
"""
        assert on_a_tmpfs(path.parent, "0", url, code) == "500\n"


def test_an_exception_at_any_line_leaves_a_store_that_counts_exactly(store):
    store.decide(one())
    left = [store.decide(one()).outcomes[0].remaining]

    def check(place):
        now = store.decide(one()).outcomes[0].remaining
        assert 1 <= left[0] - now <= 2, place
        assert not store.away
        left[0] = now

    assert at_every_line(lambda: store.decide(one()), check) > 20


def test_the_lock_is_free_between_requests(path, store):
    store.decide(one())
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert isinstance(store, SharedStore)


def test_bans_and_shadows_hold_across_limiters(url):
    rules = [
        {"name": "a", "by": "ip", "limit": "2 per year", "ban": {"after": "1 denial", "for": "10 minutes"}},
        {"name": "b", "by": "ip", "limit": "1 per year", "shadow": True},
    ]
    config = {"domain": "d", "storage": {"url": url, "timeout": "20s"}, "rules": rules}
    with RateLimiter(config) as first, RateLimiter(config) as second:
        assert [limiter.check({"ip": "192.0.2.1"}).allowed for limiter in (first, second, first)] == [True, True, False]
        assert second.check({"ip": "192.0.2.1"}).banned
        assert shadow_denials(second) == {"b": 2}


def test_overrides_and_the_switch_are_shared(url):
    rules = [{"name": "a", "by": "ip", "limit": "1 per year"}]
    config = {"domain": "d", "storage": {"url": url, "timeout": "20s"}, "rules": rules}
    with RateLimiter(config) as first, RateLimiter(config) as second:
        first.overrides.set({"ip": "192.0.2.1"}, rule="a", limit="3 per year")
        second.reload()
        assert [second.check({"ip": "192.0.2.1"}).allowed for _ in range(4)] == [True, True, True, False]
        first.switch.set("off")
        second.reload()
        assert second.check({"ip": "192.0.2.1"}).allowed
        assert second.overrides.remove({"ip": "192.0.2.1"}, rule="a")
        assert first.overrides.list() == ()


def test_leases_and_shards_are_ignored(url):
    rule = {"name": "a", "by": "ip", "limit": "8 per year", "algorithm": "fixed_window"}
    for extra in ({"consistency": "lease"}, {"shards": 4}):
        config = {"domain": "d", "storage": {"url": url, "timeout": "20s"}, "rules": [{**rule, **extra}]}
        with RateLimiter(config) as limiter:
            assert type(limiter.engine.storage.store) is SharedStore


def test_deferral_is_refused_at_start(url):
    rule = {"name": "a", "by": "ip", "limit": "3 per year", "on_limit": "defer"}
    limiter = RateLimiter({"domain": "d", "storage": {"url": url}, "rules": [rule]})
    with pytest.raises(ConfigurationError, match=r"set storage\.url to a Redis; it is lmdb:// now"):
        limiter.require(deferrals_of(limiter).require)
    limiter.close()


def test_a_quota_of_another_limit_reads_the_same_counter(store):
    """The state does not depend on the limit, so a reload that changes it keeps the counts."""
    store.decide(one(limit=10))
    asks = [one()[0]._replace(quota=Quota("fixed_window", 20, one()[0].quota.period))]
    assert store.decide(asks).outcomes[0].remaining == 18
