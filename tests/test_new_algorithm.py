"""A new algorithm, added as docs/add-an-algorithm.md says: its two files and its line are taken from that page."""

import importlib
import json
import logging
import re
import struct
import sys
import time
from pathlib import Path
from random import Random

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter, algorithms
from ratelimit_mw.cli.app import app
from ratelimit_mw.config.file import json_schema
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.foresight.replay import Options, replay
from ratelimit_mw.model import OVERDRAFT, SECOND, Ask, Quota
from ratelimit_mw.stores.base import DECIDE, complete
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis.codec import GENERAL, decode, encode, script
from ratelimit_mw.stores.redis.endpoint import Blocking
from ratelimit_mw.stores.redis.store import RedisStore
from tests.support.apps import ROOT
from tests.support.rules import load_rules

PAGE = (ROOT / "docs" / "add-an-algorithm.md").read_text("utf-8")
MODULE, LUA, LINE = re.findall(r"^```(?:python|lua|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

START = 1_700_000_040
MINUTE = 60 * SECOND
RULE = {"name": "api", "limit": "6 per minute", "algorithm": "gcra_again", "burst": 3}
FILE = {"domain": "shop", "storage": {"timeout": "5s"}, "rules": [RULE]}
IP = {"ip": "192.0.2.1"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that writes a package with the page's two files, or others, and returns the name of the module."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "added_algorithms"
    folder.mkdir()

    def write(name="gcra_again", module=MODULE, lua=LUA):
        (folder / f"{name}.py").write_text(module, "utf-8")
        if lua is not None:
            (folder / f"{name}.lua").write_text(lua, "utf-8")
        importlib.invalidate_caches()
        return f"added_algorithms.{name}"

    yield write
    for module in [name for name in sys.modules if name.partition(".")[0] == "added_algorithms"]:
        del sys.modules[module]


def remove_again():
    """Undo what `algorithms.add` has done for the algorithm of the page."""
    for table in (algorithms.ALGORITHMS, algorithms.DECIDE_ALL, algorithms.LUA_PARTS):
        table.pop("gcra_again", None)
    algorithms.DECIDE_ALL.pop("gcra_again" + OVERDRAFT, None)
    algorithms.widened.cache_clear()


@pytest.fixture
def added(package):
    """The algorithm of the page, added by the line in the table, and removed afterwards."""
    module = package()
    assert LINE.strip() == '"ratelimit_mw.algorithms.gcra_again",'
    algorithms.add(module)
    yield
    remove_again()


def admitted(limiter, times):
    return [limiter.check(IP).allowed for _ in range(times)]


def test_a_bucket_in_memory_has_its_burst_and_refills(added):
    clock = ManualClock(START)
    with RateLimiter(FILE, clock=clock) as limiter:
        assert admitted(limiter, 4) == [True, True, True, False]
        clock.advance(limiter.check(IP).retry_after)
        assert admitted(limiter, 2) == [True, False]


def test_redis_decides_as_the_memory_does(added, server):
    clock = ManualClock(START)
    with RateLimiter(FILE, clock=clock, storage=server.url) as limiter:
        assert admitted(limiter, 4) == [True, True, True, False]
        clock.advance(limiter.check(IP).retry_after)
        assert admitted(limiter, 2) == [True, False]
    with server.client() as client:
        assert [key.partition(":{")[0] for key in client.scan_iter()] == ["shop:api:ga60"]


@pytest.mark.parametrize("seed", range(8))
def test_any_history_is_alike_in_memory_and_on_redis(added, any_server, seed):
    dice, clock = Random(seed), ManualClock(START)
    memory, redis = MemoryStore(clock=clock), RedisStore(any_server.url, timeout=5, clock=clock)
    asks = [
        Ask(f"d:r{number}:ga60:{{x}}", Quota("gcra_again", limit, MINUTE, burst))
        for number, (limit, burst) in enumerate([(6, 3), (7, 7), (1, 1), (0, 0)])
    ]
    charged_at = [clock.now()]
    for _ in range(120):
        clock.advance(dice.choice((0, 0, 0.5, 8.571429, 10, 61)))
        asked = [ask._replace(cost=dice.choice((0, 1, 1, 2))) for ask in dice.sample(asks, dice.choice((1, 1, 2)))]
        step = dice.choice(("decide", "decide", "look", "refund", "charge"))
        for store in (memory, redis):
            if step == "refund":
                store.refund(asked, charged_at[-1])
            elif step == "charge":
                charged_at.append(store.charge(asked))
        said = [store.decide(asked, commit=step == "decide") for store in (memory, redis)]
        assert list(said[0].outcomes) == list(said[1].outcomes)
    redis.close()


def test_the_schema_names_it(added):
    assert jsonschema.Draft202012Validator(json_schema()).is_valid(FILE)


def test_the_command_line_takes_it(added, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command line adds its folder, and a handler
    monkeypatch.setattr(logging.getLogger("ratelimit_mw"), "handlers", [])
    Path("ratelimits.yaml").write_text(yaml.safe_dump(FILE), "utf-8")
    checked = CliRunner().invoke(app, ["check", "ratelimits.yaml"])
    assert checked.exit_code == 0, checked.output
    printed = CliRunner().invoke(app, ["schema"])
    jsonschema.validate(FILE, json.loads(printed.stdout))


def test_an_explanation_names_it(added):
    with RateLimiter(FILE, clock=ManualClock(START)) as limiter:
        limiter.check(IP)
        assert "6 per minute, 3 at once, gcra_again: 2 left" in str(limiter.explain(IP))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        pytest.param(
            {"consistency": "lease"},
            "can't be combined with gcra_again: the refill starts at the time of each charge, so requests can't "
            "be charged earlier or later (use algorithm: fixed_window, sliding_window or bucketed_window)",
            id="a lease",
        ),
        pytest.param(
            {"consistency": "write_back"},
            "can't be combined with gcra_again: the refill starts at the time of each charge",
            id="a write-back",
        ),
        pytest.param({"buckets": 10}, "gcra_again has no buckets", id="buckets"),
        pytest.param({"max_wait": "1s"}, "gcra_again: its requests never wait", id="a wait"),
        pytest.param({"burst": 1, "cost": 2}, "a cost of 2 can never fit into a burst of 1", id="a cost"),
        pytest.param({"algorithm": "gcra_agian"}, "did you mean 'gcra_again'?", id="a typo"),
        pytest.param(
            {"algorithm": "fixed_window"}, "use algorithm: token_bucket, leaky_bucket or gcra_again", id="a hint"
        ),
    ],
)
def test_a_rule_is_refused_for_what_the_algorithm_cannot_do(added, keys, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load_rules({**FILE, "rules": [{**RULE, **keys}]})


def test_shards_divide_it(added, any_server):
    clock = ManualClock(START)
    rule = {**RULE, "limit": "8 per minute", "burst": 8, "shards": 4}
    with RateLimiter({**FILE, "rules": [rule]}, clock=clock, storage=any_server.url) as limiter:
        assert admitted(limiter, 9) == [True] * 8 + [False]


def replayed(tmp_path, limit=6):
    """The result of a replay of 12 requests of two clients by the rule with this limit."""
    log = tmp_path / "access.log"
    form = "$msec $remote_addr $request_method $request_uri $status"
    log.write_text("".join(f"{START + 2 * step} 192.0.2.{step % 2} GET / 200\n" for step in range(12)), "utf-8")
    rules = {**FILE, "rules": [{**RULE, "limit": f"{limit} per minute"}]}
    return replay(Options(logs=[str(log)], rules=rules, form=form))


def test_it_has_an_exact_what_if(added, tmp_path):
    (curve,) = replayed(tmp_path).curves
    assert curve.why_replayed == ""
    assert len(set(curve.denied)) > 1
    assert list(curve.denied) == [replayed(tmp_path, limit).outcome.denied for limit in curve.limits]


def test_without_its_arithmetic_the_report_says_so(package, tmp_path):
    algorithms.add(package(module=re.sub(r"    at_all_limits=.*\n", "", MODULE)))
    try:
        why = "gcra_again does not say how it decides at all limits at once"
        assert [curve.why_replayed for curve in replayed(tmp_path).curves] == [why]
    finally:
        remove_again()


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        pytest.param({"lua": None}, FileNotFoundError, "gcra_again.lua", id="no Lua"),
        pytest.param(
            {"lua": LUA.replace("GCRA_AGAIN", "GCRA")},
            ValueError,
            "gcra_again.lua must define algorithms[GCRA_AGAIN] and then refunds[GCRA_AGAIN]",
            id="Lua of another name",
        ),
        pytest.param({"lua": LUA.partition("\nrefunds")[0]}, ValueError, "must define", id="no refunds in Lua"),
        pytest.param(
            {"module": MODULE.replace("has_burst=True,", "")},
            ValueError,
            "gcra_again denies the first request of a counter; a bucket is described with has_burst=True",
            id="a bucket that is not said to be one",
        ),
        pytest.param({"module": ""}, AttributeError, "has no attribute 'ALGORITHM'", id="no description"),
        pytest.param(
            {"module": MODULE.replace('code="ga"', 'code="tb"')},
            ValueError,
            "its code 'tb' is already the code of token_bucket",
            id="a code that is taken",
        ),
        pytest.param(
            {"module": MODULE.replace('code="ga"', 'code="ga", requires=("later",)')},
            KeyError,
            "later",
            id="another that is missing",
        ),
        pytest.param({"name": "token_bucket"}, ValueError, "already an algorithm called", id="a name that is taken"),
        pytest.param({"name": "ban"}, ValueError, "already an algorithm called", id="the name of the bans"),
    ],
)
def test_an_algorithm_that_is_incomplete_is_an_error_at_once(package, files, error, message):
    module = package(**files)
    before = dict(algorithms.ALGORITHMS), dict(algorithms.LUA_PARTS)
    with pytest.raises(error, match=re.escape(message)):
        algorithms.add(module)
    assert before == (algorithms.ALGORITHMS, algorithms.LUA_PARTS)


