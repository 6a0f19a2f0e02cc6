"""Problems, each with the line that it is about and a caret under the place."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.cells import cell_len

from ratelimit_mw.errors import Problem

_LONGEST = 160


def quotations(told: Iterable[tuple[Problem, str]]) -> list[str]:
    """The lines that say problems, each of its kind ("error", say), in the order of their files."""
    lines: list[str] = []
    sources: dict[str, list[str]] = {}
    for problem, kind in sorted(told, key=lambda each: (each[0].file, each[0].line, each[0].column)):
        if problem.file not in sources:
            sources[problem.file] = _source(problem.file)
        lines += [*_quotation(problem, kind, sources[problem.file]), ""]
    return lines


def _source(file: str) -> list[str]:
    try:
        return Path(file).read_text("utf-8-sig", errors="replace").split("\n") if file else []
    except (OSError, ValueError):
        return []  # not to be read, which is what the problem says, or not a file but a name in a database


def _quotation(problem: Problem, kind: str, source: Sequence[str]) -> list[str]:
    place = ":".join(str(part) for part in (problem.file, problem.line, problem.column) if part)
    lines = [f"{place}: {kind}: {problem.message}" if place else f"{kind}: {problem.message}"]
    margin = "  "
    text = source[problem.line - 1].rstrip("\r") if 0 < problem.line <= len(source) else ""
    before = text[: max(problem.column - 1, 0)]
    if text and len(before) < _LONGEST:
        number = f"{problem.line:>5} | "
        margin = " " * (len(number) - 2) + "= "
        lines.append(number + _printable(text if len(text) <= _LONGEST else text[:_LONGEST] + "…"))
        if problem.column:
            lines.append(" " * (len(number) - 2) + "| " + _blank(before) + "^")
    if problem.hint:
        lines.append(f"{margin}{problem.hint}")
    return lines


def _blank(text: str) -> str:
    """White space as wide as `text`; a tab stays a tab, for nobody knows how wide that is."""
    return "".join("\t" if sign == "\t" else " " * cell_len(_printable(sign)) for sign in text)


def _printable(text: str) -> str:
    """`text` without what could move a terminal's cursor."""
    return "".join(sign if sign.isprintable() or sign == "\t" else "·" for sign in text)
