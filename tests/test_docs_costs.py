"""docs/costs.md: every block of it runs, and does what the page says."""

import ast
import re

import pytest

from ratelimit_mw import RateLimiter
from tests.shells.asking import IP
from tests.shells.test_settling import EACH, by_hand, says, under_asgi
from tests.support.apps import ROOT
from tests.support.rules import load_rules

BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs/costs.md").read_text(), re.MULTILINE | re.DOTALL)
YAML = [text for kind, text in BLOCKS if kind == "yaml"]


@pytest.fixture(autouse=True)
def mysite(tmp_path, monkeypatch):
    """The module of the page that a rule names."""
    (code,) = [text for kind, text in BLOCKS if kind == "python" and text.startswith("# mysite/responses.py\n")]
    (tmp_path / "mysite").mkdir()
    (tmp_path / "mysite" / "responses.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def limiter_of(tmp_path, monkeypatch):
    """The limiter of the block that has this rule; `path` takes every request to it."""
    made = []

    def limiter(rule):
        (text,) = [text for text in YAML if re.search(rf"name: {rule}\b", text)]
        (tmp_path / "rules.yaml").write_text(re.sub(r" *match: .*\n", "", text))
        made.append(RateLimiter(tmp_path / "rules.yaml", storage="memory://"))
        return made[-1]

    yield limiter
    for each in made:
        each.close()


@pytest.mark.parametrize("text", YAML)
def test_each_block_loads_as_it_stands(text, tmp_path):
    (tmp_path / "rules.yaml").write_text(text)
    assert load_rules(tmp_path / "rules.yaml").rules


def test_the_code_is_code():
    assert all(ast.parse(text) for kind, text in BLOCKS if kind == "python")


@EACH
def test_a_login(limiter_of, ask):
    limiter, alice = limiter_of("login"), [("X-User", "alice")]
    assert [status for status, _ in ask(limiter, says(401), times=50, headers=alice, at_once=True)].count(401) == 3
    assert ask(limiter, says(200), headers=alice)[0][0] == 429
    assert ask(limiter, says(200), headers=alice, ip="192.0.2.1")[0][0] == 200


@EACH
def test_wrong_coupons(limiter_of, ask):
    limiter = limiter_of("coupons")
    assert [status for status, _ in ask(limiter, says(200), times=5)] == [200] * 5
    wrong = ask(limiter, lambda handle: (200, [("X-Coupon", "unknown")]), times=4)
    assert [status for status, _ in wrong] == [200] * 3 + [429]


@EACH
def test_costs(limiter_of, ask):
    limiter = limiter_of("fixed")
    ask(limiter, says(200, ("X-Cost", "9")), headers=[("X-Cost", "7")])
    left = limiter.peek({"ip": IP, "header:X-Cost": "0", "weight": "0"}).policies
    assert {policy.rule: policy.remaining for policy in left} == {
        "fixed": 95,
        "header": 93,
        "attribute": 99,
        "response": 91,
    }


@EACH
def test_reports(limiter_of, ask):
    assert [status for status, _ in ask(limiter_of("reports"), says(200), times=4)] == [200] * 4


@EACH
def test_by_hand(limiter_of, ask):
    remaining, (*_, decision) = by_hand(limiter_of("mail"), ask, ("charge", 5), ("refund", 2), ("check", "mail", 3))
    assert remaining == 96
    assert (decision.rule, decision.remaining) == ("mail", 17)


def test_the_shells_are_both_here():
    assert under_asgi in EACH.args[1][0].values
