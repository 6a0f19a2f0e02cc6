"""From a configuration to a rule set."""

import json
import logging
import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path

import jsonschema
import pytest

from ratelimit_mw import ConfigurationError
from ratelimit_mw.config.file import json_schema
from ratelimit_mw.config.load import examine
from ratelimit_mw.settings import ClientSettings, ResponseSettings, StorageSettings
from tests.rules.corpus import applied, load_text, problems_of, rules
from tests.support.rules import load_rules

case = pytest.param
EVERYTHING = """\
domain: shop
storage:
  url: ${REDIS_URL:-redis://localhost/0}
  timeout: 250ms
  on_error: local
  max_counters: 5000
client:
  trusted_proxies: [10.0.0.0/8, "::1"]
  trusted_hops: 1
  ip_header: Forwarded
  ipv6_prefix: 56
  user: header:Authorization
  tier: header:X-Plan
  secret: hush
attributes:
  kind: query:kind
response:
  status: 403
  headers: [retry-after]
  reset: delta
  body: problem
  message: Slow down, {ip}; {rule} allows {limit}, wait {retry_after}
  documentation_url: https://example.com/limits
exempt:
  - path: /health
  - ip: 192.0.2.0/24
    kind: probe
rules:
  - name: everything
    limit: 100 per minute
  - name: login
    match: {path: /login, methods: [POST]}
    by: [ip, user]
    limit: [5 per minute, 20 per hour]
    algorithm: sliding_log
    replaces: [everything]
  - name: api
    match: {path: "/api/{version}/items/{id:int}", kind: [a, b], header:X-Old: yes}
    by: user|ip
    limit: {default: 60 per minute, premium: 6000 per minute}
    algorithm: token_bucket
    burst: 20
    cost: 2
    shadow: true
    on_error: deny
"""


def test_a_file_that_says_everything():
    rule_set = load_text(EVERYTHING)
    assert rule_set.domain == "shop"
    assert rule_set.storage == StorageSettings("redis://localhost/0", 0.25, "local", 5_000)
    assert rule_set.client == ClientSettings(
        domain="shop",
        trusted_proxies=(ip_network("10.0.0.0/8"), ip_network("::1")),
        trusted_hops=1,
        ip_header="Forwarded",
        ipv6_prefix=56,
        user="header:Authorization",
        tier="header:X-Plan",
        secret="hush",
        attributes={"kind": "query:kind"},
    )
    assert rule_set.response == ResponseSettings(
        status=403,
        headers=("retry-after",),
        reset="delta",
        body=("problem",),
        message="Slow down, {ip}; {rule} allows {limit}, wait {retry_after}",
        documentation_url="https://example.com/limits",
    )
    assert [(rule.name, rule.on_error, rule.shadow) for rule in rule_set.rules] == [
        ("everything", "local", False),
        ("login", "local", False),
        ("api", "deny", True),
    ]
    assert rule_set.warnings == ()
    old = {"x-old": "yes"}  # which is a word here, and not true
    assert applied(rule_set, "/api/v1/items/7", query_string=b"kind=a", headers=old) == ["everything", "api"]


def test_what_is_left_out_has_its_default():
    rule_set = load_text("domain: shop\nrules: []\n")
    assert rule_set.storage == StorageSettings()
    assert rule_set.client == ClientSettings(domain="shop")
    assert rule_set.response == ResponseSettings()
    assert applied(rule_set) == []


def test_an_alias_stands_for_what_it_names():
    rule_set = load_text("domain: d\nrules:\n  - {name: a, limit: &five 5 per minute}\n  - {name: b, limit: *five}\n")
    assert [charge.ask.quota.limit for charge in rule_set.plan(rule_set.attributes.request_from({}))] == [5, 5]


def test_a_merge_key_repeats_keys_that_are_not_beside_it():
    merged = load_text(
        "domain: d\n"
        "rules:\n"
        "  - &a {name: a, by: user, limit: 5 per minute, cost: 2}\n"
        "  - {<<: *a, name: b}\n"
        "  - {name: c, limit: 7 per minute, <<: [{by: ip, cost: 3}, *a]}\n"
    )
    found = [(rule.rule.name, rule.quotas[0].limit, rule.by, rule.cost) for rule in merged.parts[0].compiled]
    assert found == [("a", 5, ("user",), 2), ("b", 5, ("user",), 2), ("c", 7, ("ip",), 3)]


