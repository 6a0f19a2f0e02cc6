"""A replay decides as production does, and reports what a log does not tell."""

import json
import logging
import socket
import threading
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.decision.kill_switch import SWITCH
from ratelimit_mw.foresight.replay import Options, replay
from ratelimit_mw.foresight.results import Heaviest
from ratelimit_mw.identity.http_request import AsgiRequest
from tests.foresight.logs_of import FORMATS, LOGS
from tests.support.apps import ROOT

SAMPLES = [above / "shared" / "logs" / "semicomplete.log.gz" for above in ROOT.parents]
SAMPLE = next((path for path in SAMPLES if path.exists()), SAMPLES[0])
NOON = 1_772_366_400


def shop(*rules, **sections):
    return {"domain": "shop", "client": {"secret": "s"}, **sections, "rules": list(rules)}


def replayed(logs, *rules, sections=None, **options):
    paths = [str(path) for path in (logs if isinstance(logs, list) else [logs])]
    return replay(Options(logs=paths, rules=shop(*rules, **(sections or {})), **options))


def counts(result):
    """The requests and the denials of each rule."""
    return {rule.name: (rule.asked, rule.denied) for rule in result.outcome.rules.values()}


def texts(result):
    return [gap.text for gap in result.gaps]


def line(second, ip="192.0.2.1", path="/", status=200, *, user="-", method="GET", forwarded="-"):
    time = f"01/Mar/2026:12:{second // 60:02}:{second % 60:02} +0000"
    return f'{ip} - {user} [{time}] "{method} {path} HTTP/1.1" {status} 5 "-" "curl" "{forwarded}"\n'


@pytest.fixture
def log(tmp_path):
    """A function that writes a log of these lines."""

    def write(*lines, name="access.log"):
        path = tmp_path / name
        path.write_text("".join(lines))
        return path

    return write


@pytest.mark.parametrize("name", FORMATS)
def test_the_eight_requests_have_one_result_in_every_format(name):
    rules = (
        {"name": "everything", "limit": "3 per minute", "algorithm": "fixed_window"},
        {"name": "login", "match": {"path": "/login"}, "limit": "1 per minute", "count": {"status": [401]}},
    )
    result = replayed(LOGS / name, *rules, form=FORMATS[name])
    assert counts(result) == {"everything": (8, 1), "login": (3, 2)}
    assert (result.outcome.denied, len(result.outcome.limited)) == (3, 2)
    assert result.outcome.most_limited(1)[0].client == "ip=192.0.2.2"
    assert result.gaps == []


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample log is not part of the project")
@pytest.mark.parametrize(
    ("algorithm", "denied", "clients"),
    [
        ("fixed_window", 87, 2),
        ("sliding_window", 87, 2),
        ("sliding_log", 87, 2),
        ("bucketed_window", 87, 2),
        ("token_bucket", 0, 0),
    ],
)
def test_the_sample_log_has_the_numbers_of_the_contract(algorithm, denied, clients):
    result = replayed(SAMPLE, {"name": "all", "by": "ip", "limit": "60 per minute", "algorithm": algorithm})
    outcome = result.outcome
    assert (outcome.requests, outcome.denied, len(outcome.limited)) == (10_000, denied, clients)
    assert (result.formats, result.unreadable.count, result.late) == (["combined"], 0, 0)


