"""Plans of what `check` is given: remembered where nothing else bears on them, and as right as those made anew."""

import tracemalloc
from enum import Enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest, asgi_head, wsgi_head
from ratelimit_mw.reload.controls import Setting

ALL = {"name": "all", "by": ["ip", "user"], "limit": "9 per minute", "algorithm": "fixed_window"}
IP = {"remote_address": "192.0.2.1"}


class Plan(str, Enum):  # noqa: UP042  whose str() is not the text that it equals
    GOLD = "gold"


class Name(str):
    """Hashed by code of its own, in which another thread may come."""

    __slots__ = ()

    def __hash__(self):
        return super().__hash__()


@pytest.fixture
def engine():
    made = []

    def make(*rules, **sections):
        made.append(RateLimiter({"domain": "d", "rules": list(rules), **sections}, clock=ManualClock(0)))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def plan(limiter, given, cost=1):
    return limiter.engine.planner.plan_given(limiter.rules, given, cost)


def keys(limiter, given, cost=1):
    return [ask.key for ask in plan(limiter, given, cost).asks]


def test_the_same_attributes_have_the_same_plan(engine):
    limiter = engine(ALL)
    plan(limiter, {**IP, "user": "a"})  # a plan is remembered from the second time on
    first = plan(limiter, {**IP, "user": "a"})
    assert plan(limiter, {**IP, "user": "a"}) is first
    assert plan(limiter, {**IP, "user": "b"}).asks != first.asks
    assert [ask.cost for ask in plan(limiter, {**IP, "user": "a"}, 3).asks] == [3, 3]
    assert plan(limiter, {**IP, "user": None}).asks == first.asks[:1]


def test_values_that_are_equal_but_read_differently_are_told_apart(engine):
    limiter = engine(ALL)
    texts = ["1", 1, True, 1.0, "True", "1.0"]
    told = [keys(limiter, {"user": value})[-1] for _ in range(2) for value in texts]
    assert told[:6] == told[6:]
    assert told[0] == told[1] != told[2] == told[4] != told[3] == told[5]


def test_an_enum_that_is_a_str_counts_as_the_text_that_it_equals(engine):
    assert keys(engine(ALL), {"user": Plan.GOLD}) == keys(engine(ALL), {"user": "gold"})


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"user": ["a"]}, id="no value to look up by"),
        pytest.param({"user": 7}, id="no text"),
        pytest.param({"user": "a" * 600}, id="long"),
        pytest.param({f"header:x-{n}": "a" * 10 for n in range(100)}, id="much"),
        pytest.param({"header:" + "x" * 600: "a"}, id="a long name"),
        pytest.param({Name("user"): "a"}, id="a name of the app's own kind"),
        pytest.param(type("Own", (dict,), {})(user="a"), id="a mapping of the app's own"),
    ],
)
def test_what_is_not_remembered_is_planned_each_time(engine, given):
    limiter = engine(ALL)
    first = plan(limiter, given)
    again = plan(limiter, given)
    assert again is not first
    assert again.asks == first.asks


def test_a_bad_cost_is_refused_though_the_good_one_is_known(engine):
    limiter = engine(ALL)
    limiter.check(IP, 1)
    assert limiter.check(IP, True).remaining == 7
    for cost in (1.0, -1):
        with pytest.raises(ValueError, match="whole number"):
            limiter.check(IP, cost)


def test_what_time_or_load_can_change_is_not_remembered(engine):
    elastic = {**ALL, "throttle": {"elastic": {"up_to": "200%", "below": 0.7}}}
    assert engine(elastic).rules.plans is None
    limiter = engine(ALL)
    assert limiter.check(IP).allowed
    limiter.overrides.set({"ip": "192.0.2.1"}, block=True, duration=10)
    assert not limiter.check(IP).allowed
    limiter.clock.advance(11)
    assert limiter.check(IP).allowed


def test_what_an_override_changes_for_good_is_seen_at_once(engine):
    limiter = engine(ALL)
    assert limiter.check(IP).limit == 9
    limiter.overrides.set({"ip": "192.0.2.1"}, rule="all", limit="5 per minute")
    assert [limiter.check(IP).limit for _ in range(2)] == [5, 5]
    assert limiter.rules.plans is not None
    limiter.overrides.remove({"ip": "192.0.2.1"}, rule="all")
    assert limiter.check(IP).limit == 9


