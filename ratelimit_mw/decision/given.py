"""What `check` is given: attributes or entries that describe a request, a cost, and the domain to ask."""

from collections.abc import Mapping, Sequence

from ratelimit_mw.identity.entries import EntriesRequest
from ratelimit_mw.identity.request import Request
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet

Given = Mapping[str, str] | Sequence[tuple[str, str]]
"""Attributes by their names, or one list of entries."""

_MOST = 10**15
"""A cost beyond this is as good as this one: no limit comes near, and every store can carry it."""


def described(rules: Rules, given: Given | Request) -> Request:
    """The request that is described; a request is one already."""
    if isinstance(given, Mapping):
        return rules.attributes.given(given)
    return EntriesRequest(given) if isinstance(given, Sequence) else given


def of_domain(rules: Rules, domain: str | None) -> Rules:
    """The rules of one domain, those of a domain that there is not being none; all where none is named."""
    if domain is None:
        return rules
    return rules.of(domain) or RuleSet(
        domain=domain,
        storage=rules.storage,
        client=rules.client,
        response=rules.response,
        attributes=rules.attributes,
        rules=(),
        exempt=(),
    )


def whole(cost: object) -> int:
    """A cost as stores can carry it. Raises ValueError unless it is a whole number from 0 on."""
    if not isinstance(cost, int) or cost < 0:
        raise ValueError(f"cost is {cost!r}: it has to be a whole number from 0 on")
    return min(int(cost), _MOST)
