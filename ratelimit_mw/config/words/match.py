"""`match` and `exempt`: to which requests a rule applies, by path, method, address, host and any attribute."""

import re
from collections.abc import Sequence

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Invalid, Node, Problems
from ratelimit_mw.config.word import Section, Values, Word, section_word, sections_word
from ratelimit_mw.errors import TemplateError, near, nearest, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.rules.compiled import Exact, Matching
from ratelimit_mw.rules.path_templates import Template, parse

_WITH_PORT = re.compile(r"[^:]:[0-9]+$")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
_RENAMED = {"method": "write methods", "remote_address": "write ip"}
_OPEN_KEYS = ("header:N", "cookie:N", "query:N")


def read_template(node: Node) -> Template:
    """Read a path template."""
    written = readers.text(node)
    try:
        return parse(written)
    except TemplateError as error:
        raise Invalid.at(None, f"{quoted(written)}: {error}", error.hint) from None


def read_method(node: Node) -> str:
    """Read a method, in upper case. An unknown method is allowed, unless it is similar to a known one."""
    word = readers.text(node)
    upper = word.upper()
    if not readers.TOKEN.fullmatch(word) or not upper[:1].isalpha():
        hint = "remove methods to match all of them" if word == "*" else f"known: {', '.join(_METHODS)}"
        raise Invalid.at(None, f"{quoted(word)} is not an HTTP method", hint)
    if upper == "HEAD":
        raise Invalid.at(None, "HEAD requests are counted with GET", "write GET")
    if upper not in _METHODS:
        hint = near(word, _METHODS)
        if hint:  # without a hint, it is a method that only the app knows
            raise Invalid.at(None, f"{quoted(word)} is not an HTTP method", hint)
    return upper


def compile_match(match: Values, attributes: Attributes, problems: Problems) -> Matching:
    """Return the compiled conditions of a `match`, or of an entry of `exempt`."""
    exact: list[Exact] = []
    if match[_HOST]:
        for host in match[_HOST]:
            if _WITH_PORT.search(host):
                problems.add(
                    match.place("host"), f"{quoted(host)} must not have a port", "hosts are matched without their port"
                )
            elif not host.strip("."):
                problems.add(match.place("host"), f"{quoted(host)} is not a host name", "for example api.example.com")
        hosts = tuple(host.lower().rstrip(".") for host in match[_HOST])
        exact.append(Exact(attributes.reader("host"), hosts, "host"))
    exact += [Exact(attributes.reader(word.key), match[word], word.key) for word in (_TIER, _USER) if match[word]]
    for key, value in match.extra.items():
        found = _attribute(key, value, match, attributes, problems)
        if found is not None:
            exact.append(found)
    return Matching(match[PATH], tuple(exact), match[_IP], match[METHODS])


def _attribute(key: str, value: Node, match: Values, attributes: Attributes, problems: Problems) -> Exact | None:
    place = match.key_place(key)
    if key in _RENAMED:
        problems.add(place, f"unknown key {quoted(key)}", _RENAMED[key])
    elif key.startswith("path:"):
        problems.add(place, f"unknown key {quoted(key)}", "write the value in match.path, instead of the parameter")
    elif not attributes.known(key):
        custom = [name for name in attributes.names() if name not in (*_RENAMED, "path:N")]
        known = dict.fromkeys((*MATCH_SECTION.keys, *_OPEN_KEYS, *custom))
        problems.add(place, f"unknown key {quoted(key)}", nearest(key, known))
    else:
        try:
            return Exact(attributes.reader(key), readers.each(readers.non_blank)(value), key)
        except Invalid as invalid:
            problems.add_all(invalid, value.place)
    return None


def validate_exempt(entries: Sequence[Values], problems: Problems) -> None:
    """Report entries of `exempt` that would exempt every request."""
    for entry in entries:
        if not entry and not entry.dropped:
            problems.add(entry.node.place, "must not be empty: it would exempt every request")


PATH = kinds.several("path", read_template, "Path templates, such as /items/{id:int} or /static/*.", unset="any")
METHODS = kinds.several(
    "methods", read_method, "HTTP methods. HEAD and WebSocket handshakes count as GET.", unset="any"
)
_IP = kinds.several("ip", readers.network_text, "Addresses and networks of clients.", unset="any")
_HOST = kinds.several("host", readers.non_blank, "Hosts, without a port.", of=kinds.NON_BLANK, unset="any")
_TIER: Word[tuple[str, ...]] = kinds.several(
    "tier", readers.non_blank, "Tiers of clients. See client.tier.", of=kinds.NON_BLANK, unset="any"
)
_USER: Word[tuple[str, ...]] = kinds.several(
    "user", readers.non_blank, "Users. See client.user.", of=kinds.NON_BLANK, unset="any"
)

MATCH_SECTION = Section(
    "Match",
    "To which requests a rule applies. Other keys are attributes: header:N, cookie:N, query:N and those of the file.",
    (PATH, METHODS, _IP, _HOST, _TIER, _USER),
    open_keys=True,
)

MATCH = section_word("match", MATCH_SECTION, compared=True, unset="every request")

EXEMPT = sections_word(
    "exempt",
    lambda: MATCH_SECTION,
    "Requests that are never counted. A request is exempt if all keys of one entry match it.",
    example="write a list of mappings, for example [{path: /health}]",
)
