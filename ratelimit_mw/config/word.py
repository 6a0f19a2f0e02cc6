"""Words: the keys of a rules file. Each word is described once; everything else is derived from the description.

A `Word` defines how its value is read, its default, its JSON Schema, what it cannot be combined with, and how it
changes a rule. A `Section` is a table of words: it reads a mapping of the file, reports every error, checks the values
against each other, and makes one object of them. The value of a word may itself be a section, or a list of sections.

Reading has one form everywhere: a function from a node to its value, which raises `tree.Invalid`. A reader may combine
other readers, with `tree.Problems`, so that all errors of a file are reported at once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ratelimit_mw.config.tree import (
    UNUSABLE,
    Items,
    Map,
    Node,
    Packed,
    Place,
    Problems,
    Scalar,
    is_empty,
    kind,
    node_at,
    pack,
    unlike,
    unpack,
)
from ratelimit_mw.errors import Invalid, nearest, quoted

if TYPE_CHECKING:
    from ratelimit_mw.model import Quota

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Schema = Mapping[str, Any]
"""A JSON Schema, or a part of one."""

SchemaOf = Schema | Callable[[dict[str, Any]], Schema]
"""A JSON Schema, or a function that returns it. The function adds the schemas of sections to its argument by title."""

_NO_KEYS: frozenset[str] = frozenset()


class Values:
    """The values of one section, by word. A word that is not set has its default.

    Args:
        node: The mapping that the values were read from, or the same packed (see `tree.pack`).
        found: The values that are set.
        dropped: The keys whose values cannot be used. The problem has been reported; further checks must not report
            errors that follow from it. For a list item that is not a mapping, this is the key "".
        extra: The nodes of keys that are not words, if the section has `open_keys`.
    """

    __slots__ = ("_found", "_node", "dropped", "extra")

    def __init__(
        self,
        node: Node | bytes,
        found: Mapping[str, Any] | None = None,
        dropped: Iterable[str] = _NO_KEYS,
        extra: Mapping[str, Node] | None = None,
    ) -> None:
        self._node = node
        self._found = dict(found or {})
        self.dropped = frozenset(dropped)
        self.extra: Mapping[str, Node] = extra or {}

    def __reduce__(self) -> tuple[Any, ...]:
        # The node is packed by itself, because it is only unpacked to report a problem.
        node = self._node if isinstance(self._node, bytes) else pack(self._node, self._node)
        return Values, (node, self._found, self.dropped, self.extra)

    @property
    def node(self) -> Node:
        """The mapping that the values were read from."""
        node: Node = unpack(self._node)
        return node

    def __getitem__(self, word: "Word[T]") -> T:
        value: T = self._found.get(word.key, word.default)
        return value

    def __contains__(self, key: str) -> bool:
        """Return True if the key is set to a value that can be used."""
        return key in self._found

    def __len__(self) -> int:
        return len(self._found) + len(self.extra)

    def differs(self, word: "Word[Any]") -> bool:
        """Return True if the value of a word is not its default."""
        return word.key in self._found and self._found[word.key] != word.default

    def place(self, *steps: str | int) -> Place:
        """Return the place of the value at the end of `steps`, or of the innermost usable value around it."""
        if steps and steps[0] in self.dropped:
            return self.node.place
        return node_at(self.node, steps).place

    def key_place(self, key: str) -> Place:
        """Return the place of a key itself."""
        node = self.node
        return node.keys_at.get(key, node.place) if isinstance(node, Map) else node.place

    def has_key(self, *steps: str) -> bool:
        """Return True if the file has the key at the end of `steps`, even if its value cannot be used.

        It is False if `with_value` has changed the node: the limit of an override is not in the section of its rule.
        """
        node = node_at(self.node, steps[:-1])
        return isinstance(node, Map) and steps[-1] in node.keys_at

    def detached(self, without: "Word[Any]") -> "Values":
        """Return the same values without one of the words, and without the tree that they were read from."""
        return Values(Map(Place()), {key: value for key, value in self._found.items() if key != without.key})

    def with_value(self, word: "Word[T]", value: T, node: Node | None = None) -> "Values":
        """Return the same values with another value of `word`.

        Args:
            word: The word to change.
            value: Its new value.
            node: The node at whose place problems are reported. None keeps the present one.
        """
        found = {**self._found, word.key: value}
        return Values(self._node if node is None else node, found, self.dropped, self.extra)


class Conflict(NamedTuple):
    """Another word that a rule cannot have beside the word that states the conflict. It is reported at its place.

    Attributes:
        other: The other word.
        why: Why the two cannot be combined.
        hint: What would be right.
        when: Returns True if a rule has the conflict. None: if the other word differs from its default.
        what: Which value of the other word is meant, if not every one.
    """

    other: "Word[Any]"
    why: str
    hint: str = "remove one of the two"
    when: Callable[[Values], object] | None = None
    what: str = ""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Word(Generic[T_co]):
    """One key of a rules file.

    `conflicts`, `validate`, `alter` and `fields` are used only for a rule in which the word differs from its default.

    Args:
        key: The key.
        read: Returns the value of a node, or raises `Invalid`.
        default: The value of a word that is not set.
        schema: The JSON Schema of the value, or a function that returns it.
        about: The description in the JSON Schema and in the reference: one sentence.
        shown_default: The default in the JSON Schema, as a file would write it.
        unset: What holds if the word is not set, for the reference. For a word without `shown_default`.
        required: The key must be set.
        compared: The word changes neither what is charged nor when, so `ratelimit-mw check` may compare rules that
            have it.
        section: The section, if the value is one or contains some.
        conflicts: What the word cannot be combined with.
        validate: (rule, problems): reports further combinations that a rule cannot have.
        alter: (quota, rule, key prefix) → the quota of a counter, as the word changes it.
        fields: (value) → the fields of `model.Rule` that the word sets.
    """

    key: str
    read: Callable[[Node], T_co]
    default: T_co
    schema: SchemaOf
    about: str
    shown_default: object = None
    unset: str = ""
    required: bool = False
    compared: bool = False
    section: "Section | None" = None
    conflicts: tuple[Conflict, ...] = ()
    validate: Callable[[Values, Problems], None] | None = None
    alter: Callable[["Quota", Values, str], "Quota"] | None = None
    fields: Callable[[Any], Mapping[str, Any]] | None = None

    def check(self, rule: Values, problems: Problems) -> None:
        """Report what the word cannot be combined with in a rule."""
        if rule.differs(self):
            for other, why, hint, when, what in self.conflicts:
                if rule.differs(other) if when is None else when(rule):
                    message = f"{what} can't be combined with {self.key}: {why}".strip()
                    problems.add(rule.place(other.key), message, hint)
            if self.validate is not None:
                self.validate(rule, problems)

    def as_schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON Schema of the value. The schemas of sections are added to `shared` and referenced by name."""
        default = {} if self.shown_default in (None, "", ()) else {"default": self.shown_default}
        return {"description": self.about, **schema_of(self.schema, shared), **default}