def test_json_is_yaml():
    assert load_text(json.dumps({"domain": "d", "rules": [{"name": "a", "limit": "5/s"}]})).domain == "d"


def test_a_path_may_be_a_path_object(tmp_path):
    (tmp_path / "r.yaml").write_text("domain: d\nrules: []\n")
    assert load_rules(tmp_path / "r.yaml").domain == "d"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        case("no/such/file.yaml", "no/such/file.yaml: can't read the rules file: No such file or directory", id="none"),
        case("/proc/self/fd", "/proc/self/fd: no rules files in this folder", id="a folder without rules"),
        case("r\0.yaml", "not a path: embedded null byte", id="a NUL"),
        case(
            "redis://me:hunter2@host/0",
            "rules are not read from a redis:// address",
            id="an address, of which no password is shown",
        ),
    ],
)
def test_what_is_no_readable_file_is_said(config, said):
    with pytest.raises(ConfigurationError) as caught:
        load_rules(config)
    assert str(caught.value).partition(" (")[0] == said


@pytest.mark.parametrize(
    ("config", "said"),
    [
        case({}, ["the keys 'domain' and 'rules' or 'descriptors' are missing"], id="nothing"),
        case(
            {"domain": "d", "rules": [{"name": "a", "limit": "5/s"}] * 2 + [{"name": "b", "limit": "5 per minit"}]},
            [
                "rules[1].name: two rules are named 'a' (the other is rules[0].name)",
                "rules[2].limit: 'minit' is not a unit of time (did you mean 'minute'?)",
            ],
            id="dotted places, in the order of the mapping",
        ),
        case(
            {"domain": "d", "rules": ({"name": "a", "limit": "5/s", "cost": 1.5, "burts": 3},), 7: 8},
            [
                "a key must be text, not 7",
                "rules[0]: unknown key 'burts' (did you mean 'burst'?)",
                "rules[0].cost: must be a whole number, not 1.5",
            ],
            id="a key that is no text",
        ),
        case(
            {
                "domain": "d",
                "rules": [{"name": "a", "limit": "5/s", "cost": float("nan"), "shadow": "on", "by": {"ip"}}],
            },
            [
                "rules[0].cost: there is no attribute 'nan'",
                "rules[0].shadow: must be true or false, not 'on' (write true)",
                "rules[0].by: must be text, a number, a list or a mapping, not a set",
            ],
            id="values of other types",
        ),
        case(
            {"domain": b"d", "rules": []},
            ["domain: must be text, a number, a list or a mapping, not a bytes"],
            id="bytes",
        ),
        case(
            {"domain": "d", "rules": [{"name": "a", "limit": "5/s", "cost": 10**5_000}]},
            ["rules[0].cost: 0x"],
            id="an int of 5 000 digits",
        ),
        case(
            {"domain": None, "rules": None},
            ["domain: must not be empty", "rules: must be a list, not an empty value"],
            id="None",
        ),
    ],
)
def test_problems_of_a_mapping(config, said):
    with pytest.raises(ConfigurationError) as caught:
        load_rules(config)
    found = [str(problem) for problem in caught.value.problems]
    assert len(found) == len(said)
    assert all(one.startswith(expected) for one, expected in zip(sorted(found), sorted(said), strict=True))


def test_a_mapping_within_itself_is_refused():
    config = {"domain": "d", "rules": []}
    config["rules"].append(config)
    with pytest.raises(ConfigurationError, match="nested more than 50 levels deep"):
        load_rules(config)


def test_a_mapping_is_read_as_a_file_is():
    rule_set = rules({"cost": 2, "shadow": True}, response={"status": 503})
    assert rule_set.response.status == 503
    assert rule_set.rules[0].shadow


def test_problems_know_their_place():
    with pytest.raises(ConfigurationError) as caught:
        load_text("domain: d\nrules:\n  - name: a\n    limit: 5/s\n    brust: 3\n")
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.hint) == (5, 5, "did you mean 'burst'?")
    assert problem.file.endswith(".yaml")


class TestWarnings:
    """What `check()` can do something with is no problem, but hardly ever meant."""

    def said(self, text, caplog):
        with caplog.at_level(logging.WARNING, "ratelimit_mw"):
            load_text("domain: d\nclient: {secret: hush}\nrules:\n  - name: a\n" + text)
        return [record.getMessage().rpartition("/")[2].partition(":")[2] for record in caplog.records]

    def test_a_limit_by_tier_without_a_tier(self, caplog):
        said = self.said("    limit: {default: 5/s, gold: 6/s}\n", caplog)
        assert said == [
            "5:12: rules[0].limit: depends on the tier, but client.tier is not set: every request has the default limit"
        ]


