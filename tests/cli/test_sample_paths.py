"""Paths that some templates match and others do not, against the matching of requests."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.cli.coverage import meets, sample_paths
from ratelimit_mw.rules.path_matcher import PathMatcher
from ratelimit_mw.rules.path_templates import parse
from tests.rules.corpus import request

SEGMENTS = (
    "a",
    "1",
    "{p}",
    "{p:int}",
    "{p:float}",
    "{p:uuid}",
    "a{p}",
    "{p}a",
    "{p}.{q}",
    "{p:int}1",
    "v{p:float}",
)
TAILS = ("", "", "/*", "/{rest:path}", "/a{rest:path}", "/{rest:path}/a", "/{rest:path}.x")
WORDS = ("a", "x", "1", "a1", "1.1", "x.x", "v1", "00000000-0000-4000-8000-000000000000", "xa")
PATHS = ["/", *("/" + "/".join(words) for count in (1, 2, 3) for words in product(WORDS, repeat=count))]


@st.composite
def templates(draw):
    pieces = draw(st.lists(st.sampled_from(SEGMENTS), max_size=3))
    named = [piece.replace("{p", f"{{p{n}").replace("{q", f"{{q{n}") for n, piece in enumerate(pieces)]
    return parse("".join(f"/{piece}" for piece in named) + draw(st.sampled_from(TAILS)) or "/")


def matching(path, *given):
    """Which of the templates match the path, as requests are matched."""
    return [any(hit.strict for hit in PathMatcher([(0, template)]).hits(request(path))) for template in given]


@given(templates(), templates(), templates())
def test_each_sample_is_matched_by_its_set_of_templates(route, one, other):
    for held, path in sample_paths(route, (one, other)).items():
        assert matching(path, route, one, other) == [True, bool(held & 1), bool(held & 2)]


@given(templates(), templates(), templates(), st.lists(st.sampled_from(PATHS), min_size=20, max_size=20))
def test_there_is_a_sample_for_each_set_of_templates_that_a_path_matches(route, one, other, paths):
    samples = sample_paths(route, (one, other))
    for path in paths:
        inside, *held = matching(path, route, one, other)
        assert not inside or held[0] + 2 * held[1] in samples


@pytest.mark.parametrize(
    ("route", "template", "samples"),
    [
        ("/", "/*", {1: "/"}),
        ("/items/{id}", "/items/{number:int}", {0: "/items/x", 1: "/items/1"}),
        ("/items/{number:int}", "/items/{id}", {1: "/items/1"}),
        ("/items/{number:float}", "/items/{number:int}", {0: "/items/1.1", 1: "/items/1"}),
        ("/files/*", "/files/{rest:path}", {0: "/files", 1: "/files/x"}),
        ("/files/{rest:path}", "/files/*", {1: "/files/x"}),
        ("/a/*", "/{b}/c/*", {0: "/a", 1: "/a/c"}),
        ("/items/", "/items", {1: "/items"}),  # one cleaned form
    ],
)
def test_the_samples_are_the_shortest_paths(route, template, samples):
    assert sample_paths(parse(route), (parse(template),)) == samples
    assert meets(parse(route), parse(template)) == (1 in samples)
