"""The result of a replay as a page: one HTML file that loads nothing, and shows everything without its script too.

The same result always gives the same bytes. Each list has an end, so that the size does not depend on the log.
"""

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import PurePath

from ratelimit_mw.foresight.clients import fair
from ratelimit_mw.foresight.report import svg
from ratelimit_mw.foresight.report.markup import Markup, cut, element, joined
from ratelimit_mw.foresight.results import (
    MINUTE,
    Curve,
    Difference,
    Result,
    RuleResult,
    RulesOutcome,
    bars_of,
)
from ratelimit_mw.foresight.wording import changes, client_cells, limit_cells, notes, rule_cells, sentence, share, utc
from ratelimit_mw.units import spell_period

MOST_CHARTS = 5
"""The most rules whose denials are shown over time, and the most limits with a curve: those that deny most."""
MOST_ROWS = 50
"""The most rows of a table."""
_LARGEST = 290_000
"""The bytes that a page with clients below its curves does not exceed."""
_ROOM = 100_000
"""The most bytes of the clients below all curves."""
MOST_ITEMS = 20
"""The most items of a list."""

_LONGEST_ITEM = 300
_LONGEST_PATHS = 100
_LONGEST_CELL = 40
_MARKUP_OF_ROW, _MARKUP_OF_TABLE = 120, 1000
"""The bytes of a row of a table, and of a table of clients, without the text of its cells."""
_LONGEST_NAME = 120
"""The most characters of the name of a client, which may have many escapes."""

_RING = joined(element("span", "○", class_="ring"), " ")
"""Marks a shadow rule. The style sheet draws it, because many fonts do not have this character."""

WIDTHS = {"wide": 780, "narrow": 340}
"""The widths of a chart, in pixels: for screens and paper, and for phones."""


def page(result: Result, logs: Sequence[str], *, most: int = 10, rule: str | None = None) -> str:
    """Return the report.

    Args:
        result: The result of a replay.
        logs: The paths of the logs. Only the names of the files are shown.
        most: The most clients in a table, up to `MOST_ROWS`.
        rule: The only rule to show. None: all rules.
    """
    most = min(most, MOST_ROWS)
    rules = [each for each in result.outcome.rules.values() if rule in (None, each.name)]
    curves = [each for each in result.curves if rule in (None, each.rule)]
    before = (
        _head(result, logs),
        _rules(result.outcome, rules),
        _denials(result, rules),
        _clients(result.outcome, most, rule),
    )
    after = (
        _difference(result.difference, most) if result.difference is not None else None,
        _gaps([gap.text for gap in result.gaps if rule is None or gap.rule in ("", rule)]),
        _method(result),
    )
    title = f"Replay of {_names(logs)}"

    def whole(room: int) -> str:
        return _document(title, element("main", *before, _what_if(curves, result.without_curve, room), *after))

    left = _LARGEST - len(whole(0).encode())
    return whole(max(min(left, _ROOM), 0)) if any(curve.hit for curve in curves) else whole(0)


def _document(title: str, main: Markup) -> str:
    """Return the whole page. Its policy allows one script and one style sheet: those that have the nonce.

    The nonce is a hash of the page, so that a report is the same in two runs. Text of a client cannot contain it,
    because it would change it.
    """
    style, script = (_asset(name) for name in ("report.css", "report.js"))
    digest = hashlib.sha256(f"{title}{main}{style}{script}".encode()).digest()
    nonce = b64encode(digest[:18]).decode("ascii")
    allowed = f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="color-scheme", content="light dark"),
        element("meta", name_="referrer", content="no-referrer"),
        element("title", title),
        element("style", Markup(style), nonce=nonce),
    )
    body = element("body", main, element("script", Markup(script), nonce=nonce))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return files("ratelimit_mw.foresight.report").joinpath(name).read_text("utf-8")


def _names(logs: Sequence[str]) -> str:
    shown = [PurePath(log).name if log != "-" else "standard input" for log in logs[:3]]
    return ", ".join(shown) + (f" and {len(logs) - 3} more" if len(logs) > 3 else "")


# ------------------------------------------------------------------------------------- the parts, in their order


def _head(result: Result, logs: Sequence[str]) -> Markup:
    formats = ", ".join(dict.fromkeys(result.formats))
    span = f", {utc(result.first)} to {utc(result.last)} UTC" if result.first else ""
    reasons = result.outcome.reasons
    shares = f"{share(result.outcome.denied, result.outcome.requests)} of the requests"
    if set(reasons) - {"limited"}:
        shares += ": " + ", ".join(f"{number:,} {reason}" for reason, number in sorted(reasons.items()))
    return element(
        "header",
        element("p", f"ratelimit-mw replay: {_names(logs)}", class_="kicker"),
        element("h1", sentence(result)),
        element("p", f"{shares}. " if result.outcome.denied else None, f"The log is in the format {formats}{span}."),
    )


