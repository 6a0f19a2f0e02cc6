"""The parts of `suggest`: busiest minutes and fences, templates of paths, and clients that do one thing."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.config.load import examine
from ratelimit_mw.foresight.logs.entry import LogEntry
from ratelimit_mw.foresight.suggest import traffic
from ratelimit_mw.foresight.suggest.behaviour import (
    busiest_minute,
    extended,
    fence,
    next_round,
    quantile,
    round_limit,
    track_of,
)
from ratelimit_mw.foresight.suggest.proposal import _Uses
from ratelimit_mw.foresight.suggest.routes import fold, is_login, matches, rule_name, template
from ratelimit_mw.foresight.suggest.traffic import ANY, INT, OTHER, UUID, Traffic, path_of, segments_of
from ratelimit_mw.rules.path_templates import parse

SECOND = 10**6
NOON = 1_772_366_400 * SECOND


def denied_at(limit, times):
    """How many requests at these times `limit` per minute denies."""
    clock = ManualClock(0)
    config = {"domain": "d", "client": {"secret": "s"}, "rules": [{"name": "all", "limit": f"{limit} per minute"}]}
    with RateLimiter(config, storage="memory://", clock=clock) as limiter:
        decided = []
        for at in times:
            clock.set(at / SECOND)
            decided.append(limiter.check({"ip": "192.0.2.1"}).allowed)
    return decided.count(False)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=25))
def test_the_busiest_minute_is_the_smallest_limit_that_denies_nothing(seconds):
    times = sorted(NOON + second * SECOND // 2 for second in seconds)
    peak = busiest_minute(times)
    assert denied_at(peak, times) == 0
    assert peak == 1 or denied_at(peak - 1, times) > 0


@pytest.mark.parametrize(("thousandths", "value"), [(250, 1), (500, 2), (750, 3), (751, 4), (999, 4), (1, 1)])
def test_a_quantile_is_one_of_the_values(thousandths, value):
    assert quantile([1, 2, 3, 4], thousandths) == value


@pytest.mark.parametrize(
    ("peaks", "edge"),
    [([1] * 9, 8), ([5] * 9, 40), ([1, 1, 1, 4], 8), ([1, 2, 3, 4, 5, 6, 7, 8], 6 * 27), ([2, 2, 6, 6], 6 * 27)],
)
def test_the_fence_is_three_ranges_of_the_quartiles_above_them(peaks, edge):
    assert fence(peaks) == edge


def test_the_fence_goes_on_to_the_first_gap():
    assert extended(8, [1, 5, 8, 20, 60, 180, 541, 600]) == 180
    assert extended(8, [1, 2, 25]) == 8
    assert extended(8, [1, 2, 24]) == 24


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


def uses(*rows):
    found = _Uses()
    for place, (peak, requests, failed) in enumerate(rows):
        found.add(place, [NOON] * peak + [NOON + 10**12 * each for each in range(1, 1 + requests - peak)], failed)
    return found


def test_a_limit_that_would_deny_too_many_requests_is_raised():
    people = [(1, 2, 0)] * 2000
    assert uses(*people, (7, 7, 0)).measure(()).limit == 8
    assert uses(*people, (7, 7, 0)).measure(())[1:] == (1, 1, (), True)
    assert uses(*people).measure(()) == (5, 1, 1, (), False)
    assert uses(*people, (9, 9, 0)).measure((), strict=True)[3] == ((2000, 9),)
    assert uses(*people, (9, 9, 0)).measure({2000}) == (5, 1, 1, (), False)


def test_clients_of_which_nearly_all_requests_fail_are_found():
    assert list(uses((1, 5, 5), (1, 4, 4), (1, 10, 9), (1, 11, 9), (1, 5, 0)).mostly_failing()) == [0, 2]


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


def track(*requests):
    traffic = traffic_of(*((at, "192.0.2.1", method, path, status) for at, method, path, status in requests))
    found = track_of(traffic.of("192.0.2.1"))
    return found and (traffic.routes[found.route].path, found.status, found.requests, found.period / SECOND)


def test_a_client_is_one_track_if_ninety_percent_of_its_requests_are_the_same():
    same = [(10 * each, "GET", "/a?b", 200) for each in range(18)]
    others = [(500, "GET", "/b", 200), (501, "GET", "/a", 304)]
    assert track(*same, *others) == (("a",), 200, 18, 10)
    assert track(*same, *others, (502, "POST", "/a", 200)) is None
    assert track(*same, (500, "HEAD", "/a", 200)) is None  # nineteen requests


def test_the_numbers_in_a_path_distinguish_tracks():
    assert track(*((each, "GET", f"/items/{each}", 200) for each in range(30))) is None


@pytest.mark.parametrize(
    ("gaps", "period"),
    [
        ([60] * 30, 60),
        ([60, 61, 59] * 10, 60),
        ([600, 650, 560] * 10, 600),
        ([*[30] * 28, 5000, 1], 30),
        ([1, 100, 7] * 10, 0),
        ([1] * 30, 0),
        ([60] * 20 + [5] * 10, 0),
        ([60] * 20 + [500] * 10, 0),
    ],
)
def test_a_period_is_the_usual_time_between_requests(gaps, period):
    times = [sum(gaps[:each]) for each in range(len(gaps) + 1)]
    assert track(*((at, "GET", "/a", 200) for at in times))[3] == period


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
