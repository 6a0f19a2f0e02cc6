"""Words: the keys of a rules file. Each word is described once; everything else is derived from the description.

A `Word` defines how its value is read, its default, its JSON Schema, what it cannot be combined with, and how it
changes a rule. A `Section` is a table of words: it reads a mapping of the file to `Values` and reports every error.
A word whose value is a section or a list of sections is a `SectionWord` or a `SectionsWord`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ratelimit_mw.config import readers
from ratelimit_mw.config.tree import Invalid, Items, Map, Node, Place, Problems, Scalar, kind, node_at, pack, unpack
from ratelimit_mw.errors import nearest, quoted

if TYPE_CHECKING:
    from ratelimit_mw.model import Quota

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Schema = Mapping[str, Any]
"""A JSON Schema, or a part of one."""

KeyHint = Callable[[str, str], str]
"""(unknown key, dotted name of its section) → a hint that names the section to which the key belongs, or ""."""


def no_hint(_key: str, _section: str) -> str:
    """Return no hint."""
    return ""


@cache
def _empty() -> bytes:
    """Return the packed node of the values that have no tree. All share it."""
    return pack(Map(Place()))


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
        node = self._node if isinstance(self._node, bytes) else pack(self._node)
        return Values, (node, self._found, self.dropped, self.extra)

    @property
    def node(self) -> Node:
        """The mapping that the values were read from."""
        node: Node = unpack(self._node) if isinstance(self._node, bytes) else self._node
        return node

    def __getitem__(self, word: "Word[T]") -> T:
        value: T = self._found.get(word.key, word.default)
        return value

    def __contains__(self, word: object) -> bool:
        """Return True if the word is set to a value that can be used."""
        return isinstance(word, Word) and word.key in self._found

    def __iter__(self) -> Iterator[str]:
        """Yield the keys that are set to values that can be used."""
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found) + len(self.extra)

    def place(self, *steps: str | int) -> Place:
        """Return the place of the value at the end of `steps`, or of the innermost usable value around it."""
        if steps and steps[0] in self.dropped:
            return self.node.place
        return node_at(self.node, steps).place

    def key_place(self, key: str) -> Place:
        """Return the place of a key itself."""
        node = self.node
        return node.keys_at[key] if isinstance(node, Map) and key in node.keys_at else node.place

    def has_key(self, key: str) -> bool:
        """Return True if the section in the file has the key, even if its value cannot be used.

        It is False if `with_value` has changed the node: the limit of an override is not in the section of its rule.
        """
        node = self.node
        return isinstance(node, Map) and key in node.keys_at

    def detached(self) -> "Values":
        """Return the same values without the tree that they were read from. This saves memory."""
        found = {key: value.detached() if isinstance(value, Values) else value for key, value in self._found.items()}
        return Values(_empty(), found)

    def with_value(self, word: "Word[T]", value: T, node: Node | None = None) -> "Values":
        """Return the same values with another value of `word`.

        Args:
            word: The word to change.
            value: Its new value.
            node: The node at whose place problems are reported. None keeps the present one.
        """
        found = {**self._found, word.key: value}
        return Values(self._node if node is None else node, found, self.dropped, self.extra)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Word(Generic[T_co]):
    """One key of a rules file.

    Args:
        key: The key.
        read: Returns the value of a node, or raises `Invalid`. The value must be plain data, because `PackedSections`
            packs it.
        default: The value of a word that is not set.
        schema: The JSON Schema of the value, or a function that returns it.
        about: The description in the JSON Schema and in the reference: one sentence.
        shown_default: The default in the JSON Schema, as a file would write it.
        unset: What holds if the word is not set, for the reference. For a word without `shown_default`.
        required: The key must be set.
        compared: The word changes neither what is charged nor when, so `ratelimit-mw check` may compare rules that
            have it.
        validate: (rule, problems): reports what the word cannot be combined with, and why.
        alter: (quota, rule, key prefix) → the quota of a counter, as the word changes it.
        fields: (rule, file) → the fields of `model.Rule` that the word sets.
    """

    key: str
    read: Callable[[Node], T_co]
    default: T_co
    schema: Schema | Callable[[], Schema]
    about: str
    shown_default: object = None
    unset: str = ""
    required: bool = False
    compared: bool = False
    validate: Callable[[Values, Problems], None] | None = None
    alter: Callable[["Quota", Values, str], "Quota"] | None = None
    fields: Callable[[Values, Values], Mapping[str, Any]] | None = None

    def take(self, node: Node, _problems: Problems, _key_hint: KeyHint) -> T_co:
        """Return the value of `node`. Raises `Invalid` if it cannot be used."""
        return self.read(node)

    def as_schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON Schema of the value. The schemas of sections are added to `shared` and referenced by name."""
        del shared
        default = {} if self.shown_default in (None, "", ()) else {"default": self.shown_default}
        schema = self.schema() if callable(self.schema) else self.schema
        return {"description": self.about, **schema, **default}


