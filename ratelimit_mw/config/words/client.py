"""`client` and `attributes`: how clients are identified.

An attribute is a value of a request. Some are built in (`ip`, `method`), and `user` and `tier` are set under `client`.
A file may define others under `attributes`.
"""

import re
from collections.abc import Mapping

from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Map, Node, Problems, unlike
from ratelimit_mw.config.word import Section, Word, section_word
from ratelimit_mw.errors import quoted
from ratelimit_mw.identity import sources
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
        example="for example {user: header:Authorization}",
    ),
)

ATTRIBUTES: Word[Mapping[str, str]] = Word(
    key="attributes",
    read=_read_attributes,
    default={},
    schema=kinds.TEXTS,
    about="Attributes of your own: the name, and the source of the value.",
)
