"""Loads a configuration: returns the compiled rules, or raises with every problem that was found.

A configuration is a file, a folder of files, or a mapping from code. Each becomes a `Document`, a tree (`yaml`, or
`tree.convert`), the values of its words (`file.FILE`), and a rule set.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ratelimit_mw.config.file import DOMAIN, FILE, RULES, SHARED, key_hint
from ratelimit_mw.config.tree import Items, Map, Node, Place, Problems, convert, kind, pack
from ratelimit_mw.config.word import Values
from ratelimit_mw.config.words.client import ATTRIBUTES, CLIENT
from ratelimit_mw.config.words.limit import LIMIT
from ratelimit_mw.config.words.load import LOAD
from ratelimit_mw.config.words.on_limit import DEFER
from ratelimit_mw.config.words.overrides import (
    OVERRIDES,
    Recompiler,
    compile_overrides,
    sample_of,
    with_function,
    with_sample,
)
from ratelimit_mw.config.words.response import RESPONSE
from ratelimit_mw.config.words.rule import compile_rule
from ratelimit_mw.config.words.selection import (
    EXEMPT,
    MATCH,
    NAME,
    SHADOW,
    SHADOW_FILE,
    compile_match,
    validate_exempt,
    validate_names,
)
from ratelimit_mw.config.words.storage import OBSERVE, RELOAD, STORAGE, names_service, take_source
from ratelimit_mw.config.words.throttle import THROTTLE
from ratelimit_mw.envoy.words import DESCRIPTORS, ENTRIES, compile_descriptors
from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.model import Rule
from ratelimit_mw.rules.asking import MOST_ATTRIBUTES, AskingRules
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.settings import ClientSettings
from ratelimit_mw.stores import STORES

LARGEST = 4 * 1024 * 1024
"""The largest size of a file, in bytes. A thousand rules take a quarter of a megabyte."""

SUFFIXES = (".yaml", ".yml")
"""The suffixes of the files that are read in a folder. Hidden files are skipped."""

Config = str | os.PathLike[str] | Mapping[str, object]


class Document(NamedTuple):
    """The content of one rules file, and the file's name in messages. The name of a mapping is ""."""

    name: str
    content: bytes | Mapping[str, object]


def gather(config: Config, problems: Problems) -> list[Document]:
    """Return the documents of `config`. A file that cannot be read is added to `problems`."""
    if isinstance(config, Mapping):
        return [Document("", config)]
    path = os.fspath(config)
    if "://" in path:
        # Only the scheme is shown, because the rest may contain a password.
        scheme = path.partition("://")[0]
        problems.add(Place(), f"rules are not read from a {scheme}:// address", "a file, a folder or redis://")
        return []
    files = files_in(path)
    if files == []:
        problems.add(Place(file=path), "no rules files in this folder", f"their names end in {' or '.join(SUFFIXES)}")
    found = [path] if files is None else files
    return [document for file in found if (document := _read(file, problems)) is not None]


def files_in(path: str) -> list[str] | None:
    """Return the rules files of a folder, sorted by name. None if `path` is not a folder."""
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries]
    except (OSError, ValueError):
        return None
    return [str(Path(path, name)) for name in sorted(names) if name.endswith(SUFFIXES) and not name.startswith(".")]


def _read(file: str, problems: Problems) -> Document | None:
    try:
        with Path(file).open("rb") as stream:
            return Document(file, stream.read(LARGEST + 1))
    except OSError as error:
        message = f"can't read the rules file: {error.strerror or error}"
        problems.add(Place(file=file), message, "a path to a YAML file")
    except ValueError as error:
        problems.add(Place(), f"not a path: {error}")
    return None


def parse(document: Document, environ: Mapping[str, str], problems: Problems) -> Node | None:
    """Return the tree of a document. None if it has none; the reason is then added to `problems`."""
    file, content = document
    if isinstance(content, Mapping):
        return convert(content, environ, problems)
    text = _decoded(file, content, problems)
    if text is None:
        return None
    from ratelimit_mw.config import yaml  # imported here because PyYAML is not needed for a mapping

    tree = yaml.parse(text, file, environ, problems)
    if tree is None and not problems:
        problems.add(Place(file=file, line=1, column=1), "the file is empty", "it needs at least domain and rules")
    return tree


def _decoded(file: str, content: bytes, problems: Problems) -> str | None:
    place = Place(file=file)
    if len(content) > LARGEST:
        problems.add(place, f"larger than {LARGEST // 2**20} MB")
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        message = f"not UTF-8: the byte 0x{content[error.start]:02x} can't be read"
        problems.add(place._replace(line=line, column=column), message, "save the file as UTF-8")
        return None


