"""The results of a run and its conditions, as text for people and as a JSON file."""

import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import Figure, Spread

ROOT = Path(__file__).parents[1]
JSON = ROOT / "bench" / "results" / "measured.json"

PEERS = ("limits", "slowapi", "Flask-Limiter", "throttled-py", "asgi-ratelimit", "redis", "starlette", "flask")
SIGNS = {"us": "µs", "B": "bytes", "/s": "a second"}


class Results(NamedTuple):
    """One run: under which conditions, and the figures of each row."""

    conditions: dict[str, Any]
    rows: dict[str, list[Figure]]

    def figure(self, row: str, what: str, peer: str = "") -> Figure:
        """One figure.

        Raises:
            LookupError: The row has no such figure.
        """
        for figure in self.rows.get(row, []):
            if figure.what == what and peer in ("", figure.peer):
                return figure
        raise LookupError(f"{row}: {what} {peer}")


def conditions() -> dict[str, Any]:
    """Commit, date, machine and versions."""
    git = ("git", "-C", str(ROOT))
    commit = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip() + "-changed" * bool(changed.stdout.strip()),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "system": platform.system()},
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {peer: version(peer) for peer in PEERS},
    }


def run(found: dict[str, Any]) -> str:
    """Which code was measured, and when, for people."""
    return f"One run of commit {found['commit']}, {found['date']}"


def sentence(found: dict[str, Any]) -> str:
    """The conditions, for people."""
    machine, versions = found["machine"], ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return (
        f"{run(found)}: {machine['cores']} cores of {machine['cpu']}, "
        f"load {found['load']} at its start, Python {found['python']}, {versions}."
    )


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


# ------------------------------------------------------------------------------------------------ terminal


def line(figure: Figure) -> str:
    """One figure on the terminal."""
    cells = [f"  {figure.what:68}", f"{ours(figure):>18}"]
    if figure.theirs and figure.ratio:
        cells.append(f"{figure.peer:24} {shown(figure.theirs, figure.unit):>16}  {ratio(figure.ratio):22}")
    cells.append(f"{bar(figure)} {verdict(figure)}".strip())
    return "  ".join([*cells, figure.note]).rstrip()


def summary(results: Results) -> str:
    """How many bars are reached."""
    held = [figure.met for row in results.rows.values() for figure in row if figure.met is not None]
    return f"{sum(held)} of {len(held)} bars reached"


def verdict(figure: Figure) -> str:
    """Whether the bar is reached."""
    return {True: "reached", False: "missed", None: ""}[figure.met]


def bar(figure: Figure) -> str:
    """The bar: `≤ 1/6`, `≥ 8`, `≤ 5 ms`."""
    unit = "" if figure.ratio else SIGNS.get(figure.unit, figure.unit)
    if figure.at_most is not None:
        return f"≤ {part(figure.at_most) if figure.ratio else number(figure.at_most)} {unit}".strip()
    return "" if figure.at_least is None else f"≥ {number(figure.at_least)} {unit}".strip()


def ours(figure: Figure) -> str:
    """Our number: the median, and the worst round where the bar holds for it."""
    text = shown(figure.ours, figure.unit)
    return f"{text}, at worst {number(figure.ours.high)}" if figure.worst else text


def shown(spread: Spread, unit: str) -> str:
    """The median with its unit."""
    return f"{number(spread.median)} {SIGNS.get(unit, unit)}".strip()


def ratio(spread: Spread) -> str:
    """The median of the rounds' ratios, and the lowest and the highest."""
    return f"{part(spread.median)} ({part(spread.low)} to {part(spread.high)})"


def part(value: float) -> str:
    """A ratio: below one half as a part of one, as in 1/6.3."""
    return f"1/{number(1 / value)}" if 0 < value < 0.5 else f"{value:.2f}" if 0 <= value < 2 else number(value)


def number(value: float) -> str:
    """A number with the digits that mean something."""
    if value < 0:
        return f"−{number(-value)}"
    if value >= 10_000:
        value = round(value, -2)
    if value < 1:
        return f"{float(f'{value:.2g}'):.6f}".rstrip("0").rstrip(".")
    return (f"{value:,.0f}" if value >= 20 else f"{value:.1f}").replace(",", " ").removesuffix(".0")


# ---------------------------------------------------------------------------------------------- JSON, tables


def write(results: Results, path: Path = JSON) -> None:
    """Write the JSON file."""
    rows = {name: [figure.as_dict() for figure in figures] for name, figures in results.rows.items()}
    path.write_text(json.dumps({**results.conditions, "rows": rows}, indent=1) + "\n")


def read(path: Path = JSON) -> Results:
    """The last full run."""
    found = json.loads(path.read_text())
    rows = found.pop("rows")
    return Results(found, {name: [Figure.from_dict(figure) for figure in figures] for name, figures in rows.items()})