def test_a_domain_alone_has_plans_of_its_own(tmp_path):
    for name in "ab":
        rule = f"rules: [{{name: {name}, limit: 9 per hour}}]\n"
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\n{rule}")
    with RateLimiter(tmp_path) as limiter:
        asked = [None, "a", "b", None, "a", "b"]
        assert [len(limiter.check(IP, domain=domain).policies) for domain in asked] == [2, 1, 1] * 2


def test_plans_have_bounded_room(engine):
    plans = engine(ALL).rules.plans
    for n in range(5000):
        plans.put(("GET", n), n)
    assert len(plans) == 4096
    assert plans.get(("GET", 0)) is None
    assert plans.get(("GET", 4999)) == 4999


def test_the_shapes_of_plans_have_bounded_room(engine):
    limiter = engine({**ALL, "by": "ip"})
    first = plan(limiter, IP, 1).shape
    for cost in range(2, 1025):
        plan(limiter, IP, cost)
    assert plan(limiter, {**IP, "method": "GET"}, 1).shape is first
    plan(limiter, IP, 1025)
    assert plan(limiter, {**IP, "method": "PUT"}, 1).shape is not first


def scope_of(path="/a", method="GET", client="192.0.2.1", **headers):
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "client": (client, 1), "headers": fields}


def asked(limiter, **options):
    """The plan of a request, which has to be what the rules alone say of it. By its head, it has the same."""
    planner, rules, scope = limiter.engine.planner, limiter.rules, scope_of(**options)
    made = planner.plan(rules, AsgiRequest(scope))
    assert made.charges == rules.plan(AsgiRequest(scope))
    assert not rules.bare or by_head(limiter, scope).charges == made.charges
    return made


def by_head(limiter, scope):
    """The plan of the head of a request, as the middleware asks for it."""
    return limiter.engine.planner.plan_of_head(limiter.rules, scope, asgi_head(scope, read=limiter.rules.fields))


def test_a_plan_is_remembered_when_its_request_comes_a_second_time(engine):
    limiter = engine({**ALL, "by": "ip"})
    plans = limiter.rules.plans
    kept = []
    for _ in range(3):
        by_head(limiter, scope_of())
        kept.append(len(plans))
    assert kept == [0, 2, 2]  # with the pattern


def test_the_plan_of_an_absolute_target_with_a_long_host_is_not_remembered(engine):
    limiter = engine({**ALL, "by": "path"})
    for _ in range(3):
        asked(limiter, path=f"http://{'a' * 600}/a")
        by_head(limiter, scope_of(path=f"http://{'b' * 600}/a"))
    assert len(limiter.rules.plans) == 0


def test_the_marks_of_requests_that_came_once_have_bounded_room(engine):
    plans = engine(ALL).rules.plans
    for n in range(10_000):
        assert not plans.seen(("GET", n))
    assert sum(plans.seen(("GET", n)) for n in range(10_000)) <= 4096


def test_the_same_request_has_the_same_plan(engine):
    get = {"name": "get", "match": {"path": "/a", "methods": ["GET"]}, "limit": "9 per hour"}
    limiter = engine({**ALL, "by": "ip"}, get)
    asked(limiter)  # a plan is remembered from the second time on
    first = asked(limiter)
    assert asked(limiter) is first
    others = [{"client": "192.0.2.2"}, {"path": "/b"}, {"method": "POST"}]
    others += [{"path": "/" + "a" * 600}, {"method": "A" * 600}]
    for options in (*others, *others):
        assert asked(limiter, **options) is not first


def test_a_client_has_one_plan_for_all_paths_if_no_rule_reads_the_path(engine):
    limiter = engine({**ALL, "by": "ip", "match": {"methods": ["GET"]}})
    first, second, third = (asked(limiter, path=path) for path in ("/a", "/b", "/c"))
    assert second is third is not first
    given = [plan(limiter, {**IP, "method": "GET", "path": path}) for path in ("/a", "/b", "/c")]
    assert given[1] is given[2] is not given[0]
    assert asked(limiter, path="/a", method="POST") is not third


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({"rules": [{**ALL, "by": "path"}]}, id="by the path"),
        pytest.param({"rules": [ALL], "exempt": [{"path": "/a"}]}, id="an exempt path"),
        pytest.param({"rules": [{**ALL, "match": {"path": "/a"}}]}, id="a matched path"),
        pytest.param({"rules": [ALL], "overrides": [{"client": {"path": "/a"}, "block": True}]}, id="a blocked path"),
    ],
)
def test_a_path_that_the_rules_read_makes_another_plan(engine, sections):
    rules = sections.pop("rules")
    limiter = engine(*rules, **sections)
    for _ in range(3):
        first, second = (plan(limiter, {**IP, "path": path}) for path in ("/a", "/b"))
        assert first.charges != second.charges


