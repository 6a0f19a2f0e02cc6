"""`client` and `attributes`: how clients are identified. `by`: what a rule counts by.

An attribute is a value of a request. Some are built in (`ip`, `method`), and `user` and `tier` are set under `client`.
A file may define others under `attributes`. An entry of `by` names attributes: `ip+user` counts each pair, and
`user|ip` counts by the first that is present. A request is charged to one counter for each entry.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Map, Node, Problems, unlike
from ratelimit_mw.config.word import Section, Values, Word, section_word
from ratelimit_mw.errors import nearest, quoted
from ratelimit_mw.identity import sources
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.identifier import CONNECTION, Identifier, attributes_of, choices_of, identifiers
from ratelimit_mw.rules.path_templates import Template, parts_of
from ratelimit_mw.settings import ClientSettings

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_BUILT_IN = (
    "ip",
    "remote_address",
    "user",
    "tier",
    "method",
    "methods",
    "path",
    "host",
    "route",
    "global",
    "connection",
)
_VALID_SOURCE = "header:x"  # replaces an invalid source, so that the rules that use it are not reported as well


def compile_client(file: Values, domain: str, logged: set[str] | None = None) -> tuple[ClientSettings, Attributes]:
    """Return the settings of `client`, and the attributes that rules may use. For `logged` see `Attributes`."""
    settings = replace(file[CLIENT], domain=domain, attributes=file[ATTRIBUTES])
    return settings, Attributes(settings, logged)


def _read_attributes(node: Node) -> dict[str, str]:
    """Read the sources of the attributes that the file defines, by name."""
    if not isinstance(node, Map):
        raise unlike(node, "a mapping")
    problems = Problems()
    found: dict[str, str] = {}
    for name, source in node.items():
        if name in _BUILT_IN:
            problems.add(source.place, f"the attribute {quoted(name)} is built in", "choose another name")
        elif not _NAME.fullmatch(name):
            hint = "at most 64 letters, digits, '_', '-' and '.'"
            problems.add(source.place, f"{quoted(name)} is not an attribute name", hint)
        else:
            found[name] = problems.read(_read_source, source, None) or _VALID_SOURCE
    return problems.checked(found)


def _read_source(node: Node) -> str | None:
    """Read the source of an attribute. None if it is empty."""
    written = kinds.read_optional_text(node)
    if written is not None:
        sources.compiled(written)
    return written


_TRUSTED_PROXIES = kinds.several(
    "trusted_proxies",
    kinds.read_network,
    "The proxies that are trusted to report the client's address.",
    empty=True,
    unset="none",
)
_TRUSTED_HOPS = kinds.number(
    "trusted_hops", 0, 32, 0, "The number of proxies in front of the app, whatever their addresses."
)
_IP_HEADER = kinds.text(
    "ip_header", "The header in which trusted proxies report the client.", "X-Forwarded-For", kinds.read_header_name
)
_IPV6_PREFIX = kinds.number("ipv6_prefix", 1, 128, 64, "The number of leading bits that identify an IPv6 client.")
_USER = kinds.optional_text(
    "user",
    f"Where the user comes from: {' '.join(f'{source}:' for source in sources.SOURCES)} followed by a name, for example"
    " header:Authorization or python:package.module:function.",
    read=_read_source,
    unset="the user that Django's middleware knows",
)
_TIER = kinds.optional_text(
    "tier",
    "Where the client's tier comes from. Your gateway must set it, because clients can forge headers.",
    read=_read_source,
    unset="no client has a tier",
)
_SECRET = kinds.text(
    "secret", "The key of the hashes of users, tokens and cookies. The same in every process.", unset="the `domain`"
)

CLIENT: Word[ClientSettings] = section_word(
    "client",
    Section(
        "Client",
        "How clients are identified.",
        (_TRUSTED_PROXIES, _TRUSTED_HOPS, _IP_HEADER, _IPV6_PREFIX, _USER, _TIER, _SECRET),
        make=lambda **words: ClientSettings("", **words),
    ),
)

ATTRIBUTES: Word[Mapping[str, str]] = Word(
    key="attributes",
    read=_read_attributes,
    default={},
    schema=kinds.TEXTS,
    about="Attributes of your own: the name, and the source of the value.",
)


_WITHOUT_ATTRIBUTE = ("global", "route", "connection")


def compile_by(
    rule: Values, templates: tuple[Template, ...], attributes: Attributes, problems: Problems
) -> tuple[Identifier, ...]:
    """Return one identifier for each entry of the rule's `by`."""
    seen: set[str] = set()
    usable = True
    for index, entry in enumerate(rule[BY]):
        for message, hint in _faults(entry, templates, attributes):
            problems.add(rule.place("by", index), message, hint)
            usable = False
        spelling = entry.replace("remote_address", "ip").replace(" ", "")
        if spelling in seen:
            problems.add(rule.place("by", index), f"{quoted(entry)} is in the list twice")
        seen.add(spelling)
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
        if part == "route" and not templates:
            message = "'route' is the path template that matched, but this rule has no match.path"
            found.append((message, "add match.path, or use path"))
        elif part.startswith("path:") and templates:
            parameters = {name for template in templates for name in parts_of(template).names}
            if part.removeprefix("path:") in parameters:
                continue
            message = f"no template of match.path has the parameter {{{part.removeprefix('path:')}}}"
            known = [f"path:{name}" for name in sorted(parameters)]
            found.append((message, nearest(part, known) if known else ""))
        elif part not in _WITHOUT_ATTRIBUTE and not attributes.known(part):
            names = [*(name for name in attributes.names() if name != "remote_address"), *_WITHOUT_ATTRIBUTE]
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
    "route": "the template of `match.path` that matched",
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
