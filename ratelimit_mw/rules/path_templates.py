"""Path templates in the syntax of Starlette, and the values that each kind of parameter matches.

A typed parameter matches every text that Python's own type reads. Exemptions and `replaces` match plain texts alone,
because all routers agree about them: digits, digits with a point, and the 36 characters of a UUID.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, NewType, TypeVar
from uuid import UUID

from ratelimit_mw.errors import Invalid

_MAX_LENGTH = 1_000
"""The largest number of characters in a template."""

_PARAMETER = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-zA-Z_][a-zA-Z0-9_]*))?\}")
_OTHER_DIALECTS = re.compile(r"<(?:(\w+):)?(\w+)>|(?<=/):([a-zA-Z_]\w*)(?=/|\Z)")  # Flask: <id>, Express: :id
_REFUSED = (
    (re.compile("://"), "this is a URL, not a path", "a path begins with '/'; for the host, there is the key host"),
    (
        re.compile(r"\A\^|\.\*|\\[dw]|\(\?|\[\^"),
        "regular expressions are not supported",
        "write {name} for one segment, '/*' for all below",
    ),
    (
        re.compile(r"/\.\.?(?:/|\Z)"),
        "a path can't have the segments '.' and '..'",
        "those of a request are resolved before it is matched",
    ),
    (re.compile("[?#]"), "a path has no '?' and no '#'", "for a query parameter, there is the key query:N"),
)
"""What no path template has, with the message and the hint."""

KINDS = ("str", "int", "float", "uuid", "path")
"""The kinds of parameters that a template may name."""


class Segment(NamedTuple):
    """One segment: `texts[0] {kinds[0]} texts[1] …`. Without kinds it is only the text `texts[0]`."""

    texts: tuple[str, ...]
    kinds: tuple[str, ...] = ()

    @property
    def pattern(self) -> str:
        """The text of the segment, without the names of its parameters."""
        return self.filled(iter([f"{{{kind}}}" for kind in self.kinds]))

    def filled(self, values: Iterator[str]) -> str:
        """Return the segment's text with the next values in place of its parameters."""
        return self.texts[0] + "".join([next(values) + text for text in self.texts[1:]])


class Tail(NamedTuple):
    """A part that matches any number of segments: `before`, the value, `after`, then the fixed number of `segments`.

    `folder` marks the tail `/*`. It is not a parameter, and it also matches a path that ends before it.
    """

    before: str
    after: str
    segments: tuple[Segment, ...] = ()
    folder: bool = False


class TemplateParts(NamedTuple):
    """The parts of a template. `names` and `kinds` are those of its parameters, from left to right."""

    segments: tuple[Segment, ...]
    tail: Tail | None
    names: tuple[str, ...]
    kinds: tuple[str, ...]


Template = NewType("Template", str)
"""A valid template: its text. `parse` makes one, and `parts_of` makes its parts."""


def pieces_of(template: Template) -> list[str]:
    """Return the texts between the slashes. The last piece of a folder is "*"."""
    return template[1:].split("/")


def cleaned(template: Template) -> Template:
    """Return the template without empty segments. The cleaned form of a path is matched with it."""
    if template[-1] != "/" and "//" not in template:
        return template
    return Template("".join([f"/{piece}" for piece in pieces_of(template) if piece]) or "/")


def with_values(parts: TemplateParts, path: str, values: Iterable[str]) -> str:
    """Return `path`, which a template with these parts matches, with `values` in place of its parameters."""
    pieces, left = path.split("/"), iter(values)
    for index, segment in enumerate(parts.segments, 1):
        pieces[index] = segment.filled(left)
    if parts.tail is not None and not parts.tail.folder:
        next(left)  # the value of the tail is a path, which has only one spelling
        for index, segment in enumerate(parts.tail.segments, -len(parts.tail.segments)):
            pieces[index] = segment.filled(left)
    return "/".join(pieces)


