"""The sections `client` and `attributes`: who a client is, and where its attributes come from."""

import re

from ratelimit_mw.identity import sources
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.rules.documents.tree import Map, Problems, place_of, quoted
from ratelimit_mw.rules.schema.file import File
from ratelimit_mw.settings import ClientSettings

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_TAKEN = ("ip", "remote_address", "user", "tier", "method", "methods", "path", "host", "route", "global", "connection")
_STAND_IN = "header:x"  # stands in for a source that is wrong, so that the rules that speak of it are not wrong as well


def compile_client(
    file: File, tree: Map, problems: Problems, said: set[str] | None = None
) -> tuple[ClientSettings, Attributes]:
    """The client's settings, and the attributes that the rules can speak of. `said`: see `Attributes`."""
    client = file.client
    named: dict[str, str] = {}
    for name, source in file.attributes.items():
        if name in _TAKEN:
            problems.add(
                place_of(tree, "attributes", name),
                f"every request has the attribute {quoted(name)}",
                "choose another name",
            )
        elif not _NAME.fullmatch(name):
            hint = "letters, digits, '_', '-' and '.', at most 64"
            problems.add(place_of(tree, "attributes", name), f"{quoted(name)} is no name for an attribute", hint)
        else:
            named[name] = _source(source, tree, ("attributes", name), problems)
    settings = ClientSettings(
        domain=file.domain,
        trusted_proxies=client.trusted_proxies,
        trusted_hops=client.trusted_hops,
        ip_header=client.ip_header,
        ipv6_prefix=client.ipv6_prefix,
        user=client.user and _source(client.user, tree, ("client", "user"), problems),
        tier=client.tier and _source(client.tier, tree, ("client", "tier"), problems),
        secret=client.secret,
        attributes=named,
    )
    return settings, Attributes(settings, said)


def _source(text: str, tree: Map, steps: tuple[str, str], problems: Problems) -> str:
    try:
        sources.compiled(text)
    except ValueError as error:
        problems.add(place_of(tree, *steps), str(error))
        return _STAND_IN
    return text
