"""`suggest` proposes limits that ordinary clients do not notice, whatever programs do beside them."""

import os
import random
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_mw.cli.lint import check
from ratelimit_mw.foresight.logs.entry import LogEntry
from ratelimit_mw.foresight.replay import Options, replay
from ratelimit_mw.foresight.suggest import mapping_of, propose
from ratelimit_mw.foresight.suggest.text import as_yaml
from ratelimit_mw.foresight.suggest.traffic import Route, Traffic, UnusableLog
from tests.foresight import traffic
from tests.foresight.test_replay import SAMPLE
from tests.support.apps import ROOT

LOGIN = Route("POST", ("login",))
CONVENTION = ("5 per minute", "10 per hour")


def traffic_of(*paths):
    seen = Traffic()
    seen.read(paths)
    return seen


def proposed(*paths):
    return propose(traffic_of(*paths), check)


def limits(proposal):
    """The limits by route. None stands for all requests."""
    return {rule.route: rule.texts() for rule in proposal.rules if rule.by == "ip"}


def minutes(proposal):
    """The limits per minute by route."""
    return {rule.route: rule.limits[0].limit for rule in proposal.rules if rule.by == "ip"}


def rule_for(proposal, route):
    return next(rule for rule in proposal.rules if rule.route == route)


def denials(log, proposal):
    """How many requests of each client the enforced proposal denies."""
    found = {}

    def count(denial):
        found[denial.client] = found.get(denial.client, 0) + 1

    replay(Options(logs=[log], rules=mapping_of(proposal.rules, enforce=True), on_denial=count))
    return found


def guessers(number, gap, *, each=30, status=401, path="/login"):
    return [
        traffic.guesser(f"172.16.{one >> 8}.{one & 255}", each, gap, status, path=path, begin=traffic.START + 7 * one)
        for one in range(number)
    ]


def requests_of(seen, clients):
    return sum(len(seen.of(client)) for client in clients)


@pytest.mark.parametrize("seed", range(3))
def test_the_enforced_proposal_denies_at_most_one_in_a_thousand_requests_of_ordinary_clients(seed, tmp_path):
    chance = random.Random(seed)
    number = chance.choice([120, 200, 300])
    log = traffic.write(
        tmp_path / "access.log",
        traffic.site(seed, number),
        *guessers(chance.choice([3, 20, 80]), chance.choice([1, 20])),
        *(traffic.poller(f"192.0.2.{each}", 300, gap) for each, gap in enumerate((10, 30, 60))),
        traffic.crawler(chance, "198.51.100.1", 2000),
    )
    seen = traffic_of(log)
    proposal = propose(seen, check)
    found = denials(log, proposal)
    ordinary = sum(found.get(f"ip={client}", 0) for client in proposal.ordinary)
    assert ordinary <= 0.001 * requests_of(seen, proposal.ordinary)
    assert found["ip=198.51.100.1"] > 1000  # the crawler, which is far beyond
    # Only programs were left out: people are ordinary, but for one in a hundred.
    people = [client for client in seen.clients if client.startswith("10.")]
    assert len(proposal.ordinary.intersection(people)) >= 0.99 * len(people)
    assert sum(found.get(f"ip={client}", 0) for client in people) <= 0.001 * requests_of(seen, people)


@pytest.mark.parametrize(("others", "limit"), [(0, 5), (8, 8)])
def test_refused_programs_on_a_route_for_reading_bring_a_convention_with_room_for_others(others, limit, tmp_path):
    people = traffic.site(1, 120)
    requests = [sent._replace(method="GET", path="/me") for each in guessers(42, 9) for sent in each]
    for address in sorted({sent.ip for sent in people}):
        requests += [traffic.Sent(traffic.START + each, address, "GET", "/me", 200) for each in range(others)]
    proposal = proposed(traffic.write(tmp_path / "a.log", people, requests))
    assert minutes(proposal)[Route("GET", ("me",))] == limit


