"""`priority`: which rules say how important a request is, as a rule set of its own that is asked under load only.

Its plan is the rules that speak: the charges have their names and priorities, and are never asked of a store. A last
rule speaks of everything else, so that an empty plan is that of a request which is exempt.
"""

from collections.abc import Sequence
from dataclasses import replace

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.identifier import identifier
from ratelimit_mw.model import Priority, Rule
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.conditions import Matching

PRIORITIES: tuple[Priority, ...] = ("low", "normal", "critical")
"""In ascending order."""

_SPOKEN = (("", NOTHING),)


def speaking(rules: Sequence[CompiledRule], attributes: Attributes) -> tuple[CompiledRule, ...]:
    """The rules of a classifier: those with a priority, and those in whose place they do not apply."""
    stated = [rule for rule in rules if rule.rule.priority is not None]
    ranks = {rule.rank for rule in stated}
    enforced = any(not rule.rule.shadow and not rule.on_demand for rule in stated)
    return (
        *(
            replace(rule, counters=_SPOKEN if rule.rank in ranks else (), tiers=None, cost=0, weigh=None)
            for rule in rules
            if rule.rank in ranks or rule.replaces & ranks
        ),
        CompiledRule(
            rank=len(rules),
            rule=Rule("", shadow=not enforced),
            match=Matching(),
            by=("global",),
            identifiers=(identifier("global", attributes),),
            counters=_SPOKEN,
            tiers=None,
            cost=0,
            replaces=frozenset(),
        ),
    )
