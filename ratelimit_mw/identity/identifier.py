"""Build identities: the text between the braces of a counter's key, which says whose counter it is.

An identity is compiled from one entry of `by`. Each part names its attribute, so the user "192.0.2.1" and the address
192.0.2.1 have different identities. Values that clients send are hashed, because an identity is logged. Only addresses
and known methods are written as they are.
"""

import itertools
import re
from collections.abc import Callable
from functools import partial
from operator import attrgetter, methodcaller
from urllib.parse import quote

from ratelimit_mw.errors import quoted
from ratelimit_mw.identity.address import UNKNOWN_ADDRESS
from ratelimit_mw.identity.attributes import Absence, Attributes, Reader, canonical_name, read_app_route
from ratelimit_mw.identity.fields import BY_ADDRESS
from ratelimit_mw.identity.request import METHODS, Request


class Parameters(dict[str, str]):
    """The values of the path parameters of the template that matched, by name.

    Values of one type that are equal have one text: that of 007 is 7.
    """

    path: str | None = None
    """The path with these texts in place of those that the client wrote. None if they are the same."""


NO_PARAMETERS = Parameters()
"""The parameters of a path that matched a template without any. It must not be changed."""

Identifier = Callable[[Request, Parameters, str], str | None]
"""Returns the identity of a request, or None if an attribute is absent.

The arguments are the request, its path parameters, and the template that matched ("" for none).
"""

GLOBAL = "*"
"""The identity of `by: global`."""

KEY = "(key)"
"""Stands for an attribute's name in the identity of a key that the app has computed. No name has parentheses."""

CONNECTION = "connection"
"""The attribute that identifies the WebSocket of a message. Only messages have it. Its value is the whole identity."""

_NOT_SECRET = ("host", "path", "tier")
"""Attributes whose values may be guessed without harm."""

_PRESENT = ("ip", "global", "method", "path", "host", "route", CONNECTION, "user")
"""What requests have, or what is noticed elsewhere if it is absent."""


def identifier(by: str, attributes: Attributes) -> Identifier:
    """Compile one entry of `by`: an attribute, "a+b" for the pair, "a|b" for the first that is present, or "(a|b)+c".

    Rules with the same entry share one function. Raises ValueError, with a message for the user, if an entry cannot be
    read or names an unknown attribute.
    """
    cached = attributes.identifiers.get(by)
    if cached is None:
        parts = [[_part(name, attributes) for name in names] for names in choices_of(by)]
        cached = attributes.identifiers[by] = _first_present([_joined(each) for each in parts])
    return cached


def identifiers(by: tuple[str, ...], attributes: Attributes) -> tuple[Identifier, ...]:
    """Compile all entries of `by`. Rules with the same entries share one tuple. Raises ValueError, see `identifier`."""
    cached = attributes.identifiers_of.get(by)
    if cached is None:
        made = [identifier(entry, attributes) for entry in by]
        if by and all(_may_be_absent(entry) for entry in by):
            made = _noticing_absence(made, by, attributes)
        cached = attributes.identifiers_of[by] = tuple(made)
    return cached


def _may_be_absent(entry: str) -> bool:
    """Whether requests may lack what an entry counts by. An absent user is noticed by the reader of the user."""
    return all(
        any(canonical_name(name).partition(":")[0] not in _PRESENT for name in names) for names in choices_of(entry)
    )


def _noticing_absence(made: list[Identifier], by: tuple[str, ...], attributes: Attributes) -> list[Identifier]:
    """Return the same identifiers, which log it if the first requests of the app have none of the identities."""
    absence = Absence(attributes, partial(attributes.warn_without_counter, by))

    def noticing(identify: Identifier, *, last: bool) -> Identifier:
        def noticed(request: Request, params: Parameters, route: str) -> str | None:
            identity = identify(request, params, route)
            if absence.left and (last or identity is not None):
                absence.examine(request, identity)
            return identity

        return noticed

    return [noticing(identify, last=identify is made[-1]) for identify in made]


def attributes_of(by: str) -> list[str]:
    """Return the names of the attributes in one entry of `by`, which need not be valid."""
    return [token.strip() for token in _TOKEN.findall(by) if token.strip() not in _SYMBOLS]


def choices_of(by: str) -> list[list[str]]:
    """Return the choices of one entry of `by`, each with the names that it joins. "(user|ip)+path" has two.

    The first choice of which all attributes are present is counted.

    Raises ValueError, with a message for the user, if the entry cannot be read.
    """
    if by.count("(") > _MOST_CHOICES:
        raise ValueError(f"{quoted(by)} has more than {_MOST_CHOICES} parentheses")
    tokens = [token.strip() for token in reversed(_TOKEN.findall(by)) if token.strip()]
    choices, _ = _choices(tokens, by)
    if tokens:
        raise ValueError(f"{quoted(by)} has an unmatched parenthesis")
    return choices


_TOKEN = re.compile(r"[()+|]|[^()+|]+")
_SYMBOLS = ("", "(", ")", "+", "|")
_MOST_CHOICES = 64


def _choices(tokens: list[str], by: str) -> tuple[list[list[str]], str]:
    """Take parts and the operators between them from the end of `tokens`. Return their choices and their text.

    Without parentheses, all operators must be the same: people disagree about which of the two comes first.
    """
    choices, text = _taken(tokens, by)
    texts, operators = [text], list[str]()
    while tokens and tokens[-1] in ("+", "|"):
        operators.append(tokens.pop())
        more, text = _taken(tokens, by)
        texts.append(text)
        choices = [*choices, *more] if operators[-1] == "|" else [[*one, *other] for one in choices for other in more]
        if len(choices) > _MOST_CHOICES:
            raise ValueError(f"{quoted(by)} has more than {_MOST_CHOICES} choices")
    if len(set(operators)) > 1:
        one, other = (_grouped(texts, operators, tighter) for tighter in "|+")
        raise ValueError(f"{quoted(by)} can be read in two ways (write {one} or {other})")
    return choices, "".join(itertools.chain(*itertools.zip_longest(texts, operators, fillvalue="")))


