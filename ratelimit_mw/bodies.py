"""The bodies of denials, and the selection of a format by the client's Accept.

`FORMATS` is the only table of formats. It defines the YAML word `body` and the bodies of denials. This module is
internal: its names may change in any release.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from ratelimit_mw.settings import BODY_PLACEHOLDERS, PLACEHOLDERS, Body

_QUALITY = re.compile(r"q\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)


def preferred(accept: str, offers: Sequence[Sequence[str]]) -> int:
    """Return the index of the offer that has the highest quality in `accept`.

    If several offers have the same quality, or if none is accepted, it is the first of them. An offer may have several
    media types. Parameters of a media type are not compared. A range with an invalid `q` is not accepted.

    Args:
        accept: The value of the header Accept.
        offers: The media types of each offer.
    """
    ranges: dict[str, float] = {}
    for written in accept.lower().split(","):
        media, *parameters = (part.strip() for part in written.split(";"))
        ranges.setdefault(media, _quality(parameters))
    qualities = [max(_quality_of(media, ranges) for media in types) for types in offers]
    return qualities.index(max(qualities))


def _quality(parameters: Sequence[str]) -> float:
    """Return the `q` of a range. 1 if it has none, 0 if it is invalid."""
    for parameter in parameters:
        if parameter.startswith("q") and parameter[1:].lstrip().startswith("="):
            found = _QUALITY.fullmatch(parameter)
            return float(found[1]) if found else 0.0
    return 1.0


def _quality_of(media: str, ranges: dict[str, float]) -> float:
    """Return the quality of a media type: that of the most specific range that matches it. See RFC 9110, 12.5.1."""
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
"""The values of the placeholders. None for a value that is unknown."""


class BodyContent(NamedTuple):
    """The content of a body, independent of its format.

    Attributes:
        words: The values of the placeholders. The message in them is complete.
        type: The `type` of the problem.
        heading: The `title` of the problem. None: the title of the status.
        violated: The names of the policies that deny.
        link: The URL of a page about the limits.
    """

    words: Words
    type: str
    heading: str | None
    violated: Sequence[str] = ()
    link: str | None = None


class BodyFormat(NamedTuple):
    """One format of a body.

    Attributes:
        content_type: The content type of the response.
        accepted: The media types. A client that accepts one of them may get this format.
        render: Returns the body.
        constant: True if the body is the same for all clients with the same message.
    """

    content_type: str
    accepted: tuple[str, ...]
    render: Callable[[BodyContent], bytes]
    constant: bool = True


def format_of(body: Body) -> BodyFormat:
    """Return the format of one `body` of the file: the name of a format, or the template of a JSON body."""
    if isinstance(body, str):
        return FORMATS[body]
    return FORMATS["json"]._replace(
        render=lambda content: _dumped(_filled_template(body, content.words)),
        constant=is_constant(body),
    )


def filled(text: str, words: Words) -> str:
    """Return `text` with its placeholders replaced. Inserted values are not searched for placeholders."""
    return _PLACEHOLDER.sub(lambda found: _shown(found[1], words), text) if "{" in text else text


def is_constant(template: object) -> bool:
    """Return True if no text of a template has a placeholder whose value depends on the request."""
    if isinstance(template, str):
        return _VARYING.search(template) is None
    if isinstance(template, Mapping):
        return all(map(is_constant, template.values()))
    return not isinstance(template, Sequence) or all(map(is_constant, template))


def _shown(word: str, words: Words) -> str:
    """Return the value of a placeholder as text."""
    if word not in words:  # a message has fewer placeholders than a template
        return f"{{{word}}}"
    value = words[word]
    if value is None:
        return {"ip": "unknown", "retry_after": "never"}.get(word, "")
    return str(value)


def _json(content: BodyContent) -> bytes:
    fields = {"message": content.words["message"]}
    if content.link:
        fields["documentation_url"] = content.link
    return _dumped(fields)


def _problem(content: BodyContent) -> bytes:
    fields: dict[str, object] = {
        "type": content.type,
        "title": content.heading or content.words["title"],
        "status": content.words["status"],
        "detail": content.words["message"],
    }
    if content.violated:
        fields["violated-policies"] = content.violated
    if content.link:
        fields["documentation_url"] = content.link
    return _dumped(fields)


def _text(content: BodyContent) -> bytes:
    return str(content.words["message"]).encode("utf-8", "replace")


def _html(content: BodyContent) -> bytes:
    words = {word: escape(value) if isinstance(value, str) else value for word, value in content.words.items()}
    return filled(_PAGE, words).encode("utf-8", "replace")


def _filled_template(template: object, words: Words) -> object:
    """Return a template with its placeholders replaced. A text that is exactly one placeholder becomes its value."""
    if isinstance(template, str):
        alone = _PLACEHOLDER.fullmatch(template)
        return words[alone[1]] if alone else filled(template, words)
    if isinstance(template, Mapping):
        return {key: _filled_template(value, words) for key, value in template.items()}
    if isinstance(template, Sequence):
        return [_filled_template(item, words) for item in template]
    return template


def _dumped(fields: Any) -> bytes:
    return json.dumps(fields).encode()


FORMATS = {
    "json": BodyFormat("application/json", ("application/json",), _json),
    "problem": BodyFormat(
        "application/problem+json", ("application/problem+json", "application/json"), _problem, constant=False
    ),
    "text": BodyFormat("text/plain; charset=utf-8", ("text/plain",), _text),
    "html": BodyFormat("text/html; charset=utf-8", ("text/html", "application/xhtml+xml"), _html),
}
"""The formats of bodies, by their names in `response.body`."""