@pytest.mark.parametrize(
    ("client", "match", "header"),
    [
        pytest.param({"user": "header:X-User"}, {}, "x_user", id="the user's header"),
        pytest.param({"user": "cookie:session"}, {}, "cookie", id="a cookie"),
        pytest.param({"trusted_hops": 1}, {}, "x_forwarded_for", id="a proxy's header"),
        pytest.param({}, {"host": "h1"}, "host", id="the host"),
        pytest.param({}, {"header:X-Plan": "session=1"}, "x_plan", id="a header that a rule matches"),
    ],
)
def test_a_header_that_the_rules_read_makes_another_request(engine, client, match, header):
    limiter = engine({**ALL, "match": match, "by": ["ip", "user"] if "user" in client else "ip"}, client=client)
    values = {"x_forwarded_for": ["192.0.2.7", "192.0.2.8"], "host": ["h1", "h2"]}
    one, two = values.get(header, ["session=1", "session=2"])
    for _ in range(2):
        assert asked(limiter, **{header: one}).asks != asked(limiter, **{header: two}).asks
    assert asked(limiter, **{header: one}) is asked(limiter, **{header: one})
    assert asked(limiter, **{header: one}, accept="*/*") is asked(limiter, **{header: one})
    assert asked(limiter, **{header: one * 1500}) is not asked(limiter, **{header: one * 1500})


def test_without_a_host_line_the_name_of_the_server_makes_another_request(engine):
    limiter = engine({**ALL, "by": "ip", "match": {"host": "h1"}})
    charged = [len(by_head(limiter, {**scope_of(), "server": (host, 80)}).charges) for host in ("h1", "h2") * 3]
    assert charged == [1, 0] * 3


@pytest.mark.parametrize("user", ["scope:user", "query:user", "python:tests.test_planning:user_of"])
def test_what_is_read_from_elsewhere_is_read_each_time(engine, user):
    limiter = engine(ALL, client={"user": user})
    assert asked(limiter) is not asked(limiter)


def user_of(scope):
    return "someone"


def test_a_preflight_asks_other_counters_than_other_options(engine):
    limiter = engine({**ALL, "by": "ip"})
    plain, preflight = (
        [ask.key for ask in asked(limiter, method="OPTIONS", **headers).asks]
        for headers in ({}, {"origin": "a", "access_control_request_method": "GET"})
    )
    assert len(plain) == len(preflight) == 1
    assert plain != preflight


def test_what_was_told_of_a_request_already_counts(engine):
    limiter = engine(ALL, client={"user": "header:X-User"})
    request = AsgiRequest(scope_of())
    request.values["user"] = "alice"
    assert len(asked(limiter).asks) == 1
    assert len(limiter.engine.planner.plan(limiter.rules, request).asks) == 2


def test_a_user_whom_only_a_framework_knows_is_asked_for_each_time(engine):
    limiter = engine(ALL)
    assert limiter.rules.plans.key(AsgiRequest(scope_of())) is None
    assert engine({**ALL, "by": "ip"}).rules.plans.key(AsgiRequest(scope_of())) is not None


def test_a_switch_that_is_thrown_or_set_back_is_seen_by_requests_that_are_remembered(engine):
    limiter = engine({**ALL, "by": "ip"})
    turn, plans = limiter.engine.planner.switch.turn, []
    for word in ("on", "off", "shadow", "on"):
        turn(Setting(word))
        made = [limiter.engine.planner.plan(limiter.rules, AsgiRequest(scope_of())) for _ in range(3)]
        plans.append([ask.shadow for ask in made[0].asks])
        for each in (*made, *(by_head(limiter, scope_of()) for _ in range(3))):
            assert [ask.shadow for ask in each.asks] == plans[-1]
        assert [ask.shadow for ask in plan(limiter, IP).asks] == plans[-1]
    assert plans == [[False], [], [True], [False]]


