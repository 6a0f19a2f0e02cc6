"""What `ratelimit-mw check` warns of: the catalogue in warned.txt, and that it never warns wrongly."""

from contextlib import chdir
from itertools import product
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ratelimit_mw.algorithms import DECIDE_ALL
from ratelimit_mw.cli.lint import check, covers, never_full
from ratelimit_mw.model import SECOND, Quota
from ratelimit_mw.rules.compiled import Matching
from ratelimit_mw.rules.path_matcher import PathMatcher
from ratelimit_mw.rules.path_templates import parse
from tests.rules.corpus import request

CATALOGUE = Path(__file__).with_name("warned.txt")


def cases():
    for case in CATALOGUE.read_text("utf-8").removeprefix("== ").split("\n\n== "):
        name, *lines = case.splitlines()
        text = "".join(f"{line}\n" for line in lines if not line.startswith("-> "))
        said = [f"r.yaml:{line.removeprefix('-> ')}" for line in lines if line.startswith("-> ")]
        yield pytest.param(text, said, id=name)


@pytest.mark.parametrize(("text", "said"), list(cases()))
def test_every_warning_is_said_at_its_place(text, said, tmp_path):
    (tmp_path / "r.yaml").write_text(text, "utf-8")
    with chdir(tmp_path):
        found = check("r.yaml", environ={})
    assert found.problems == ()
    assert [str(warning) for warning in found.warnings] == said


def test_rules_given_in_code_are_compared_too():
    rules = [{"name": name, "limit": "5 per minute"} for name in "ab"]
    assert [str(warning) for warning in check({"domain": "d", "rules": rules}).warnings] == [
        "rules[1].limit: 5 per minute can never deny: 5 per minute of 'a' always denies first"
    ]


def test_what_would_not_load_is_not_compared():
    found = check({"domain": "d", "rules": [{"name": "a", "limit": "5 per minit"}]})
    assert (found.rules, len(found.problems), found.warnings) == (None, 1, ())


@st.composite
def quotas(draw):
    algorithm = draw(st.sampled_from(["fixed_window", "sliding_window", "sliding_log", "bucketed_window"]))
    limit, seconds = draw(st.integers(0, 6)), draw(st.sampled_from([1, 2, 3, 4, 6]))
    return Quota(algorithm, limit, seconds * SECOND, 0, draw(st.sampled_from([2, 60])))


STEPS = st.lists(st.tuples(st.integers(0, 2_500_000), st.integers(1, 2)), min_size=20, max_size=60)


@settings(max_examples=40)
@given(quotas(), quotas(), st.integers(1, 8), STEPS)
def test_a_limit_that_never_fills_never_denies_what_the_stricter_one_admits(quota, stricter, factor, steps):
    quota = Quota(quota.algorithm, quota.limit * factor, quota.period, 0, quota.buckets)
    assume(never_full(quota, stricter))
    now, states = 1_700_000_000 * SECOND, [b"", b""]
    for wait, cost in steps:
        now += wait
        if DECIDE_ALL[stricter.algorithm](states[1], stricter, cost, now)[0].allowed:
            for place, each in enumerate((quota, stricter)):
                outcome, state = DECIDE_ALL[each.algorithm](states[place], each, cost, now)
                assert outcome.allowed
                states[place] = state or states[place]


@pytest.mark.parametrize(
    "stricter",
    [
        pytest.param(Quota("token_bucket", 1, SECOND, 1), id="of another kind"),
        pytest.param(Quota("fixed_window", 1, SECOND, consistency="lease"), id="counted in shares"),
        pytest.param(Quota("fixed_window", 1, SECOND, shards=2), id="spread over several keys"),
    ],
)
def test_what_is_not_known_to_be_stricter(stricter):
    assert not never_full(Quota("fixed_window", 1_000, SECOND), stricter)
    assert not never_full(stricter, Quota("fixed_window", 0, SECOND))


PIECES = ["a", "7", "{}", "{:int}", "a{}", "{:float}", "{}-b", ""]
TAILS = ["", "/*", "/{:path}", "/x{:path}", "/{:path}/a"]
NARROWER = {"{}": PIECES, "{:int}": ["7"], "a{}": ["a{}", "a7"]}


def template(pieces, tail):
    text = "/" + "/".join(pieces) + tail
    return parse("".join(f"{{p{n}" if sign == "{" else sign for n, sign in enumerate(text)))


@st.composite
def two_templates(draw):
    """Two templates, of which the second often matches less than the first."""
    pieces, tail = draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3)), draw(st.sampled_from(TAILS))
    narrower = [draw(st.sampled_from([piece, *NARROWER.get(piece, ())])) for piece in pieces]
    more = draw(st.lists(st.sampled_from(PIECES), max_size=1)) if tail else []
    return template(pieces, tail), template([*narrower, *more], draw(st.sampled_from([tail, "", *TAILS])))


SEGMENTS = ["a", "b", "7", "a7", "xa", "7-b", ""]
PATHS = ["/" + "/".join(path) for length in (1, 2, 3) for path in product(SEGMENTS, repeat=length)]


@given(two_templates())
def test_a_match_within_another_matches_nothing_else(templates):
    wider, narrower = templates
    assume(covers(Matching((wider,)), Matching((narrower,))))
    both = PathMatcher([(1, wider), (2, narrower)])
    for path in PATHS:
        assert {owner for owner, *_ in both.hits(request(path))} in ({1, 2}, {1}, set())


def test_a_header_is_warned_of_once_if_several_files_share_their_client(tmp_path):
    (tmp_path / "a.yaml").write_text("domain: a\nclient: {ip_header: X-Real-IP}\nrules: [{name: a, limit: 5/s}]\n")
    (tmp_path / "b.yaml").write_text("domain: b\nrules: [{name: b, limit: 5/s}]\n")
    [warning] = check(tmp_path, environ={}).warnings
    assert str(warning).startswith(f"{tmp_path}/a.yaml:2:21: client.ip_header: is never read")