BAN = {"after": "2 denials in 1 minute", "for": "30s"}
RULES = [
    {"name": "all", "limit": "4 per 10 seconds"},
    {"name": "exact", "limit": "5 per minute", "algorithm": "sliding_log"},
    {"name": "bucket", "limit": "3 per 5 seconds", "algorithm": "token_bucket", "burst": 2},
    {"name": "soft", "limit": "4 per 20 seconds", "throttle": {"soft": "50%"}},
    {"name": "login", "match": {"path": "/login"}, "limit": "2 per minute", "count": {"status": [401]}},
    {"name": "guess", "match": {"path": "/login"}, "limit": "2 per minute", "ban": BAN},
    {"name": "items", "match": {"path": "/items/{id:int}"}, "by": "path:id", "limit": "2 per minute"},
    {"name": "other", "match": {"path": "/b"}, "limit": "1 per minute", "replaces": ["all"]},
    {"name": "shadow", "limit": "1 per minute", "shadow": True},
    {"name": "pair", "by": ["ip", "method"], "limit": ["2 per 5 seconds", "20 per minute"]},
    {"name": "plans", "by": "user|ip", "limit": {"default": "2 per minute", "gold": "50 per minute"}},
    {"name": "dear", "match": {"methods": ["POST"]}, "limit": "10 per minute", "cost": 3},
]
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 150),
        st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"]),
        st.sampled_from(["/", "/login", "/items/7", "/items/07", "/b", "/caf%C3%A9", "//b"]),
        st.sampled_from(["GET", "POST", "HEAD"]),
        st.sampled_from([200, 401]),
        st.sampled_from(["-", "192.0.2.7", "192.0.2.8, 192.0.2.1"]),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=40)
@given(REQUESTS, st.lists(st.sampled_from(range(len(RULES))), min_size=1, max_size=5, unique=True))
def test_a_replay_decides_as_the_engine_of_a_middleware(tmp_path_factory, requests, chosen):
    rules = [rule for place, rule in enumerate(RULES) if place in chosen]
    if not any(rule["name"] == "all" for rule in rules):
        rules = [{key: value for key, value in rule.items() if key != "replaces"} for rule in rules]
    config = shop(*rules, client={"trusted_proxies": ["192.0.2.1"], "secret": "s", "user": "header:X-Forwarded-For"})
    path = tmp_path_factory.mktemp("logs") / "access.log"
    path.write_text(
        "".join(
            line(at, ip, target, status, method=verb, forwarded=by) for at, ip, target, verb, status, by in requests
        )
    )
    found = []
    result = replay(Options(logs=[str(path)], rules=config, disorder=200, on_denial=found.append))
    denied, per_rule = by_hand(config, sorted(requests, key=lambda request: request[0]))
    assert result.outcome.denied == len(denied)
    assert {name: number for name, (_, number) in counts(result).items() if number} == per_rule
    assert sorted({round(each.at / 1e6) - NOON for each in found if not each.shadow}) == sorted(set(denied))


def by_hand(config, requests):
    """What a limiter decides on these requests: the times of the denials, and the denials of each rule."""
    clock = ManualClock(NOON)
    denied, per_rule = [], {}
    with RateLimiter(config, storage="memory://", clock=clock) as limiter:
        for at, ip, target, method, status, forwarded in requests:
            clock.set(NOON + at)
            headers = [] if forwarded == "-" else [(b"x-forwarded-for", forwarded.encode())]
            path = target.replace("%C3%A9", "é")
            scope = {"type": "http", "method": method, "path": path, "raw_path": target.encode(), "query_string": b""}
            request = AsgiRequest({**scope, "headers": headers, "client": (ip, 5)})
            verdict = limiter.engine.decide(request)
            account = limiter.engine.settlement.account(verdict)
            limiter.engine.settlement.settle(account, account.conclude(status, lambda _name: None))
            if not verdict.allowed:
                denied.append(at)
            for name in {each.rule for each in verdict.decision.policies if not each.allowed}:
                per_rule[name] = per_rule.get(name, 0) + 1
    return denied, per_rule


@contextmanager
def listening():
    """A server that counts the connections to it."""
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            while True:
                try:
                    connections.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], connections
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    for each in connections:
        each.close()


