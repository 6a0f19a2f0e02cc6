"""Several processes replay a log with the result of one, and end together."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from ratelimit_mw.foresight.jobs import JobFailed, in_processes
from ratelimit_mw.foresight.logs.formats import UnknownFormat
from ratelimit_mw.foresight.logs.inputs import Log
from ratelimit_mw.foresight.replay import Options, replay
from tests.foresight.logs_of import FORMATS, LOGS
from tests.foresight.test_replay import BAN, line, shop
from tests.support.apps import ROOT

RULES = [
    {"name": "everything", "limit": "3 per minute", "algorithm": "fixed_window"},
    {"name": "login", "match": {"path": "/login"}, "limit": "1 per minute", "count": {"status": [401]}},
    {"name": "guess", "match": {"path": "/login"}, "limit": "1 per minute", "ban": BAN},
    {"name": "pair", "by": ["ip", "ip+method"], "limit": "4 per 10 seconds", "replaces": ["everything"]},
    {"name": "shadow", "by": "user+ip", "limit": "1 per minute", "shadow": True},
]
ADDRESSES = [f"192.0.2.{number}" for number in range(1, 30)] + [f"2001:db8:{number}::{number}" for number in range(9)]


def mixed_log(path):
    """A log of many clients: requests of one second, out of order, late, of several methods and users, and broken."""
    texts = []
    for number in range(1200):
        address = ADDRESSES[number * number % 37]
        second = number // 20 + (number * 7 % 5) - (90 if number % 401 == 400 else 0)
        user = ("-", "ann", "bob")[number % 3]
        target = ("/", "/login", "/b?page=2", "/%C3%A9")[number % 4]
        method = "POST" if number % 11 == 0 else "GET"
        texts.append(line(max(second, 0), address, target, 401 if number % 2 else 429, user=user, method=method))
        if number % 300 == 7:
            texts.append("no line of a log\n")
    path.write_text("".join(texts))
    return str(path)


def seen_in(options, jobs):
    """All of a result that is shown, and the denials in order."""
    denials = []
    result = replay(Options(**options, jobs=jobs, on_denial=denials.append))
    assert result.without_jobs == ""
    parts = [result.outcome, *([result.against] if result.against else [])]
    tables = [table for part in parts for table in (part.clients, part.limited)]
    if result.difference is not None:
        tables += [result.difference.newly_denied, result.difference.newly_allowed]
        parts.append(result.difference)
    rules = [vars(rule) for part in parts[:2] if hasattr(part, "rules") for rule in part.rules.values()]
    plain = {name: value for name, value in vars(result).items() if name not in ("outcome", "against", "difference")}
    numbers = [(part.denied, getattr(part, "requests", None), getattr(part, "reasons", None)) for part in parts]
    most = [part.most_limited(100) for part in parts if hasattr(part, "most_limited")]
    return plain, numbers, rules, [(len(table), table.most(1000)) for table in tables], most, denials


@pytest.mark.parametrize("name", ["combined.log", "nginx.json", "nginx_timed.log"])
def test_three_processes_have_the_result_of_one_in_each_kind_of_format(name):
    options = {"logs": [str(LOGS / name)], "form": FORMATS[name], "rules": shop(*RULES[:3]), "spread": True}
    assert seen_in(options, 3) == seen_in(options, 1)


def test_three_processes_compare_two_files_as_one_does(tmp_path):
    options = {
        "logs": [mixed_log(tmp_path / "access.log"), str(LOGS / "main.log")],
        "rules": shop(*RULES, client={"secret": "s", "user": "header:Authorization"}),
        "against": shop({**RULES[0], "limit": "2 per minute"}, client={"secret": "s"}),
        "disorder": 30,
        "since": 1_772_366_405_000_000,
    }
    one = seen_in(options, 1)
    assert seen_in(options, 3) == one
    plain, numbers, *_, denials = one
    assert min(plain[name] for name in ("unreadable", "late", "skipped", "limited_before")) > 0
    assert min(denied for denied, *_ in numbers) > 0
    assert [denial.at for denial in denials] == sorted(denial.at for denial in denials)


def test_clients_with_a_common_value_are_decided_in_one_process(tmp_path):
    path = tmp_path / "access.log"
    requests = [(n // 9, ADDRESSES[n % 37], f"user{n % 5}", ADDRESSES[-n % 7]) for n in range(600)]
    path.write_text("".join(line(at, ip, user=user, forwarded=proxy) for at, ip, user, proxy in requests))
    by_user = {"name": "u", "by": ["user", "user+method"], "limit": "5 per minute"}
    by_proxy = {"name": "p", "by": "ip", "limit": "5 per minute"}
    clients = {"secret": "s", "user": "header:X-User", "trusted_proxies": ["192.0.2.0/24"], "ipv6_prefix": 32}
    options = {"logs": [str(path)], "places": {"user": "remote_user"}}
    for rule in (by_user, by_proxy):
        rules = shop(rule, client=clients)
        one = seen_in({**options, "rules": rules}, 1)
        assert seen_in({**options, "rules": rules}, 2) == one
        assert one[1][0][0] > 100


def test_a_field_that_only_skipped_lines_have_is_absent_for_several_processes_too(tmp_path):
    path = tmp_path / "access.log"
    path.write_text("".join(line(n, ADDRESSES[n % 37], user="ann" if n < 9 else "-") for n in range(99)))
    rules = shop({"name": "pair", "by": "user+ip", "limit": "1 per minute"}, client={"secret": "s"})
    options = {"logs": [str(path)], "rules": rules, "since": 1_772_366_409_000_000}
    one = seen_in(options, 1)
    assert "which this log does not have" in one[0]["gaps"][0].text
    assert seen_in(options, 2) == one


def test_the_reason_why_a_rule_is_coupled_does_not_depend_on_the_number_of_processes(tmp_path):
    path = tmp_path / "access.log"
    path.write_text("".join(line(n, ADDRESSES[n], f"/{n % 2}") for n in range(8)))
    others = [{"name": f"r{n}", "match": {"path": f"/{n}"}, "limit": "2 per minute"} for n in range(2)]
    options = {"logs": [str(path)], "rules": shop({"name": "all", "limit": "1 per minute"}, *others)}
    one = seen_in(options, 1)
    assert "'all' (it decides together with r0)" in one[0]["without_curve"][0]
    assert [seen_in(options, jobs) for jobs in (2, 3)] == [one] * 2


DESCRIPTORS = [{"key": "remote_address", "rate_limit": {"unit": "minute", "requests_per_unit": 2}}]
BY_IP = {"name": "a", "limit": "2 per minute"}
UNDIVIDED = [
    ({"rules": [BY_IP, {**BY_IP, "name": "all", "by": "global"}]}, "rule 'all' counts by global"),
    ({"rules": [BY_IP, {**BY_IP, "name": "u", "by": "user|ip"}]}, "rule 'u' counts by user|ip"),
    ({"rules": [{**BY_IP, "by": "path"}]}, "requests can't be divided by path"),
    ({"descriptors": DESCRIPTORS}, "the limits of descriptors may count all clients together"),
]


@pytest.mark.parametrize(("config", "reason"), UNDIVIDED)
def test_one_process_replays_if_the_counters_share_nothing(config, reason):
    options = {"logs": [str(LOGS / "combined.log")], "rules": {"domain": "d", **config}}
    several, one = replay(Options(**options, jobs=2)), replay(Options(**options))
    assert several.without_jobs == f"--jobs has no effect: {reason}"
    assert several.outcome.denied == one.outcome.denied > 0


def test_files_that_read_the_address_in_two_ways_are_not_divided():
    rule = {"name": "a", "limit": "2 per minute"}
    options = Options(
        logs=[str(LOGS / "combined.log")], rules=shop(rule), against=shop(rule, client={"ipv6_prefix": 48}), jobs=2
    )
    assert replay(options).without_jobs == "--jobs has no effect: requests can't be divided by ip"


def test_a_pipe_cannot_be_read_by_several_processes(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, name in (("-", "standard input"), (str(tmp_path / "pipe"), "pipe")):
        with pytest.raises(ValueError, match=f"{name} can't be read by several processes"):
            replay(Options(logs=[path], rules=shop(RULES[0]), jobs=2))


def test_a_growing_log_is_read_up_to_a_given_byte(tmp_path):
    path = tmp_path / "access.log"
    texts = [line(number % 3000) for number in range(5000)]
    path.write_text("".join(texts))
    for lines in (0, 3, 4900):
        with Log(str(path), sum(map(len, texts[:lines]))) as log:
            if lines:
                log.detect("main", {})
                assert sum(map(len, log.entries([]))) == lines
            else:
                with pytest.raises(UnknownFormat, match="empty"):
                    log.detect("main", {})


def fails(task, _progress):
    if task == "exits":
        os._exit(7)
    if task == "odd":
        raise Odd("one", "two")
    raise OSError("the log is gone")


class Odd(Exception):
    """An error that cannot be sent to another process."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def waits(task, progress):
    if task:
        raise OSError("the log is gone")
    progress(1, 2)
    threading.Event().wait()


