"""The commands about counters and overrides, over a file that the processes of one machine share."""

import json

import pytest

from tests.cli.conftest import app_limiter
from tests.support.apps import within_a_minute


@pytest.fixture
def url(tmp_path):
    return f"lmdb://{tmp_path}/counters"


@pytest.fixture
def shop(run, url):
    """A limiter that shares its counters with the commands, after some traffic."""
    within_a_minute()
    with app_limiter(url) as limiter:
        for _ in range(5):
            limiter.check({"ip": "203.0.113.7", "method": "POST", "path": "/login"})
        yield limiter


def test_top_show_and_reset_read_and_write_the_counters_of_the_app(run, shop, url):
    code, printed, _ = run("top", "--json", "--storage", url)
    assert code == 0
    found = [(each["rule"], each["limit"], each["used"]) for each in json.loads(printed)["counters"]]
    assert found == [("login", "5 per minute", 1.0), ("login", "20 per hour", 0.25)]
    code, printed, _ = run("show", "login", "--ip", "203.0.113.7", "--storage", url)
    assert code == 0
    assert "5 per minute" in printed
    login = {"ip": "203.0.113.7", "method": "POST", "path": "/login"}
    assert not shop.check(login).allowed
    code, printed, _ = run("reset", "login", "--yes", "--storage", url)
    assert (code, printed) == (0, "2 counters reset\n")
    assert shop.check(login).allowed


def test_an_explanation_reads_the_counters_of_the_app(run, shop, url):
    code, printed, _ = run("explain", "POST", "/login", "--ip", "203.0.113.7", "--storage", url)
    assert code == 0
    assert "would be denied by 'login'" in printed


def test_the_switch_of_a_command_reaches_the_app(run, shop, url):
    assert run("switch", "off", "--storage", url)[0] == 0
    shop.reload()
    assert shop.check({"ip": "203.0.113.7", "method": "POST", "path": "/login"}).allowed
