"""Path templates, in Starlette's words: `/users/{id:int}`, `/v{version}/{rest:path}`, `/static/*`.

A template is taken apart once, at start, into pieces whose matching takes time linear in the path; what
would take more is refused. A request never runs an expression that a template's author wrote.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

LONGEST = 1_000
"""Characters in a template."""

_PARAMETER = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-zA-Z_][a-zA-Z0-9_]*))?\}")
_FLASK = re.compile(r"<(?:(\w+):)?(\w+)>")
_UUID = re.compile("[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")
_REGULAR = re.compile(r"\A\^|\.\*|\\[dw]|\(\?|\[\^")  # what only a regular expression holds
_DIGITS = "0123456789"
KINDS = ("str", "int", "float", "uuid", "path")


class TemplateError(ValueError):
    """A template that can't be read; `hint` says what could be."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Segment(NamedTuple):
    """One segment: `texts[0] {kinds[0]} texts[1] …`. With no kinds it is the text `texts[0]`."""

    texts: tuple[str, ...]
    kinds: tuple[str, ...] = ()


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


Matcher = Callable[[str], tuple[str, ...] | None]


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


def matcher(segment: Segment) -> Matcher:
    """A function from a segment of a path to the parameters' values, or to None where it does not match."""
    if not segment.kinds:
        text = segment.texts[0]
        return lambda given: () if given == text else None
    if len(segment.kinds) == 2:
        return _pair(segment)
    before, after = segment.texts
    holds = _CHECKS[segment.kinds[0]]
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
        if given.startswith(before) and given.endswith(after) and len(given) > len(before) + len(after):
            return _divided(given[len(before) : len(given) - len(after)], first, between, second)
        return None

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


def _is_whole(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _is_float(value: str) -> bool:
    whole, dot, fraction = value.partition(".")
    return _is_whole(whole) and (not dot or _is_whole(fraction))


_CHECKS: dict[str, Callable[[str], object]] = {
    "str": bool,
    "int": _is_whole,
    "float": _is_float,
    "uuid": _UUID.fullmatch,
}


def canonical(kind: str, value: str) -> str:
    """The one spelling of a parameter's value: 007 and 7 are one item to the app, and so one to a counter."""
    if kind == "int":
        return value.lstrip("0") or "0"
    if kind == "float":
        whole, _, fraction = value.partition(".")
        return f"{whole.lstrip('0') or '0'}.{fraction.rstrip('0')}".rstrip(".")
    if kind == "uuid":
        return value.replace("-", "").lower()
    return value