class Examined(NamedTuple):
    """The result of examining a configuration: its rules (None if it has problems), its problems and its warnings."""

    rules: Rules | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()
    files: Sequence[tuple[Values, RuleSet]] = ()
    """The values of each file, and its rules. Empty if there are problems."""


_KEYS_BESIDE_A_SOURCE = ("domain", *(word.key for word in SHARED), "rules")


def load_documents(
    documents: Sequence[Document],
    *,
    environ: Mapping[str, str] = os.environ,
    frame: Document | None = None,
    once: Once | None = None,
) -> Rules:
    """Return the compiled rules of documents that have been read already, and log the warnings. See `compose`.

    Raises ConfigurationError, with every problem found in the order of the file, if the rules cannot be used.
    """
    once = once or Once()
    examined = compose(documents, environ, frame=frame, once=once)
    if examined.rules is None:
        raise ConfigurationError(examined.problems)
    for warning in examined.warnings:
        once(logger.warning, "%s", warning, about=warning.message)
    return examined.rules


def examine(config: Config, *, environ: Mapping[str, str] = os.environ) -> Examined:
    """Return the rules of a configuration, with every problem and every warning, in the order of the file."""
    problems = Problems()
    documents = gather(config, problems)
    if problems:
        return Examined(None, problems.in_order())
    return compose(documents, environ)


class _Part:
    """One document while it is compiled. `source` is the URL in `rules: {source: …}`."""

    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self.name = document.name or "the mapping"
        self.problems = Problems()
        self.source: str | None = None
        tree = parse(document, environ, self.problems)
        if tree is not None and not isinstance(tree, Map):
            self.problems.add(tree.place, f"a rules file must be a mapping with domain and rules, not {kind(tree)}")
        self.file: Values = FILE.default()
        self.usable = isinstance(tree, Map)
        if isinstance(tree, Map):
            self.source = take_source(tree, _KEYS_BESIDE_A_SOURCE, self.problems)
            if names_service(tree) and "rules" not in tree.keys_at:
                tree.put("rules", tree.place, Items(tree.place))
            self.file = self.problems.read(FILE.read, tree, self.file)
            self.problems.with_key_hints(key_hint)

    def add_problem(self, key: str, message: str, hint: str = "") -> None:
        """Report a problem at the place of a key."""
        self.problems.add(self.file.key_place(key), message, hint)


def compose(
    documents: Sequence[Document],
    environ: Mapping[str, str],
    *,
    frame: Document | None = None,
    once: Once | None = None,
) -> Examined:
    """Return the rules of `documents`, with every problem and every warning.

    Args:
        documents: The files of a folder, or one file, or one mapping.
        environ: The environment that `${NAME}` is read from.
        frame: The document whose `rules: {source: …}` refers to `documents`. Its shared sections (storage, client,
            response …) apply to them.
        once: Logs warnings while the rules are in force.
    """
    parts = [_Part(document, environ) for document in documents]
    around = _Part(frame, environ) if frame else None
    everything = [*parts, around] if around else parts
    if all(part.usable for part in everything):
        _share(everything)
        _compare_domains(parts, around)
        _compare_attributes(parts)
        for part in parts if len(everything) > 1 else ():
            if part.source is not None:
                part.add_problem("rules", "'source' is only allowed if the configuration is a single file or mapping")
        compiled = [_compile(part.file, part.problems, source=part.source, once=once) for part in parts]
        if not any(part.problems for part in everything):
            rules = Rules(compiled)
            files = [(part.file, made) for part, made in zip(parts, compiled, strict=True)]
            return Examined(rules, (), rules.warnings, files)
    return Examined(None, tuple(problem for part in everything for problem in part.problems.in_order()))


def _share(parts: Sequence[_Part]) -> None:
    """Apply a shared section of one file to all files."""
    for word in SHARED:
        holders = [part for part in parts if part.file.has_key(word.key)]
        for other in holders[1:]:
            hint = "only one file may have this section"
            other.add_problem(word.key, f"{quoted(word.key)} is already in {holders[0].name}", hint)
        if holders:
            for part in parts:
                part.file = part.file.with_value(word, holders[0].file[word])


def _compare_domains(parts: Sequence[_Part], frame: _Part | None) -> None:
    first: dict[str, _Part] = {}
    for part in parts:
        domain = part.file[DOMAIN]
        if domain and domain in first:
            part.add_problem("domain", f"{first[domain].name} already has the domain {quoted(domain)}")
        first.setdefault(domain, part)
    wanted = frame.file[DOMAIN] if frame else ""
    if frame and wanted and wanted not in first:
        message = f"the source has no rules for the domain {quoted(wanted)}"
        frame.add_problem("domain", message, f"it has rules for {', '.join(map(quoted, first))}")


