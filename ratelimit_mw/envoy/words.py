"""`descriptors`, rules in the format of envoyproxy/ratelimit, and `entries`, the lists that requests send to them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS, for_rules
from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Items, Map, Node, Place, Problems, unlike
from ratelimit_mw.config.word import Section, Values, Word, sections_word
from ratelimit_mw.config.words.client import ATTRIBUTES, CLIENT
from ratelimit_mw.config.words.limit import (
    ALGORITHM,
    BURST,
    Window,
    burst_of,
    read_algorithm,
    window_fault,
)
from ratelimit_mw.config.words.selection import SHADOW_FILE
from ratelimit_mw.config.words.storage import STORAGE
from ratelimit_mw.envoy.tree import (
    DEFAULT,
    MOST,
    Branch,
    DescriptorLimit,
    DescriptorNode,
    Descriptors,
    EntryReaders,
    Keys,
    entry_reader,
    keys_of,
    limits_at,
    pattern,
)
from ratelimit_mw.errors import Invalid, near, nearest, quoted
from ratelimit_mw.identity.attributes import Attributes, canonical_name
from ratelimit_mw.identity.identifier import encoder
from ratelimit_mw.model import Quota, Rule
from ratelimit_mw.rules.compiled import escaped, key_of_domain
from ratelimit_mw.units import SECOND, UNITS

UNIT_NAMES = tuple(unit for unit in UNITS if unit != "millisecond")
"""The units of envoyproxy/ratelimit."""

_SECRET = re.compile(r"cookie:|header:.*(auth|cookie|key|secret|token)", re.IGNORECASE)
"""Sources whose values are secret. They are hashed in keys and names, even if the rules file contains them."""


class _DescriptorPath(NamedTuple):
    """The path of a descriptor in the tree: as part of a counter's key, as a readable name, and in metrics."""

    key: str = ""
    name: str = ""
    metric: tuple[str, ...] = ()


def compile_descriptors(
    file: Values, domain: str, attributes: Attributes, problems: Problems, warnings: Problems
) -> Descriptors | None:
    """Return the descriptors of a file, and the lists that its requests send to them. None if it has no limits."""
    compiler = _Compiler(file, domain, attributes, problems, warnings)
    root = compiler.tree()
    lists = _compile_entries(file, root, attributes, problems)
    _warn_of_unreachable_limits(file, root, lists, compiler.limits, warnings)
    limits = [limit for limit, _ in compiler.limits]
    return Descriptors(root, lists, limits) if limits else None