def _rules(outcome: RulesOutcome, rules: Sequence[RuleResult]) -> Markup:
    shown = rules[:MOST_ROWS]
    columns, cells = rule_cells(outcome, shown)
    rows = [(_name(each.name, shadow=each.shadow), *row) for each, row in zip(shown, cells, strict=True)]
    return _section(
        "Rules",
        _table(("rule", *columns), rows),
        _more(len(rules) - MOST_ROWS, "rules"),
        _note(_RING, "a shadow rule: it denies nothing, and would have denied these requests.")
        if any(each.shadow for each in rules)
        else None,
    )


def _denials(result: Result, rules: Sequence[RuleResult]) -> Markup | None:
    denying = sorted((each for each in rules if each.denied), key=lambda each: -each.denied)
    if not denying:
        return None
    bars = bars_of(result.first // MINUTE, result.last // MINUTE)
    panels = [svg.Panel(each.name, each.shadow, bars.heights(each.minutes)) for each in denying[:MOST_CHARTS]]
    others: Counter[int] = Counter()
    for each in denying[MOST_CHARTS:]:
        others.update(each.minutes)
    if others:
        panels.append(svg.Panel(f"{len(denying) - MOST_CHARTS} other rules", False, bars.heights(others)))
    each_bar = spell_period(bars.minutes * MINUTE)
    shadow = " Hollow bars are those of shadow rules." if any(each.shadow for each in denying) else ""
    return _section(
        "Denials over time",
        _chart(lambda width: svg.denials(panels, bars, width)),
        _note(f"Denied requests per {each_bar}, in UTC. Each rule has a scale of its own.{shadow}"),
    )


def _clients(outcome: RulesOutcome, most: int, rule: str | None) -> Markup | None:
    rows = [
        (_client(each.client), _name(each.rule, shadow=each.shadow), *client_cells(each))
        for each in outcome.most_limited(most, rule)
    ]
    if not rows:
        return None
    columns = ("client", "rule", ">denied", "first denial (UTC)", "last denial (UTC)")
    return _section("Most limited clients", _table(columns, rows))


def _what_if(curves: Sequence[Curve], without: Sequence[str], room: int) -> Markup | None:
    if not curves and not without:
        return None
    by_denials = sorted(range(len(curves)), key=lambda place: -curves[place].denied[curves[place].in_force])
    shown = [curves[place] for place in sorted(by_denials[:MOST_CHARTS])]
    return _section(
        "What another limit would deny",
        _note(
            "Each curve changes one limit, and leaves all else as it is. The dashed line is the limit in the file. "
            "Both scales are logarithmic, with a place for zero. Clients right of the line exceed the limit in their "
            "busiest window."
        )
        if shown
        else None,
        *(_curve(curve, room // len(shown)) for curve in shown),
        _more(len(curves) - len(shown), "limits (use --rule to see one rule)"),
        _items(without),
    )


_STATES = {
    "file": "Who is limited by the limit in the file, the busiest first",
    "lower": "Who is limited at this limit, and not by the one in the file",
    "higher": "Who is no longer limited at this limit, but by the one in the file",
}
"""What the clients below a curve are, by the place of the slider."""


def _hit(curve: Curve, room: int) -> Markup | None:
    """Return the clients that the limits hit. Those of the limit in the file are shown; the script shows others."""
    if not (curve.hit and room):
        return None
    cells = {
        each: (
            _client(each.client),
            f"{each.peak:,}",
            f"{curve.limits[each.last]:,}",
            f"{each.requests:,}",
            joined(element("span", each.kind, class_=each.kind), f": {each.reason}"),
            joined(cut(each.agent, _LONGEST_CELL), f"; {each.statuses}"),
            element("span", cut(each.paths, _LONGEST_PATHS), class_="client"),
        )
        for each in curve.hit
    }
    room = max(room - _MARKUP_OF_TABLE, 0)
    most = room * len(cells) // sum(_MARKUP_OF_ROW + len("".join(row).encode()) for row in cells.values())
    clients = fair(curve.hit, lambda client: client.last, most)
    rows = [cells[each] for each in clients]
    columns = ("client", ">peak", ">denied up to", ">requests", "like a", "user agent; statuses", "paths")
    shown = [each.last if each.last >= curve.in_force else -1 - each.last for each in clients]
    captions = (
        element("p", text, class_="hits", data_state=state, hidden=state != "file") for state, text in _STATES.items()
    )
    note = (
        f"At most {MOST_ROWS} clients. The peak is the number of requests in the busiest window. What a client is like "
        "is a guess, for the reason beside it."
    )
    return element("div", *captions, _table(columns, rows, hits=shown), _note(note), data_hits=True)


def _curve(curve: Curve, room: int) -> Markup:
    unit = svg.unit_of(curve)
    rows = [(f"{limit}{unit}", *cells) for limit, *cells in limit_cells(curve)]
    now = rows[curve.in_force]
    filled = [element("b" if n in (0, 2, 4) else "span", text, data_cell=n) for n, text in enumerate(now)]
    answer = element(
        "p",
        *(
            "At ",
            filled[0],
            ", ",
            filled[2],
            " of the requests would be denied (",
            filled[1],
            f" of {curve.requests:,}",
        ),
        *("), and ", filled[4], " of the clients would be limited (", filled[3], f" of {curve.all_clients:,})."),
        class_="answer",
    )
    slider = element(
        "input",
        type="range",
        min=0,
        max=len(curve.limits) - 1,
        step=1,
        value=curve.in_force,
        aria_label=f"limit of {curve.rule}",
    )
    button = element("button", "as in the file", type="button")
    if not curve.why_replayed:
        method = f"Algorithm {curve.algorithm}. Exact: computed for all limits, and equal to the engine's decisions."
    else:
        method = (
            f"Algorithm {curve.algorithm}. The log was replayed at {len(rows)} limits, because {curve.why_replayed}. "
            "The line between the points is only drawn."
        )
    columns = ("limit", ">requests denied", ">share", ">clients limited", ">share")
    return element(
        "article",
        element("h3", _name(curve.rule, shadow=curve.shadow), f": {curve.quota}"),
        answer,
        element("div", slider, button, class_="controls", hidden=True),
        _chart(lambda width: svg.what_if(curve, width)),
        _note(method),
        _hit(curve, room),
        element("details", element("summary", "All limits as a table"), _table(columns, rows, current=curve.in_force)),
        data_curve=curve.in_force,
    )


def _difference(difference: Difference, most: int) -> Markup:
    parts = [
        element(
            "div",
            element("h3", f"Newly {change.word}: {change.requests} of {change.clients}"),
            _table(("client", ">requests"), [(_client(client), number) for client, number in change.most])
            if change.most
            else None,
        )
        for change in changes(difference, most)
    ]
    return _section(
        "Compared with the other rules",
        element("div", *parts, class_="two"),
        _note("Each request was decided by both sets of rules, and counted if the outcomes differ."),
    )


def _gaps(texts: Sequence[str]) -> Markup | None:
    return _section("Not replayed, or not as in production", _items(texts)) if texts else None


def _method(result: Result) -> Markup:
    return _section(
        "How this was made",
        element(
            "p",
            "The engine that decides in production decided each line of the log, with its counters in memory and the "
            "log's own clock. Bans, exemptions, shadow rules and tiers have their usual effect. What a log does not "
            "have is reported and not guessed.",
        ),
        _items(notes(result)),
    )


# ------------------------------------------------------------------------------------- building blocks


def _section(title: str, *children: object) -> Markup:
    return element("section", element("h2", title), *children)


def _chart(draw: Callable[[int], Markup]) -> Markup:
    """Return a chart twice, for wide and for narrow screens. One of them is shown."""
    return element("figure", *(element("div", draw(width), class_=kind) for kind, width in WIDTHS.items()))


def _table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    current: int | None = None,
    hits: Sequence[int] | None = None,
) -> Markup:
    """Return a table.

    Args:
        columns: The names of the columns. One whose name begins with > is aligned to the right.
        rows: The cells of each row.
        current: The row to mark.
        hits: For a table of clients, the index of the last limit that hits each. -1 minus this if the row is hidden.
    """
    right = ["n" if column.startswith(">") else None for column in columns]
    head = (
        element("th", column.lstrip(">"), scope="col", class_=kind) for column, kind in zip(columns, right, strict=True)
    )
    body = (
        element(
            "tr",
            *(element("td", cell, class_=kind) for cell, kind in zip(row, right, strict=True)),
            aria_current="true" if number == current else None,
            data_last=None if hits is None else max(hits[number], -1 - hits[number]),
            hidden=hits is not None and hits[number] < 0,
        )
        for number, row in enumerate(rows)
    )
    table = element("table", element("thead", element("tr", *head)), element("tbody", *body))
    return element("div", table, class_="scroll", tabindex=0)


def _items(texts: Sequence[str]) -> Markup | None:
    if not texts:
        return None
    return joined(
        element("ul", *(element("li", cut(text.strip(), _LONGEST_ITEM)) for text in texts[:MOST_ITEMS])),
        _more(len(texts) - MOST_ITEMS, "more"),
    )


def _more(number: int, what: str) -> Markup | None:
    return _note(f"Not shown: {number:,} {what}.") if number > 0 else None


def _note(*parts: str) -> Markup:
    return element("p", *parts, class_="note")


def _name(rule: str, *, shadow: bool) -> Markup:
    return element("span", _RING if shadow else None, rule, class_="rule")


def _client(name: str) -> Markup:
    return element("span", cut(name, _LONGEST_NAME), class_="client")
