"""The table of a rules file's words, the hints for keys of other sections and limiters, and the file's JSON Schema."""

from typing import Any

from ratelimit_mw.config import kinds
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


_TOGETHER = "write the number and the time in one text, for example limit: 100 per minute"
_DOMAIN = "the domain is the first part of every key"

_KEYS: tuple[tuple[str, str, str], ...] = (
    ("", "enabled ratelimit_enabled", "to disable all rules, start the app with RATELIMIT_MW=off"),
    ("", "strategy ratelimit_strategy", "each rule has its algorithm"),
    ("", "headers_enabled ratelimit_headers_enabled", "write response: {headers: […]}"),
    ("", "key_prefix ratelimit_key_prefix prefix", _DOMAIN),
    ("storage", "type host port db password", "write them as url: redis://:password@host:6379/0"),
    ("storage", "prefix key_prefix", _DOMAIN),
    ("storage", "uri redis redis_url storage_uri", "did you mean 'url'?"),
    ("client", "ip", "write the header as ip_header, for example X-Forwarded-For, and your proxies as trusted_proxies"),
    ("rules", "max requests average capacity window windowms window_ms period per interval", _TOGETHER),
    ("rules", "duration unit second minute hour day", _TOGETHER),
    ("rules", "url uri route endpoint location", "write the path under match, for example match: {path: /login}"),
    ("rules", "method", "write the methods under match, for example match: {methods: [POST]}"),
    (
        "rules",
        "nodelay delay",
        "a token_bucket admits its burst at once, a leaky_bucket spreads it: write one of them as algorithm",
    ),
    (
        "rules",
        "enabled disabled skip dry_run block",
        "a rule is always enforced, unless it has shadow: true; to disable it, remove it",
    ),
    ("rules", "error_message", "write it under response, for example response: {message: Slow down}"),
    (
        "rules",
        "exempt exclude whitelist allowlist",
        "it belongs to the file, not to a rule: write exempt: [{path: /health}] beside rules",
    ),
)
"""The section ("" is the file), keys of other limiters, and the hint."""

_HINTS = {(section, key): hint for section, keys, hint in _KEYS for key in keys.split()}


def key_hint(key: str, section: str) -> str:
    """Return the hint for a `key` that is unknown in `section` (its dotted name), but known elsewhere. "" for none."""
    top = section.partition(".")[0].partition("[")[0]
    other = "rules" if top == "rules" and "." not in section else section, key.lower()
    if other in _HINTS:
        return _HINTS[other]
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
