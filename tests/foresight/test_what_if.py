"""A what-if curve has, at each limit, what a replay with that limit denies."""

import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_mw.algorithms import ALGORITHMS, DECIDE_ALL, for_rules
from ratelimit_mw.foresight import what_if as kept_requests
from ratelimit_mw.foresight.logs.entry import LogEntry
from ratelimit_mw.foresight.replay import Options, replay
from ratelimit_mw.foresight.simulation import Simulation
from ratelimit_mw.foresight.what_if import (
    MOST_LIMITS,
    NEEDS_NUMPY,
    Recording,
    candidates,
    columns,
    exact,
    replayed_candidates,
    subjects_of,
)
from ratelimit_mw.foresight.what_if.exact import Sequences, WindowTooLong, busiest_windows, distribution
from ratelimit_mw.model import Ask, Charge, Quota, Rule

FORM = '$msec $request_time $remote_addr $request_method "$request_uri" $status'
NOON = 1_772_366_400
ENTRY = LogEntry(NOON, "192.0.2.1", "GET", "/")
WINDOWS = [name for name, algorithm in for_rules().items() if not algorithm.in_flight]


def lines(requests):
    """A log of (milliseconds, client, path, status, milliseconds that it lasts), which need not be in order."""
    texts = []
    for at, client, path, status, lasts in sorted(requests, key=lambda request: request[0]):
        end = at + lasts
        texts.append(
            f'{NOON + end // 1000}.{end % 1000:03} {lasts / 1000:.3f} 192.0.2.{client} GET "{path}" {status}\n'
        )
    return "".join(texts)


def replayed(path, *rules, what_if=None):
    options = Options(
        logs=[str(path)], rules={"domain": "shop", "rules": list(rules)}, form=FORM, disorder=60, what_if=what_if
    )
    return replay(options)


def with_limit(rule, curve, number):
    """The rule of a curve with another number of requests."""
    return {**rule, "limit": curve.quota.replace(str(curve.limit), str(number), 1)}


def made(curve):
    """How a curve was made."""
    return "replayed" if curve.why_replayed else "exact"


def assert_equals_replays(path, rules, name, *, method, every=1):
    """Compare a curve with replays of files in which the limit is that of the curve."""
    result = replayed(path, *rules, what_if=name)
    (curve,) = [each for each in result.curves if each.rule == name]
    assert made(curve) == method, curve.why_replayed
    assert (curve.limits[curve.in_force], list(curve.limits)) == (curve.limit, sorted(set(curve.limits)))
    for place, number in enumerate(curve.limits):
        if place % every == 0 or number == curve.limit:
            changed = [with_limit(rule, curve, number) if rule["name"] == name else rule for rule in rules]
            (found,) = [each for each in replayed(path, *changed).outcome.rules.values() if each.name == name]
            assert (curve.denied[place], curve.clients[place]) == (found.denied, found.clients), number
            assert (curve.requests, made(curve)) == (found.asked, method)
    return curve


def in_sequence(times, counters, charged=None):
    """The arrivals by counter, and the number of each counter that has any."""
    order = np.argsort(counters, kind="stable")
    charged = np.ones(len(times), np.bool_) if charged is None else charged
    numbers, starts = np.unique(counters[order], return_index=True)
    return Sequences(times[order], charged[order], starts), numbers


