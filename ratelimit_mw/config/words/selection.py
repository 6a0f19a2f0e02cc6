"""`name`, `replaces`, `on_demand`, `shadow`, `on_error`: which rule it is, and whether it is enforced."""

from collections.abc import Mapping, Sequence
from typing import Literal

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Place, Problems
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.limit import is_concurrent
from ratelimit_mw.config.words.storage import POLICIES, STORAGE, STORAGE_ON_ERROR
from ratelimit_mw.errors import nearest, quoted

CHARGED_AT_ONCE = "an app that asks for a rule by its name is charged at once"
"""Why a rule on demand can't wait for a response."""


def validate_names(rules: Sequence[Values], problems: Problems) -> None:
    """Report names that two rules have, and names in `replaces` that make no sense."""
    first: dict[str, Place] = {}
    for rule in rules:
        name, place = rule[NAME], rule.place("name")
        if name and name in first:
            line = first[name].line
            hint = f"the other is at line {line}" if line else f"the other is {first[name].path}"
            problems.add(place, f"two rules are named {quoted(name)}", hint)
        first.setdefault(name, place)
    if "" in first:
        return  # the name that a `replaces` speaks of may be the one that could not be read
    replaced = {rule[NAME]: rule[REPLACES] for rule in rules}
    for rule in rules:
        for index, name in enumerate(rule[REPLACES]):
            place = rule.place("replaces", index)
            if name == rule[NAME]:
                problems.add(place, "a rule can't replace itself")
            elif name not in first:
                problems.add(place, f"there is no rule {quoted(name)}", nearest(name, first))
            elif rule[NAME] in _reachable(name, replaced):
                problems.add(place, f"this rule and {quoted(name)} replace each other, so neither would ever apply")


def _reachable(name: str, replaced: Mapping[str, tuple[str, ...]]) -> set[str]:
    """The rules that a rule replaces, those that these replace, and so on."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        new = set(replaced.get(ahead.pop(), ())) - found
        found |= new
        ahead += new
    return found


def _validate_on_demand(rule: Values, problems: Problems) -> None:
    if not rule[ON_DEMAND]:
        return
    if is_concurrent(rule):
        message = f"not with on_demand: {CHARGED_AT_ONCE}, and nothing is held until a response ends"
        problems.add(rule.place("limit"), message)
    if rule[REPLACES]:
        message = "a rule that applies on demand only stands in for no other"
        problems.add(rule.place("replaces"), message, "leave one of the two out")


NAME: Word[str] = Word(
    key="name",
    read=readers.name,
    default="",
    schema={**kinds.TEXT, "minLength": 1, "maxLength": readers.LONGEST_NAME},
    about="The rule's name: in keys, headers, logs and commands. Unique in its file.",
    required=True,
    compared=True,
)

REPLACES = kinds.several(
    "replaces",
    readers.text,
    "The rules that do not apply where this one does.",
    empty=True,
    compared=True,
)

ON_DEMAND = kinds.flag(
    "on_demand", "The rule applies only where the app asks for it by its name.", validate=_validate_on_demand
)


SHADOW: Word[bool] = kinds.flag(
    "shadow",
    "The rule is counted and reported, and never enforced.",
    compared=True,
    fields=lambda rule, file: {"shadow": rule[SHADOW] or file[SHADOW_FILE]},
)

SHADOW_FILE: Word[bool] = kinds.flag(
    "shadow", "Nothing in this file is enforced: every rule is counted and reported only."
)

ON_ERROR: Word[Literal["allow", "deny", "local"] | None] = kinds.choice(
    "on_error",
    POLICIES,
    None,
    "What holds while the store is unavailable; that of storage, if it is not set.",
    compared=True,
    fields=lambda rule, file: {"on_error": rule[ON_ERROR] or file[STORAGE][STORAGE_ON_ERROR]},
)
