"""`suggest` proposes limits that ordinary clients do not notice, whatever programs do beside them."""

import os
import random
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
from ratelimit_mw.foresight.suggest.proposal import CONVENTION, propose
from ratelimit_mw.foresight.suggest.text import ProposalSource, as_yaml
from ratelimit_mw.foresight.suggest.traffic import Route, Traffic, UnusableLog
from tests.foresight import traffic
from tests.foresight.test_replay import SAMPLE
from tests.support.apps import ROOT

LOGIN = Route("POST", ("login",))


def traffic_of(*paths):
    seen = Traffic()
    seen.read(paths)
    return seen


def proposed(*paths):
    return propose(traffic_of(*paths), check)


def limits(proposal):
    """The limits by route. None stands for all requests."""
    return {rule.route: rule.limit for rule in proposal.rules}


def denials(log, proposal):
    """How many requests of each client the enforced proposal denies."""
    found = {}

    def count(denial):
        found[denial.client] = found.get(denial.client, 0) + 1

    replay(Options(logs=[log], rules=proposal.mapping(enforce=True), on_denial=count))
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


@pytest.mark.parametrize(("others", "limit"), [(0, CONVENTION), (8, None)])
def test_refused_programs_on_a_route_for_reading_bring_a_convention_unless_others_need_it(others, limit, tmp_path):
    people = traffic.site(1, 120)
    requests = [sent._replace(method="GET", path="/me") for each in guessers(42, 9) for sent in each]
    for address in sorted({sent.ip for sent in people}):
        requests += [traffic.Sent(traffic.START + each, address, "GET", "/me", 200) for each in range(others)]
    proposal = proposed(traffic.write(tmp_path / "a.log", people, requests))
    me = Route("GET", ("me",))
    assert limits(proposal).get(me) == limit
    if limit is None:
        assert dict(proposal.unruled)[me].endswith(
            "send this and little else, and are refused; but others often need it"
        )


def test_a_rule_that_could_never_deny_beside_another_one_is_not_proposed(tmp_path):
    posts = [
        traffic.Sent(traffic.START + 20 * each, f"10.0.0.{each % 100}", "POST", f"/a/{place}", 201)
        for each in range(1000)
        for place in ("me", f"u{each % 61}")
    ]
    routes = limits(proposed(traffic.write(tmp_path / "a.log", traffic.site(1, 120), posts)))
    assert len({Route("POST", ("a", "me")), Route("POST", ("a", "{any}"))} & set(routes)) == 1


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample log is not part of the project")
def test_the_proposal_for_the_sample_log_has_its_numbers_and_denies_nothing():
    proposal = proposed(str(SAMPLE))
    assert limits(proposal) == {None: 120}
    measure = proposal.rules[0].measure
    assert (measure.half, measure.most, measure.beyond, measure.raised) == (2, 75, (), False)
    assert denials(str(SAMPLE), proposal) == {}


@pytest.mark.parametrize("gap", [0.5, 3, 45])
@pytest.mark.parametrize("status", [401, 200])
def test_the_limit_of_a_login_does_not_grow_with_the_clients_that_guess(gap, status, tmp_path):
    people = traffic.site(3, 120)
    alone = limits(proposed(traffic.write(tmp_path / "alone.log", people)))
    for percent in (1, 5, 12, 40):
        number = round(120 * percent / (100 - percent))
        log = traffic.write(tmp_path / f"{percent}.log", people, *guessers(number, gap, status=status))
        found = limits(proposed(log))
        assert found[LOGIN] <= alone[LOGIN], percent
        assert found[None] <= 1.3 * alone[None], percent


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.2])
def test_the_busiest_clients_of_a_zipf_distribution_are_ordinary(exponent, tmp_path):
    chance = random.Random(8)
    shares = [rank**-exponent for rank in range(1, 601)]
    requests = [
        traffic.Sent(traffic.START + each / 3, f"10.0.{rank >> 8}.{rank & 255}", "GET", "/", 200)
        for each, rank in enumerate(chance.choices(range(600), shares, k=12_000))
    ]
    log = traffic.write(tmp_path / "a.log", requests)
    proposal = proposed(log)
    assert len(proposal.ordinary) == proposal.clients
    assert sum(denials(log, proposal).values()) <= 0.001 * len(requests)
    # The same clients, and a program that sends far more than the busiest of them
    crawler = traffic.crawler(chance, "192.0.2.1", 2000)
    again = proposed(traffic.write(tmp_path / "b.log", requests, crawler))
    assert [client for client, _ in again.beyond] == ["192.0.2.1"]
    assert limits(again)[None] == limits(proposal)[None]


