"""The header lines that tell a client where it stands: X-RateLimit, and the two fields of the IETF's draft."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.model import SECOND
from ratelimit_mw.response.policies import Policies

_Text = TypeVar("_Text", bound=str | bytes)


class RateFields(Generic[_Text]):
    """The lines of these `groups` of headers, "x-ratelimit" and "ratelimit", in a shell's text or bytes.

    With `epoch`, X-RateLimit-Reset is a time of day, else a time from now; RateLimit always tells a time from now.
    """

    def __init__(
        self,
        groups: Sequence[str],
        policies: Policies,
        *,
        epoch: bool,
        name: Callable[[str], _Text],
        value: Callable[[str], _Text],
    ) -> None:
        self._classic = "x-ratelimit" in groups
        self._draft = "ratelimit" in groups
        self._policies = policies
        self._epoch = epoch
        self._value = value
        self._limit, self._remaining, self._reset, self._over = (
            name(f"X-RateLimit-{word}") for word in ("Limit", "Remaining", "Reset", "Over")
        )
        self._policy, self._standing = name("RateLimit-Policy"), name("RateLimit")
        self.wanted = self._classic or self._draft
        """Whether there are any."""
        classic, draft = (self._limit, self._remaining, self._reset), (self._policy, self._standing)
        self.names = frozenset(
            field.lower() for field in (*(classic if self._classic else ()), *(draft if self._draft else ()))
        )
        """Their names, in lower case."""

    def lines(self, verdict: Verdict) -> list[tuple[_Text, _Text]]:
        """The lines for a response to this request, for which some rule binds; none where no rule may be spoken of."""
        binding = verdict.binding
        rule, ask = verdict.charges[binding]
        if rule.hidden:
            binding = verdict.shown
            if binding < 0:
                return []
            ask = verdict.charges[binding].ask
        value = self._value
        lines = []
        if self._classic:
            _, remaining, reset, _, _ = verdict.outcomes[binding]
            if self._epoch:
                reset += verdict.now
            lines = [
                (self._limit, value(str(ask.quota.told))),
                (self._remaining, value(str(remaining))),
                (self._reset, value(str(-(-reset // SECOND)))),
            ]
            if binding in verdict.over:
                lines.append((self._over, value(str(ask.quota.over))))
        if self._draft:
            told = self._policies.told(verdict).values()
            lines.append((self._policy, value(", ".join([policy.stated for policy, _ in told]))))
            lines.append((self._standing, value(", ".join([policy.stands(outcome) for policy, outcome in told]))))
        return lines
