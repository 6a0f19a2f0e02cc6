"""`client` and `attributes`: who a client is, and where its attributes come from."""

import re

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Place, Problems
from ratelimit_mw.config.word import Section, Values, section_word, texts_word
from ratelimit_mw.hints import quoted
from ratelimit_mw.identity import sources
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.settings import ClientSettings

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_TAKEN = ("ip", "remote_address", "user", "tier", "method", "methods", "path", "host", "route", "global", "connection")
_STAND_IN = "header:x"  # in place of a source that is wrong, so that the rules that name it are not wrong as well


def client_settings(file: Values, domain: str, problems: Problems) -> ClientSettings:
    """How a client is known, with the attributes of the file."""
    client = file[CLIENT]
    return ClientSettings(
        domain=domain,
        trusted_proxies=client[_TRUSTED_PROXIES],
        trusted_hops=client[_TRUSTED_HOPS],
        ip_header=client[_IP_HEADER],
        ipv6_prefix=client[_IPV6_PREFIX],
        user=_source(client[USER], client.place("user"), problems),
        tier=_source(client[TIER], client.place("tier"), problems),
        secret=client[_SECRET],
        attributes=_named(file, problems),
    )


def compile_client(
    file: Values, domain: str, problems: Problems, logged: set[str] | None = None
) -> tuple[ClientSettings, Attributes]:
    """The client's settings, and the attributes that rules may name. `logged`: see `Attributes`."""
    settings = client_settings(file, domain, problems)
    return settings, Attributes(settings, logged)


def _named(file: Values, problems: Problems) -> dict[str, str]:
    named: dict[str, str] = {}
    for name, source in file[ATTRIBUTES].items():
        place = file.place("attributes", name)
        if name in _TAKEN:
            problems.add(place, f"every request has the attribute {quoted(name)}", "choose another name")
        elif not _NAME.fullmatch(name):
            hint = "letters, digits, '_', '-' and '.', at most 64"
            problems.add(place, f"{quoted(name)} is no name for an attribute", hint)
        else:
            named[name] = _source(source, place, problems) or _STAND_IN
    return named


def _source(text: str | None, place: Place, problems: Problems) -> str | None:
    if not text:
        return None
    try:
        sources.compiled(text)
    except ValueError as error:
        problems.add(place, str(error))
        return _STAND_IN
    return text


_TRUSTED_PROXIES = kinds.several(
    "trusted_proxies", readers.network, "The proxies whose word about the client's address is taken.", empty=True
)
_TRUSTED_HOPS = kinds.number("trusted_hops", 0, 32, 0, "How many proxies stand before the app, whatever their address.")
_IP_HEADER = kinds.text(
    "ip_header", "The header in which a trusted proxy names the client.", "X-Forwarded-For", readers.header_name
)
_IPV6_PREFIX = kinds.number("ipv6_prefix", 1, 128, 64, "How many bits of an IPv6 address tell clients apart.")
USER = kinds.optional_text(
    "user", "Where the user comes from: header: cookie: query: scope: environ: or python:package.module:function."
)
TIER = kinds.optional_text(
    "tier", "Where the client's tier comes from; set by your gateway, for clients forge headers."
)
_SECRET = kinds.text("secret", "Keys the hashes of what clients send; the same in every process.")

CLIENT = section_word(
    "client",
    Section(
        "Client",
        "How a client is known.",
        (_TRUSTED_PROXIES, _TRUSTED_HOPS, _IP_HEADER, _IPV6_PREFIX, USER, TIER, _SECRET),
    ),
)

ATTRIBUTES = texts_word("attributes", "Attributes of your own: a name, and the source that it comes from.")
