"""Decides on the requests of a log by one set of rules, and counts what the rules do."""

from collections.abc import Callable
from operator import itemgetter

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.foresight.clients import namer
from ratelimit_mw.foresight.logs.entry import Entry
from ratelimit_mw.foresight.outcome import Denial, Outcome
from ratelimit_mw.foresight.requests import Requests
from ratelimit_mw.foresight.simulation import Simulation
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Charge
from ratelimit_mw.rules.compiled import BLOCKED

_admitted = itemgetter(0)
"""Reads `Outcome.allowed` of a counter, in a fifth of the time of its name."""


class Decider:
    """Decides on requests by one set of rules, and counts the result in `outcome`.

    Args:
        simulation: The engine with the rules.
        requests: Makes the requests.
        hashed: Show clients only as hashes.
    """

    def __init__(self, simulation: Simulation, requests: Requests, *, hashed: bool) -> None:
        rules = [rule for part in simulation.rules.parts for rule in part.rules]
        self.outcome = outcome = Outcome(rules)
        """What the rules did so far."""
        self.on_denial: Callable[[Denial], None] | None = None
        """Is called with each denial."""
        self.requests = requests
        """Makes the requests of these rules."""
        self._rules = rules
        self._places = {id(rule): place for place, rule in enumerate(rules)}
        """The places of the rules by the identities of their objects: hashing a rule takes much longer."""
        self._results = {id(rule): outcome.rules[place] for place, rule in enumerate(rules)}
        self._simulation = simulation
        self._name = namer(simulation.rules, hashed=hashed)

    def decide(self, entry: Entry, request: AsgiRequest | None = None) -> tuple[Verdict, AsgiRequest]:
        """Decide on the request of a line, and count the result. Requests must be in order of time.

        Args:
            entry: The line.
            request: Its request, if it is made already.
        """
        request = self.requests.make(entry) if request is None else request
        charges, verdict = self._simulation.decide(entry, request)
        self.outcome.requests += 1
        last = None
        for charge in charges:
            rule = charge[0]
            if rule is not last:  # the counters of one rule follow each other
                last = rule
                if charges is not BLOCKED:
                    self._results[id(rule)].asked += 1
        if (
            not verdict.allowed
            or verdict.over
            or verdict.delay
            or (verdict.shadowed and not all(map(_admitted, verdict.outcomes)))
        ):
            self._count(entry, request, verdict)
        return verdict, request

    def name_of(self, verdict: Verdict, request: Request) -> str:
        """Return the name of the client of a request that was denied."""
        return self._name(client_of(verdict, request), request)

    def _count(self, entry: Entry, request: Request, verdict: Verdict) -> None:
        """Count a verdict that is more than an admission."""
        if not verdict.allowed:
            outcome = self.outcome
            outcome.denied += 1
            outcome.reasons[verdict.reason or "limited"] += 1
            outcome.limited.add(client_of(verdict, request), entry.at)
        counted: set[int] = set()
        for place, (charge, decided) in enumerate(zip(verdict.charges, verdict.outcomes, strict=True)):
            rule = charge.rule
            result = self._results[id(rule)]
            if decided.allowed:
                result.over += place in verdict.over
                result.delayed += bool(decided.delay)
            elif (not rule.quota_group or not verdict.allowed) and id(rule) not in counted:
                counted.add(id(rule))
                self._deny(entry, request, verdict, charge, decided.retry_after)
        if verdict.reason == "blocked" and self.on_denial is not None:
            name = self.name_of(verdict, request)
            self.on_denial(
                Denial(entry.at, name, "", False, "blocked", float("inf"), entry.method, entry.target, entry.status)
            )

    def _deny(self, entry: Entry, request: Request, verdict: Verdict, charge: Charge, retry_after: int) -> None:
        rule, ask = charge
        outcome, result = self.outcome, self._results[id(rule)]
        result.deny(entry.at)
        key = self._places[id(rule)], identity_of(ask.key)
        if outcome.clients.add(key, entry.at):
            result.clients += 1
            if len(outcome.names) > 2 * len(outcome.clients):  # most of them have lost their place in the table
                outcome.names = {each: name for each, name in outcome.names.items() if each in outcome.clients}
            outcome.names[key] = self._name(key[1], request)
        if self.on_denial is not None:
            reason = verdict.reason if not verdict.allowed and not ask.shadow else "limited"
            wait = float("inf") if retry_after < 0 else retry_after / 1e6
            self.on_denial(
                Denial(
                    entry.at,
                    outcome.names[key],
                    rule.name,
                    rule.shadow,
                    reason or "limited",
                    wait,
                    entry.method,
                    entry.target,
                    entry.status,
                )
            )


def identity_of(key: str) -> str:
    """Return the identity in the key of a counter."""
    return key[key.index("{") + 1 : -1]


def client_of(verdict: Verdict, request: Request) -> str:
    """Return the identity of the client of a request that was denied, as the denying counter has it."""
    if verdict.binding >= 0:
        return identity_of(verdict.charges[verdict.binding].ask.key)
    return f"ip={request.values.get('ip') or request.peer or '?'}"
