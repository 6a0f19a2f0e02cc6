"""Named texts under a version: what rules and overrides lie in."""

import contextlib
import threading
from collections.abc import Mapping

import pytest

from ratelimit_mw.errors import StoreUnavailable, VersionConflict
from ratelimit_mw.stores import open_records
from tests.support.processes import in_child


@pytest.fixture(params=["memory", "redis", "unix"])
def records(request, any_server):
    url = {"memory": "memory://", "redis": any_server.url, "unix": any_server.unix_url}[request.param]
    records = open_records(url)
    yield records
    records.close()


def test_nothing_is_version_0(records):
    assert records.version("k") == 0
    assert records.read("k") == (0, {})
    assert records.read("k", ["a"]) == (0, {})


def test_each_write_is_a_version(records):
    assert records.write("k", {"a": "1", "ü": "é"}) == 1
    assert records.write("k", {"b": "2"}, ["a", "never there"]) == 2
    assert records.read("k") == (2, {"ü": "é", "b": "2"})
    assert records.read("k", ["b", "c"]) == (2, {"b": "2"})
    assert records.version("k") == 2
    assert records.version("other") == 0


def test_a_write_on_a_version_that_has_passed_changes_nothing(records):
    records.write("k", {"a": "1"}, expected=0)
    with pytest.raises(VersionConflict, match="the version is now 1") as caught:
        records.write("k", {"a": "2"}, expected=0)
    assert caught.value.version == 1
    assert records.read("k") == (1, {"a": "1"})


def test_of_many_at_once_one_wins(any_server):
    won = []

    def write():
        records = open_records(any_server.url)
        with contextlib.suppress(VersionConflict):
            won.append(records.write("k", {"a": threading.current_thread().name}, expected=0))
        records.close()

    threads = [threading.Thread(target=write) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [1]


def test_a_server_that_goes_and_comes_back(fresh_server):
    records = open_records(fresh_server.url)
    records.write("k", {"a": "1"})
    fresh_server.stop()
    with pytest.raises(StoreUnavailable):
        records.version("k")
    fresh_server.start()
    assert records.version("k") == 0
    records.close()


def test_an_idle_connection_that_the_server_closes_is_made_anew(any_server):
    records = open_records(any_server.url)
    records.write("k", {"a": "1"})
    any_server.admin.client_kill_filter(_type="normal", skipme=True)
    with contextlib.suppress(StoreUnavailable):  # it was used too shortly before to be looked at
        records.version("k")
    assert records.version("k") == 1
    records.close()


def test_what_redis_refuses_is_unavailable(any_server):
    any_server.admin.set("k", "of another type")
    records = open_records(any_server.url)
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        records.read("k")
    records.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_s_child_has_connections_of_its_own(any_server):
    records = open_records(any_server.url)
    records.write("k", {"a": "1"})
    in_child(lambda: records.write("k", {"b": "2"}))
    assert records.read("k") == (2, {"a": "1", "b": "2"})
    records.close()


def test_a_fork_while_a_thread_writes_hangs_no_child():
    class Forking(Mapping):
        """Forks while it is written."""

        def __iter__(self):
            versions.append(in_child(lambda: records.write("k", {"b": "2"})))
            return iter(())

        __getitem__ = __len__ = None

    records, versions = open_records("memory://"), []
    records.write("k", Forking())
    assert versions == [1]


@pytest.mark.parametrize("url", ["redis+cluster://", "redis+sentinel://h:1", "redis://h:x/0"])
def test_a_url_that_can_t_be_read(url):
    with pytest.raises(ValueError, match=r".+"):
        open_records(url)
