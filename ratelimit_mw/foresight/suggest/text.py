"""Writes a proposal as a rules file. Each number has its reason in a comment.

Paths, addresses and file names in it come from outside. They are printable, without a line break, and never in a place
where they could end a comment or a string.
"""

import math
import shlex
from collections.abc import Iterator, Sequence
from textwrap import wrap

import yaml

from ratelimit_mw.foresight.suggest import DOMAIN, USER, Proposal, ProposedRule, mapping_of
from ratelimit_mw.foresight.suggest.clients import template
from ratelimit_mw.foresight.suggest.limits import HEADROOM, Consequence, Limit, covered
from ratelimit_mw.foresight.suggest.traffic import IPV6_PREFIX, OTHER, Route, Traffic
from ratelimit_mw.foresight.wording import counted, printable, share, utc
from ratelimit_mw.units import HOUR, MINUTE, SECOND, spell_duration, spell_period

_WIDTH = 100
_LONGEST = 80
"""The most characters of a path in a comment."""

_MOST_NAMED = 10
"""The most clients that are named for one reason."""

_MOST_SHOWN = 3
"""The most clients that are named in one sentence."""


def as_yaml(proposal: Proposal, traffic: Traffic, logs: Sequence[str], *, enforce: bool = False) -> str:
    """Return the text of the rules file.

    Args:
        proposal: The rules.
        traffic: The traffic that they are for.
        logs: The paths of the logs.
        enforce: Write rules that deny. Otherwise they are shadow rules.
    """
    lines = [
        *_head(proposal, traffic, logs, enforce=enforce),
        "",
        f"domain: {DOMAIN}  # begins the keys of all counters",
        "",
    ]
    if any(rule.by == "user" for rule in proposal.rules):
        lines += ["client:", f"  user: {USER}  # where your app has the user that the log names", ""]
    lines.append("rules:")
    for rule in proposal.rules:
        lines += _rule(rule, enforce=enforce)
    for title, entries in (
        ("These routes have no rule of their own:", [f"{_shown(route)}: {why}" for route, why in proposal.unruled]),
        (
            "These addresses are far beyond the others, and no number was taken from them:",
            [
                f"ip={client}: {peak:,} in its busiest minute; `everything` denies {denied:,} of {sent:,}"
                for client, peak, sent, denied in proposal.beyond
            ],
        ),
        (
            "These clients ask at regular intervals. Exempt them, or replay the rules to see that they have room:",
            list(_pollers(proposal, traffic)),
        ),
        ("What these limits do not stop:", list(_doubts(proposal))),
    ):
        if entries:
            lines += ["", *_comment(title)]
            for entry in entries[:_MOST_NAMED]:
                lines += _comment(f"- {entry}", hanging=True)
            if len(entries) > _MOST_NAMED:
                lines += _comment(f"- and {len(entries) - _MOST_NAMED:,} more")
    return "\n".join(lines) + "\n"


def _comment(text: str, indent: str = "", *, hanging: bool = False) -> list[str]:
    """Return a text as lines of comments."""
    first = f"{indent}# "
    rest = first + "  " * hanging
    text = printable(text)
    return wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _head(proposal: Proposal, traffic: Traffic, logs: Sequence[str], *, enforce: bool) -> Iterator[str]:
    yield "# Limits that `ratelimit-mw suggest` proposes for the traffic of"
    for log, form in zip(logs, traffic.formats, strict=True):
        yield f"#   {printable(log)} ({printable(form)})"
    span = f"{utc(traffic.first)} to {utc(traffic.last)} UTC"
    size = f"{traffic.requests:,} requests of {proposal.clients:,} clients"
    yield from _comment(f"{span}: {size}. A client is an address, or a /{IPV6_PREFIX} network of IPv6.")
    if traffic.limited_before:
        text = f"{traffic.limited_before:,} requests have the status 429: a limit was in force already."
        yield from _comment(text)
    if traffic.unreadable.count:
        yield from _comment(f"{traffic.unreadable.count:,} lines could not be read.")
    if traffic.without_address:
        yield from _comment(
            f"{traffic.without_address:,} requests have no address that can be read. They are not used."
        )
    yield "#"
    yield "# Next step: see what these rules would have denied. Add the options with which you read the log:"
    yield f"#   ratelimit-mw replay {' '.join(shlex.quote(printable(log)) for log in logs)} --rules ratelimits.yaml"
    yield "#"
    if not enforce:
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
    kind = "users" if rule.by == "user" else "addresses"
    reasons = [_reason(limit, kind) for limit in rule.limits]
    if not all(limit.clients for limit in rule.limits):
        reasons = [f"{', '.join(reasons)}; {rule.reason}"]
    elif rule.reason:
        reasons.insert(0, rule.reason)
    for text in (*reasons, *_effects(rule)):
        yield from _comment(text, "  ")
    for key, value in rule.mapping(enforce=enforce).items():
        line = yaml.safe_dump({key: value}, default_flow_style=True, allow_unicode=True, width=math.inf)
        yield f"{'  - ' if key == 'name' else '    '}{line.strip()[1:-1]}"


