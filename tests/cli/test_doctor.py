"""`ratelimit-mw doctor` over real stores and real apps."""

import json
from pathlib import Path

import pytest
import yaml

from ratelimit_mw.cli.doctor import about_clock, about_server
from tests.support.proxy import Proxy

MINIMAL = "~shop:* +@read +@write -@dangerous +eval +evalsha +time"  # as in the page on storage


@pytest.fixture
def doctor(run):
    """A function from options to the exit code, and the findings of each check that are not "ok", without remedies.

    Its rules are those of the shop, changed by `rules`. Each finding that is not "ok" must have a remedy.
    """

    def examine(*words, rules=None):
        path = Path("ratelimits.yaml")
        shop = yaml.safe_load(path.read_text("utf-8"))
        path.write_text(json.dumps({**shop, **(rules or {})}), "utf-8")
        code, printed, _ = run("doctor", "--json", *words)
        told = json.loads(printed)
        found = {}
        for each in told["findings"]:
            assert (each["state"] == "ok") is not bool(each["remedy"])
            if each["state"] != "ok":
                found.setdefault(each["check"], []).append((each["state"], each["what"]))
        assert told["ok"] is (code == 0)
        return code, found

    return examine


PROXIED = {"client": {"user": "header:Authorization", "tier": "header:X-Plan", "secret": "s", "trusted_hops": 1}}
FLASK = ("--app", "tests.cli.routed.flask_app:app")


def test_a_setup_that_is_as_it_should_be_has_no_remedy_to_show(doctor, any_server):
    assert doctor("--storage", any_server.url, *FLASK, rules=PROXIED) == (0, {})


def test_it_prints_a_line_for_each_finding_and_a_remedy_below(run):
    code, printed, _ = run("doctor", "--workers", "4")
    assert code == 1
    assert (
        "✗ workers  memory:// with 4 workers: clients get up to 4 times their limits\n"
        "           → use lmdb:// for the workers of one machine, redis:// for several machines\n"
    ) in printed
    assert printed.splitlines()[0] == "✓ rules    3 rules"
    assert printed.splitlines()[-1] == "1 wrong"


@pytest.mark.parametrize(
    ("rules", "check", "said"),
    [
        pytest.param({"client": {"user": "header:Authorization"}}, "secret", "who reads the store can guess user",
                     id="hashes without a secret"),
        pytest.param({"client": {"trusted_proxies": ["0.0.0.0/0"], "user": "header:A", "secret": "s"}}, "proxies",
                     "has 0.0.0.0/0: each client can choose its address", id="proxies that are everybody"),
        pytest.param({"shadow": True}, "rules", "shadow: shop is not enforced", id="a file in shadow"),
    ],
)  # fmt: skip
def test_rules_that_limit_less_than_they_seem_to_are_wrong(doctor, rules, check, said):
    code, found = doctor(rules={"rules": [{"name": "all", "by": "user|ip", "limit": "9 per hour"}], **rules})
    ((state, what),) = found[check]
    assert (code, state) == (1, "wrong")
    assert said in what


def test_an_extra_without_its_packages_is_a_note(doctor, tmp_path, monkeypatch):
    metadata = "Metadata-Version: 2.1\nName: ratelimit_mw\nVersion: 0\nProvides-Extra: absent\nRequires-Dist: "
    (tmp_path / "ratelimit_mw-0.dist-info").mkdir()
    requirement = "no-such-package>=1; {}extra == 'absent'\n"
    described = tmp_path / "ratelimit_mw-0.dist-info" / "METADATA"
    monkeypatch.syspath_prepend(tmp_path)
    for marker in ("", "(python_version < '99') and "):
        described.write_text(metadata + requirement.format(marker))
        assert doctor()[1]["extras"] == [("note", "not complete: absent")]
    described.write_text(metadata + requirement.format("(python_version < '3.11') and "))
    assert "extras" not in doctor()[1]


def test_a_database_of_the_rules_that_does_not_answer_is_wrong(run):
    Path("frame.yaml").write_text("domain: shop\nrules: {source: 'redis://127.0.0.1:1/0'}\n")
    code, printed, _ = run("doctor", "frame.yaml")
    assert code == 1
    assert printed.splitlines()[0].startswith("✗ rules    the newest rules are not in force: the rules database")


