"""Path templates in the syntax of Starlette, and the values that each kind of parameter matches.

A value may have two forms. The narrow form is what Starlette's own converter accepts. The wide form is every text that
Python's type (or Pydantic) can read. Rules match the wide form; exemptions and `replaces` match only the narrow form.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import isfinite
from typing import NamedTuple, NewType
from unicodedata import decimal
from uuid import UUID

from ratelimit_mw.errors import TemplateError

_MAX_LENGTH = 1_000
"""The largest number of characters in a template."""

_PARAMETER = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-zA-Z_][a-zA-Z0-9_]*))?\}")
_OTHER_DIALECTS = re.compile(r"<(?:(\w+):)?(\w+)>|(?<=/):([a-zA-Z_]\w*)(?=/|\Z)")  # Flask: <id>, Express: :id
_REGULAR = re.compile(r"\A\^|\.\*|\\[dw]|\(\?|\[\^")  # only regular expressions contain these

KINDS = ("str", "int", "float", "uuid", "path")
"""The kinds of parameters that a template may name."""

ONLY_INT = "int_not_float"
"""The kind of an `int` if the file also has a `float` at the same place. It does not match 7.0; the `float` does."""

_KNOWN = (*KINDS, ONLY_INT)


class Segment(NamedTuple):
    """One segment: `texts[0] {kinds[0]} texts[1] …`. Without kinds it is only the text `texts[0]`."""

    texts: tuple[str, ...]
    kinds: tuple[str, ...] = ()

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


class Parts(NamedTuple):
    """The parts of a template. `names` and `kinds` are those of its parameters, from left to right."""

    segments: tuple[Segment, ...]
    tail: Tail | None
    names: tuple[str, ...]
    kinds: tuple[str, ...]


Template = NewType("Template", str)
"""A valid template: its text, in which an `int` beside a `float` has the kind `ONLY_INT`. `parse` makes one.

