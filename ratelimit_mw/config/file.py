"""The table of a rules file's words, the file's JSON Schema, and the compilation of a file to a rule set."""

from dataclasses import replace
from typing import Any

from ratelimit_mw.config import kinds
from ratelimit_mw.config.elsewhere import key_elsewhere
from ratelimit_mw.config.inline import InlineRules
from ratelimit_mw.config.tree import Map, Problems
from ratelimit_mw.config.word import Section, Values, Word, sections_word
from ratelimit_mw.config.words.client import (
    ATTRIBUTES,
    BY,
    CLIENT,
    IP_HEADER,
    TIER,
    TRUSTED_HOPS,
    TRUSTED_PROXIES,
    USER,
    compile_client,
)
from ratelimit_mw.config.words.deferral import DEFER, defer_settings
from ratelimit_mw.config.words.limit import LIMIT
from ratelimit_mw.config.words.limit_function import sample_of, with_function, with_sample
from ratelimit_mw.config.words.load import LOAD, priority_rules
from ratelimit_mw.config.words.match import (
    EXEMPT,
    MATCH,
    MATCH_SECTION,
    compile_match,
    validate_exempt,
)
from ratelimit_mw.config.words.messages import validate_replaced_kinds
from ratelimit_mw.config.words.observe import OBSERVE, observe_settings
from ratelimit_mw.config.words.overrides import OVERRIDES, Recompiler, compile_overrides
from ratelimit_mw.config.words.response import RESPONSE, response_settings, validate_header_names, validate_page
from ratelimit_mw.config.words.rule import RULE, compile_rule
from ratelimit_mw.config.words.selection import NAME, REPLACES, SHADOW_FILE, validate_names
from ratelimit_mw.config.words.storage import RELOAD, STORAGE, seconds, storage_settings
from ratelimit_mw.config.words.throttle import THROTTLE, widest
from ratelimit_mw.envoy.words import DESCRIPTORS, ENTRIES, compile_descriptors
from ratelimit_mw.identity.identifier import attributes_of
from ratelimit_mw.rules.compiled import CompiledRule, blocks_and_exemptions
from ratelimit_mw.rules.ruleset import RuleSet

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
    any_of=(("rules",), ("descriptors",)),
)
"""The words of a file."""

SHARED: tuple[Word[Any], ...] = (STORAGE, CLIENT, RESPONSE, LOAD, DEFER, RELOAD, OBSERVE)
"""If the rules are in several files, only one of the files may have each of these sections. It applies to all files."""


def read_file(tree: Map, problems: Problems) -> Values:
    """Return the values of a file. Errors are added to `problems`; the rest of the file is still read."""
    if "rules" not in tree.keys_at and "descriptors" not in tree.keys_at:
        problems.add(tree.place, "the key 'rules' is missing")
    return FILE.read(tree, problems, key_hint)


