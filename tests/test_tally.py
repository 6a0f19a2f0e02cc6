"""What a limiter counts: against a model history on memory and Redis, through reloads, in threads and forks."""

import asyncio
import os
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.model import EntryList
from ratelimit_mw.tally import MOST_RULES, OTHER
from tests.shells.asking import exchange, http_scope
from tests.support.processes import in_child

YEARS = "per 10 years"


def limiter(*rules, storage=None, clock=None, **file):
    config = {"domain": "d", "storage": {"timeout": "5s"}, "client": {"secret": "s"}, "rules": list(rules), **file}
    return RateLimiter(config, storage=storage, clock=clock or ManualClock())


def rule(name="a", limit=f"2 {YEARS}", **words):
    return {"name": name, "by": "ip", "limit": limit, **words}


def ask(limiter, times=1, **attributes):
    return [limiter.check({"ip": "192.0.2.1", **attributes}) for _ in range(times)][-1]


def counted(limiter):
    """What is not 0: the requests, and the outcomes and denials of each rule."""
    found = limiter.tally.snapshot()
    rules = {each.name: {**positive(each.outcomes), **positive(each.denials)} for each in found.rules}
    return positive(found.requests), rules


def positive(counts):
    return {key: number for key, number in counts.items() if number}


def test_a_request_counts_once_for_itself_and_once_for_each_rule():
    with limiter(rule("a"), rule("b", f"9 {YEARS}"), rule("c", f"9 {YEARS}", by=["ip", "global"])) as each:
        ask(each, 2)
        assert counted(each) == ({"allowed": 2}, {"a": {"allowed": 2}, "b": {"allowed": 2}, "c": {"allowed": 2}})
        ask(each, 3)
        requests, rules = counted(each)
    assert requests == {"allowed": 2, "denied": 3}
    assert rules["a"] == {"allowed": 2, "denied": 3, "limited": 3}
    assert rules["b"] == rules["c"] == {"allowed": 5}


def test_a_look_counts_nothing():
    with limiter(rule()) as each:
        each.peek({"ip": "192.0.2.1"})
        each.explain({"ip": "192.0.2.1"})
        assert counted(each) == ({}, {})


def test_a_request_without_a_rule_is_unlimited():
    with limiter(rule(match={"path": "/login"})) as each:
        ask(each, 3, path="/")
        assert counted(each) == ({"unlimited": 3}, {})


def test_a_shadow_rule_counts_what_it_would_deny():
    with limiter(rule(shadow=True)) as each:
        ask(each, 5)
        assert counted(each) == ({"allowed": 5}, {"a": {"allowed": 2, "shadow_denied": 3}})


def test_a_soft_limit_counts_what_is_over_it():
    with limiter(rule(limit=f"10 {YEARS}", throttle={"soft": "50%"})) as each:
        ask(each, 17)
        assert counted(each) == (
            {"allowed": 10, "over": 5, "denied": 2},
            {"a": {"allowed": 10, "over": 5, "denied": 2, "limited": 2}},
        )


def test_a_queue_counts_delays_and_their_seconds():
    bucket = rule(limit="1 per second", algorithm="leaky_bucket", burst=3, max_wait="2 seconds")
    with limiter(bucket) as each:
        delays = sum(ask(each).delay for _ in range(3))
        (found,) = each.tally.snapshot().rules
    assert delays > 0
    assert found.delay == delays
    assert found.outcomes["delayed"] + found.outcomes["allowed"] == 3


def test_a_ban_counts_its_beginning_and_its_denials():
    ban = {"after": "2 denials in 1 minute", "for": "10 minutes"}
    with limiter(rule(limit=f"1 {YEARS}", ban=ban)) as each:
        ask(each, 5)
        found = each.tally.snapshot()
    assert found.bans == {("d", "a", True): 1}
    assert sum(found.rules[0].denials.values()) == found.requests["denied"] == 4
    assert found.rules[0].denials["banned"] >= 2


def test_a_block_is_a_denial_of_no_rule():
    with limiter(rule(), overrides=[{"client": {"ip": "192.0.2.1"}, "block": True}]) as each:
        ask(each, 2)
        assert each.tally.snapshot().denials["blocked"] == 2
        assert counted(each) == ({"denied": 2}, {})


@pytest.mark.parametrize(
    ("on_error", "requests", "rules"),
    [
        ("allow", {"unchecked": 2}, {}),
        ("deny", {"denied": 2}, {}),
        ("local", {"allowed": 2}, {"a": {"allowed": 2}}),
    ],
)
def test_decisions_without_the_store_are_counted_by_their_result(on_error, requests, rules):
    with limiter(rule(on_error=on_error), storage="redis://127.0.0.1:1") as each:
        ask(each, 2)
        found = each.tally.snapshot()
        assert counted(each) == (requests, rules)
    assert (found.store_up, found.store_failures) == (False, 2)


