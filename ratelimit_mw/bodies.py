"""The bodies of denials, and the choice among them by the client's Accept.

`FORMATS` is the one table of formats. The word `body` with its JSON Schema and hints, the answers, and the OpenAPI
schemas of FastAPI apps read it. This module is internal: its names may change in any release.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from ratelimit_mw.settings import BODY_PLACEHOLDERS, PLACEHOLDERS, Body

_QUALITY = re.compile(r"q\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)


def preferred(accept: str, offers: Sequence[Sequence[str]]) -> int:
    """The place of the offer that `accept` likes best; of those it likes alike, and where it likes none, the first.

    An offer may go by several media types. Parameters of a type are not compared, and a range whose `q` can't be
    read is one that is not accepted.
    """
    ranges: dict[str, float] = {}
    for written in accept.lower().split(","):
        media, *parameters = (part.strip() for part in written.split(";"))
        ranges.setdefault(media, _quality(parameters))
    liking = [max(_liked(media, ranges) for media in types) for types in offers]
    return liking.index(max(liking))


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q") and parameter[1:].lstrip().startswith("="):
            found = _QUALITY.fullmatch(parameter)
            return float(found[1]) if found else 0.0
    return 1.0


def _liked(media: str, ranges: dict[str, float]) -> float:
    """The quality that the most specific matching range gives."""
    for matching in (media, f"{media.partition('/')[0]}/*", "*/*"):
        if matching in ranges:
            return ranges[matching]
    return 0.0


_PLACEHOLDER = re.compile(r"\{(" + "|".join(BODY_PLACEHOLDERS) + r")\}")
_VARYING = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")
_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{title}</title>
<style>
  body {font: 1.1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 20vh auto 0; padding: 0 1rem}
  :root {color-scheme: light dark}
</style>
<h1>{title}</h1>
<p>{message}</p>
"""

Words = Mapping[str, str | int | None]
"""The values of the placeholders; None for a value that is unknown."""


class BodyContent(NamedTuple):
    """What is said, whatever the format. `words` have the message, its placeholders filled.

    `type` and `heading` are those of the problem (None: the title of the status), `violated` the names of the policies
    that deny.
    """

    words: Words
    type: str
    heading: str | None
    violated: Sequence[str] = ()
    link: str | None = None


class Format(NamedTuple):
    """One format of a body. A client who accepts one of `accepted` may get it; it is sent as `content_type`.

    `schema` is the JSON Schema of the body, for OpenAPI. `constant` says that one reason has the same body for all
    clients, if its message has. `has_page` says that `response.page` may replace the package's own page.
    """

    content_type: str
    accepted: tuple[str, ...]
    render: Callable[[BodyContent], bytes]
    schema: Mapping[str, Any]
    constant: bool = True
    has_page: bool = False

    @property
    def media_type(self) -> str:
        """The content type without its parameters."""
        return self.content_type.partition(";")[0]


def format_of(body: Body, page: str | None) -> Format:
    """The format that the file means by one `body`: a word, or a mapping that is the template of a JSON body."""
    if isinstance(body, str):
        found = FORMATS[body]
        if page and found.has_page:
            return found._replace(render=_html(page), constant=is_constant(page))
        return found
    return FORMATS["json"]._replace(
        render=lambda said: _dumped(_filled_in(body, said.words)), schema={"type": "object"}, constant=is_constant(body)
    )


def filled(text: str, words: Words) -> str:
    """`text` with its placeholders replaced in one pass: inserted values are not searched for placeholders."""
    return _PLACEHOLDER.sub(lambda found: _shown(found[1], words), text) if "{" in text else text


def is_constant(template: object) -> bool:
    """Whether no text in a template has a placeholder whose value depends on the request."""
    if isinstance(template, str):
        return _VARYING.search(template) is None
    if isinstance(template, Mapping):
        return all(map(is_constant, template.values()))
    return not isinstance(template, Sequence) or all(map(is_constant, template))


def _shown(word: str, words: Words) -> str:
    if word not in words:  # the message itself is filled before it is a value
        return f"{{{word}}}"
    value = words[word]
    if value is None:
        return {"ip": "unknown", "retry_after": "never"}.get(word, "")
    return str(value)


def _json(said: BodyContent) -> bytes:
    fields = {"message": said.words["message"]}
    if said.link:
        fields["documentation_url"] = said.link
    return _dumped(fields)


def _problem(said: BodyContent) -> bytes:
    fields: dict[str, object] = {
        "type": said.type,
        "title": said.heading or said.words["title"],
        "status": said.words["status"],
        "detail": said.words["message"],
    }
    if said.violated:
        fields["violated-policies"] = said.violated
    if said.link:
        fields["documentation_url"] = said.link
    return _dumped(fields)


def _text(said: BodyContent) -> bytes:
    return str(said.words["message"]).encode("utf-8", "replace")


def _html(page: str) -> Callable[[BodyContent], bytes]:
    def render(said: BodyContent) -> bytes:
        words = {word: escape(value) if isinstance(value, str) else value for word, value in said.words.items()}
        return filled(page, words).encode("utf-8", "replace")

    return render


def _filled_in(template: object, words: Words) -> object:
    """A template with its placeholders replaced. A text that is exactly one placeholder becomes its value."""
    if isinstance(template, str):
        alone = _PLACEHOLDER.fullmatch(template)
        return words[alone[1]] if alone else filled(template, words)
    if isinstance(template, Mapping):
        return {key: _filled_in(value, words) for key, value in template.items()}
    if isinstance(template, Sequence):
        return [_filled_in(item, words) for item in template]
    return template


def _dumped(fields: Any) -> bytes:
    return json.dumps(fields).encode()


def _object(**fields: str) -> dict[str, Any]:
    """The JSON Schema of an object, by the types of its fields."""
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in fields.items()}}


FORMATS = {
    "json": Format(
        "application/json", ("application/json",), _json, _object(message="string", documentation_url="string")
    ),
    "problem": Format(
        "application/problem+json",
        ("application/problem+json", "application/json"),
        _problem,
        _object(type="string", title="string", status="integer", detail="string"),
        constant=False,
    ),
    "text": Format("text/plain; charset=utf-8", ("text/plain",), _text, {"type": "string"}),
    "html": Format(
        "text/html; charset=utf-8",
        ("text/html", "application/xhtml+xml"),
        _html(_PAGE),
        {"type": "string"},
        constant=is_constant(_PAGE),
        has_page=True,
    ),
}
"""The formats of bodies, by the words that name them under `response.body`."""
