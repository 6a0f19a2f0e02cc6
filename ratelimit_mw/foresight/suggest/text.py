"""Writes a proposal as a rules file. Each number has its reason in a comment.

Paths, addresses and file names in it come from outside. They are printable, without a line break, and never in a place
where they could end a comment or a string.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from ratelimit_mw.foresight.suggest.behaviour import HEADROOM, Track, round_limit
from ratelimit_mw.foresight.suggest.proposal import DOMAIN, MeasuredLimit, Proposal, ProposedRule
from ratelimit_mw.foresight.suggest.routes import template
from ratelimit_mw.foresight.suggest.traffic import IPV6_PREFIX, OTHER, Route, Traffic
from ratelimit_mw.foresight.wording import printable, utc
from ratelimit_mw.identity.attributes import digester
from ratelimit_mw.units import SECOND, spell_duration

_WIDTH = 100
_LONGEST = 80
"""The most characters of a path in a comment."""

_MOST_NAMED = 10
"""The most clients that are named for one reason."""


@dataclass(frozen=True, kw_only=True)
class ProposalSource:
    """Where a proposal comes from, and what it is written for.

    Attributes:
        logs: The paths of the logs.
        options: The options that a replay needs to read the logs, as on a command line.
        enforce: Write rules that deny. Otherwise they are shadow rules.
        hashed: Show clients only as hashes.
    """

    logs: Sequence[str]
    options: Sequence[str] = field(default_factory=tuple)
    enforce: bool = False
    hashed: bool = False


def as_yaml(proposal: Proposal, traffic: Traffic, source: ProposalSource) -> str:
    """Return the text of the rules file."""
    name = _namer(hashed=source.hashed)
    lines = [
        *_head(proposal, traffic, source),
        "",
        f"domain: {DOMAIN}  # begins the keys of all counters",
        "",
        "rules:",
    ]
    for rule in proposal.rules:
        lines += _rule(rule, enforce=source.enforce)
    for title, entries in (
        ("These routes have no rule of their own:", list(_unruled(proposal))),
        (
            "These addresses are far beyond the others, and were left out of the limit for all requests:",
            [f"{name(client)}: {peak:,} in its busiest minute" for client, peak in proposal.beyond],
        ),
        (
            "These clients ask at regular intervals. Exempt them, or replay the rules to see that they have room:",
            list(_pollers(proposal, traffic, name)),
        ),
    ):
        if entries:
            lines += ["", *_comment(title)]
            for entry in entries[:_MOST_NAMED]:
                lines += _comment(f"- {entry}", hanging=True)
            if len(entries) > _MOST_NAMED:
                lines += _comment(f"- and {len(entries) - _MOST_NAMED:,} more")
    return "\n".join(lines) + "\n"


def _namer(*, hashed: bool) -> Callable[[str], str]:
    digest = digester("", DOMAIN)
    return lambda client: digest(f"ip={client}") if hashed else f"ip={client}"


def _comment(text: str, indent: str = "", *, hanging: bool = False) -> list[str]:
    """Return a text as lines of comments."""
    first = f"{indent}# "
    rest = first + "  " * hanging
    text = printable(text)
    return wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _head(proposal: Proposal, traffic: Traffic, source: ProposalSource) -> Iterator[str]:
    yield "# Limits that `ratelimit-mw suggest` proposes for the traffic of"
    for log, form in zip(source.logs, traffic.formats, strict=True):
        yield f"#   {printable(log)} ({printable(form)})"
    span = f"{utc(traffic.first)} to {utc(traffic.last)} UTC"
    size = f"{traffic.requests:,} requests of {proposal.clients:,} clients"
    yield from _comment(f"{span}: {size}. A client is an address, or a /{IPV6_PREFIX} network of IPv6.")
    if traffic.limited_before:
        text = f"{traffic.limited_before:,} requests have the status 429: a limit was in force already."
        yield from _comment(text)
    if traffic.unreadable:
        yield from _comment(f"{traffic.unreadable:,} lines could not be read.")
    if traffic.without_address:
        yield from _comment(
            f"{traffic.without_address:,} requests have no address that can be read. They are not used."
        )
    yield "#"
    yield "# Next step: see what these rules would have denied:"
    words = ("ratelimit-mw", "replay", *source.logs, *source.options, "--rules", "ratelimits.yaml")
    yield f"#   {' '.join(shlex.quote(printable(word)) for word in words)}"
    yield "#"
    if not source.enforce:
        yield from _comment(
            "The rules have `shadow: true`: they count and report, but deny nothing. Remove it to enforce them."
        )
    yield from _comment(
        "The paths and addresses below are data of the log: clients have written them. "
        f"{_multiple()} stands for the headroom; limits are rounded."
    )


def _multiple() -> str:
    return f"× {float(HEADROOM):g}"


def _rule(rule: ProposedRule, *, enforce: bool) -> Iterator[str]:
    reason = _reason(rule.measure) if rule.measure is not None else rule.reason
    yield from _comment(f"{rule.limit:,} per minute: {reason}" if rule.measure is None else reason, "  ")
    yield f"  - name: {rule.name}"
    if rule.route is not None:
        path = json.dumps(template(rule.route.path), ensure_ascii=False)
        yield f"    match: {{path: {path}, methods: [{rule.route.method}]}}"
    yield "    by: ip"
    yield f"    limit: {rule.limit} per minute"
    if not enforce:
        yield "    shadow: true"


def _reason(measure: MeasuredLimit) -> str:
    parts = [f"half of the addresses have {measure.half:,} in their busiest minute, 99.9 % ≤ {measure.most:,}"]
    if measure.beyond:
        parts.append(f"{len(measure.beyond):,} far beyond {'was' if len(measure.beyond) == 1 else 'were'} left out")
    plain = round_limit(measure.most * HEADROOM)
    parts.append(f"{_multiple()} → {plain:,}")
    if measure.raised:
        parts.append(f"raised to {measure.limit:,}, to deny at most 0.05 % of their requests")
    elif measure.limit > plain:
        parts.append(f"raised to {measure.limit:,}, the least that is proposed")
    return "; ".join(parts)


def _unruled(proposal: Proposal) -> Iterator[str]:
    for route, reason in proposal.unruled:
        yield f"{_shown(route)}: {reason}"


def _pollers(proposal: Proposal, traffic: Traffic, name: Callable[[str], str]) -> Iterator[str]:
    found = [(client, track) for client, track in proposal.tracks.items() if _polls(track, traffic)]
    for client, track in sorted(found, key=lambda item: (-item[1].requests, item[0])):
        period = spell_duration((track.period + SECOND // 2) // SECOND * SECOND)
        shown = _shown(traffic.routes[track.route])
        yield f"{name(client)}: {shown} every {period}, {track.requests:,} requests"


def _polls(track: Track, traffic: Traffic) -> bool:
    """Return True if a one-track client reads with success at regular intervals."""
    return bool(track.period) and not track.fails and traffic.routes[track.route].method == "GET"


def _shown(route: Route) -> str:
    """Return a route for a comment."""
    path = "another path" if route.path == OTHER else template(route.path)
    return f"{route.method} {path if len(path) <= _LONGEST else path[: _LONGEST - 1] + '…'}".strip()