def test_many_empty_lines_of_a_header_are_too_much_to_remember(engine):
    limiter = engine({**ALL, "by": "ip", "match": {"header:X-Plan": "gold"}})
    for _ in range(3):
        by_head(limiter, {**scope_of(), "headers": [(b"x-plan", b"")] * 600})
    assert len(limiter.rules.plans) == 0


USERS = [[], ["x-user: a"], ["x_user: a"], ["X-User: a"], ["X_USER: a"], ["x-user: b"], ["x-users: a"], ["x-plan: a"]]
USERS += [["x-user: a", "x-user: b"], ["x-user: b", "x-user: a"]]
USERS += [["x-user: a", "x-plan: b"], ["x-plan: a", "x-user: b"]]


def test_the_head_of_a_request_has_each_spelling_and_each_line_that_rules_read(engine):
    of_plan = {**ALL, "name": "of plan", "by": "ip", "match": {"header:X-Plan": "a"}}
    limiter = engine({**ALL, "by": ["ip", "user"]}, of_plan, client={"user": "header:X-User"})
    for _ in range(3):
        for lines in USERS:
            pairs = [tuple(line.encode().split(b": ")) for line in lines]
            made = limiter.rules.plan(AsgiRequest({**scope_of(), "headers": pairs}))
            assert by_head(limiter, {**scope_of(), "headers": pairs}).charges == made, lines
    assert len(limiter.rules.plans) > len(USERS) / 2


@pytest.mark.parametrize(("length", "remembered"), [(1500, True), (3900, True), (4090, False), (4097, False)])
def test_the_plan_of_a_token_is_remembered_unless_its_line_is_very_long(engine, length, remembered):
    limiter = engine({**ALL, "by": ["ip", "user"]}, client={"user": "header:X-User"})
    plans = limiter.rules.plans
    texts = ["a".ljust(length, "."), "b".ljust(length, "."), "a" * (length - 1) + ".", "a"]
    for _ in range(3):
        for text in texts:
            made = by_head(limiter, scope_of(x_user=text))
            assert made.charges == limiter.rules.plan(AsgiRequest(scope_of(x_user=text)))
            assert made.charges == asked(limiter, x_user=text).charges
        assert len(by_head(limiter, scope_of()).asks) == 1
    assert (len(plans) > 4) is remembered


@pytest.mark.parametrize(("lines", "remembered"), [(126, True), (129, False)])
def test_no_plan_is_remembered_of_a_request_with_very_many_lines(engine, lines, remembered):
    limiter = engine({**ALL, "by": ["ip", "user"]}, client={"user": "header:X-User"})
    others = [(b"x-other", b"a")] * lines
    for _ in range(3):
        for own in ([], [(b"x-user", b"a")], [(b"x-user", b"b")], [(b"x_user", b"a"), (b"x-user", b"b")]):
            made = by_head(limiter, {**scope_of(), "headers": [*others, *own]})
            assert made.charges == limiter.rules.plan(AsgiRequest({**scope_of(), "headers": own}))
    assert len(limiter.rules.plans) == (4 if remembered else 0)


@pytest.mark.parametrize(("length", "lines"), [(4000, 1), (25, 40), (0, 500)])
def test_a_plan_with_long_fields_has_bounded_memory(engine, length, lines):
    limiter = engine({**ALL, "by": "ip", "match": {"header:X-Plan": "gold"}})
    tracemalloc.start()
    for n in range(100):
        for _ in range(2):
            text = b"x-plan: %b\n" % b"a".ljust(length) * lines
            pairs = [tuple(line.split(b": ")) for line in text.splitlines()]
            by_head(limiter, {**scope_of(client=f"192.0.2.{n}"), "headers": pairs})
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(limiter.rules.plans) in {0, 100}
    assert taken < 100 * 8 << 10


names = st.sampled_from(
    ["x-user", "X-User", "x_user", "cookie", "COOKIE", "host", "x-plan", "x-forwarded-for", "x-users"]
)
values = st.sampled_from(
    ["a", "b", "a, b", "sid=a", "sid=b; sid=a", "sid=a; si", "d=b", "\xe9", "\xc3\xa9", "", " a", "h1", "H1:80"]
)
sent = st.fixed_dictionaries(
    {
        "headers": st.lists(
            st.tuples(names.map(str.encode), values.map(lambda text: text.encode("latin-1"))), max_size=5
        ),
        "method": st.sampled_from(["GET", "get", "HEAD", "POST", "OPTIONS"]),
        "path": st.sampled_from(["/", "/a", "/a/", "//a"]),
        "client": st.sampled_from([None, ("192.0.2.1", 1), ("192.0.2.9", 1)]),
        "server": st.sampled_from([None, ("h1", 80), ("h2", 80)]),
        "type": st.sampled_from(["http", "websocket"]),
    }
)
READING = {
    "by": {"rules": [{**ALL, "by": ["ip", "user", "header:X-Plan"], "match": {"methods": ["GET"]}}]},
    "match": {"rules": [{**ALL, "by": "user|ip", "match": {"host": "h1", "path": "/a"}}, {**ALL, "name": "second"}]},
}


