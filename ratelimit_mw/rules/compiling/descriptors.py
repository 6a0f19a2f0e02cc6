"""The section `descriptors` to its compiled tree: what several keys have to agree on is checked here."""

import re
from dataclasses import dataclass, field

from ratelimit_mw.identity.attributes import Attributes, canonical_name
from ratelimit_mw.identity.identifier import spelling
from ratelimit_mw.model import SECOND, Quota, Rule
from ratelimit_mw.rules.compiling.counters import escaped
from ratelimit_mw.rules.compiling.entries import compile_entries, warn_of_unreached
from ratelimit_mw.rules.descriptors import Branch, Descriptors, Limit, Node, pattern
from ratelimit_mw.rules.documents.tree import Map, Place, Problems, node_at, place_of, quoted
from ratelimit_mw.rules.documents.tree import Node as Tree
from ratelimit_mw.rules.readers.limits import UNITS
from ratelimit_mw.rules.schema.descriptors import DescriptorSection, RateLimit
from ratelimit_mw.rules.schema.file import File

_SECRET = re.compile(r"cookie:|header:.*(auth|cookie|key|secret|token)", re.IGNORECASE)
"""The sources whose values must not be read in a key or a name, not even those that the file has."""


@dataclass(frozen=True, slots=True)
class _Path:
    """Where a descriptor stands in the tree: as a counter's key has it, and as people read it."""

    key: str = ""
    name: str = ""


