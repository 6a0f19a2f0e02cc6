"""The verdict on a request, made from the outcomes of its counters."""

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Literal, TypeAlias

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.model import (
    NEVER,
    SECOND,
    Ask,
    Banned,
    Charge,
    Decision,
    Outcome,
    Quota,
    Reply,
    Row,
    Rule,
    ServiceReply,
)
from ratelimit_mw.rules.asking import client_of
from ratelimit_mw.stores.base import ReplyFields

_NO_REPLY = Reply(0, ())
_NONE: frozenset[int] = frozenset()
_POLICIES = Decision._fields.index("policies")
_decision = partial(tuple.__new__, Decision)

Reason = Literal["limited", "banned", "unavailable", "blocked", "shed"]
"""Why a request is denied.

* `limited`: a counter is used up.
* `banned`: repeated denials led to a ban.
* `unavailable`: the store is unavailable, and a rule has `on_error: deny`.
* `blocked`: an operator has blocked the client.
* `shed`: the process is overloaded.
"""


class Verdict:
    """What was decided on one request. Times are in microseconds of the store; `decision` has them in seconds.

    Attributes:
        charges: the rules and asks that were decided.
        rows: the outcomes, which may be plain tuples of their fields. One for each charge, without the spare part of a
            throttle, which clients are not shown.
        over: the indices of the counters that admitted from their spare part.
        allowed: whether the request may pass.
        binding: the index of the counter that the headers show: the denying one with the longest wait, otherwise
            the one with the least remaining; -1 if no enforced counter was asked. Of rules that deny only together
            (`Rule.quota_group`), the one with the most remaining is taken.
        delay: how long an admitted request must wait for its turn, in microseconds.
        wait: for a request that no counter denies, how long it is asked to wait, in microseconds; 0 if unknown.
        shadowed: whether a shadow rule would have denied the request.
        simple: whether each counter admits the request below its limit and at once, those of shadow rules included.
        local: whether the local store decided instead of the shared one.
        account: what the request took (`settlement.Account`); None until it is opened.

    Args:
        charges: the charges of the plan.
        reply: the reply of the store; None if it was not asked.
        denied: the reason to deny a request for which no counter was asked; None to go by the counters.
        wait: the attribute of that name.
    """

    # What few verdicts have is a default of the class, because a verdict is made for each request.
    allowed = simple = True
    shadowed = local = False
    binding = delay = wait = 0
    over = _NONE
    account: Any = None
    _denied: Reason | None = None
    _outcomes: Sequence[Outcome] | None = None
    _decision: Decision | None = None

    def __init__(
        self,
        charges: Sequence[Charge],
        reply: tuple[int, Sequence[Row], int | None] | None,
        *,
        denied: Reason | None = None,
        wait: int = 0,
    ) -> None:
        self.now: int
        self.rows: Sequence[Row]
        self.now, self.rows, only = reply or _NO_REPLY
        self.charges = charges = charges if only is None else (charges[only],)
        # Indices and unpacking read a field of a NamedTuple faster than its name.
        if len(self.rows) == 1 and not charges[0][1][3]:
            if charges[0][1][1].spare:
                self._hide_spare()
            ((self.allowed, _, _, _, self.delay),) = self.rows
        else:
            self._denied, self.wait = denied, wait
            for _, ask in charges:
                if ask[1].spare:
                    self._hide_spare()
                    break
            self._bind()
        self.simple = self.allowed and not (self.shadowed or self.delay or self.over)

    def _bind(self) -> None:
        """Find the counter that binds, whether it allows the request, its delay, and whether a shadow rule denies."""
        binding, least, longest_delay, over = -1, math.inf, 0, self.over
        laxest: dict[str, tuple[float, int]] = {}
        for place, (charge, row) in enumerate(zip(self.charges, self.rows, strict=True)):
            rule, (_, _, _, shadow) = charge
            allowed, remaining, _, wait, delay = row
            # The counter with the least left binds. A denial has less than every admission: the longer, the less.
            left: float = remaining - (place in over) if allowed else -math.inf if wait == NEVER else -2 - wait
            if not shadow:
                longest_delay = max(longest_delay, delay) if delay else longest_delay
                if left < least:
                    binding, least = place, left
                continue
            self.shadowed = self.shadowed or not allowed
            group = rule.quota_group
            if group and (group not in laxest or left > laxest[group][0]):
                laxest[group] = left, place
        for left, place in laxest.values():
            if left < least:
                binding, least = place, left
        self.binding = binding
        self.allowed = self._denied is None and (binding < 0 or self.rows[binding][0])
        self.delay = longest_delay if self.allowed else 0

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """The outcomes, one for each charge. They are made of `rows` when they are first read."""
        outcomes = self._outcomes
        if outcomes is None:
            rows: Sequence[Any] = self.rows
            known = len(rows) == 1 and isinstance(rows[0], Outcome)  # mostly one that denies
            outcomes = rows if known else [row if isinstance(row, Outcome) else Outcome(*row) for row in rows]
            self._outcomes = outcomes
        return outcomes

    def show(self, place: int, remaining: int) -> None:
        """Set what remains of the counter at the index `place`, after a charge or a refund."""
        quota = self.charges[place].ask.quota
        outcomes = list(self.outcomes)
        outcomes[place] = outcomes[place]._replace(remaining=min(max(remaining, 0), quota.shown_size))
        self.rows = self._outcomes = outcomes
        self._decision = None

    def _hide_spare(self) -> None:
        pairs = [(charge.ask.quota, outcome) for charge, outcome in zip(self.charges, self.outcomes, strict=True)]
        self.over = frozenset(
            place for place, (quota, outcome) in enumerate(pairs) if outcome.allowed and outcome.remaining < quota.spare
        )
        self.rows = self._outcomes = [
            _without_spare(quota, outcome) if quota.spare else outcome for quota, outcome in pairs
        ]

    @property
    def owed(self) -> list[Ask]:
        """The asks to refund if only a group of rules (`Rule.quota_group`) denies the request.

        The store does not know of these groups, so it has charged the request.
        """
        asked = [(charge.ask, outcome) for charge, outcome in zip(self.charges, self.outcomes, strict=True)]
        if self.allowed or any(not outcome.allowed and not ask.shadow for ask, outcome in asked):
            return []
        return [ask for ask, outcome in asked if outcome.allowed and ask.cost and not ask.quota.overdraft]

    @property
    def reason(self) -> Reason | None:
        """Why the request is denied; None if it is allowed."""
        if self._denied is None and not self.allowed:
            pairs = zip(self.charges, self.outcomes, strict=True)
            banned = any(outcome.reason == "banned" and not charge.ask.shadow for charge, outcome in pairs)
            self._denied = "banned" if banned else "limited"
        return self._denied

    @property
    def shown(self) -> int:
        """The index of the counter that the headers show if the binding rule is hidden; -1 for none.

        It is -1 on a denial, because a denial may only show the rule that denies, and that rule is hidden.
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
        return self.charges[self.binding].ask.quota.shown_size if self.binding >= 0 else None

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the counter that binds."""
        return self.outcomes[self.binding] if self.binding >= 0 else None

    def binds_more_than(self, other: "Verdict") -> bool:
        """Whether the headers should show this verdict rather than `other`, if both allow the request."""
        if self.binding < 0 or other.binding < 0:
            return self.binding >= 0
        return self.outcomes[self.binding].remaining <= other.outcomes[other.binding].remaining

    @property
    def decision(self) -> Decision:
        """The decision for the app, with times in seconds."""
        decision = self._decision
        if decision is None:
            decision = self._decision = self._decided()
        return decision

    def _decided(self) -> Decision:
        rows, allowed = self.rows, self.allowed
        if len(rows) == 1 and self.binding == 0:
            return only_policy(self._fields(0, rows[0]))
        policies = tuple([_decision(self._fields(place, row)) for place, row in enumerate(rows)])
        reason = None if allowed else self.reason
        if self.binding < 0:
            wait = math.inf if reason == "blocked" else self.wait / SECOND
            return Decision(allowed, retry_after=wait, policies=policies, reason=reason)
        binding = policies[self.binding]
        _, rule, limit, remaining, reset_after, retry_after, _, reset_at, over, _, _, used, period = binding
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
            reason,
            used,
            period,
        )
        return _decision(whole)

    def _fields(self, place: int, row: Row) -> list[Any]:
        rule, (_, quota, _, _) = self.charges[place]
        over = quota.over if place in self.over else None
        reason = None if row[0] else self.outcomes[place].reason
        return fields_of(self.now, row, terms_of(rule, quota), over, reason)