@pytest.mark.parametrize("rules", READING.values(), ids=READING)
def test_no_two_requests_share_a_plan_unless_they_have_the_same(rules):
    client = {"user": "cookie:sid", "trusted_proxies": ["192.0.2.9"], "secret": "s"}
    limiter = RateLimiter({"domain": "d", "client": client, **rules}, clock=ManualClock(0))
    read, plan_of_head = limiter.rules.fields, limiter.engine.planner.plan_of_head

    @settings(max_examples=400)
    @given(sent)
    def compare(scope):
        environ = environ_of(scope)
        for _ in range(3):
            found = plan_of_head(limiter.rules, scope, asgi_head(scope, read=read))
            assert found.charges == limiter.rules.plan(AsgiRequest(scope))
            found = plan_of_head(limiter.rules, environ, wsgi_head(environ, read=read))
            assert found.charges == limiter.rules.plan(WsgiRequest(environ))

    compare()
    assert len(limiter.rules.plans) > 100
    limiter.close()


ADDRESSES = [
    None,
    "192.0.2.1",
    "192.0.2.9",
    "2001:db8::1",
    "2001:DB8::2",
    "::ffff:192.0.2.1",
    "192.0.2.1:80",
    "a",
]
BY_ADDRESS = [
    [{**ALL, "by": "ip"}],
    [{**ALL, "by": ["ip", "global", "ip+method"]}, {**ALL, "name": "second", "by": "path", "shadow": True}],
    [{**ALL, "by": "ip", "match": {"path": "/{name}"}}, {**ALL, "name": "reads", "match": {"methods": ["GET"]}}],
    [{**ALL, "by": "path:name|ip", "match": {"path": "/{name}"}}, {**ALL, "name": "ip=192.0.2.1", "by": "ip+route"}],
    [{**ALL, "by": "ip", "match": {"ip": "192.0.2.0/28"}}, {**ALL, "name": "second", "by": "ip"}],
    [{**ALL, "by": "ip"}, {**ALL, "name": "second", "match": {"path": "/a"}, "replaces": ["all"]}],
]


@pytest.mark.parametrize("rules", BY_ADDRESS)
@pytest.mark.parametrize("sections", [{}, {"overrides": [{"client": {"ip": "192.0.2.1"}, "exempt": True}]}])
def test_clients_that_share_a_pattern_have_the_plans_that_their_addresses_alone_would_have(rules, sections):
    limiter = RateLimiter({"domain": "d", "rules": rules, **sections}, clock=ManualClock(0))
    read, plan_of_head = limiter.rules.fields, limiter.engine.planner.plan_of_head
    clients = st.one_of(st.sampled_from(ADDRESSES), st.ip_addresses().map(str))

    @settings(max_examples=60)
    @given(sent, clients)
    def compare(scope, client):
        scope = {**scope, "client": client and (client, 1)}
        environ = environ_of(scope)
        for _ in range(3):
            found = plan_of_head(limiter.rules, scope, asgi_head(scope, read=read))
            assert found.charges == limiter.rules.plan(AsgiRequest(scope))
            assert [*found.asks] == [ask for _, ask in found.charges]
            found = plan_of_head(limiter.rules, environ, wsgi_head(environ, read=read))
            assert found.charges == limiter.rules.plan(WsgiRequest(environ))

    compare()
    limiter.close()


NAMED_ADDRESSES = st.dictionaries(
    st.sampled_from(["ip", "remote_address", " ip "]), st.sampled_from([*ADDRESSES, "192.0.2.1/24", "", "\0", 7])
)
FURTHER = st.dictionaries(
    st.sampled_from(["method", "path", "user"]), st.sampled_from(["GET", "OPTIONS", "/a", "/b", "192.0.2.1", None])
)


