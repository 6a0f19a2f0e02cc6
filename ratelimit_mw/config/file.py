"""The table of a rules file's words, the file's JSON Schema, and the compilation of a file to a rule set."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ratelimit_mw.config import kinds
from ratelimit_mw.config.at_runtime import Recompiler, sample_of, with_function, with_sample
from ratelimit_mw.config.elsewhere import key_elsewhere
from ratelimit_mw.config.tree import Map, Problems, pack
from ratelimit_mw.config.word import Section, Values, Word, sections_word
from ratelimit_mw.config.words.client import ATTRIBUTES, BY, CLIENT, compile_client
from ratelimit_mw.config.words.deferral import DEFER
from ratelimit_mw.config.words.limit import LIMIT
from ratelimit_mw.config.words.load import LOAD
from ratelimit_mw.config.words.overrides import OVERRIDES, compile_overrides
from ratelimit_mw.config.words.response import RESPONSE
from ratelimit_mw.config.words.rule import RULE, compile_rule
from ratelimit_mw.config.words.selection import (
    EXEMPT,
    MATCH,
    MATCH_SECTION,
    NAME,
    SHADOW_FILE,
    compile_match,
    validate_exempt,
    validate_names,
)
from ratelimit_mw.config.words.storage import OBSERVE, RELOAD, STORAGE
from ratelimit_mw.config.words.throttle import THROTTLE
from ratelimit_mw.envoy.words import DESCRIPTORS, ENTRIES, compile_descriptors
from ratelimit_mw.identity.identifier import choices_of
from ratelimit_mw.model import Rule
from ratelimit_mw.rules.compiled import CompiledRule, blocks_and_exemptions, priority_rules
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.settings import ClientSettings

DOMAIN = kinds.name("domain", "The first part of every counter's key.")

RULES = sections_word(
    "rules",
    lambda: RULE,
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


def read_file(tree: Map, problems: Problems) -> Values:
    """Return the values of a file. Errors are added to `problems`; the rest of the file is still read."""
    found: Values = problems.read(FILE.read, tree, FILE.default())
    problems.with_key_hints(_key_hint)
    return found


def _key_hint(key: str, section: str) -> str:
    """Return the hint for a `key` that is unknown in `section` (its dotted name), but known in another section."""
    top = section.partition(".")[0].partition("[")[0]
    hint = key_elsewhere(key, "rules" if top == "rules" and "." not in section else section)
    if hint:
        return hint
    sections = {word.key: word.section() for word in (STORAGE, CLIENT, RESPONSE, DEFER) if word.section}
    if top == "rules":
        sections = {"match": MATCH_SECTION, **sections}
    elif not top or top in sections:
        sections = {"a rule: indent it": RULE, **sections}
    else:
        return ""
    return next((f"it is a key of {name}" for name, known in sections.items() if key in known.words), "")


def compile_file(
    file: Values, problems: Problems, *, source: str | None = None, logged: set[str] | None = None
) -> RuleSet:
    """Return the rule set of a file.

    Args:
        file: The values of the file.
        problems: Receives the errors. If there is one, the result must not be used.
        source: The URL of the rules database, if the rules are not in the file itself.
        logged: The messages that were logged before, and are not logged again.
    """
    domain = file[DOMAIN]
    client, attributes = compile_client(file, domain, logged)
    warnings, without_user = Problems(), Problems()
    rules: Sequence[Values] = file[RULES]
    validate_names(rules, problems)
    validate_exempt(file[EXEMPT], problems)
    base = Rule("", file[STORAGE].on_error, file[SHADOW_FILE], domain=domain)
    ranks = {rule[NAME]: rank for rank, rule in enumerate(rules)}
    packed: dict[str, bytes] = {}
    recompiler = Recompiler(base, attributes, packed)
    compiled: list[CompiledRule] = []
    for rank, rule in enumerate(rules):
        match = compile_match(rule[MATCH], attributes, problems)
        packed[rule[NAME]] = pack(rule.detached())
        if rule[LIMIT].function:
            made = compile_rule(rank, with_sample(rule), base, ranks, match, attributes, problems)
            made = with_function(made, rule, recompiler, attributes, problems)
        else:
            made = compile_rule(rank, rule, base, ranks, match, attributes, problems)
            # Another limit may have effects that a limit of 0 has not, or one so low that the throttle adds nothing.
            if rule[THROTTLE] is not None or not any(quota.limit for quota in made.quotas):
                made = replace(made, sample=sample_of(domain, rule))
        compiled.append(made)
        _warn_of_missing_tier(rule, client, warnings)
        if made.identifiers:  # otherwise `by` may be a text that cannot be read
            _warn_of_missing_user(rule, client, without_user)
        _warn_of_ineffective_throttle(rule, made, warnings)
    _warn_of_unread_header(file, client, warnings)
    exempt = tuple([compile_match(entry, attributes, problems) for entry in file[EXEMPT]])
    described = file.differs(DESCRIPTORS) or file.differs(ENTRIES)
    descriptors = compile_descriptors(file, domain, attributes, problems, warnings) if described else None
    listed = file[OVERRIDES]
    overrides = compile_overrides(listed, domain, rules, attributes, problems) if listed else ()
    sections: dict[str, Any] = {
        "domain": domain,
        "storage": file[STORAGE],
        "client": client,
        "response": file[RESPONSE],
        "attributes": attributes,
        "recompiler": recompiler,
        "exempt": exempt,
    }
    classifier = RuleSet(
        **sections, rules=priority_rules(compiled, attributes), overrides=blocks_and_exemptions(overrides)
    )
    return RuleSet(
        **sections,
        rules=tuple(compiled),
        load=file[LOAD],
        defer=file[DEFER],
        overrides=overrides,
        classifier=classifier,
        reload=file[RELOAD],
        observe=file[OBSERVE],
        shadow=file[SHADOW_FILE],
        source=source,
        descriptors=descriptors,
        warnings=warnings.in_order(),
        without_user=without_user.in_order(),
    )


def _warn_of_unread_header(file: Values, client: ClientSettings, warnings: Problems) -> None:
    """Warn about an `ip_header` that is not read, because no proxy is trusted."""
    if file.has_key("client", "ip_header") and not client.trusted_proxies and not client.trusted_hops:
        warnings.add(
            file.place("client", "ip_header"),
            "is never read, because no proxy is trusted",
            "set client.trusted_proxies or client.trusted_hops",
        )


def _warn_of_missing_tier(rule: Values, client: ClientSettings, warnings: Problems) -> None:
    """Warn about a limit by a tier that no request has. A call of `check()` can still pass it."""
    if rule[LIMIT].tiers is not None and client.tier is None:
        message = "depends on the tier, but client.tier is not set: every request has the default limit"
        warnings.add(rule.place("limit"), message)


def _warn_of_missing_user(rule: Values, client: ClientSettings, warnings: Problems) -> None:
    """Warn about a rule by user if no source for the user is set. Only some middlewares need one."""
    for index, entry in enumerate(rule[BY]):
        if client.user is None and all("user" in names for names in choices_of(entry)):
            message = "counts by user, but client.user is not set: only Django's middleware knows the user"
            warnings.add(rule.place("by", index), message)


def _warn_of_ineffective_throttle(rule: Values, compiled: CompiledRule, warnings: Problems) -> None:
    """Warn about a throttle that adds less than one request to the limit, and so has no effect."""
    if rule.differs(THROTTLE) and not any(quota.widest.spare for quota in compiled.quotas):
        warnings.add(rule.place("throttle"), "has no effect: rounded down, it adds no request to the limit")


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a rules file."""
    sections: dict[str, Any] = {}
    FILE.as_schema(sections)
    file = sections.pop(FILE.title)
    return {"$schema": DIALECT, "title": "ratelimit_mw rules", **file, "$defs": sections}
