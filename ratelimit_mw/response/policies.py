"""A limit as the IETF's draft speaks of it: a policy with a name, and what of it is left.

draft-ietf-httpapi-ratelimit-headers-11; its fields are lists of strings with parameters (RFC 9651).
"""

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.model import NEVER, SECOND, Outcome, Quota, Rule
from ratelimit_mw.units import spell_period

_MOST_KNOWN = 1_000
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class Policy(NamedTuple):
    """One policy: its `name`, what is stated of it (an item of RateLimit-Policy), and how that of RateLimit begins.

    `full` is what a bucket holds and `interval` (microseconds) the time in which one of it comes back; both are 0 for
    other algorithms. What is in flight comes back at no known time: it is not `timed`.
    """

    name: str
    stated: str
    begins: str
    full: int = 0
    interval: int = 0
    timed: bool = True

    def stands(self, outcome: Outcome) -> str:
        """The item of RateLimit; its `t`, in whole seconds, is left out where nothing tells when more comes back."""
        item = f"{self.begins}{outcome.remaining}"
        if not self.timed or outcome.retry_after == NEVER:
            return item
        return f"{item};t={-(-self._until_more(outcome) // SECOND)}"

    def _until_more(self, outcome: Outcome) -> int:
        _, remaining, reset_after, retry_after, _ = outcome
        if not outcome.allowed:  # Retry-After must not speak of an earlier moment
            return min(reset_after, retry_after)
        if not self.interval or not reset_after:
            return reset_after
        soon = (reset_after - 1) % self.interval + 1
        return soon if remaining else max(soon, reset_after - (self.full - 1) * self.interval)


class Policies:
    """The policies of the rules that requests meet, each made when it is first met."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Rule, Quota, Policy]] = {}

    def of(self, rule: Rule, quota: Quota) -> Policy:
        """The policy of a rule's limit."""
        # By identity, for hashing either would take longer than all else here; what is remembered is held, so that
        # no other takes its place in memory.
        key = id(rule), id(quota)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:  # limits of single clients, and by the load, come and go
                self._known.clear()
            known = self._known[key] = rule, quota, _policy(rule, quota)
        return known[2]

    def told(self, verdict: Verdict) -> dict[str, tuple[Policy, Outcome]]:
        """What a client is told: each policy by its name, in the order of the file, and how it stands.

        Of several counters of one policy (`by: [ip, user]`) it is told of the tightest.
        """
        told: dict[str, tuple[Policy, Outcome]] = {}
        for rule, quota, outcome in _visible(verdict):
            policy = self.of(rule, quota)
            other = told.get(policy.name)
            if other is None or _tightness(outcome) < _tightness(other[1]):
                told[policy.name] = policy, outcome
        return told

    def violated(self, verdict: Verdict) -> list[str]:
        """The names of the policies that deny."""
        return list(
            dict.fromkeys(
                self.of(rule, quota).name for rule, quota, outcome in _visible(verdict) if not outcome.allowed
            )
        )


def _visible(verdict: Verdict) -> Iterator[tuple[Rule, Quota, Outcome]]:
    for place, ((rule, ask), outcome) in enumerate(zip(verdict.charges, verdict.outcomes, strict=True)):
        if not rule.hidden and (not ask.shadow or place == verdict.binding):
            yield rule, ask.quota, outcome


def _tightness(outcome: Outcome) -> tuple[bool, int, int]:
    return outcome.allowed, outcome.remaining, -outcome.reset_after


def _policy(rule: Rule, quota: Quota) -> Policy:
    concurrent = ALGORITHMS[quota.algorithm].in_flight
    name = rule.name
    if rule.several:
        name += " concurrent" if concurrent else f" per {spell_period(quota.period)}"
    name = _printable(name)
    item = _string(name)
    if concurrent:
        return Policy(name, f'{item};q={quota.told};qu="concurrent-requests"', f"{item};r=", timed=False)
    stated = f"{item};q={quota.told};w={-(-quota.period // SECOND)}"
    if not quota.burst:
        return Policy(name, stated, f"{item};r=")
    return Policy(name, stated, f"{item};r=", quota.burst - quota.spare, -(-quota.period // quota.limit))


def _printable(name: str) -> str:
    """`name` in the characters of a String: what is not printable ASCII is written in percent signs, as in a URL."""
    return quote(name, _PRINTABLE, errors="replace")


def _string(text: str) -> str:
    """A String of RFC 9651."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
