"""Several files of rules at once, each a domain of its own: what they have in common, and all of them in turn."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ratelimit_mw.errors import Problem
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.entries import Entry
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Charge
from ratelimit_mw.rules.features import Features
from ratelimit_mw.rules.overrides import BLOCKED
from ratelimit_mw.rules.plans import Plans
from ratelimit_mw.rules.ruleset import RuleSet


class Domains(Features):
    """The rules of several files. Every file's apply to a request; `of` gives those of one.

    Storage, client and response are the same in all of them, and so is what an attribute's name means.
    """

    def __init__(self, parts: Sequence[RuleSet]) -> None:
        super().__init__(rule for part in parts for rule in part.compiled)
        first = parts[0]
        self.parts = tuple(parts)
        self.domain = first.domain
        self.storage = first.storage
        self.response = first.response
        self.reload = first.reload
        self.source = None
        named = {name: source for part in parts for name, source in part.client.attributes.items()}
        self.client = replace(first.client, attributes=named)
        # Only to read what a request brings: what is hashed is hashed by each domain for itself.
        self.attributes = Attributes(self.client)
        for part in parts:
            for name, _ in part.attributes.awaited:
                self.attributes.reader(name)
        self.rules = tuple(rule for part in parts for rule in part.rules)
        self.load = first.load
        self.defer = first.defer
        self.messages: Domains | None = _of_messages(parts)
        self.plans = _remembering(parts)
        self.warnings = tuple(warning for part in parts for warning in part.warnings)

    def of(self, domain: str) -> RuleSet | None:
        """The rules of one domain, if there is such a one."""
        return next((part for part in self.parts if part.domain == domain), None)

    def plan(self, request: Request, cost: int = 1) -> Sequence[Charge]:
        """See `RuleSet.plan`."""
        charges: list[Charge] = []
        for part in self.parts:
            found = part.plan(request, cost)
            if found is BLOCKED:
                return BLOCKED
            charges += found
        return charges

    def plan_rule(self, name: str, request: Request, cost: int = 1) -> Sequence[Charge] | None:
        """See `RuleSet.plan_rule`; of several domains that have such a rule the first has it."""
        for part in self.parts:
            found = part.plan_rule(name, request, cost)
            if found is not None:
                return found
        return None

    def classify(self, request: Request, name: str | None = None) -> Sequence[Charge] | None:
        """See `RuleSet.classify`. What one domain exempts no other one's priorities make a request that is shed."""
        if name is not None:
            return next((said for part in self.parts if (said := part.classify(request, name)) is not None), None)
        charges: list[Charge] = []
        for part in self.parts:
            found = part.classify(request)
            if found is BLOCKED or not found:
                return found
            charges += found
        return charges

    def plan_entries(self, entries: Sequence[Entry], cost: int = 1) -> Sequence[Charge]:
        """See `RuleSet.plan_entries`."""
        return [charge for part in self.parts for charge in part.plan_entries(entries, cost)]

    def overridden(self, parts: Sequence[RuleSet]) -> "Domains":
        """The same rules, in `parts` that have other overrides."""
        same = copy.copy(self)
        same.parts = tuple(parts)
        same.messages = _of_messages(parts)
        same.plans = _remembering(parts)
        return same

    def concerns(self, request: Request) -> bool:
        """See `RuleSet.concerns`."""
        return any(part.concerns(request) for part in self.parts)


def _of_messages(parts: Sequence[RuleSet]) -> Domains | None:
    limiting = [part.messages for part in parts if part.messages is not None]
    return Domains(limiting) if limiting else None


def _remembering(parts: Sequence[RuleSet]) -> Plans | None:
    return None if any(part.plans is None for part in parts) else Plans([part.attributes for part in parts])


Rules = RuleSet | Domains
"""What a limiter goes by."""


class Examined(NamedTuple):
    """What there is to say of a configuration: its rules, None where it would not load, and why not."""

    rules: Rules | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()