@dataclass(slots=True)
class _Compiler:
    file: File
    attributes: Attributes
    problems: Problems
    warnings: Problems
    limits: list[tuple[Limit, Place]] = field(default_factory=list)

    def level(self, sections: list[DescriptorSection], tree: Tree, path: _Path) -> dict[str, Branch]:
        """The branches of one list of descriptors, which stands at `tree`."""
        branches: dict[str, Branch] = {}
        first: dict[tuple[str, str], Place] = {}
        for n, section in enumerate(sections):
            at = node_at(tree, (n,))
            if self._key_is_missing(section, at):
                continue
            if (section.key, section.value) in first:
                other = first[section.key, section.value]
                hint = f"the other is at line {other.line}" if other.line else f"the other is {other.path}"
                self.problems.add(at.place, "two descriptors of one list have the same key and value", hint)
            first.setdefault((section.key, section.value), at.place)
            branch = branches.setdefault(section.key, Branch())
            node = self._node(section, at, path)
            if not section.value:
                branch.bare = node
                continue
            branch.exact[section.value] = node
            if "*" in section.value:
                branch.patterns.append((pattern(section.value), node))
        return branches

    def _key_is_missing(self, section: DescriptorSection, at: Tree) -> bool:
        if isinstance(at, Map) and not section.key and not at.dropped & {"", "key"}:
            if "key" in at.keys_at:
                self.problems.add(place_of(at, "key"), "must not be empty")
            else:
                self.problems.add(at.place, "the key 'key' is missing")
        return not section.key

    def _node(self, section: DescriptorSection, at: Tree, parent: _Path) -> Node:
        many = "*" in section.value
        if section.share_threshold and not many and not (isinstance(at, Map) and "value" in at.dropped):
            message = "what shares its limit is the values that a '*' matches, and there is no '*' in the value"
            self.problems.add(place_of(at, "share_threshold"), message)
        self._warn_of_address(section, at)
        path = self._path(section, parent)
        own = (many or not section.value) and not section.share_threshold
        return Node(
            branches=self.level(section.descriptors, node_at(at, ("descriptors",)), path),
            limit=self._limit(section, at, path),
            spell=spelling(section.key, self.attributes) if own else None,
        )

    def _path(self, section: DescriptorSection, parent: _Path) -> _Path:
        key, name = f"{parent.key}/{escaped(section.key)}", f"{parent.name}/{section.key}".lstrip("/")
        if section.value:
            client = self.file.client
            sources = {**self.file.attributes, "user": client.user, "tier": client.tier}
            if _SECRET.match(sources.get(section.key) or section.key):
                digest = self.attributes.digest(section.value)
                return _Path(f"{key}=~{digest}", f"{name}=~{digest}")
            return _Path(f"{key}={escaped(section.value)}", f"{name}={section.value}")
        return _Path(key, name)

    def _limit(self, section: DescriptorSection, at: Tree, path: _Path) -> Limit | None:
        stated = section.rate_limit
        if stated is None:
            return None
        place = place_of(at, "rate_limit")
        quota = self._quota(stated, node_at(at, ("rate_limit",)))
        period = quota.period // SECOND if quota is not None else 0
        shadow = section.shadow_mode or self.file.shadow
        quotas = self.file.domain if section.quota_mode and not shadow else ""
        limit = Limit(
            rule=Rule(stated.name or path.name, self.file.storage.on_error, shadow, quotas),
            name=stated.name,
            # A rule's name is escaped, and so never begins with a slash.
            key=f"{escaped(self.file.domain)}:{path.key}:fw{period}:{{",
            quota=quota,
            # What is not enforced can't stand in for what is.
            replaces=frozenset() if section.shadow_mode else frozenset(other.name for other in stated.replaces),
        )
        self.limits.append((limit, place))
        return limit

    def _quota(self, stated: RateLimit, at: Tree) -> Quota | None:
        self._check_replaces(stated, at)
        dropped = at.dropped if isinstance(at, Map) else frozenset()
        if stated.unlimited:
            if stated.unit is not None:
                self.problems.add(place_of(at, "unit"), "what is unlimited has no unit", "leave out one of them")
            return None
        if dropped & {"", "unlimited"}:
            return None
        if stated.unit is None and "unit" not in dropped:
            hint = f"one of {', '.join(UNITS)}; or write unlimited: true"
            self.problems.add(at.place, "the key 'unit' is missing", hint)
        if stated.requests_per_unit is None and "requests_per_unit" not in dropped:
            self.problems.add(at.place, "the key 'requests_per_unit' is missing", "0 lets nothing pass")
        if stated.unit is None or stated.requests_per_unit is None:
            return None
        return Quota("fixed_window", stated.requests_per_unit, stated.unit)

    def _check_replaces(self, stated: RateLimit, at: Tree) -> None:
        for n, other in enumerate(stated.replaces):
            entry = node_at(at, ("replaces", n))
            if not other.name:
                if not (isinstance(entry, Map) and entry.dropped & {"", "name"}):
                    self.problems.add(entry.place, "names no limit to replace", "as {name: a_limit}")
            elif other.name == stated.name:
                self.problems.add(place_of(entry, "name"), "a limit can't replace itself")

    def _warn_of_address(self, section: DescriptorSection, at: Tree) -> None:
        """Note where the address in a value is written as no request has it."""
        if canonical_name(section.key) != "ip" or "*" in section.value:
            return
        sent = self.attributes.network(section.value)
        if sent is not None and sent != section.value:
            message = f"requests send this address as {sent}, and so never match {quoted(section.value)}"
            self.warnings.add(place_of(at, "value"), message)

    def warn_of_names(self) -> None:
        """Note where `replaces` names no limit."""
        known = {limit.name for limit, _ in self.limits}
        for limit, place in self.limits:
            for name in sorted(limit.replaces - known):
                self.warnings.add(place, f"replaces {quoted(name)}, and no limit in this file has that name")


def compile_descriptors(
    file: File, tree: Map, attributes: Attributes, problems: Problems, warnings: Problems
) -> Descriptors | None:
    """The compiled descriptors of `file`; None where it has none. What is wrong is added to `problems`."""
    compiler = _Compiler(file, attributes, problems, warnings)
    root = Node(branches=compiler.level(file.descriptors, node_at(tree, ("descriptors",)), _Path()))
    compiler.warn_of_names()
    lists = compile_entries(file, tree, root, attributes, problems)
    warn_of_unreached(file, root, lists, compiler.limits, warnings)
    limits = [limit for limit, _ in compiler.limits]
    return Descriptors(root, lists, limits) if limits else None