class Section:
    """A mapping of the file, and the table of its words.

    Args:
        title: The name of the section in the JSON Schema.
        about: The description in the JSON Schema and in the reference: one sentence.
        words: The table, in the order in which words are documented, validated and applied.
        open_keys: Allow keys that are not words. Their nodes are in `Values.extra`.
        any_of: Sets of keys. All keys of at least one set must be present.
    """

    def __init__(
        self,
        title: str,
        about: str,
        words: Iterable[Word[Any]],
        *,
        open_keys: bool = False,
        any_of: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        self.title = title
        self.about = about
        self.open_keys = open_keys
        self._any_of = any_of
        self._by_key = {word.key: word for word in words}

    @property
    def words(self) -> list[Word[Any]]:
        """The words of the table."""
        return list(self._by_key.values())

    def add(self, word: Word[Any]) -> None:
        """Add a word to the table. Raises ValueError if its key is there already."""
        if word.key in self._by_key:
            raise ValueError(f"{self.title} has the word '{word.key}' already")
        self._by_key[word.key] = word

    def remove(self, word: Word[Any]) -> None:
        """Undo `add`."""
        del self._by_key[word.key]

    @property
    def keys(self) -> list[str]:
        """The known keys, in the order of the table."""
        return list(self._by_key)

    def values(self) -> Values:
        """Return the values of a section that is not set: the defaults."""
        return Values(Map(Place()))

    def read(self, node: Map, problems: Problems, key_hint: KeyHint = no_hint) -> Values:
        """Return the values of a mapping. Errors are added to `problems`; the other words are still read."""
        found: dict[str, Any] = {}
        extra: dict[str, Node] = {}
        dropped = set(node.dropped)
        for word in self.words:
            if word.required and word.key not in node.keys_at:
                problems.add(node.place, f"the key '{word.key}' is missing")
        for key, place in node.keys_at.items():
            known = self._by_key.get(key)
            if known is None and not self.open_keys:
                name, colon, _ = key.partition(":")
                if colon and name in self._by_key:
                    # In braces, YAML reads `limit:5/s` as a key without a value. The value may be a secret.
                    problems.add(place, f"a space is missing after '{name}:'")
                else:
                    hint = key_hint(key, node.place.path) or nearest(key, self._by_key)
                    problems.add(place, f"unknown key {quoted(key)}", hint)
            elif key in node:
                if known is None:
                    extra[key] = node[key]
                else:
                    try:
                        found[key] = known.take(node[key], problems, key_hint)
                    except Invalid as invalid:
                        problems.add_all(invalid, node[key].place)
                        dropped.add(key)
        return Values(node, found, dropped, extra)

    def as_schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        """Add the JSON Schema of the section to `shared`, and return a reference to it."""
        if self.title not in shared:
            shared[self.title] = {}  # set first, because a section may contain sections of its own kind
            made: dict[str, Any] = {
                "type": "object",
                "description": self.about,
                "properties": {word.key: word.as_schema(shared) for word in self.words},
            }
            if not self.open_keys:
                made["additionalProperties"] = False
            if required := [word.key for word in self.words if word.required]:
                made["required"] = required
            if self._any_of:
                made["anyOf"] = [{"required": list(keys)} for keys in self._any_of]
            shared[self.title] = made
        return {"$ref": f"#/$defs/{self.title}"}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SectionWord(Word[Values]):
    """A word whose value is a section.

    Args:
        section: Returns the section.
        example: The hint for a value that is not a mapping.
        may_be_empty: A key without a value stands for the default. Otherwise it is an error.
    """

    section: Callable[[], Section]
    example: str = ""
    may_be_empty: bool = False

    def take(self, node: Node, problems: Problems, key_hint: KeyHint) -> Values:
        """See `Word.take`. Words of the section that cannot be used are left out."""
        if self.may_be_empty and is_empty(node):
            return self.default
        if isinstance(node, Map):
            return self.section().read(node, problems, key_hint)
        raise Invalid.at(None, f"must be a mapping, not {kind(node)}", "" if is_empty(node) else self.example)

    def as_schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        """See `Word.as_schema`."""
        return {"description": self.about, **self.section().as_schema(shared)}


class PackedSections(Sequence[Values]):
    """The values of a list of sections. They are kept packed (see `tree.pack`): each access makes a copy."""

    def __init__(self, sections: Iterable[Values]) -> None:
        self._packed = [pack(values) for values in sections]

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> Values: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Values]: ...
    def __getitem__(self, index: int | slice) -> Values | Sequence[Values]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        values: Values = unpack(self._packed[index])
        return values


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SectionsWord(Word[Sequence[Values]]):
    """A word whose value is a list of sections. See `SectionWord` for the other arguments.

    Args:
        packed: There may be thousands of sections, so their values are kept packed.
        or_one: One section stands for a list of one. An empty list is an error.
    """

    section: Callable[[], Section]
    example: str = ""
    may_be_empty: bool = False
    packed: bool = False
    or_one: bool = False

    def take(self, node: Node, problems: Problems, key_hint: KeyHint) -> Sequence[Values]:
        """See `Word.take`. An item that is not a mapping keeps its place in the list."""
        if self.may_be_empty and is_empty(node):
            return ()
        section = self.section()
        if self.or_one and isinstance(node, Map):
            return (section.read(node, problems, key_hint),)
        if not isinstance(node, Items):
            form = "a mapping or a list" if self.or_one else "a list"
            raise Invalid.at(None, f"must be {form}, not {kind(node)}", "" if is_empty(node) else self.example)
        if self.or_one and not node:
            raise Invalid.at(None, "the list must not be empty")
        sections = (
            section.read(item, problems, key_hint) if isinstance(item, Map) else self._not_a_section(item, problems)
            for item in node
        )
        return PackedSections(sections) if self.packed else tuple(sections)

    def _not_a_section(self, node: Node, problems: Problems) -> Values:
        problems.add(node.place, f"must be a mapping, not {kind(node)}", "" if is_empty(node) else self.example)
        return Values(Map(node.place), dropped=("",))

    def as_schema(self, shared: dict[str, Any]) -> dict[str, Any]:
        """See `Word.as_schema`."""
        one = self.section().as_schema(shared)
        several = {"type": "array", "items": one}
        if self.or_one:
            return {"description": self.about, "anyOf": [one, {**several, "minItems": 1}]}
        return {"description": self.about, **several}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TextsWord(Word[Mapping[str, str]]):
    """A word whose value is a mapping of texts. The user chooses its keys."""

    def take(self, node: Node, problems: Problems, _key_hint: KeyHint) -> Mapping[str, str]:
        """See `Word.take`. Texts that cannot be used are left out."""
        if not isinstance(node, Map):
            raise Invalid.at(None, f"must be a mapping, not {kind(node)}")
        found: dict[str, str] = {}
        for key, value in node.items():
            try:
                found[key] = readers.text(value)
            except Invalid as invalid:
                problems.add_all(invalid, value.place)
        return found


def is_empty(node: Node) -> bool:
    """Return True if a key has no value."""
    return isinstance(node, Scalar) and node.value is None and not node.text


def section_word(key: str, section: Section, **options: Any) -> SectionWord:
    """Return the word for a section. `options` are further fields of the word."""
    default, about = section.values(), section.about
    return SectionWord(
        key=key, read=_never_read, default=default, schema={}, about=about, section=lambda: section, **options
    )


def sections_word(key: str, section: Callable[[], Section], about: str, **options: Any) -> SectionsWord:
    """Return the word for a list of sections.

    `section` is called when a file is read, so that a section may contain sections of its own kind.
    """
    return SectionsWord(key=key, read=_never_read, default=(), schema={}, about=about, section=section, **options)


def texts_word(key: str, about: str, **options: Any) -> TextsWord:
    """Return the word for a mapping of texts."""
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    return TextsWord(key=key, read=_never_read, default={}, schema=schema, about=about, **options)


def _never_read(node: Node) -> Any:
    raise TypeError(f"{node.place.path}: a section is read by `take`")
