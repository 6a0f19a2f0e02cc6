"""The options that several commands share."""

from typing import Annotated

import typer

from ratelimit_mw.identity.address import canonical

DEFAULT_CONFIG = "ratelimits.yaml"

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Config = Annotated[
    str,
    typer.Option("--config", "-c", metavar="RULES", envvar="RATELIMIT_CONFIG", help="A file, a folder or a Redis URL."),
]
Storage = Annotated[
    str | None,
    typer.Option("--storage", "-s", metavar="URL", help="Where the counters are, if not where the rules say."),
]


def an_address(value: str | None) -> str | None:
    """The option's value, if it is an address. Raises typer.BadParameter."""
    if value is not None and canonical(value) is None:
        raise typer.BadParameter(f"{value!r} is no address (as 192.0.2.1)")
    return value


Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", callback=an_address, help="The client's address.")]
IpOrNetwork = Annotated[
    str | None, typer.Option("--ip", metavar="ADDRESS", help="The client's address, or a network, as 192.0.2.0/24.")
]
User = Annotated[str | None, typer.Option("--user", metavar="USER", help="The user, as client.user would read it.")]
Tier = Annotated[str | None, typer.Option("--tier", metavar="TIER", help="The tier, as client.tier would read it.")]
Most = Annotated[int, typer.Option("--most", "-n", min=1, help="How many counters are shown.")]
Attribute = Annotated[
    list[str] | None,
    typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="Any other attribute that rules name."),
]


def attributes(ip: str | None, user: str | None, tier: str | None, others: list[str] | None) -> dict[str, str]:
    """The attributes that these options state, by name. Raises typer.BadParameter."""
    given = {name: value for name, value in (("ip", ip), ("user", user), ("tier", tier)) if value is not None}
    for other in others or ():
        name, equals, value = other.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{other!r} is not NAME=VALUE", param_hint="--attribute")
        given[name.strip()] = value
    return given