def test_a_plain_shop_has_two_rules(tmp_path):
    routes = ["/cart", "/search", "/checkout", "/newsletter", "/products/7/reviews", "/wishlist", "/compare"]
    chance = random.Random(3)
    posts = [
        traffic.Sent(sent.at + 2, sent.ip, "POST", chance.choice(routes), 200)
        for sent in traffic.site(1, 300)
        if chance.random() < 0.2
    ]
    proposal = proposed(traffic.write(tmp_path / "a.log", traffic.site(1, 300), posts))
    assert [rule.name for rule in proposal.rules] == ["everything", "post-login"]


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample log is not part of the project")
def test_the_proposal_for_the_sample_log_has_its_numbers():
    proposal = proposed(str(SAMPLE))
    assert limits(proposal) == {None: ("80 per minute", "200 per hour", "400 per day")}
    limit = proposal.rules[0].limits[0]
    assert (limit.half, limit.most, limit.plain, len(limit.raised_for)) == (2, 37, 60, 1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The limits of a site without programs."""
    return minutes(proposed(traffic.write(tmp_path_factory.mktemp("alone") / "a.log", traffic.site(3, 120))))


@pytest.mark.parametrize("gap", [0.5, 3, 45])
@pytest.mark.parametrize("status", [401, 200])
def test_the_limit_of_a_login_does_not_grow_with_the_clients_that_guess(alone, gap, status, tmp_path):
    people = traffic.site(3, 120)
    for percent in (1, 5, 12, 40):
        number = round(120 * percent / (100 - percent))
        log = traffic.write(tmp_path / f"{percent}.log", people, *guessers(number, gap, status=status))
        found = minutes(proposed(log))
        assert found[LOGIN] <= alone[LOGIN], percent
        assert found[None] == alone[None], percent


@pytest.mark.parametrize("kind", ["crawler", "guesser", "imitator"])
def test_no_client_decides_a_limit_alone(kind, tmp_path):
    people = traffic.site(8, 600)
    chance = random.Random(8)
    heavy = {
        "crawler": traffic.crawler(chance, "192.0.2.1", 2000),
        "guesser": traffic.guesser("192.0.2.1", 2000, 0.5),
        "imitator": (
            chance.choice(people)._replace(at=traffic.START + each / 4, ip="192.0.2.1") for each in range(2000)
        ),
    }[kind]
    alone = proposed(traffic.write(tmp_path / "a.log", people))
    again = proposed(traffic.write(tmp_path / "b.log", people, heavy))
    assert limits(again).items() >= limits(alone).items()
    assert max(rule.effects[1].denied for rule in again.rules) > 1800


def test_many_people_behind_one_address_have_room(tmp_path):
    office = [sent._replace(ip="192.0.2.1") for sent in traffic.site(9, 40)]
    people = traffic.site(8, 600)
    log = traffic.write(tmp_path / "a.log", people, office, traffic.crawler(random.Random(8), "192.0.2.2", 2000))
    proposal = proposed(log)
    found = denials(log, proposal)
    assert found.get("ip=192.0.2.1", 0) <= 0.001 * len(people)
    assert found["ip=192.0.2.2"] > 1500
    assert "192.0.2.1" in proposal.rules[0].room_for


@pytest.mark.parametrize("crawlers", [0, 1])
def test_a_heavy_minority_on_one_route_has_a_rule_of_its_own(crawlers, tmp_path):
    pages = [
        traffic.Sent(traffic.START + 300 * one + each, f"192.0.2.{one}", "GET", "/api/items", 200)
        for one in range(60)
        for each in range(100)
    ]
    crawler = traffic.crawler(random.Random(1), "198.51.100.1", 1500) if crawlers else []
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), pages, crawler)
    proposal = proposed(log)
    rule = rule_for(proposal, Route("GET", ("api", "items")))
    assert (rule.limits[0].limit, list(rule.replaces)) == (100, ["everything"])
    assert rule.reason.startswith("60 of ")
    assert minutes(proposal)[None] < 40
    found = denials(log, proposal)
    assert sum(found.values()) - found.get("ip=198.51.100.1", 0) <= 0.001 * 19_000
    assert (found.get("ip=198.51.100.1", 0) > 1200) is bool(crawlers)


def test_a_busy_poller_has_a_rule_of_its_own(tmp_path):
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), traffic.poller("192.0.2.7", 2000, 5))
    proposal = proposed(log)
    rule = rule_for(proposal, Route("GET", ("status",)))
    assert (rule.limits[0].limit, list(rule.replaces)) == (20, ["everything"])
    assert denials(log, proposal) == {}


def test_heavy_clients_on_several_routes_are_ordinary_if_they_are_a_minority(tmp_path):
    chance, pages = random.Random(5), ["/a", "/b", "/c"]
    programs = [
        traffic.Sent(traffic.START + 60 * one + 2 * each, f"192.0.2.{one}", "GET", chance.choice(pages), 200)
        for one in range(20)
        for each in range(300)
    ]
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), programs)
    proposal = proposed(log)
    assert (proposal.heavy, denials(log, proposal)) == (20, {})
    assert "20 of 320 clients need far more than the others" in text_of(proposal, log)


def text_of(proposal, log, **further):
    """The text, on one line."""
    return re.sub(r"\n# *", " ", as_yaml(proposal, traffic_of(log), [log], **further))


def test_guesses_that_no_limit_by_address_stops_are_named(tmp_path):
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), *guessers(1000, 20, each=12))
    proposal = proposed(log)
    assert limits(proposal)[LOGIN] == CONVENTION
    assert re.search(
        r"What these limits do not stop: .*- post-login: the 1,000 addresses that may guess there lose [0-9,]+ of "
        r"12,000 requests\. Each sends little",
        text_of(proposal, log),
    )


@pytest.mark.parametrize("status", [401, 200])
@pytest.mark.parametrize("number", [5, 60])
def test_guessers_that_fetch_the_form_before_each_attempt_are_found(status, number, tmp_path):
    forms = [
        each
        for sent in (sent for one in guessers(number, 4, each=60, status=status) for sent in one)
        for each in (sent._replace(method="GET", status=200), sent._replace(at=sent.at + 1))
    ]
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), forms)
    proposal = proposed(log)
    assert limits(proposal)[LOGIN] == CONVENTION
    assert rule_for(proposal, LOGIN).guesses.clients == number
    assert rule_for(proposal, LOGIN).effects[1].denied > 45 * number


@pytest.mark.parametrize("path", ["/otp", "/admin/users", "/wp-login.php", "/api/password/reset"])
@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 404), ("POST", 302)])
def test_a_telling_name_brings_the_convention_where_few_clients_send_much(path, method, status, tmp_path):
    programs = [sent._replace(method=method) for each in guessers(5, 3, status=status, path=path) for sent in each]
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), programs)
    route = Route(method, tuple(path.strip("/").split("/")))
    rule = rule_for(proposed(log), route)
    assert (rule.texts(), rule.effects[1].limited) == (CONVENTION, 5)


@pytest.mark.parametrize("enforce", [False, True])
def test_a_replay_of_the_file_denies_what_the_file_says(enforce, tmp_path):
    people = [sent._replace(user=f"u{int(sent.ip.rpartition('.')[2]) % 70}") for sent in traffic.site(1, 300)]
    parts = (people, *guessers(42, 5), traffic.crawler(random.Random(1), "2001:db8::7", 900))
    nameless = [sent._replace(ip="unknown") for sent in traffic.poller("", 300, 1, begin=traffic.START + 9000)]
    log = traffic.write(tmp_path / "a.log", *parts, nameless)
    seen = traffic_of(log)
    proposal = propose(seen, check, enforce=enforce)
    path = tmp_path / "rules.yaml"
    path.write_text(as_yaml(proposal, seen, [log], enforce=enforce))
    stated = {}
    for rule in proposal.rules:
        _, own, _ = rule.effects
        stated[rule.name] = (own.requests, own.denied, own.limited)
    assert stated.keys() == {"everything", "each-user", "post-login"}
    assert stated["everything"][1] > 500
    result = replay(Options(logs=[log], rules=path)).outcome.rules.values()
    assert {rule.name: (rule.asked, rule.denied, rule.clients) for rule in result} == stated


def test_alternatives_deny_what_the_file_says(tmp_path):
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), *guessers(42, 5))
    proposal = proposed(log)
    for place in (0, 2):
        config = mapping_of(proposal.rules, enforce=False)
        for rule, own in zip(config["rules"], proposal.rules, strict=True):
            rule["limit"] = list(own.effects[place].limits)
        result = replay(Options(logs=[log], rules=config)).outcome.rules.values()
        assert [(rule.denied, rule.clients) for rule in result] == [
            (rule.effects[place].denied, rule.effects[place].limited) for rule in proposal.rules
        ]


def test_users_have_a_rule_if_the_log_has_them(tmp_path):
    people = [sent._replace(user=f"u{int(sent.ip.rpartition('.')[2])}") for sent in traffic.site(1, 200)]
    shared = [sent._replace(ip="192.0.2.1") for sent in people]
    log = traffic.write(tmp_path / "a.log", shared, traffic.site(2, 200))
    proposal = proposed(log)
    rule = next(rule for rule in proposal.rules if rule.by == "user")
    assert rule.limits[0].limit < 40 < minutes(proposal)[None]
    assert mapping_of(proposal.rules, enforce=True)["client"] == {"user": "header:Authorization"}


def test_a_route_of_which_many_clients_are_one_track_gets_a_convention(tmp_path):
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), *guessers(42, 5))
    proposal = proposed(log)
    rule = rule_for(proposal, LOGIN)
    assert rule.texts() == CONVENTION
    assert re.fullmatch(r"not derived from ordinary use: 42 of \d+ clients send this with one status", rule.reason)
    assert "5 per minute, 10 per hour; not derived from ordinary use: 42 of " in text_of(proposal, log)


def test_a_login_without_a_rule_is_named_with_the_reason(tmp_path):
    people = traffic.site(1, 300)
    paths = [f"/{name}/login" for name in "abcdefg"]
    posts = [sent._replace(path=path) for sent in people if sent.path == "/login" for path in paths]
    proposal = proposed(traffic.write(tmp_path / "a.log", people, posts))
    assert len(proposal.rules) == 8
    assert proposal.unruled == [(LOGIN, "the proposal has 8 rules already")]


def test_long_targets_are_not_kept_in_memory():
    seen = Traffic()
    tracemalloc.start()
    try:
        for at in range(2000):
            seen.add([LogEntry(traffic.START + at, "192.0.2.1", "GET", f"/{at}?{'q' * 20_000}", 200)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (seen.requests, peak < 5_000_000) == (2000, True), peak


def test_head_counts_as_get_as_in_rules():
    seen = Traffic()
    seen.add([LogEntry(traffic.START, "192.0.2.1", method, "/a", 200) for method in ("HEAD", "GET")])
    assert seen.routes[1:] == [Route("GET", ("a",))]


def test_guesses_are_found_at_a_route_with_any_name(tmp_path):
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), *guessers(42, 2, path="/gate/7", status=403))
    found = limits(proposed(log))
    assert found[Route("POST", ("gate", "{int}"))] == CONVENTION


def test_a_client_with_nine_requests_is_not_one_track(tmp_path):
    for each, number in ((9, 0), (10, 42)):
        log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), *guessers(42, 30, each=each))
        assert rule_for(proposed(log), LOGIN).guesses.clients == number


def test_a_route_that_programs_use_with_success_has_no_convention(tmp_path):
    programs = [traffic.guesser(f"172.16.0.{each}", 60, 7, 200, path="/graphql") for each in range(42)]
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), *programs)
    proposal = proposed(log)
    assert Route("POST", ("graphql",)) not in {rule.route for rule in proposal.rules if rule.reason[:3] == "not"}
    assert denials(log, proposal) == {}


def test_a_login_that_few_clients_use_gets_a_convention(tmp_path):
    people = [sent for sent in traffic.site(1, 300) if sent.path != "/login"]
    log = traffic.write(tmp_path / "a.log", people, traffic.guesser("192.0.2.1", 3, 60, 302))
    rule = rule_for(proposed(log), LOGIN)
    assert (rule.texts(), rule.reason) == (
        CONVENTION,
        "not derived from ordinary use: fewer than 20 ordinary clients send this",
    )


def test_static_files_and_paths_that_do_not_exist_have_no_rule(tmp_path):
    people = traffic.site(1, 300)
    scans = [traffic.guesser(f"172.16.0.{each}", 15, 20, 404, path="/cgi-bin/test") for each in range(60)]
    scans = [[sent._replace(method="GET") for sent in each] for each in scans]
    proposal = proposed(traffic.write(tmp_path / "a.log", people, *scans))
    assert [rule.name for rule in proposal.rules] == ["everything", "post-login"]


def test_check_finds_nothing_wrong_with_the_text(tmp_path):
    people = traffic.site(1, 300)
    posts = [
        traffic.Sent(traffic.START + 60 * place, f"10.0.0.{place % 200}", "POST", f"/users/{place % 3}/{end}", 201)
        for place in range(3000)
        for end in ("x", f"{place}")
    ]
    log = traffic.write(tmp_path / "a.log", people, posts)
    proposal = proposed(log)
    path = tmp_path / "rules.yaml"
    for enforce in (True, False):
        path.write_text(as_yaml(proposal, traffic_of(log), [log], enforce=enforce))
        examined = check(path)
        assert (examined.problems, examined.warnings) == ((), ())
        assert {rule.shadow for rule in examined.rules.rules} == {not enforce}


@pytest.mark.parametrize(
    ("requests", "clients", "text"),
    [(999, 30, "999 requests, but 1,000"), (1000, 19, "19 clients, but 20"), (1000, 20, "")],
)
def test_a_log_with_too_little_is_refused(requests, clients, text):
    seen = Traffic()
    seen.add(
        [LogEntry(traffic.START * 10**6 + each, f"192.0.2.{each % clients}", "GET", "/") for each in range(requests)]
    )
    if not text:
        assert limits(propose(seen, check))
        return
    with pytest.raises(UnusableLog, match=text):
        propose(seen, check)


SCRIPT = """
import sys
from ratelimit_mw.cli.lint import check
from ratelimit_mw.foresight.suggest.traffic import Traffic
from ratelimit_mw.foresight.suggest import propose
from ratelimit_mw.foresight.suggest.text import as_yaml
seen = Traffic()
seen.read(sys.argv[1:])
seen.formats.clear()
sys.stdout.write(as_yaml(propose(seen, check), seen, []))
"""


def test_the_text_is_the_same_with_other_hashes_and_for_lines_in_two_files_in_any_order(tmp_path):
    parts = [traffic.site(2, 150), *guessers(30, 2), traffic.poller("192.0.2.9", 100, 60)]
    whole = Path(traffic.write(tmp_path / "whole.log", *parts))
    lines = whole.read_text().splitlines(keepends=True)
    random.Random(1).shuffle(lines)
    for place in range(2):
        (tmp_path / f"{place}.log").write_text("".join(lines[place::2]))
    texts = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, *map(str, paths)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed, paths in (("1", [whole]), ("2", [whole]), ("3", [tmp_path / "1.log", tmp_path / "0.log"]))
    }
    (text,) = texts
    assert "ip=192.0.2.9: GET /status every 1 minute, 100 requests" in text


@pytest.mark.parametrize(("bound", "most"), [("_MOST_REQUESTS", 999), ("_MOST_CLIENTS", 299)])
def test_a_log_that_is_too_large_is_refused_with_the_options_to_use(tmp_path, monkeypatch, bound, most):
    monkeypatch.setattr("ratelimit_mw.foresight.suggest.traffic." + bound, most)
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 800))
    with pytest.raises(UnusableLog, match=rf"more than .*\b{most} (requests|clients).*--since and --until"):
        traffic_of(log)


HOSTILE = st.text(st.characters(exclude_characters=" ", codec="utf-8"), max_size=30) | st.sampled_from(
    rb"""\n- name: x|\x85|\u2028|# a|*x|&a|'|"|\\|"}\n|${HOME}|{{x}}|\x1b[31m|<id>|:id|%41|../..|a:b|://|!!python/x|\ufeff""".decode(
        "unicode_escape"
    ).split("|")
)


