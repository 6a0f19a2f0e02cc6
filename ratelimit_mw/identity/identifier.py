"""Who a counter belongs to: the text between the braces of its key, from the words of `by`.

Each part says which attribute it is of, so the user "192.0.2.1" and the address 192.0.2.1 stay apart.
What a client wrote never stands there as it is: it is hashed, unless it is short and harmless and no secret.
"""

import re
from collections.abc import Callable, Mapping
from urllib.parse import quote

from ratelimit_mw.identity.address import UNKNOWN_ADDRESS
from ratelimit_mw.identity.attributes import Attributes, canonical_name
from ratelimit_mw.identity.request import Request

Identifier = Callable[[Request, Mapping[str, str], str], str | None]
"""Takes a request, its path parameters and the template that matched; None where an attribute is absent."""

GLOBAL = "*"
"""The identity of `by: global`."""

CONNECTION = "connection"
"""The WebSocket that a message came over: its identity, which is there for messages only, is the text itself."""

SPELLED = " path"
"""Among a rule's path parameters, the path with their parsed values in it, where the client spelled it otherwise.

No parameter's name starts with a space.
"""

_HARMLESS = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NO_SECRET = ("method", "tier", "host")


def identifier(by: str, attributes: Attributes) -> Identifier:
    """Compile one entry of `by`: an attribute, "a+b" for the pair, "a|b" for the first that is present.

    `+` binds tighter than `|`. ValueError says what is wrong with it. Rules that count by the same share one function.
    """
    known = attributes.identifiers.get(by)
    if known is not None:
        return known
    choices = [[part.strip() for part in choice.split("+")] for choice in by.split("|")]
    if not all(part for parts in choices for part in parts):
        raise ValueError(f"{by!r} has nothing on one side of a + or a |; write as ip+user or user|ip")
    made = _first([_pair([_part(name, attributes) for name in parts]) for parts in choices])
    attributes.identifiers[by] = made
    return made


def attributes_of(by: str) -> list[str]:
    """The attributes that one entry of `by` names."""
    return [part.strip() for choice in by.split("|") for part in choice.split("+")]


def names_in(identity: str) -> tuple[str, ...]:
    """The names of the attributes that an identity is made of, as they stand in it."""
    return tuple(part.partition("=")[0] for part in identity.split("+"))


def names_of(choice: str) -> tuple[str, ...]:
    """The names that an identity has which was made by `choice`: an attribute, or several as "a+b"."""
    names = [canonical_name(part) for part in choice.split("+")]
    return tuple(GLOBAL if name == "global" else _escaped(name) for name in names)


def _pair(parts: list[Identifier]) -> Identifier:
    if len(parts) == 1:
        return parts[0]

    def identify(request: Request, params: Mapping[str, str], route: str) -> str | None:
        texts: list[str] = []
        for part in parts:
            text = part(request, params, route)
            if text is None:
                return None
            texts.append(text)
        return "+".join(texts)

    return identify


def _first(choices: list[Identifier]) -> Identifier:
    if len(choices) == 1:
        return choices[0]

    def identify(request: Request, params: Mapping[str, str], route: str) -> str | None:
        fallback = None
        for choice in choices:
            text = choice(request, params, route)
            if text is None:
                continue
            if UNKNOWN_ADDRESS not in text:
                return text
            fallback = fallback or text  # an unknown address is no more than a last resort
        return fallback

    return identify


def _part(name: str, attributes: Attributes) -> Identifier:
    name = canonical_name(name)
    if name == "global":
        return lambda _request, _params, _route: GLOBAL
    if name == "route":
        return lambda _request, _params, route: f"route={_escaped(route)}" if route else None
    if name == CONNECTION:
        return lambda request, _params, _route: request.values.get(CONNECTION)
    if not attributes.known(name):
        raise ValueError(f"{name!r} is nothing to count by; there are global, route, {', '.join(attributes.names())}")
    if name == "ip":
        attributes.reader("ip")  # so that `attributes` knows of its use
        return attributes.client_address.identify
    if name == "path":
        return _by_path(attributes)
    if name.startswith("path:"):
        return _by_parameter(name, attributes)
    return _by_attribute(name, attributes)


def _by_parameter(name: str, attributes: Attributes) -> Identifier:
    read, digest = attributes.reader(name), attributes.digest
    parameter, prefix = name.removeprefix("path:"), f"{_escaped(name)}="

    def identify(request: Request, params: Mapping[str, str], _route: str) -> str | None:
        value = params.get(parameter)
        if value is None:
            value = read(request)
        return prefix + digest(str(value)) if value is not None else None

    return identify


def _by_path(attributes: Attributes) -> Identifier:
    read, spell = attributes.reader("path"), spelling("path", attributes)

    def identify(request: Request, params: Mapping[str, str], _route: str) -> str | None:
        value = params.get(SPELLED) if params else None
        if value is None:
            value = read(request)
        return None if value is None else spell(value)

    return identify


def _by_attribute(name: str, attributes: Attributes) -> Identifier:
    read, spell = attributes.reader(name), spelling(name, attributes)

    def identify(request: Request, _params: Mapping[str, str], _route: str) -> str | None:
        value = read(request)
        return None if value is None else spell(value)

    return identify


def spelling(name: str, attributes: Attributes) -> Callable[[str], str]:
    """The function that writes a value of the attribute `name` as it stands between the braces.

    An identity may be of several, joined by "+". The name need not be an attribute's, for entries given by hand.
    """
    name = canonical_name(name)
    digest, prefix = attributes.digest, f"{_escaped(name)}="
    if name == "ip":
        network = attributes.network
        return lambda value: prefix + (network(value) or f"~{digest(value)}")
    if name in _NO_SECRET:
        return lambda value: prefix + (value if _HARMLESS.fullmatch(value) else f"~{digest(value)}")
    if name != "path":
        attributes.warn_without_secret()
    return lambda value: prefix + digest(value)


def _escaped(text: str) -> str:
    """Text of the rules file, so that no sign in it can be mistaken for one of a key's."""
    return quote(text, safe="/:", errors="surrogatepass")
