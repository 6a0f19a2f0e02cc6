"""`Live.state()` of one process: its rates, its series, its rules, and who is limited."""

import json

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.operations.live import Live
from tests.support.patience import eventually

LOGIN = {"name": "login", "by": "ip", "limit": "2 per hour", "algorithm": "fixed_window"}
TRIAL = {"name": "trial", "by": ["ip", "path"], "limit": ["1 per hour", "9 per day"], "shadow": True}
HEAD = "domain: shop\nreload: 1h\n"


@pytest.fixture
def started():
    """A function that makes a limiter and its started `Live`. Both are closed after the test."""
    made = []

    def make(*rules, **file):
        clock = ManualClock()
        limiter = RateLimiter(
            {"domain": "shop", "client": {"secret": "s"}, "rules": rules or [LOGIN], **file}, clock=clock
        )
        live = Live(limiter)
        live.start()
        made.extend([live, limiter])
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
                "rule": "login",
                "reason": "limited",
                "denials": 18,
                "since": 1_700_000_002.0,
                "until": 1_700_002_800.0,
            }
        ],
        "rules": [
            {
                "domain": "shop",
                "name": "login",
                "limits": ["2 per hour"],
                "shadow": False,
                "rates": {"allowed": 0.0, "over": 0.0, "delayed": 0.0, "denied": 1.0, "shadow_denied": 0.0},
                "bans": 0,
                "denials": [7, 10],
            },
            {
                "domain": "shop",
                "name": "trial",
                "limits": ["1 per hour", "9 per day"],
                "shadow": True,
                "rates": {"allowed": 0.0, "over": 0.0, "delayed": 0.0, "denied": 0.0, "shadow_denied": 1.0},
                "bans": 0,
                "denials": [],
            },
        ],
    }


def test_rules_with_live_report_without_a_page(any_server):
    config = {"domain": "shop", "storage": {"url": any_server.url, "timeout": "5s"}, "rules": [LOGIN]}
    with RateLimiter({**config, "observe": {"live": True}}) as reporting, RateLimiter(config) as silent:
        reporting.check({"ip": "192.0.2.1"})
        silent.check({"ip": "192.0.2.1"})
        assert eventually(lambda: list(any_server.admin.scan_iter("*~live*")))
        assert eventually(lambda: Live(silent).state()["rates"]["requests"] > 0)
        assert silent.engine.on_denial is not None  # a look begins to report
    assert not silent.reporting


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
        page = Live(limiter)
        page.start()
        assert reload("observe: {live: true}\n")
        assert reload("")  # the page still reports
        page.close()
        assert limiter.engine.on_denial is None
