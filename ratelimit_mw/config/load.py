"""Loads a configuration: returns the compiled rules, or raises with every problem that was found.

A configuration is a file, a folder of files, or a mapping from code. Each becomes a `Document`, a tree (`yaml`, or
`tree.convert`), the values of its words (`file.read_file`), and a rule set (`file.compile_file`).
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ratelimit_mw.config.file import DOMAIN, FILE, SHARED, compile_file, read_file
from ratelimit_mw.config.tree import Map, Node, Place, Problems, convert, kind
from ratelimit_mw.config.word import Values
from ratelimit_mw.config.words.client import ATTRIBUTES
from ratelimit_mw.config.words.storage import take_source
from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet

logger = logging.getLogger("ratelimit_mw")

LARGEST = 4 * 1024 * 1024
"""The largest size of a file, in bytes. A thousand rules take a quarter of a megabyte."""

SUFFIXES = (".yaml", ".yml")
"""The suffixes of the files that are read in a folder. Hidden files are skipped."""

A_PATH = "a path to a YAML file"
"""The hint of a file that cannot be read."""

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
        problems.add(Place(file=file), message, A_PATH)
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
            self.problems.add(tree.place, f"a rules file must be a mapping with domain and rules, not {kind(tree)}")
        self.file: Values = FILE.default()
        self.usable = isinstance(tree, Map)
        if isinstance(tree, Map):
            self.source = take_source(tree, _KEYS_BESIDE_A_SOURCE, self.problems)
            self.file = read_file(tree, self.problems)

    def add_problem(self, key: str, message: str, hint: str = "") -> None:
        """Report a problem at the place of a key."""
        self.problems.add(self.file.key_place(key), message, hint)


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
    if all(part.usable for part in everything):
        _share(everything)
        _compare_domains(parts, around)
        _compare_attributes(parts)
        _refuse_sources(parts, alone=len(everything) == 1)
        compiled = [compile_file(part.file, part.problems, source=part.source, logged=logged) for part in parts]
        if not any(part.problems for part in everything):
            rules = Rules(compiled)
            warnings = [*_unused_shedding(everything, rules), *(found for made in compiled for found in made.warnings)]
            files = [(part.file, made) for part, made in zip(parts, compiled, strict=True)]
            return Examined(rules, (), tuple(warnings), files)
    return Examined(None, tuple(problem for part in everything for problem in part.problems.in_order()))


def _unused_shedding(parts: Sequence[_Part], rules: Rules) -> tuple[Problem, ...]:
    """Warn about a `shed` that has no effect."""
    found = Problems()
    for part in parts:
        if part.file.has_key("load", "shed") and not rules.shedding:
            found.add(part.file.place("load", "shed"), "has no effect: no rule has a priority")
    return found.in_order()


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


def _refuse_sources(parts: Sequence[_Part], *, alone: bool) -> None:
    for part in parts:
        if part.source is not None and not alone:
            part.add_problem("rules", "'source' is only allowed if the configuration is a single file or mapping")