@dataclass(slots=True)
class _Compiler:
    """Compiles the descriptors of one file. `limits` collects the limits, each with its place."""

    file: Values
    domain: str
    attributes: Attributes
    problems: Problems
    warnings: Problems
    limits: list[tuple[DescriptorLimit, Place]] = field(default_factory=list)

    def tree(self) -> DescriptorNode:
        """Return the root of the compiled tree. The root matches the empty list of entries."""
        root = DescriptorNode(branches=self._level(self.file[DESCRIPTORS], _DescriptorPath()))
        self._warn_of_names()
        return root

    def _level(self, descriptors: Sequence[Values], path: _DescriptorPath) -> dict[str, Branch]:
        """Return the branches of one list of descriptors."""
        branches: dict[str, Branch] = {}
        first: dict[tuple[str, str], Place] = {}
        for descriptor in descriptors:
            key, value, place = descriptor[_KEY], descriptor[_VALUE], descriptor.node.place
            if not key:
                if "key" in descriptor:
                    self.problems.add(descriptor.place("key"), "must not be empty")
                continue
            if (key, value) in first:
                other = first[key, value]
                hint = f"the other is at line {other.line}" if other.line else f"the other is {other.path}"
                self.problems.add(place, "two descriptors of one list have the same key and value", hint)
            first.setdefault((key, value), place)
            branch = branches.setdefault(key, Branch())
            node = self._node(descriptor, path)
            if not value:
                branch.bare = node
                continue
            branch.exact[value] = node
            if "*" in value:
                branch.patterns.append((pattern(value), node))
        return branches

    def _node(self, descriptor: Values, parent: _DescriptorPath) -> DescriptorNode:
        value, shared = descriptor[_VALUE], descriptor[_SHARE_THRESHOLD]
        many = "*" in value
        if shared and not many and "value" not in descriptor.dropped:
            message = "applies to the values that a '*' matches, but the value has no '*'"
            self.problems.add(descriptor.place("share_threshold"), message)
        self._warn_of_address(descriptor)
        path = self._path(descriptor, parent)
        own = (many or not value) and not shared
        return DescriptorNode(
            branches=self._level(descriptor[_CHILDREN], path),
            limits=self._limits(descriptor, path),
            spell=encoder(descriptor[_KEY], self.attributes) if own else None,
        )

    def _path(self, descriptor: Values, parent: _DescriptorPath) -> _DescriptorPath:
        own, value = descriptor[_KEY], descriptor[_VALUE]
        key, name = f"{parent.key}/{escaped(own)}", f"{parent.name}/{own}".lstrip("/")
        if not value:
            return _DescriptorPath(key, name, (*parent.metric, own))
        client = self.file[CLIENT]
        sources = {**self.file[ATTRIBUTES], "user": client.user, "tier": client.tier}
        if _SECRET.match(sources.get(own) or own):
            digest = self.attributes.digest(value)
            return _DescriptorPath(f"{key}=~{digest}", f"{name}=~{digest}", (*parent.metric, own))
        metric = (*parent.metric, f"{own}_{value}")
        return _DescriptorPath(f"{key}={escaped(value)}", f"{name}={value}", metric)

    def _limits(self, descriptor: Values, path: _DescriptorPath) -> tuple[DescriptorLimit, ...]:
        stated = descriptor[_RATE_LIMIT]
        if len(stated) > 1:
            if descriptor[_QUOTA_MODE]:
                hint = "keep one of the limits, or remove quota_mode"
                self.problems.add(descriptor.place("quota_mode"), "can't be combined with several limits", hint)
            for each in stated:
                if each[_UNLIMITED]:
                    self.problems.add(each.place("unlimited"), "'unlimited' must not be in a list")
        limits = tuple([self._limit(descriptor, each, path) for each in stated])
        for place, limit in enumerate(limits):
            if limit.quota is not None and any(limit.key == other.key for other in limits[:place]):
                self.problems.add(stated[place].node.place, "two limits have the same unit", "keep only the lower one")
        return limits

    def _limit(self, descriptor: Values, stated: Values, path: _DescriptorPath) -> DescriptorLimit:
        quota = self._quota(stated)
        code = f"{ALGORITHMS[stated[_ALGORITHM]].code}{quota.period // SECOND if quota is not None else 0}"
        shadow = descriptor[_SHADOW_MODE] or self.file[SHADOW_FILE]
        quotas = self.domain if descriptor[_QUOTA_MODE] and not shadow else ""
        limit = DescriptorLimit(
            rule=Rule(
                stated[_NAME] or path.name,
                self.file[STORAGE].on_error,
                shadow,
                quotas,
                several=len(descriptor[_RATE_LIMIT]) > 1,
                domain=self.domain,
                descriptor=path.metric,
            ),
            name=stated[_NAME],
            # A path begins with a slash. The escaped name of a rule does not, so the keys never collide.
            key=f"{key_of_domain(self.domain)}:{path.key}:{code}:{{",
            quota=quota,
            replaces=frozenset(each[_NAME] for each in stated[_REPLACES]),
        )
        self.limits.append((limit, stated.node.place))
        return limit

    def _quota(self, stated: Values) -> Quota | None:
        for other in stated[_REPLACES]:
            if other[_NAME] and other[_NAME] == stated[_NAME]:
                self.problems.add(other.place("name"), "a limit can't replace itself")
            elif "name" in other and not other[_NAME]:
                self.problems.add(other.node.place, "has no name of a limit to replace", "for example {name: a_limit}")
        unit, requests = stated[_UNIT], stated[_REQUESTS]
        if stated[_UNLIMITED]:
            for word in (_UNIT, _ALGORITHM, BURST):
                if word.key in stated and stated[word] is not None:
                    place = stated.place(word.key)
                    self.problems.add(place, "can't be combined with unlimited", "remove one of the two")
            return None
        if stated.dropped & {"", "unlimited"}:
            return None
        if unit is None and "unit" not in stated.dropped:
            hint = f"one of {', '.join(UNIT_NAMES)}; or write unlimited: true"
            self.problems.add(stated.node.place, "the key 'unit' is missing", hint)
        if requests is None and "requests_per_unit" not in stated.dropped:
            self.problems.add(stated.node.place, "the key 'requests_per_unit' is missing", "0 denies every request")
        if unit is None or requests is None or stated.dropped & {"algorithm", "burst"}:
            return None
        return self._counted(stated, Window(requests, unit, stated[BURST]))

    def _counted(self, stated: Values, window: Window) -> Quota:
        name, (requests, unit, own_burst, _) = stated[_ALGORITHM], window
        rule = stated.with_value(ALGORITHM, name)
        if name != DEFAULT or own_burst is not None:  # fixed_window takes every number of envoyproxy/ratelimit
            fault = window_fault(rule, window)
            if fault is not None:
                self.problems.add(stated.node.place, *fault)
        quota = Quota(name, requests, unit, burst_of(rule, window))
        return ALGORITHMS[name].in_turn(quota)

    def _warn_of_address(self, descriptor: Values) -> None:
        """Warn about a value that is an address in a spelling that no request has."""
        value = descriptor[_VALUE]
        if canonical_name(descriptor[_KEY]) != "ip" or "*" in value:
            return
        sent = self.attributes.network(value)
        if sent is not None and sent != value:
            message = f"never matches {quoted(value)}: requests have this address as {sent}"
            self.warnings.add(descriptor.place("value"), message)

    def _warn_of_names(self) -> None:
        """Warn about a name in `replaces` that no limit has."""
        known = {limit.name for limit, _ in self.limits}
        for limit, place in self.limits:
            for name in sorted(limit.replaces - known):
                self.warnings.add(place, f"replaces {quoted(name)}, but no limit in this file has that name")