requests_of_clients = st.lists(
    st.tuples(
        st.integers(0, 30).map(lambda step: 130 * step),
        st.integers(1, 3),
        st.sampled_from(["/a", "/b"]),
        st.sampled_from([200, 401]),
        st.sampled_from([0, 0, 700]),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=12, deadline=None)
@given(
    requests=requests_of_clients,
    limit=st.integers(1, 6),
    kind=st.sampled_from(
        [
            *({"algorithm": name} for name in WINDOWS),
            {"algorithm": "bucketed_window", "buckets": 3},
            {"algorithm": "token_bucket", "burst": 3},
            {"algorithm": "token_bucket", "max_wait": "400ms"},
            {"algorithm": "leaky_bucket", "burst": 4, "max_wait": "300ms"},
            {"algorithm": "sliding_window", "throttle": {"soft": "50%"}},
            {"algorithm": "token_bucket", "throttle": {"soft": "50%"}},
            {"algorithm": "fixed_window", "throttle": {"elastic": {"up_to": "200%", "below": 0.5}}},
        ]
    ),
    form=st.tuples(st.booleans(), st.booleans()),
)
def test_an_exact_curve_equals_the_engine_at_every_limit(tmp_path_factory, requests, limit, kind, form):
    shadow, beside = form
    path = tmp_path_factory.mktemp("log") / "access.log"
    path.write_text(lines(requests))
    rules = [{"name": "limited", "limit": f"{limit} per second", "shadow": shadow, **kind}]
    if beside:  # it denies some requests of a shadow rule, and is a shadow rule beside one that is enforced
        rules.append({"name": "beside", "limit": "2 per second", "algorithm": "fixed_window", "shadow": not shadow})
    assert_equals_replays(path, rules, "limited", method="exact")


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_requests_exactly_one_period_apart_are_decided_as_by_the_engine(tmp_path, algorithm):
    path = tmp_path / "access.log"
    path.write_text(lines((at, 1, "/", 200, 0) for at in (0, 1000, 2000, 2999)))
    rules = [{"name": "limited", "limit": "1 per second", "algorithm": algorithm}]
    assert_equals_replays(path, rules, "limited", method="exact")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_arithmetic_equals_the_algorithms(data):
    algorithm = data.draw(st.sampled_from(WINDOWS))
    period = data.draw(st.sampled_from([997, 7000, 60_000_000]))
    unit = data.draw(st.sampled_from([1, period // 7, period // 2, period]))
    event = st.tuples(st.integers(0, 12).map(lambda n: n * unit), st.integers(0, 2), st.integers(0, 3), st.booleans())
    events = sorted(data.draw(st.lists(event, max_size=60)), key=lambda each: each[0] + each[1])
    events = [(NOON * 10**6 + at + more, counter, charged) for at, more, counter, charged in events]
    limits = sorted(data.draw(st.sets(st.integers(0, 7), min_size=1, max_size=6)))
    burst, wait = data.draw(st.sampled_from([None, 1, 8])), data.draw(st.sampled_from([0, unit, period]))
    bucket, slices = ALGORITHMS[algorithm].has_burst, data.draw(st.sampled_from([1, 2, 7, 60]))
    quotas = [
        Quota(
            algorithm,
            each,
            period,
            (burst or each) if bucket and each else 0,
            slices,
            longest_wait=wait if bucket else 0,
        )
        for each in limits
    ]
    owners = [0, 1, 1, 2]  # two counters have one client
    times, counters = (np.array([event[place] for event in events], np.int64) for place in (0, 1))
    if data.draw(st.booleans()):
        events = [(at, counter, True) for at, counter, _ in events]
    sequences, asked = in_sequence(times, counters, np.array([event[2] for event in events], np.bool_))
    with pytest.MonkeyPatch.context() as patch:  # in parts, too
        for bound in ("_CELLS", "_PIECE", "_ROWS"):
            patch.setattr(exact, bound, data.draw(st.sampled_from([1 << 20, 40, 7])))
        found = exact.decide_all(ALGORITHMS[algorithm].at_all_limits, sequences, np.array(owners)[asked], quotas)
        highest = exact.may_deny(ALGORITHMS[algorithm].at_all_limits, sequences, quotas)
    denied, limited = Counter(), {each: set() for each in range(len(quotas))}
    for place, quota in enumerate(quotas):
        states = {}
        for at, counter, taken in events:
            outcome, state = DECIDE_ALL[algorithm](states.get(counter, b""), quota, 1, at)
            if not outcome.allowed:
                denied[place] += 1
                limited[place].add(owners[counter])
            elif taken:
                states[counter] = state
    assert found.denied.tolist() == [denied[place] for place in limited]
    assert found.clients.tolist() == [len(each) for each in limited.values()]
    for client in range(int(max(np.array(owners)[asked], default=-1)) + 1):
        assert found.last[client] == max((place for place in limited if client in limited[place]), default=-1)
        may_deny = max(highest[np.array(owners)[asked] == client], default=-1)
        assert found.last[client] == may_deny or (found.last[client] < may_deny and not sequences.charged.all())


@pytest.mark.parametrize("algorithm", ["sliding_window", "sliding_log", "bucketed_window"])
def test_only_the_totals_that_a_later_arrival_needs_are_kept(monkeypatch, algorithm):
    times = 10**9 + np.cumsum(np.arange(900) * 7919 % 400)  # a busy window has 15 arrivals
    times[600:] = times[600]  # a burst of the other counter: all of it counts, while the first one has moved on
    arrivals, _ = in_sequence(times, np.arange(900) // 600)
    quotas = [Quota(algorithm, limit, 3000, 0, 7) for limit in (2, 5, 9, 14)]
    way = ALGORITHMS[algorithm].at_all_limits
    whole = exact.decide_all(way, arrivals, np.arange(2), quotas)
    for cells in (150, 40):
        monkeypatch.setattr(exact, "_CELLS", cells)
        found = exact.decide_all(way, arrivals, np.arange(2), quotas)
        assert (found.denied.tolist(), found.last.tolist()) == (whole.denied.tolist(), whole.last.tolist())
    assert 0 < whole.denied[3] < whole.denied[0] < 900


@pytest.mark.parametrize(("apart", "denied"), [(6999, 1), (7000, 0)])
def test_an_arrival_of_a_whole_period_ago_does_not_count(apart, denied):
    arrivals_of_one, _ = in_sequence(np.array([10**12, 10**12 + apart]), np.zeros(2, np.int64))
    way, quotas = ALGORITHMS["sliding_log"].at_all_limits, [Quota("sliding_log", 1, 7000, 0, 60)]
    assert exact.decide_all(way, arrivals_of_one, np.zeros(1, np.int64), quotas).denied == [denied]


REQUESTS = [
    (137 * step % 9000, 1 + step % 7 % 3, "/a" if step % 3 else "/b", 401 if step % 4 == 0 else 200, step % 5 * 200)
    for step in range(160)
]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "access.log"
    path.write_text(lines(REQUESTS))
    return path


LIMITED = {"name": "limited", "limit": "4 per second"}
COUPLED = "its decisions depend on more than its own counter"


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param([LIMITED, {"name": "other", "limit": "9 per 2s"}], id="another rule"),
        pytest.param([LIMITED | {"ban": {"after": "3 denials in 2s", "for": "3s"}}], id="a ban"),
        pytest.param([LIMITED | {"count": {"status": [401]}}], id="the status"),
        pytest.param([LIMITED | {"cost": 2, "limit": "8 per second"}], id="a cost"),
        pytest.param([LIMITED | {"limit": "2 concurrent"}], id="requests in flight"),
        pytest.param([LIMITED | {"by": ["ip", "path"]}], id="several counters"),
        pytest.param([LIMITED | {"by": ["ip", "path"], "shadow": True}], id="several counters in shadow"),
    ],
)
def test_a_coupled_curve_equals_the_engine_at_eight_limits(log, rules):
    curve = assert_equals_replays(log, rules, "limited", method="replayed")
    assert (curve.why_replayed, len(curve.limits)) == (COUPLED, 8)
    assert curve.denied[0] > curve.denied[-1]


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param([LIMITED], id="exact"),
        pytest.param([LIMITED | {"shadow": True}, {"name": "other", "limit": "9 per 2s"}], id="a shadow"),
        pytest.param([LIMITED | {"by": ["ip", "path"]}], id="several counters"),
        pytest.param([LIMITED | {"limit": "2 concurrent"}], id="durations"),
    ],
)
def test_curves_are_the_same_in_small_blocks_and_parts(log, monkeypatch, rules):
    whole = replayed(log, *rules, what_if="limited")
    monkeypatch.setattr(kept_requests, "_BLOCK", 7)
    monkeypatch.setattr(columns, "_MOST_SORTED", 5)
    assert replayed(log, *rules, what_if="limited").curves == whole.curves
    monkeypatch.setattr(columns, "_MOST_JUDGED", 3)
    (curve,) = replayed(log, *rules, what_if="limited").curves
    assert [each.requests for each in curve.hit] == [each.requests for each in whole.curves[0].hit]
    assert "3 requests tell too little" in curve.hit[0].reason


OTHERS = st.sampled_from(
    [
        {"limit": "3 per 2s", "algorithm": "fixed_window"},
        {"limit": "2 per second", "algorithm": "token_bucket"},
        {"limit": "4 per second", "by": "global"},
        {"limit": "2 per second", "by": "path", "algorithm": "sliding_log"},
        {"limit": "2 per second", "shadow": True},
        {"limit": "1 per second", "count": {"status": [401]}},
        {"limit": "1 concurrent"},
        {"limit": "2 per second", "match": {"path": "/b"}, "ban": {"after": "2 denials in 2s", "for": "1s"}},
    ]
)


@settings(max_examples=5, deadline=None)
@given(requests=requests_of_clients, limit=st.integers(1, 9), others=st.lists(OTHERS, min_size=1, max_size=3))
def test_a_coupled_curve_equals_the_engine_whatever_the_other_rules_are(tmp_path_factory, requests, limit, others):
    path = tmp_path_factory.mktemp("log") / "access.log"
    path.write_text(lines(requests))
    rules = [
        {"name": "limited", "limit": f"{limit} per second; 30 per 3s"},
        *({"name": f"other{place}", **other} for place, other in enumerate(others)),
    ]
    curve = next(each for each in replayed(path, *rules, what_if="limited").curves if each.quota.endswith("second"))
    for place, number in list(enumerate(curve.limits))[::3]:
        changed = rules[0] | {"limit": f"{number} per second; 30 per 3s"}
        found = replayed(path, changed, *rules[1:]).outcome.rules[0]
        assert (curve.denied[place], curve.clients[place]) == (found.denied, found.clients), number


BY_PATH = {"name": "other", "by": "path", "match": {"path": "/a"}, "limit": "2 per 3s"}


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param([LIMITED, BY_PATH], id="beside a counter that other clients ask"),
        pytest.param([LIMITED | {"by": ["path", "ip"]}, BY_PATH], id="with a counter that other clients ask"),
        pytest.param([LIMITED | {"by": ["path", "ip"], "shadow": True}, BY_PATH], id="by a shadow"),
    ],
)
def test_denials_that_last_are_not_taken_for_longer_than_they_do(tmp_path, rules):
    path = tmp_path / "access.log"
    path.write_text(lines((n * n * 7 % 9000, 1 + n % 2, "/a" if n % 5 < 3 else "/b", 200, 0) for n in range(130)))
    for algorithm in ("sliding_log", "token_bucket"):
        changed = [rule | {"algorithm": algorithm} for rule in rules]
        assert assert_equals_replays(path, changed, "limited", method="replayed").denied[0] > 0


