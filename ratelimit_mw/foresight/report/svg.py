"""The charts of the report, drawn as SVG without a library: denials over time, and the what-if curve of a limit.

Colors, fonts and line styles are in report.css, so that they follow the light or dark mode. A chart is drawn for one
width in pixels and is shown without scaling, so that its text has the same size on every screen.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ratelimit_mw.foresight.report.markup import Markup, circle, cut, element, line, polyline, svg, text
from ratelimit_mw.foresight.results import DAY, STEPS, Bars, Curve
from ratelimit_mw.foresight.wording import counted

_CHARACTER = 6.6
"""The width of a character of an axis, in pixels, rounded up."""

_RIGHT = 30.0
"""The margin at the right: half of the label of the last tick."""


class Scale(NamedTuple):
    """Where values are on an axis, in pixels.

    Attributes:
        low: The lowest value.
        high: The highest value.
        begin: The place of the lowest value.
        end: The place of the highest value.
        log: The axis is logarithmic. Values below `low`, such as zero, are then at `begin`.
        gap: The pixels between `begin` and the place of `low` on a logarithmic axis.
    """

    low: float
    high: float
    begin: float
    end: float
    log: bool = False
    gap: float = 0

    def at(self, value: float) -> float:
        """Return the place of a value."""
        if not self.log:
            return self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low)
        if value < self.low:
            return self.begin
        first = self.begin + math.copysign(self.gap, self.end - self.begin)
        return first + (self.end - first) * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self, most: int) -> list[float]:
        """Return round values of a logarithmic axis for at most so many labels, in ascending order.

        These are 1, 2, 5, 10, … if there is room, else powers of ten, else each second or third power.
        """
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        choices = [
            [factor * 10.0**power for power in powers for factor in factors] for factors in ((1, 2, 5), (1, 3), (1,))
        ]
        choices += [[10.0**power for power in powers if power % every == 0] for every in range(2, 20)]
        found = ([tick for tick in ticks if self.low * 0.999 <= tick <= self.high * 1.001] for ticks in choices)
        return next(ticks for ticks in found if len(ticks) <= most)


# ------------------------------------------------------------------------------------- denials over time


class Bar(NamedTuple):
    """A bar, by the places of its edges, and what it says where the pointer is on it."""

    left: float
    right: float
    top: float
    hint: str


class Panel(NamedTuple):
    """The denials of one rule over time: a title, and the height of each bar."""

    title: str
    shadow: bool
    heights: Sequence[int]


def denials(panels: Sequence[Panel], bars: Bars, width: int) -> Markup:
    """Return a chart with one row of bars for each rule. All rows have one axis of time, and their own scales.

    A bar says its time and its number where the pointer is on it.

    Args:
        panels: The rows.
        bars: The spans of time of the bars.
        width: The width in pixels.
    """
    left, row = 12 + _CHARACTER * max(len(f"{_ceiling(max(panel.heights)):,.0f}") for panel in panels), 82
    time = Scale(bars.begin, bars.begin + bars.minutes * bars.number, left, width - _RIGHT)
    bottom = row * len(panels)
    shapes: list[Markup] = []
    for place, panel in enumerate(panels):
        base = row * (place + 1) - 8.0
        scale = Scale(0, _ceiling(max(panel.heights)), base, base - 46)
        shift = 16 if panel.shadow else 0
        if shift:
            shapes.append(circle(left + 5, base - 60.5, 4, "shadow"))
        title = cut(panel.title, int((width - left - shift) / 7.5))
        shapes.append(text(left + shift, base - 56, title, "title"))
        shapes += _grid(scale, [0, scale.high], left, width - _RIGHT, _plain)
        begins = ((bars.begin + bars.minutes * number, count) for number, count in enumerate(panel.heights) if count)
        rows = (
            Bar(time.at(begin), time.at(begin + bars.minutes), scale.at(count), f"{_when(begin)}: {count:,}")
            for begin, count in begins
        )
        shapes.append(_bars(rows, base, "shadow" if panel.shadow else "bar"))
        shapes.append(line(left, base, width - _RIGHT, base, "axis"))
    shapes += _time_axis(time, bottom)
    name = "Denials over time: " + "; ".join(f"{panel.title} {sum(panel.heights):,}" for panel in panels)
    return svg(width, bottom + 22, name, shapes)


def _time_axis(time: Scale, top: float) -> Iterator[Markup]:
    most = max(2, int((time.end - time.begin) / 64))
    step = next((step for step in STEPS if (time.high - time.low) / step <= most), 0)
    step = step or DAY * math.ceil((time.high - time.low) / most / DAY)
    years = time.high - time.low > 300 * DAY
    for minute in range(-(-int(time.low) // step) * step, int(time.high) + 1, step):
        moment = datetime.fromtimestamp(minute * 60, UTC)
        date = f"{moment:%b %Y}" if years else f"{moment.day} {moment:%b}"
        yield line(time.at(minute), top - 8, time.at(minute), top - 4, "axis")
        yield text(time.at(minute), top + 14, f"{moment:%H:%M}" if minute % DAY else date, "middle")


def _when(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%d %H:%M}"


# ------------------------------------------------------------------------------------- the what-if curve


def what_if(curve: Curve, width: int) -> Markup:
    """Return a chart of what a rule would deny at other limits, above the busiest windows of its clients.

    All parts have one axis: it is the limit, and the number of requests in a window. The script of the report moves
    the line of the limit (`data-limit`), the dots (`data-dot`), and the area beyond the limit (`data-beyond`). It reads
    where they belong from the points of the lines (`data-line`), one for each limit.

    Args:
        curve: The curve.
        width: The width in pixels.
    """
    left, right = 60.0, width - _RIGHT
    numbers = [*curve.limits, *(requests for requests, _ in curve.peaks)]
    across = Scale(max(min(numbers), 1) / 2, max(numbers) * 1.1, left, right, log=True)
    limit = across.at(curve.limit)
    shapes: list[Markup] = []
    above: list[Markup] = []  # what the line of the limit must not cross
    top = 56.0
    for title, counts, every in (
        ("requests denied", curve.denied, curve.requests),
        ("clients limited", curve.clients, curve.all_clients),
    ):
        shares = [100 * count / max(every, 1) for count in counts]
        scale = _with_zero(min([share for share in shares if share] or [1]), 100, top + 96, top)
        above.append(text(left, top - 10, f"share of {title}", "title"))
        shapes += _grid(scale, [0, *scale.ticks(4)], left, right, _percent)
        shapes.append(line(left, scale.begin, right, scale.begin, "axis"))
        points = [(across.at(number), scale.at(share)) for number, share in zip(curve.limits, shares, strict=True)]
        shapes.append(polyline(points, "replayed" if curve.why_replayed else "exact"))
        if curve.why_replayed:
            shapes += [circle(x, y, 2.5, "point") for x, y in points]
        above.append(circle(*points[curve.in_force], 5, "dot", data_dot=True))
        top += 140
    if curve.peaks:
        scale = _with_zero(1, max(clients for _, _, clients in spans_of(curve.peaks)) * 1.2, top + 84, top)
        above.append(text(left, top - 10, "clients by their busiest window", "title"))
        shapes.append(
            element("rect", x=limit, y=top, width=right - limit, height=84, class_="beyond", data_beyond=right)
        )
        shapes += _grid(scale, [0, *scale.ticks(3)], left, right, _plain)
        shapes.append(_bars(_busiest(curve, across, scale), scale.begin, "bar"))
        shapes.append(line(left, scale.begin, right, scale.begin, "axis"))
        top += 128
    bottom = top - 44
    for tick in across._replace(low=max(across.low, 1)).ticks(int((right - left) / 46)):
        shapes += [
            line(across.at(tick), bottom, across.at(tick), bottom + 4, "axis"),
            text(across.at(tick), bottom + 18, _plain(tick), "middle"),
        ]
    shapes += [
        text((left + right) / 2, bottom + 36, f"limit, and requests{unit_of(curve)}", "middle"),
        line(limit, 24, limit, bottom, "file"),
        element("line", x1=limit, y1=24, x2=limit, y2=bottom, class_="limit", data_limit=True),
        text(limit, 18, f"{curve.limit:,}", "middle value", data_value=True),
        *above,
    ]
    name = f"What {curve.rule} would deny at limits from {curve.limits[0]:,} to {curve.limits[-1]:,}{unit_of(curve)}"
    return svg(width, bottom + 42, name, shapes)


def unit_of(curve: Curve) -> str:
    """Return the limit in force without its number: " per minute"."""
    return curve.quota.removeprefix(str(curve.limit))


def _with_zero(low: float, high: float, begin: float, end: float) -> Scale:
    """Return a logarithmic scale from the power of ten below `low`, with a place for zero below it."""
    power = 10.0 ** math.floor(math.log10(low) + 1e-9)
    return Scale(min(power, high / 10), high, begin, end, log=True, gap=16)


def _busiest(curve: Curve, across: Scale, scale: Scale) -> Iterator[Bar]:
    for low, high, number in spans_of(curve.peaks):
        span = f"{low:,} to {high:,}" if low != high else f"{high:,}"
        # The bar ends at its highest number. A client that stays within a limit is therefore left of its line.
        yield Bar(
            across.at(low - 1),
            min(across.at(high), across.end),
            scale.at(number),
            f"{span}: {counted(number, 'client')}",
        )


def spans_of(counts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield spans of numbers that grow by a tenth of a power of ten: the lowest and highest number, and the count.

    Args:
        counts: How often each number occurs, as (number, count), ascending by the number.
    """
    edges = [1]
    while counts and edges[-1] < counts[-1][0]:
        edges.append(max(edges[-1] + 1, round(edges[-1] * 10 ** (1 / 10))))
    found = [0] * len(edges)
    for number, count in counts:
        found[bisect_left(edges, number)] += count
    for place, count in enumerate(found):
        if count:
            yield edges[place - 1] + 1 if place else 1, edges[place], count


# ------------------------------------------------------------------------------------- shapes


def _ceiling(highest: float) -> float:
    """Return the end of a linear axis: a round number that is not below `highest`."""
    step = 10.0 ** math.floor(math.log10(max(highest, 1)))
    return step * next(factor for factor in (1, 2, 4, 5, 6, 8, 10) if step * factor >= highest)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 or not value else f"{value:g}"


def _percent(value: float) -> str:
    return f"{value:.10g} %"


def _grid(
    scale: Scale, ticks: Sequence[float], left: float, right: float, label: Callable[[float], str]
) -> Iterator[Markup]:
    for tick in ticks:
        y = scale.at(tick)
        yield line(left, y, right, y, "grid")
        yield text(left - 6, y + 4, label(tick), "end")


def _bars(bars: Iterable[Bar], base: float, kind: str) -> Markup:
    """Return bars that stand on `base`."""
    shapes = []
    for left, right, top, hint in bars:
        gap = 1 if right - left > 4 else 0
        y = min(top, base - 2)
        size = {"width": max(right - left - gap, 1.0), "height": base - y}
        shapes.append(element("rect", element("title", hint), x=left + gap / 2, y=y, **size))
    return element("g", *shapes, class_=kind)
