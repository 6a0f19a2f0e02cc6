"""What the file says of responses: which headers, which formats of a body, which words. Each reader raises `Wrong`."""

from collections.abc import Iterable

from ratelimit_mw.rules.documents.tree import Items, Map, Node, kind, near, nearest, quoted
from ratelimit_mw.rules.readers.values import PLACEHOLDER, each, one_of, text
from ratelimit_mw.rules.readers.wrong import Wrong
from ratelimit_mw.settings import BODY_PLACEHOLDERS, PLACEHOLDERS, Body, HeaderGroups

GROUPS = ("x-ratelimit", "ratelimit", "retry-after")
"""The groups of headers."""

FORMATS = ("json", "problem", "text", "html")
"""The formats of a body that go by a word."""

_WHEN = ("allowed", "denied")
_groups = each(one_of(*GROUPS), empty=True)


def read_headers(node: Node) -> HeaderGroups:
    """The headers of all limited responses, or of those that are allowed and those that are denied."""
    if not isinstance(node, Map):
        groups = _groups(node)
        return HeaderGroups(groups, groups)
    wrong = Wrong()
    found = HeaderGroups()._asdict()
    for when, listed in node.items():
        if when not in _WHEN:
            wrong.add(node.keys_at[when], f"unknown key {quoted(when)}", nearest(when, _WHEN))
            continue
        with wrong.gathering():
            found[when] = _groups(listed)
    if "retry-after" in found["allowed"] and "allowed" in node:
        message = "who is allowed need not wait: Retry-After goes out with denials"
        wrong.add(node.keys_at["allowed"], message, "leave it out here")
    wrong.finish()
    return HeaderGroups(**found)


def read_body(node: Node) -> tuple[Body, ...]:
    """The formats of a body, in the order in which they are offered."""
    listed = node if isinstance(node, Items) else [node]
    wrong = Wrong()
    found: list[Body] = []
    for item in listed:
        with wrong.gathering():
            body = _body(item)
            if _media(body) in map(_media, found):
                wrong.add(item.place, f"no client can ask for this one, for {_media(body)} is in the list already")
            found.append(body)
    if not listed:
        wrong.add(None, "an empty list", f"known: {', '.join(FORMATS)}")
    wrong.finish()
    return tuple(found)


def _body(node: Node) -> Body:
    if isinstance(node, Map):
        template = _template(node)
        if isinstance(template, dict) and template:
            return template
        raise Wrong.at(node.place, "an empty mapping says nothing", "as {error: '{message}'}")
    if isinstance(node, Items):
        raise Wrong.at(node.place, "must be a format, not a list")
    word = text(node)
    if word not in FORMATS:
        hint = near(word, FORMATS) or "or a mapping, as {error: '{message}'}"
        raise Wrong.at(node.place, f"must be one of {', '.join(FORMATS)}, not {kind(node)}", hint)
    return word


def _media(body: Body) -> str:
    return body if isinstance(body, str) else "json"


def _template(node: Node) -> object:
    """A template as plain values, whose texts hold known placeholders."""
    wrong = Wrong()
    if isinstance(node, Map):
        found: dict[str, object] = {}
        for key, value in node.items():
            with wrong.gathering():
                found[_sendable(key)] = _template(value)
        wrong.finish()
        return found
    if isinstance(node, Items):
        items: list[object] = []
        for item in node:
            with wrong.gathering():
                items.append(_template(item))
        wrong.finish()
        return items
    if not isinstance(node.value, str):
        return node.value
    try:
        return _words(node.value, BODY_PLACEHOLDERS)
    except Wrong as error:
        raise Wrong.at(node.place, error.faults[0].message, error.faults[0].hint) from None


def read_message(node: Node) -> str:
    """The text of a denial, whose placeholders are known ones."""
    return _words(text(node), PLACEHOLDERS)


def read_page(node: Node) -> str | None:
    """An HTML page. What stands between other braces may be a style or a script, unless it is nearly a placeholder."""
    page = _sendable(text(node))
    wrong = Wrong()
    for word in PLACEHOLDER.findall(page):
        hint = near(word, BODY_PLACEHOLDERS)
        if word not in BODY_PLACEHOLDERS and hint:
            wrong.add(None, f"there is no placeholder {{{word}}}", hint)
    wrong.finish()
    return page or None


def read_link(node: Node) -> str | None:
    """A URL that is shown to clients."""
    found = text(node)
    if found and (not found.startswith(("http://", "https://")) or not found.isprintable() or " " in found):
        raise Wrong.at(None, f"{quoted(found)} is no URL", "as https://example.com/limits")
    return found or None


def _words(found: str, placeholders: Iterable[str]) -> str:
    wrong = Wrong()
    for word in PLACEHOLDER.findall(_sendable(found)):
        if word not in placeholders:
            wrong.add(None, f"there is no placeholder {{{word}}}", nearest(word, placeholders))
    wrong.finish()
    return found


def _sendable(found: str) -> str:
    """`found`, which can be sent in UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in found):
        raise Wrong.at(None, f"{quoted(found)} holds half a character", "write the character itself, or its \\U form")
    return found
