"""The parts that commands share: options, output, and the limiter and store that they use."""

import json
import os
import string
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, NoReturn, TextIO, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ratelimit_mw.cli import Exit
from ratelimit_mw.config.load import LARGEST
from ratelimit_mw.errors import ConfigurationError, PermanentFault, Problem, StoreUnavailable, near
from ratelimit_mw.foresight.wording import printable, utc
from ratelimit_mw.identity.address import canonical
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import SECOND
from ratelimit_mw.operations.live import THE_RULES, live_of
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.service.checks import as_json
from ratelimit_mw.stores import Store, open_store, with_domain
from ratelimit_mw.stores.shards import Shards

DEFAULT_CONFIG = "ratelimits.yaml"
RULES_VARIABLE = "RATELIMIT_RULES"
"""The variable of the environment that names the rules, for commands that are not told where they are."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Config = Annotated[
    str,
    typer.Option("--rules", metavar="RULES", envvar=RULES_VARIABLE, help="The rules: a file, a folder or a Redis URL."),
]
ConfigArgument = Annotated[
    str,
    typer.Argument(metavar="RULES", envvar=RULES_VARIABLE, help="The rules: a file, a folder or a Redis URL."),
]
Storage = Annotated[
    str | None,
    typer.Option("--storage", "-s", metavar="URL", help="The store of the counters, instead of the one in the rules."),
]


def an_address(value: str | None) -> str | None:
    """Return the value of an option that must be an address. Raises typer.BadParameter."""
    if value is not None and canonical(value) is None:
        raise typer.BadParameter(f"{value!r} is not an address (for example 192.0.2.1)")
    return value


Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", callback=an_address, help="The client's address.")]
IpOrNetwork = Annotated[
    str | None, typer.Option("--ip", metavar="ADDRESS", help="The client's address, or a network such as 192.0.2.0/24.")
]
User = Annotated[
    str | None, typer.Option("--user", metavar="USER", help="The user, as client.user in the rules reads it.")
]
Tier = Annotated[
    str | None, typer.Option("--tier", metavar="TIER", help="The tier, as client.tier in the rules reads it.")
]
Most = Annotated[int, typer.Option("--most", "-n", min=1, help="The most entries to show.")]
Attribute = Annotated[
    list[str] | None,
    typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="Another attribute that the rules use. Repeatable."),
]


def attributes(ip: str | None, user: str | None, tier: str | None, others: list[str] | None) -> dict[str, str]:
    """Return the attributes in these options, by name. Raises typer.BadParameter."""
    found = {name: value for name, value in (("ip", ip), ("user", user), ("tier", tier)) if value is not None}
    return found | dict(pairs_of(others, "NAME=VALUE", "--attribute"))


def pairs_of(texts: Iterable[str] | None, form: str, option: str, *, empty: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the names and the values of an option whose texts have this form, such as "NAME=VALUE".

    A value may be empty if `empty`. Raises typer.BadParameter.
    """
    separator = form.strip(string.ascii_uppercase)
    for text in texts or ():
        name, found, value = text.partition(separator)
        if not (found and name.strip() and (empty or value.strip())):
            raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
        yield name.strip(), value


def require_known(rules: Rules, client: Mapping[str, str]) -> None:
    """Raise typer.BadParameter if the rules cannot have one of these attributes."""
    try:
        rules.attributes.request_from(client)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--attribute") from None


_WIDE = 200  # columns if the output is not a terminal: a program that reads a pipe needs whole lines


def say_result(value: object, text: str, *, as_json: bool) -> None:
    """Print the result of a command: `value` as JSON, or `text`, if there is any."""
    if as_json:
        say_json(value)
    elif text:
        typer.echo(text)


SCHEMA_VERSION = 1
"""The version of all JSON outputs. It is raised when a field is removed, or gets another meaning."""


def say_json(value: object) -> None:
    """Print a mapping, or an object with fields, as JSON after the version of its schema."""
    typer.echo(json_text({"schema_version": SCHEMA_VERSION, **as_json(value)}))


