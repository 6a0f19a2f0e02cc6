"""The common kinds of values: their readers, and words of these kinds with their JSON Schemas.

A reader returns the value of a node of the tree, or raises `Invalid`.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from ipaddress import IPv4Network as IPv4
from ipaddress import IPv6Network, ip_network
from typing import Any, TypeVar, cast

from ratelimit_mw.config.tree import Items, Map, Node, Problems, Scalar, kind, unlike
from ratelimit_mw.config.word import Schema, Section, Word
from ratelimit_mw.errors import Invalid, near, quoted
from ratelimit_mw.identity.address import canonical
from ratelimit_mw.identity.sources import HEADER_NAME, imported, is_async
from ratelimit_mw.settings import Network
from ratelimit_mw.units import SECOND, parse_duration

T = TypeVar("T")
D = TypeVar("D", int, None)

LONGEST_NAME = 100
"""The most characters in the name of a domain or a rule."""

TOKEN = HEADER_NAME
"""The name of a header or a method, which have the same form."""

PLACEHOLDER = re.compile(r"\{([A-Za-z_-]+)\}")
"""A placeholder in a message, such as {limit}."""

_DIGITS = re.compile("[0-9]{1,10}")


def read_text(node: Node) -> str:
    """Read any text. A number or a flag is read as the text that was written."""
    if not isinstance(node, Scalar):
        raise unlike(node, "text")
    if node.value is None and node.text:
        raise unlike(node, "text", "put it in quotes if it is text")
    if not node.text.isascii() and any("\ud800" <= character <= "\udfff" for character in node.text):
        hint = "write the character itself, or its \\U escape"
        raise Invalid(f"{quoted(node.text)} has half of a surrogate pair, which is not a character", hint)
    return node.text


def read_match(node: Node, pattern: re.Pattern[str], form: str, hint: str) -> re.Match[str]:
    """Read a text that a pattern matches. Raises `Invalid` if it does not: the value must be of this `form`."""
    found = pattern.fullmatch(node.text.strip()) if isinstance(node, Scalar) else None
    if found is None:
        raise unlike(node, form, hint)
    return found


def read_non_blank(node: Node) -> str:
    """Read the text that an attribute is compared with. It must not be blank, because an attribute never is."""
    found = read_text(node)
    if not found.strip():
        hint = "write a value, or remove the key to match every value"
        raise Invalid(f"{quoted(found) if found else 'an empty value'} matches no request", hint)
    return found


def read_optional_text(node: Node) -> str | None:
    """Read text. Empty text is None."""
    return read_text(node) or None


def read_name(node: Node) -> str:
    """Read the name of a domain or a rule. It appears in keys, logs and response bodies, so it must be printable."""
    found = read_text(node)
    if not found.strip():
        raise Invalid("must not be empty")
    if not found.isprintable():
        raise Invalid(f"{quoted(found)} contains a character that can't be printed")
    if len(found) > LONGEST_NAME:
        raise Invalid(f"longer than {LONGEST_NAME} characters")
    return found


def _read_whole(node: Node) -> int:
    """Read a whole number."""
    if isinstance(node, Scalar) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return node.value
    hint = ""
    if isinstance(node, Scalar) and _DIGITS.fullmatch(node.text):
        hint = f"write {int(node.text)} without quotes and without leading zeros"
    raise unlike(node, "a whole number", hint)


def whole_between(least: int, most: int) -> Callable[[Node], int]:
    """Return a reader of whole numbers from `least` to `most`."""

    def read(node: Node) -> int:
        found = _read_whole(node)
        if found < least:
            raise Invalid(f"{kind(node)} is too small", f"at least {least}")
        if found > most:
            raise Invalid(f"{kind(node)} is too large", f"at most {most}")
        return found

    return read


def read_flag(node: Node) -> bool:
    """Read true or false."""
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return node.value
    meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}
    hint = f"write {meant[node.text.lower()]}" if isinstance(node, Scalar) and node.text.lower() in meant else ""
    raise unlike(node, "true or false", hint)


def read_load(node: Node) -> float:
    """Read a load: a number above 0 and at most 1."""
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise unlike(node, "a load from 0 to 1", "for example 0.7")
    if not 0 < value <= 1:
        raise Invalid(f"a load of {value} is out of range", "must be above 0 and at most 1")
    return float(value)


def one_of(*words: str, other_names: Mapping[str, str] | None = None) -> Callable[[Node], str]:
    """Return a reader of one of `words`. For `other_names` see `errors.near`."""

    def read(node: Node) -> str:
        word = read_text(node)
        if word not in words:
            raise unlike(node, f"one of {', '.join(words)}", near(word, words, other_names or {}))
        return word

    return read


def each(read: Callable[[Node], T], *, empty: bool = False) -> Callable[[Node], tuple[T, ...]]:
    """Return a reader of one value or a list of values. It reports every bad value. `empty` allows an empty list."""

    def read_each(node: Node) -> tuple[T, ...]:
        if not isinstance(node, Items):
            return (read(node),)
        if not node and not empty:
            raise Invalid("the list must not be empty")
        problems = Problems()
        found = problems.read_each(read, node)
        problems.refuse()
        return tuple(found)

    return read_each


def duration_between(text: str, least: str, most: str) -> int:
    """Return a duration in microseconds. Raises `Invalid` if it is not from `least` to `most`."""
    found = parse_duration(text)
    if not parse_duration(least) <= found <= parse_duration(most):
        raise Invalid(f"{quoted(text.strip())} is out of range", f"from {least} to {most}")
    return found


def seconds(least: str, most: str) -> Callable[[Node], float]:
    """Return a reader of durations, in seconds."""
    return lambda node: duration_between(read_text(node), least, most) / SECOND


def read_timestamp(node: Node) -> int:
    """Read a date or a time in ISO 8601, as microseconds since the epoch. Without an offset it is UTC."""
    try:
        found = datetime.fromisoformat(read_text(node))
    except ValueError:
        hint = "for example 2026-12-31 or 2026-12-31T18:00:00Z"
        raise Invalid(f"{quoted(read_text(node))} is not a time in ISO 8601", hint) from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def read_network(node: Node) -> Network:
    """Read an address or a network in CIDR notation. An IPv4-mapped IPv6 network is read as the IPv4 network."""
    written = read_text(node)
    try:
        found = ip_network(written)
    except ValueError:
        raise _not_a_network(written) from None
    mapped = found.network_address.ipv4_mapped if isinstance(found, IPv6Network) and found.prefixlen >= 96 else None
    return found if mapped is None else IPv4((mapped, found.prefixlen - 96))


def read_network_text(node: Node) -> str:
    """Read an address or a network, as `read_network` does, as text: "10.0.0.0/8", or "192.0.2.1/32" for an address."""
    written = read_text(node)
    # Most entries of a long list are IPv4 addresses, which the system reads in a tenth of the time.
    return f"{written}/32" if canonical(written) == written and ":" not in written else str(read_network(node))


def _not_a_network(written: str) -> Invalid:
    try:
        meant = ip_network(written, strict=False)
    except ValueError:
        hint = "for example 10.0.0.0/8, 2001:db8::/32 or 192.0.2.1"
        return Invalid(f"{quoted(written)} is neither an address nor a network", hint)
    return Invalid(f"{quoted(written)} has host bits set, so it is not a network", f"did you mean '{meant}'?")


def read_header_name(node: Node) -> str:
    """Read the name of a header."""
    word = read_text(node)
    if not TOKEN.fullmatch(word):
        raise Invalid(f"{quoted(word)} is not a header name", "for example X-Forwarded-For")
    return word


def read_texts(node: Node) -> dict[str, str]:
    """Read a mapping of texts. The user chooses its keys. Texts that cannot be used are left out."""
    if not isinstance(node, Map):
        raise unlike(node, "a mapping")
    problems = Problems()
    found = {key: value for key, each in node.items() for value in problems.read_each(read_text, [each])}
    return problems.checked(found)


def read_function(node: Node) -> tuple[Callable[..., Any], str]:
    """Import a plain function, as `python:package.module:function`. Return it, and its name in the file."""
    written = read_text(node).strip()
    scheme, _, target = written.partition(":")
    if scheme != "python":
        raise Invalid(f"{quoted(written)} is not a function", "write python:package.module:function")
    found = imported(target.strip())
    if is_async(found):
        raise Invalid(f"{quoted(written)} is an async function", "write it as a plain function")
    return found, written


def function_or(section: Section, make: Callable[[Callable[..., Any], str], Any]) -> Callable[[Node], Any]:
    """Return a reader of a section, or of a function. `make` makes the value of a function and its name in the file."""

    def read(node: Node) -> Any:
        if isinstance(node, Scalar) and node.text.strip().startswith("python:"):
            return make(*read_function(node))
        return section.read(node)

    return read


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
        read=read_flag,
        default=False,
        shown_default=False,
        schema={"type": "boolean"},
        about=about,
        **options,
    )


def number(key: str, least: int, most: int, default: D, about: str, **options: Any) -> Word[int | D]:
    """Return a word that is a whole number from `least` to `most`. A default of None is that of an unset word."""
    schema = {"type": "integer", "minimum": least, "maximum": most}
    options.setdefault("shown_default", default)
    return Word(key=key, read=whole_between(least, most), default=default, schema=schema, about=about, **options)


def load(key: str, default: float, about: str, **options: Any) -> Word[float]:
    """Return a word that is a load: a number above 0 and at most 1."""
    schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    return Word(key=key, read=read_load, default=default, schema=schema, about=about, **options)


def choice(key: str, words: tuple[str, ...], default: T, about: str, **options: Any) -> Word[T]:
    """Return a word whose value is one of `words`. A default of None is the value of a word that is not set."""
    read = cast("Callable[[Node], T]", one_of(*words))
    schema = {"enum": list(words)}
    return Word(key=key, read=read, default=default, shown_default=default, schema=schema, about=about, **options)


def text(key: str, about: str, default: str = "", read: Callable[[Node], str] = read_text, **options: Any) -> Word[str]:
    """Return a word that is text."""
    return Word(key=key, read=read, default=default, shown_default=default, schema=TEXT, about=about, **options)


def optional_text(
    key: str, about: str, read: Callable[[Node], str | None] = read_optional_text, **options: Any
) -> Word[str | None]:
    """Return a word that is text, or None if it is empty or not set."""
    return Word(key=key, read=read, default=None, schema=TEXT, about=about, **options)


def name(key: str, about: str, **options: Any) -> Word[str]:
    """Return a required word that is the name of a domain or a rule."""
    return Word(
        key=key,
        read=read_name,
        default="",
        schema={**TEXT, "minLength": 1, "maxLength": LONGEST_NAME},
        about=about,
        required=True,
        **options,
    )


def duration(key: str, least: str, most: str, default: str, about: str, **options: Any) -> Word[float]:
    """Return a word that is a duration, in seconds.

    Args:
        key: The key.
        least: The shortest duration, as a file would write it. `most` and `default` are written in the same way.
        most: The longest duration.
        default: The default.
        about: See `Word`.
        options: Further fields of the word.
    """
    return Word(
        key=key,
        read=seconds(least, most),
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
        read=each(read, empty=empty),
        default=default,
        schema=or_list(of, at_least=0 if empty else 1),
        about=about,
        **options,
    )