def _read_text(node: Node) -> str:
    if not isinstance(node, Map | Items) and isinstance(node.value, float):
        raise unlike(node, "text", "put it in quotes if it is text")
    return kinds.read_text(node)


def _read_unit(node: Node) -> int:
    word = kinds.read_text(node)
    if word.lower() not in UNIT_NAMES:
        hint = near(word, UNIT_NAMES)
        raise unlike(node, f"one of {', '.join(UNIT_NAMES)}", hint)
    return UNITS[word.lower()]


def _read_metadata(node: Node) -> None:
    """Accept any mapping. Metadata is for metrics and does not affect decisions."""
    if not isinstance(node, Map):
        raise unlike(node, "a mapping")


def _text(key: str, about: str, **options: Any) -> Word[str]:
    return kinds.text(key, about, read=_read_text, **options)


_NAME = _text("name", "The limit's name.")
_REPLACED = Section(
    "Replaced",
    "A limit that does not apply to a request if this one does.",
    (_text("name", "Its name.", required=True),),
    nulls=True,
)
_REPLACES = sections_word("replaces", _REPLACED, "The limits that do not apply to a request if this one does.")
_UNIT: Word[int | None] = Word(
    key="unit",
    read=_read_unit,
    default=None,
    schema={"enum": [form for unit in UNIT_NAMES for form in (unit, unit.upper(), unit.capitalize())]},
    about="The unit of time.",
)
_REQUESTS = kinds.number("requests_per_unit", 0, MOST, None, "How many requests are admitted in each unit.")


def _read_algorithm_of_descriptor(node: Node) -> str:
    name = read_algorithm(node)
    if ALGORITHMS[name].in_flight:
        raise Invalid(f"{name} needs a rule: a descriptor does not know when a request ends")
    return name


_ALGORITHM: Word[str] = Word(
    key="algorithm",
    read=_read_algorithm_of_descriptor,
    default=DEFAULT,
    shown_default=DEFAULT,
    schema=lambda _: {"enum": [name for name, algorithm in for_rules().items() if not algorithm.in_flight]},
    about="How requests are counted.",
)
_UNLIMITED = kinds.flag("unlimited", "There is no limit.")

_LIMIT = Section(
    "RateLimit",
    "A limit: a number of requests in each unit of time, or unlimited.",
    (_UNIT, _REQUESTS, _UNLIMITED, _ALGORITHM, BURST, _NAME, _REPLACES),
    nulls=True,
)
_RATE_LIMIT = sections_word("rate_limit", _LIMIT, "The limit, or a list of limits that all apply.", or_one=True)

_KEY = _text("key", "The key of the entry.", required=True)
_VALUE = _text("value", "The value of the entry. A * matches any text. Without a value, every value matches.")
_SHADOW_MODE = kinds.flag("shadow_mode", "The limit is counted and reported, but never enforced.")
_QUOTA_MODE = kinds.flag("quota_mode", "A request is denied only if all limits in quota mode deny it.")
_DETAILED_METRIC = kinds.flag("detailed_metric", "For metrics; ignored here.")
_VALUE_TO_METRIC = kinds.flag("value_to_metric", "For metrics; ignored here.")
_SHARE_THRESHOLD = kinds.flag("share_threshold", "The values that a * matches share one counter.")
_METADATA: Word[None] = Word(
    key="metadata",
    read=_read_metadata,
    default=None,
    schema={"type": "object"},
    about="For metrics; ignored here.",
)
_DESCRIPTOR = Section(
    "Descriptor",
    "One descriptor: the entry that it matches, its limit, and the descriptors of the next entry.",
    (
        _KEY,
        _VALUE,
        _RATE_LIMIT,
        _SHADOW_MODE,
        _QUOTA_MODE,
        _DETAILED_METRIC,
        _VALUE_TO_METRIC,
        _SHARE_THRESHOLD,
        _METADATA,
    ),
    nulls=True,
)
_CHILDREN = sections_word("descriptors", _DESCRIPTOR, "The descriptors of the next entry.")
_DESCRIPTOR.words["descriptors"] = _CHILDREN