Terms: TypeAlias = tuple[str, int, float | None]
"""What a Decision tells about one counter, whatever its state: the rule, the limit, and the period in seconds."""


def terms_of(rule: Rule, quota: Quota) -> Terms:
    """The terms of a counter. Requests in flight have no period."""
    period = None if ALGORITHMS[quota.algorithm].in_flight else quota.period / SECOND
    return rule.name, quota.shown_size, period


def fields_of(now: int, row: Row, terms: Terms, over: str | None = None, reason: str | None = None) -> list[Any]:
    """The fields of a Decision about one counter. `now` is the time of the store, `row` the outcome."""
    allowed, remaining, reset_after, retry_after, delay = row
    rule, limit, period = terms
    return [
        allowed,
        rule,
        limit,
        remaining,
        reset_after / SECOND,
        math.inf if retry_after == NEVER else retry_after / SECOND,
        delay / SECOND,
        (now + reset_after) / SECOND,
        over,
        (),
        reason,
        limit - remaining,
        period,
    ]


def only_policy(fields: list[Any]) -> Decision:
    """The decision on a request with one counter. `fields` are those of its only policy."""
    policy = _decision(fields)
    fields[_POLICIES] = (policy,)
    return _decision(fields)


Conclusion: TypeAlias = Verdict | ReplyFields
"""What is concluded on a request: the verdict, or the reply of the store if a `brief` plan is admitted.

`Plan.verdict_of` makes the verdict of such a reply when it is read, because most apps read none.
"""


