"""Path templates, in Starlette's words: `/users/{id:int}`, `/v{version}/{rest:path}`, `/static/*`.

A template is taken apart once, at start, into pieces whose matching takes time linear in the path; what
would take more is refused. A request never runs an expression that a template's author wrote.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

LONGEST = 1_000
"""Characters in a template."""

_PARAMETER = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)(?::([a-zA-Z_][a-zA-Z0-9_]*))?\}")
_FLASK = re.compile(r"<(?:(\w+):)?(\w+)>")
_REGULAR = re.compile(r"\A\^|\.\*|\\[dw]|\(\?|\[\^")  # what only a regular expression holds

KINDS = ("str", "int", "float", "uuid", "path")
"""What a parameter may be."""

ONLY_INT = "int, not float"
"""The kind of an `int` at a place where the file also has a `float`, which is what 7.0 is meant for."""


class TemplateError(ValueError):
    """A template that can't be read; `hint` says what could be."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


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

    def spelled(self, path: str, values: Iterable[str]) -> str:
        """A path that the template matches, with other values in the place of its parameters."""
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
