"""`top --watch`: one frame without a terminal, a frame each second with one, and no report at all."""

import io
import json
import os
import pty
import re
import signal
import sys
import time

import pytest
from rich.console import Console

from ratelimit_mw import RateLimiter
from ratelimit_mw.cli.watch import _show_each_second, frame
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.operations.activity import Activity, LimitedClient, ProcessReport, encode_report
from ratelimit_mw.operations.live import live_of
from ratelimit_mw.operations.sharing import Board
from tests.cli.conftest import app_limiter
from tests.operations.test_sharing import other_process
from tests.support.apps import ROOT
from tests.support.patience import eventually
from tests.support.processes import end, interruptible, spawn

NO_REPORT = (
    "no process reports yet: mount the page in the app, or write `observe: {live: true}` into its rules; a process "
    "reports from its first request on\n"
)


@pytest.fixture
def shop(run, any_server):
    """A limiter that reports what it did: two clients are limited."""
    with app_limiter(any_server.url) as limiter:
        live_of(limiter).begin(1)
        for _ in range(9):
            limiter.check({"ip": "203.0.113.7", "method": "POST", "path": "/login"})
        for _ in range(7):
            limiter.check({"ip": "203.0.113.8", "user": "ada", "path": "/api/items/7"})
        eventually(lambda: reported(any_server, 2))
        yield limiter


def reported(server, clients):
    """Whether a process reports so many limited clients."""
    texts = [server.admin.get(key) for key in server.admin.scan_iter("*~live*", _type="string")]
    return any(text and len(json.loads(text)["limited"]) == clients for text in texts)


def masked(printed):
    """What was printed, without what depends on the time."""
    printed = re.sub(r"user=[\w-]{20}", "user=A-HASH-OF-20-LETTERS", printed)
    printed = re.sub(r" +\d+ of \d+ denied in 1 minute", "", printed)  # only when a step of ten seconds has ended
    printed = re.sub(r"\d+(\.\d+)? (s|min|h|ms)\b", "T", printed)
    printed = re.sub(r"\b\d+(\.\d+)?(?= +(requests|denials)/s)", "N", printed)
    return re.sub(r" +", " ", re.sub(r"[▁▂▃▄▅▆▇█]+", "", printed))


def test_one_frame_is_printed_without_a_terminal(run, shop, any_server):
    code, printed, _ = run("top", "--watch", "--storage", any_server.url)
    assert code == 0
    lines = [line.strip() for line in masked(printed).splitlines()]
    assert lines[0] == "shop · rules from code · switch on · redis up, T · 1 process"
    assert lines[1] == "N requests/s N denials/s"
    assert lines[3] == "client rule reason denials since limited for"
    assert re.fullmatch(r"ip=203\.0\.113\.7 login limited 4 T ago T", lines[4])
    assert re.fullmatch(r"user=A-HASH-OF-20-LETTERS api limited 2 T ago T", lines[5])
    assert lines[7] == "rule limit allowed/s denied/s bans"
    assert lines[8].startswith("login 5 per minute, 20 per hour ")
    assert {line.split()[0] for line in lines[8:]} == {"login", "api", "everything"}


def test_denied_shows_only_who_is_limited(run, shop, any_server):
    code, printed, _ = run("top", "--watch", "--denied", "-n", "1", "--storage", any_server.url)
    assert code == 0
    assert "ip=203.0.113.7" in printed
    assert "and 1 more\n" in printed
    assert "allowed/s" not in printed
    assert "user=" not in printed


def test_json_is_the_state_of_the_page(run, shop, any_server):
    code, printed, _ = run("top", "--watch", "--json", "--storage", any_server.url)
    state = json.loads(printed)
    assert code == 0
    assert [client["denials"] for client in state["limited"]] == [4, 2]
    assert (state["processes"], state["shared"], state["version"]) == (1, True, shop.state.version)
    assert state.keys() == {"schema_version", *live_of(shop).state()}


def test_no_report_is_one_sentence(run, any_server):
    code, printed, _ = run("top", "--watch", "--storage", any_server.url)
    assert (code, " ".join(printed.split()) + "\n") == (0, NO_REPORT)


def test_a_watching_command_does_not_report(run, any_server):
    code, _, _ = run("top", "--watch", "--storage", any_server.url)
    assert code == 0
    assert not list(any_server.admin.scan_iter("*~live*"))


def test_all_processes_over_a_file_are_shown(run, tmp_path):
    url = f"lmdb://{tmp_path}/limits"

    def both():
        code, printed, _ = run("top", "--watch", "--storage", url)
        return code == 0 and "2 processes" in printed and re.search(r"ip=192\.0\.2\.9 +login +limited +\d", printed)

    with other_process(url), other_process(url):
        assert eventually(both)


def test_a_storage_that_is_not_shared_is_wrong_usage(run):
    code, _, said = run("top", "--watch", "--storage", "memory://")
    assert code == 2
    assert "the processes of memory:// do not share what they report" in said


