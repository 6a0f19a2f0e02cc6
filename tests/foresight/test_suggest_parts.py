"""The parts of `suggest`: busiest minutes and fences, templates of paths, and clients that do one thing."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.config.load import examine
from ratelimit_mw.foresight.logs.entry import LogEntry
from ratelimit_mw.foresight.suggest import rule_name, traffic
from ratelimit_mw.foresight.suggest.clients import (
    Crowd,
    Track,
    fold,
    is_login,
    is_steady,
    matches,
    poll_of,
    template,
    track_of,
)
from ratelimit_mw.foresight.suggest.limits import (
    Uses,
    busiest,
    covered,
    denied,
    limits_of,
    next_round,
    quantile,
    reached,
    round_limit,
)
from ratelimit_mw.foresight.suggest.traffic import ANY, INT, OTHER, UUID, Traffic, path_of, segments_of
from ratelimit_mw.rules.path_templates import parse

SECOND = 10**6
NOON = 1_772_366_400 * SECOND


def denied_at(limit, times, period="minute"):
    """How many requests at these times `limit` per period denies."""
    clock = ManualClock(0)
    config = {"domain": "d", "client": {"secret": "s"}, "rules": [{"name": "all", "limit": f"{limit} per {period}"}]}
    with RateLimiter(config, storage="memory://", clock=clock) as limiter:
        decided = []
        for at in times:
            clock.set(at / SECOND)
            decided.append(limiter.check({"ip": "192.0.2.1"}).allowed)
    return decided.count(False)


@pytest.mark.parametrize(("period", "scale"), [("minute", 1), ("hour", 60)])
@given(st.lists(st.integers(0, 400), min_size=1, max_size=25))
def test_the_busiest_period_is_the_smallest_limit_that_denies_nothing(period, scale, seconds):
    times = sorted(NOON + scale * second * SECOND // 2 for second in seconds)
    peak = busiest(times, 60 * scale * SECOND)
    assert denied_at(peak, times, period) == denied(times, peak, 60 * scale * SECOND) == 0
    if peak > 1:
        assert denied_at(peak - 1, times, period) == denied(times, peak - 1, 60 * scale * SECOND) > 0


@pytest.mark.parametrize(("thousandths", "value"), [(250, 1), (500, 2), (750, 3), (751, 4), (999, 4), (1, 1)])
def test_a_quantile_is_one_of_the_values(thousandths, value):
    assert quantile([1, 2, 3, 4], thousandths) == value


def test_more_clients_say_more_about_the_busiest():
    assert [covered(number) for number in (20, 999, 1000, 9999, 10_000)] == [980, 980, 995, 995, 999]


def test_a_distribution_ends_at_the_first_gap():
    assert reached(8, [9, 16, 30, 61, 70]) == 30
    assert reached(8, [17]) == 8


@pytest.mark.parametrize(
    ("number", "limit"),
    [
        ("1.5", 2),
        ("6", 6),
        ("7", 8),
        ("9", 10),
        ("10.9", 10),
        ("112.5", 120),
        ("250.5", 250),
        ("99", 100),
        ("1001", 1000),
    ],
)
def test_a_limit_is_a_round_number_near_by(number, limit):
    assert round_limit(Fraction(number)) == limit


@given(st.integers(1, 10**7))
def test_the_next_round_number_is_not_below_and_not_far(number):
    assert number <= next_round(number) <= max(number * 4 / 3, number + 1)
    assert round_limit(Fraction(next_round(number))) == next_round(number)


def uses(*peaks):
    """How clients with these busiest minutes use a rule. Each has no other request."""
    times = [[NOON] * peak for peak in peaks]
    found = Uses([60 * SECOND], times.__getitem__)
    for client, moments in enumerate(times):
        found.add(client, moments)
    return found


def limit_of(found, left_out=(), trusted=(), spare=0, **further):
    """The limit, and the clients that it is raised for and that are beyond it."""
    (limit,) = limits_of(found, left_out, trusted, spare, **further)
    return limit.limit, list(limit.raised_for), [client for client, _ in limit.beyond]


def test_a_limit_covers_nearly_all_clients_and_no_client_raises_it_far():
    people = [4] * 99
    assert limit_of(uses(*people)) == (6, [], [])
    assert limit_of(uses(*people, 40)) == (6, [], [99])
    assert limit_of(uses(*people, 9)) == (10, [99], [])
    assert limit_of(uses(*people, 11)) == (6, [], [99])
    assert limit_of(uses(*people, 9), spare=3) == (6, [], [])
    assert limit_of(uses(*people, 9), left_out={99}) == (6, [], [99])
    assert limit_of(uses(*people, 40), left_out={99}, trusted={99}) == (40, [99], [])
    assert limit_of(uses(*people * 4, 9, 12, 20, 30, 31, 100)) == (40, [*range(396, 401)], [401])
    assert limit_of(uses(9), least=1) == (15, [], [])
    assert limit_of(uses(7), convention=True) == (8, [0], [])
    assert limits_of(uses(*[4] * 19), (), (), 0) == []


def test_a_longer_period_has_a_limit_of_its_own_where_the_shorter_one_does_not_bind():
    hour = 3600 * SECOND

    def limits(times):
        found = Uses([60 * SECOND, hour], lambda _: times)
        for client in range(20):
            found.add(client, times)
        return [(each.limit, each.period // SECOND) for each in limits_of(found, (), (), 0)]

    assert limits([NOON] * 20) == [(30, 60), (60, 3600)]
    assert limits([NOON + 3 * SECOND * each for each in range(1200)]) == [(30, 60)]


@pytest.mark.parametrize(
    ("path", "segments"),
    [
        ("/", ()),
        ("/items/17/", ("items", INT)),
        ("//items/./17", ("items", INT)),
        ("/items/%31%37", ("items", INT)),
        ("/items/٣", ("items", "٣")),
        ("http://shop.example/items/17", ("items", INT)),
        ("/files/5fbc1a2e-9d7b-4c7e-8a5c-2a6f0d9b3c11", ("files", UUID)),
        ("/commits/5fbc1a2e9d", ("commits", ANY)),
        ("/facade/deadbeef", ("facade", "deadbeef")),
        ("/t/eyJhbGciOiJIUzI1NiJ9eyJzdWIi", ("t", ANY)),
        ("/caf%C3%A9/{x}", ("café", ANY)),
        ("/%0a/:id", (ANY, ANY)),
        ("/%2541", (ANY,)),
        ("/" + "a" * 61, (ANY,)),
        ("/a" * 17, OTHER),
    ],
)
def test_a_path_is_read_as_rules_read_it_and_its_values_are_found(path, segments):
    assert segments_of(path_of(path.encode().decode("latin-1"))) == segments


@given(st.text(max_size=30))
def test_every_folded_path_is_a_template(text):
    path = segments_of(path_of("/a/" + text.encode("utf-8", "replace").decode("latin-1")))
    assert parse(template(path)) == template(path)


def test_many_texts_in_one_place_are_values_but_those_with_many_requests_keep_their_names():
    paths = {("users", f"u{each}", "orders", INT): 1 for each in range(60)} | {("users", "me"): 10}
    few = {("pages", f"p{each}"): 1 for each in range(50)}
    found = fold(paths | few)
    assert found["users", "u7", "orders", INT] == ("users", ANY, "orders", INT)
    assert found["users", "me"] == ("users", "me")
    assert found["pages", "p3"] == ("pages", "p3")
    assert template(found["users", "u7", "orders", INT]) == "/users/{name}/orders/{id:int}"


def test_a_site_may_have_a_hundred_pages_at_its_root():
    assert fold({(f"p{each}",): 1 for each in range(100)})["p7",] == ("p7",)
    assert fold({(f"p{each}",): 1 for each in range(101)})["p7",] == (ANY,)


def test_parameters_of_one_template_have_different_names():
    assert template((INT, UUID, ANY, ANY)) == "/{id:int}/{id2:uuid}/{name}/{name2}"
    assert template(()) == "/"


def test_a_template_matches_the_paths_that_rules_match():
    assert matches(("a", ANY), ("a", "b"))
    assert matches(("a", ANY), ("a", INT))
    assert not matches(("a", INT), ("a", "b"))
    assert not matches(("a", ANY), ("a",))
    assert not matches((ANY, "b"), ("a", "c"))


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/login", True),
        ("/api/v1/sign-in", True),
        ("/wp-login.php", True),
        ("/oauth2/token", True),
        ("/Password_Reset", True),
        ("/wp-admin/edit", True),
        ("/account", True),
        ("/otp", True),
        ("/xmlrpc.php", True),
        ("/authors", False),
        ("/blogin", False),
        ("/", False),
    ],
)
def test_a_login_is_known_by_the_words_of_its_path(path, found):
    assert is_login(segments_of(path)) is found


def test_rules_have_different_names_of_letters_and_digits():
    taken = set()
    for method, path in (
        ("GET", ()),
        ("POST", ("a.b", INT)),
        ("POST", ("a-b",)),
        ("GET", ("é",)),
        ("GET", ("x" * 60,)),
    ):
        taken.add(rule_name(method, path, taken))
    assert taken == {"get-home", "post-a-b", "post-a-b-2", "get-home-2", "get-" + "x" * 36}
    assert not examine({"domain": "d", "rules": [{"name": name, "limit": "1 per day"} for name in taken]}).problems


def traffic_of(*requests):
    traffic = Traffic()
    traffic.add(
        [LogEntry(NOON + int(at * SECOND), ip, method, path, status) for at, ip, method, path, status in requests]
    )
    return traffic


@pytest.mark.parametrize(
    ("statuses", "found"),
    [({401: 10}, Track(401, 10)), ({401: 9}, None), ({401: 18, 302: 2}, Track(401, 20)), ({401: 17, 302: 2}, None)],
)
def test_a_client_is_one_track_on_a_route_if_ninety_percent_of_ten_requests_have_one_status(statuses, found):
    assert track_of(statuses) == found


def polled(*requests):
    """The period in seconds, and the requests, of a client that polls. None for other clients."""
    traffic = traffic_of(*((at, "192.0.2.1", method, path, status) for at, method, path, status in requests))
    found = poll_of(traffic.of("192.0.2.1"))
    return found and (traffic.routes[found.route].path, found.period / SECOND, found.requests)


def test_a_client_polls_if_ninety_percent_of_its_requests_are_for_one_page_with_success():
    same = [(10 * each, "GET", "/a/7?b", 200) for each in range(27)]
    others = [(500, "GET", "/b", 200), (501, "GET", "/a/8", 200), (502, "HEAD", "/a/7", 304)]
    assert polled(*same, *others) == (("a", INT), 10, 28)
    assert polled(*same, *others, (503, "GET", "/b", 200), (504, "GET", "/b", 200)) is None
    assert polled(*same[:19]) is None
    assert polled(*((each, method, path, 404) for each, method, path, _ in same)) is None
    assert polled(*((10 * each, "GET", f"/items/{each}", 200) for each in range(30))) is None


@pytest.mark.parametrize(
    ("gaps", "period"),
    [
        ([60] * 30, 60),
        ([60, 61, 59] * 10, 60),
        ([600, 650, 560] * 10, 600),
        ([*[30] * 28, 5000, 1], 30),
        ([1, 100, 7] * 10, None),
        ([1] * 30, None),
        ([60] * 20 + [5] * 10, None),
        ([60] * 20 + [500] * 10, None),
        ([195_625] * 30, None),
    ],
)
def test_a_period_is_the_usual_time_between_requests(gaps, period):
    times = [sum(gaps[:each]) for each in range(len(gaps) + 1)]
    found = polled(*((at, "GET", "/a", 200) for at in times))
    assert (found and found[1]) == period


def test_a_program_is_steady_and_people_are_not():
    chance = random.Random(1)
    people = sorted(chance.uniform(0, 20_000) for _ in range(1000))
    program = [20 * each + chance.uniform(0, 10) for each in range(1000)]
    assert not is_steady([int(SECOND * at) for at in people])
    assert is_steady([int(SECOND * at) for at in program])
    assert is_steady([int(at) // 4 * SECOND for at in range(1000)])  # by a clock of whole seconds
    assert not is_steady([int(SECOND * at) for at in program[:399]])


def crowd():
    """Shoppers, a tenth of whom use an API."""
    found = Crowd(cap=50)
    for client in range(100):
        found.add({1: 30, 2: 15, 3: 5} if client % 10 else {1: 5, 4: 500})
    return found


@pytest.mark.parametrize(
    ("counts", "likeness"),
    [
        ({1: 600, 2: 300, 3: 100}, "alike"),
        ({1: 600, 2: 300, 3: 100, 4: 300}, "alike"),
        ({1: 1000}, "unlike"),
        ({3: 1000}, "unlike"),
        ({1: 600, 2: 300}, "unlike"),
        ({1: 20}, "unknown"),
        ({4: 20}, "unknown"),
    ],
)
def test_a_client_is_alike_if_it_leaves_out_nothing_that_the_others_do(counts, likeness):
    assert crowd().likeness(counts) == likeness


def test_no_client_decides_what_the_others_do():
    found = crowd()
    found.add({4: 100_000})
    assert found.likeness({1: 600, 2: 300, 3: 100}) == "alike"


def test_addresses_are_clients_as_in_the_rules():
    traffic = traffic_of(
        (0, "192.0.2.1", "GET", "/", 200),
        (1, "::ffff:192.0.2.1", "GET", "/", 200),
        (2, "2001:db8::1", "GET", "/", 200),
        (3, "2001:db8::2", "GET", "/", 429),
        (4, "", "GET", "/", 200),
        (5, "unknown", "GET", "/", 200),
        (6, "unknown", "GET", "/", 200),
    )
    assert traffic.clients == ["192.0.2.1", "2001:db8::/64"]
    assert (traffic.requests, traffic.without_address, traffic.limited_before) == (7, 3, 1)


def test_the_memory_for_paths_is_bounded(monkeypatch):
    monkeypatch.setattr(traffic, "_MOST_PATHS", 3)
    monkeypatch.setattr(traffic, "_MOST_PARENTS", 1)
    monkeypatch.setattr(traffic, "_MOST_CACHED", 2)
    seen = traffic_of(*((each, "192.0.2.1", "GET", f"/{'ab'[each % 2]}/p{each}", 200) for each in range(20)))
    paths = [route.path for route in seen.routes]
    assert paths == [OTHER, ("a", "p0"), ("b", "p1"), ("a", "p2"), ("b", ANY)]
    assert len(seen.of("192.0.2.1")) == seen.requests == 20


def test_requests_that_began_before_1970_are_skipped():
    traffic = Traffic()
    traffic.add([LogEntry(-1, "192.0.2.1", "GET", "/"), LogEntry(-(10**30), "192.0.2.1", "GET", "/")])
    assert (traffic.requests, traffic.skipped) == (0, 2)


def test_requests_outside_of_the_times_are_skipped():
    traffic = Traffic(NOON + SECOND, NOON + 3 * SECOND)
    entries = [LogEntry(NOON + each * SECOND, "192.0.2.1", "GET", "/") for each in range(5)]
    traffic.add(entries[:1])
    traffic.add(entries[1:])
    assert (traffic.requests, traffic.skipped, traffic.lines) == (2, 3, 5)
    assert (traffic.first, traffic.last) == (NOON + SECOND, NOON + 2 * SECOND)