def key_hint(key: str, section: str) -> str:
    """Return the hint for a `key` that is unknown in `section` (its dotted name), but known in another section."""
    top = section.partition(".")[0].partition("[")[0]
    hint = key_elsewhere(key, "rules" if top == "rules" and "." not in section else section)
    if hint:
        return hint
    sections = {word.key: word.section() for word in (STORAGE, CLIENT, RESPONSE, DEFER)}
    if top == "rules":
        sections = {"match": MATCH_SECTION, **sections}
    elif not top or top in sections:
        sections = {"a rule: indent it": RULE, **sections}
    else:
        return ""
    return next((f"it is a key of {name}" for name, known in sections.items() if key in known.keys), "")


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
    client, attributes = compile_client(file, domain, problems, logged)
    warnings, without_user = Problems(), Problems()
    names: list[str] = []
    replacing: list[int] = []
    for rank, rule in enumerate(file[RULES]):
        names.append(rule[NAME])
        replacing += [rank] if rule[REPLACES] else []
    validate_names(file[RULES], names, replacing, problems)
    validate_exempt(file[EXEMPT], problems)
    validate_replaced_kinds(file[RULES], replacing, problems)
    ranks = {name: rank for rank, name in enumerate(names)}
    recompiler = Recompiler(domain)
    compiled: list[CompiledRule] = []
    for rank, rule in enumerate(file[RULES]):
        match = compile_match(rule[MATCH], attributes, problems)
        made = compile_rule(rank, with_sample(rule), file, domain, ranks, match, attributes, problems)
        recompiler.add(rule)
        made = with_function(made, rule, recompiler, attributes, problems)
        sample = sample_of(domain, rule, made)
        compiled.append(made if sample is None else replace(made, sample=sample))
        _warn_of_missing_tier(rule, file[CLIENT], warnings)
        _warn_of_missing_user(rule, file[CLIENT], without_user)
        _warn_of_ineffective_throttle(rule, made, warnings)
    _warn_of_unread_header(file, warnings)
    rules = tuple(compiled)
    exempt = tuple([compile_match(entry, attributes, problems) for entry in file[EXEMPT]])
    validate_page(file, problems)
    validate_header_names(file, problems)
    descriptors = compile_descriptors(file, domain, attributes, problems, warnings)
    overrides = compile_overrides(file[OVERRIDES], domain, file[RULES], attributes, problems)
    sections: dict[str, Any] = {
        "domain": domain,
        "storage": storage_settings(file),
        "client": client,
        "response": response_settings(file),
        "attributes": attributes,
        "exempt": exempt,
    }
    classifier = RuleSet(
        **sections, rules=priority_rules(rules, attributes), overrides=blocks_and_exemptions(overrides)
    )
    return RuleSet(
        **sections,
        rules=rules,
        load=file[LOAD],
        defer=defer_settings(file),
        overrides=overrides,
        classifier=classifier,
        recompiler=recompiler,
        inline=InlineRules(_settings_of(file), domain, attributes, len(rules)),
        reload=seconds(file[RELOAD]),
        observe=observe_settings(file),
        shadow=file[SHADOW_FILE],
        source=source,
        descriptors=descriptors,
        warnings=warnings.in_order(),
        without_user=without_user.in_order(),
    )


def _settings_of(file: Values) -> Values:
    """Return the values of a file without its lists, which are large and apply to no further rule."""
    for word in (RULES, EXEMPT, OVERRIDES, DESCRIPTORS, ENTRIES):
        file = file.with_value(word, word.default)
    return file.detached()


def _warn_of_unread_header(file: Values, warnings: Problems) -> None:
    """Warn about an `ip_header` that is not read, because no proxy is trusted."""
    client = file[CLIENT]
    own = file.has_key("client")  # several files share one section; one of them has it
    if own and IP_HEADER in client and not client[TRUSTED_PROXIES] and not client[TRUSTED_HOPS]:
        warnings.add(
            file.place("client", "ip_header"),
            "is never read, because no proxy is trusted",
            "set client.trusted_proxies or client.trusted_hops",
        )


def _warn_of_missing_tier(rule: Values, client: Values, warnings: Problems) -> None:
    """Warn about a limit by a tier that no request has. A call of `check()` can still pass it."""
    if rule[LIMIT].tiers is not None and client[TIER] is None:
        message = "depends on the tier, but client.tier is not set: every request has the default limit"
        warnings.add(rule.place("limit"), message)


def _warn_of_missing_user(rule: Values, client: Values, warnings: Problems) -> None:
    """Warn about a rule by user if no source for the user is set. Only some middlewares need one."""
    for index, entry in enumerate(rule[BY]):
        if client[USER] is None and "|" not in entry and "user" in attributes_of(entry):
            message = "counts by user, but client.user is not set: only Django's middleware knows the user"
            warnings.add(rule.place("by", index), message)


def _warn_of_ineffective_throttle(rule: Values, compiled: CompiledRule, warnings: Problems) -> None:
    """Warn about a throttle that adds less than one request to the limit, and so has no effect."""
    if rule[THROTTLE] is not None and not any(widest(quota).spare for quota in compiled.quotas):
        warnings.add(rule.place("throttle"), "has no effect: rounded down, it adds no request to the limit")


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a rules file."""
    sections: dict[str, Any] = {}
    FILE.as_schema(sections)
    file = sections.pop(FILE.title)
    return {"$schema": DIALECT, "title": "ratelimit_mw rules", **file, "$defs": sections}