def test_denied_without_watch_is_wrong_usage(run):
    assert run("top", "--denied") == (2, "", "ratelimit-mw: --denied needs --watch\n")


def test_a_server_that_does_not_answer_has_its_exit_code(run, fresh_server):
    fresh_server.kill()
    code, _, said = run("top", "--watch", "--storage", fresh_server.url)
    assert code == 3
    assert "the store does not answer" in said


def test_what_a_client_has_written_does_not_reach_the_terminal(run, any_server):
    evil = "\x1b[31mred[bold]\u202e\n"
    client = LimitedClient(evil, evil, evil, evil, 3, time.time(), None)
    report = Activity(1.0, 1.0, ({}, {}), {}, (client,), None)
    board = Board(any_server.url, "shop")
    board.put(encode_report(ProcessReport("p", evil, evil, report)))
    code, printed, _ = run("top", "--watch", "--storage", any_server.url)
    board.close()
    assert code == 0
    assert not set("\x1b\u202e") & set(printed)
    assert "\\x1b[31mred[bold]\\u202e\\n" in printed
    assert "no end" in printed


def test_json_has_escapes_for_what_a_terminal_would_obey(run, any_server):
    evil = "é\x1b[31m\x9b31m\x7f\u202e\U000e0001\n"
    report = Activity(1.0, 1.0, ({}, {}), {}, (LimitedClient(evil, "d", "r", "limited", 3, time.time(), None),), None)
    board = Board(any_server.url, "shop")
    board.put(encode_report(ProcessReport("p", "v", "on", report)))
    code, printed, _ = run("top", "--watch", "--json", "--storage", any_server.url)
    board.close()
    assert code == 0
    assert [each for each in printed if not each.isprintable() and each != "\n"] == []
    assert json.loads(printed)["limited"][0]["client"] == evil
    assert '"\\u00e9\\u001b[31m\\u009b31m\\u007f\\u202e\\udb40\\udc01\\n"' in printed


def test_a_frame_says_what_is_away_switched_off_and_measured(run):
    rules = [{"name": "trial", "by": "ip", "limit": "0 per hour", "shadow": True}]
    with RateLimiter({"domain": "shop", "rules": rules}) as limiter:
        live = live_of(limiter)
        live.begin(1)
        limiter.check({"ip": "192.0.2.1"})
        state = live.state()
    store = {"kind": "redis", "up": False, "latency_ms": None}
    series = {"step": 10, "end": 0, "requests": [38_005] * 2 + [0] * 88, "denials": [51_392] + [0] * 89}
    changed = {"switch": "off", "load": 0.25, "version": None, "store": store, "series": series}
    console = Console(width=160, no_color=True)
    with console.capture() as captured:
        console.print(frame({**state, **changed}, denied=False, most=20))
    printed = captured.get()
    assert "shop · rules of unknown version · switch off · redis away · load 25% · 1 process" in printed
    assert "   51,392 of 76,010 denied in 15 minutes" in printed
    assert printed.count("○ trial") == 2  # the client that it would limit, and the rule
    assert printed.count("○ a shadow rule") == 1


def test_a_terminal_gets_frames_until_ctrl_c(shop, any_server):
    """The command runs under a pseudo-terminal. SIGINT is what Ctrl-C sends."""
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "ratelimit_mw", "top", "--watch", "--storage", any_server.url]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = spawn(interruptible(command), stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
    os.close(terminal)
    read = b""
    try:
        while read.count(b"limited for") < 2:  # two frames
            read += os.read(main, 65536)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                read += os.read(main, 65536)
            except OSError:  # the terminal is closed: the command has ended
                break
        assert process.wait(60) == 0
    finally:
        end(process, grace=0)
        os.close(main)
    assert b"ip=203.0.113.7" in read
    assert b"Traceback" not in read
    assert b"Aborted" not in read


def test_a_terminal_on_which_nothing_can_be_drawn_again_gets_one_frame(shop, any_server):
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "ratelimit_mw", "top", "--watch", "--storage", any_server.url]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "COLUMNS": "120"}
    process = spawn(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
    os.close(terminal)
    try:
        assert process.wait(60) == 0
        assert b"ip=203.0.113.7" in os.read(main, 65536)
    finally:
        end(process, grace=0)
        os.close(main)


class Scripted:
    """A viewer that returns one state, then does not reach the store, and then gets Ctrl-C."""

    def __init__(self, state):
        self._steps = [state, StoreUnavailable("away"), KeyboardInterrupt()]

    def state(self):
        step = self._steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


@pytest.mark.parametrize("reported", [True, False])
def test_a_store_that_goes_away_is_said_above_the_last_frame(shop, monkeypatch, reported):
    monkeypatch.setattr("ratelimit_mw.cli.watch._EVERY", 0.01)
    state = live_of(shop).state() if reported else None
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    with pytest.raises(KeyboardInterrupt):
        _show_each_second(Scripted(state), console, denied=True, most=5)
    printed = console.file.getvalue()
    assert "the store does not answer" in printed
    assert ("ip=203.0.113.7" if reported else "no process reports") in printed
