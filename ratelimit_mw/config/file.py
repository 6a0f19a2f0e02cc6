"""The table of a rules file's words, the hints for keys in the wrong section, and the file's JSON Schema."""

from typing import Any

from ratelimit_mw.config import kinds
from ratelimit_mw.config.elsewhere import key_elsewhere
from ratelimit_mw.config.word import Section, Word, sections_word
from ratelimit_mw.config.words.client import ATTRIBUTES, CLIENT
from ratelimit_mw.config.words.load import LOAD
from ratelimit_mw.config.words.on_limit import DEFER
from ratelimit_mw.config.words.overrides import OVERRIDES
from ratelimit_mw.config.words.response import RESPONSE
from ratelimit_mw.config.words.rule import RULE
from ratelimit_mw.config.words.selection import (
    EXEMPT,
    MATCH_SECTION,
    SHADOW_FILE,
)
from ratelimit_mw.config.words.storage import OBSERVE, RELOAD, STORAGE
from ratelimit_mw.envoy.words import DESCRIPTORS, ENTRIES
from ratelimit_mw.stores import STORES

DOMAIN = kinds.name("domain", "The first part of every counter's key.")

RULES = sections_word(
    "rules",
    RULE,
    "The rules. Every rule that matches a request counts it.",
    example="a rule begins with '- name:'",
    packed=True,
)

FILE = Section(
    "File",
    "A rules file of ratelimit_mw.",
    (
        DOMAIN,
        STORAGE,
        CLIENT,
        ATTRIBUTES,
        RESPONSE,
        RELOAD,
        OBSERVE,
        SHADOW_FILE,
        LOAD,
        DEFER,
        EXEMPT,
        OVERRIDES,
        RULES,
        DESCRIPTORS,
        ENTRIES,
    ),
    any_of=("rules", "descriptors"),
)
"""The words of a file."""

SHARED: tuple[Word[Any], ...] = (STORAGE, CLIENT, RESPONSE, LOAD, DEFER, RELOAD, OBSERVE)
"""If the rules are in several files, only one of the files may have each of these sections. It applies to all files."""


def key_hint(key: str, section: str) -> str:
    """Return the hint for a `key` that is unknown in `section` (its dotted name), but known in another section."""
    top = section.partition(".")[0].partition("[")[0]
    hint = key_elsewhere(key, "rules" if top == "rules" and "." not in section else section)
    if hint:
        return hint
    sections = {word.key: word.section for word in (STORAGE, CLIENT, RESPONSE, DEFER) if word.section}
    if top == "rules":
        sections = {"match": MATCH_SECTION, **sections}
    elif not top or top in sections:
        sections = {"a rule: indent it": RULE, **sections}
    else:
        return ""
    return next((f"it is a key of {name}" for name, known in sections.items() if key in known.words), "")


_SCHEMES = "|".join(scheme for scheme, kind in STORES.items() if kind.decides)
_SERVICE = {"required": ["url"], "properties": {"url": {"pattern": rf"^(({_SCHEMES})://|\$\{{)"}}}
"""The schema of the storage of a file without rules: a service, or a variable that may name one."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a rules file."""
    sections: dict[str, Any] = {}
    FILE.as_schema(sections)
    file = sections.pop(FILE.title)
    file["anyOf"].append({"required": ["storage"], "properties": {"storage": _SERVICE}})
    return {"$schema": DIALECT, "title": "ratelimit_mw rules", **file, "$defs": sections}