def test_a_description_that_says_nothing_of_leases_refuses_them(package):
    algorithms.add(package(module=re.sub(r"no_\w+=_NO_LEASE,", "", MODULE)))
    try:
        with pytest.raises(ConfigurationError, match="can't be combined with gcra_again: its description does not say"):
            load_rules({**FILE, "rules": [{**RULE, "consistency": "lease"}]})
    finally:
        remove_again()


@pytest.mark.parametrize("asked", [pytest.param(1, id="one counter"), pytest.param(2, id="two counters")])
def test_the_script_answers_a_number_that_it_does_not_know_with_an_error(any_server, asked):
    """A number without a Lua function is an error of the request, never a denial, and spoils no other request."""
    known = Quota("fixed_window", 5, MINUTE)
    requests = [([Ask(f"d:{number}{place}:{{x}}", known) for place in range(asked)], DECIDE) for number in range(2)]
    message = encode(requests, START * SECOND)
    *arguments, terms, _ = message.arguments
    size = len(terms) // asked
    spoilt = terms
    for place in range(asked):
        spoilt = spoilt[: place * size + 1] + bytes([200]) + spoilt[place * size + 2 :]
    arguments += [spoilt + terms, struct.pack(f"<{2 * asked}H", *range(2 * asked))]  # the first request is spoilt
    connection = Blocking(any_server.url)
    connection.connect()
    try:
        text = script(algorithms.LUA_PARTS["fixed_window"].bits | GENERAL).text
        (reply,) = connection.carry(_call(b"EVAL", text, *arguments), time.monotonic() + 5)
    finally:
        connection.close()
    failed, fine = decode(reply, message, requests)
    assert isinstance(failed, StoreUnavailable)
    assert "this script has no algorithm number 200" in str(failed)
    assert [outcome.allowed for outcome in complete(fine).outcomes] == [True] * asked


