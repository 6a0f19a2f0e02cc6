"""`ratelimit-mw check` and `explain`: what is wrong with a rules file, and why a request is decided as it is."""

import asyncio
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from ratelimit_mw.cli.common import (
    DEFAULT_CONFIG,
    Attribute,
    Config,
    Exit,
    Ip,
    Json,
    Storage,
    Tier,
    User,
    an_address,
    attributes,
    diagnostics,
    opened,
    patiently,
    say_json,
    say_lines,
)
from ratelimit_mw.config.load import examine
from ratelimit_mw.decision.explanation import Explanation
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import Examined


def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Files of rules, or folders of them.")],
    *,
    as_json: Json = False,
) -> None:
    """Say everything that is wrong with files of rules, and where; exit with 0 if all of them would load.

    Warnings are of rules that would load and yet do nothing: those that match no request, that another always
    replaces, or that can never deny because a stricter one always does so first.
    """
    examined = {file: examine(file) for file in files}
    fine = all(found.rules is not None for found in examined.values())
    if as_json:
        say_json({"ok": fine, "files": [_as_mapping(file, found) for file, found in examined.items()]})
    else:
        for file, found in examined.items():
            reported = [(problem, "error") for problem in found.problems]
            reported += [(warning, "warning") for warning in found.warnings]
            say_lines([*diagnostics(reported), _summary(file, found)])
    raise typer.Exit(Exit.OK if fine else Exit.PROBLEMS)


def _summary(file: str, found: Examined) -> str:
    parts = [] if found.rules is None else [f"{_count(len(found.rules.rules), 'rule')}, would load"]
    shadows = _in_shadow(found)
    parts += [f"nothing of {' and '.join(shadows)} is enforced: shadow"] if shadows else []
    parts += [_count(len(found.problems), "problem")] if found.problems else []
    parts += [_count(len(found.warnings), "warning")] if found.warnings else []
    return f"{file}: {', '.join(parts)}"


def _in_shadow(found: Examined) -> list[str]:
    """The domains that are in shadow as a whole."""
    return [part.domain for part in (found.rules.parts if found.rules else ()) if part.shadow]


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _as_mapping(file: str, found: Examined) -> dict[str, object]:
    return {
        "file": file,
        "ok": found.rules is not None,
        "shadow": _in_shadow(found),
        "rules": None if found.rules is None else [rule.name for rule in found.rules.rules],
        "problems": found.problems,
        "warnings": found.warnings,
    }


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
        known = limiter.rules.attributes.request_from(given)
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