def test_a_limit_by_tier_is_replayed_for_the_clients_without_a_tier(log):
    rule = LIMITED | {"limit": {"default": "3 per second", "gold": "6 per second"}}
    sections = {"client": {"tier": "query:tier"}}
    options = {"form": FORM, "what_if": "limited"}
    log.write_text(lines((at, client, "/?tier=gold" if client == 1 else "/", 200, 0) for at, client, *_ in REQUESTS))

    def run(rule, **more):
        rules = {"domain": "shop", **sections, "rules": [rule]}
        return replay(Options(logs=[str(log)], rules=rules, **more))

    (curve,) = run(rule, **options).curves
    assert (curve.quota, curve.why_replayed, curve.all_clients) == (
        "3 per second",
        COUPLED,
        3,
    )
    for number, denied, clients in zip(curve.limits, curve.denied, curve.clients, strict=True):
        changed = rule | {"limit": rule["limit"] | {"default": f"{number} per second"}}
        found = run(changed, form=FORM).outcome.rules[0]
        assert (denied, clients) == (found.denied, found.clients)


def test_each_of_several_limits_has_a_curve_of_its_own(log):
    rule = LIMITED | {"limit": "4 per second; 12 per 4s"}
    second, four = replayed(log, rule, what_if="limited").curves
    assert (second.quota, four.quota) == ("4 per second", "12 per 4 seconds")
    for number, denied in zip(four.limits, four.denied, strict=True):
        found = replayed(log, LIMITED | {"limit": f"4 per second; {number} per 4s"}).outcome.rules[0]
        assert denied == found.denied