@pytest.mark.parametrize("rules", BY_ADDRESS)
def test_check_has_the_plan_of_its_arguments_whatever_clients_share_a_pattern(rules):
    limiter = RateLimiter({"domain": "d", "rules": rules}, clock=ManualClock(0))
    kept = len(limiter.rules.plans)

    @settings(max_examples=200)
    @given(NAMED_ADDRESSES, FURTHER, st.sampled_from([0, 1, 3, 10**16]), st.booleans())
    def compare(addresses, further, cost, address_first):
        attributes = {**addresses, **further} if address_first else {**further, **addresses}
        made = limiter.rules.plan(limiter.rules.attributes.request_of(attributes), min(cost, 10**15))
        for _ in range(3):
            assert limiter.engine.planner.plan_given(limiter.rules, attributes, cost).charges == made

    compare()
    assert len(limiter.rules.plans) > kept
    limiter.close()


def test_clients_with_long_arguments_share_no_pattern():
    with RateLimiter({"domain": "d", "rules": [{**ALL, "by": "ip+method"}]}) as limiter:
        for n in range(5):
            limiter.check({"ip": f"192.0.2.{n}", "method": "M" * 600})
        assert len(limiter.rules.plans) == 0


def test_a_negative_cost_is_refused_for_each_client():
    with RateLimiter({"domain": "d", "rules": [{**ALL, "by": "ip"}]}) as limiter:
        for n in range(5):
            with pytest.raises(ValueError, match="at least 0"):
                limiter.check({"ip": f"192.0.2.{n}"}, -1)


def test_only_the_second_request_of_a_kind_makes_the_pattern_of_the_next_ones(engine, monkeypatch):
    limiter, made = engine({**ALL, "by": "ip", "match": {"path": "/{name}"}}), []
    monkeypatch.setattr(AsgiRequest, "__init__", watching(AsgiRequest.__init__, made))
    for n in range(9):
        by_head(limiter, scope_of(client=f"192.0.2.{n}"))
    assert len(made) == 2
    by_head(limiter, scope_of(path="/b"))
    assert len(made) == 3


def watching(method, calls):
    def watched(*args, **options):
        calls.append(args)
        return method(*args, **options)

    return watched


def environ_of(scope):
    """The same request under WSGI, by a server that joins the lines of a name."""
    lines = {}
    for name, value in scope["headers"]:
        key = f"HTTP_{name.decode().upper().replace('-', '_')}"
        lines[key] = f"{lines[key]},{value.decode('latin-1')}" if key in lines else value.decode("latin-1")
    own = {"REQUEST_METHOD": scope["method"], "PATH_INFO": scope["path"]}
    own |= {"REMOTE_ADDR": scope["client"][0]} if scope["client"] else {}
    return lines | own | ({"SERVER_NAME": scope["server"][0]} if scope["server"] else {})


@pytest.mark.parametrize("word", ["off", "shadow"])
@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda limiter, ip: plan(limiter, {"remote_address": ip}), id="arguments"),
        pytest.param(lambda limiter, ip: plan(limiter, {" ip ": ip}), id="arguments without a pattern"),
        pytest.param(lambda limiter, ip: by_head(limiter, scope_of(client=ip)), id="head"),
    ],
)
@pytest.mark.parametrize("by", ["ip", "global"])
def test_a_switch_that_is_thrown_while_a_plan_is_made_leaves_no_trace(engine, by, ask, word):
    limiter = engine({**ALL, "by": by})
    turn = limiter.engine.planner.switch.turn
    rules, plan_of = limiter.rules, limiter.rules.plan
    ask(limiter, "192.0.2.1")  # a plan, or a pattern, is remembered from the second time on

    def plan_and_throw(request, cost=1):
        charges = plan_of(request, cost)
        turn(Setting(word))
        return charges

    rules.plan = plan_and_throw
    ask(limiter, "192.0.2.1")
    rules.plan = plan_of
    turn(Setting("on"))
    for client in ("192.0.2.1", "192.0.2.2"):
        assert [each.shadow for each in ask(limiter, client).asks] == [False]


def test_the_plan_of_a_client_that_comes_once_is_not_remembered(engine):
    limiter = engine({**ALL, "by": "ip"})
    plans = limiter.rules.plans
    for n in range(9):
        by_head(limiter, scope_of(client=f"192.0.2.{n}"))
    assert len(plans) == 1  # the pattern
    by_head(limiter, scope_of(client="192.0.2.8"))
    assert len(plans) == 2