def _reason(limit: Limit, kind: str) -> str:
    """Return how a limit was found."""
    period = spell_period(limit.period)
    raised = (
        f"raised to {limit.limit:,} for {counted(len(limit.raised_for), 'busy client')}" if limit.raised_for else ""
    )
    if not limit.clients:
        return f"{limit.plain:,} per {period}{f' ({raised})' if raised else ''}"
    thousandths = covered(limit.clients)
    text = f"half of the {kind} have {limit.half:,} in their busiest {period}, {thousandths / 10:g} % ≤ {limit.most:,}"
    if limit.beyond:
        text += f"; {len(limit.beyond):,} far beyond {'was' if len(limit.beyond) == 1 else 'were'} left out"
    return f"{text}; {_multiple()} → {limit.plain:,}{f'; {raised}' if raised else ''}"


def _effects(rule: ProposedRule) -> Iterator[str]:
    """Yield what a rule denies in this log, and what its alternatives deny."""
    strict, own, loose = rule.effects
    requests = f"{own.denied:,} of {own.requests:,} requests ({share(own.denied, own.requests)})"
    clients = f"{own.limited:,} of {own.clients:,} clients ({share(own.limited, own.clients)})"
    yield f"denies {requests}, of {clients}"
    others = [f"{', '.join(each.limits)} denies {each.denied:,}, of {each.limited:,}" for each in (strict, loose)]
    yield f"strict: {others[0]}; loose: {others[1]}"


def _doubts(proposal: Proposal) -> Iterator[str]:
    """Yield what the rules do not stop, and why."""
    if proposal.heavy:
        yield (
            f"{proposal.heavy:,} of {proposal.clients:,} clients need far more than the others, on several routes. "
            "They are too many to be left out, so the limits have room for them"
        )
    for rule in proposal.rules:
        found = rule.guesses
        if 10 * found.denied < 9 * found.requests:
            yield (
                f"{rule.name}: the {found.clients:,} addresses that may guess there lose {found.denied:,} of "
                f"{found.requests:,} requests. Each sends little, and a limit by address does not reach further. Limit "
                "failures by account, too"
            )
        if rule.room_for:
            shown = ", ".join(f"{rule.by}={client}" for client in rule.room_for[:_MOST_SHOWN])
            more = len(rule.room_for) - _MOST_SHOWN
            shown += f" and {more:,} more" if more > 0 else ""
            yield (
                f"{rule.name}: the limit has room for {shown}. Each does what the others do, as many people behind one "
                "address would, or a program that imitates them"
            )


def _pollers(proposal: Proposal, traffic: Traffic) -> Iterator[str]:
    for client, poll in sorted(proposal.polls.items(), key=lambda item: (-item[1].requests, item[0])):
        shown = _shown(traffic.routes[poll.route])
        yield f"ip={client}: {shown} every {_period(poll.period)}, {poll.requests:,} requests"


def _period(period: int) -> str:
    """Return a period as text. It is known to a tenth, so that a large one is rounded."""
    unit = SECOND if period < 2 * MINUTE else MINUTE if period < 2 * HOUR else HOUR
    return spell_duration((period + unit // 2) // unit * unit)


def as_mapping(proposal: Proposal, traffic: Traffic, *, enforce: bool) -> dict[str, object]:
    """Return the same for programs: what was found, and the rules file as `config`."""
    return {
        "requests": traffic.requests,
        "clients": proposal.clients,
        "from": utc(traffic.first, exact=True),
        "to": utc(traffic.last, exact=True),
        "rules": [
            {
                "name": rule.name,
                "reason": rule.reason,
                "limits": [
                    {
                        "limit": each.limit,
                        "per": spell_period(each.period),
                        "clients": each.clients,
                        "half": each.half,
                        "most": each.most,
                        "before_raised": each.plain,
                        "beyond": len(each.beyond),
                    }
                    for each in rule.limits
                ],
                **dict(zip(("strict", "effect", "loose"), map(_effect, rule.effects), strict=True)),
            }
            for rule in proposal.rules
        ],
        "without_rule": [{"route": _shown(route), "reason": why} for route, why in proposal.unruled],
        "beyond": [
            {"client": f"ip={client}", "busiest_minute": peak, "requests": sent, "denied": denied}
            for client, peak, sent, denied in proposal.beyond
        ],
        "pollers": [
            {
                "client": f"ip={client}",
                "route": _shown(traffic.routes[poll.route]),
                "period": poll.period / SECOND,
                "requests": poll.requests,
            }
            for client, poll in proposal.polls.items()
        ],
        "not_stopped": list(_doubts(proposal)),
        "config": mapping_of(proposal.rules, enforce=enforce),
    }


def _effect(effect: Consequence) -> dict[str, object]:
    return {
        "limit": [*effect.limits],
        "denied": effect.denied,
        "requests": effect.requests,
        "limited_clients": effect.limited,
        "clients": effect.clients,
    }


def _shown(route: Route) -> str:
    """Return a route for a comment."""
    path = "another path" if route.path == OTHER else template(route.path)
    return f"{route.method} {path if len(path) <= _LONGEST else path[: _LONGEST - 1] + '…'}".strip()
