"""Loads a configuration: returns the compiled rules, or raises with every problem that was found."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ratelimit_mw.config.documents import Config, Document, gather, parse
from ratelimit_mw.config.elsewhere import text_elsewhere
from ratelimit_mw.config.file import DOMAIN, FILE, SHARED, compile_file, read_file
from ratelimit_mw.config.tree import Map, Problems, kind
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.client import ATTRIBUTES
from ratelimit_mw.config.words.load import warn_of_unused_shedding
from ratelimit_mw.config.words.storage import take_source
from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.rules.domains import Domains, Rules
from ratelimit_mw.rules.ruleset import RuleSet

logger = logging.getLogger("ratelimit_mw")


class Examined(NamedTuple):
    """The result of examining a configuration: its rules (None if it has problems), its problems and its warnings."""

    rules: Rules | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()
    files: Sequence[tuple[Values, RuleSet]] = ()
    """The values of each file, and its rules. Empty if there are problems."""


_KEYS_BESIDE_A_SOURCE = ("domain", *(word.key for word in SHARED), "rules")


def load_rules(config: Config, *, environ: Mapping[str, str] = os.environ) -> Rules:
    """Return the compiled rules of a YAML file, of a folder of files, or of a mapping of the same shape.

    Args:
        config: A path, or a mapping.
        environ: The environment that `${NAME}` is read from.

    Raises:
        ConfigurationError: The configuration has errors. It carries every problem found, in the order of the file.
    """
    return _rules_or_raise(examine(config, environ=environ))


def load_documents(
    documents: Sequence[Document],
    *,
    environ: Mapping[str, str] = os.environ,
    frame: Document | None = None,
    logged: set[str] | None = None,
) -> Rules:
    """Return the compiled rules of documents that have been read already. See `load_rules` and `compose`."""
    return _rules_or_raise(compose(documents, environ, frame=frame, logged=logged), logged)


def examine(config: Config, *, environ: Mapping[str, str] = os.environ) -> Examined:
    """Return the rules of a configuration, with every problem and every warning, in the order of the file."""
    problems = Problems()
    documents = gather(config, problems)
    if problems:
        return Examined(None, problems.in_order())
    return compose(documents, environ)


def _rules_or_raise(examined: Examined, logged: set[str] | None = None) -> Rules:
    if examined.rules is None:
        raise ConfigurationError(examined.problems)
    _log(examined.warnings, logged)
    return examined.rules


def _log(warnings: Sequence[Problem], logged: set[str] | None) -> None:
    """Log the warnings that were not logged before."""
    for warning in warnings:
        if logged is None or warning.message not in logged:
            logger.warning("%s", warning)
            if logged is not None:
                logged.add(warning.message)


class _Part:
    """One document while it is compiled. `source` is the URL in `rules: {source: …}`."""

    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self.name = document.name or "the mapping"
        self.problems = Problems()
        self.source: str | None = None
        tree = parse(document, environ, self.problems)
        if tree is not None and not isinstance(tree, Map):
            hint = text_elsewhere(str(getattr(tree, "text", "")))
            self.problems.add(
                tree.place, f"a rules file must be a mapping with domain and rules, not {kind(tree)}", hint
            )
        self.tree = tree if isinstance(tree, Map) else None
        self.file: Values = FILE.default()
        if self.tree is not None:
            self.source = take_source(self.tree, _KEYS_BESIDE_A_SOURCE, self.problems)
            self.file = read_file(self.tree, self.problems)

    def has(self, key: str) -> bool:
        """Return True if the document has the key."""
        return self.tree is not None and key in self.tree.keys_at

    def add_problem(self, key: str, message: str, hint: str = "") -> None:
        """Report a problem at the place of a key."""
        if self.tree is not None:
            self.problems.add(self.tree.keys_at[key], message, hint)

    def use(self, word: Word[object], file: Values) -> None:
        """Take the value of a shared section from the file that has it."""
        self.file = self.file.with_value(word, file[word])


def compose(
    documents: Sequence[Document],
    environ: Mapping[str, str],
    *,
    frame: Document | None = None,
    logged: set[str] | None = None,
) -> Examined:
    """Return the rules of `documents`, with every problem and every warning.

    Args:
        documents: The files of a folder, or one file, or one mapping.
        environ: The environment that `${NAME}` is read from.
        frame: The document whose `rules: {source: …}` refers to `documents`. Its shared sections (storage, client,
            response …) apply to them.
        logged: The messages that were logged before, and are not logged again.
    """
    parts = [_Part(document, environ) for document in documents]
    around = _Part(frame, environ) if frame else None
    everything = [*parts, around] if around else parts
    if all(part.tree is not None for part in everything):
        _share(everything)
        _compare_domains(parts, around)
        _compare_attributes(parts)
        _refuse_sources(parts, alone=len(everything) == 1)
        compiled = [compile_file(part.file, part.problems, source=part.source, logged=logged) for part in parts]
        if not any(part.problems for part in everything):
            rules = compiled[0] if len(compiled) == 1 else Domains(compiled)
            warnings = _unused_shedding(everything, rules)
            for made in compiled:
                warnings += sorted(made.warnings, key=lambda problem: (problem.line, problem.column))
            files = [(part.file, made) for part, made in zip(parts, compiled, strict=True)]
            return Examined(rules, (), tuple(warnings), files)
    return Examined(None, tuple(problem for part in everything for problem in part.problems.in_order()))


def _unused_shedding(parts: Sequence[_Part], rules: Rules) -> list[Problem]:
    found = Problems()
    if rules.shedding:
        return []
    for part in parts:
        if part.tree is not None:
            warn_of_unused_shedding(part.tree, found)
    return list(found.in_order())


def _share(parts: Sequence[_Part]) -> None:
    """Apply a shared section of one file to all files."""
    for word in SHARED:
        holders = [part for part in parts if part.has(word.key)]
        for other in holders[1:]:
            hint = "only one file may have this section"
            other.add_problem(word.key, f"{quoted(word.key)} is already in {holders[0].name}", hint)
        if holders:
            for part in parts:
                part.use(word, holders[0].file)


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


def _refuse_sources(parts: Sequence[_Part], *, alone: bool) -> None:
    for part in parts:
        if part.source is not None and not alone:
            part.add_problem("rules", "'source' is only allowed if the configuration is a single file or mapping")
