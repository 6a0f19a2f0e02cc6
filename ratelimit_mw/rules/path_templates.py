"""Path templates, in Starlette's words, and what each kind of parameter matches."""

import re
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import NamedTuple
from unicodedata import decimal
from uuid import UUID

from ratelimit_mw.errors import TemplateError

LONGEST = 1_000
"""Characters in a template."""

_PARAMETER = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-zA-Z_][a-zA-Z0-9_]*))?\}")
_FLASK = re.compile(r"<(?:(\w+):)?(\w+)>")
_REGULAR = re.compile(r"\A\^|\.\*|\\[dw]|\(\?|\[\^")  # what only a regular expression holds

KINDS = ("str", "int", "float", "uuid", "path")
"""What a parameter may be."""

ONLY_INT = "int, not float"
"""The kind of an `int` at a place where the file also has a `float`, which is what 7.0 is meant for."""


class Segment(NamedTuple):
    """One segment: `texts[0] {kinds[0]} texts[1] …`. With no kinds it is the text `texts[0]`."""

    texts: tuple[str, ...]
    kinds: tuple[str, ...] = ()

    def filled(self, values: Iterator[str]) -> str:
        """The segment's text, with the next values for its parameters."""
        return self.texts[0] + "".join([next(values) + text for text in self.texts[1:]])


class Tail(NamedTuple):
    """Where any number of segments may stand, between two texts, and what has to follow them.

    `folder` marks the tail of `/*`, which is no parameter and also holds where the path ends before it.
    """

    before: str
    after: str
    segments: tuple[Segment, ...] = ()
    folder: bool = False


class Template(NamedTuple):
    """A template taken apart. `names` and `kinds` are its parameters, from left to right."""

    text: str
    segments: tuple[Segment, ...]
    tail: Tail | None
    names: tuple[str, ...]
    kinds: tuple[str, ...]

    @property
    def cleaned(self) -> "Template":
        """The same without empty segments, for a path is also matched without them."""
        segments = tuple(filter(_says_something, self.segments))
        if self.tail is None:
            return self._replace(segments=segments or (Segment(("",)),))
        tail = self.tail._replace(segments=tuple(filter(_says_something, self.tail.segments)))
        return self._replace(segments=segments, tail=tail)

    def with_values(self, path: str, values: Iterable[str]) -> str:
        """Return `path`, which the template matches, with `values` in place of its parameters."""
        pieces, left = path.split("/"), iter(values)
        for index, segment in enumerate(self.segments, 1):
            pieces[index] = segment.filled(left)
        if self.tail is not None and not self.tail.folder:
            next(left)  # the tail's own is a path, of which there is but one spelling
            for index, segment in enumerate(self.tail.segments, -len(self.tail.segments)):
                pieces[index] = segment.filled(left)
        return "/".join(pieces)


def _says_something(segment: Segment) -> bool:
    return bool(segment.kinds or segment.texts[0])


def apart_from_floats(templates: Iterable[Template]) -> dict[Template, Template]:
    """Those templates of a file that have an int where another has a float, each with `ONLY_INT` in its place."""
    given = [template for template in templates if template.kinds]
    floats = {
        (template.segments[:place], segment.texts)
        for template in given
        if "float" in template.kinds
        for place, segment in enumerate(template.segments)
        if segment.kinds == ("float",)
    }
    return {template: _apart(template, floats) for template in given if floats and "int" in template.kinds}


def _apart(template: Template, floats: set[tuple[tuple[Segment, ...], tuple[str, ...]]]) -> Template:
    segments = template.segments
    for place, segment in enumerate(template.segments):
        if segment.kinds == ("int",) and (template.segments[:place], segment.texts) in floats:
            segments = (*segments[:place], segment._replace(kinds=(ONLY_INT,)), *segments[place + 1 :])
    if segments is template.segments:
        return template
    behind = template.kinds[sum(len(segment.kinds) for segment in segments) :]
    return template._replace(segments=segments, kinds=(*(kind for each in segments for kind in each.kinds), *behind))


def parse(text: str) -> Template:
    """The template that `text` states. Raises `TemplateError`."""
    body, folder = (text[:-2], True) if text.endswith("/*") else (text, False)
    _refuse_what_is_no_path(text)
    _refuse_other_dialects(body)
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
    return Template(text, tuple(segments), tail, tuple(names), tuple(kinds))


def _refuse_what_is_no_path(text: str) -> None:
    if "://" in text:
        raise TemplateError("a URL, where a path belongs", "a path begins with '/'; the rest of a URL has the key host")
    if _REGULAR.search(text):
        raise TemplateError("regular expressions are not read here", "write {name} for one segment, '/*' for all below")
    if not text.startswith("/"):
        raise TemplateError("a path begins with '/'", f"did you mean '/{text}'?" if text else "")
    if len(text) > LONGEST:
        raise TemplateError(f"longer than {LONGEST} characters")
    if not text.isprintable():
        raise TemplateError("holds a character that can't be printed")
    if {".", ".."} & set(text.split("/")):
        raise TemplateError("'.' and '..' are no segments of a path", "a request's are resolved before it is matched")
    if "?" in text or "#" in text:
        raise TemplateError("a path holds no '?' and no '#'", "for a query parameter there is query:N")