def parse(text: str) -> Template:
    """Check a template of a file. Raises `Invalid`, with a message for the user, if it is invalid."""
    _check_path(text)
    _refuse_other_dialects(text, text.removesuffix("/*"))
    parts_of(text)
    return Template(text)


def parts_of(text: str) -> TemplateParts:
    """Return the parts of a template. Raises `Invalid` if it is invalid."""
    body, folder = (text[:-2], True) if text.endswith("/*") else (text, False)
    names: list[str] = []
    kinds: list[str] = []
    segments: list[Segment] = []
    head: list[Segment] = []
    tail: Tail | None = None
    for piece in body[1:].split("/") if body else ():
        segment = _segment(piece, names, kinds)
        if "path" not in segment.kinds:
            segments.append(segment)
        elif tail is not None or folder:
            raise Invalid("only one part of a path can match any number of segments", "one {name:path}, or '/*'")
        elif len(segment.kinds) > 1:
            raise Invalid("a {name:path} can't share its segment with another parameter")
        else:
            tail = Tail(segment.texts[0], segment.texts[1])
            head, segments = segments, []
    if tail is not None:
        tail, segments = tail._replace(segments=tuple(segments)), head
    elif folder:
        tail = Tail("", "", folder=True)
    return TemplateParts(tuple(segments), tail, tuple(names), tuple(kinds))


def _check_path(text: str) -> None:
    for pattern, message, hint in _REFUSED:
        if pattern.search(text):
            raise Invalid(message, hint)
    if not text.startswith("/"):
        raise Invalid("a path begins with '/'", f"did you mean '/{text}'?" if text else "")
    if len(text) > _MAX_LENGTH:
        raise Invalid(f"longer than {_MAX_LENGTH} characters")
    if not text.isprintable():
        raise Invalid("contains a character that can't be printed")


def _refuse_other_dialects(text: str, body: str) -> None:
    if "*" in body:
        folder = body.rstrip("/*") + "/*"
        hint = f"did you mean '{folder}'?" if "*" not in folder[:-1] else "for one segment write {name}"
        raise Invalid("'*' is possible only at the end, as '/*'", hint)
    other = _OTHER_DIALECTS.search(body)
    if other is not None:
        own = {"string": "", None: ""}
        path = _OTHER_DIALECTS.sub(lambda each: f"{{{each[2] or each[3]}{own.get(each[1], f':{each[1]}')}}}", text)
        raise Invalid(f"{other[0]} is not a parameter here", f"write {path}")


def _segment(piece: str, names: list[str], kinds: list[str]) -> Segment:
    texts: list[str] = []
    own: list[str] = []
    end = 0
    for parameter in _PARAMETER.finditer(piece):
        name, kind = parameter[1], parameter[2] or "str"
        if kind not in KINDS:
            raise Invalid(f"{{{name}:{kind}}}: there is no kind '{kind}'", f"known: {', '.join(KINDS)}")
        if name in names:
            raise Invalid(f"the parameter {{{name}}} appears twice")
        names.append(name)
        own.append(kind)
        texts.append(piece[end : parameter.start()])
        end = parameter.end()
    texts.append(piece[end:])
    if any("{" in text or "}" in text for text in texts):
        raise Invalid("a brace without a parameter", "a parameter is {name} or {name:kind}")
    kinds.extend(own)
    if len(own) > 2:
        raise Invalid("more than two parameters in one segment")
    if len(own) == 2 and (not texts[1] or not {*own} <= {"str", "path"}):
        # Otherwise frameworks would divide the segment in different ways.
        raise Invalid("two parameters in one segment need a text between them and no types", "such as {name}.{ending}")
    return _with_parameters(tuple(texts), tuple(own)) if own else Segment(tuple(texts))


_with_parameters = lru_cache(maxsize=256)(Segment)  # templates share these segments: most are as simple as `{id}`


# --------------------------------------------------------------------------------------------------------- values

