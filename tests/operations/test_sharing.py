"""What the processes of one storage tell each other: two of them, many viewers, a dead process, and no server."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager

import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.operations.live import live_of
from ratelimit_mw.operations.sharing import MOST, Board
from ratelimit_mw.stores.shared.records import FileBoard
from tests.support.apps import ROOT
from tests.support.patience import at_most, eventually
from tests.support.processes import end, spawn

RULES = {
    "domain": "shop",
    "client": {"secret": "s"},
    "rules": [{"name": "login", "by": "ip", "limit": "2 per 10 years", "algorithm": "fixed_window"}],
}
REPORTER = """
    import sys, time
    from ratelimit_mw import RateLimiter
    from ratelimit_mw.operations.live import live_of

    limiter = RateLimiter({rules}, storage=sys.argv[1])
    live_of(limiter).begin(1)
    for _ in range(5):
        limiter.check({{"ip": "192.0.2.9"}})
    print("ready", flush=True)
    time.sleep(600)
"""


def rules(url, **storage):
    return {**RULES, "storage": {"url": url, "timeout": "5s", **storage}}


@contextmanager
def live(url, **storage):
    """A limiter and its started `Live`."""
    with RateLimiter(rules(url, **storage)) as limiter:
        each = live_of(limiter)
        each.begin(1)
        yield limiter, each


@contextmanager
def other_process(url):
    """A process that reports five requests of one client, of which three were denied."""
    script = textwrap.dedent(REPORTER).format(rules=rules(url))
    process = spawn([sys.executable, "-c", script, url], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        end(process, grace=0)
        process.stdout.close()


def alone(live):
    state = live.state()
    return state["shared"] and state["processes"] == 1 and state


def together(live, denials, processes=2):
    """The state as soon as it has these processes and their most denied client this number of denials."""
    state = live.state()
    limited = state["limited"]
    return state["processes"] == processes and limited and limited[0]["denials"] == denials and state


def reported(server):
    """The keys under which processes report."""
    return list(server.admin.scan_iter("*~live*", _type="string"))


@pytest.fixture(params=["redis", "lmdb"])
def url(request, tmp_path):
    """The URL of a storage that processes share."""
    return f"lmdb://{tmp_path}/limits" if request.param == "lmdb" else request.getfixturevalue("any_server").url


def test_two_processes_are_shown_together_until_one_is_killed(url):
    with live(url) as (limiter, each), other_process(url) as process:
        limiter.check({"ip": "192.0.2.1"})
        state = eventually(lambda: together(each, 3))
        assert state["shared"]
        assert state["store"]["kind"] == url.partition(":")[0]
        assert state["store"]["up"]
        (client,) = state["limited"]
        assert (client["client"], client["domain"], client["rule"]) == ("ip=192.0.2.9", "shop", "login")
        assert not limiter.check({"ip": "192.0.2.9"}).allowed
        (found,) = each.state()["limited"]
        assert found == {**client, "denials": 4}
        process.kill()
        (found,) = eventually(lambda: alone(each))["limited"]
        assert found == {**client, "denials": 1, "since": found["since"]}
        assert found["since"] > client["since"]


def test_a_process_that_ends_is_not_shown_any_more(any_server):
    with live(any_server.url) as (limiter, _):
        limiter.check({"ip": "192.0.2.1"})
        assert len(eventually(lambda: reported(any_server))) == 1
    eventually(lambda: not any_server.admin.keys("*~live*"), within=7)  # before it would expire


def test_a_process_that_begins_removes_the_names_of_killed_ones(any_server):
    names = "shop:~live:{shop}"
    any_server.admin.sadd(names, f"{names}:killed")
    with live(any_server.url) as (limiter, _):
        limiter.check({"ip": "192.0.2.1"})
        (own,) = eventually(lambda: reported(any_server))
        eventually(lambda: any_server.admin.smembers(names) == {own})


def reports(folder):
    """The files in which processes report. A folder lists a file that is replaced meanwhile under its name twice."""
    return set(folder.glob("limits.live-" + "[0-9a-f]" * 16))


def test_a_report_in_a_file_is_removed_at_the_end_or_by_the_next_process(tmp_path):
    url = f"lmdb://{tmp_path}/limits?mode=660"
    with live(url) as (limiter, _):
        limiter.check({"ip": "192.0.2.1"})
        (report,) = eventually(lambda: reports(tmp_path))
        assert report.stat().st_mode & 0o777 == 0o660
    eventually(lambda: not reports(tmp_path))
    killed = report.with_name(f"limits.live-{'0' * 16}")
    killed.write_text("{}")
    killed.chmod(0o600)
    os.utime(killed, (0, 0))
    with live(url) as (limiter, _):
        limiter.check({"ip": "192.0.2.1"})
        eventually(lambda: reports(tmp_path) and not killed.exists())


def test_a_report_that_others_may_write_is_not_read(tmp_path):
    url = f"lmdb://{tmp_path}/limits"
    with live(url) as (limiter, each), other_process(url):
        limiter.check({"ip": "192.0.2.1"})
        assert eventually(lambda: together(each, 3))
        for report in reports(tmp_path):
            forged = report.with_name(f"limits.live-{'f' * 16}")
            forged.write_bytes(report.read_bytes())
            forged.chmod(0o666)
        assert len(reports(tmp_path)) == 3
        assert len(FileBoard(url).read()) == 2


def test_a_folder_that_does_not_exist_is_logged_once(tmp_path, caplog):
    def said():
        return [text for text in caplog.messages if "the live page shows only this process" in text]

    with live(f"lmdb://{tmp_path}/missing/limits") as (limiter, each):
        limiter.check({"ip": "192.0.2.1"})
        (line,) = eventually(said)
        assert "does not exist: create it" in line
        assert each.state()["processes"] == 1
    assert said() == [line]


def test_every_key_expires_and_has_the_tag_of_the_domain(any_server):
    with live(any_server.url) as (_, each):
        eventually(lambda: alone(each))
        (key,) = eventually(lambda: reported(any_server))
        names = "shop:~live:{shop}"
        assert key.startswith(f"{names}:")
        assert any_server.admin.smembers(names) == {key}
        assert 0 < any_server.admin.ttl(key) <= 8
        assert 0 < any_server.admin.ttl(names) <= 8


def test_fifty_viewers_cause_two_commands_a_second_and_never_a_search(any_server):
    with live(any_server.url) as (limiter, each), live(any_server.url) as (other, _):
        other.check({"ip": "192.0.2.1"})
        limiter.check({"ip": "192.0.2.1"})
        eventually(lambda: each.state()["rates"]["requests"] > 0 and alone(each))
        stop = threading.Event()

        def view():
            while not stop.wait(0.05):
                each.state()

        viewers = [threading.Thread(target=view) for _ in range(50)]
        began = time.monotonic()
        any_server.admin.config_resetstat()
        for viewer in viewers:
            viewer.start()
        eventually(lambda: any_server.calls("mget") >= 2 and any_server.calls("set") >= 4)
        stop.set()
        for viewer in viewers:
            viewer.join()
        calls = {name: each["calls"] for name, each in any_server.admin.info("commandstats").items()}
        seconds = time.monotonic() - began
    assert not calls.keys() & {"cmdstat_scan", "cmdstat_keys"}
    assert calls["cmdstat_mget"] <= seconds + 1  # one process is looked at
    assert calls["cmdstat_set"] <= 2 * (seconds + 1)  # and two report


def test_a_killed_server_is_away_at_once_and_the_process_shows_itself(fresh_server):
    with live(fresh_server.url) as (limiter, each):
        for _ in range(3):
            limiter.check({"ip": "192.0.2.1"})
        eventually(lambda: alone(each))
        fresh_server.kill()
        state = eventually(lambda: not (state := each.state())["store"]["up"] and state)
        assert not state["shared"]
        assert state["store"]["latency_ms"] is None
        assert [(client["client"], client["denials"]) for client in state["limited"]] == [("ip=192.0.2.1", 1)]
        fresh_server.start()
        assert eventually(lambda: alone(each))["store"]["up"]


def test_a_frozen_server_holds_up_no_look(fresh_server):
    with live(fresh_server.url) as (_, each):
        eventually(lambda: alone(each))
        fresh_server.pause()
        with at_most(10):  # 40 calls that wait for the server would take 40 seconds
            for _ in range(40):
                each.state()
        assert not eventually(lambda: not (state := each.state())["store"]["up"] and state)["shared"]
        fresh_server.resume()
        assert eventually(lambda: alone(each))["store"]["up"]


def test_a_first_look_at_a_frozen_server_waits_for_less_than_its_timeout(fresh_server):
    with live(fresh_server.url, timeout="60s") as (_, each):
        fresh_server.pause()
        with at_most(30):
            assert not each.state()["shared"]
        fresh_server.resume()
        assert eventually(lambda: alone(each))


@pytest.mark.soak
def test_a_look_at_a_server_that_freezes_waits_for_less_than_300_milliseconds(fresh_server):
    with live(fresh_server.url) as (_, each):
        eventually(lambda: alone(each))
        time.sleep(1)  # the reports of others are known for a second
        fresh_server.pause()
        with at_most(0.3):
            each.state()
        fresh_server.resume()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"form": 1}', '{"form": 2}', "\xff", "[" * 9_000],
)
def test_a_text_that_cannot_be_read_is_left_out(any_server, text):
    any_server.admin.set("shop:~live:{shop}:7", text)
    any_server.admin.sadd("shop:~live:{shop}", "shop:~live:{shop}:7")
    with live(any_server.url) as (_, each):
        assert eventually(lambda: alone(each))["store"]["up"]


def test_a_server_that_refuses_the_reports_is_up_and_this_is_logged_once(any_server, caplog):
    any_server.admin.acl_setuser(
        "app", enabled=True, passwords=["+secret"], keys=["shop:login:*", "shop:overrides"], commands=["+@all"]
    )
    url = any_server.url.replace("redis://", "redis://app:secret@")
    with live(url) as (limiter, each):
        limiter.check({"ip": "192.0.2.1"})
        eventually(lambda: [message for message in caplog.messages if "refuses" in message])
        state = each.state()
        assert state["store"]["up"]
        assert not state["shared"]
    any_server.admin.acl_deluser("app")
    assert len([message for message in caplog.messages if "refuses" in message]) == 1


def test_a_board_has_the_texts_of_processes_that_still_write(any_server):
    one, other = Board(any_server.url, "shop"), Board(any_server.url, "shop")
    assert other.read() == []
    one.put("first")
    assert (one.read(), other.read()) == ([], [b"first"])
    (ended,) = reported(any_server)
    one.put("second")
    other.put("third")
    assert (one.read(), other.read()) == ([b"third"], [b"second"])
    any_server.admin.delete(ended)  # as if it had expired
    assert other.read() == []
    assert ended not in any_server.admin.smembers("shop:~live:{shop}")
    one.put("again")
    assert other.read() == [b"again"]
    one.withdraw()
    assert other.read() == []
    one.close()
    other.close()


def test_a_board_reads_the_texts_of_a_bounded_number_of_processes(any_server):
    names = [f"shop:~live:{{shop}}:{place:03}" for place in range(MOST + 9)]
    any_server.admin.mset(dict.fromkeys(names, "text"))
    any_server.admin.sadd("shop:~live:{shop}", *names)
    board = Board(any_server.url, "shop")
    assert board.read() == [b"text"] * MOST
    board.close()


FORKED = """
    import json, os, sys, time
    from ratelimit_mw import RateLimiter
    from ratelimit_mw.operations.live import live_of

    limiter = RateLimiter({rules}, storage=sys.argv[1])
    live = live_of(limiter)
    live.begin(1)
    for _ in range(4):
        limiter.check({{"ip": "192.0.2.1"}})
    while live.state()["processes"] != 1 or not live.state()["shared"]:
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        limiter.check({{"ip": "192.0.2.2"}})
        while live.state()["processes"] != 2 or not live.state()["limited"]:
            time.sleep(0.01)
        print(json.dumps(live.state()), flush=True)
        time.sleep(600)
    while live.state()["processes"] != 2:
        time.sleep(0.01)
    os.waitpid(child, 0)
"""


def test_the_child_of_a_fork_reports_for_itself(any_server):
    script = textwrap.dedent(FORKED).format(rules=rules(any_server.url))
    process = spawn([sys.executable, "-c", script, any_server.url], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        state = json.loads(process.stdout.readline())
        assert [(each["client"], each["denials"]) for each in state["limited"]] == [("ip=192.0.2.1", 2)]
        with live(any_server.url) as (_, each):
            assert eventually(lambda: together(each, 2, processes=3))["limited"] == state["limited"]
    finally:
        end(process, grace=0)
        process.stdout.close()


def test_a_storage_that_is_not_shared_shows_this_process_alone():
    with live("memory://") as (limiter, each):
        limiter.check({"ip": "192.0.2.1"})
        state = each.state()
    assert (state["shared"], state["processes"], state["store"]["up"]) == (False, 1, True)
    assert state["store"]["latency_ms"] is None
