"""Makes words of the common kinds: flags, numbers, choices, texts, durations and lists, with their JSON Schemas."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from ratelimit_mw.config import readers
from ratelimit_mw.config.tree import Node
from ratelimit_mw.config.word import Schema, Word
from ratelimit_mw.units import SECOND, parse_duration

T = TypeVar("T")

FUNCTION: Schema = {"type": "string", "pattern": r"^\s*python:", "examples": ["python:package.module:function"]}
"""The name of a function."""

TEXT: Schema = {"type": "string"}

NON_BLANK: Schema = {**TEXT, "minLength": 1, "pattern": r"\S"}
"""Text that is not blank."""


TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
"""A mapping of texts."""


def or_list(of: Schema, *, at_least: int = 1) -> Schema:
    """Return the schema of one value, or of a list of at least `at_least` values."""
    return {"anyOf": [of, {"type": "array", "items": of, "minItems": at_least}]}


def flag(key: str, about: str, **options: Any) -> Word[bool]:
    """Return a word that is true or false. The default is false."""
    return Word(
        key=key,
        read=readers.flag,
        default=False,
        shown_default=False,
        schema={"type": "boolean"},
        about=about,
        **options,
    )


def number(key: str, least: int, most: int, default: int, about: str, **options: Any) -> Word[int]:
    """Return a word that is a whole number from `least` to `most`."""
    schema = {"type": "integer", "minimum": least, "maximum": most}
    read = readers.whole_between(least, most)
    return Word(key=key, read=read, default=default, shown_default=default, schema=schema, about=about, **options)


def optional_number(key: str, least: int, most: int, about: str, **options: Any) -> Word[int | None]:
    """Return a word that is a whole number from `least` to `most`, or None if it is not set."""
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Word(key=key, read=readers.whole_between(least, most), default=None, schema=schema, about=about, **options)


def load(key: str, default: float, about: str, **options: Any) -> Word[float]:
    """Return a word that is a load: a number above 0 and at most 1."""
    schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    return Word(key=key, read=readers.load, default=default, schema=schema, about=about, **options)


def choice(key: str, words: tuple[str, ...], default: T, about: str, **options: Any) -> Word[T]:
    """Return a word whose value is one of `words`. A default of None is the value of a word that is not set."""
    read = cast("Callable[[Node], T]", readers.one_of(*words))
    schema = {"enum": list(words)}
    return Word(key=key, read=read, default=default, shown_default=default, schema=schema, about=about, **options)


def text(
    key: str, about: str, default: str = "", read: Callable[[Node], str] = readers.text, **options: Any
) -> Word[str]:
    """Return a word that is text."""
    return Word(key=key, read=read, default=default, shown_default=default, schema=TEXT, about=about, **options)


def optional_text(
    key: str, about: str, read: Callable[[Node], str | None] = readers.optional_text, **options: Any
) -> Word[str | None]:
    """Return a word that is text, or None if it is empty or not set."""
    return Word(key=key, read=read, default=None, schema=TEXT, about=about, **options)


def texts(key: str, about: str, **options: Any) -> Word[Mapping[str, str]]:
    """Return a word that is a mapping of texts. The user chooses its keys."""
    return Word(key=key, read=readers.texts, default={}, schema=TEXTS, about=about, **options)


def name(key: str, about: str, **options: Any) -> Word[str]:
    """Return a required word that is the name of a domain or a rule."""
    return Word(
        key=key,
        read=readers.name,
        default="",
        schema={**TEXT, "minLength": 1, "maxLength": readers.LONGEST_NAME},
        about=about,
        required=True,
        **options,
    )


def duration(
    key: str, least: str, most: str, default: str, about: str, *, example: str = "", **options: Any
) -> Word[float]:
    """Return a word that is a duration, in seconds.

    Args:
        key: The key.
        least: The shortest duration, as a file would write it. `most` and `default` are written in the same way.
        most: The longest duration.
        default: The default.
        about: See `Word`.
        example: Examples for the hint. Empty: those of `DurationError`.
        options: Further fields of the word.
    """
    read = cast("Callable[[Node], float]", readers.seconds(least, most, example=example))
    return Word(
        key=key,
        read=read,
        default=parse_duration(default) / SECOND,
        shown_default=default,
        schema={**TEXT, "examples": [least, default, most]},
        about=about,
        **options,
    )


def several(
    key: str,
    read: Callable[[Node], T],
    about: str,
    *,
    of: Schema = TEXT,
    empty: bool = False,
    default: tuple[T, ...] = (),
    **options: Any,
) -> Word[tuple[T, ...]]:
    """Return a word that is one value or a list of values.

    Args:
        key: The key.
        read: The reader of one value.
        about: See `Word`.
        of: The schema of one value.
        empty: True allows an empty list.
        default: The default.
        options: Further fields of the word.
    """
    return Word(
        key=key,
        read=readers.each(read, empty=empty),
        default=default,
        schema=or_list(of, at_least=0 if empty else 1),
        about=about,
        **options,
    )