def test_the_storage_the_overrides_and_the_switch_are_never_opened(log, monkeypatch):
    monkeypatch.setenv(SWITCH, "off")
    lines = [line(second // 4) for second in range(40)]
    with listening() as (port, connections):
        for scheme in ("redis", "redis+cluster"):
            storage = {"url": f"{scheme}://127.0.0.1:{port}/0", "on_error": "deny"}
            leased = {"name": "leased", "by": "global", "limit": "9 per minute", "consistency": "lease"}
            result = replayed(
                log(*lines), {"name": "r", "limit": "5 per minute"}, leased, sections={"storage": storage}
            )
            assert counts(result)["r"] == (40, 35)
        socket.create_connection(("127.0.0.1", port)).close()  # the server does accept connections
        while not connections:
            pass
        assert len(connections) == 1


def timed(start, duration, ip="192.0.2.1", status=200):
    return f'{NOON + start + duration:.3f} {duration} {ip} "-" GET "/" {status} "h"\n'


TIMED = FORMATS["nginx_timed.log"]


def test_requests_in_flight_are_those_of_the_log(log):
    lines = [timed(0, 5), timed(1, 5), timed(2, 1), timed(5.5, 1), timed(6.5, 1)]
    result = replayed(log(*lines), {"name": "two", "by": "ip", "limit": "2 concurrent"}, form=TIMED)
    assert counts(result) == {"two": (5, 1)}
    assert result.gaps == []
    assert result.outcome.most_limited(1)[0].first == (NOON + 2) * 1_000_000


def test_a_request_of_many_minutes_keeps_its_place(log):
    lines = [timed(0, 900), *(timed(second, 0.5) for second in range(1, 900, 45)), timed(901, 1)]
    result = replayed(log(*lines), {"name": "one", "limit": "1 concurrent"}, form=TIMED, disorder=1000)
    assert counts(result) == {"one": (22, 20)}


def test_requests_in_flight_need_no_thread(log):
    running = []
    requests = log(*(timed(second, 60) for second in range(9)))
    rule = {"name": "two", "by": "ip", "limit": "2 concurrent"}
    before = threading.enumerate()
    replayed(requests, rule, form=TIMED, on_denial=lambda _: running.append(threading.enumerate()))
    assert running == [before] * 7


def test_a_status_is_settled_when_the_request_has_ended(log):
    login = {"name": "login", "limit": "1 per minute", "count": {"status": [401]}}
    early = replayed(log(timed(0, 5), timed(1, 1), timed(6, 1)), login, form=TIMED)
    assert counts(early) == {"login": (3, 1)}


def test_what_the_log_does_not_have_is_reported(log):
    rules = (
        {"name": "api", "by": "user", "limit": "5 per minute"},
        {"name": "either", "by": "user|ip", "limit": "5 per minute"},
        {"name": "both", "by": ["ip", "user"], "limit": "5 per minute"},
        {"name": "busy", "limit": "5 concurrent"},
        {"name": "gold", "match": {"header:X-Plan": "gold"}, "limit": "5 per minute"},
        {"name": "tiers", "limit": {"default": "5 per minute", "gold": "9 per minute"}},
        {"name": "asked", "limit": "5 per minute", "on_demand": True},
        {"name": "nowhere", "match": {"path": "/nowhere"}, "limit": "5 per minute"},
        {"name": "dear", "limit": "5 per minute", "cost": "response:X-Cost"},
        {"name": "chat", "limit": "5 per minute", "messages": "close"},
    )
    client = {"user": "header:Authorization", "tier": "header:X-Plan", "secret": "s"}
    result = replayed(log(line(0), line(1)), *rules, sections={"client": client})
    lacks = "which this log does not have"
    never, without = f"{lacks}: it was never asked", f"{lacks}: the replay goes without it"
    assert [text.partition(". `--field ")[::2] for text in texts(result)] == [
        (f"rule 'api' counts by user, {never}", "user=…` says where it is"),
        (f"rule 'either' counts by user, {without}", "user=…` says where it is"),
        (f"rule 'both' counts by user, {without}", "user=…` says where it is"),
        (f"rule 'busy' counts requests in flight and needs their duration, {never}", "duration=…` says where it is"),
        (f"rule 'gold' applies by header:X-Plan, {never}", "header:X-Plan=…` says where it is"),
        (f"rule 'tiers' has limits by tier, {without}", "tier=…` says where it is"),
        (f"rule 'asked' applies only where the app asks for it, {never}", ""),
        ("rule 'nowhere' matched no request", ""),
        (f"rule 'dear' reads the cost from the response, {without}", ""),
        (f"rule 'chat' counts the messages of WebSockets, {never}", ""),
    ]
    asked = {name for name, (requests, _) in counts(result).items() if requests}
    assert asked == {"either", "both", "tiers", "dear"}
    assert not result.unasked


ELASTIC = {"elastic": {"up_to": "200%", "below": 0.7}}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({"by": ["ip", "user"]}, id="also by user"),
        pytest.param({"by": "user|ip"}, id="by user or address"),
        pytest.param({"limit": ["5 concurrent", "5 per minute"]}, id="also requests in flight"),
        pytest.param({"limit": {"default": "5 per minute", "gold": "9 per minute"}}, id="by tier"),
        pytest.param({"cost": "response:X-Cost"}, id="a cost of the response"),
        pytest.param({"throttle": ELASTIC}, id="elastic"),
    ],
)
def test_what_the_log_does_not_have_is_no_reason_if_the_rule_would_not_be_asked_with_it(log, words):
    rule = {"name": "nowhere", "match": {"path": "/nowhere"}, "limit": "5 per minute", **words}
    client = {"user": "header:Authorization", "tier": "header:X-Plan", "secret": "s"}
    result = replayed(log(line(0)), rule, sections={"client": client})
    assert texts(result) == ["rule 'nowhere' matched no request"]


