"""Shedding: an overloaded process denies requests, those with a low priority first."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ratelimit_mw.decision.kill_switch import KillSwitch
from ratelimit_mw.decision.load import BANDS, Meter, retry_after_shed, share_shed, turn
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.identity.request import EntriesRequest, Request
from ratelimit_mw.logs import LineLimit, logger
from ratelimit_mw.model import SECOND, Charge, Priority, Rule
from ratelimit_mw.process_local import lazy, lock
from ratelimit_mw.rules.compiled import BLOCKED, NamedRule
from ratelimit_mw.rules.domains import Rules


class Standing(NamedTuple):
    """How a request stands under the current load.

    Attributes:
        priority: the priority of the request.
        rule: the name of the rule that sets the priority; empty if none does.
        pressure: the recent peak of the load, from 0 to 1.
        share: the share of the requests of this priority that is shed at this pressure.
        wait: the seconds that the request is asked to wait if it is shed, otherwise None.
    """

    priority: Priority
    rule: str
    pressure: float
    share: float
    wait: float | None

    @property
    def denial(self) -> Verdict | None:
        """The verdict that denies the request if it is shed, otherwise None."""
        return None if self.wait is None else Verdict((), None, denied="shed", wait=round(self.wait * SECOND))

    def __str__(self) -> str:
        by = f"by '{self.rule}'" if self.rule else "the default"
        shed = f"{round(self.share * 100)} %" if self.share else "none"
        at = f"at this process's load of {self.pressure:.2f}"
        return f"priority {self.priority}, {by}; {at}, {shed} of these are shed"


WouldShed = Callable[[Verdict, Rule, Rules, Request], None]
"""Gets the verdict that would deny the request, the rule, the rules and the request."""


class Shedder:
    """Decides which requests are shed. Threads may share it.

    Args:
        meter: returns the meter of the load for these rules.
        switch: the kill switch. Unless it is `on`, no request is shed.
        would_shed: is called for each request that a shadow rule would have shed.
        counts: the number of shed requests of each priority.
    """

    _lock = lazy(lock)

    def __init__(
        self, meter: Callable[[Rules], Meter], switch: KillSwitch, would_shed: WouldShed, counts: Counter[str]
    ) -> None:
        self.counts = counts
        self._meter = meter
        self._switch = switch
        self._would_shed = would_shed
        self._asked: Counter[Priority] = Counter()
        self._lines = LineLimit()

    def shed(self, rules: Rules, request: Request, name: NamedRule | None, *, commit: bool) -> Verdict | None:
        """The verdict that denies the request if it is shed, otherwise None.

        Args:
            rules: the rules in force.
            request: the request.
            name: take the priority of this rule alone; None for all rules that apply.
            commit: whether to count the request. False only looks.
        """
        if self._meter(rules).pressure() <= BANDS["low"][0]:  # below this, no priority is shed
            return None
        standing = self.standing(rules, request, name, commit=commit)
        if standing is None or standing.wait is None:
            return None
        if commit:
            self._count(standing)
        return standing.denial

    def standing(
        self, rules: Rules, request: Request, name: NamedRule | None = None, *, commit: bool
    ) -> Standing | None:
        """How a request stands. None if it is never shed, because it is exempt or no enforced rule applies to it."""
        if isinstance(request, EntriesRequest):
            return None
        charges = rules.classify(request, name) or ()
        if self._switch.thrown:
            charges = self._switch.apply(charges)
        if charges is BLOCKED:
            return None
        enforced = [charge for charge in charges if not charge.ask.shadow]
        found = self._drawn(rules, enforced, commit=commit) if enforced else None
        if commit and len(enforced) < len(charges) and (found is None or found.wait is None):
            self._count_shadow(rules, charges, found, request)
        return found

    def _drawn(self, rules: Rules, charges: Sequence[Charge], *, commit: bool) -> Standing:
        priority, rule = _highest(charges)
        pressure = self._meter(rules).pressure()
        share = share_shed(pressure, BANDS[priority])
        if not share:
            return Standing(priority, rule.name, pressure, share, None)
        with self._lock:
            number = self._asked[priority] + 1
            if commit:
                self._asked[priority] = number
        drawn = turn(number)
        wait = retry_after_shed(drawn, share) if drawn < share else None
        return Standing(priority, rule.name, pressure, share, wait)

    def _count_shadow(self, rules: Rules, charges: Sequence[Charge], found: Standing | None, request: Request) -> None:
        """Count the request for a shadow rule if it would be shed with that rule enforced."""
        priority, rule = _highest(charges)
        if found is None or priority != found.priority:
            denial = self._drawn(rules, charges, commit=True).denial
            if denial is not None and rule.name:
                self._would_shed(denial, rule, rules, request)

    def reset(self) -> None:
        """Log the next requests that are shed as if there were none before. The tally resets `counts`."""
        self._lines.reset()

    def _count(self, standing: Standing) -> None:
        priority = standing.priority
        with self._lock:
            self.counts[priority] += 1
            so_far = self.counts[priority]
            omitted = self._lines.omitted(priority, 1, time.monotonic_ns() // 1_000)
        if omitted is not None:
            logger.warning(
                "shedding %d %% of %s requests at a load of %.2f (%d shed so far)",
                round(standing.share * 100),
                priority,
                standing.pressure,
                so_far,
            )


def _highest(charges: Sequence[Charge]) -> tuple[Priority, Rule]:
    """The highest priority that a rule sets, and the first rule that sets it; "normal" and `_NO_RULE` if none does."""
    for priority in reversed(BANDS):
        for charge in charges:
            if charge.rule.priority == priority:
                return priority, charge.rule
    return "normal", _NO_RULE


_NO_RULE = Rule("")
