"""`Live.state()` of one process: its rates, its series, its rules, and who is limited."""

import gc
import json
import threading

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.operations.live import live_of
from tests.support.patience import eventually
from tests.support.processes import in_child

LOGIN = {"name": "login", "by": "ip", "limit": "2 per hour", "algorithm": "fixed_window"}
TRIAL = {"name": "trial", "by": ["ip", "path"], "limit": ["1 per hour", "9 per day"], "shadow": True}
HEAD = "domain: shop\nreload: 1h\n"


def reporters():
    """How many threads of this process report."""
    return sum(thread.name == "ratelimit_mw live" and thread.is_alive() for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _none_before():
    """The threads of earlier tests end by themselves, and of limiters that were not closed when these are collected."""
    if reporters():
        gc.collect()
    eventually(lambda: reporters() == 0)


@pytest.fixture
def started():
    """A function that makes a limiter and its started `Live`. Both are closed after the test."""
    made = []

    def make(*rules, **file):
        clock = ManualClock()
        limiter = RateLimiter(
            {"domain": "shop", "client": {"secret": "s"}, "rules": rules or [LOGIN], **file}, clock=clock
        )
        live = live_of(limiter)
        live.begin(1)
        made.append(limiter)
        return limiter, live, clock

    yield make
    for each in made:
        each.close()


def test_the_state_of_a_process_has_the_fields_that_the_page_shows(started):
    limiter, live, clock = started(LOGIN, TRIAL)
    for _ in range(20):
        limiter.check({"ip": "192.0.2.1"})
        clock.advance(1)
        live.state()
    state = live.state()
    assert json.loads(json.dumps(state)) == state
    assert state == {
        "domain": "shop",
        "version": "given",
        "switch": "on",
        "at": 1_700_000_020.0,
        "store": {"kind": "memory", "up": True, "latency_ms": None},
        "load": None,
        "processes": 1,
        "shared": False,
        "rates": {"requests": 1.0, "denials": 1.0},
        "series": {"step": 10, "end": 1_700_000_020, "requests": [9, 10], "denials": [7, 10]},
        "limited": [
            {
                "client": "ip=192.0.2.1",
                "domain": "shop",
                "rule": rule,
                "reason": "limited",
                "denials": denials,
                "since": since,
                "until": until,
                "shadow": rule == "trial",
            }
            for rule, denials, since, until in (
                ("trial", 19, 1_700_000_001.0, 1_700_006_400.0),
                ("login", 18, 1_700_000_002.0, 1_700_002_800.0),
            )
        ],
        "rules": [
            {
                "domain": "shop",
                "name": "login",
                "limits": ["2 per hour"],
                "shadow": False,
                "rates": {"allowed": 0.0, "over": 0.0, "delayed": 0.0, "denied": 1.0, "shadow_denied": 0.0},
                "bans": 0,
            },
            {
                "domain": "shop",
                "name": "trial",
                "limits": ["1 per hour", "9 per day"],
                "shadow": True,
                "rates": {"allowed": 0.0, "over": 0.0, "delayed": 0.0, "denied": 0.0, "shadow_denied": 1.0},
                "bans": 0,
            },
        ],
    }


def test_rules_with_live_report_without_a_page(any_server):
    config = {"domain": "shop", "storage": {"url": any_server.url, "timeout": "5s"}, "rules": [LOGIN]}
    with RateLimiter({**config, "observe": {"live": True}}) as reporting, RateLimiter(config) as silent:
        reporting.check({"ip": "192.0.2.1"})
        silent.check({"ip": "192.0.2.1"})
        assert eventually(lambda: list(any_server.admin.scan_iter("*~live*")))
        assert (silent.engine.on_denial, live_of(silent).state()["shared"]) == (None, False)


def test_a_reload_begins_and_ends_the_reports(tmp_path):
    path = tmp_path / "ratelimits.yaml"

    def reload(text):
        path.write_text(
            f"domain: shop\nreload: 1h\n{text}rules: [{{name: login, by: ip, limit: 0 per hour}}]\n", "utf-8"
        )
        limiter.reload()
        return limiter.engine.on_denial is not None

    path.write_text(f"{HEAD}rules: [{{name: login, by: ip, limit: 1 per hour}}]\n", "utf-8")
    with RateLimiter(path) as limiter:
        assert limiter.engine.on_denial is None
        assert reload("observe: {live: true}\n")
        assert reload("observe: {live: true, denials: 3}\n")
        assert not reload("observe: {live: false}\n")
        page = live_of(limiter)
        page.begin(1)
        assert reload("observe: {live: true}\n")
        assert reload("")  # the page still reports
        page.end(1)
        assert limiter.engine.on_denial is None


def test_a_look_after_the_end_only_reads(started):
    limiter, live, _ = started()
    limiter.check({"ip": "192.0.2.1"})
    assert reporters() == 1
    live.end(1)
    assert live.state()["rates"]["requests"] == 1.0
    assert limiter.engine.on_denial is None
    eventually(lambda: reporters() == 0)
    live.begin(1)
    live.state()
    assert reporters() == 1  # `start` begins again
    limiter.close()
    assert live.state()["rates"]["requests"] == 1.0
    eventually(lambda: reporters() == 0)


def test_a_first_look_at_a_closed_limiter_only_reads():
    with RateLimiter({"domain": "shop", "rules": [LOGIN]}) as limiter:
        live = live_of(limiter)
    assert live.state()["processes"] == 1
    assert (reporters(), limiter.engine.on_denial) == (0, None)


def test_a_closed_limiter_that_is_used_again_reports(started):
    limiter, *_ = started()
    limiter.check({"ip": "192.0.2.1"})
    limiter.close()
    eventually(lambda: reporters() == 0)
    limiter.check({"ip": "192.0.2.1"})
    assert reporters() == 1


def test_descriptors_are_rules_with_their_limits():
    entry = {"key": "plan", "value": "free", "rate_limit": {"unit": "hour", "requests_per_unit": 1}}
    unlimited = {"key": "plan", "value": "paid", "rate_limit": {"unlimited": True}}
    with RateLimiter({"domain": "shop", "descriptors": [entry, unlimited]}, clock=ManualClock()) as limiter:
        live = live_of(limiter)
        live.begin(1)
        for _ in range(3):
            limiter.check([("plan", "free")])
        state = live.state()
    assert [rule["limits"] for rule in state["rules"]] == [["1 per hour"], []]
    assert [rule["rates"]["denied"] for rule in state["rules"]] == [2.0, 0.0]
    assert [client["denials"] for client in state["limited"]] == [2]


def test_a_limit_of_a_function_says_so():
    rule = {"name": "own", "by": "ip", "limit": "python:tests.operations.test_live:limit_of"}
    with RateLimiter({"domain": "shop", "rules": [rule]}, clock=ManualClock()) as limiter:
        (shown,) = live_of(limiter).state()["rules"]
    assert shown["limits"] == ["set by a function"]


def limit_of(_request):
    return "1 per hour"


def test_an_error_while_sampling_is_logged_once_and_does_not_end_the_reports(started, caplog):
    limiter, live, _ = started()
    samples = []

    def fail():
        samples.append(1)
        raise ValueError("no sample")

    live._observer.sample = fail
    limiter.check({"ip": "192.0.2.1"})  # the thread begins
    eventually(lambda: len(samples) > 1)
    (message,) = caplog.messages
    assert message.startswith("the live page can't be kept up to date: ValueError")
    del live._observer.sample
    assert live.state()["rates"]["requests"] == 1.0


def test_a_process_that_can_start_no_thread_shows_itself(started, monkeypatch):
    limiter, live, _ = started()

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert limiter.check({"ip": "192.0.2.1"}).allowed
    assert live.state()["rates"]["requests"] == 1.0


def test_what_a_forked_process_inherits_is_dropped(started):
    limiter, live, _ = started()
    for _ in range(3):
        limiter.check({"ip": "192.0.2.1"})
    assert len(live.state()["limited"]) == 1

    def work():
        inherited = live.state()
        limiter.check({"ip": "192.0.2.1"})
        return inherited["limited"], inherited["rates"]["requests"], live.state()["rates"]["requests"], reporters()

    assert in_child(work) == [[], 0.0, 1.0, 1]
    assert live.state()["rates"]["requests"] == 3.0