def test_the_check_at_start_finds_that_the_store_is_away():
    with limiter(rule(), storage="redis://127.0.0.1:1") as each:
        assert each.tally.snapshot().store_up
        each.engine.storage.connect()
        found = each.tally.snapshot()
    assert (found.store_up, found.store_failures, found.late) == (False, 0, 0)


def test_the_store_is_up_again_after_its_first_answer(any_server):
    with limiter(rule(limit=f"9 {YEARS}", on_error="allow"), storage=any_server.url) as each:
        each.engine.tally.failed()
        assert not each.tally.snapshot().store_up
        ask(each)
        assert each.tally.snapshot().store_up


def test_a_denial_from_the_cache_is_local(any_server):
    with limiter(rule(limit=f"1 {YEARS}"), storage=any_server.url) as each:
        each.reset({"ip": "192.0.2.1"})
        ask(each, 5)
        found = each.tally.snapshot()
    assert (found.requests["allowed"], found.requests["denied"]) == (1, 4)
    assert found.local_denials == 3


def test_a_wait_for_a_place_counts_one_request():
    with limiter(rule(limit="1 per minute", algorithm="fixed_window")) as each:
        ask(each)
        assert each.acquire({"ip": "192.0.2.1"}, timeout=90).allowed
        assert counted(each) == ({"allowed": 2}, {"a": {"allowed": 2}})


def test_one_request_in_16_is_measured():
    with limiter(rule(limit=f"64 {YEARS}")) as each:
        ask(each, 64)
        found = each.tally.snapshot()
    assert sum(found.decisions.counts) == 4
    assert found.decisions.total > 0
    assert sum(found.rules[0].used.counts) == 4
    assert found.rules[0].used.total == (1 + 17 + 33 + 49) / 64


def test_a_snapshot_does_not_change():
    with limiter(rule()) as each:
        before = each.tally.snapshot()
        ask(each, 3)
        assert positive(before.requests) == {}
        with pytest.raises(TypeError):
            before.requests["allowed"] = 1