`parts_of` makes its parts when they are needed. A rule set has thousands of templates, and the garbage collector need
not visit a text.
"""


def text_of(template: Template) -> str:
    """Return the text of a template as in the file."""
    return template.replace(f":{ONLY_INT}}}", ":int}")


def pieces_of(template: Template) -> list[str]:
    """Return the texts between the slashes. The last piece of a folder is "*"."""
    return template[1:].split("/")


def cleaned(template: Template) -> Template:
    """Return the template without empty segments. The cleaned form of a path is matched with it."""
    if template[-1] != "/" and "//" not in template:
        return template
    return Template("".join([f"/{piece}" for piece in pieces_of(template) if piece]) or "/")


def with_values(parts: Parts, path: str, values: Iterable[str]) -> str:
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
    """Check a template of a file. Raises `TemplateError`, with a message for the user, if it is invalid."""
    _check_path(text)
    _refuse_other_dialects(text, text.removesuffix("/*"))
    parts_of(text, KINDS)
    return Template(text)


def parts_of(text: str, known: Sequence[str] = _KNOWN) -> Parts:
    """Return the parts of a template whose kinds are `known`. Raises `TemplateError` if it is invalid."""
    body, folder = (text[:-2], True) if text.endswith("/*") else (text, False)
    names: list[str] = []
    kinds: list[str] = []
    segments: list[Segment] = []
    head: list[Segment] = []
    tail: Tail | None = None
    for piece in body[1:].split("/") if body else ():
        segment = _segment(piece, names, kinds, known)
        if "path" not in segment.kinds:
            segments.append(segment)
        elif tail is not None or folder:
            raise TemplateError("only one part of a path can hold any number of segments", "one {name:path}, or '/*'")
        elif len(segment.kinds) > 1:
            raise TemplateError("a {name:path} shares its segment with no other parameter")
        else:
            tail = Tail(segment.texts[0], segment.texts[1])
            head, segments = segments, []
    if tail is not None:
        tail, segments = tail._replace(segments=tuple(segments)), head
    elif folder:
        tail = Tail("", "", folder=True)
    return Parts(tuple(segments), tail, tuple(names), tuple(kinds))


def _check_path(text: str) -> None:
    if "://" in text:
        raise TemplateError("a URL, where a path belongs", "a path begins with '/'; the rest of a URL has the key host")
    if _REGULAR.search(text):
        raise TemplateError("regular expressions are not read here", "write {name} for one segment, '/*' for all below")
    if not text.startswith("/"):
        raise TemplateError("a path begins with '/'", f"did you mean '/{text}'?" if text else "")
    if len(text) > _MAX_LENGTH:
        raise TemplateError(f"longer than {_MAX_LENGTH} characters")
    if not text.isprintable():
        raise TemplateError("holds a character that can't be printed")
    if {".", ".."} & set(text.split("/")):
        raise TemplateError("'.' and '..' are no segments of a path", "a request's are resolved before it is matched")
    if "?" in text or "#" in text:
        raise TemplateError("a path holds no '?' and no '#'", "for a query parameter there is query:N")


def _refuse_other_dialects(text: str, body: str) -> None:
    if "*" in body:
        folder = body.rstrip("/*") + "/*"
        hint = f"did you mean '{folder}'?" if "*" not in folder[:-1] else "for one segment write {name}"
        raise TemplateError("'*' stands only at the end, as '/*'", hint)
    other = _OTHER_DIALECTS.search(body)
    if other is not None:
        own = {"string": "", None: ""}
        path = _OTHER_DIALECTS.sub(lambda each: f"{{{each[2] or each[3]}{own.get(each[1], f':{each[1]}')}}}", text)
        raise TemplateError(f"{other[0]} is no parameter here", f"write {path}")


@lru_cache(maxsize=256)
def segment_of(piece: str) -> Segment:
    """Return one segment of a valid template."""
    return _segment(piece, [], [], _KNOWN)


def _segment(piece: str, names: list[str], kinds: list[str], known: Sequence[str]) -> Segment:
    texts: list[str] = []
    own: list[str] = []
    end = 0
    for parameter in _PARAMETER.finditer(piece):
        name, kind = parameter[1], parameter[2] or "str"
        if kind not in known:
            raise TemplateError(f"{{{name}:{kind}}}: there is no kind '{kind}'", f"known: {', '.join(KINDS)}")
        if name in names:
            raise TemplateError(f"the parameter {{{name}}} is there twice")
        names.append(name)
        own.append(kind)
        texts.append(piece[end : parameter.start()])
        end = parameter.end()
    texts.append(piece[end:])
    if any("{" in text or "}" in text for text in texts):
        raise TemplateError("a brace that belongs to no parameter", "a parameter is {name} or {name:kind}")
    kinds.extend(own)
    if len(own) > 2:
        raise TemplateError("more than two parameters in one segment")
    if len(own) == 2 and {"int", "float"} & set(own) and (not texts[1] or texts[1][0].isdigit()):
        # Otherwise the time to split the two could grow with the square of the length of the path.
        raise TemplateError("a number beside another parameter needs a text between them that begins with no digit")
    return _with_parameters(tuple(texts), tuple(own)) if own else Segment(tuple(texts))


_with_parameters = lru_cache(maxsize=256)(Segment)  # templates share these segments: most are as simple as `{id}`


_UUID = re.compile("[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")
_CANONICAL_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DIGITS = "0123456789"
_MOST_DIGITS = 4300
"""The largest number of digits of an integer. Python reads no more, because the time grows with their square."""

# These patterns exclude most texts that are not numbers. That is cheaper than an exception.
_MAYBE_INT = re.compile(r"[\s\d+._eE-]+")
_MAYBE_FLOAT = re.compile(r"[\s\d+._eEinftyaINFTYA-]+")

Matcher = Callable[[str], tuple[str, ...] | None]


def matcher(segment: Segment) -> Matcher:
    """Return a function from a segment of a path to the values of its parameters, or to None if it does not match."""
    if not segment.kinds:
        text = segment.texts[0]
        return lambda given: () if given == text else None
    if len(segment.kinds) == 2:
        return _pair(segment)
    before, after = segment.texts
    holds = _WIDE[segment.kinds[0]]
    if not before and not after:
        return lambda given: (given,) if holds(given) else None
    shortest = len(before) + len(after)

    def match(given: str) -> tuple[str, ...] | None:
        if len(given) > shortest and given.startswith(before) and given.endswith(after):
            value = given[len(before) : len(given) - len(after)]
            return (value,) if holds(value) else None
        return None

    return match


def _pair(segment: Segment) -> Matcher:
    before, between, after = segment.texts
    first, second = segment.kinds

    def match(given: str) -> tuple[str, str] | None:
        if not given.startswith(before) or not given.endswith(after) or len(given) <= len(before) + len(after):
            return None
        inner = given[len(before) : len(given) - len(after)]
        found = _divided(inner, first, between, second)
        if found is None and not inner.isascii():  # Flask's converters accept the digits of any script
            found = _divided(_with_plain_digits(inner), first, between, second)
            return found and (inner[: len(found[0])], inner[len(inner) - len(found[1]) :])
        return found

    return match


def _divided(given: str, first: str, between: str, second: str) -> tuple[str, str] | None:
    """Split a text into the values of two parameters. The first value is as long as possible.

    If one of them is a number or a UUID, at most five positions are tried, because `between` begins with no digit.
    """
    if first == second == "str":
        at = given.rfind(between, 1, len(given) - 1)
        return (given[:at], given[at + len(between) :]) if at > 0 else None
    if second == "str":
        ends = _leading(first, given)
    else:
        digits = len(between) - len(between.rstrip(_DIGITS))
        ends = [len(given) - size - len(between) for size in _trailing(second, given, digits)]
    for end in ends:
        if (
            given.startswith(between, end)
            and _NARROW[first](given[:end])
            and _NARROW[second](given[end + len(between) :])
        ):
            return given[:end], given[end + len(between) :]
    return None


def _leading(kind: str, given: str) -> list[int]:
    """Return the possible lengths of a value of that kind at the start, the longest first."""
    if kind == "uuid":
        return [36, 35, 34, 33, 32]
    run = len(given) - len(given.lstrip(_DIGITS))
    if kind == "float" and given[run : run + 1] == ".":
        return [len(given) - len(given[run + 1 :].lstrip(_DIGITS)), run]
    return [run]


def _trailing(kind: str, given: str, taken: int) -> list[int]:
    """Return the possible lengths of a value of that kind at the end, the shortest first.

    `taken` digits before the value belong to the text before it.
    """
    if kind == "uuid":
        return [32, 33, 34, 35, 36]
    head = given.rstrip(_DIGITS)
    run = len(given) - len(head)
    if kind == "float" and head[-1:] == ".":
        return [run - taken, len(given) - len(head[:-1].rstrip(_DIGITS)) - taken]
    return [run - taken]


def _with_plain_digits(text: str) -> str:
    return "".join([str(decimal(sign)) if sign.isdecimal() else sign for sign in text])


def _is_whole(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS


def _is_float(value: str) -> bool:
    whole, dot, fraction = value.partition(".")
    return whole.isascii() and whole.isdigit() and (not dot or (fraction.isascii() and fraction.isdigit()))


def _only_int(value: str) -> int | None:
    """Return the integer that `int()` or Pydantic reads, or None. Pydantic accepts zeros before a sign."""
    if not _MAYBE_INT.fullmatch(value):
        return None
    stripped = value.strip().replace("_", "")
    digits = stripped.lstrip("0") or stripped[-1:]
    if len(digits) > _MOST_DIGITS + 1:
        return None
    for text in (digits, digits.lstrip("+0")):
        try:
            return int(text)
        except ValueError:
            continue
    return None


def _int(value: str) -> int | None:
    """Return the integer that `value` is, or the whole number that it is as a float, or None."""
    if not _MAYBE_INT.fullmatch(value):
        return None
    whole, dot, zeros = value.strip().partition(".")
    if dot and not zeros.strip("0_"):
        value = whole or "x"
    found = _only_int(value)
    if found is None:
        number = _float(value)
        found = int(number) if number is not None and isfinite(number) and number.is_integer() else None
    return found


def _float(value: str) -> float | None:
    """Return the number that `float()` or Pydantic reads, or None. Pydantic accepts underscores anywhere."""
    if not _MAYBE_FLOAT.fullmatch(value):
        return None
    try:
        return float(value.replace("_", ""))
    except ValueError:
        return None


def _uuid(value: str) -> str | None:
    if len(value) < 32:
        return None
    try:
        return UUID(value).hex
    except ValueError:
        return None


_NARROW: dict[str, Callable[[str], object]] = {
    "str": bool,
    "int": _is_whole,
    ONLY_INT: _is_whole,
    "float": _is_float,
    "uuid": _UUID.fullmatch,
}
"""Tests whether a value is in the narrow form of each kind."""


def _reads_int(value: str) -> bool:
    return (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS) or _int(value) is not None


def _reads_only_int(value: str) -> bool:
    return _is_whole(value) or _only_int(value) is not None


def _reads_float(value: str) -> bool:
    return _is_float(value) or _float(value) is not None


def _reads_uuid(value: str) -> bool:
    return _UUID.fullmatch(value) is not None or _uuid(value) is not None


_WIDE: dict[str, Callable[[str], object]] = {
    "str": bool,
    "int": _reads_int,
    ONLY_INT: _reads_only_int,
    "float": _reads_float,
    "uuid": _reads_uuid,
}
"""Tests whether a value is in the wide form of each kind."""


def is_narrow(kind: str, value: str) -> bool:
    """Return True if Starlette's own converter accepts a value that has matched."""
    return kind in ("str", "path") or bool(_NARROW[kind](value))


