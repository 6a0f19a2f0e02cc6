"""Draw the pictures of algorithms.md: what each algorithm admits of the same requests.

The package's own limiter decides each request, on a clock that this script moves. No picture is drawn by hand. Sphinx
runs this at each build. `python docs/pictures.py` writes the files without a build.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware

FOLDER = Path(__file__).with_name("pictures")

START = 1_700_000_040
"""The beginning of a minute, so that windows begin at 0, 60 and 120 s of a picture."""
LIMIT = 10
MINUTE = 60.0
SECONDS = 180.0
ARRIVALS = (
    *(5.0, 20.0, 35.0),
    *(50 + place for place in range(10)),  # ten at the end of a window
    *(60.5 + place for place in range(10)),  # and ten at the beginning of the next one
    *(76 + 4 * place for place in range(26)),  # then more than ten in each minute
)
"""When the requests arrive, in seconds."""
RULES: dict[str, dict[str, Any]] = {
    "fixed_window": {},
    "sliding_window": {},
    "sliding_log": {},
    "bucketed_window": {},
    "token_bucket": {"burst": 5},
    "leaky_bucket": {"burst": 5},
}
"""The words of each rule, in addition to its limit of 10 per minute."""

PLACES = 2
STAYS = ((1, 6), (3, 5), (4, 4), (7, 6), (9, 3), (11, 2), (12, 7), (14, 5), (16, 2), (20, 4), (21, 6), (22, 3), (25, 3))
"""When a request arrives and how long the app works on it, in seconds: for the picture of `concurrency`."""

GREEN, RED, BLUE, GREY = "#1a7f37", "#cf222e", "#0969da", "#8c959f"


class Scale(NamedTuple):
    """Where the seconds of a picture are: the axis has `seconds`, begins at `left` and is `width` pixels long."""

    seconds: float = SECONDS
    left: float = 20.0
    width: float = 700.0

    def x(self, at: float) -> float:
        """The place of a moment."""
        return self.left + self.width * at / self.seconds


WIDE = Scale()


class Seen(NamedTuple):
    """One request: when it arrived, whether it was admitted, and when the app may start on it."""

    at: float
    admitted: bool
    starts: float


def decided(algorithm: str) -> list[Seen]:
    """What the limiter decides about each arrival, in memory and for one client."""
    clock = ManualClock(START)
    rule = {"name": "picture", "by": "ip", "limit": f"{LIMIT} per minute", "algorithm": algorithm, **RULES[algorithm]}
    found = []
    with RateLimiter({"domain": "pictures", "rules": [rule]}, storage="memory://", clock=clock) as limiter:
        for at in ARRIVALS:
            clock.set(START + at)
            decision = limiter.check({"ip": "192.0.2.1"})
            found.append(Seen(at, decision.allowed, at + decision.delay))
    return found


def held() -> list[tuple[Seen, float]]:
    """What the middleware decides about each request of `STAYS`, and when the request ends."""
    return asyncio.run(_held())


async def _held() -> list[tuple[Seen, float]]:
    clock = ManualClock(START)
    rule = {"name": "picture", "by": "ip", "limit": f"{PLACES} concurrent"}
    rules = {"domain": "pictures", "storage": {"timeout": "5s"}, "rules": [rule]}
    ends = [asyncio.Event() for _ in STAYS]
    begun = [asyncio.Event() for _ in STAYS]
    tasks: dict[int, asyncio.Task[None]] = {}

    async def app(scope: Any, _: Any, send: Any) -> None:
        begun[scope["number"]].set()
        await ends[scope["number"]].wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_: Any) -> None: ...

    events = sorted(
        event for number, (at, stay) in enumerate(STAYS) for event in ((at, 1, number), (at + stay, 0, number))
    )
    with RateLimiter(rules, storage="memory://", clock=clock) as limiter:
        middleware = RateLimitMiddleware(app, limiter=limiter)
        for at, arrives, number in events:
            clock.set(START + at)
            if arrives:
                scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}
                tasks[number] = asyncio.create_task(middleware(scope | {"number": number}, receive, send))
                starts = asyncio.create_task(begun[number].wait())
                await asyncio.wait({tasks[number], starts}, return_when=asyncio.FIRST_COMPLETED)
                starts.cancel()
            else:
                ends[number].set()
                await tasks[number]
    return [
        (Seen(float(at), begun[number].is_set(), float(at)), float(at + stay))
        for number, (at, stay) in enumerate(STAYS)
    ]


def most_in_a_minute(seen: list[Seen]) -> int:
    """The largest number of admitted requests that start within any 60 s."""
    return max(_last_minute(seen, each.starts) for each in seen if each.admitted)


# -------------------------------------------------------------------------------------------------- drawing


def picture(algorithm: str) -> str:
    """One algorithm: the requests above, and below them how many started in the last 60 s."""
    seen = decided(algorithm)
    shapes = [*_axis(WIDE, 30, 168), *_requests(seen, 34), *_counts(seen)]
    words = RULES[algorithm]
    title = f"{algorithm}, {LIMIT} per minute" + "".join(f", {key} {value}" for key, value in words.items())
    shapes += [
        _text(WIDE.left, 14, title, weight="bold"),
        *_legend(waits=algorithm == "leaky_bucket"),
        _text(WIDE.left, 62, f"started in the last 60 s: {most_in_a_minute(seen)} at most. Dashed: the limit"),
    ]
    return _svg(192, shapes)


def overview() -> str:
    """All windows and buckets, one row each."""
    scale = Scale(left=130.0, width=500.0)
    shapes = [_text(20, 14, f"{LIMIT} per minute", weight="bold"), *_legend(), *_axis(scale, 30, 178, top=22)]
    for row, algorithm in enumerate(RULES):
        y, seen = 34 + 24 * row, decided(algorithm)
        shapes += [_text(20, y + 4, algorithm), *_requests(seen, y, scale)]
        shapes.append(_text(645, y + 4, f"{most_in_a_minute(seen)} in 60 s"))
    return _svg(206, shapes)


def concurrency() -> str:
    """Requests as bars from their arrival to their end."""
    scale, lanes = Scale(30.0), [0.0] * PLACES
    shapes = [_text(20, 14, f"{PLACES} concurrent", weight="bold"), *_legend(waits=False), *_axis(scale, 5, 104)]
    for seen, end in held():
        x = scale.x(seen.at)
        if seen.admitted:
            lane = next(number for number, free in enumerate(lanes) if free <= seen.at)
            lanes[lane] = end
            place = f'x="{x:.1f}" y="{34 + 22 * lane}" width="{scale.x(end) - x:.1f}"'
            shapes.append(f'<rect {place} height="14" rx="3" fill="{GREEN}"/>')
        else:
            shapes.append(_mark(x, 34 + 22 * PLACES + 6, RED, -1, 5))
    return _svg(134, shapes)


def _requests(seen: list[Seen], y: float, scale: Scale = WIDE) -> Iterator[str]:
    """High and green: admitted. High and blue: waits, with a line to the green mark of its start. Low, red: denied."""
    for each in seen:
        x, start = scale.x(each.at), scale.x(each.starts)
        if not each.admitted:
            yield _mark(x, y, RED, -1, 5)
        elif start == x:
            yield _mark(x, y, GREEN, -7, 5)
        else:
            yield _mark(x, y, BLUE, -7, 2)
            if each.starts <= SECONDS:
                yield f'<path d="M{x:.1f} {y + 2}L{start:.1f} {y + 9}" stroke="{GREY}" stroke-width="0.5"/>'
                yield _mark(start, y, GREEN, 9, 13)


def _mark(x: float, y: float, color: str, top: int, bottom: int) -> str:
    return f'<path d="M{x:.1f} {y + top}V{y + bottom}" stroke="{color}" stroke-width="1.8"/>'


def _counts(seen: list[Seen]) -> Iterator[str]:
    bottom, high = 158.0, 80.0
    top = 2 * LIMIT
    starts = sorted(each.starts for each in seen if each.admitted and each.starts <= SECONDS)
    changes = sorted({0.0, SECONDS, *starts, *(at + MINUTE for at in starts if at + MINUTE <= SECONDS)})
    points, before = [], 0
    for at in changes:
        now = _last_minute(seen, at)
        y = [bottom - high * value / top for value in (before, now)]
        points += [f"{WIDE.x(at):.1f},{value:.1f}" for value in y]
        before = now
    limit, right = bottom - high * LIMIT / top, WIDE.left + WIDE.width
    yield f'<polyline points="{" ".join(points)}" fill="none" stroke="{GREEN}" stroke-width="1.6"/>'
    yield f'<path d="M{WIDE.left} {limit}H{right}" stroke="{RED}" stroke-dasharray="5 4" fill="none"/>'
    yield _text(right + 6, limit + 4, str(LIMIT))


def _last_minute(seen: list[Seen], now: float) -> int:
    return sum(each.admitted and now - MINUTE < each.starts <= now for each in seen)


def _axis(scale: Scale, step: int, y: float, top: float | None = None) -> Iterator[str]:
    """The seconds. From `top` on, a line marks the beginning of each minute."""
    yield f'<path d="M{scale.left} {y}H{scale.left + scale.width}" stroke="{GREY}"/>'
    for at in range(0, int(scale.seconds) + 1, step):
        x = scale.x(at)
        begins = top if top is not None and at % MINUTE == 0 else y - 4
        yield f'<path d="M{x:.1f} {begins}V{y + 4}" stroke="{GREY}" stroke-width="0.6"/>'
        yield _text(x, y + 16, f"{at} s", anchor="middle")


def _legend(waits: bool = True) -> Iterator[str]:
    entries = ((500, GREEN, -7, 5, "admitted"), (575, BLUE, -7, 1, "waits, then starts"), (690, RED, -1, 5, "denied"))
    for x, color, top, bottom, meaning in entries:
        if waits or color != BLUE:
            yield _mark(x, 11, color, top, bottom)
            yield _text(x + 6, 14, meaning)


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{text}</text>'


def _svg(height: int, shapes: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 750 {height}" width="750" height="{height}" '
        'font-family="sans-serif" font-size="11" fill="#24292f">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *shapes, "</svg>", ""])


# ---------------------------------------------------------------------------------------------------- files


def pictures() -> dict[str, str]:
    """All pictures, by the names of their files."""
    drawn = {f"{algorithm}.svg": picture(algorithm) for algorithm in RULES}
    return drawn | {"algorithms.svg": overview(), "concurrency.svg": concurrency()}


def write() -> None:
    """Write the files that have changed."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        path = FOLDER / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    write()