_UUID = re.compile("[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_FLOAT = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_MOST_DIGITS = 4300
"""The longest text of an int. Python reads no more digits by default, because the time grows with their square."""
_LONG_INT = 128  # bits; the decimal text of a longer number takes long

# The first characters tell most texts that are not numbers. That is cheaper than an exception.
_LOOKED_AT = 16
_MAYBE_INT = re.compile(r"[\s\d+._eE-]+")
_MAYBE_FLOAT = re.compile(r"[\s\d+._eEinftyaINFTYA-]+")


N = TypeVar("N", int, float)


class Kind(NamedTuple):
    """A type of parameters."""

    is_plain: Callable[[str], object]
    """Tests whether a text is plain, so that every router reads it as this type."""
    read: Callable[[str], str | None]
    """Reads a text as this type. Returns the text that stands for all with this value, as 7 for 007, or None."""


def _is_plain_int(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _read_int(text: str) -> str | None:
    if len(text) < 19 and text.isascii() and text.isdigit():
        return text if text[0] != "0" else text.lstrip("0") or "0"
    if not _MAYBE_INT.fullmatch(text[:_LOOKED_AT]):
        return None
    whole = _number(int, text) if len(text) <= _MOST_DIGITS else None
    if whole is None:
        number = _number(float, text)
        if number is None or not number.is_integer():
            return None
        whole = int(number)
    return str(whole) if whole.bit_length() <= _LONG_INT else hex(whole)


def _read_float(text: str) -> str | None:
    number = _number(float, text) if _MAYBE_FLOAT.fullmatch(text[:_LOOKED_AT]) else None
    if number is None:
        return None
    return str(int(number)) if number.is_integer() else repr(number)


def _number(kind: type[N], text: str) -> N | None:
    try:
        return kind(text)
    except ValueError:
        return None


def _read_uuid(text: str) -> str | None:
    if len(text) < 32:
        return None
    try:
        return str(UUID(text))
    except ValueError:
        return None


TYPES = {
    "int": Kind(_is_plain_int, _read_int),
    "float": Kind(_FLOAT.fullmatch, _read_float),
    "uuid": Kind(_UUID.fullmatch, _read_uuid),
}
"""The kinds of parameters whose values are read. Those of the other kinds stay as they are."""

Value = tuple[str, str]
"""The value of a parameter: the text that stands for it, and the text in the path."""

Matcher = Callable[[str], tuple[Value, ...] | None]


def matcher(segment: Segment) -> Matcher:
    """Return a function from a segment of a path to the values of its parameters, or to None if it does not match."""
    if not segment.kinds:
        text = segment.texts[0]
        return lambda given: () if given == text else None
    if len(segment.kinds) == 2:
        return _pair(*segment.texts)
    (before, after), read = segment.texts, _reader(segment.kinds[0])

    def match(given: str) -> tuple[Value, ...] | None:
        inner = _within(given, before, after) if before or after else given
        value = read(inner)
        return ((value, inner),) if value else None

    return match


ANYTHING = Segment(("", ""), ("str",))
"""A segment that is one parameter without a type."""


def _reader(kind: str) -> Callable[[str], str | None]:
    return TYPES[kind].read if kind in TYPES else str


def _pair(before: str, between: str, after: str) -> Matcher:
    """Match two parameters without a type in one segment. The first value is as long as possible."""

    def match(given: str) -> tuple[Value, ...] | None:
        inner = _within(given, before, after)
        place = inner.rfind(between, 1, len(inner) - 1)
        if place < 0:
            return None
        first, second = inner[:place], inner[place + len(between) :]
        return (first, first), (second, second)

    return match


def _within(given: str, before: str, after: str) -> str:
    """Return what a text has between its beginning and its end, or "" if it has another beginning or end."""
    if len(given) < len(before) + len(after) or not (given.startswith(before) and given.endswith(after)):
        return ""
    return given[len(before) : len(given) - len(after)]