def schema_of(schema: SchemaOf, shared: dict[str, Any]) -> Schema:
    """Return the JSON Schema itself. The schemas of sections are added to `shared`."""
    return schema(shared) if callable(schema) else schema


class Section:
    """A mapping of the file, and the table of its words.

    Args:
        title: The name of the section in the JSON Schema.
        about: The description in the JSON Schema and in the reference: one sentence.
        words: The table, in the order in which words are documented, validated and applied.
        make: Makes the value of the section. It gets the value of every word, by its key. None: the value is `Values`.
        check: (values, problems): reports words that do not fit together. A word that cannot be used has its default.
        example: The hint for a value that is not a mapping, and for missing keys.
        whole: A section with an error cannot be used. Otherwise its words without errors can.
        open_keys: Allow keys that are not words. Their nodes are in `Values.extra`.
        any_of: Keys of which at least one must be present.
        nulls: A key without a value has its default. Otherwise it is an error, unless the word reads it.
    """

    def __init__(
        self,
        title: str,
        about: str,
        words: Iterable[Word[Any]],
        *,
        make: Callable[..., Any] | None = None,
        check: Callable[[Values, Problems], None] | None = None,
        example: str = "",
        whole: bool = False,
        open_keys: bool = False,
        any_of: tuple[str, ...] = (),
        nulls: bool = False,
    ) -> None:
        self.title = title
        self.about = about
        self._make = make
        self._check = check
        self._example = example
        self._whole = whole
        self._open_keys = open_keys
        self._any_of = any_of
        self._nulls = nulls
        self.words = {word.key: word for word in words}
        """The table, by key."""

    def default(self) -> Any:
        """Return the value of a section that is not set."""
        return self._made(Values(Map(Place())))

    def read(self, node: Node) -> Any:
        """Return the value of a section. Raises `Invalid` with every error, and with what can be used."""
        if not isinstance(node, Map):
            raise unlike(node, "a mapping", self._example)
        problems = Problems()
        self._report_missing(node, problems)
        values = self._values(node, problems)
        if self._check is not None:
            self._check(values, problems)
        if self._whole:
            problems.refuse()
        return problems.checked(self._made(values))

    def _made(self, values: Values) -> Any:
        return values if self._make is None else self._make(**{key: values[word] for key, word in self.words.items()})

    def _report_missing(self, node: Map, problems: Problems) -> None:
        missing = [repr(word.key) for word in self.words.values() if word.required and word.key not in node.keys_at]
        if self._any_of and not any(key in node.keys_at for key in self._any_of):
            missing.append(" or ".join(map(repr, self._any_of)))
        if missing:
            listed = " and ".join(missing)
            message = f"the key {listed} is missing" if len(missing) == 1 else f"the keys {listed} are missing"
            problems.add(node.place, message, self._example)

    def _values(self, node: Map, problems: Problems) -> Values:
        found: dict[str, Any] = {}
        extra: dict[str, Node] = {}
        for key, place in node.keys_at.items():
            word = self.words.get(key)
            if word is None and not self._open_keys:
                self._report_unknown(key, place, problems)
            elif key in node:
                if word is None:
                    extra[key] = node[key]
                    continue
                given = node[key]
                value = word.default
                if not (self._nulls and isinstance(given, Scalar) and given.value is None):
                    value = problems.read(word.read, given, UNUSABLE)
                if value is not UNUSABLE:
                    found[key] = value
        dropped = [key for key in node.keys_at if key not in node or (key in self.words and key not in found)]
        return Values(node, found, dropped, extra)

    def _report_unknown(self, key: str, place: Place, problems: Problems) -> None:
        name, colon, _ = key.partition(":")
        if colon and name in self.words:
            # In braces, YAML reads `limit:5/s` as a key without a value. The value may be a secret.
            problems.add(place, f"a space is missing after '{name}:'")
        else:
            problems.add(place, f"unknown key {quoted(key)}", nearest(key, self.words), unknown_key=key)

    def as_schema(self, shared: dict[str, Any]) -> Schema:
        """Add the JSON Schema of the section to `shared`, and return a reference to it."""
        if self.title not in shared:
            shared[self.title] = {}  # set first, because a section may contain sections of its own kind
            made: dict[str, Any] = {
                "type": "object",
                "description": self.about,
                "properties": {key: word.as_schema(shared) for key, word in self.words.items()},
            }
            if not self._open_keys:
                made["additionalProperties"] = False
            if required := [word.key for word in self.words.values() if word.required]:
                made["required"] = required
            if self._any_of:
                made["anyOf"] = [{"required": [key]} for key in self._any_of]
            shared[self.title] = made
        return {"$ref": f"#/$defs/{self.title}"}


