"""Explanations asked for: what a request would ask, a peek at these counters, and what that comes to."""

from ratelimit_mw.decision.engine import Engine, idle
from ratelimit_mw.decision.explanation import Explanation, explain
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Reply
from ratelimit_mw.rules.domains import Rules


class Question:
    """Why `engine` would decide on a request as it would; `asks` are what to peek at, maybe nothing."""

    def __init__(self, engine: Engine, rules: Rules, request: Request, cost: int) -> None:
        self._engine = engine
        self._rules = rules
        self._request = request
        self._cost = cost
        self._plan = engine.planner.plan(rules, request, cost)
        self.asks = self._plan.asks

    def answered(self, reply: Reply | None) -> Explanation:
        """The explanation, by what the store said."""
        return self._explained(Verdict(self._plan.charges, reply) if self.asks else idle(self._plan))

    def unanswered(self, error: StoreUnavailable) -> Explanation:
        """The explanation where the store said nothing."""
        return self._explained(self._engine.without_store(self._plan.charges, commit=False), str(error))

    def _explained(self, verdict: Verdict, error: str = "") -> Explanation:
        note, priority = self._engine.planner.switch.note, ""
        shed: Verdict | None = None
        if self._rules.shedding:
            standing = self._engine.planner.shedder.standing(self._rules, self._request, commit=False)
            priority = str(standing or "")
            shed = standing and standing.denial
        parts, request, cost = self._rules.parts, self._request, self._cost
        return explain(parts, request, cost, verdict, note=note, error=error, priority=priority, shed=shed)
