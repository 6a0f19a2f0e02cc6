"""`name`, `replaces`, `on_demand`, `shadow` and `on_error`: the name of a rule, and when it is enforced."""

from collections.abc import Mapping, Sequence
from typing import Literal

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.limit import is_concurrent
from ratelimit_mw.config.words.storage import POLICIES, STORAGE, STORAGE_ON_ERROR
from ratelimit_mw.errors import nearest, quoted

CHARGED_AT_ONCE = "a rule on demand is charged when the app asks for it"
"""The reason why a rule on demand cannot depend on the response."""


def validate_names(rules: Sequence[Values], names: Sequence[str], replacing: Sequence[int], problems: Problems) -> None:
    """Report duplicate names, and names in `replaces` that cannot be replaced.

    Args:
        rules: The values of the rules.
        names: Their names.
        replacing: The ranks of the rules that replace others.
        problems: Receives the errors.
    """
    first: dict[str, int] = {}
    for rank, name in enumerate(names):
        if name and name in first:
            other = rules[first[name]].place("name")
            hint = f"the other is at line {other.line}" if other.line else f"the other is {other.path}"
            problems.add(rules[rank].place("name"), f"two rules are named {quoted(name)}", hint)
        first.setdefault(name, rank)
    if "" in first:
        return  # a name could not be read; it may be the one that a `replaces` refers to
    replaced = {names[rank]: rules[rank][REPLACES] for rank in replacing}
    for rank in replacing:
        rule = rules[rank]
        for index, name in enumerate(rule[REPLACES]):
            place = rule.place("replaces", index)
            if name == rule[NAME]:
                problems.add(place, "a rule can't replace itself")
            elif name not in first:
                problems.add(place, f"there is no rule {quoted(name)}", nearest(name, first))
            elif rule[NAME] in _reachable(name, replaced):
                problems.add(place, f"this rule and {quoted(name)} replace each other, so neither would ever apply")


def _reachable(name: str, replaced: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the rules that a rule replaces, the rules that these replace, and so on."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        new = set(replaced.get(ahead.pop(), ())) - found
        found |= new
        ahead += new
    return found


def _validate_on_demand(rule: Values, problems: Problems) -> None:
    """Report what a rule cannot have if the app asks for it by name."""
    if not rule[ON_DEMAND]:
        return
    if is_concurrent(rule):
        message = f"a concurrent limit can't be combined with on_demand: {CHARGED_AT_ONCE}, not until the response ends"
        problems.add(rule.place("limit"), message)
    if rule[REPLACES]:
        message = "can't be combined with on_demand: a rule on demand replaces no other rule"
        problems.add(rule.place("replaces"), message, "remove one of the two")


NAME = kinds.name("name", "The rule's name in keys, headers, logs and commands. Unique in its file.", compared=True)

REPLACES = kinds.several(
    "replaces",
    readers.text,
    "The rules that do not apply to a request if this rule does.",
    unset="none",
    empty=True,
    compared=True,
)

ON_DEMAND = kinds.flag(
    "on_demand", "The rule applies only if the app asks for it by name.", validate=_validate_on_demand
)


SHADOW: Word[bool] = kinds.flag(
    "shadow",
    "The rule is counted and reported, but never enforced.",
    compared=True,
    fields=lambda rule, file: {"shadow": rule[SHADOW] or file[SHADOW_FILE]},
)

SHADOW_FILE: Word[bool] = kinds.flag(
    "shadow", "No rule of this file is enforced. Every rule is only counted and reported."
)

ON_ERROR: Word[Literal["allow", "deny", "local"] | None] = kinds.choice(
    "on_error",
    POLICIES,
    None,
    "The decision while the store is unavailable.",
    unset="that of `storage`",
    compared=True,
    fields=lambda rule, file: {"on_error": rule[ON_ERROR] or file[STORAGE][STORAGE_ON_ERROR]},
)
