"""`ratelimit-mw explain`."""

import asyncio
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from ratelimit_mw.cli.engine import opened, patiently
from ratelimit_mw.cli.options import (
    DEFAULT_CONFIG,
    Attribute,
    Config,
    Ip,
    Json,
    Storage,
    Tier,
    User,
    an_address,
    attributes,
)
from ratelimit_mw.cli.output import say_json, say_lines
from ratelimit_mw.decision.explanation import Explanation
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.asgi import AsgiRequest
from ratelimit_mw.limiter import RateLimiter


def explain(
    method: Annotated[str, typer.Argument(help="As GET or POST.")],
    path: Annotated[str, typer.Argument(help="As it stands in the request's first line, the query included.")],
    *,
    ip: Ip = None,
    user: User = None,
    tier: Tier = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME:VALUE", help="A header, as often as needed.")
    ] = None,
    peer: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            callback=an_address,
            help="Who connects, to have the address found behind the trusted proxies.",
        ),
    ] = None,
    attribute: Attribute = None,
    cost: Annotated[int, typer.Option(min=0, help="What the request is charged, times the rules' own cost.")] = 1,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Say what would become of a request now: which rules match and which don't, why, and how their counters stand.

    Nothing is charged. `✗` marks a rule that denies it, `✓` one that allows it, `○` a shadow rule that would deny,
    and `·` a rule that does not apply.
    """
    given = attributes(ip, user, tier, attribute)
    with opened(config, storage) as limiter:
        request = AsgiRequest(_scope(method, path, header or [], peer or ip))
        # What is given by name wins over what the request would bring.
        known = limiter.rules.attributes.given(given)
        request.values |= {name: value for name, value in {**known.values, **known.raw}.items() if value is not None}
        explanation = patiently(lambda: _explained(limiter, request, cost))
    if as_json:
        say_json(explanation)
    else:
        say_lines(explanation.lines())


def _explained(limiter: RateLimiter, request: AsgiRequest, cost: int) -> Explanation:
    explanation = asyncio.run(limiter.aexplain(request, cost))
    if explanation.error:
        raise StoreUnavailable(explanation.error)
    return explanation


def _scope(method: str, target: str, headers: list[str], peer: str | None) -> dict[str, Any]:
    """The request as a server would hand it to the app. Raises typer.BadParameter."""
    path, _, query = target.partition("?")
    lines = []
    for line in headers:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise typer.BadParameter(f"{line!r} is not NAME:VALUE", param_hint="--header")
        lines.append((name.strip().lower().encode(), value.strip().encode()))
    return {
        "type": "http",
        "method": method.upper(),
        "scheme": "http",
        "path": unquote(path) or "/",
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": lines,
        "client": (peer, 0) if peer else None,
    }