def test_a_rule_that_counts_by_a_status_is_not_asked_without_one(log):
    path = log('{"time": 1772366400, "ip": "192.0.2.1", "target": "/login"}\n')
    places = {"time": "time", "ip": "ip", "target": "target"}
    login = {"name": "login", "limit": "1 per minute", "count": {"status": [401]}}
    result = replayed(path, login, form="json", places=places)
    assert "counts by status, which this log does not have" in texts(result)[0]
    assert result.unasked


def test_rules_by_address_are_not_asked_if_the_log_has_none(log):
    path = log('{"time": 1772366400, "target": "/login"}\n' * 9)
    result = replayed(
        path, {"name": "a", "limit": "1 per minute"}, form="json", places={"time": "time", "target": "target"}
    )
    assert counts(result) == {"a": (0, 0)}
    assert "counts by ip, which this log does not have" in texts(result)[0]


def test_the_user_of_a_field_counts_in_place_of_the_source_in_the_rules(log):
    rule = {"name": "u", "by": "user", "limit": "1 per minute"}
    path = log(line(0, user="ann"), line(1, user="ann"), line(2, user="bob"), line(3))
    sections = {"client": {"user": "header:Authorization", "secret": "s"}}
    result = replayed(path, rule, sections=sections)
    assert counts(result) == {"u": (3, 1)}
    assert result.gaps == []
    hashed = replayed(path, rule, hashed=True)
    assert (hashed.outcome.denied, "ann" in str(hashed.outcome.most_limited(5))) == (1, False)
    plain = replayed(path, rule)
    assert plain.outcome.most_limited(5)[0].client == "user=ann"


def minute(number):
    return {"unit": "minute", "requests_per_unit": number}


KINDS = [
    ({"descriptors": [{"key": "remote_address", "rate_limit": minute(2)}]}, 3, ""),
    ({"descriptors": [{"key": "path", "value": "/x", "rate_limit": minute(2)}]}, 0, "'path=/x' matched no request"),
    ({"descriptors": [{"key": "method", "quota_mode": True, "rate_limit": minute(1)}]}, 6, ""),
    ({"rules": [{"name": "e", "limit": "2 per minute", "throttle": ELASTIC}]}, 3, "is elastic by the load"),
    ({"rules": [{"name": "p", "limit": "2 per minute", "priority": "critical"}]}, 3, "none was shed"),
    ({"rules": [{"name": "b", "limit": "1 per minute", "ban": BAN}]}, 5, ""),
    ({"rules": [{"name": "h", "by": "host", "limit": "2 per minute"}]}, 0, "counts by host, which this log"),
    ({"rules": [{"name": "c", "by": "cookie:sid", "limit": "2 per minute"}]}, 0, "`--field cookie:sid=…`"),
    ({"rules": [{"name": "r", "by": "ip+route", "limit": "2 per minute"}]}, 0, "Add match.path to replay it"),
    ({"rules": [{"name": "q", "by": "query:page", "limit": "0 per minute"}]}, 1, ""),
    ({"shadow": True, "rules": [{"name": "s", "limit": "1 per minute"}]}, 0, ""),
    ({"exempt": [{"header:X-Ok": "1"}], "rules": [{"name": "x", "limit": "2 per minute"}]}, 3, "never applied"),
]


