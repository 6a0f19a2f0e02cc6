"""`match`, `exempt`, `name`, `by`, `replaces`, `on_demand`, `shadow`, `on_error`: which rules apply, and to what.

An entry of `by` names attributes: `ip+user` counts each pair, and `user|ip` counts by the first that is present. A
request is charged to one counter for each entry.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Node, Problems
from ratelimit_mw.config.word import Conflict, Section, Values, Word, section_word, sections_word
from ratelimit_mw.config.words.storage import POLICIES
from ratelimit_mw.errors import Invalid, near, nearest, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.identifier import CONNECTION, Identifier, attributes_of, choices_of, identifiers
from ratelimit_mw.rules.compiled import Exact, Matching
from ratelimit_mw.rules.path_templates import Template, parse, parts_of

CHARGED_AT_ONCE = "a rule on demand is charged when the app asks for it"
"""The reason why a rule on demand cannot depend on the response."""

_WITH_PORT = re.compile(r"[^:]:[0-9]+$")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
_RENAMED = {"method": "write methods", "remote_address": "write ip"}
_OPEN_KEYS = ("header:N", "cookie:N", "query:N")


def read_template(node: Node) -> Template:
    """Read a path template."""
    written = kinds.read_text(node)
    try:
        return parse(written)
    except Invalid as error:
        raise Invalid(f"{quoted(written)}: {error}", error.hint) from None


def read_method(node: Node) -> str:
    """Read a method, in upper case. An unknown method is allowed, unless it is similar to a known one."""
    word = kinds.read_text(node)
    upper = word.upper()
    if upper == "HEAD":
        raise Invalid("HEAD requests are counted with GET", "write GET")
    hint = "" if upper in _METHODS else near(word, _METHODS)
    if not kinds.TOKEN.fullmatch(word) or not upper[:1].isalpha():
        hint = "remove methods to match all of them" if word == "*" else f"known: {', '.join(_METHODS)}"
    if hint:  # without a hint, it is a method that only the app knows
        raise Invalid(f"{quoted(word)} is not an HTTP method", hint)
    return upper


def read_host(node: Node) -> str:
    """Read a host, in lower case and without a dot at its end."""
    host = kinds.read_non_blank(node)
    if _WITH_PORT.search(host):
        raise Invalid(f"{quoted(host)} must not have a port", "hosts are matched without their port")
    if not host.strip("."):
        raise Invalid(f"{quoted(host)} is not a host name", "for example api.example.com")
    return host.lower().rstrip(".")


def compile_match(match: Values, attributes: Attributes, problems: Problems) -> Matching:
    """Return the compiled conditions of a `match`, or of an entry of `exempt`."""
    words = (_HOST, _TIER, _USER)
    exact = [Exact(attributes.reader(word.key), match[word], word.key) for word in words if match[word]]
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
        known = dict.fromkeys((*MATCH_SECTION.words, *_OPEN_KEYS, *custom))
        problems.add(place, f"unknown key {quoted(key)}", nearest(key, known))
    else:
        wanted = problems.read(kinds.each(kinds.read_non_blank), value, ())
        return Exact(attributes.reader(key), wanted, key)
    return None


def validate_exempt(entries: Sequence[Values], problems: Problems) -> None:
    """Report entries of `exempt` that would exempt every request."""
    for entry in entries:
        if not entry and not entry.dropped:
            problems.add(entry.node.place, "must not be empty: it would exempt every request")


def validate_names(rules: Sequence[Values], problems: Problems) -> None:
    """Report duplicate names, and names in `replaces` that cannot be replaced."""
    first: dict[str, int] = {}
    for rank, rule in enumerate(rules):
        name = rule[NAME]
        if name and name in first:
            other = rules[first[name]].place("name")
            hint = f"the other is at line {other.line}" if other.line else f"the other is {other.path}"
            problems.add(rule.place("name"), f"two rules are named {quoted(name)}", hint)
        first.setdefault(name, rank)
    if "" in first:
        return  # a name could not be read; it may be the one that a `replaces` refers to
    replaced = {rule[NAME]: rule[REPLACES] for rule in rules if rule[REPLACES]}
    for rule in rules:
        for index, name in enumerate(rule[REPLACES]):
            place = rule.place("replaces", index)
            if name == rule[NAME]:
                problems.add(place, "a rule can't replace itself")
            elif name not in first:
                problems.add(place, f"there is no rule {quoted(name)}", nearest(name, first))
            elif rule[NAME] in _reachable(name, replaced):
                problems.add(place, f"this rule and {quoted(name)} replace each other, so neither would ever apply")
            elif ("messages" in rule) is not ("messages" in rules[first[name]]):
                counts, others = ("messages", "requests") if "messages" in rule else ("requests", "messages")
                message = f"this rule counts {counts}, so it can't replace {quoted(name)}, which counts {others}"
                problems.add(place, message)


def _reachable(name: str, replaced: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the rules that a rule replaces, the rules that these replace, and so on."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        new = set(replaced.get(ahead.pop(), ())) - found
        found |= new
        ahead += new
    return found


PATH = kinds.several("path", read_template, "Path templates, such as /items/{id:int} or /static/*.", unset="any")
METHODS = kinds.several(
    "methods", read_method, "HTTP methods. HEAD and WebSocket handshakes count as GET.", unset="any"
)
_IP = kinds.several("ip", kinds.read_network_text, "Addresses and networks of clients.", unset="any")
_HOST: Word[tuple[str, ...]] = kinds.several(
    "host", read_host, "Hosts, without a port.", of=kinds.NON_BLANK, unset="any"
)
_TIER: Word[tuple[str, ...]] = kinds.several(
    "tier", kinds.read_non_blank, "Tiers of clients. See client.tier.", of=kinds.NON_BLANK, unset="any"
)
_USER: Word[tuple[str, ...]] = kinds.several(
    "user", kinds.read_non_blank, "Users. See client.user.", of=kinds.NON_BLANK, unset="any"
)

MATCH_SECTION = Section(
    "Match",
    "To which requests a rule applies. Other keys are attributes: header:N, cookie:N, query:N and those of the file.",
    (PATH, METHODS, _IP, _HOST, _TIER, _USER),
    open_keys=True,
    example="for example {path: /login, methods: [POST]}",
)

MATCH: Word[Values] = section_word("match", MATCH_SECTION, compared=True, unset="every request")

EXEMPT = sections_word(
    "exempt",
    MATCH_SECTION,
    "Requests that are never counted. A request is exempt if all keys of one entry match it.",
    example="write a list of mappings, for example [{path: /health}]",
)

NAME = kinds.name("name", "The rule's name in keys, headers, logs and commands. Unique in its file.", compared=True)

REPLACES = kinds.several(
    "replaces",
    kinds.read_text,
    "The rules that do not apply to a request if this rule does.",
    unset="none",
    empty=True,
    compared=True,
)

ON_DEMAND = kinds.flag(
    "on_demand",
    "The rule applies only if the app asks for it by name.",
    conflicts=(Conflict(REPLACES, "a rule on demand replaces no other rule"),),
)

SHADOW: Word[bool] = kinds.flag(
    "shadow",
    "The rule is counted and reported, but never enforced.",
    compared=True,
    fields=lambda shadow: {"shadow": shadow},
)

SHADOW_FILE: Word[bool] = kinds.flag(
    "shadow", "No rule of this file is enforced. Every rule is only counted and reported."
)

ON_ERROR: Word[Literal["allow", "deny", "local"] | None] = kinds.choice(
    "on_error",
    POLICIES,
    None,
    "The decision while the store is unavailable.",
    unset="that of `storage`",
    compared=True,
    fields=lambda on_error: {"on_error": on_error},
)


WITHOUT_ATTRIBUTE = ("global", "route", "connection")
"""What `by` may name that is no attribute."""


def compile_by(
    rule: Values, templates: tuple[Template, ...], attributes: Attributes, problems: Problems
) -> tuple[Identifier, ...]:
    """Return one identifier for each entry of the rule's `by`."""
    usable = True
    for index, entry in enumerate(rule[BY]):
        for message, hint in _faults(entry, templates, attributes):
            problems.add(rule.place("by", index), message, hint)
            usable = False
    if not templates and any("route" in attributes_of(entry) for entry in rule[BY]):
        attributes.reader("route")  # so that `attributes` knows of its use
    return identifiers(rule[BY], attributes) if usable else ()


