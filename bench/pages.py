"""The tables and the picture that a full run puts into the pages of the documentation and README.md.

A page has each table between two marks, `<!-- measured: NAME -->` and `<!-- end of measured -->`. No number is written
by hand there: `tests/test_measured.py` holds that the tables are those of bench/results/measured.json.
"""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import service
from bench.measure import Figure
from bench.report import JSON, ROOT, Results, bar, number, ours, part, ratio, run, sentence, shown, summary, verdict
from bench.shared import CHECK_TITLE, LIMITS_MEMORY, MEMORY, PACED_TITLE, REDIS, SEVERAL, SIZE_TITLE, rate_title
from bench.table import ROWS
from bench.traffic import NAMES

README = ROOT / "README.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
SCALING = ROOT / "docs" / "scaling.md"
CONSISTENCY = ROOT / "docs" / "consistency.md"
MOVING = ROOT / "docs" / "moving-from-envoy-ratelimit.md"
THROTTLING = ROOT / "docs" / "throttling.md"
FIGURES = JSON.with_name("figures.md")
PAGES = BENCHMARKS, SCALING, CONSISTENCY, THROTTLING, MOVING, README, FIGURES
PICTURE = JSON.with_name("overview.png")
DEMAND = 10_000_000
"""Requests a second in the example of docs/scaling.md."""
APP = 100
"""Microseconds that a request takes without the limiter in that example."""
BLOCK = re.compile(
    r"(?P<open><!-- measured: (?P<name>\w+) -->\n)(?P<block>.*?)(?P<end><!-- end of measured -->)", re.DOTALL
)


def blocks(results: Results) -> dict[Path, dict[str, str]]:
    """What stands between the marks of each page, by the mark's name."""
    ran = f"\n{run(results.conditions)}.\n"
    return {
        BENCHMARKS: {"first": first(results), "shared": shared_table(results)},
        SCALING: {"capacity": capacity(results)},
        CONSISTENCY: {"leases": leases(results) + ran},
        THROTTLING: {"elastic": elastic(results) + ran},
        MOVING: {"sizing": sizing(results)},
        README: {"headlines": headlines(results) + ran},
        FIGURES: {"rows": rows(results)},
    }


def published(page: Path) -> dict[str, str]:
    """What a page has between its marks now."""
    return {found["name"]: found["block"] for found in BLOCK.finditer(page.read_text("utf-8"))}


def publish(results: Results) -> None:
    """Put the tables into the pages, and draw the picture."""
    for page, new in blocks(results).items():
        text = page.read_text("utf-8")
        page.write_text(BLOCK.sub(_filled(new), text), "utf-8")
    draw(results, PICTURE)