def test_the_two_coupled_rules_that_deny_most_are_replayed_without_being_asked(log):
    rules = [LIMITED, {"name": "other", "limit": "9 per 2s"}, {"name": "lax", "limit": "90 per second"}]
    result = replayed(log, *rules)
    assert [(curve.rule, made(curve), len(curve.limits)) for curve in result.curves] == [
        ("limited", "replayed", 8),
        ("other", "replayed", 8),
    ]
    assert result.without_curve == [
        f"no what-if for 'lax' ({COUPLED}): `--rule NAME` replays the log at eight limits of a rule"
    ]
    named = replayed(log, *rules, what_if="lax")
    assert [(curve.rule, made(curve)) for curve in named.curves] == [("lax", "replayed")]


def test_rules_for_different_requests_are_not_coupled(log):
    rules = [LIMITED | {"match": {"path": "/a"}}, LIMITED | {"name": "other", "match": {"path": "/b"}}]
    result = replayed(log, *rules)
    assert [(curve.rule, made(curve)) for curve in result.curves] == [("limited", "exact"), ("other", "exact")]
    assert_equals_replays(log, rules, "other", method="exact", every=3)


def test_a_descriptor_has_a_curve(log):
    descriptors = [{"key": "remote_address", "rate_limit": {"unit": "second", "requests_per_unit": 3}}]

    def run(number):
        descriptors[0]["rate_limit"]["requests_per_unit"] = number
        return replay(Options(logs=[str(log)], rules={"domain": "d", "descriptors": descriptors}, form=FORM))

    (curve,) = run(3).curves
    assert (curve.quota, curve.algorithm, made(curve)) == ("3 per second", "fixed_window", "exact")
    assert dict(zip(curve.limits, curve.denied, strict=True))[5] == run(5).outcome.rules[0].denied


