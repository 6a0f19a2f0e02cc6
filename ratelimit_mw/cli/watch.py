"""The command `top --watch`: what the live page shows, in the terminal."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import bars, console_of, fail, open_limiter, say_json, table_of, with_retries
from ratelimit_mw.decision.explanation import seconds
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.foresight.wording import printable
from ratelimit_mw.operations.live import LiveState, Viewer
from ratelimit_mw.stores import STORES

_EVERY = 1.0
"""Seconds between two frames."""

_POINTS = 3
"""The steps of a series that one character of a sparkline shows: half a minute."""

NO_REPORT = (
    "no process reports yet: mount the page in the app, or write `observe: {live: true}` into its rules; a process "
    "reports from its first request on"
)


def watch(config: str, storage: str | None, *, denied: bool, most: int, as_json: bool) -> None:
    """Show what all processes report, once a second, until Ctrl-C.

    If the output is not a terminal, or one on which nothing can be drawn again (TERM=dumb), print one frame.

    Args:
        config: The rules.
        storage: The URL of the store, instead of the one in the rules.
        denied: Show only who is limited.
        most: The most clients and rules to show.
        as_json: Print the state once, as JSON.
    """
    with suppress(KeyboardInterrupt), open_limiter(config, storage) as limiter:
        scheme = limiter.storage_url.partition(":")[0]
        if not STORES[scheme].records:
            fail(
                f"the processes of {scheme}:// do not share what they report; mount the page in the app, which shows "
                "its own process, or name a storage that they share (Redis or lmdb) with --storage",
                Exit.USAGE,
            )
        viewer, console = Viewer(limiter), console_of(sys.stdout)
        try:
            if as_json:
                say_json(with_retries(viewer.state) or {"processes": 0})
            elif sys.stdout.isatty() and not console.is_dumb_terminal:
                _show_each_second(viewer, console, denied=denied, most=most)
            else:
                state = with_retries(viewer.state)
                console.print(frame(state, denied=denied, most=most) if state is not None else NO_REPORT)
        finally:
            viewer.close()


def _show_each_second(viewer: Viewer, console: Console, *, denied: bool, most: int) -> None:
    """Draw a frame each second, until KeyboardInterrupt.

    If the store does not answer, the last frame stays, below a line that says so.
    """
    state = with_retries(viewer.state)
    away = False
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        while True:
            shown: RenderableType = Text(NO_REPORT) if state is None else frame(state, denied=denied, most=most)
            screen.update(Group(Text("the store does not answer", "bold red"), shown) if away else shown, refresh=True)
            time.sleep(_EVERY)
            try:
                state, away = viewer.state(), False
            except StoreUnavailable:
                away = True


def frame(state: LiveState, *, denied: bool, most: int) -> RenderableType:
    """Return one frame of the display. All of its texts are printable.

    Args:
        state: The state.
        denied: Show only who is limited.
        most: The most clients and rules to show.
    """
    several = len({rule["domain"] for rule in state["rules"]}) > 1
    limited = _limited(state, most, several=several)
    shadows = any(each["shadow"] for each in (*state["limited"], *state["rules"]))
    legend = (Text("○ a shadow rule: it denies nothing, and would have denied these requests"),) * shadows
    if denied:
        return Group(_heading(state), Text(), limited, *legend)
    rules = _rules(state, most, several=several)
    return Group(_heading(state), _traffic(state), Text(), limited, Text(), rules, *legend)


def _heading(state: LiveState) -> Text:
    store, processes = state["store"], state["processes"]
    latency = "" if store["latency_ms"] is None else f", {store['latency_ms']:g} ms"
    parts = [
        printable(state["domain"]),
        f"rules {_version(state['version'])}",
        f"switch {printable(state['switch'])}",
        f"{store['kind']} {'up' if store['up'] else 'away'}{latency}",
        *([] if state["load"] is None else [f"load {state['load']:.0%}"]),
        f"{processes} process{'es' * (processes != 1)}",
    ]
    return Text(" · ".join(parts), "bold" if state["switch"] == "on" else "bold red")


def _version(version: str | None) -> str:
    """Return the version of the rules for the heading. Rules in a mapping, not in a file, have the version "given"."""
    return "from code" if version == "given" else printable(version or "of unknown version")


def _traffic(state: LiveState) -> Text:
    rates, series = state["rates"], state["series"]
    denied, asked = sum(series["denials"]), sum(series["requests"])
    minutes = max(round(len(series["requests"]) * series["step"] / 60), 1)
    return Text(
        f"{rates['requests']:g} requests/s {_spark(series['requests'])}   "
        f"{rates['denials']:g} denials/s {_spark(series['denials'])}"
        + (f"   {denied:,} of {asked:,} denied in {minutes} minute{'s' * (minutes != 1)}" if denied else "")
    )


def _limited(state: LiveState, most: int, *, several: bool) -> RenderableType:
    clients, at = state["limited"], state["at"]
    if not clients:
        return Text("no client is limited now")
    rows = (
        (
            client["client"],
            ("○ " if client["shadow"] else "") + _name(client["domain"], client["rule"], several=several),
            client["reason"],
            client["denials"],
            f"{seconds(max(at - client['since'], 0.0))} ago",
            "no end" if client["until"] is None else seconds(max(client["until"] - at, 0.0)),
        )
        for client in clients[:most]
    )
    columns = ("client", "rule", "reason", ">denials", ">since", ">limited for")
    return _with_rest(table_of(columns, rows), len(clients) - most)


def _rules(state: LiveState, most: int, *, several: bool) -> RenderableType:
    busiest = sorted(state["rules"], key=_activity, reverse=True)
    rows = (
        (
            ("○ " if rule["shadow"] else "") + _name(rule["domain"], rule["name"], several=several),
            ", ".join(rule["limits"]),
            f"{sum(rule['rates'][outcome] for outcome in ('allowed', 'over', 'delayed')):g}",
            f"{rule['rates']['shadow_denied' if rule['shadow'] else 'denied']:g}",
            rule["bans"],
        )
        for rule in busiest[:most]
    )
    table = table_of(("rule", "limit", ">allowed/s", ">denied/s", ">bans"), rows)
    return _with_rest(table, len(busiest) - most)


def _activity(rule: LiveState) -> tuple[float, float]:
    rates = rule["rates"]
    return rates["denied"] + rates["shadow_denied"], sum(rates.values())


def _with_rest(table: Table, rest: int) -> RenderableType:
    return Group(table, Text(f"and {rest} more")) if rest > 0 else table


def _name(domain: str, rule: str, *, several: bool) -> str:
    return f"{domain}/{rule}" if several and domain else rule


def _spark(counts: Sequence[int]) -> str:
    """Return a sparkline of a series. Each character stands for `_POINTS` steps, the last one for the newest."""
    ends = range(len(counts), 0, -_POINTS)
    return bars([sum(counts[max(end - _POINTS, 0) : end]) for end in reversed(ends)])