@pytest.mark.parametrize("where", ["environment", "operators"])
def test_a_kill_switch_that_was_left_open_is_wrong(doctor, run, any_server, monkeypatch, where):
    if where == "environment":
        monkeypatch.setenv("RATELIMIT_MW", "shadow")
    else:
        assert run("switch", "shadow", "--storage", any_server.url)[0] == 0
    code, found = doctor("--storage", any_server.url)
    ((state, what),) = found["switch"]
    assert (code, state) == (1, "wrong")
    assert what.startswith("the kill switch is at shadow, ")
    remedy = "unset RATELIMIT_MW" if where == "environment" else "ratelimit-mw switch on"
    assert f"→ {remedy}\n" in run("doctor", "--storage", any_server.url)[1]


def test_the_workers_of_the_environment_count(doctor, monkeypatch):
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    assert doctor()[1]["workers"] == [("wrong", "memory:// with 3 workers: clients get up to 3 times their limits")]


def test_rules_that_cannot_be_loaded_are_reported_as_by_the_other_commands(run):
    Path("ratelimits.yaml").write_text("rulez: []\n")
    code, printed, errors = run("doctor", "ratelimits.yaml")
    assert (code, printed) == (1, "")
    assert "rulez" in errors
    assert errors.endswith("ratelimit-mw: ratelimits.yaml: these rules can't be loaded\n")


def test_a_server_that_does_not_answer_is_wrong(doctor, fresh_server):
    fresh_server.kill()
    code, found = doctor("--storage", fresh_server.url)
    ((state, what),) = found["server"]
    assert (code, state) == (1, "wrong")
    assert what.startswith("the store can't be used, so storage.on_error decides: ")


def test_a_fault_that_waiting_does_not_heal_has_its_own_remedy(run, any_server):
    code, printed, _ = run("doctor", "--storage", any_server.url.replace("//", "//:wrong@"))
    assert code == 1
    assert "→ remove the password from the storage URL, or set one on the server" in printed


def test_a_round_trip_that_takes_longer_than_the_timeout_is_wrong(doctor, any_server):
    with Proxy(any_server.port) as proxy:
        proxy.delay(0.02)
        code, found = doctor("--storage", proxy.url, rules={"storage": {"timeout": "5ms"}})
    ((state, what),) = found["server"]
    assert (code, state) == (1, "wrong")
    assert what.endswith("storage.timeout is 5 ms")


def test_a_user_with_minimal_rights_is_enough_but_cannot_tell_the_eviction_policy(doctor, fresh_server):
    with fresh_server.client() as redis:
        redis.execute_command("ACL", "SETUSER", "app", "on", ">secret", *MINIMAL.split())
    code, found = doctor("--storage", fresh_server.url.replace("//", "//app:secret@"), rules=PROXIED)
    assert (code, [state for state, _ in found["server"]]) == (0, ["note"])


@pytest.mark.parametrize(
    "rights",
    [
        pytest.param("~shop:* +@read", id="no scripts"),
        pytest.param("~shop:* +@read +eval +evalsha +time", id="no writing in scripts"),
        pytest.param("~other:* +@all", id="other keys"),
    ],
)
def test_a_user_without_the_right_to_decide_is_wrong(run, fresh_server, rights):
    with fresh_server.client() as redis:
        redis.execute_command("ACL", "SETUSER", "app", "on", ">secret", *rights.split())
    code, printed, _ = run("doctor", "--storage", fresh_server.url.replace("//", "//app:secret@"))
    assert code == 1
    assert "→ permit the server's user the commands and keys that the package needs" in printed


def test_a_server_that_is_full_or_a_replica_or_speaks_no_tls_is_wrong_with_a_remedy(run, fresh_server):
    commands = ["PING", "CONFIG SET maxmemory 1mb", "CONFIG SET maxmemory 0", "REPLICAOF 127.0.0.1 1"]
    urls = [fresh_server.url.replace("redis:", "rediss:"), *[fresh_server.url] * 3]
    printed = []
    for command, url in zip(commands, urls, strict=True):
        with fresh_server.client() as redis:
            redis.execute_command(*command.split())
        printed.append(run("doctor", "--storage", url)[1])
    remedies = ["use redis:// instead of rediss://", "raise maxmemory on the server", "✓ server", "name the primary"]
    assert [remedy in text for remedy, text in zip(remedies, printed, strict=True)] == [True] * 4


def test_a_server_that_drops_counters_is_wrong(doctor, fresh_server):
    with fresh_server.client() as redis:
        redis.config_set("maxmemory", "100mb")
        redis.config_set("maxmemory-policy", "allkeys-lru")
    code, found = doctor("--storage", fresh_server.url)
    ((state, what),) = found["server"]
    assert (code, state) == (1, "wrong")
    assert what.startswith("maxmemory-policy is allkeys-lru")


