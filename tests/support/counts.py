"""What a limiter has counted of its shadow rules, by the name of the rule."""

from collections import Counter

from ratelimit_mw import RateLimiter


def shadow_denials(limiter: RateLimiter) -> dict[str, int]:
    """Return how many requests each shadow rule would have denied."""
    rules = limiter.tally.snapshot().rules
    return {rule.name: rule.outcomes["shadow_denied"] for rule in rules if rule.outcomes["shadow_denied"]}


def shadow_bans(limiter: RateLimiter) -> dict[str, int]:
    """Return how many bans each shadow rule would have begun."""
    found: Counter[str] = Counter()
    for (_, rule, enforced), number in limiter.tally.snapshot().bans.items():
        found[rule] += 0 if enforced else number
    return {rule: number for rule, number in found.items() if number}
