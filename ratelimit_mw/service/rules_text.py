"""The rules in force as text, for `/rlconfig` on the admin port.

The line of a descriptor is as envoyproxy/ratelimit writes it. A rule has its limits in words.

This module is internal: its names may change in any release.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from ratelimit_mw.decision.explanation import limit_in_words
from ratelimit_mw.envoy.tree import DEFAULT, DescriptorLimit
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import Quota
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.units import UNITS

_UNIT_NAMES = {period: name.upper() for name, period in UNITS.items() if name != "millisecond"}


def rules_text(limiter: RateLimiter) -> str:
    """Return the rules of a limiter, one line for each limit."""
    state, rules = limiter.state, limiter.rules
    since = datetime.fromtimestamp(state.loaded_at, UTC).isoformat(timespec="seconds")
    lines = [f"# version {state.version}, since {since}"]
    if state.error is not None:
        lines.append("# newer rules cannot be used; the reason is in the log")
    for part in rules.parts:
        lines += _lines(part)
    return "\n".join(lines) + "\n"


def _lines(part: RuleSet) -> Iterator[str]:
    if part.shadow:
        yield f"# the domain {part.domain} is in shadow: nothing is enforced"
    for rule in part.compiled:
        yield f"{part.domain}.{rule.rule.name}: {_of_rule(rule)}"
    for limit in part.descriptors.limits if part.descriptors is not None else ():
        yield f"{part.domain}.{limit.rule.name}: {_of_descriptor(limit)}"


def _of_rule(rule: CompiledRule) -> str:
    words = [_of_limits(rule), f"by {', '.join(rule.by)}"]
    if rule.match.templates:
        words.append(f"path {', '.join(rule.match.templates)}")
    if rule.match.methods:
        words.append(f"methods {', '.join(rule.match.methods)}")
    words += [word for word, is_set in (("on demand", rule.on_demand), ("shadow", rule.rule.shadow)) if is_set]
    return "; ".join(words)


def _of_limits(rule: CompiledRule) -> str:
    if rule.read_limit is not None:
        return "the limit of a function"
    tiers = [f"{tier}: {_and(quota for _, quota in counters)}" for tier, counters in (rule.tiers or {}).items()]
    own = _and(rule.limits)
    return ", ".join([*tiers, f"others: {own}" if tiers else own])


def _and(quotas: Iterator[Quota] | tuple[Quota, ...]) -> str:
    return " and ".join([f"{limit_in_words(quota)} ({quota.algorithm})" for quota in quotas]) or "no limit"


def _of_descriptor(limit: DescriptorLimit) -> str:
    quota, rule = limit.quota, limit.rule
    if quota is None:
        return "unlimited"
    flags = f"shadow_mode: {str(rule.shadow).lower()}, quota_mode: {str(bool(rule.quota_group)).lower()}"
    unit = _UNIT_NAMES.get(quota.period)
    if unit is None or quota.algorithm != DEFAULT:
        return f"{_and((quota,))}, {flags}"
    return f"unit={unit} requests_per_unit={quota.limit}, {flags}"
