"""The catalogue of broken files in `broken/`: each text, and everything that is said of it, line by line.

A case begins with "== its name"; its expected messages, less the file's name, follow it after "-> ".
"""

from pathlib import Path

import pytest

from ratelimit_mw import ConfigurationError, RateLimiter
from tests.rules.corpus import problems_of
from tests.rules.living import limit_of
from tests.rules.living import text as good

CATALOGUE = sorted(Path(__file__).with_name("broken").glob("*.txt"))


def cases():
    for theme in CATALOGUE:
        for case in theme.read_text("utf-8").removeprefix("== ").split("\n\n== "):
            name, *lines = case.splitlines()
            text = "".join(f"{line}\n" for line in lines if not line.startswith("-> "))
            said = [f"r.yaml:{line.removeprefix('-> ')}" for line in lines if line.startswith("-> ")]
            yield pytest.param(text, said, id=f"{theme.stem}: {name}")


@pytest.mark.parametrize(("text", "said"), list(cases()))
def test_every_problem_is_said_at_its_place(text, said):
    assert said
    assert problems_of(text) == said


RULE = "domain: shop\nrules:\n  - name: a\n    limit: 5/s\n"


NOT_UTF8 = "not UTF-8: the byte {} can't be read (save the file as UTF-8)"
BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))])

WIDE = f"a: &a [{'x, ' * 1_000}]\nb: &b [{'*a, ' * 10}]\nc: [{'*b, ' * 60}]\n"


# What a text file can't well show.
@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "1:1: the file is empty (it needs at least domain and rules)", id="nothing"),
        pytest.param("domain: shop\nrules:\n\t- a\n", "3:1: a tab can't indent YAML (use spaces)", id="a tab"),
        pytest.param("a: b\n -\tc\n   \td: e\n", "a tab can't indent YAML (use spaces)", id="a tab after a dash"),
        pytest.param('a: b\u2028c: "d\n', "3:1: the text ends inside a quoted value", id="a line separator"),
        pytest.param('a: b\rc: "d\r', "3:1: the text ends inside a quoted value", id="carriage returns"),
        pytest.param("a: b\x07\n", "1:5: the character '\\x07' is not allowed in YAML", id="a control character"),
        pytest.param("a: b\nc: \ud800", f"2:4: {NOT_UTF8.format('0xed')}", id="a surrogate"),
        pytest.param(b"a: caf\xe9\n", f"1:7: {NOT_UTF8.format('0xe9')}", id="latin-1"),
        pytest.param("a: b".encode("utf-16"), f"1:1: {NOT_UTF8.format('0xff')}", id="UTF-16"),
        pytest.param("rules: " + "[" * 5_000 + "]" * 5_000, "1:57: nested more than 50 levels deep", id="5 000 deep"),
        pytest.param("rules: " + "[" * 5_000, "1:57: nested more than 50 levels deep", id="5 000 deep, never closed"),
        pytest.param("- " * 5_000, "1:101: nested more than 50 levels deep", id="5 000 lists in lists"),
        pytest.param("a: " * 5_000, "1:5: unexpected ':', which begins a value", id="keys in keys"),
        pytest.param(
            RULE + "    cost: " + "9" * 5_000, f"must be a whole number, not '{'9' * 59}…'", id="5 000 digits"
        ),
        pytest.param(BOMB, "more than 500000 values (an alias counts each time it is used)", id="an alias bomb"),
        pytest.param(WIDE, "more than 500000 values (an alias counts each time it is used)", id="a flat alias bomb"),
        pytest.param("a: " + "x" * 4 * 1024 * 1024, "larger than 4 MB", id="a file of more than 4 MB"),
    ],
)
def test_what_is_no_rules_file_is_refused_in_a_sentence(text, said):
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    assert said in "\n".join(problems_of(content))


def test_a_byte_order_mark_is_no_problem():
    assert problems_of(("\ufeff" + RULE).encode()) == []


def test_none_of_them_takes_the_place_of_good_rules_that_are_in_force(tmp_path, caplog, monkeypatch):
    """Hostile test 35: each broken file comes by a reload, and the last good rules stay until a good one comes."""
    monkeypatch.setattr("ratelimit_mw.reload.source.SETTLING", 0)
    file, new = tmp_path / "r.yaml", tmp_path / "r.new"
    file.write_text(good("5 per minute"))
    broken = [case.values[0] for case in cases()]
    assert len(broken) > 300
    with RateLimiter(file) as limiter:
        version = limiter.state.version
        for number, content in enumerate(broken):
            new.write_bytes(content.encode("utf-8", "surrogatepass"))
            new.replace(file)
            with pytest.raises(ConfigurationError):
                limiter.reload()
            assert (limit_of(limiter), limiter.state.version) == (5, version), number
            assert limiter.state.error
        new.write_text(good("6 per minute"))
        new.replace(file)
        limiter.reload()
        assert (limit_of(limiter), limiter.state.error) == (6, None)
    assert "Traceback" not in caplog.text