class ServiceVerdict(Verdict):
    """The verdict on a request that a service has decided. Its charges are of the rules of the service.

    Args:
        asked: the charges of the plan, whose asks were the questions.
        reply: the reply of the service.
    """

    def __init__(self, asked: Sequence[Charge], reply: ServiceReply) -> None:
        if len(asked) == 1 and asked[0].ask.shadow is False:
            ((rule, ask),), (decision,) = asked, reply.decisions
            self._decision = decision
            allowed, name, limit, remaining, reset_after, _, delay, reset_at, over, _, _, _, period = decision
            if allowed and name is not None and not (delay or over or reply.rules):  # the usual case
                self.charges = _charges_of(name, rule.domain, _USUAL, limit or 0, period, None)
                reset = round(reset_after * SECOND)
                self.rows = ((True, remaining or 0, reset, 0, 0),)
                self.now = round(reset_at * SECOND) - reset
                self.simple = True
                return
        charges: list[Charge] = []
        outcomes: list[Outcome] = []
        denied: Any = None
        now = wait = 0
        for (rule, ask), decision in zip(asked, reply.decisions, strict=True):
            if decision.rule is not None:
                ((known, made),) = _charges(decision, rule, reply)
                key = "" if decision.allowed else client_of(ask.key)
                charges.append(Charge(known, made._replace(key=key, shadow=ask.shadow)))
                outcomes.append(_outcome(decision))
                now = round(decision.reset_at * SECOND) - outcomes[-1].reset_after
            elif not (decision.allowed or ask.shadow):
                denied = decision.reason or "limited"
                wait = 0 if math.isinf(decision.retry_after) else round(decision.retry_after * SECOND)
        if denied is not None:  # without a rule, by which no header could be made
            charges, outcomes = [], []
        super().__init__(charges, Reply(now, outcomes), denied=denied, wait=wait)
        self.over = frozenset(place for place, charge in enumerate(charges) if charge.ask.quota.over)
        self.simple = self.simple and not self.over


def _charges(decision: Decision, asked: Rule, reply: ServiceReply) -> tuple[Charge]:
    """The charge of the rule that a decision of a service names, without a key."""
    facts = reply.rules.get(decision.rule or "")
    said = (facts.get("status"), facts.get("message"), bool(facts.get("hidden"))) if facts else _USUAL
    return _charges_of(decision.rule or "", asked.domain, said, decision.limit or 0, decision.period, decision.over)


_USUAL: "_Said" = (None, None, False)


_Said = tuple[int | None, str | None, bool]
"""The status and the message of a rule's denials, and whether it is hidden."""


@lru_cache(maxsize=1024)
def _charges_of(name: str, domain: str, said: _Said, limit: int, *terms: Any) -> tuple[Charge]:
    status, message, hidden = said
    period, over = terms
    rule = Rule(name, domain=domain, status=status, message=message, hidden=hidden)
    # Refundable, because only the service knows what may open the counter earlier.
    quota = Quota("fixed_window", limit, round((period or 0) * SECOND), refundable=True, over=over)
    return (Charge(rule, Ask("", quota)),)


def _outcome(decision: Decision) -> Outcome:
    """The outcome of the counter that binds."""
    _, _, _, remaining, reset_after, retry_after, delay, *_ = decision
    after = 0 if not retry_after else NEVER if retry_after == math.inf else round(retry_after * SECOND)
    kind = Banned if decision.reason == "banned" else Outcome
    made = decision.allowed, remaining or 0, round(reset_after * SECOND), after, round(delay * SECOND)
    return tuple.__new__(kind, made)


def _without_spare(quota: Quota, outcome: Outcome) -> Outcome:
    """The outcome that clients are shown: without the spare part of the throttle.

    An elastic limit may close at any time, so `retry_after` must not rely on the spare part.
    """
    remaining, wait = max(outcome.remaining - quota.spare, 0), outcome.retry_after
    if wait > 0 and quota.over == "elastic":
        # The latest moment: from then on, a request passes under any load.
        wait = wait + quota.spare * -(-quota.period // quota.limit) if quota.burst else outcome.reset_after
    return outcome._replace(remaining=remaining, retry_after=wait)
