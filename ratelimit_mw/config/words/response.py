"""`response`, of the file and of a rule: the status, headers and body of denials.

The texts contain placeholders such as `{retry_after}`. They are checked here, so that a wrong name is an error when the
file is loaded and not when the first request is denied. `bodies` fills them.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from ratelimit_mw.bodies import FORMATS
from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Items, Map, Node, Problems, Scalar, unlike
from ratelimit_mw.config.word import Section, Values, Word, section_word
from ratelimit_mw.errors import Invalid, near, nearest, quoted
from ratelimit_mw.settings import (
    BODY_PLACEHOLDERS,
    PLACEHOLDERS,
    Body,
    HandlerSettings,
    HeaderNames,
    ResponseSettings,
)

GROUPS = ("x-ratelimit", "ratelimit", "retry-after")
"""The groups of headers."""


def _read_body(node: Node) -> Body:
    """Read the name of a format, or a template, which is JSON."""
    if isinstance(node, Map):
        template = _template(node)
        if isinstance(template, dict) and template:
            return template
        raise Invalid("the template must not be empty", "for example {error: '{message}'}")
    if isinstance(node, Items):
        raise Invalid("must be a format, not a list")
    word = kinds.read_text(node)
    if word not in FORMATS:
        hint = near(word, FORMATS) or "or write a mapping, for example {error: '{message}'}"
        raise unlike(node, f"one of {', '.join(FORMATS)}", hint)
    return word


def _template(node: Node) -> object:
    """Read a template of a JSON body. All placeholders in its texts must be known."""
    if isinstance(node, Scalar):
        return _checked(node, BODY_PLACEHOLDERS) if isinstance(node.value, str) else node.value
    problems = Problems()
    found: dict[str, object] | list[object]
    if isinstance(node, Map):
        found = {key: problems.read(_template, value, None) for key, value in node.items()}
    else:
        found = problems.read_each(_template, node)
    problems.refuse()
    return found


def read_message(node: Node) -> str:
    """Read the message of a denial. All its placeholders must be known."""
    return _checked(node, PLACEHOLDERS)


def read_link(node: Node) -> str | None:
    """Read a URL that is shown to clients."""
    found = kinds.read_text(node)
    if found and (not found.startswith(("http://", "https://")) or not found.isprintable() or " " in found):
        raise Invalid(f"{quoted(found)} is not a URL", "for example https://example.com/limits")
    return found or None


def read_handler(node: Node) -> HandlerSettings | None:
    """Import the function that makes the responses of denials."""
    return HandlerSettings(*kinds.read_function(node)) if kinds.read_text(node).strip() else None


def _checked(node: Node, placeholders: Iterable[str]) -> str:
    """Read a text. Raises `Invalid` if it has another placeholder than these."""
    found = kinds.read_text(node)
    problems = Problems()
    for word in kinds.PLACEHOLDER.findall(found):
        if word not in placeholders:
            problems.add(node.place, f"there is no placeholder {{{word}}}", nearest(word, placeholders))
    return problems.checked(found)


_TAKEN = (
    "cache-control",
    "connection",
    "content-length",
    "content-type",
    "date",
    "keep-alive",
    "location",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
)
"""Headers that have another meaning, in lower case."""


def _check_names(names: Values, problems: Problems) -> None:
    """Report names of headers that have another meaning, or are used twice."""
    used: dict[str, str] = {}
    for word in _NAMES:
        name = names[word].lower()
        if name in _TAKEN:
            problems.add(names.place(word.key), f"{quoted(names[word])} has another meaning", "write another name")
        elif name in used:
            message = f"{quoted(names[word])} is also the name of {used[name]}"
            problems.add(names.place(word.key), message, "give each header its own name")
        used.setdefault(name, word.key)


_STATUS = kinds.number("status", 400, 599, 429, "The status of a denial.")
_HEADERS: Word[tuple[str, ...]] = kinds.several(
    "headers",
    kinds.one_of(*GROUPS),
    "Which headers are sent with limited responses.",
    of={"enum": list(GROUPS)},
    empty=True,
    default=ResponseSettings().headers,
    shown_default=list(ResponseSettings().headers),
)
_NAMES: tuple[Word[str], ...] = tuple(
    kinds.text(key, f"The name of the header {default}.", default, kinds.read_header_name)
    for key, default in HeaderNames()._asdict().items()
)
_HEADER_NAMES: Word[HeaderNames] = section_word(
    "header_names",
    Section(
        "HeaderNames",
        "The names of the headers in the group x-ratelimit.",
        _NAMES,
        make=HeaderNames,
        check=_check_names,
        example="for example {limit: X-Rate-Limit, remaining: X-Rate-Remaining}",
    ),
)
_RESET: Word[Literal["epoch", "delta"]] = kinds.choice(
    "reset", ("epoch", "delta"), "epoch", "Whether X-RateLimit-Reset is an epoch time or a number of seconds."
)
_BODY: Word[tuple[Body, ...]] = Word(
    key="body",
    read=kinds.each(_read_body),
    default=("json",),
    shown_default="json",
    schema={
        **kinds.or_list({"anyOf": [{"enum": list(FORMATS)}, {"type": "object", "minProperties": 1}]}),
        "examples": ["problem", ["json", "html"], {"error": {"code": "{reason}", "message": "{message}"}}],
    },
    about="The format of a denial's body, a list of formats from which Accept selects one, or a template.",
)
_MESSAGE = kinds.text(
    "message",
    "The message of a denial. It may contain {ip} {rule} {limit} {period} {retry_after}.",
    "Too many requests",
    read_message,
)
_DOCUMENTATION_URL = kinds.optional_text(
    "documentation_url", "The URL of a page about the limits, for clients.", read_link, unset="no link"
)

_HANDLER: Word[HandlerSettings | None] = Word(
    key="handler",
    read=read_handler,
    default=None,
    schema={**kinds.TEXT, "pattern": "^$|^python:", "examples": ["python:package.module:function"]},
    about="A function that makes the status, the headers and the body of a denial.",
    unset="the words above make them",
)

RESPONSE: Word[ResponseSettings] = section_word(
    "response",
    Section(
        "Response",
        "The status, headers and body of denials.",
        (_STATUS, _HEADERS, _HEADER_NAMES, _RESET, _BODY, _MESSAGE, _DOCUMENTATION_URL, _HANDLER),
        make=ResponseSettings,
        example="for example {status: 429, body: json}",
    ),
)

RULE_RESPONSE: Word[Mapping[str, object]] = section_word(
    "response",
    Section(
        "RuleResponse",
        "The responses of this rule's denials, where they differ from those of the file.",
        (
            kinds.number("status", 400, 599, None, "The status of this rule's denials.", unset="that of `response`"),
            kinds.optional_text(
                "message", "The message of this rule's denials.", read_message, unset="that of `response`"
            ),
            kinds.flag("hidden", "No header mentions this rule."),
        ),
        make=dict,
        example="for example {status: 503, message: Try again later}",
    ),
    fields=dict,
)
