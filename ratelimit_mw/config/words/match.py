"""`match` and `exempt`: which requests are meant, by path, method, address, host and any attribute."""

import re
from collections.abc import Iterator, Sequence

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Invalid, Node, Problems
from ratelimit_mw.config.word import Section, Values, Word, section_word, sections_word
from ratelimit_mw.errors import TemplateError, near, nearest, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.process_local import checkpoint
from ratelimit_mw.rules.compiled import Exact, Matching
from ratelimit_mw.rules.path_templates import Template, apart_from_floats, parse

_WITH_PORT = re.compile(r"[^:]:[0-9]+$")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
_ELSEWHERE = {"method": "write methods", "remote_address": "write ip"}
_OPEN_KEYS = ("header:N", "cookie:N", "query:N")


def read_template(node: Node) -> Template:
    """A path template."""
    written = readers.text(node)
    try:
        return parse(written)
    except TemplateError as error:
        raise Invalid.at(None, f"{quoted(written)}: {error}", error.hint) from None


def read_method(node: Node) -> str:
    """An HTTP method, in upper case."""
    word = readers.text(node)
    upper = word.upper()
    if not readers.TOKEN.fullmatch(word) or not upper[:1].isalpha():
        hint = "leave methods out, for all of them" if word == "*" else f"known: {', '.join(_METHODS)}"
        raise Invalid.at(None, f"{quoted(word)} is no HTTP method", hint)
    if upper == "HEAD":
        raise Invalid.at(None, "HEAD is counted with GET", "write GET")
    if upper not in _METHODS:
        hint = near(word, _METHODS)
        if hint:  # otherwise it is a method of the app's own
            raise Invalid.at(None, f"{quoted(word)} is no known HTTP method", hint)
    return upper


def compile_match(match: Values, attributes: Attributes, problems: Problems) -> Matching:
    """What a `match`, or an entry of `exempt`, asks of a request."""
    checkpoint()
    exact: list[Exact] = []
    if match[_HOST]:
        for host in match[_HOST]:
            if _WITH_PORT.search(host):
                problems.add(match.place("host"), f"{quoted(host)}: a host is matched without its port")
            elif not host.strip("."):
                problems.add(match.place("host"), f"{quoted(host)} is no name of a host", "as api.example.com")
        hosts = tuple(host.lower().rstrip(".") for host in match[_HOST])
        exact.append(Exact(attributes.reader("host"), hosts, "host"))
    exact += [Exact(attributes.reader(word.key), match[word], word.key) for word in (_TIER, _USER) if match[word]]
    for key, value in match.extra.items():
        found = _attribute(key, value, match, attributes, problems)
        if found is not None:
            exact.append(found)
    return Matching(match[PATH], tuple(exact), match[_IP], match[METHODS])


def ints_apart_from_floats(*listed: tuple[Matching, ...]) -> Iterator[tuple[Matching, ...]]:
    """The same lists. Where the file has a float at the place of an int, the int no longer matches 7.0."""
    apart = apart_from_floats(template for matches in listed for match in matches for template in match.templates)
    for matches in listed:
        yield tuple(
            match._replace(templates=tuple(apart.get(each, each) for each in match.templates)) if apart else match
            for match in matches
        )


def _attribute(key: str, value: Node, match: Values, attributes: Attributes, problems: Problems) -> Exact | None:
    place = match.key_place(key)
    if key in _ELSEWHERE:
        problems.add(place, f"unknown key {quoted(key)}", _ELSEWHERE[key])
    elif key.startswith("path:"):
        problems.add(place, f"unknown key {quoted(key)}", "write the value into match.path, in place of the parameter")
    elif not attributes.known(key):
        custom = [name for name in attributes.names() if name not in (*_ELSEWHERE, "path:N")]
        known = dict.fromkeys((*MATCH_SECTION.keys, *_OPEN_KEYS, *custom))
        problems.add(place, f"unknown key {quoted(key)}", nearest(key, known))
    else:
        try:
            return Exact(attributes.reader(key), readers.each(readers.filled)(value), key)
        except Invalid as invalid:
            problems.add_all(invalid, value.place)
    return None


def validate_exempt(entries: Sequence[Values], problems: Problems) -> None:
    """Report entries of `exempt` that would exempt every request."""
    for entry in entries:
        if not entry and not entry.dropped:
            problems.add(entry.node.place, "an entry that names nothing would exempt every request")


PATH = kinds.several("path", read_template, "Path templates, as /items/{id:int} or /static/*.")
METHODS = kinds.several("methods", read_method, "HTTP methods. HEAD and WebSocket handshakes go with GET.")
_IP = kinds.several("ip", readers.network, "Addresses and networks of clients.")
_HOST = kinds.several("host", readers.filled, "Hosts, without a port.", of=kinds.FILLED)
_TIER: Word[tuple[str, ...]] = kinds.several(
    "tier", readers.filled, "Tiers of clients; see client.tier.", of=kinds.FILLED
)
_USER: Word[tuple[str, ...]] = kinds.several("user", readers.filled, "Users; see client.user.", of=kinds.FILLED)

MATCH_SECTION = Section(
    "Match",
    "Which requests are meant. Further keys are attributes: header:N, cookie:N, query:N and those of the file.",
    (PATH, METHODS, _IP, _HOST, _TIER, _USER),
    open_keys=True,
)

MATCH = section_word("match", MATCH_SECTION, compared=True)

EXEMPT = sections_word(
    "exempt",
    lambda: MATCH_SECTION,
    "Requests that are never counted: those for which all keys of one entry match.",
)
