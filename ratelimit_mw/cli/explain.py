"""`ratelimit-mw check` reports the errors of a rules file. `ratelimit-mw explain` explains a decision."""

import asyncio
import os
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import (
    DEFAULT_CONFIG,
    RULES_VARIABLE,
    Attribute,
    Config,
    Ip,
    Json,
    Storage,
    Tier,
    User,
    an_address,
    attributes,
    diagnostics,
    fail,
    open_limiter,
    pairs_of,
    require_known,
    say_json,
    say_result,
    with_retries,
)
from ratelimit_mw.cli.lint import check as examined_file
from ratelimit_mw.cli.routes import Comparison, compare, read_app
from ratelimit_mw.config.load import Examined
from ratelimit_mw.decision.explanation import Explanation
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.foresight.wording import counted, printable
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import rule_names
from ratelimit_mw.service.servable import as_served


def check(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help=f"Files of rules, or folders of them. Default: {RULES_VARIABLE}, or {DEFAULT_CONFIG}.",
        ),
    ] = None,
    *,
    app: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="Compare the rules with the routes of this app."),
    ] = None,
    require_limits: Annotated[
        bool, typer.Option("--require-limits", help="A route of the app that no rule limits is an error.")
    ] = False,
    for_service: Annotated[
        bool, typer.Option("--for-service", help="Check the files as `serve` reads them: Envoy sends the entries.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Report all errors in rules files, with their places. The exit code is 0 if all files can be loaded.

    Warnings are about rules that can be loaded but have no effect: they match no request, another rule always replaces
    them, or they can never deny because a stricter rule always denies first.

    With `--for-service`, a rule that a service cannot serve is an error, and limits whose entries no request sends are
    no warning, because Envoy sends them.

    With `--app`, a rule whose path matches no route of the app is a warning, and the routes are listed that no rule
    has a path for. A name in a decorator or dependency that no rule has is an error. A rule that counts by a signed
    session cookie is a warning, because the cookie changes while its user stays.
    """
    examined = {file: examined_file(file) for file in files or [os.environ.get(RULES_VARIABLE) or DEFAULT_CONFIG]}
    if for_service:
        examined = {file: as_served(found, file) for file, found in examined.items()}
    compared: dict[str, Comparison] = {}
    if app is None and require_limits:
        fail("--require-limits needs --app", Exit.USAGE)
    if app is not None:
        read = read_app(app)
        known = {name for found in examined.values() if found.rules for name in rule_names(found.rules)}
        compared = {
            file: compare(read, file, found, known, require_limits=require_limits) for file, found in examined.items()
        }
        examined = {file: comparison.examined for file, comparison in compared.items()}
    if as_json:
        mappings = [_as_mapping(file, found, compared.get(file)) for file, found in examined.items()]
        say_json({"ok": all(map(_usable, examined.values())), "files": mappings})
    else:
        for file, found in examined.items():
            reported = [(problem, "error") for problem in found.problems]
            reported += [(warning, "warning") for warning in found.warnings]
            listed = compared[file].lines() if file in compared else ()
            typer.echo("\n".join([*diagnostics(reported), *listed, _summary(file, found)]))
    raise typer.Exit(Exit.OK if all(map(_usable, examined.values())) else Exit.PROBLEMS)


def _usable(found: Examined) -> bool:
    return found.rules is not None and not found.problems


def _summary(file: str, found: Examined) -> str:
    parts = [f"valid, {counted(len(found.rules.rules), 'rule')}"] if found.rules and not found.problems else []
    shadows = _in_shadow(found)
    parts += [f"shadow: {' and '.join(shadows)} is not enforced"] if shadows else []
    parts += [counted(len(found.problems), "problem")] if found.problems else []
    parts += [counted(len(found.warnings), "warning")] if found.warnings else []
    scheme, separator, _ = file.partition("://")  # a URL is no file, and the rest of it may have a password
    return f"{scheme + separator if separator else file}: {', '.join(parts)}"


def _in_shadow(found: Examined) -> list[str]:
    """Return the domains whose file has `shadow: true`."""
    return [part.domain for part in (found.rules.parts if found.rules else ()) if part.shadow]


def _as_mapping(file: str, found: Examined, compared: Comparison | None) -> dict[str, object]:
    mapping: dict[str, object] = {
        "file": file,
        "ok": _usable(found),
        "shadow": _in_shadow(found),
        "rules": None if found.rules is None else [rule.name for rule in found.rules.rules],
        "problems": found.problems,
        "warnings": found.warnings,
    }
    return mapping if compared is None else {**mapping, "without_path": compared.without_path}


def explain(
    method: Annotated[str, typer.Argument(help="The method, such as GET or POST.")],
    path: Annotated[str, typer.Argument(help="The path with its query, as in the request line.")],
    *,
    ip: Ip = None,
    user: User = None,
    tier: Tier = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME:VALUE", help="A header. Repeatable.")
    ] = None,
    peer: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            callback=an_address,
            help="The address of the connection. The client's address is then found behind trusted proxies.",
        ),
    ] = None,
    attribute: Attribute = None,
    cost: Annotated[
        int, typer.Option(min=0, help="The cost of the request. It is multiplied by the cost of each rule.")
    ] = 1,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Explain how a request would be decided now: which rules match, which don't, why, and the state of their counters.

    Nothing is charged. `✗` marks a rule that denies the request, `✓` a rule that allows it, `○` a shadow rule that
    would deny it, and `·` a rule that does not apply.
    """
    if method.startswith("/"):
        raise typer.BadParameter(f"{method!r} is a path: write {path.upper()} {method}", param_hint="METHOD")
    options = attributes(ip, user, tier, attribute)
    with open_limiter(config, storage) as limiter:
        require_known(limiter.rules, options)
        request = AsgiRequest(_scope(method, path, header or [], peer or ip))
        # An attribute in an option takes precedence over the same attribute of the request.
        known = limiter.rules.attributes.request_from(options)
        request.values |= {name: value for name, value in {**known.values, **known.raw}.items() if value is not None}
        explanation = with_retries(lambda: _explained(limiter, request, cost))
        by_address = any("ip" in part.attributes.used for part in limiter.rules.parts)
    say_result(explanation, "\n".join(map(_coloured, explanation.lines())), as_json=as_json)
    if by_address and ip is None and peer is None:
        typer.echo("note: this client has no address; give it one with --ip", err=True)


_COLOURS = {"✗": "red", "✓": "green", "○": "yellow"}
"""The colours of the marks of rules, on a terminal without NO_COLOR."""


def _coloured(line: str) -> str:
    line = printable(line)
    colour = None if os.environ.get("NO_COLOR") else _COLOURS.get(line[:1])
    return line if colour is None else typer.style(line, fg=colour)


def _explained(limiter: RateLimiter, request: AsgiRequest, cost: int) -> Explanation:
    explanation = asyncio.run(limiter.aexplain(request, cost))
    if explanation.error:
        raise StoreUnavailable(explanation.error)
    return explanation


def _scope(method: str, target: str, headers: list[str], peer: str | None) -> dict[str, Any]:
    """Return the ASGI scope of the request. Raises typer.BadParameter."""
    path, _, query = target.partition("?")
    lines = pairs_of(headers, "NAME:VALUE", "--header")
    return {
        "type": "http",
        "method": method.upper(),
        "scheme": "http",
        "path": unquote(os.fsencode(path)) or "/",
        "raw_path": os.fsencode(path),
        "query_string": os.fsencode(query),
        "headers": [(os.fsencode(name.lower()), os.fsencode(value.strip())) for name, value in lines],
        "client": (peer, 0) if peer else None,
    }
