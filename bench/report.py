"""What a run found: as text on the terminal, as JSON, as the tables of README.md and docs/scaling.md, as a picture.

No number is kept twice: `tests/test_measured.py` holds that the tables are those of the JSON.
"""

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import Figure, Spread
from bench.table import ROWS

ROOT = Path(__file__).parents[1]
JSON = ROOT / "bench" / "results" / "measured.json"
PICTURE = ROOT / "bench" / "results" / "overview.png"
README = ROOT / "README.md"

PEERS = ("limits", "slowapi", "Flask-Limiter", "throttled-py", "asgi-ratelimit", "redis", "starlette", "flask")
SIGNS = {"us": "µs", "B": "bytes", "/s": "a second"}
BLOCK = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end of measured -->)", re.DOTALL)
HEAD = "| | ratelimit_mw | beside it | ours ÷ theirs | to reach | |\n|---|---|---|---|---|---|\n"


class Results(NamedTuple):
    """One run: under which conditions, and the figures of each row."""

    conditions: dict[str, Any]
    rows: dict[str, list[Figure]]


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


def sentence(found: dict[str, Any]) -> str:
    """The conditions, for people."""
    machine, versions = found["machine"], ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return (
        f"One run of commit {found['commit']}, {found['date']}: {machine['cores']} cores of {machine['cpu']}, "
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
    cells = [f"  {figure.what:68}", f"{shown(figure.ours, figure.unit):>18}"]
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


def write(results: Results) -> None:
    """Write the JSON file."""
    rows = {name: [figure.as_dict() for figure in figures] for name, figures in results.rows.items()}
    JSON.parent.mkdir(exist_ok=True)
    JSON.write_text(json.dumps({**results.conditions, "rows": rows}, indent=1) + "\n")


def read() -> Results:
    """The last full run."""
    found = json.loads(JSON.read_text())
    rows = found.pop("rows")
    return Results(found, {name: [Figure.from_dict(figure) for figure in figures] for name, figures in rows.items()})


def publish(results: Results) -> None:
    """Put the tables into the README, and draw the picture."""
    README.write_text(BLOCK.sub(lambda _: tables(results), README.read_text()))
    draw(results, PICTURE)


def tables(results: Results) -> str:
    """The block of the README: one table for all rows with a bar, and the conditions."""
    lines = [HEAD]
    for row in ROWS:
        if row.held and row.name in results.rows:
            lines.append(f"| **{row.title}** | | | | | |\n")
            lines += [_table_line(figure) for figure in results.rows[row.name]]
    return "".join([*lines, "\n", sentence(results.conditions), f" {summary(results)}.\n"])


def _table_line(figure: Figure) -> str:
    theirs = f"{figure.peer}: {shown(figure.theirs, figure.unit)}" if figure.theirs else figure.note
    cells = figure.what, shown(figure.ours, figure.unit), theirs, ratio(figure.ratio) if figure.ratio else ""
    return f"| {' | '.join((*cells, bar(figure), verdict(figure)))} |\n"


# -------------------------------------------------------------------------------------------------- picture


def held(results: Results) -> Iterator[tuple[str, Figure]]:
    """The figures beside a peer that have a bar, with the titles of their rows."""
    for row in ROWS:
        for figure in results.rows.get(row.name, []):
            if figure.ratio and figure.met is not None:
                yield row.title, figure


def draw(results: Results, path: Path) -> None:
    """A bar for each figure that is held to a peer: the median, with the range of its rounds, and what to reach."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    found = list(held(results))
    figure, axes = plt.subplots(figsize=(11, 0.5 * len(found) + 1.2), layout="constrained")
    for place, (_, each) in enumerate(found):
        assert each.ratio
        colour = "tab:green" if each.met else "tab:orange"
        axes.barh(place, each.ratio.median, color=colour)
        axes.hlines(place, each.ratio.low, each.ratio.high, color="black", linewidth=1)
        target = each.at_most if each.at_most is not None else each.at_least
        axes.vlines(target, place - 0.45, place + 0.45, color="black", linewidth=2)
    names = [f"{title}\n{each.what}, beside {each.peer}" for title, each in found]
    axes.set_yticks(range(len(found)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="ours ÷ theirs (thin line: all rounds; thick line: to reach; green: reached)")
    ticks = (1 / 10, 1 / 4, 1 / 2, 1, 2, 4, 10, 20)
    axes.set_xticks(ticks, [part(tick).removesuffix(".00") for tick in ticks])
    figure.savefig(path, dpi=100)
    plt.close(figure)
