"""Paths that some templates match and others do not, against the matching of requests."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.cli.sample_paths import sample_path
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


@given(templates(), templates())
def test_a_sample_is_matched_by_the_templates_within_and_not_by_those_outside(one, other):
    both, only = sample_path((one, other)), sample_path((one,), (other,))
    assert both is None or matching(both, one, other) == [True, True]
    assert only is None or matching(only, one, other) == [True, False]


@given(templates(), templates(), st.lists(st.sampled_from(PATHS), min_size=20, max_size=20))
def test_there_is_a_sample_if_there_is_a_path(one, other, paths):
    both, only = sample_path((one, other)), sample_path((one,), (other,))
    found = [matching(path, one, other) for path in paths]
    assert both is not None or [True, True] not in found
    assert only is not None or [True, False] not in found


@pytest.mark.parametrize(
    ("within", "outside", "path"),
    [
        (["/"], [], "/"),
        (["/items/{id}"], [], "/items/x"),
        (["/items/{id}", "/items/{number:int}"], [], "/items/1"),
        (["/items/{id}"], ["/items/{number:int}"], "/items/x"),
        (["/items/{number:int}"], ["/items/{id}"], None),
        (["/items/{number:float}"], ["/items/{number:int}"], "/items/1.1"),
        (["/files/*"], ["/files/{rest:path}"], "/files"),
        (["/files/{rest:path}"], ["/files/*"], None),
        (["/a/*", "/{b}/c/*"], [], "/a/c"),
        (["/{a}/{b}"], ["/x/{b}", "/{a}/x"], "/1/1"),
        (["/items/"], ["/items"], None),  # one cleaned form
    ],
)
def test_the_sample_is_the_shortest_path(within, outside, path):
    assert sample_path(tuple(map(parse, within)), tuple(map(parse, outside))) == path
