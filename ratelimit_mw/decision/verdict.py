"""From what the counters said to what becomes of the request."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from ratelimit_mw.model import NEVER, SECOND, Ask, Banned, Charge, Decision, Outcome, Quota, Reply, Rule

_SILENCE = Reply(0, ())
_NONE: frozenset[int] = frozenset()
_POLICIES = Decision._fields.index("policies")
_decision = partial(tuple.__new__, Decision)

Reason = Literal["limited", "banned", "unavailable", "blocked", "shed"]
"""Why a request is denied: a counter is used up; denials have brought a ban; the store was away and a rule with
`on_error: deny` would not do without it; an operator has blocked the client, whom no counter would let pass; the
process has too much to do."""


class Verdict:
    """What was decided on one request, in the store's own microseconds; `decision` tells it in seconds.

    `binding` is the place of the counter that the headers speak of: the denying one with the longest wait, else
    the one with the least remaining; -1 where no enforced counter was asked. Of rules that deny only together
    (`Rule.quota_group`) the laxest speaks. `shadowed` says that a shadow rule was asked. With `denied`, it is for that
    reason that the request is denied, whatever a counter said; `wait` is then how long it is asked to wait, 0 if nobody
    knows.

    `outcomes` are as clients are told, who know nothing of a throttle's spare part; `over` has the places of the
    counters that admitted from it. `delay` is how long the admitted request has to wait for its turn. `local` says
    that the process's own store has decided, for the other was away; `account` is the limiter's own.
    """

    __slots__ = (
        "__weakref__",
        "_decision",
        "_denied",
        "account",
        "allowed",
        "binding",
        "charges",
        "delay",
        "local",
        "now",
        "outcomes",
        "over",
        "shadowed",
        "wait",
    )

    def __init__(
        self, charges: Sequence[Charge], reply: Reply | None, *, denied: Reason | None = None, wait: int = 0
    ) -> None:
        self.now: int
        self.outcomes: Sequence[Outcome]
        self.now, self.outcomes, only = reply or _SILENCE
        self.charges = charges = charges if only is None else (charges[only],)
        self._denied: Reason | None = denied
        self.wait = wait
        self._decision: Decision | None = None
        self.account: Any = None
        self.local = False
        self.over = _NONE
        if len(self.outcomes) == 1 and not charges[0].ask.shadow:
            if charges[0].ask.quota.spare:
                self._hide_spare()
            outcome = self.outcomes[0]
            self.binding = 0
            self.allowed = outcome.allowed
            self.delay = outcome.delay
            self.shadowed = False
        else:
            self._hide_spare()
            self.binding = self._most_binding()
            self.allowed = denied is None and (self.binding < 0 or self.outcomes[self.binding].allowed)
            self.shadowed = any(charge.ask.shadow for charge in charges)
            self.delay = self._longest_delay() if self.allowed else 0

    def show(self, place: int, remaining: int) -> None:
        """Say that so much is left of a counter, now that something was charged or given back."""
        quota = self.charges[place].ask.quota
        outcomes = list(self.outcomes)
        outcomes[place] = outcomes[place]._replace(
            remaining=min(max(remaining, 0), (quota.burst or quota.limit) - quota.spare)
        )
        self.outcomes = outcomes
        self._decision = None

    def _hide_spare(self) -> None:
        quotas = [charge.ask.quota for charge in self.charges]
        if any(quota.spare for quota in quotas):
            said = list(zip(quotas, self.outcomes, strict=True))
            self.over = frozenset(
                place
                for place, (quota, outcome) in enumerate(said)
                if outcome.allowed and outcome.remaining < quota.spare
            )
            self.outcomes = [_promised(quota, outcome) if quota.spare else outcome for quota, outcome in said]

    def _longest_delay(self) -> int:
        said = zip(self.charges, self.outcomes, strict=True)
        return max([outcome.delay for charge, outcome in said if not charge.ask.shadow], default=0)

    def _most_binding(self) -> int:
        best = -1
        least: tuple[float, float] = (math.inf, math.inf)
        laxest: dict[str, tuple[tuple[float, float], int]] = {}
        for place, outcome in enumerate(self.outcomes):
            rule, ask = self.charges[place]
            if not ask.shadow or rule.quota_group:
                wait = math.inf if outcome.retry_after == NEVER else outcome.retry_after
                rank: tuple[float, float] = (
                    (0, outcome.remaining - (place in self.over)) if outcome.allowed else (-1, -wait)
                )
                if not ask.shadow:
                    if rank < least:
                        best, least = place, rank
                elif rule.quota_group not in laxest or rank > laxest[rule.quota_group][0]:
                    laxest[rule.quota_group] = rank, place
        for rank, place in laxest.values():
            if rank < least:
                best, least = place, rank
        return best

    @property
    def owed(self) -> list[Ask]:
        """What the store has charged to a denied request: that several quotas deny together it can't know."""
        asked = [(charge.ask, outcome) for charge, outcome in zip(self.charges, self.outcomes, strict=True)]
        if self.allowed or any(not outcome.allowed and not ask.shadow for ask, outcome in asked):
            return []
        return [ask for ask, outcome in asked if outcome.allowed and ask.cost]

    @property
    def reason(self) -> Reason | None:
        """Why the request is denied; None where it is not."""
        if self.allowed:
            return None
        return self._denied or ("banned" if self.banned else "limited")

    @property
    def shown(self) -> int:
        """The place of the counter that headers speak of where the rule that binds is hidden; -1: of none.

        A denial has nothing to tell but the rule that denies.
        """
        if not self.allowed:
            return -1
        return min(
            [place for place, (rule, ask) in enumerate(self.charges) if not (ask.shadow or rule.hidden)],
            key=lambda place: self.outcomes[place].remaining - (place in self.over),
            default=-1,
        )

    @property
    def rule(self) -> Rule | None:
        """The rule that binds."""
        return self.charges[self.binding].rule if self.binding >= 0 else None

    @property
    def limit(self) -> int | None:
        """The limit that binds."""
        return self.charges[self.binding].ask.quota.shown_limit if self.binding >= 0 else None

    @property
    def outcome(self) -> Outcome | None:
        """What the counter that binds said."""
        return self.outcomes[self.binding] if self.binding >= 0 else None

    def binds_more_than(self, other: "Verdict") -> bool:
        """True where a client who was allowed by both had better be told of this one."""
        if self.binding < 0 or other.binding < 0:
            return self.binding >= 0
        return self.outcomes[self.binding].remaining <= other.outcomes[other.binding].remaining

    @property
    def banned(self) -> bool:
        """Whether a ban stands in the way."""
        if self.allowed:
            return False
        said = zip(self.charges, self.outcomes, strict=True)
        return any(type(outcome) is Banned and not charge.ask.shadow for charge, outcome in said)

    @property
    def decision(self) -> Decision:
        """The same, as the app sees it."""
        decision = self._decision
        if decision is None:
            decision = self._decision = self._decided()
        return decision

    def _decided(self) -> Decision:
        outcomes, allowed = self.outcomes, self.allowed
        if len(outcomes) == 1 and not self.shadowed:  # its policy tells all
            told = self._told(0, outcomes[0])
            policy = _decision(told)
            told[_POLICIES] = (policy,)
            return _decision(told)
        policies = tuple([_decision(self._told(place, outcome)) for place, outcome in enumerate(outcomes)])
        reason = None if allowed else self.reason
        if self.binding < 0:
            wait = math.inf if reason == "blocked" else self.wait / SECOND
            return Decision(allowed, retry_after=wait, policies=policies, reason=reason)
        _, rule, limit, remaining, reset_after, retry_after, _, reset_at, over, _, _, _ = policies[self.binding]
        whole = (
            allowed,
            rule,
            limit,
            remaining,
            reset_after,
            retry_after,
            self.delay / SECOND,
            reset_at,
            over,
            policies,
            not allowed and self.banned,
            reason,
        )
        return _decision(whole)

    def _told(self, place: int, outcome: Outcome) -> list[Any]:
        """The fields of a Decision, of one counter alone."""
        allowed, remaining, reset_after, retry_after, delay = outcome
        rule, ask = self.charges[place]
        quota = ask.quota
        banned = type(outcome) is Banned
        return [
            allowed,
            rule.name,
            quota.shown_limit,
            remaining,
            reset_after / SECOND,
            math.inf if retry_after == NEVER else retry_after / SECOND,
            delay / SECOND,
            (self.now + reset_after) / SECOND,
            quota.over if place in self.over else None,
            (),
            banned,
            None if allowed else "banned" if banned else "limited",
        ]


def _promised(quota: Quota, outcome: Outcome) -> Outcome:
    """What is said of a limit whose spare part is no promise, least of all that it will be open later."""
    remaining, wait = max(outcome.remaining - quota.spare, 0), outcome.retry_after
    if wait > 0 and quota.over == "elastic":
        # The latest moment: that at which a request passes whatever the load is then.
        wait = wait + quota.spare * -(-quota.period // quota.limit) if quota.burst else outcome.reset_after
    return outcome._replace(remaining=remaining, retry_after=wait)