Parser = Callable[[str], tuple[str, str, bool]]
"""Parses a value that has matched: returns its canonical spelling, how it is written in a path, and if it is narrow.

The app reads 007 and 7 as the same item, so they must have the same counter.
"""


def parser(kind: str) -> Parser | None:
    """Return the parser for a kind of parameter, or None if values of that kind are not parsed."""
    return _PARSERS.get(kind)


def _parsed_int(value: str) -> tuple[str, str, bool]:
    if value.isascii() and value.isdigit():
        spelling = value if value[0] != "0" else value.lstrip("0") or "0"
        return spelling, spelling, len(value) <= _MOST_DIGITS
    found = _int(value)
    spelling = value if found is None else str(found)
    return spelling, spelling, False


def _parsed_float(value: str) -> tuple[str, str, bool]:
    spelling = _canonical_float(value)
    return spelling, spelling, _is_float(value)


def _parsed_uuid(value: str) -> tuple[str, str, bool]:
    if _CANONICAL_UUID.fullmatch(value):
        return value.replace("-", ""), value, True
    spelling = _uuid(value) or value
    parts = (spelling[:8], spelling[8:12], spelling[12:16], spelling[16:20], spelling[20:])
    return spelling, "-".join(parts), _UUID.fullmatch(value) is not None


_PARSERS: dict[str, Parser] = {
    "int": _parsed_int,
    ONLY_INT: _parsed_int,
    "float": _parsed_float,
    "uuid": _parsed_uuid,
}


def _canonical_float(value: str) -> str:
    number = _float(value)
    if number is None:
        return value
    return str(int(number)) if isfinite(number) and number.is_integer() else repr(number)
