"""Documents to rules: each is checked by itself, and then what they have to agree on."""

from collections.abc import Mapping, Sequence

from ratelimit_mw.errors import Problem
from ratelimit_mw.rules.breath import breathe
from ratelimit_mw.rules.compiling.client import compile_client
from ratelimit_mw.rules.compiling.compile import compile_rules
from ratelimit_mw.rules.documents.document import Document
from ratelimit_mw.rules.documents.source import parse
from ratelimit_mw.rules.documents.tree import Items, Map, Problems, kind, quoted
from ratelimit_mw.rules.domains import Domains, Examined, Rules
from ratelimit_mw.rules.linting.lint import lint
from ratelimit_mw.rules.readers import values
from ratelimit_mw.rules.readers.wrong import Wrong
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.rules.schema.file import File
from ratelimit_mw.rules.schema.validation import check

SHARED = ("storage", "client", "response", "load", "defer", "reload")
"""The sections that stand in one file only, and hold for all."""

_OF_A_FRAME = ("domain", *SHARED, "rules")


class _Part:
    """One document on its way to rules. `source` is where `rules: {source: …}` says that they are."""

    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self.name = document.name or "the mapping"
        self.problems = Problems()
        self.source: str | None = None
        tree = parse(document, environ, self.problems)
        if tree is not None and not isinstance(tree, Map):
            self.problems.add(tree.place, f"a rules file is a mapping, with domain and rules, not {kind(tree)}")
        self.tree = tree if isinstance(tree, Map) else None
        if self.tree is not None:
            self._take_source(self.tree)
            self.file, self.usable = check(self.tree, self.problems)

    def has(self, section: str) -> bool:
        return self.tree is not None and section in self.tree.keys_at

    def complain(self, section: str, message: str, hint: str = "") -> None:
        if self.tree is not None:
            self.problems.add(self.tree.keys_at[section], message, hint)

    def adopt(self, section: str, file: File) -> None:
        self.file = self.file.model_copy(update={section: getattr(file, section)})

    def discard(self) -> None:
        """Let go of the tree bit by bit: all at once takes milliseconds."""
        for tree in (self.tree, self.usable):
            for node in tree.values() if tree is not None else ():
                while isinstance(node, Items) and node:
                    node.pop()
                    breathe()

    def _take_source(self, tree: Map) -> None:
        """Read `rules: {source: …}`, and leave no rules in its place."""
        rules = tree.get("rules")
        if not isinstance(rules, Map) or "source" not in rules.keys_at:
            return
        for key in rules.keys_at:
            if key != "source":
                hint = "rules are a list, or {source: redis://…}"
                self.problems.add(rules.keys_at[key], f"unknown key {quoted(key)}", hint)
        if "source" in rules:
            try:
                self.source = values.source_url(rules["source"])
            except Wrong as wrong:
                for fault in wrong.faults:
                    self.problems.add(fault.place or rules["source"].place, fault.message, fault.hint)
        tree["rules"] = Items(rules.place)
        for key in tree.keys_at:
            if key not in _OF_A_FRAME:
                hint = f"here stand {', '.join(_OF_A_FRAME[:-1])}"
                self.problems.add(tree.keys_at[key], f"{quoted(key)} belongs to the rules at the source", hint)
                tree.pop(key, None)


def compose(
    documents: Sequence[Document],
    environ: Mapping[str, str],
    *,
    thorough: bool = False,
    frame: Document | None = None,
    said: set[str] | None = None,
) -> Examined:
    """The rules of `documents`, and everything that is wrong with them.

    `frame` is a document whose `rules: {source: …}` named these: what it says of storage, client and response
    holds for them. `thorough` also compares the rules with each other. `said` remembers across several
    configurations what is to be logged once.
    """
    parts = [_Part(document, environ) for document in documents]
    around = _Part(frame, environ) if frame else None
    everything = [*parts, around] if around else parts
    if all(part.tree is not None for part in everything):
        _share(everything)
        _compare_domains(parts, around)
        _compare_attributes(parts)
        _refuse_sources(parts, alone=len(everything) == 1)
        compiled = [_compiled(part, said) for part in parts]
        if not any(part.problems for part in everything):
            rules = compiled[0] if len(compiled) == 1 else Domains(compiled)
            warnings = [
                *_idle_shedding(everything, rules),
                *(
                    warning
                    for part, made in zip(parts, compiled, strict=True)
                    for warning in _warnings(part, made, thorough)
                ),
            ]
            for part in parts:
                part.discard()
            return Examined(rules, (), tuple(warnings))
    return Examined(None, tuple(problem for part in everything for problem in part.problems.in_order()))


def _compiled(part: _Part, said: set[str] | None) -> RuleSet:
    return compile_rules(part.file, part.usable, part.problems, source=part.source, said=said)


def _warnings(part: _Part, rules: RuleSet, thorough: bool) -> list[Problem]:
    ineffective = lint(part.file, part.usable, rules) if thorough else Problems()
    return sorted((*rules.warnings, *ineffective.in_order()), key=lambda problem: (problem.line, problem.column))


def _idle_shedding(parts: Sequence[_Part], rules: Rules) -> Sequence[Problem]:
    """Note where it is said when to shed requests, and there are none to be shed."""
    found = Problems()
    for part in parts if not rules.shedding else ():
        load = part.tree.get("load") if part.tree is not None else None
        if isinstance(load, Map) and "shed" in load:
            found.add(load["shed"].place, "sheds nothing, for no rule has a priority")
    return found.in_order()


def _share(parts: Sequence[_Part]) -> None:
    """Let what one file says of a shared section hold for all of them."""
    for section in SHARED:
        holders = [part for part in parts if part.has(section)]
        for other in holders[1:]:
            hint = "it stands in one file only"
            other.complain(section, f"{quoted(section)} stands in {holders[0].name} already", hint)
        if holders and not (section == "client" and _wrong_client(holders[0])):
            for part in parts:
                part.adopt(section, holders[0].file)


def _wrong_client(part: _Part) -> bool:
    """True where a client is wrong in a way that would be said again of each file that it holds for."""
    found = Problems()
    compile_client(part.file, part.usable, found)
    return bool(found)


def _compare_domains(parts: Sequence[_Part], frame: _Part | None) -> None:
    first: dict[str, _Part] = {}
    for part in parts:
        domain = part.file.domain
        if domain and domain in first:
            part.complain("domain", f"the domain {quoted(domain)} is that of {first[domain].name} already")
        first.setdefault(domain, part)
    if frame and frame.file.domain and frame.file.domain not in first:
        there = ", ".join(map(quoted, first))
        frame.complain(
            "domain", f"the source has no rules of the domain {quoted(frame.file.domain)}", f"it has {there}"
        )


def _compare_attributes(parts: Sequence[_Part]) -> None:
    first: dict[str, tuple[str, _Part]] = {}
    for part in parts:
        for name, source in part.file.attributes.items():
            other, holder = first.setdefault(name, (source, part))
            if other != source:
                part.complain(
                    "attributes", f"{quoted(name)} is {quoted(other)} in {holder.name}, here {quoted(source)}"
                )


def _refuse_sources(parts: Sequence[_Part], *, alone: bool) -> None:
    for part in parts:
        if part.source is not None and not alone:
            part.complain("rules", "rules that have a source stand alone, in one file that nobody refers to")
