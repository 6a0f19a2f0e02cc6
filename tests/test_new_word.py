"""A new YAML word, added as docs/add-a-word.md says: its file and its entry are taken from that page."""

import importlib
import json
import logging
import re
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter
from ratelimit_mw.cli.app import app
from ratelimit_mw.config.file import json_schema
from ratelimit_mw.config.words.rule import RULE
from tests.support.apps import ROOT
from tests.support.rules import load_rules
from tests.test_words import words_page

PAGE = (ROOT / "docs" / "add-a-word.md").read_text("utf-8")
MODULE, ENTRY = re.findall(r"^```(?:python|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

FILE = {"domain": "shop", "rules": [{"name": "api", "limit": "5 per minute", "reserve": "40%"}]}
IP = {"ip": "192.0.2.1"}


@pytest.fixture
def added(tmp_path, monkeypatch):
    """The word of the page, added to the table of a rule's words, and removed afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reserve.py").write_text(MODULE, "utf-8")
    importlib.invalidate_caches()
    word = getattr(importlib.import_module("reserve"), ENTRY.strip().removesuffix(","))
    RULE.words[word.key] = word
    yield word
    del RULE.words[word.key]
    del sys.modules["reserve"]


def refusals(**keys):
    with pytest.raises(ConfigurationError) as caught:
        load_rules({**FILE, "rules": [{**FILE["rules"][0], **keys}]})
    return [str(problem) for problem in caught.value.problems]


def test_a_word_that_is_not_in_the_table_is_unknown():
    assert "unknown key 'reserve'" in refusals()[0]
    assert not json_schema()["$defs"]["Rule"]["properties"].keys() & {"reserve"}


def test_the_memory_decides_by_the_word(added):
    with RateLimiter(FILE, clock=ManualClock()) as limiter:
        decisions = [limiter.check(IP) for _ in range(4)]
    assert [decision.allowed for decision in decisions] == [True, True, True, False]
    assert decisions[-1].limit == 3


def test_redis_decides_by_the_word(added, server):
    with RateLimiter({**FILE, "storage": {"url": server.url, "timeout": "5s"}}, clock=ManualClock()) as limiter:
        assert [limiter.check(IP).allowed for _ in range(4)] == [True, True, True, False]


def test_a_rule_without_the_word_has_its_default(added):
    with RateLimiter({"domain": "shop", "rules": [{"name": "api", "limit": "5 per minute"}]}) as limiter:
        assert limiter.check(IP).limit == 5


@pytest.mark.parametrize("value", ["0%", "100%", "20", "a fifth"])
def test_a_wrong_value_is_refused_with_its_place_and_a_hint(added, tmp_path, value):
    path = tmp_path / "ratelimits.yaml"
    path.write_text(f"domain: shop\nrules:\n  - name: api\n    limit: 5 per minute\n    reserve: {value}\n")
    with pytest.raises(ConfigurationError) as caught:
        load_rules(path)
    (problem,) = caught.value.problems
    message = f"rules[0].reserve: '{value}' is not a share of a limit"
    assert (problem.message, problem.hint) == (message, "from 1% to 99%, for example 20%")
    assert (problem.line, problem.column) == (5, 14)


def test_a_combination_is_refused_with_its_reason(added):
    (refused,) = refusals(limit="5 concurrent")
    assert refused.endswith(
        "limit: a concurrent limit can't be combined with reserve: a place that is held back could never be taken"
        " (remove one of the two, or split the rule into two)"
    )


def test_a_misspelled_key_is_hinted_at(added):
    (refused,) = refusals(resreve="40%")
    assert refused.endswith("unknown key 'resreve' (did you mean 'reserve'?)")


def test_the_word_in_another_section_is_told_where_it_belongs(added):
    with pytest.raises(ConfigurationError, match=re.escape("unknown key 'reserve' (it is a key of a rule: indent it)")):
        load_rules({**FILE, "rules": [{"name": "api", "limit": "5 per minute"}], "reserve": "40%"})


def test_the_schema_takes_the_values_that_the_word_takes(added):
    jsonschema.validate(FILE, json_schema())
    assert json_schema()["$defs"]["Rule"]["properties"]["reserve"]["description"] == added.about
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**FILE, "rules": [{**FILE["rules"][0], "reserve": "100%"}]}, json_schema())


def test_the_command_line_checks_it(added, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command line adds its folder, and a handler
    monkeypatch.setattr(logging.getLogger("ratelimit_mw"), "handlers", [])
    for value, code in (("40%", 0), ("400%", 1)):
        rule = {**FILE["rules"][0], "reserve": value}
        Path("ratelimits.yaml").write_text(yaml.safe_dump({**FILE, "rules": [rule]}), "utf-8")
        checked = CliRunner().invoke(app, ["check", "ratelimits.yaml"])
        assert checked.exit_code == code, checked.output
        assert ("is not a share of a limit" in checked.output) is bool(code)
    printed = CliRunner().invoke(app, ["schema"])
    jsonschema.validate(FILE, json.loads(printed.stdout))


def test_an_explanation_has_the_limit_that_is_left(added):
    with RateLimiter(FILE, clock=ManualClock()) as limiter:
        assert "3 per minute" in str(limiter.explain(IP))


def test_the_reference_of_words_has_its_row(added):
    line = "* `reserve`: The share of the limit that the rule holds back. (text, as `20%`; **nothing**)"
    assert line in words_page()