def test_a_route_of_which_many_clients_are_one_track_gets_a_convention(tmp_path):
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), *guessers(42, 5))
    rule = next(rule for rule in proposed(log).rules if rule.route == LOGIN)
    assert (rule.limit, rule.measure) == (CONVENTION, None)
    assert rule.reason.startswith("not derived from ordinary use: 42 of ")
    assert rule.reason.endswith(" addresses send this and little else, and are refused")


def test_a_login_that_few_addresses_need_often_has_no_rule_and_is_named(tmp_path):
    partners = [
        traffic.Sent(traffic.START + 600 * one + 2 * each, f"192.0.2.{one}", "GET" if each % 2 else "POST", path, 200)
        for one in range(12)
        for each, path in enumerate(("/token", "/status") * 30)
    ]
    log = traffic.write(tmp_path / "a.log", [each for each in traffic.site(1, 120) if each.path != "/login"], partners)
    proposal = proposed(log)
    token = Route("POST", ("token",))
    assert token not in limits(proposal)
    assert (
        dict(proposal.unruled)[token] == "fewer than 20 ordinary addresses send this, and often more than 5 per minute"
    )
    found = denials(log, proposal)
    assert sum(found.get(f"ip={client}", 0) for client in proposal.ordinary) <= 0.001 * traffic_of(log).requests


def test_a_client_that_mostly_fails_at_a_route_with_a_rule_is_not_ordinary(tmp_path):
    failing = [
        traffic.Sent(traffic.START + 60 * one + each, f"192.0.2.{one}", "POST", "/orders", 400)
        for one in range(15)
        for each in range(19)
    ]
    log = traffic.write(tmp_path / "a.log", traffic.site(1, 300), failing)
    proposal = proposed(log)
    assert Route("POST", ("orders",)) in limits(proposal)
    assert not [client for client in proposal.ordinary if client.startswith("192.0.2.")]
    found = denials(log, proposal)
    assert sum(found.get(f"ip={client}", 0) for client in proposal.ordinary) <= 0.001 * traffic_of(log).requests


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


def test_a_client_with_nineteen_requests_is_not_one_track(tmp_path):
    people = traffic.site(1, 300)
    for each, number in ((19, 0), (20, 42)):
        log = traffic.write(tmp_path / "a.log", people, *guessers(42, 30, each=each))
        assert len(proposed(log).tracks) == number


def test_a_route_that_only_programs_use_with_success_has_no_rule_and_a_reason(tmp_path):
    programs = [traffic.guesser(f"172.16.0.{each}", 60, 7, 200, path="/graphql") for each in range(42)]
    proposal = proposed(traffic.write(tmp_path / "a.log", traffic.site(1, 300), *programs))
    graphql = Route("POST", ("graphql",))
    assert graphql not in limits(proposal)
    assert dict(proposal.unruled)[graphql].startswith("42 of 42 addresses send this and little else, with success")


def test_a_login_that_few_clients_use_gets_a_convention(tmp_path):
    people = [sent for sent in traffic.site(1, 300) if sent.path != "/login"]
    log = traffic.write(tmp_path / "a.log", people, traffic.guesser("192.0.2.1", 3, 60, 302))
    rule = next(rule for rule in proposed(log).rules if rule.route == LOGIN)
    assert (rule.limit, rule.reason) == (
        CONVENTION,
        "not derived from ordinary use: fewer than 20 ordinary addresses send this",
    )


def test_static_files_and_paths_that_do_not_exist_have_no_rule(tmp_path):
    people = traffic.site(1, 300)
    scans = [traffic.guesser(f"172.16.0.{each}", 15, 20, 404, path="/wp-login.php") for each in range(60)]
    proposal = proposed(traffic.write(tmp_path / "a.log", people, *scans))
    paths = [route.path for route in limits(proposal) if route]
    assert ("wp-login.php",) not in paths
    assert not [path for path in paths if "static" in path]


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
        path.write_text(as_yaml(proposal, traffic_of(log), ProposalSource(logs=[log], enforce=enforce)))
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
from ratelimit_mw.foresight.suggest.proposal import propose
from ratelimit_mw.foresight.suggest.text import ProposalSource, as_yaml
seen = Traffic()
seen.read(sys.argv[1:])
seen.formats.clear()
sys.stdout.write(as_yaml(propose(seen, check), seen, ProposalSource(logs=[])))
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


@settings(max_examples=30, deadline=None)
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
    source = ProposalSource(logs=[one + other], options=["--field", other], enforce=True)
    text = as_yaml(proposal, seen, source)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert yaml.safe_load(text) == proposal.mapping(enforce=True)
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(text, "utf-8")
    examined = check(path)
    assert (examined.problems, examined.warnings) == ((), ())
    assert any(rule.route and rule.route.method == "POST" for rule in proposal.rules)