DESCRIPTORS = sections_word(
    "descriptors",
    _DESCRIPTOR,
    "Rules in the format of envoyproxy/ratelimit. Files of that project can be used unchanged.",
    empty=True,
)


def _read_entries(node: Node) -> tuple[Keys, ...]:
    """Read the lists of entries: each is an attribute or a list of attributes. Raises `Invalid`."""
    if not isinstance(node, Items):
        hint = "for example [[message_type, to_number]]"
        raise unlike(node, "a list of lists of attributes", hint)
    problems = Problems()
    lists = problems.read_each(kinds.each(kinds.read_text), node)
    problems.refuse()
    return tuple(lists)


UNREACHED = "no request sends the entries of"
"""The beginning of a warning that does not hold for the service: Envoy sends entries itself."""


def _compile_entries(
    file: Values, root: DescriptorNode, attributes: Attributes, problems: Problems
) -> list[EntryReaders]:
    """Return the lists that can end at a limit of the tree under `root`, with the readers of their values."""
    stated = file[ENTRIES]
    lists = _default(file, root, attributes) if stated is None else _stated(file, stated, attributes, problems)
    return [tuple((key, entry_reader(key, attributes)) for key in keys) for keys in lists if any(limits_at(root, keys))]


def _warn_of_unreachable_limits(
    file: Values,
    root: DescriptorNode,
    lists: Sequence[EntryReaders],
    limits: Sequence[tuple[DescriptorLimit, Place]],
    warnings: Problems,
) -> None:
    """Warn about limits that no request reaches. A call of `check()` can still pass their entries."""
    client = file[CLIENT]
    absent = {key for key, source in (("user", client.user), ("tier", client.tier)) if source is None}
    sent = [keys for sources in lists if not absent & set(keys := tuple(key for key, _ in sources))]
    reached = {limit.key for keys in sent for limit in limits_at(root, keys)}
    unreached = [(limit, place) for limit, place in limits if limit.key not in reached]
    if unreached:
        limit, place = unreached[0]
        more = f" (and {len(unreached) - 1} more)" if len(unreached) > 1 else ""
        message = f"{UNREACHED} {quoted(limit.rule.name)}{more}: only check([...]) can send them"
        warnings.add(
            place, message, "define the values under attributes, and the entries that requests send under entries"
        )


def _default(file: Values, root: DescriptorNode, attributes: Attributes) -> list[Keys]:
    """Return the lists that are sent if `entries` is not set: each attribute alone, and all in the order of the file.

    All attributes that the file defines are sent. Built-in attributes are sent if a descriptor has them as its key.
    """
    own = tuple(file[ATTRIBUTES])
    named = tuple(key for key in dict.fromkeys(keys_of(root)) if key not in own and _is_attribute(key, attributes))
    return list(dict.fromkeys([*((key,) for key in own + named), own, own + named]))


def _is_attribute(key: str, attributes: Attributes) -> bool:
    return attributes.known(key) and not key.startswith("path:")


def _stated(file: Values, stated: tuple[Keys, ...], attributes: Attributes, problems: Problems) -> list[Keys]:
    for n, keys in enumerate(stated):
        for index, key in enumerate(keys):
            if not _is_attribute(key, attributes):
                names = [name for name in attributes.names() if name != "path:N"]
                place = file.place("entries", n, index)
                problems.add(place, f"there is no attribute {quoted(key)}", nearest(key, names))
    return [] if problems else list(dict.fromkeys(stated))


ENTRIES: Word[tuple[Keys, ...] | None] = Word(
    key="entries",
    read=_read_entries,
    default=None,
    schema={
        "type": "array",
        "items": {"anyOf": [kinds.TEXT, {"type": "array", "items": kinds.TEXT, "minItems": 1}]},
    },
    about="The lists of entries that a request sends to the descriptors. Each entry is an attribute.",
)