def test_a_quota_denies_at_other_limits_only_what_no_other_quota_admits(log):
    mine = {"unit": "minute", "requests_per_unit": 6}
    descriptors = [
        {"key": "remote_address", "quota_mode": True, "rate_limit": mine},
        {"key": "method", "quota_mode": True, "rate_limit": {"unit": "minute", "requests_per_unit": 9}},
    ]

    def run(number, what_if=None):
        mine["requests_per_unit"] = number
        rules = {"domain": "d", "descriptors": descriptors}
        return replay(Options(logs=[str(log)], rules=rules, form=FORM, what_if=what_if))

    name = run(6).outcome.rules[0].name
    (curve,) = run(6, name).curves
    assert made(curve) == "replayed"
    found = [run(number).outcome.rules[0].denied for number in curve.limits]
    assert list(curve.denied) == found
    assert max(found) > 0


def test_a_limit_that_the_algorithm_cannot_have_is_left_out(tmp_path):
    path = tmp_path / "access.log"
    path.write_text(lines((0, 1, "/", 200, 0) for _ in range(30)))
    result = replayed(path, LIMITED | {"limit": "9000 per second", "algorithm": "sliding_log"}, what_if="limited")
    assert result.curves[0].limits[-1] == 9000
    found = list(
        subjects_of(
            Simulation({"domain": "d", "rules": [LIMITED | {"algorithm": "sliding_log", "limit": "9000/s"}]}).rules
        )
    )
    assert [limit for limit, _ in found[0].quotas(replayed_candidates(9000))] == [2250, 4500, 6750]