def _filled(new: dict[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda found: found["open"] + new[found["name"]] + found["end"]


# -------------------------------------------------------------------------------------------------- README


def headlines(results: Results) -> str:
    """Three figures, each with its best case, the usual traffic and its worst case."""
    one, zipf, new = NAMES["one"], NAMES["Zipf"], NAMES["new"]
    shown_of = {
        "Starlette, memory: CPU time added to a request": [
            results.figure(row, what, "slowapi")
            for row, what in (("asgi-memory", one), ("asgi-memory", zipf), ("asgi-memory-new", new))
        ],
        "Flask, memory: CPU time added to a request": [
            results.figure("wsgi-memory", what, "flask-limiter") for what in (one, zipf, new)
        ],
        "asyncio, Redis, 100 in flight: decisions of one process": [
            results.figure("redis-asyncio", f"acheck: {what}", "limits, fixed window") for what in (one, zipf, new)
        ],
    }
    lines = [
        "| one rule, counted by address | one client (best case) | 100 000 clients | new clients only (worst case) |",
        "|---|---|---|---|",
        *(f"| {title} | {' | '.join(map(_side_by_side, figures))} |" for title, figures in shown_of.items()),
    ]
    return "\n".join([*lines, ""])


def _side_by_side(figure: Figure) -> str:
    assert figure.theirs
    return f"**{shown(figure.ours, figure.unit)}** ({figure.peer}: {shown(figure.theirs, figure.unit)})"


# ---------------------------------------------------------------------------------------- docs/benchmarks.md


def first(results: Results) -> str:
    """The first figure of each row that has a bar, how many of its bars are reached, and the conditions of the run."""
    lines = ["| | ratelimit_mw | beside it | goals reached |", "|---|---|---|---|"]
    for row in ROWS:
        if row.held and row.name in results.rows:
            figure = next(each for each in results.rows[row.name] if not each.detail)
            theirs = f"{figure.peer}: {shown(figure.theirs, figure.unit)}" if figure.theirs else ""
            met = [each.met for each in results.rows[row.name] if each.met is not None]
            title = row.title.partition(": ")[0]
            lines.append(f"| {title} | {ours(figure)} | {theirs} | {sum(met)} of {len(met)} |")
    return "\n".join([*lines, "", f"{sentence(results.conditions)} {summary(results)}.", ""])


# ---------------------------------------------------------------------------------- bench/results/figures.md


def rows(results: Results) -> str:
    """One table of all rows that have a bar, and the conditions of the run."""
    lines = ["| | ratelimit_mw | beside it | ours ÷ theirs | to reach | |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        if row.held and row.name in results.rows:
            lines.append(f"| **{row.title}** | | | | | |")
            lines += [_line(figure) for figure in results.rows[row.name] if not figure.detail]
    return "\n".join([*lines, "", f"{sentence(results.conditions)} {summary(results)}.", ""])


def _line(figure: Figure) -> str:
    theirs = f"{figure.peer}: {shown(figure.theirs, figure.unit)}" if figure.theirs else figure.note
    ratios = ratio(figure.ratio) if figure.ratio else ""
    cells = figure.what, ours(figure), theirs, ratios, bar(figure), verdict(figure)
    return f"| {' | '.join(cells)} |"


def shared_table(results: Results) -> str:
    """`lmdb://` beside memory and Redis: what a decision costs, and how many several processes make."""
    if "shared" not in results.rows:
        return "The last full run did not measure this.\n"
    lines = [
        f"| `check` | CPU | {SEVERAL} processes | p99.9, {SEVERAL} paced processes |",
        "|---|---|---|---|",
        *(
            f"| {title} | {' | '.join(_cell(results, what, peer) for what in SHARED_COLUMNS)} |"
            for title, peer in SHARED_STORES.items()
        ),
    ]
    size = shown(results.figure("shared", SIZE_TITLE).ours, "MB")
    return "\n".join([*lines, "", f"A file with a million counters takes {size}.", ""])


SHARED_STORES = {
    "`lmdb://`": "",
    "Redis on a unix socket": REDIS,
    "`memory://`, not shared": MEMORY,
    "`limits` in memory, not shared": LIMITS_MEMORY,
}
"""The stores in the table of shared counters, and under which name a figure has them as its peer."""

SHARED_COLUMNS = CHECK_TITLE, rate_title(SEVERAL), PACED_TITLE


def _cell(results: Results, what: str, peer: str) -> str:
    try:
        figure = results.figure("shared", what, peer)
    except LookupError:  # not measured for this store
        return ""
    return shown(figure.theirs if peer and figure.theirs else figure.ours, figure.unit)


# ------------------------------------------------------------------------------------------ docs/scaling.md


def capacity(results: Results) -> str:
    """What ten million requests a second need: web processes, masters of a cluster, and calls under leases."""
    app = results.figure("redis-starlette", NAMES["Zipf"], "no limiter")
    added = _microseconds(app) - 1e6 / _of(app.theirs)
    rate = results.figure("redis-asyncio", f"acheck: {NAMES['Zipf']}").ours.median
    processes = _up(DEMAND * (added + APP) / 1e6)
    masters = _up(DEMAND / rate)
    return f"""\
**Web processes.** A request takes {number(added)} µs for the limiter and, in this example, {APP} µs for everything
else. Ten million requests a second need {number(processes)} processes.

**Strict counters.** One Redis decided {number(rate)} requests a second for one client process. With this figure, a
cluster needs {number(masters)} masters, or {number(2 * masters)} at half load. The counters of one identity are in one
slot, so users are spread evenly. A denied client costs one call per process in five seconds.

**Leases.** With {number(processes)} processes, ten requests a second from one user mean one request per process in
{number(processes / 10)} s: a lease saves nothing. If a load balancer keeps each user on one process, a lease of 1 s
replaces ten calls by one, and {number(_up(2 * masters / 10))} masters at half load are enough. A cluster can't spread
a counter that all requests share (`by: global`). With a lease, each process settles once or twice a second, which makes
at most {number(2 * processes)} calls a second.
"""


# ------------------------------------------------------------------- docs/moving-from-envoy-ratelimit.md


def sizing(results: Results) -> str:
    """The decisions of one core by gRPC and by `/auth`, and of several processes."""
    lines = ["| decisions a second of one core | gRPC | `/auth` |", "|---|---|---|"]
    for title, grpc, auth in (
        ("counters in memory", "ShouldRateLimit, memory", "/auth, memory"),
        ("counters on Redis", "ShouldRateLimit, Redis", "/auth, Redis"),
        ("a constant answer of a plain server", service.GRPC, service.HTTP),
    ):
        rates = [_of_one_core(results, what) for what in (grpc, auth)]
        lines.append(f"| {title} | {number(rates[0])} | {number(rates[1])} |")
    lines += ["", f"{run(results.conditions)}."]
    if "workers" not in results.rows:
        return "\n".join([*lines, "", "The last full run did not measure several processes.", ""])
    lines += ["", "| on Redis | CPU of a gRPC decision | decisions a second of as many cores |", "|---|---|---|"]
    for count in service.WORKERS:
        title = service.workers_title(count)
        cpu, rate, _ = (each for each in results.rows["workers"] if each.what == title)
        lines.append(f"| `--workers {count}` | {shown(cpu.ours, cpu.unit)} | {number(rate.ours.median)} |")
    return "\n".join([*lines, ""])


def _of_one_core(results: Results, what: str) -> float:
    return next(each.ours.median for each in results.rows["service"] if (each.what, each.unit) == (what, "/s"))


# ----------------------------------------------------- docs/consistency.md, docs/throttling.md


def leases(results: Results) -> str:
    """How far the admissions of the simulation are from the limit, and the decisions of one process."""
    find, one, zipf = results.figure, NAMES["one"], NAMES["Zipf"]
    lines = ["| admitted, beside the limit | spread over the minute | all in one second |", "|---|---|---|"]
    for kind in ("lease", "write_back"):
        figures = (
            find("leases", f"{kind}, 1 to 100 processes, demand {how}: over-admission")
            for how in ("over the minute", "within a second")
        )
        lines.append(f"| `{kind}` | {' | '.join(figure.note.partition(' of the limit')[0] for figure in figures)} |")
    lease, write_back, spread = (
        _rate(find("leases", f"acheck on Redis, {what}"))
        for what in (f"lease: {one}", f"write_back: {one}", f"lease: {zipf}")
    )
    return (
        "\n".join(lines)
        + f"""

Outside the simulation, one process makes {lease} decisions a second with `lease` and {write_back} with `write_back`,
for one busy client on Redis. For {zipf}, most of which get no lease, it makes {spread}, one after the
other.
"""
    )


def elastic(results: Results) -> str:
    """How long an elastic limit takes to close and to open."""
    closed, opened = (results.figure("elastic", f"{what} after").ours.median for what in ("closed", "open again"))
    return f"""\
`python -m bench elastic` measures this. The limit of a process that becomes busy is closed after {closed:.1f} s, and
is open again {opened:.1f} s after the process is idle. Most of the first time passes before the load, an average over
about a second, reaches the mark.
"""


def _up(value: float) -> int:
    """Rounded up, to two digits that mean something."""
    step = 10 ** max(math.floor(math.log10(value)) - 1, 0)
    return math.ceil(value / step) * step


def _of(spread: tuple[float, ...] | None) -> float:
    assert spread is not None
    return spread[0]


def _microseconds(figure: Figure) -> float:
    return 1e6 / figure.ours.median


def _rate(figure: Figure) -> str:
    return number(figure.ours.median)


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
    figure, axes = plt.subplots(figsize=(11, 0.55 * len(found) + 1.2), layout="constrained")
    for place, (_, each) in enumerate(found):
        assert each.ratio
        axes.barh(place, each.ratio.median, color="tab:green" if each.met else "tab:orange")
        axes.hlines(place, each.ratio.low, each.ratio.high, color="black", linewidth=1)
        target = each.at_most if each.at_most is not None else each.at_least
        axes.vlines(target, place - 0.45, place + 0.45, color="black", linewidth=3)
    names = [f"{title}\n{each.what}, beside {each.peer}" for title, each in found]
    axes.set_yticks(range(len(found)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="ours ÷ theirs (thin line: all rounds; thick line: to reach; green: reached)")
    ticks = (1 / 10, 1 / 4, 1 / 2, 1, 2, 4, 10, 20)
    axes.set_xticks(ticks, [part(tick).removesuffix(".00") for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(1 / 20, 30)
    figure.savefig(path, dpi=100)
    plt.close(figure)
