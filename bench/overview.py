"""What `bench/results/*.json` say, at a glance: overview.png, and the tables between the README's marks.

    python -m bench overview

No number is kept twice: a test holds that the README's are those of the files.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
OURS = "ratelimit_mw"
NO_PEERS = ("no limiter",)
ONE_SERVER = "valkey-9"  # the README shows what a counter takes on one; docs/scaling.md has the range
SIGNS = {"us": "µs", "B": "bytes", "/s": "a second"}
RATIO = re.compile(r"([\d.]+) x \(bar")
MARKS = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end of measured -->)", re.DOTALL)


class Comparison(NamedTuple):
    """A peer in the same run: how many times as fast we are, and have to be."""

    case: str
    peer: str
    ours: str
    theirs: str
    times: float
    bar: float | None


class Alone(NamedTuple):
    """A number of ours, and the one it is held to."""

    case: str
    value: str
    bar: str


def figures() -> list[dict]:
    """All that the files have, file by file."""
    return [figure for path in sorted(RESULTS.glob("*.json")) for figure in json.loads(path.read_text())["figures"]]


def comparisons() -> Iterator[Comparison]:
    """Each peer of each case in which we are."""
    found = figures()
    ours = {figure["case"]: figure for figure in found if figure["who"] == OURS}
    for theirs in found:
        mine = ours.get(theirs["case"])
        if mine and theirs["who"] not in (OURS, *NO_PEERS) and theirs["unit"] == mine["unit"]:
            faster = theirs["unit"] != "/s"  # a time: the less the better
            times = theirs["value"] / mine["value"] if faster else mine["value"] / theirs["value"]
            bar = _bar(theirs["beside"]) or (_bar(mine["beside"]) if RATIO.match(mine["beside"]) else None)
            yield Comparison(
                theirs["case"], theirs["who"], shown(mine), shown(theirs), times, 1 / bar if bar and faster else bar
            )


def alone() -> Iterator[Alone]:
    """Each number that is held to a bar by itself."""
    compared = {(comparison.case, comparison.peer) for comparison in comparisons()}
    for figure in figures():
        bar, who, ratio = _bar(figure["beside"]), figure["who"], RATIO.match(figure["beside"])
        elsewhere = figure["case"].startswith("Redis bytes") and who != ONE_SERVER
        if bar is None or (figure["case"], who) in compared or (ratio and who == OURS) or elsewhere:
            continue
        case = figure["case"] if who in (OURS, ONE_SERVER) else f"{figure['case']}: {who}"
        yield Alone(
            case, f"{shown(figure)} ({ratio[1]} ×)" if ratio else shown(figure), number(bar) + " ×" * bool(ratio)
        )


def tables() -> str:
    """Both tables, as the README has them."""
    lines = ["| one run, one machine | ratelimit_mw | beside it | times as fast | to reach |", "|---|---|---|---|---|"]
    for case, peer, ours, theirs, times, bar in comparisons():
        lines.append(f"| {case} | {ours} | {peer}: {theirs} | {times:.2g} | {number(bar) if bar else ''} |")
    lines += ["", "| by itself | measured | to reach |", "|---|---|---|"]
    lines += [f"| {case} | {value} | {bar} |" for case, value, bar in alone()]
    return "\n".join(lines) + "\n"


def write() -> None:
    """Draw the picture, and put the tables into the README."""
    draw(list(comparisons()), RESULTS / "overview.png")
    README.write_text(MARKS.sub(lambda _: tables(), README.read_text()))


def draw(found: list[Comparison], path: Path) -> None:
    """A bar for each peer: how many times as fast we are. A black line says how many it has to be."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    places = range(len(found))
    figure, axes = plt.subplots(figsize=(10, 0.45 * len(found) + 1.2), layout="constrained")
    colours = ["tab:green" if bar is None or times >= bar else "tab:orange" for *_, times, bar in found]
    axes.barh(places, [comparison.times for comparison in found], color=colours)
    for place, (*_, times, bar) in enumerate(found):
        if bar:
            axes.vlines(bar, place - 0.45, place + 0.45, color="black", linewidth=2)
        axes.text(max(times, bar or 0) * 1.05, place, f"{times:.2g} ×", va="center")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks(places, [f"{comparison.case}\n{comparison.peer}" for comparison in found], fontsize=8)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="times as fast as the peer (black line: to reach; green: reached)")
    axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.set_xlim(0.5, max(comparison.times for comparison in found) * 1.4)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def shown(figure: dict) -> str:
    """A figure's number and unit, for people."""
    unit = SIGNS.get(figure["unit"], figure["unit"])
    return f"{number(figure['value'])} {unit}".strip()


def number(value: float) -> str:
    """A number with the digits that mean something."""
    if value >= 10_000:
        value = round(value, -2)
    if value < 1:
        return f"{float(f'{value:.2g}'):.6f}".rstrip("0")
    return (f"{value:,.0f}" if value >= 20 else f"{value:.1f}").replace(",", " ").removesuffix(".0")


def _bar(beside: str) -> float | None:
    found = re.search(r"bar: ([\d.]+)", beside)
    return float(found[1]) if found else None