def section_word(key: str, section: Section, about: str = "", **options: Any) -> Word[Any]:
    """Return the word for a section. `options` are further fields of the word."""
    return Word(
        **{
            "key": key,
            "read": section.read,
            "default": section.default(),
            "schema": section.as_schema,
            "about": about or section.about,
            "section": section,
            **options,
        }
    )


def sections_word(
    key: str,
    section: Section,
    about: str,
    *,
    example: str = "",
    empty: bool = False,
    or_one: bool = False,
    packed: bool = False,
    **options: Any,
) -> Word[Sequence[Values]]:
    """Return the word for a list of sections.

    Args:
        key: The key.
        section: The section of each item.
        about: See `Word`.
        example: The hint for a value that is not a list, or for an item that is not a mapping.
        empty: A key without a value stands for an empty list. Otherwise it is an error.
        or_one: One section stands for a list of one. An empty list is an error.
        packed: There may be thousands of sections, so their values are kept packed.
        options: Further fields of the word.
    """

    def read(node: Node) -> Sequence[Values]:
        if empty and is_empty(node):
            return ()
        listed = [node] if or_one and isinstance(node, Map) else node
        if not isinstance(listed, Items | list):
            form = "a mapping or a list" if or_one else "a list"
            raise unlike(node, form, "" if is_empty(node) else example)
        if or_one and not listed:
            raise Invalid("the list must not be empty")
        problems = Problems()
        sections = (_item(section, item, example, problems) for item in listed)
        return problems.checked(Packed((each, each.node) for each in sections) if packed else tuple(sections))

    def schema(shared: dict[str, Any]) -> Schema:
        one = section.as_schema(shared)
        several = {"type": "array", "items": one}
        return {"anyOf": [one, {**several, "minItems": 1}]} if or_one else several

    return Word(key=key, read=read, default=(), schema=schema, about=about, section=section, **options)


def _item(section: Section, node: Node, example: str, problems: Problems) -> Values:
    """Return the values of an item. An item that is not a mapping keeps its place in the list."""
    unusable = Values(Map(node.place), dropped=("",))
    if isinstance(node, Map):
        return problems.read(section.read, node, unusable)
    problems.add(node.place, f"must be a mapping, not {kind(node)}", "" if is_empty(node) else example)
    return unusable
