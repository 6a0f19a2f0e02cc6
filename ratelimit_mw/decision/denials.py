"""The log of denials: one record for each denied request, at most ten in a minute for each rule (`observe`).

A request that a shadow rule would have denied has a record, too, with `shadow=True`.
"""

import logging
from collections.abc import Callable

from ratelimit_mw.clock import Clock, monotonic
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.identity.request import METHODS, Arguments, Request
from ratelimit_mw.identity.sources import described
from ratelimit_mw.logs import LineLimit, Once, logger
from ratelimit_mw.model import NEVER, SECOND, Rule
from ratelimit_mw.rules.domains import Rules

DENIALS = logging.getLogger("ratelimit_mw.denials")
"""The logger of denials."""

DENIAL_FIELDS = ("rule", "reason", "limit", "retry_after", "identity", "method", "route", "omitted", "shadow")
"""The attributes of its records."""


class DenialLog:
    """Writes the denials of one limiter to the logger `ratelimit_mw.denials`. Threads may share it.

    A denied request costs little here: if there were enough records in this minute, nothing is formatted. Nothing is
    kept for single clients.

    Args:
        clock: the user's clock, or None for the machine's.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._now: Callable[[], int] = monotonic if clock is None else clock.now
        self._once = Once()
        self.lines = LineLimit()
        """How many records there may be, by the label of a rule, or by a reason without a rule."""

    def write(
        self,
        verdict: Verdict,
        place: int,
        reason: str,
        rules: Rules,
        given: Request | Arguments,
        *,
        shadow: bool = False,
    ) -> None:
        """Write one record about a denied request, unless there were too many in this minute.

        It never raises: a handler of the app that fails is logged once, and the request is still answered.

        Args:
            verdict: the verdict on the request.
            place: the index of the counter that denies it; -1 if no counter does.
            reason: why it is denied.
            rules: the rules that decided.
            given: the request, or the attributes of `check()`.
            shadow: the request was not denied: a shadow rule would have done it.
        """
        charge = verdict.charges[place] if place >= 0 else None
        observe = rules.observe
        subject = reason if charge is None else charge[0].label
        now = verdict.now or self._now()  # the time of the decision takes no further call
        omitted = self.lines.omitted(subject, observe.denials, now)
        if omitted is None:
            return
        request = rules.attributes.request_of(given)
        wait = (verdict.wait or NEVER) if charge is None else verdict.outcomes[place].retry_after
        rule = None if charge is None else charge.rule.name
        name = None if charge is None else charge.rule.logged
        retry_after = None if wait == NEVER else wait / SECOND
        identity = None if charge is None else shown_client(charge.ask.key, charge.rule, rules)
        limit = None if charge is None else charge.ask.quota.shown_size
        route = _route(rules, rule, request)
        method = request.method if request.method in METHODS else rules.attributes.digest(request.method)
        values = name, reason, limit, retry_after, identity, method or None, route, omitted, shadow
        try:
            DENIALS.info(
                "%s (%s)%s%s%s%s",
                "would have been denied" if shadow else "denied",
                reason,
                f" by rule {name}" if name is not None else "",
                f", client {identity}" if identity is not None else "",
                f", retry after {retry_after:g} s" if retry_after is not None else "",
                f"; {omitted} more denials were not logged" if omitted else "",
                extra=dict(zip(DENIAL_FIELDS, values, strict=True)),
            )
        except Exception as error:  # noqa: BLE001 - a handler of the app may raise anything
            self._once(logger.error, "a handler of the denials failed: %s (logged once)", described(error))


def shown_client(key: str, rule: Rule, rules: Rules) -> str | None:
    """Return what a log or a page has of the client whose counter has this key, as `observe.identity` says.

    The client of a limit that a request has brought along is hashed, because the identity has texts of the request.
    """
    identity, shown = key.partition("{")[2][:-1], rules.observe.identity
    if shown == "none" or not identity:
        return None
    return rules.attributes.digest(identity) if shown == "hashed" or rule.sent else identity


def _route(rules: Rules, rule: str | None, request: Request) -> str | None:
    """The path template of the rule that matched, otherwise that of the route that a router has put into the scope."""
    found = rules.route(rule, request) if rule is not None else None
    if found is None and request.context is not None:
        found = getattr(request.context.get("route"), "path", None)
    return found
