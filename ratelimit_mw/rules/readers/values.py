"""Readers of single values: from a node of the tree to what the settings hold. Each raises `Wrong`."""

import re
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TypeVar

from ratelimit_mw.identity.paths import cleaned
from ratelimit_mw.rules.documents.tree import Items, Node, Scalar, kind, near, nearest, quoted
from ratelimit_mw.rules.paths.templates import Template, TemplateError, parse
from ratelimit_mw.rules.readers.wrong import Wrong
from ratelimit_mw.settings import Network

T = TypeVar("T")

LONGEST_NAME = 100
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header's name, or a method's (RFC 9110)."""

PLACEHOLDER = re.compile(r"\{([A-Za-z_-]+)\}")
"""What stands in braces."""

_FOLDER = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_DIGITS = re.compile("[0-9]{1,10}")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
_NOTHING = "write the value, or leave the key out to match every value"
_SCHEMES = ("memory", "redis", "rediss", "unix", "redis+sentinel", "redis+cluster")


def text(node: Node) -> str:
    """Any text. What YAML would type otherwise is the text that was written."""
    if not isinstance(node, Scalar):
        raise Wrong.at(None, f"must be text, not {kind(node)}")
    if node.value is None and node.text:
        raise Wrong.at(None, f"must be text, not {kind(node)}", "quote it if it is meant as text")
    return node.text


def filled(node: Node) -> str:
    """Text that a request is compared with. No attribute is ever empty or blank, so such a text would match none."""
    found = text(node)
    if not found.strip():
        raise Wrong.at(None, f"{quoted(found) if found else 'an empty value'} matches no request", _NOTHING)
    return found


def optional_text(node: Node) -> str | None:
    """Text, or None where it is empty."""
    return text(node) or None


def name(node: Node) -> str:
    """The name of a domain or a rule: it goes into keys, logs and bodies."""
    found = text(node)
    if not found.strip():
        raise Wrong.at(None, "must not be empty")
    if not found.isprintable():
        raise Wrong.at(None, f"{quoted(found)} holds a character that can't be printed")
    if len(found) > LONGEST_NAME:
        raise Wrong.at(None, f"longer than {LONGEST_NAME} characters")
    return found


def whole(node: Node) -> int:
    """A whole number."""
    if isinstance(node, Scalar) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return node.value
    hint = ""
    if isinstance(node, Scalar) and _DIGITS.fullmatch(node.text):
        hint = f"write {int(node.text)}, with neither quotes nor zeros before it"
    raise Wrong.at(None, f"must be a whole number, not {kind(node)}", hint)


def flag(node: Node) -> bool:
    """True or false."""
    if isinstance(node, Scalar) and isinstance(node.value, bool):
        return node.value
    meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}
    hint = f"write {meant[node.text.lower()]}" if isinstance(node, Scalar) and node.text.lower() in meant else ""
    raise Wrong.at(None, f"must be true or false, not {kind(node)}", hint)


def folder(node: Node) -> str:
    """A path of our own, below which our pages lie; without a slash at its end."""
    written = text(node)
    found = written.rstrip("/")
    if not _FOLDER.fullmatch(found) or cleaned(found) != found:
        raise Wrong.at(None, f"{quoted(written)} is no folder for pages", "as /.ratelimit/deferred")
    return found


def share(node: Node) -> float:
    """A load, above 0 and at most 1."""
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong.at(node.place, f"must be a load from 0 to 1, not {kind(node)}", "as 0.7")
    if not 0 < value <= 1:
        raise Wrong.at(node.place, f"a load of {value} is out of range", "above 0, at most 1")
    return float(value)


def one_of(*words: str) -> Callable[[Node], str]:
    """A reader of one of these words."""

    def read(node: Node) -> str:
        word = text(node)
        if word not in words:
            raise Wrong.at(None, f"must be one of {', '.join(words)}, not {kind(node)}", near(word, words))
        return word

    return read


def each(read: Callable[[Node], T], *, empty: bool = False) -> Callable[[Node], tuple[T, ...]]:
    """A reader of one such value or a list of them (an `empty` one too?), which reports every bad one."""

    def several(node: Node) -> tuple[T, ...]:
        if not isinstance(node, Items):
            return (read(node),)
        wrong = Wrong()
        if not node and not empty:
            wrong.add(None, "an empty list")
        found: list[T] = []
        for item in node:
            try:
                found.append(read(item))
            except Wrong as error:
                for fault in error.faults:
                    wrong.add(fault.place or item.place, fault.message, fault.hint)
        wrong.finish()
        return tuple(found)

    return several


def network(node: Node) -> Network:
    """An address or a network in CIDR form; one of IPv4 mapped into IPv6 is that of IPv4."""
    written = text(node)
    try:
        found = ip_network(written)
    except ValueError:
        raise _no_network(written) from None
    mapped = found.network_address.ipv4_mapped if isinstance(found, IPv6Network) and found.prefixlen >= 96 else None
    return found if mapped is None else IPv4Network((mapped, found.prefixlen - 96))


def _no_network(written: str) -> Wrong:
    try:
        meant = ip_network(written, strict=False)
    except ValueError:
        hint = "as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.1"
        return Wrong.at(None, f"{quoted(written)} is neither an address nor a network", hint)
    return Wrong.at(None, f"{quoted(written)} has bits set behind its prefix", f"did you mean '{meant}'?")


def template(node: Node) -> Template:
    """A path template."""
    written = text(node)
    try:
        return parse(written)
    except TemplateError as error:
        raise Wrong.at(None, f"{quoted(written)}: {error}", error.hint) from None


def method(node: Node) -> str:
    """An HTTP method, in upper case."""
    word = text(node)
    upper = word.upper()
    if not TOKEN.fullmatch(word) or not upper[:1].isalpha():
        hint = "leave methods out, for all of them" if word == "*" else f"known: {', '.join(_METHODS)}"
        raise Wrong.at(None, f"{quoted(word)} is no HTTP method", hint)
    if upper == "HEAD":
        raise Wrong.at(None, "HEAD is counted with GET", "write GET")
    if upper not in _METHODS:
        hint = near(word, _METHODS)
        if hint:  # else it is a method that somebody has invented, which they may
            raise Wrong.at(None, f"{quoted(word)} is no known HTTP method", hint)
    return upper


def header_name(node: Node) -> str:
    """A header's name."""
    word = text(node)
    if not TOKEN.fullmatch(word):
        raise Wrong.at(None, f"{quoted(word)} is no name of a header", "as X-Forwarded-For")
    return word


def url(node: Node) -> str:
    """A storage URL. Messages show no more than its scheme, for the rest may hold a password."""
    address = text(node)
    scheme, separator, _ = address.partition("://")
    if not separator:
        raise Wrong.at(None, "this is no storage URL", "as memory:// or redis://localhost:6379/0")
    if scheme not in _SCHEMES:
        meant = scheme.replace("rediss+", "redis+")
        hint = f"for TLS say {meant}://…?tls=true" if meant in _SCHEMES else nearest(scheme, _SCHEMES)
        raise Wrong.at(None, f"there is no storage {quoted(scheme)}", hint)
    return address


def source_url(node: Node) -> str:
    """The URL of a rules database: that of a storage which processes share."""
    address = url(node)
    if address.startswith("memory:"):
        raise Wrong.at(None, "rules come from a Redis, not from memory://", "as redis://localhost:6379/0")
    return address
