"""What is hostile in a rules database: it is refused in bounded work, and the rules before it stay in force."""

import json

import pytest
import yaml

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw.config.load import LARGEST
from ratelimit_mw.reload.database import RulesDatabase
from ratelimit_mw.stores import open_records

GOOD = {
    "domain": "d",
    "rules": [{"name": "all", "by": "global", "limit": "3 per hour", "algorithm": "sliding_log"}],
}
LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
)


def text(content):
    return json.dumps({"ratelimits.yaml": content})


BOMBS = [
    pytest.param(text(LAUGHS), id="aliases of aliases"),
    pytest.param(text(f"domain: d\nrules: &r\n  - {{name: a, limit: *r}}\n{LAUGHS}"), id="an alias of what it is in"),
    pytest.param(text("[" * 100_000), id="lists in lists"),
    pytest.param(text("{a: " * 100_000), id="mappings in mappings"),
    pytest.param(text("- " * 50_000), id="lists in lists without brackets"),
    pytest.param(text("? " * 20_000), id="keys in keys"),
    pytest.param(text("a: " + "x" * LARGEST), id="a text longer than a file may be"),
    pytest.param(text("domain: d\nrules:\n" + "  - {name: a, limit: 1 per hour}\n" * 1_000), id="the same rule again"),
    pytest.param(text("domain: d\nrules: [{name: a, limit: " + "9" * 100_000 + " per hour}]"), id="a huge number"),
    pytest.param(text("domain: d\nrules: [{name: a, limit: '5" + " " * 100_000 + "x'}]"), id="a wide limit"),
    pytest.param(text("domain: " + "1:" * 50_000 + "1"), id="a number to the base of sixty"),
    pytest.param(text("domain: d\nrules: [{name: a, limit: 1 per hour, by: " + "a|" * 5_000 + "ip}]"), id="a long by"),
    pytest.param(
        text("domain: d\nrules: [{name: a, limit: 1 per hour, match: {path: /" + "{a}-" * 20_000 + "x}}]"), id="a path"
    ),
    pytest.param(text("<<: " * 10_000), id="merge keys"),
    pytest.param(text("!!python/object/apply:os.system ['echo hello']"), id="an object to be made"),
    pytest.param(text("${" * 20_000), id="variables in variables"),
    pytest.param(text("\ud800"), id="half a character"),
    pytest.param(text("a: \0"), id="a zero byte"),
    pytest.param(json.dumps({f"{n}.yaml": "domain: d" for n in range(250)}), id="many files"),
    pytest.param(json.dumps({"../../etc/passwd": json.dumps(GOOD), "": ""}), id="names of files that are none"),
    pytest.param("[" * 200_000, id="JSON: lists in lists"),
    pytest.param(json.dumps([json.dumps(GOOD)]), id="JSON: a list"),
    pytest.param(json.dumps({"ratelimits.yaml": 5}), id="JSON: a number for a text"),
    pytest.param("9" * 50_000, id="JSON: a huge number"),
    pytest.param("{", id="JSON: half of it"),
    pytest.param("", id="nothing"),
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_in_the_database_is_refused_and_the_rules_before_stay(any_server, bomb):
    url = f"{any_server.url}#bombs"
    database = RulesDatabase(url)
    database.push(GOOD)
    with RateLimiter(url, storage="memory://") as limiter:
        assert limiter.check({}).remaining == 2
        records = open_records(any_server.url)
        records.write("ratelimit_mw:rules:{bombs}", {"rules:2": bomb, "about:2": "{}"}, (), expected=1)
        records.close()
        with pytest.raises(ConfigurationError):
            limiter.reload()
        assert limiter.state.error
        assert len(limiter.state.error) < 100_000
        assert limiter.check({}).remaining == 1
        assert [limiter.check({}).allowed for _ in range(2)] == [True, False]
    with pytest.raises(ConfigurationError):
        RateLimiter(url, storage="memory://")
    database.close()


@pytest.mark.parametrize("opening", ["[", "{a: ", "[{a: "])
def test_of_what_is_nested_too_deeply_the_rest_is_not_read(opening, tmp_path, monkeypatch):
    events = []
    parse = yaml.parse

    def counted(*arguments, **options):
        for event in parse(*arguments, **options):
            events.append(event)
            yield event

    monkeypatch.setattr(yaml, "parse", counted)
    (tmp_path / "rules.yaml").write_text(opening * 300_000)
    with pytest.raises(ConfigurationError, match="nested more than 50 levels deep"):
        RateLimiter(tmp_path / "rules.yaml")
    assert len(events) < 1_000


def test_an_error_has_every_problem_and_its_text_has_an_end():
    rules = [{"name": f"r{number}", "limit": "1 per moon"} for number in range(150)]
    with pytest.raises(ConfigurationError) as raised:
        RateLimiter({"domain": "d", "rules": rules})
    assert len(raised.value.problems) == 150
    assert len(str(raised.value).splitlines()) == 101
    assert str(raised.value).endswith("… and 50 more problems")
