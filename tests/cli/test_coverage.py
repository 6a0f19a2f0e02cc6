"""Which rules apply to a route, against the plans of requests to its paths."""

from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.cli.lint import meets
from ratelimit_mw.cli.routes import covered
from ratelimit_mw.rules.path_matcher import PathMatcher
from ratelimit_mw.rules.path_templates import parse
from tests.rules.corpus import request
from tests.support.rules import load_rules

TEMPLATES = ("/*", "/a/*", "/a/{p}", "/a/{p:int}", "/{p}/b", "/{p}/{q}", "/a/b", "/a", "/{p:int}/*", "/a/{p:path}")
ROUTES = (*TEMPLATES, "/", "/a/", "/a/{p}/")
WORDS = ("a", "b", "x", "1")
PATHS = ["/", *("/" + "/".join(words) for count in (1, 2, 3) for words in product(WORDS, repeat=count))]
PATHS += [f"{path}/" for path in PATHS[1:]]


def rules(*listed, exempt=()):
    return load_rules(
        {
            "domain": "d",
            "client": {"secret": "s", "user": "header:X-User"},
            "exempt": list(exempt),
            "rules": [{"limit": "5 per minute", **rule} for rule in listed],
        }
    )


@st.composite
def rule_sets(draw):
    match = st.fixed_dictionaries(
        {"path": st.sampled_from(TEMPLATES)}, optional={"methods": st.sampled_from([["GET"], ["POST"]])}
    )
    matches = draw(st.lists(match, min_size=1, max_size=3))
    listed = [{"name": f"r{n}", "match": match} for n, match in enumerate(matches)]
    for n, rule in enumerate(listed):
        if n and draw(st.booleans()):
            rule["replaces"] = [f"r{n - 1}"]
    return rules(*listed, {"name": "all"}, exempt=draw(st.lists(match, max_size=1)))


def served(route, path):
    """Whether the route serves the path. Routes that end with /* serve the folder with a slash at its end."""
    folder = route.endswith("/*") and path.count("/") <= route.count("/")
    slash = folder or route.endswith("/")
    short = folder and path.count("/") < route.count("/")
    return path.endswith("/") == slash and not short and meets(parse(path), parse(route))


@cache
def paths_of(route):
    return [path for path in PATHS if served(route, path)]


@given(rule_sets(), st.sampled_from(ROUTES), st.sampled_from(["GET", "POST"]))
def test_plans_agree_with_the_rules_of_a_route(found, route, method):
    asked = covered(found, parse(route), method)
    reported = asked or []
    whole = {each.rule for each in reported if each.covers == "all"}
    for path in paths_of(route):
        request = found.attributes.request_from({"path": path, "method": method, "ip": "192.0.2.1"})
        planned = [charge.rule.name for charge in found.plan(request)]
        assert [each.rule for each in reported if each.rule in planned] == planned
        assert whole <= {*planned}
        assert not (asked is None and planned)


def said(found, route, method="GET", **options):
    return [(each.rule, each.covers) for each in covered(found, parse(route), method, **options)]


def test_a_rule_that_replaces_for_users_alone_leaves_the_other_a_part():
    found = rules({"name": "all"}, {"name": "users", "by": "user", "replaces": "all"})
    assert said(found, "/") == [("all", "some"), ("users", "all")]


def test_conditions_may_hold():
    match = {"path": "/a", "header:X-Plan": ["gold", "silver"], "ip": "10.0.0.0/8"}
    found = rules({"name": "all"}, {"name": "plan", "match": match, "replaces": "all"})
    assert said(found, "/a") == [("all", "some"), ("plan", "some")]
    assert said(found, "/b") == [("all", "all")]


def test_a_part_that_is_exempt_makes_rules_partial():
    found = rules({"name": "all"}, exempt=[{"path": "/a/health"}])
    assert said(found, "/a/{name}") == [("all", "some")]
    assert covered(found, parse("/a/health"), "GET") is None


def test_rules_of_messages_apply_to_websockets_alone():
    found = rules({"name": "all"}, {"name": "talk", "messages": "close"})
    assert said(found, "/a") == [("all", "all")]
    assert said(found, "/a", websocket=True) == [("all", "all"), ("talk", "all")]


@pytest.mark.parametrize(("method", "names"), [("GET", ["read"]), ("HEAD", ["read"]), ("POST", ["write"])])
def test_methods_choose_rules(method, names):
    found = rules(
        {"name": "read", "match": {"path": "/a", "methods": ["GET"]}},
        {"name": "write", "match": {"path": "/a", "methods": ["POST"]}},
        {"name": "asked", "on_demand": True},
    )
    assert [name for name, *_ in said(found, "/a", method)] == names


SEGMENTS = ("a", "1", "{p}", "{p:int}", "{p:float}", "{p:uuid}", "a{p}", "{p}a", "{p}.{q}", "{p:int}1", "v{p:float}")
TAILS = ("", "", "/*", "/{rest:path}", "/a{rest:path}", "/{rest:path}/a", "/{rest:path}.x")
TEXTS = ("a", "x", "1", "a1", "1.1", "x.x", "v1", "00000000-0000-4000-8000-000000000000", "xa")
MANY_PATHS = ["/", *("/" + "/".join(texts) for count in (1, 2, 3) for texts in product(TEXTS, repeat=count))]


@st.composite
def templates(draw):
    pieces = draw(st.lists(st.sampled_from(SEGMENTS), max_size=3))
    named = [piece.replace("{p", f"{{p{n}").replace("{q", f"{{q{n}") for n, piece in enumerate(pieces)]
    return parse("".join(f"/{piece}" for piece in named) + draw(st.sampled_from(TAILS)) or "/")


def matched(path, template):
    """Whether the template matches the path with plain values, as requests are matched."""
    return any(strict for *_, strict in PathMatcher([(0, template)]).hits(request(path)))


@given(templates(), templates(), st.lists(st.sampled_from(MANY_PATHS), min_size=20, max_size=20))
def test_templates_that_match_one_path_meet(one, other, paths):
    for path in paths:
        assert meets(one, other) or not (matched(path, one) and matched(path, other))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("/", "/*", True),
        ("/items/", "/items", True),  # one cleaned form
        ("/files/*", "/files/{rest:path}", True),
        ("/a/*", "/{b}/c/*", True),
        ("/v{n}", "/{n}.json", True),
        ("/items/{number:int}", "/items/{id:uuid}", False),
        ("/items/{number:int}", "/items/x", False),
        ("/items", "/items/{id}", False),
        ("/files/{rest:path}", "/files", False),
        ("/{rest:path}.css", "/x.js", False),
    ],
)
def test_whether_two_templates_meet(one, other, expected):
    assert (meets(parse(one), parse(other)), meets(parse(other), parse(one))) == (expected, expected)
