"""What operators look at while an app runs: the live page, and the reports that its processes send to the page.

With this package imported, the rules of each limiter say whether it reports (`observe: {live: true}`). So
`ratelimit_mw.RateLimiter` comes from here.

This package is internal: its names may change in any release.
"""

from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import Rules


def _report(limiter: RateLimiter, rules: Rules) -> None:
    if rules.observe.live or limiter.rules.observe.live:
        from ratelimit_mw.operations.live import THE_RULES, live_of  # imported late: most apps do not use it

        live = live_of(limiter)
        (live.begin if rules.observe.live else live.end)(THE_RULES)


RateLimiter.followers = (_report,)
