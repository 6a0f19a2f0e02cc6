"""The command `ratelimit-mw ask`: it asks a running service over gRPC, as a proxy does. It needs the extra `serve`."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ratelimit_mw.cli.common import Exit, Json, fail, say, say_json, say_table
from ratelimit_mw.cli.serve import require_extra

if TYPE_CHECKING:
    from ratelimit_mw.service.client import DescriptorAnswer

UNLIMITED = 2**32 - 1


def ask(
    descriptors: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE[,KEY=VALUE…]", help="Descriptors. Write commas between the entries of one."),
    ] = None,
    *,
    grpc: Annotated[
        str, typer.Option("--grpc", metavar="ADDRESS", envvar="RATELIMIT_GRPC", help="[HOST:]PORT or unix:PATH.")
    ] = "127.0.0.1:8081",
    domain: Annotated[str | None, typer.Option("--domain", "-d", help="The domain of the rules.")] = None,
    hits: Annotated[int, typer.Option("--hits", min=0, help="What each descriptor charges. 0 only asks.")] = 1,
    health: Annotated[bool, typer.Option("--health", help="Ask whether the service takes requests.")] = False,
    token: Annotated[
        str | None, typer.Option("--token", envvar="RATELIMIT_TOKEN", help="The token that the service requires.")
    ] = None,
    server_ca: Annotated[
        Path | None,
        typer.Option(
            "--server-ca",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Use TLS and trust these authorities, PEM.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--cert", metavar="FILE", exists=True, dir_okay=False, help="The certificate of the client, PEM."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", exists=True, dir_okay=False, help="Its key, PEM.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.01, help="Seconds to wait for the answer.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Ask a running service over gRPC, as a proxy does. The request is charged.

    Exit codes: 0 the request passes (with `--health`: the service takes requests); 1 it is over a limit (with
    `--health`: the service takes no requests); 2 wrong usage; 3 the service does not answer, or refuses the request.
    """
    require_extra("ask")
    from ratelimit_mw.service.client import Client, Unanswered
    from ratelimit_mw.service.settings import read_address

    if not health and (not descriptors or domain is None):
        fail("write a --domain and the descriptors to ask for, or --health", Exit.USAGE)
    if (certificate is None) != (key is None) or (certificate is not None and server_ca is None):
        fail("--cert needs --key and --server-ca", Exit.USAGE)
    try:
        address = read_address(grpc)
        if address is None:
            fail("--grpc: there is no service at 'off'", Exit.USAGE)
        client = Client(address, timeout, token=token, server_ca=server_ca, certificate=certificate, key=key)
        with closing(client):
            if health:
                serving = client.serving()
                say_json({"serving": serving}) if as_json else say("serving" if serving else "not serving")
                raise typer.Exit(Exit.OK if serving else Exit.PROBLEMS)
            passes, asked = client.ask(domain or "", descriptors or (), hits)
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except Unanswered as error:
        fail(f"{grpc}: {error}", Exit.STORE_AWAY)
    if as_json:
        say_json({"allowed": passes, "descriptors": asked})
    else:
        say("OK" if passes else "OVER_LIMIT")
        say_table(("descriptor", "code", "limit", ">remaining", ">seconds"), map(_row, asked))
    if not passes:
        raise typer.Exit(Exit.PROBLEMS)


def _row(asked: "DescriptorAnswer") -> tuple[object, ...]:
    limit = "" if asked.limit is None else f"{asked.limit} per {asked.unit}"
    if asked.remaining == UNLIMITED:
        limit = "unlimited"
    seconds = "" if asked.seconds is None else asked.seconds
    remaining = asked.remaining if asked.limit is not None else ""
    return asked.descriptor, "OK" if asked.allowed else "OVER_LIMIT", limit, remaining, seconds