def doubles(task, progress):
    progress(task, 10 * task)
    return 2 * task


def test_results_are_in_the_order_of_the_tasks_and_progress_is_added_up():
    reports = []
    assert in_processes(doubles, [1, 3], lambda *report: reports.append(report)) == [2, 6]
    assert reports[-1] == (4, 20)


@pytest.mark.parametrize(
    ("task", "error", "text"),
    [
        ("exits", JobFailed, r"ended without a result \(exit code 7\)"),
        ("odd", JobFailed, "Odd: one two"),
        ("error", OSError, "the log is gone"),
    ],
)
def test_the_error_of_a_process_is_raised(task, error, text):
    with pytest.raises(error, match=text):
        in_processes(fails, [task], None)


def test_an_error_ends_the_other_processes():
    with pytest.raises(OSError, match="gone"):
        in_processes(waits, [0, 1], None)


def test_ctrl_c_ends_all_processes_without_a_traceback():
    code = "import tests.foresight.test_jobs as t; t.in_processes(t.waits, [0, 0], lambda *_: print(1, flush=True))"
    options = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **options) as started:
        assert [started.stdout.readline(), started.stdout.readline()] == ["1\n", "1\n"]
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does
        _, errors = started.communicate(timeout=60)
    assert errors.count("Traceback") == 1  # that of the command itself, which typer would show as "Aborted!"
    assert "Process Spawn" not in errors