def _validate_by(rule: Values, problems: Problems) -> None:
    """Report `by: connection` in a rule that does not count messages. Words of its own say what else it excludes."""
    for index, entry in enumerate(rule[BY]):
        if CONNECTION in attributes_of(entry) and "messages" not in rule:
            message = "only rules with messages can count by connection"
            problems.add(rule.place("by", index), message, "add messages: close or messages: drop")


def _faults(entry: str, templates: tuple[Template, ...], attributes: Attributes) -> list[tuple[str, str]]:
    """Return (message, hint) for each fault of one entry of `by`."""
    try:
        choices_of(entry)
    except ValueError as error:
        return [(str(error), "")]
    found: list[tuple[str, str]] = []
    for part in attributes_of(entry):
        if part.startswith("path:") and templates:
            parameters = {name for template in templates for name in parts_of(template).names}
            if part.removeprefix("path:") in parameters:
                continue
            message = f"no template of match.path has the parameter {{{part.removeprefix('path:')}}}"
            known = [f"path:{name}" for name in sorted(parameters)]
            found.append((message, nearest(part, known) if known else ""))
        elif part not in WITHOUT_ATTRIBUTE and not attributes.known(part):
            names = [*(name for name in attributes.names() if name != "remote_address"), *WITHOUT_ATTRIBUTE]
            found.append((f"there is no attribute {quoted(part)}", _by_hint(part) or nearest(part, names)))
    return found