def _call(*command):
    return (yield [command])


def test_a_debt_of_the_new_algorithm_is_paid_back_within_two_windows(added):
    clock = ManualClock(START)
    store = MemoryStore(clock=clock)
    ask = Ask("d:r:ga60:{x}", Quota("gcra_again", 6, MINUTE, 3))
    store.charge([ask._replace(cost=100)])
    denied = store.decide([ask]).outcomes[0]
    assert not denied.allowed
    assert MINUTE < denied.retry_after <= 2 * MINUTE
    clock.advance(denied.retry_after / SECOND)
    assert store.decide([ask]).outcomes[0].allowed


def test_the_numbers_on_the_wire_are_those_of_the_release_before():
    numbers = {name: part.number for name, part in algorithms.LUA_PARTS.items()}
    names = "fixed_window sliding_log sliding_window bucketed_window token_bucket leaky_bucket concurrency ban"
    assert {name: numbers[name] for name in names.split()} == {name: n for n, name in enumerate(names.split(), 1)}


KNOWN = {
    "config/words/limit.py": "the default of a rule",
    "envoy/tree.py": "what descriptors are counted by",
    "rules/preflights.py": "what preflights are counted by",
    "operations/page/__init__.py": "a limit of the page itself",
    "cli/doctor.py": "the counter with which it tries the store",
    "decision/verdict.py": "the limit of a service, which does not say how it counts",
}
"""The files outside the algorithms that know one by its name, each with the reason."""


def test_few_files_outside_the_algorithms_know_one_by_name():
    name = re.compile(rf"""["']({"|".join(algorithms.for_rules())})["']""")
    package = ROOT / "ratelimit_mw"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if path.parent != package / "algorithms" and name.search(path.read_text("utf-8"))
    }
    assert found == KNOWN.keys()