def test_without_numpy_a_sentence_says_what_to_install(log, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    result = replayed(log, LIMITED)
    assert (result.curves, result.without_curve) == ([], [NEEDS_NUMPY])
    assert result.outcome.denied


@pytest.mark.parametrize("bound", ["MOST_REQUESTS", "MOST_COUNTERS"])
def test_a_log_with_too_many_arrivals_has_no_curve(log, monkeypatch, bound):
    monkeypatch.setattr(kept_requests, bound, 2)
    result = replayed(log, LIMITED)
    what = "2 requests at rules" if bound == "MOST_REQUESTS" else "2 counters"
    assert (result.curves, result.without_curve) == ([], [f"there is no what-if: the log has more than {what}"])


def test_a_curve_that_differs_from_the_replay_is_not_shown(log):
    rules = {"domain": "d", "storage": {"max_counters": 1}, "rules": [LIMITED]}
    result = replay(Options(logs=[str(log)], rules=rules, form=FORM))
    assert result.curves == []
    assert "'limited' (its counters did not fit into memory)" in result.without_curve[0]


def test_numbers_that_are_too_large_for_the_arithmetic_are_replayed(log, monkeypatch):
    monkeypatch.setattr(exact, "_LARGEST", 1)
    rules = [LIMITED, {"name": "other", "limit": "9 per 2s", "match": {"path": "/c"}}]  # it may be coupled
    curve = assert_equals_replays(log, rules, "limited", method="replayed", every=3)
    assert (curve.why_replayed, curve.all_clients, curve.peaks) == ("its window is too long", 3, ())


def test_a_sentence_names_five_rules_without_a_curve(log):
    result = replayed(log, *(LIMITED | {"name": f"r{number}"} for number in range(9)))
    assert result.without_curve[0].count(COUPLED) == 5
    assert "and 2 more: `--rule NAME`" in result.without_curve[0]


def test_blocked_clients_and_other_limits_of_clients_are_replayed(log):
    override = {"client": {"ip": "192.0.2.1"}, "rule": "limited", "limit": "2 per second"}
    overrides = [override, {"client": {"ip": "192.0.2.2"}, "block": True}]

    def run(number, what_if=None):
        rules = {"domain": "d", "overrides": overrides, "rules": [LIMITED | {"limit": f"{number} per second"}]}
        return replay(Options(logs=[str(log)], rules=rules, form=FORM, what_if=what_if))

    (curve,) = run(4, "limited").curves
    assert (made(curve), curve.why_replayed) == ("replayed", COUPLED)
    found = run(2).outcome.rules[0]
    assert (curve.denied[curve.limits.index(2)], curve.clients[curve.limits.index(2)]) == (found.denied, found.clients)


def test_an_override_that_ends_changes_the_limit_of_one_counter(log):
    rules = Simulation({"domain": "d", "rules": [LIMITED]}).rules
    (rule,) = rules.rules
    collected = Recording([rule], lambda identity, _: identity)
    for limit in (4, 5):
        collected.plan_of(ENTRY, (Charge(rule, Ask("d:limited:{ip=1}", Quota("fixed_window", limit, 10**6))),))
    assert collected.coupled == {0}


def test_a_limit_from_a_function_has_no_curve(log):
    result = replayed(log, LIMITED | {"limit": "python:tests.foresight.test_what_if:limit_of"}, what_if="limited")
    assert (result.curves, result.without_curve) == ([], [])
    assert result.outcome.rules[0].asked


def limit_of(_request):
    return "3 per second"


@pytest.mark.parametrize(("bound", "what"), [("MOST_REQUESTS", "2 requests at rules"), ("MOST_COUNTERS", "2 counters")])
def test_too_many_arrivals_have_no_curve(bound, what, monkeypatch):
    monkeypatch.setattr(kept_requests, bound, 2)
    rule = Rule("limited")
    kept = Recording([rule], lambda identity, _: identity)
    for number in range(3):
        assert kept.too_many == ""
        charge = Charge(rule, Ask(f"d:limited:{{ip={number}}}", Quota("fixed_window", 4, 10**6)))
        kept.add(ENTRY, kept.plan_of(ENTRY, (charge,)), allowed=True)
    assert (kept.too_many, len(kept.columns["times"])) == (f"there is no what-if: the log has more than {what}", 0)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), max_size=50),
    st.integers(1, 30),
    st.booleans(),
)
def test_the_busiest_window_is_that_of_a_search(requests, window, aligned):
    requests.sort(key=lambda request: request[0])
    times, clients = (np.array([request[place] for request in requests], np.int64) for place in (0, 1))
    expected = [0] * 5
    for at, client in requests:
        begin = at // window * window if aligned else at - window + 1
        inside = [1 for other, owner in requests if owner == client and begin <= other <= at]
        expected[client] = max(expected[client], len(inside))
    quota = Quota("fixed_window" if aligned else "sliding_window", 1, window)
    assert busiest_windows(in_sequence(times, clients)[0], quota).tolist() == [each for each in expected if each]


def test_a_window_beyond_64_bits_has_no_peak():
    times = np.arange(3, dtype=np.int64) * 2**61
    with pytest.raises(WindowTooLong):
        busiest_windows(in_sequence(times, np.array([0, 1, 2]))[0], Quota("sliding_window", 1, 2**62))


def test_clients_are_counted_by_their_peaks():
    assert distribution(np.array([3, 1, 3])) == ((1, 1), (3, 2))


@given(st.integers(0, 10**9), st.dictionaries(st.integers(1, 10**6), st.integers(1, 99), max_size=20))
def test_the_limits_of_a_curve_have_that_in_force_and_the_highest_peak(limit, peaks):
    held = sorted(peaks.items())
    found = candidates(limit, held)
    assert found == sorted(set(found))
    assert limit in found
    assert len(found) <= MOST_LIMITS
    assert not held or held[-1][0] in found
    if limit:
        others = replayed_candidates(limit)
        assert (len(set(others)), limit in others, min(others) >= 1) == (7, False, True)