def _taken(tokens: list[str], by: str) -> tuple[list[list[str]], str]:
    """Take one name, or one pair of parentheses."""
    word = tokens.pop() if tokens else ""
    if word == "(":
        choices, text = _choices(tokens, by)
        if not tokens or tokens.pop() != ")":
            raise ValueError(f"{quoted(by)} has an unmatched parenthesis")
        return choices, f"({text})"
    if word in _SYMBOLS:
        raise ValueError(f"an attribute is missing in {quoted(by)} (for example ip+user, user|ip or global)")
    return [[word]], word


def _grouped(texts: list[str], operators: list[str], tighter: str) -> str:
    """Return the text with parentheses around what the operator `tighter` joins."""
    groups = [[texts[0]]]
    for operator, text in zip(operators, texts[1:], strict=True):
        if operator == tighter:
            groups[-1].append(text)
        else:
            groups.append([text])
    written = [f"({tighter.join(group)})" if len(group) > 1 else group[0] for group in groups]
    return ("+" if tighter == "|" else "|").join(written)


def _joined(parts: list[Identifier]) -> Identifier:
    """Join the texts of all parts with "+". The identity is None if one part is absent."""
    if len(parts) == 1:
        return parts[0]

    def identify(request: Request, params: Parameters, route: str) -> str | None:
        texts: list[str] = []
        for part in parts:
            text = part(request, params, route)
            if text is None:
                return None
            texts.append(text)
        return "+".join(texts)

    return identify


def _first_present(choices: list[Identifier]) -> Identifier:
    """Return the first choice that is present. An unknown address is used only if no other choice is present."""
    if len(choices) == 1:
        return choices[0]

    def identify(request: Request, params: Parameters, route: str) -> str | None:
        fallback = None
        for choice in choices:
            text = choice(request, params, route)
            if text is None:
                continue
            if UNKNOWN_ADDRESS not in text:
                return text
            fallback = fallback or text
        return fallback

    return identify


def _part(name: str, attributes: Attributes) -> Identifier:
    """Compile a single name. Raises ValueError if it is unknown."""
    name = canonical_name(name)
    if name == "global":
        return lambda _request, _params, _route: GLOBAL
    if name == "route":
        return _by_route
    if name == CONNECTION:
        return lambda request, _params, _route: request.values.get(CONNECTION)
    if name == "ip":
        attributes.reader("ip")  # so that `attributes` knows of its use
        return attributes.client_address.identify
    if name == "path":
        return _by_path(attrgetter("path"), attributes.reader(name), encoder(name, attributes))
    if name.startswith("path:"):
        parameter, prefix, digest = name.removeprefix("path:"), f"{_escaped(name)}=", attributes.digest
        return _by_path(methodcaller("get", parameter), attributes.reader(name), lambda value: prefix + digest(value))
    return _by_attribute(name, attributes)


def _by_path(matched: Callable[[Parameters], str | None], read: Reader, encode: Callable[[str], str]) -> Identifier:
    """Identify by what the template that matched has found in the path, otherwise by what `read` returns."""

    def identify(request: Request, params: Parameters, _route: str) -> str | None:
        value = matched(params)
        if value is None:
            value = read(request)
        return None if value is None else encode(value)

    return identify


def _by_route(request: Request, _params: Parameters, route: str) -> str | None:
    """Return the identity by `route`: the template that matched, or that of the app in a rule without templates."""
    found = route or read_app_route(request)
    return f"route={_escaped(found)}" if found else None


def _by_attribute(name: str, attributes: Attributes) -> Identifier:
    read, encode, by_address = attributes.reader(name), encoder(name, attributes), attributes.client_address.identify

    def identify(request: Request, params: Parameters, route: str) -> str | None:
        value = read(request)
        if value == BY_ADDRESS:
            return by_address(request, params, route)
        return None if value is None else encode(value)

    return identify


def encoder(name: str, attributes: Attributes) -> Callable[[str], str]:
    """Return the function that encodes a value of the attribute `name` as a part of an identity: "name=value".

    The value is hashed unless it is an address or a known method. A "~" marks a hash where a value could stand. The
    name need not be a known attribute, because the entries that `check()` takes have any key.
    """
    name = canonical_name(name)
    digest, prefix = attributes.digest_of(name), f"{_escaped(name)}="
    if name == "ip":
        network = attributes.network
        return lambda value: prefix + (network(value) or f"~{digest(value)}")
    if name == "method":
        return lambda value: prefix + (value if value in METHODS else f"~{digest(value)}")
    if name not in _NOT_SECRET:
        attributes.warn_without_secret()
    return lambda value: prefix + digest(value)


def identifier_of_key(key: str, attributes: Attributes) -> Identifier:
    """Return the identifier of a key that the app has computed. Its name in the identity is no attribute's name."""
    attributes.warn_without_secret()
    identity = f"{KEY}={attributes.digest(key)}"
    return lambda _request, _params, _route: identity


def _escaped(text: str) -> str:
    """Percent-encode a text of the rules file, so that it holds no character with a meaning in a key."""
    return quote(text, safe="/:", errors="surrogatepass")