@settings(max_examples=15, deadline=None)
@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_text_of_a_log_leaves_its_comment_or_its_string(tmp_path_factory, one, other, method):
    """The texts are in the path of a login, in that of pollers, in the method, the address and the file name."""
    start = traffic.START * 10**6

    def wired(text):
        return text.encode("utf-8").decode("latin-1")

    entries = [LogEntry(start + 10**6 * each, f"192.0.2.{each % 40}", "GET", "/") for each in range(1000)]
    login = "/login/" + wired(one)
    for client in range(45):
        for each in range(25):
            at = start + 10**7 * each
            entries.append(LogEntry(at, f"198.51.100.{client}", "POST", login, 401))
            entries.append(LogEntry(at, f"203.0.113.{client}", "GET", "/" + wired(other), 200))
            entries.append(LogEntry(at, "192.0.2.200", wired(method), "/", 200))
            entries.append(LogEntry(at, wired(other), "GET", "/", 200))
    seen = Traffic()
    seen.formats.append(other)
    seen.add(entries)
    proposal = propose(seen, check)
    text = as_yaml(proposal, seen, [one + other], enforce=True)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert yaml.safe_load(text) == mapping_of(proposal.rules, enforce=True)
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(text, "utf-8")
    examined = check(path)
    assert (examined.problems, examined.warnings) == ((), ())
    assert any(rule.route and rule.route.method == "POST" for rule in proposal.rules)