def _compare_attributes(parts: Sequence[_Part]) -> None:
    first: dict[str, tuple[str, _Part]] = {}
    for part in parts:
        for name, source in part.file[ATTRIBUTES].items():
            other, holder = first.setdefault(name, (source, part))
            if other != source:
                message = f"{quoted(name)} is {quoted(other)} in {holder.name}, but {quoted(source)} here"
                part.add_problem("attributes", message)


def _compile(file: Values, problems: Problems, *, source: str | None = None, once: Once | None = None) -> RuleSet:
    """Return the rule set of a file.

    Args:
        file: The values of the file.
        problems: Receives the errors. If there is one, the result must not be used.
        source: The URL of the rules database, if the rules are not in the file itself.
        once: Logs warnings while the rules are in force.
    """
    domain = file[DOMAIN]
    client = replace(file[CLIENT], domain=domain, attributes=file[ATTRIBUTES])
    attributes = Attributes(client, once)
    warnings = Problems()
    rules: Sequence[Values] = file[RULES]
    validate_names(rules, problems)
    validate_exempt(file[EXEMPT], problems)
    base = Rule("", file[STORAGE].on_error, file[SHADOW_FILE], domain=domain)
    ranks = {rule[NAME]: rank for rank, rule in enumerate(rules)}
    # A shadow rule denies no request, so it must not replace a rule that does. In a shadow file no rule denies.
    shadows = {rule[NAME]: rank for rank, rule in enumerate(rules) if rule[SHADOW]}
    packed: dict[str, Values | bytes] = {}
    recompiler = Recompiler(base, attributes, packed)
    compiled: list[CompiledRule] = []
    for rank, rule in enumerate(rules):
        match = compile_match(rule[MATCH], attributes, problems)
        replaceable = shadows if rule[SHADOW] else ranks
        packed[rule[NAME]] = pack(rule.detached(MATCH))
        if rule[LIMIT].function:
            made = compile_rule(rank, with_sample(rule), base, replaceable, match, attributes, problems)
            made = with_function(made, rule, recompiler, attributes, problems)
        else:
            made = compile_rule(rank, rule, base, replaceable, match, attributes, problems)
            # Another limit may have effects that a limit of 0 has not, or one so low that the throttle adds nothing.
            if rule[THROTTLE] is not None or not any(quota.limit for quota in made.quotas):
                made = replace(made, sample=sample_of(domain, rule))
        compiled.append(made)
        _warn_of_missing_tier(rule, client, warnings)
    _warn_of_unread_header(file, client, warnings)
    exempt = tuple([compile_match(entry, attributes, problems) for entry in file[EXEMPT]])
    described = file.differs(DESCRIPTORS) or file.differs(ENTRIES)
    descriptors = compile_descriptors(file, domain, attributes, problems, warnings) if described else None
    listed = file[OVERRIDES]
    overrides = compile_overrides(listed, domain, rules, attributes, problems) if listed else ()
    asking = STORES[file[STORAGE].url.partition(":")[0]].decides
    if asking:
        _refuse_beside_a_service(file, client, problems)
    return (AskingRules if asking else RuleSet)(
        domain=domain,
        storage=file[STORAGE],
        client=client,
        response=file[RESPONSE],
        attributes=attributes,
        recompiler=recompiler,
        exempt=exempt,
        rules=tuple(compiled),
        load=file[LOAD],
        defer=file[DEFER],
        overrides=overrides,
        reload=file[RELOAD],
        observe=file[OBSERVE],
        shadow=file[SHADOW_FILE],
        source=source,
        descriptors=descriptors,
        warnings=warnings.in_order(),
    )


def _refuse_beside_a_service(file: Values, client: ClientSettings, problems: Problems) -> None:
    """Refuse what has no effect in the file of an app that asks a service, because the service decides."""
    for word in (SHADOW_FILE, LOAD, DEFER, OVERRIDES, RULES, DESCRIPTORS, ENTRIES):
        if file.differs(word) and file[word]:
            message = f"{quoted(word.key)} has no effect, because the service at storage.url decides"
            problems.add(file.key_place(word.key), message, "write it into the file of the service")
    if file[STORAGE].on_error == "local":
        hint = "write allow or deny"
        problems.add(file.place("storage", "on_error"), "can't be local: the limits are the service's", hint)
    if "ratelimit" in file[RESPONSE].headers:
        hint = "remove ratelimit: x-ratelimit and retry-after can be sent"
        problems.add(
            file.place("response", "headers"), "the service does not send the policies of the header RateLimit", hint
        )
    if len(client.attributes) > MOST_ATTRIBUTES - _BUILT_IN:
        most = f"an app sends a service at most {MOST_ATTRIBUTES - _BUILT_IN} attributes of its own"
        problems.add(file.key_place("attributes"), most, "remove those that its rules do not name")


_BUILT_IN = 8
"""The most attributes of a question that are not the app's own: six, and two headers of a CORS preflight."""


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