def _refuse_other_dialects(body: str) -> None:
    if "*" in body:
        folder = body.rstrip("/*") + "/*"
        hint = f"did you mean '{folder}'?" if "*" not in folder[:-1] else "for one segment write {name}"
        raise TemplateError("'*' stands only at the end, as '/*'", hint)
    flask = _FLASK.search(body)
    if flask is not None:
        kind = {"string": "", None: ""}.get(flask[1], f":{flask[1]}")
        raise TemplateError(f"{flask[0]} is no parameter here", f"write {{{flask[2]}{kind}}}")


def _segment(piece: str, names: list[str], kinds: list[str]) -> Segment:
    texts: list[str] = []
    own: list[str] = []
    end = 0
    for parameter in _PARAMETER.finditer(piece):
        name, kind = parameter[1], parameter[2] or "str"
        if kind not in KINDS:
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
        # Else telling the two apart could take time that grows with the square of the path.
        raise TemplateError("a number beside another parameter needs a text between them that begins with no digit")
    return Segment(tuple(texts), tuple(own))


_UUID = re.compile("[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")
_USUAL_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DIGITS = "0123456789"
_MOST_DIGITS = 4300
"""Of an integer: Python reads no more, as its time grows with their square."""

# What is no number is mostly seen by this, which costs less than an exception.
_MAYBE_INT = re.compile(r"[\s\d+._eE-]+")
_MAYBE_FLOAT = re.compile(r"[\s\d+._eEinftyaINFTYA-]+")

Matcher = Callable[[str], tuple[str, ...] | None]


def matcher(segment: Segment) -> Matcher:
    """A function from a segment of a path to the parameters' values, or to None where it does not match."""
    if not segment.kinds:
        text = segment.texts[0]
        return lambda given: () if given == text else None
    if len(segment.kinds) == 2:
        return _pair(segment)
    before, after = segment.texts
    holds = _READS[segment.kinds[0]]
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
        if found is None and not inner.isascii():  # to Flask's converters, a digit is one of any script
            found = _divided(_with_plain_digits(inner), first, between, second)
            return found and (inner[: len(found[0])], inner[len(inner) - len(found[1]) :])
        return found

    return match


def _divided(given: str, first: str, between: str, second: str) -> tuple[str, str] | None:
    """Two parameters and the text between them, the first as long as it can be.

    Where one of them is a number or a UUID there are at most five places to try, for that text begins with no digit.
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
            and _CHECKS[first](given[:end])
            and _CHECKS[second](given[end + len(between) :])
        ):
            return given[:end], given[end + len(between) :]
    return None


def _leading(kind: str, given: str) -> list[int]:
    """How long a value of that kind at the start can be, the longest first."""
    if kind == "uuid":
        return [36, 35, 34, 33, 32]
    run = len(given) - len(given.lstrip(_DIGITS))
    if kind == "float" and given[run : run + 1] == ".":
        return [len(given) - len(given[run + 1 :].lstrip(_DIGITS)), run]
    return [run]


def _trailing(kind: str, given: str, taken: int) -> list[int]:
    """How long a value of that kind at the end can be, the shortest first; `taken` digits before it are not its own."""
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
    """The integer that `value` is to `int()` or to Pydantic, which lets zeros stand before a sign."""
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
    """The integer that `value` is, or the whole number that it is as a float."""
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
    """The number that `value` is to `float()` or to Pydantic, which lets underscores stand anywhere."""
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


_CHECKS: dict[str, Callable[[str], object]] = {
    "str": bool,
    "int": _is_whole,
    ONLY_INT: _is_whole,
    "float": _is_float,
    "uuid": _UUID.fullmatch,
}
"""The narrow forms."""


def _reads_int(value: str) -> bool:
    return (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS) or _int(value) is not None


def _reads_only_int(value: str) -> bool:
    return _is_whole(value) or _only_int(value) is not None


def _reads_float(value: str) -> bool:
    return _is_float(value) or _float(value) is not None


def _reads_uuid(value: str) -> bool:
    return _UUID.fullmatch(value) is not None or _uuid(value) is not None


_READS: dict[str, Callable[[str], object]] = {
    "str": bool,
    "int": _reads_int,
    ONLY_INT: _reads_only_int,
    "float": _reads_float,
    "uuid": _reads_uuid,
}
"""The wide forms."""


def is_narrow(kind: str, value: str) -> bool:
    """Whether Starlette's own converter accepts a value that has matched."""
    return kind in ("str", "path") or bool(_CHECKS[kind](value))


Parser = Callable[[str], tuple[str, str, bool]]
"""From a value that has matched to three things: its one spelling, for 007 and 7 are one item to the app, and so one to
a counter; how that is written in a path; and whether the value is narrow."""


def parser(kind: str) -> Parser | None:
    """What parses the values of a parameter of that kind; None where a value is what it is."""
    return _PARSERS.get(kind)


def _parsed_int(value: str) -> tuple[str, str, bool]:
    if value.isascii() and value.isdigit():
        spelling = value if value[0] != "0" else value.lstrip("0") or "0"
        return spelling, spelling, len(value) <= _MOST_DIGITS
    found = _int(value)
    spelling = value if found is None else str(found)
    return spelling, spelling, False


def _parsed_float(value: str) -> tuple[str, str, bool]:
    spelling = _spelled_float(value)
    return spelling, spelling, _is_float(value)


def _parsed_uuid(value: str) -> tuple[str, str, bool]:
    if _USUAL_UUID.fullmatch(value):
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


def _spelled_float(value: str) -> str:
    number = _float(value)
    if number is None:
        return value
    return str(int(number)) if isfinite(number) and number.is_integer() else repr(number)