def json_text(value: object) -> str:
    """Return `value` as JSON, in ASCII: a terminal obeys none of it."""
    return json.dumps(as_json(value), indent=2).replace("\x7f", "\\u007f")  # DEL is ASCII, and no character to print


def table_of(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Return a table. A column whose name begins with ">" has numbers, which are aligned to the right.

    Cells are shown without markup. No text of a client or of another process may colour the terminal.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numbers = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    return table


def console_of(stream: TextIO) -> Console:
    """Return what writes to a stream: whole lines if it is no terminal, and plain text if NO_COLOR is not empty."""
    width = None if stream.isatty() else _WIDE
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(file=stream, highlight=False, width=width, color_system=None if plain else "auto")


def say_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table, see `table_of`."""
    console = console_of(sys.stdout)
    with console.capture() as captured:
        console.print(table_of(columns, rows))
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def say_list(
    value: Mapping[str, object],
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    empty: str,
    as_json: bool,
) -> None:
    """Print the list in `value` as JSON, or as a table. `empty` is the sentence for an empty list."""
    rows = list(rows)
    if as_json or not rows:
        say_result(value, empty, as_json=as_json)
    else:
        say_table(columns, rows)


def moment(at: float) -> str:
    """Return a time (epoch seconds) as text for people."""
    return f"{utc(int(at * SECOND))} UTC"


_BARS = "▁▂▃▄▅▆▇█"


def bars(counts: Sequence[int]) -> str:
    """Return a sparkline: one character for each count, and a blank for 0. Empty if all are 0."""
    highest = max(counts, default=0)
    if not highest:
        return ""
    return "".join(" " if not count else _BARS[(count * len(_BARS) - 1) // highest] for count in counts)


def fail(message: str, code: Exit) -> NoReturn:
    """Print an error to stderr, and end the command with an exit code."""
    typer.echo(f"ratelimit-mw: {message}", err=True)
    raise typer.Exit(code)


def fail_without_store(error: StoreUnavailable, store: str = "the store") -> NoReturn:
    """End the command, because the store cannot be asked. A fault that waiting cannot heal has a remedy."""
    if isinstance(error, PermanentFault):
        fail(f"{store} can't be used: {error}; {error.remedy}", Exit.STORE_AWAY)
    fail(f"{store} does not answer: {error}", Exit.STORE_AWAY)


def fail_with(error: ConfigurationError, message: str) -> NoReturn:
    """Print all problems of rules with their places to stderr, and end the command."""
    typer.echo("\n".join(diagnostics([(problem, "error") for problem in error.problems])), err=True)
    fail(message, Exit.PROBLEMS)


_LONGEST = 160
"""The most characters of a source line that are shown."""


def diagnostics(found: Iterable[tuple[Problem, str]]) -> list[str]:
    """Return the lines that report problems, sorted by file and line. Each comes with its kind, such as "error"."""
    lines: list[str] = []
    sources: dict[str, list[str]] = {}
    for problem, kind in sorted(found, key=lambda each: (each[0].file, each[0].line, each[0].column)):
        if problem.file not in sources:
            sources[problem.file] = _source(problem.file)
        lines += [*_diagnostic(problem, kind, sources[problem.file]), ""]
    return lines


def _source(file: str) -> list[str]:
    path = Path(file)
    try:
        if path.is_file() and path.stat().st_size <= LARGEST:  # otherwise no problem has a line
            return path.read_text("utf-8-sig", errors="replace").split("\n")
    except (OSError, ValueError):
        pass  # the file can't be read, and the problem says why
    return []


def _diagnostic(problem: Problem, kind: str, source: Sequence[str]) -> list[str]:
    place = ":".join(str(part) for part in (problem.file, problem.line, problem.column) if part)
    lines = [f"{place}: {kind}: {problem.message}" if place else f"{kind}: {problem.message}"]
    margin = "  "
    text = source[problem.line - 1].rstrip("\r") if 0 < problem.line <= len(source) else ""
    before = text[: max(problem.column - 1, 0)]
    if text and len(before) < _LONGEST:
        number = f"{problem.line:>5} | "
        margin = " " * (len(number) - 2) + "= "
        lines.append(number + printable(text if len(text) <= _LONGEST else text[:_LONGEST] + "…"))
        if problem.column:
            lines.append(" " * (len(number) - 2) + "| " + " " * cell_len(printable(before)) + "^")
    if problem.hint:
        lines.append(f"{margin}{problem.hint}")
    return lines


def _why(error: Exception | SystemExit, module: str, attribute: str) -> str:
    """Say why an app cannot be imported."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"{error} in {Path.cwd()} or among the installed packages"
    if isinstance(error, AttributeError) and module in sys.modules:
        hint = near(attribute, [each for each in vars(sys.modules[module]) if not each.startswith("_")])
        return f"{error}{f' ({hint})' if hint else ''}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error}\n  {last.filename}:{last.lineno}"


def imported(name: str) -> Any:
    """Import the app at `package.module:attribute`. If it cannot be imported, end the command.

    A name that ends with `()` is an app factory, which is called.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        fail(f"{name!r} is not an app; write --app package.module:app", Exit.USAGE)
    factory, attribute = attribute.endswith("()"), attribute.removesuffix("()")
    try:
        found: Any = resolve_name(f"{module}:{attribute}")
        found = found() if factory else found
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the app's own code may raise anything, or exit
        fail(f"the app {name!r} can't be imported: {_why(error, module, attribute)}", Exit.USAGE)
    if not callable(found):
        fail(f"{name!r} is not an app: it can't be called", Exit.USAGE)
    return found


T = TypeVar("T")

_STORE_TIMEOUT = 2.0
"""The seconds that a command waits for the store. It may wait longer than an app, because no request depends on it."""


@contextmanager
def open_limiter(config: str, storage: str | None) -> Iterator[RateLimiter]:
    """Yield a limiter with these rules and the run-time overrides, and close it afterwards.

    End the command if the rules cannot be used, or if the store does not answer inside the block.
    """
    try:
        limiter = RateLimiter(config, storage=storage)
    except ConfigurationError as error:
        fail_with(error, f"{config}: these rules can't be loaded")
    except StoreUnavailable as error:
        fail(f"the rules can't be fetched: {error}", Exit.STORE_AWAY)
    if limiter.rules.asking is not None:
        fail(
            "these rules are those of an app that asks a service, which has the rules and the counters: name the rules "
            "of the service",
            Exit.USAGE,
        )
    if limiter.rules.observe.live:
        live_of(limiter).end(THE_RULES)  # a command serves no requests
    # Without the overrides, the command still works. It reports an unavailable store when it reads the counters.
    with suppress(StoreUnavailable, ConfigurationError):
        limiter.reload()
    with limiter:
        try:
            yield limiter
        except StoreUnavailable as error:
            fail_without_store(error)


def shared_store(rules: Rules, storage: str | None) -> Store:
    """Return the store of the app's counters. End the command if no other process can access them."""
    url = with_domain(storage or rules.storage.url, rules.parts[0].domain)
    if url.startswith("memory:"):
        fail(
            "the counters are in the memory of the app's processes, where no other process can see them; "
            "if the app has another store, name it with --storage",
            Exit.USAGE,
        )
    # Shards are added up, so that a command shows one counter, not its shards.
    return Shards(open_store(replace(rules.storage, url=url, timeout=_STORE_TIMEOUT)))


def with_retries(ask: Callable[[], T]) -> T:
    """Return the result of `ask`. Retry for a while if the store does not answer, then end the command."""
    give_up = time.monotonic() + _STORE_TIMEOUT
    while True:
        try:
            return ask()
        except StoreUnavailable as error:
            if time.monotonic() > give_up or isinstance(error, PermanentFault):
                fail_without_store(error)
        time.sleep(0.1)