@pytest.mark.parametrize(
    ("fields", "states"),
    [
        pytest.param({"redis_version": "7.2.4", "maxmemory": "0", "maxmemory_policy": "allkeys-lru"}, ["ok"],
                     id="a policy without a limit of memory"),
        pytest.param({"redis_version": "6.0.16"}, ["wrong", "ok"], id="too old"),
        pytest.param({"redis_version": "10.0.0", "maxmemory": "9", "maxmemory_policy": "noeviction"}, ["ok"],
                     id="memory that ends with an error"),
    ],
)  # fmt: skip
def test_what_a_server_says_of_itself(fields, states):
    assert [finding.state for finding in about_server(fields)] == states


@pytest.mark.parametrize(("skew", "state"), [(0.2, "ok"), (-4.9, "ok"), (61.0, "wrong"), (-3600.0, "wrong")])
def test_a_clock_that_is_far_from_this_one_is_wrong(skew, state):
    assert about_clock(skew).state == state


def test_the_clock_of_a_server_is_compared_with_this_one(run, any_server):
    assert "✓ server   its clock agrees with that of this machine\n" in run("doctor", "--storage", any_server.url)[1]


@pytest.mark.parametrize(
    ("by", "found"),
    [
        pytest.param("ip", {"proxies"}, id="an address, which may be a proxy's"),
        pytest.param("user", {"secret"}, id="a user, whose hash can be guessed"),
        pytest.param("path:id", set(), id="a part of the path, which is no secret"),
    ],
)
def test_what_the_rules_count_by_says_what_is_looked_at(doctor, by, found):
    rules = [{"name": "one", "match": {"path": "/{id}"}, "by": by, "limit": "1/h"}]
    usual = {"extras", "routes", "workers"}
    assert doctor(rules={"client": {"user": "header:A"}, "rules": rules})[1].keys() - usual == found


def test_a_shared_file_is_looked_at_and_not_created(doctor, tmp_path):
    code, found = doctor("--storage", f"lmdb://{tmp_path}/counters", rules=PROXIED)
    assert (code, [state for state, _ in found["file"]]) == (0, ["note"])
    assert not (tmp_path / "counters").exists()


def test_a_shared_file_without_space_is_wrong(doctor, tmp_path):
    code, found = doctor("--storage", f"lmdb://{tmp_path}/counters?size=1000000GB".replace("1000000GB", "1024GB"))
    ((state, what),) = found["file"]
    assert (code, state) == (1, "wrong")
    assert "may grow to 1048576 MB" in what


def test_a_shared_file_that_is_not_one_is_wrong_with_the_remedy_of_the_store(run, tmp_path):
    (tmp_path / "counters").write_text("a letter")
    code, printed, _ = run("doctor", "--storage", f"lmdb://{tmp_path}/counters")
    assert code == 1
    assert "✗ file     the store can't be used" in printed


def test_routes_without_any_rule_are_wrong(doctor):
    login = {"rules": [{"name": "login", "match": {"path": "/login"}, "limit": "5 per minute"}]}
    code, found = doctor(*FLASK, rules=login)
    assert (code, found["routes"]) == (
        1,
        [("wrong", "no rule limits GET /api/orders/")],
    )
    assert "routes" not in doctor(*FLASK, rules={**login, "exempt": [{"path": "/api/orders/"}]})[1]


def test_five_routes_without_a_rule_are_named_and_the_others_counted(doctor):
    routes = "".join(f"app.add_url_rule('/{name}', '{name}', print)\n" for name in "abcdefg")
    Path("many.py").write_text(f"from flask import Flask\napp = Flask('many', static_folder=None)\n{routes}")
    code, found = doctor("--app", "many:app", rules={"rules": []})
    ((_, what),) = found["routes"]
    assert (code, what) == (1, "no rule limits GET /a, GET /b, GET /c, GET /d, GET /e and 2 more")


def test_a_signed_session_as_an_identity_is_wrong(doctor):
    Path("signed.py").write_text("from flask import Flask\napp = Flask('signed')\napp.secret_key = 's'\n")
    client = {"client": {"user": "cookie:session", "secret": "s"}}
    code, found = doctor(
        "--app", "signed:app", rules={**client, "rules": [{"name": "a", "by": "user", "limit": "1/h"}]}
    )
    ((state, what),) = found["sessions"]
    assert (code, state) == (1, "wrong")
    assert what.startswith("user is a signed session of signed:app")
