"""`ratelimit-mw check`."""

from typing import Annotated

import typer

from ratelimit_mw.cli.options import Json
from ratelimit_mw.cli.output import Exit, say_json, say_lines
from ratelimit_mw.cli.quotation import quotations
from ratelimit_mw.config.load import examine
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
            told = [(problem, "error") for problem in found.problems]
            told += [(warning, "warning") for warning in found.warnings]
            say_lines([*quotations(told), _summary(file, found)])
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