def _by_hint(part: str) -> str:
    """Return the hint for a text that looks like several attributes, or like a header or a cookie."""
    if "_or_" in part:
        return f"did you mean '{part.replace('_or_', '|')}'?"
    if re.search("[,&]| and ", part):
        return (
            "write [ip, user] for two counters, ip+user for one counter per pair, user|ip for the first that is present"
        )
    return f"did you mean 'header:{part}'?" if re.match("x-|authorization$", part, re.IGNORECASE) else ""


BY_VALUES = {
    "ip": "the client's address. IPv6 addresses of one network are one client (`ipv6_prefix`). It is always present",
    "user": "the user, from `client.user`",
    "tier": "the tier, from `client.tier`",
    "path": "the path of the request, cleaned (`//` and dot segments)",
    "route": "the template of `match.path` that matched; without `match.path`, that of the app's own route (Starlette, "
    "FastAPI, Flask, Django)",
    "method": "the method. HEAD counts as GET",
    "host": "the host, without a port",
    "header:N": "the header N",
    "cookie:N": "the cookie N",
    "query:N": "the query parameter N",
    "path:N": "the parameter N of the path template that matched",
    "global": "one counter for all requests",
    "connection": "one counter for each WebSocket, in a rule with `messages`",
}
"""The values of `by`, with their meanings for the reference."""

BY = kinds.several(
    "by",
    kinds.read_text,
    f"What the rule counts by: {', '.join(BY_VALUES)} or an attribute of the file. a+b counts by the pair, a|b by the"
    " first that is present. Parentheses group: (user|ip)+path. A list has one counter for each of its items.",
    default=("ip",),
    shown_default="ip",
    compared=True,
    validate=_validate_by,
)
