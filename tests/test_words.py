"""The reference of YAML words, docs/words.md, is made from the tables of words."""

import importlib.util
import re

import pytest

from ratelimit_mw.config.file import FILE
from ratelimit_mw.config.words.selection import BY_VALUES
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.settings import ClientSettings
from tests.support.apps import ROOT


def script():
    spec = importlib.util.spec_from_file_location("docs_words", ROOT / "docs" / "words.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words_page():
    return script().page()


def sections(section, found):
    """Every section of a rules file, by its title."""
    if section.title not in found:
        found[section.title] = section
        for word in section.words.values():
            if word.section is not None:
                sections(word.section, found)
    return found


def lines(title):
    """The words of a section of the page, each with its line."""
    part = words_page().partition(f"\n## {title}\n")[2].partition("\n##")[0]
    return {line.split("`")[1]: line for line in part.splitlines() if line.startswith("* `")}


def test_the_page_has_every_word_of_every_section_with_its_meaning():
    for title, section in sections(FILE, {}).items():
        found = lines(title)
        assert list(found) == [word.key for word in section.words.values()]
        for word in section.words.values():
            assert found[word.key].startswith(f"* `{word.key}`: {word.about} ({'**required**; ' * word.required}")


def test_the_page_has_the_values_of_by():
    attributes = Attributes(ClientSettings(domain="shop"))
    assert {*BY_VALUES, "remote_address"} == {*attributes.names(), "global", "route", "connection"}
    listed = words_page().partition("### What a rule")[2].partition("\n## ")[0]
    assert re.findall(r"^\* `([^`]+)`: ", listed, re.MULTILINE) == list(BY_VALUES)


def test_the_page_has_a_default_for_each_word_of_a_rule_that_is_not_required():
    assert [word for word, line in lines("Rule").items() if "**" not in line] == ["response"]


def test_the_page_links_to_sections_that_it_has():
    page = words_page()
    linked = set(re.findall(r"\]\(#([\w-]+)\)", page))
    assert linked == {title.lower() for title in sections(FILE, {})} - {"file"}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        pytest.param("shards", "a whole number from 1 to 64; **`1`**", id="after the values"),
        pytest.param("consistency", "**`strict`** `lease` `write_back`", id="among the values"),
    ],
)
def test_a_line_has_the_values_and_the_default_in_bold(word, value):
    assert lines("Rule")[word].endswith(f" ({value})")