class TestJsonSchema:
    def test_it_is_json_and_knows_the_keys_and_which_are_needed(self):
        made = json.loads(json.dumps(json_schema()))
        assert made["required"] == ["domain"]
        assert made["anyOf"][:2] == [{"required": ["rules"]}, {"required": ["descriptors"]}]
        rule = made["$defs"]["Rule"]
        assert rule["required"] == ["name", "limit"]
        assert rule["additionalProperties"] is False
        burst = rule["properties"]["burst"]
        assert burst.pop("description")
        assert burst == {"type": "integer", "minimum": 1, "maximum": 1_000_000_000}

    @pytest.mark.parametrize("url", ["https://:TOKEN@limits:8443", "http://localhost", "${URL}", "redis://localhost"])
    def test_it_takes_a_file_without_rules_where_a_service_decides_as_the_loader_does(self, url):
        file = {"domain": "d", "storage": {"url": url}}
        taken = jsonschema.Draft202012Validator(json_schema()).is_valid(file)
        found = examine(file, environ={"URL": "https://limits"})
        assert taken == (found.rules is not None) == (not url.startswith("redis"))

    def test_it_has_every_default_of_the_settings(self):
        made = json_schema()["$defs"]
        for section, settings in (("Response", ResponseSettings()), ("Client", ClientSettings("d"))):
            for key, value in made[section]["properties"].items():
                if "default" in value and key not in {"headers", "body"}:
                    assert value["default"] == getattr(settings, key)


def test_importing_what_serves_requests_does_not_import_yaml():
    code = "import sys; import ratelimit_mw.config.load; print(sorted({'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout == "[]\n"


def test_every_problem_is_reported_at_once():
    text = (
        "domain: ''\nstorag: {}\nstorage: {timeout: soon}\nrules:\n  - name: a\n    limit: 5 per fortnight\n"
        "    algorithm: token_bukcet\n    burst: many\n  - name: a\n    limit: 5/s\n    replaces: [b]\nexempt: [{}]\n"
    )
    assert [problem.split(": ")[0] for problem in problems_of(text)] == [
        f"r.yaml:{place}" for place in ("1:9", "2:1", "3:20", "6:12", "7:16", "8:12", "9:11", "11:16", "12:10")
    ]


def test_some_lists_may_be_empty():
    rule_set = rules({"replaces": []}, client={"trusted_proxies": []}, response={"headers": []}, exempt=[])
    assert rule_set.response.headers == ()


def test_an_async_tier_is_not_awaited_where_no_rule_goes_by_it():
    tier = {"tier": "python:tests.rules.test_load:plan_of"}
    assert rules({}, client=tier).attributes.awaited == ()
    assert [name for name, _ in rules({"limit": {"default": "5/s"}}, client=tier).attributes.awaited] == ["tier"]


async def plan_of(scope):
    return "gold"


@pytest.mark.parametrize("name", ["cookie:a=b", "cookie:a b", "cookie:é", "header:X A", "header:X-A:1"])
@pytest.mark.parametrize(
    "part",
    [
        lambda name: {"rules": [{"name": "r", "limit": "1/s", "by": name}]},
        lambda name: {"rules": [{"name": "r", "limit": "1/s", "match": {name: "1"}}]},
        lambda name: {"rules": [{"name": "r", "limit": "1/s", "cost": name}]},
        lambda name: {"rules": [{"name": "r", "limit": "1/s"}], "exempt": [{name: "1"}]},
        lambda name: {"rules": [{"name": "r", "limit": "1/s"}], "overrides": [{"client": {name: "1"}, "block": True}]},
        lambda name: {"rules": [{"name": "r", "limit": "1/s"}], "client": {"user": name}},
        lambda name: {"rules": [{"name": "r", "limit": "1/s"}], "attributes": {"a": name}},
    ],
    ids=["by", "match", "cost", "exempt", "overrides", "user", "attributes"],
)
def test_a_name_that_no_header_and_no_cookie_can_have_is_reported(name, part):
    with pytest.raises(ConfigurationError) as caught:
        load_rules({"domain": "d", **part(name)}, environ={})
    (problem,) = caught.value.problems
    assert problem.message.startswith(("rules[0].", "exempt[0]", "overrides[0].client", "client.user", "attributes.a"))
    assert name.partition(":")[2] in problem.message