@pytest.mark.parametrize(("config", "denied", "gap"), KINDS)
def test_every_kind_of_rule_is_replayed_or_reported(config, denied, gap):
    result = replay(Options(logs=[str(LOGS / "combined.log")], rules={"domain": "d", **config}))
    assert result.outcome.denied == denied
    assert gap in "; ".join(texts(result))
    assert bool(gap) == bool(result.gaps)


def test_the_client_is_found_behind_trusted_proxies(log):
    lines = [line(0, "10.0.0.1", forwarded="198.51.100.1"), line(1, "10.0.0.1", forwarded="198.51.100.2")]
    rule = {"name": "r", "limit": "1 per minute"}
    assert replayed(log(*lines), rule).outcome.denied == 1
    trusting = {"client": {"trusted_proxies": ["10.0.0.0/8"]}}
    assert replayed(log(*lines), rule, sections=trusting).outcome.denied == 0


def test_clients_of_ipv6_are_networks(log):
    lines = [line(0, "2001:db8::1"), line(1, "2001:db8::2"), line(2, "2001:db8:1::1")]
    result = replayed(log(*lines), {"name": "r", "limit": "1 per minute"})
    assert [each.client for each in result.outcome.most_limited(5)] == ["ip=2001:db8::/64"]


def test_a_file_against_itself_differs_in_nothing(log):
    rules = shop({"name": "r", "limit": "2 per minute"})
    path = log(*(line(second // 2) for second in range(20)))
    result = replay(Options(logs=[str(path)], rules=rules, against=rules))
    difference = result.difference
    assert (result.outcome.denied, difference.newly_denied.total, difference.newly_allowed.total) == (18, 0, 0)


def test_a_difference_is_that_of_single_outcomes_not_of_sums(log):
    path = log(line(0, "192.0.2.1"), line(1, "192.0.2.1"), line(2, "192.0.2.2", "/b"), line(3, "192.0.2.2", "/b"))
    new = shop({"name": "r", "match": {"path": "/b"}, "limit": "1 per minute"})
    old = shop({"name": "r", "match": {"path": "/"}, "limit": "1 per minute"})
    result = replay(Options(logs=[str(path)], rules=new, against=old))
    assert (result.outcome.denied, result.against.denied) == (1, 1)
    difference = result.difference
    assert (difference.newly_denied.total, list(difference.newly_denied)) == (1, ["ip=192.0.2.2"])
    assert (difference.newly_allowed.total, list(difference.newly_allowed)) == (1, ["ip=192.0.2.1"])


def test_several_logs_are_one_log(log):
    first = log(line(0), line(4), name="a.log")
    second = log(line(2), line(6), name="b.log")
    found = []
    replayed([first, second], {"name": "r", "limit": "1 per minute"}, on_denial=found.append)
    assert [round(each.at / 1e6) - NOON for each in found] == [2, 4, 6]


def test_requests_outside_the_given_times_and_paths_are_skipped(log):
    path = log(*(line(second, path=f"/items/{second}") for second in range(10)), line(5, path="/x"))
    options = {"since": (NOON + 2) * 1_000_000, "until": (NOON + 8) * 1_000_000, "match": "/items/{id}"}
    result = replayed(path, {"name": "r", "limit": "1 per minute"}, **options)
    assert (result.outcome.requests, result.outcome.denied, result.skipped) == (6, 5, 5)


def test_a_blocked_client_is_denied_without_a_rule(log):
    found = []
    sections = {"overrides": [{"client": {"ip": "192.0.2.1"}, "block": True}]}
    rule = {"name": "r", "limit": "9 per minute"}
    result = replayed(log(line(0), line(1, "192.0.2.2")), rule, sections=sections, on_denial=found.append)
    assert (result.outcome.denied, dict(result.outcome.reasons)) == (1, {"blocked": 1})
    assert [(each.client, each.rule, each.reason) for each in found] == [("ip=192.0.2.1", "", "blocked")]


@pytest.mark.parametrize(("name", "has"), [("csv.csv", False), ("nginx.json", False), ("caddy.json", True)])
def test_a_header_is_missing_only_in_logs_without_headers(name, has):
    result = replayed(LOGS / name, {"name": "h", "by": "header:user-agent", "limit": "1 per minute"})
    assert [gap.rule for gap in result.gaps] == ([] if has else ["h"])


def test_the_level_of_the_log_is_the_same_after_a_replay(log):
    logger = logging.getLogger("ratelimit_mw")
    logger.setLevel(logging.INFO)  # reset before the next test
    replayed(log(line(0)), {"name": "a", "limit": "1 per minute"})
    assert logger.level == logging.INFO


def test_a_path_is_shown_as_the_client_has_sent_it(log):
    path = log(line(0, path="/a%20b=c"), line(1, path="/a%20b=c"))
    result = replayed(path, {"name": "p", "by": "path", "limit": "1 per minute"})
    assert result.outcome.most_limited(1)[0].client == "path=/a b=c"


def test_a_user_that_may_be_a_token_is_shown_as_a_hash(log):
    form = '$msec $remote_addr "$request" $status "$http_authorization"'
    path = log(*[f'{NOON + second}.0 192.0.2.1 "GET / HTTP/1.1" 200 "Bearer hunter2"\n' for second in range(2)])
    sections = {"client": {"user": "header:Authorization", "secret": "s"}}
    result = replayed(path, {"name": "u", "by": "user", "limit": "1 per minute"}, sections=sections, form=form)
    (found,) = result.outcome.most_limited(5)
    assert found.client.startswith("user=")
    assert "hunter2" not in str(found)


def test_text_of_clients_is_shown_without_control_characters(log):
    path = log(line(0, user="\\x1b[31mred\\x07"), line(1, user="\\x1b[31mred\\x07"))
    result = replayed(path, {"name": "u", "by": "user", "limit": "1 per minute"})
    assert result.outcome.most_limited(1)[0].client == "user=\\x1b[31mred\\x07"


@given(st.lists(st.integers(0, 15), max_size=100), st.integers(1, 8))
def test_the_table_of_clients_bounds_every_count(keys, size):
    table = Heaviest(size)
    for at, key in enumerate(keys):
        held = dict(table.most(size))
        smallest = min((seen.total for seen in held.values()), default=0) if len(held) == size else 0
        assert table.add(key, at) == (key not in held)
        seen = dict(table.most(size))[key]
        before = held.get(key, (smallest, smallest, at, at))
        assert seen == (before[0] + 1, before[1], before[2], at)
    true = {key: keys.count(key) for key in set(keys)}
    assert len(table) == min(size, len(true))
    for key, seen in table.most(size):
        assert seen.at_least <= true[key] <= seen.total
    assert {key for key, count in true.items() if count > len(keys) / size} <= set(table)
    if len(true) <= size:
        assert {key: seen.total for key, seen in table.most(size)} == true
        assert not table.full


def test_the_logs_of_the_tests_are_the_same_eight_requests():
    assert {path.name for path in LOGS.iterdir()} == set(FORMATS)
    assert json.loads((LOGS / "caddy.json").read_text().splitlines()[0])["request"]["uri"] == "/"
    assert Path(LOGS / "combined.log").read_text().count("\n") == 8


def test_long_paths_are_not_kept_in_memory(log):
    lines = [*(line(0) for _ in range(1000)), *(line(at, path=f"/{at}{'p' * 20_000}") for at in range(1500))]
    path = log(*lines)
    tracemalloc.start()
    try:
        result = replayed(path, {"name": "a", "match": {"path": "/a"}, "limit": "1 per minute"}, disorder=0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (result.outcome.requests, peak < 15_000_000) == (2500, True), peak
