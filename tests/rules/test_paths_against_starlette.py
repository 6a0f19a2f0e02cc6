"""The matcher against Starlette's own: whatever its router would match, a rule matches."""

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.routing import compile_path

from ratelimit_mw.errors import Invalid
from ratelimit_mw.identity.path_forms import cleaned as clean
from ratelimit_mw.rules.path_matcher import PathMatcher
from ratelimit_mw.rules.path_templates import TYPES, parse, parts_of

words = st.sampled_from(["a", "b", "a.b", "-", ".", "..", "v1", "", "1", "é", "x\n"])
parameters = st.sampled_from(["{}", "{}", "{:int}", "{:float}", "{:uuid}", "{:path}", "{:str}"])
pieces = st.lists(st.one_of(words, parameters), min_size=0, max_size=4).map("".join)
templates = st.lists(pieces, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))

UUID = "0e0cbbd4-1a6d-4f23-9c5e-2f8f10a1b2c3"
values = st.sampled_from(
    ["a", "b", "1", "007", "1.5", "a.b", "v1", "-", ".", "..", "", UUID, "é", "x-1", "1-1", "x\n", "٣"]
)
paths = st.lists(st.lists(values, max_size=3).map("".join), max_size=5).map(lambda parts: "/" + "/".join(parts))


def named(template: str) -> str:
    """The template with a name in each of its parameters."""
    for index in range(template.count("{")):
        template = (
            template.replace("{:", f"{{p{index}:", 1)
            if "{:" in template
            else template.replace("{}", f"{{p{index}}}", 1)
        )
    return template


def plain(found):
    """The entries whose values are plain, with these values as they are in the path."""
    for entry, values in found:
        texts = [text for _, text in values]
        kinds = parts_of(entry.form).kinds
        if all(kind not in TYPES or TYPES[kind].is_plain(text) for kind, text in zip(kinds, texts, strict=True)):
            yield entry, texts


@settings(deadline=None)
@given(st.lists(templates.map(named), min_size=1, max_size=6), paths)
def test_finds_exactly_the_templates_that_starlette_matches_and_their_parameters(texts: list[str], path: str) -> None:
    known = []
    for text in texts:
        try:
            known.append(parse(text))
        except Invalid:
            continue
    matcher = PathMatcher(enumerate(known))
    found: dict[int, list[dict[str, str]]] = {}
    for entry, values in plain(matcher.find(path)):
        found.setdefault(entry.owner, []).append(dict(zip(entry.names, values, strict=True)))
    for owner, template in enumerate(known):
        pattern, _, _ = compile_path(template)
        # `.` stops at a line feed and `$` stands before one; both are looked at on their own below.
        match = pattern.fullmatch(path) if "\n" not in path else None
        if match is not None:
            assert match.groupdict() in found[owner]
        elif "\n" not in path and clean(template) == template:
            assert owner not in found


VALUES = st.text("ab1.-é", min_size=1, max_size=5)


@settings(deadline=None)
@given(st.data())
def test_two_parameters_are_divided_as_starlette_divides_them(data):
    before, after = (data.draw(st.text("ab.-1", max_size=2)) for _ in range(2))
    between = data.draw(st.text("ab.-1", min_size=1, max_size=2))
    text = f"/{before}{{x}}{between}{{y}}{after}"
    path = f"/{before}{data.draw(VALUES)}{between}{data.draw(VALUES)}{after}"
    template = parse(text)
    for tried in (path, path + data.draw(st.text("ab1.-", max_size=2))):
        match = compile_path(text)[0].fullmatch(tried)
        names = parts_of(template).names
        found = [dict(zip(names, values, strict=True)) for _, values in plain(PathMatcher([(0, template)]).find(tried))]
        assert found == ([match.groupdict()] if match else [])


@settings(deadline=None)
@given(st.lists(st.sampled_from(["", "a", ".", "..", "...", "é", "\0", ".a", "\udcff"]), max_size=8))
def test_the_cleaned_form_is_what_the_segments_resolve_to(segments: list[str]) -> None:
    path = "/" + "/".join(segments)
    expected: list[str] = []
    for segment in segments:
        if segment == "..":
            expected[-1:] = []
        elif segment not in ("", "."):
            expected.append(segment)
    assert clean(path) == "/" + "/".join(expected)
    assert clean(clean(path)) == clean(path)