def test_a_rule_keeps_its_counts_after_a_reload(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("domain: d\nrules: [{name: a, limit: 5 per 10 years}]\n", "utf-8")
    with RateLimiter(path, clock=ManualClock()) as each:
        ask(each, 2)
        path.write_text("domain: d\nrules: [{name: a, limit: 9 per 10 years}, {name: b, limit: 9 per day}]\n", "utf-8")
        each.reload()
        ask(each, 2)
        assert counted(each) == ({"allowed": 4}, {"a": {"allowed": 4}, "b": {"allowed": 2}})


def test_rules_of_one_name_in_two_domains_are_counted_apart(tmp_path):
    for domain, limit in (("one", 1), ("two", 5)):
        (tmp_path / f"{domain}.yaml").write_text(
            f"domain: {domain}\nrules: [{{name: a, limit: {limit} per 10 years}}]\n", "utf-8"
        )
    with RateLimiter(tmp_path, clock=ManualClock()) as each:
        for domain in ("one", "two"):
            for _ in range(2):
                each.check({"ip": "192.0.2.1"}, domain=domain)
        found = {each.domain: positive(each.outcomes) for each in each.tally.snapshot().rules}
    assert found == {"one": {"allowed": 1, "denied": 1}, "two": {"allowed": 2}}


def test_rules_beyond_a_thousand_names_are_counted_together():
    rules = [rule(f"r{n}", f"1 {YEARS}", match={"path": f"/{n}"}) for n in range(MOST_RULES + 5)]
    with limiter(*rules) as each:
        for n in range(MOST_RULES + 5):
            ask(each, 2, path=f"/{n}")
        found = each.tally.snapshot()
    assert len(found.rules) == MOST_RULES + 1
    assert positive(found.rules[-1].outcomes) == {"allowed": 5, "denied": 5}
    assert found.rules[-1].name == OTHER
    assert (found.requests["allowed"], found.requests["denied"]) == (MOST_RULES + 5, MOST_RULES + 5)


def test_threads_lose_no_count():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with limiter(rule(limit=f"1000000 {YEARS}")) as each:
            threads = [threading.Thread(target=ask, args=(each, 2_000)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert counted(each) == ({"allowed": 8_000}, {"a": {"allowed": 8_000}})
    finally:
        sys.setswitchinterval(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_child_of_a_fork_counts_from_0():
    with limiter(rule(limit=f"2 {YEARS}")) as each:
        ask(each, 3)

        def work():
            ask(each, 2)
            return counted(each)

        assert in_child(work) == [{"denied": 2}, {"a": {"denied": 2, "limited": 2}}]
        assert counted(each)[0] == {"allowed": 2, "denied": 1}


def test_a_middleware_counts_each_request():
    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def served(each):
        middleware = RateLimitMiddleware(app, limiter=each)
        for _ in range(3):
            await exchange(middleware, http_scope("/", ip="192.0.2.1"))

    with limiter(rule()) as each:
        asyncio.run(served(each))
        assert counted(each) == ({"allowed": 2, "denied": 1}, {"a": {"allowed": 2, "denied": 1, "limited": 1}})


DESCRIPTORS = [
    {"key": "kind", "value": "mail", "rate_limit": {"unit": "year", "requests_per_unit": 10}},
    {"key": "path", "value": "/a*", "rate_limit": {"unit": "year", "requests_per_unit": 10}},
    {"key": "user", "shadow_mode": True, "rate_limit": {"unit": "year", "requests_per_unit": 1}},
]


def hits(each):
    return {
        found.path: (found.total_hits, found.within_limit, found.near_limit, found.over_limit, found.shadow_mode)
        for found in each.tally.snapshot().hits
    }


def test_lists_count_hits_by_the_descriptor_of_the_file():
    with RateLimiter({"domain": "d", "descriptors": DESCRIPTORS}, clock=ManualClock()) as each:
        for _ in range(12):
            each.check_lists("d", [[("kind", "mail")]])
        for name in "bcd":
            each.check_lists("d", [[("path", f"/a/{name}")]])
            each.check_lists("d", [[("user", name)]], hits=1)
            each.check_lists("d", [[("user", name)]], hits=1)
        each.check_lists("d", [EntryList([("user", "secret")], limit=(5, "hour"))], hits=2)
        assert hits(each) == {
            ("kind_mail",): (12, 10, 2, 2, 0),
            ("path_/a*",): (3, 3, 0, 0, 0),
            ("user",): (6, 3, 3, 3, 3),
            ("(sent)",): (2, 2, 0, 0, 0),
        }


def test_hits_of_descriptors_beyond_a_thousand_are_counted_together():
    limit = {"unit": "year", "requests_per_unit": 10}
    each_user = [{"key": "user", "value": str(n), "rate_limit": limit} for n in range(MOST_RULES + 5)]
    with RateLimiter({"domain": "d", "descriptors": each_user}, clock=ManualClock()) as each:
        for n in (*range(MOST_RULES + 5), 0):
            each.check_lists("d", [[("user", str(n))]])
        found = hits(each)
    assert len(found) == MOST_RULES + 1
    assert (found["user_0",][0], found[OTHER,][0]) == (2, 5)


def test_the_share_from_which_hits_are_near_can_be_set():
    with RateLimiter({"domain": "d", "descriptors": DESCRIPTORS}, clock=ManualClock()) as each:
        each.engine.tally.near = 0.5
        each.check_lists("d", [[("kind", "mail")]], hits=9)
        assert hits(each) == {("kind_mail",): (9, 9, 4, 0, 0)}


CLIENTS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["/", "/login"])), max_size=40)


def model(history):
    """The outcomes by hand: two fixed windows that never end, all or nothing, and a shadow rule beside them."""
    used = {}
    requests, rules = {}, {}

    def add(counts, key):
        counts[key] = counts.get(key, 0) + 1

    for client, path in history:
        asked = {"all": 4} | ({"login": 2} if path == "/login" else {})
        denying = [name for name, limit in asked.items() if used.get((name, client), 0) >= limit]
        would = used.get("shadow", 0) >= 3
        add(requests, "denied" if denying else "allowed")
        for name in asked:
            add(rules.setdefault(name, {}), "denied" if name in denying else "allowed")
        add(rules.setdefault("shadow", {}), "shadow_denied" if would else "allowed")
        if not denying:
            for name in asked:
                add(used, (name, client))
            if not would:
                add(used, "shadow")
    return requests, rules


def replay(history, storage):
    rules = [
        rule("all", f"4 {YEARS}", by="user"),
        rule("login", f"2 {YEARS}", by="user", match={"path": "/login"}),
        rule("shadow", f"3 {YEARS}", by="global", shadow=True),
    ]
    with limiter(*rules, storage=storage, client={"user": "header:x", "secret": "s"}) as each:
        each.reset_all()
        for client, path in history:
            each.check({"user": client, "path": path})
        found = each.tally.snapshot()
    rules = {each.name: positive(each.outcomes) for each in found.rules}
    assert sum(sum(each.denials.values()) for each in found.rules) == found.requests["denied"]
    return positive(found.requests), {name: counts for name, counts in rules.items() if counts}


@given(CLIENTS)
@settings(deadline=None, max_examples=60)
def test_counts_are_those_of_a_model_in_memory(history):
    assert replay(history, None) == model(history)


def test_counts_are_those_of_a_model_on_redis(any_server):
    history = [(client, path) for client in "abc" for path in ("/login", "/", "/login", "/login", "/", "/", "/")]
    requests, rules = replay(history, any_server.url)
    expected, of_rules = model(history)
    assert requests == expected
    # A denial from the cache of denials has asked one rule.
    assert {name: counts.get("denied", 0) for name, counts in rules.items()} == {
        name: counts.get("denied", 0) for name, counts in of_rules.items()
    }
