"""Compiled rules and overrides: the conditions of `match`, the counters, and the exceptions for single clients."""

import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote

from ratelimit_mw.algorithms import ALGORITHMS, NOTHING
from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import Invalid, nearest
from ratelimit_mw.identity.address import Networks
from ratelimit_mw.identity.attributes import Attributes, Reader, canonical_name
from ratelimit_mw.identity.fields import TOO_MANY
from ratelimit_mw.identity.identifier import NO_PARAMETERS, Identifier, attributes_of, encoder, identifier
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, Ask, Charge, Quota, Rule
from ratelimit_mw.rules.path_templates import Template

T = TypeVar("T")

_SHOWN = ("the method", "the address", "host", "tier")
"""Conditions whose actual values an explanation may show. Other values may be secret."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a `match`, except the path. The plan tests it, and an explanation describes it."""

    name: str
    """What is tested, in words for an explanation."""
    wanted: tuple[str, ...]
    """The accepted values, for an explanation."""
    holds: Callable[[Request], bool]
    """Returns True if a request meets the condition."""
    read: Reader
    """Reads the actual value from a request."""
    absent: str = "absent"
    """What an explanation says if the request has no value."""

    def found(self, request: Request) -> str:
        """Describe the actual value for an explanation. A value that may be secret is shown as "another"."""
        value = self.read(request)
        if value is None:
            return self.absent
        if value in TOO_MANY:
            return "one of too many values"
        return value if self.name in _SHOWN or value in self.wanted else "another"


def methods(allowed: tuple[str, ...]) -> Condition:
    """Return a condition that the method is one of these. GET includes HEAD."""
    counted = frozenset(allowed) | ({"HEAD"} if "GET" in allowed else set())
    return Condition("the method", allowed, lambda request: request.method in counted, _method, "not given")


def _method(request: Request) -> str | None:
    return request.method or None


def values(name: str, read: Reader, wanted: tuple[str, ...]) -> Condition:
    """Return a condition that the attribute of this name has one of these values, or too many values."""
    known = frozenset((*wanted, *TOO_MANY))
    return Condition(name, wanted, lambda request: read(request) in known, read)


def within(read: Reader, networks: tuple[str, ...]) -> Condition:
    """Return a condition that an address is in one of these networks."""
    table: Networks[bool] = Networks()
    table.add(networks, True)
    return Condition("the address", networks, lambda request: bool(table.find(read(request))), read, "unknown")


class Exact(NamedTuple):
    """A condition that an attribute has one of these values. `name` is the attribute's name, for an explanation."""

    read: Reader
    values: tuple[str, ...]
    name: str


class Matching(NamedTuple):
    """A compiled `match`. All its parts must hold. An empty part holds for every request."""

    templates: tuple[Template, ...] = ()
    exact: tuple[Exact, ...] = ()
    networks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()

    def conditions(self, address: Reader) -> tuple[Condition, ...]:
        """Return all conditions except the path, the cheapest first. `address` reads the client's whole address."""
        return (
            *([methods(self.methods)] if self.methods else ()),
            *([within(address, self.networks)] if self.networks else ()),
            *(values(each.name, each.read, each.values) for each in self.exact),
        )

    def split(self) -> "tuple[Matching, Matching]":
        """Return the part that the index looks up, and the rest, whose conditions are tested one by one."""
        if self.templates:
            return Matching(self.templates), self._replace(templates=())
        if self.exact:
            return Matching(exact=self.exact[:1]), self._replace(exact=self.exact[1:])
        return Matching(networks=self.networks), self._replace(networks=())


ANY = Matching()
"""The `match` that holds for every request."""

CostReader = Callable[[Request], int]
"""Reads the cost of a request."""

Counter = tuple[str, Quota]
"""A counter: its key up to the opening brace, inclusive, and its quota. The identity completes the key."""

Tiers = Mapping[str | None, tuple[Counter, ...]]
"""The counters for each tier that the limit names."""


LimitReader = Callable[[Request], tuple[Counter, ...]]
"""Returns the counters of a request, by the limit that a function of the app returns. Never raises."""


NO_RULES: frozenset[int] = frozenset()
"""The `replaces` of a rule that replaces no other. Python makes a new object for each empty frozenset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRule:
    """One compiled rule.

    A rule set has thousands of them, and the garbage collector visits every object that has references to others.
    Therefore the fields are numbers, texts, tuples of texts, and objects that many rules share.
    """

    rank: int
    """Its place in the file."""
    rule: Rule
    templates: tuple[Template, ...] = ()
    """The first part of the `match`."""
    further: Matching
    """The other parts of the `match`. Most rules have none, and share an empty one."""
    by: tuple[str, ...]
    """The entries of `by`."""
    identifiers: tuple[Identifier, ...]
    """The compiled entries of `by`, in the same order."""
    keys: tuple[str, ...]
    """The first elements of the `counters`."""
    limits: tuple[Quota, ...]
    """The second elements of the `counters`. Rules with equal limits share them."""
    tiers: Tiers | None = None
    """The counters of the other clients. None if the limit does not depend on the tier."""
    cost: int = 0
    """The cost of a request. It is ignored if the rule has `read_cost`."""
    replaces: frozenset[int] = NO_RULES
    """The ranks of the rules that do not apply where this rule applies."""
    read_cost: CostReader | None = None
    """Reads the cost from the request. None if the cost is fixed."""
    read_limit: LimitReader | None = None
    """Returns the counters of a request, if a function of the app returns its limit. The rule then has no others."""
    on_demand: bool = False
    """The rule applies only if the app asks for it by name."""
    conditions: tuple[Condition, ...] = ()
    """The conditions that the index does not check. Only a rule that the index has found has them."""
    sample: Quota | None = None
    """A quota with the effects that another limit of the rule may have: that of an override or of `read_limit`, or one
    that the app sets. None if the rule's own limits have the same effects."""

    @property
    def needs_routes(self) -> bool:
        """Whether the rule counts by the app's own routes."""
        return not self.templates and any("route" in attributes_of(entry) for entry in self.by)

    @property
    def match(self) -> Matching:
        """To which requests the rule applies."""
        return self.further._replace(templates=self.templates)

    @property
    def counters(self) -> tuple[Counter, ...]:
        """The counters of clients without a tier, or with a tier that the limit does not name."""
        return tuple(zip(self.keys, self.limits, strict=True))

    @property
    def quotas(self) -> list[Quota]:
        """The quotas of all counters of all tiers."""
        if self.read_limit is not None and self.sample is not None:
            return [self.sample]
        return [*self.limits, *(quota for counters in (self.tiers or {}).values() for _, quota in counters)]

    @property
    def probe(self) -> "CompiledRule":
        """The rule with one counter that has no limit. Its charges show whether it has a counter for a request."""
        return replace(
            self, keys=(self.rule.name,), limits=(NOTHING,), tiers=None, cost=0, read_cost=None, read_limit=None
        )


def quotas_of(rules: Iterable[CompiledRule]) -> tuple[Quota, ...]:
    """Return the quotas and the samples of all rules, each object once. Rules with equal quotas share them."""
    found: dict[int, Quota] = {}
    for rule in rules:
        for quota in rule.quotas:
            found[id(quota)] = quota
        if rule.sample is not None:
            found[id(rule.sample)] = rule.sample
    return tuple(found.values())


class NamedRule(NamedTuple):
    """What the app asks for by name: a rule, and what the app decides in its place.

    Attributes:
        name: The name of the rule.
        key: What is counted in place of the rule's `by`. "" counts nothing, as for an absent attribute. None: `by`.
        limit: The text of a limit in place of the rule's `limit`. None: the rule's own.
    """

    name: str
    key: str | None = None
    limit: str | None = None


TEST_WORKER = "RATELIMIT_MW_TEST_WORKER"
"""The variable of the environment that names a worker of a test run. `ratelimit_mw.testing` sets it."""


def key_of_domain(domain: str) -> str:
    """Return how the keys of a domain begin. The workers of a test run share no keys, nor do the processes they start.

    An escaped domain has no "@", so that no domain has the keys of a worker.
    """
    worker = os.environ.get(TEST_WORKER)
    return f"{escaped(domain)}@{escaped(worker)}" if worker else escaped(domain)


def escaped(text: str) -> str:
    """Return `text` escaped for the key of a counter, so that it contains no character with a meaning in keys."""
    return quote(text, safe="").replace("~", "%7E")


KINDS = ("limit", "exempt", "block")
"""The kinds of overrides: a different limit, no limit, or no access."""

_Counters = tuple[tuple[str, Quota], ...]
_NOT_CLIENTS = ("route", "global")  # words of `by` that do not identify a client


class CompiledOverride(NamedTuple):
    """One override for one client.

    `kind` is one of `KINDS`. The override ends at `until` (microseconds since the epoch, or `NEVER`). Only a `limit`
    has `rule` and `counters`: the name of the rule, and the rule's counters for this identity.
    """

    identity: str
    kind: str
    until: int = NEVER
    rule: str = ""
    counters: _Counters = ()


BLOCKED: tuple[Charge, ...] = (Charge(Rule("block"), Ask("", NOTHING)),)
"""The plan of a blocked client. Compare it with `is`. It is never sent to a store."""


def kind_of(rule: str | None, limit: object, *, block: bool, exempt: bool) -> str:
    """Return the kind of an override. Raises `Invalid` if the arguments do not describe exactly one override."""
    kinds = [kind for kind, is_set in (("limit", limit is not None), ("block", block), ("exempt", exempt)) if is_set]
    if len(kinds) != 1:
        raise Invalid("an override must have exactly one of limit, block and exempt")
    if kinds[0] == "limit" and rule is None:
        raise Invalid("a limit needs the name of its rule", "add rule")
    if kinds[0] != "limit" and rule is not None:
        raise Invalid(f"{kinds[0]} can't be combined with rule: it applies to all rules", "remove rule")
    return kinds[0]


def identity_of(client: Mapping[str, str], attributes: Attributes, kind: str = "") -> str:
    """Return the identity of the client with these attributes, as counters' keys have it.

    Raises ValueError, with a message for the user, if the attributes do not identify a client, or if they name a
    network and the `kind` of the override is `limit`.
    """
    if kind == "limit" and names_network(client):
        raise ValueError("the client of a limit must be a single address; a network can only be exempt or blocked")
    if not client:
        raise ValueError("an override needs a client, such as ip=192.0.2.1 or user=alice")
    parts = []
    for written, value in client.items():
        name = canonical_name(written)
        if name in _NOT_CLIENTS or name.startswith("path:") or not attributes.known(name):
            names = [known for known in attributes.names() if known not in ("remote_address", "path:N")]
            raise ValueError(f"{written!r} does not identify a client ({nearest(written, names)})")
        if not value.strip():
            raise ValueError(f"{written} is empty")
        parts.append(_address(value, attributes) if name == "ip" else encoder(name, attributes)(value))
    if len(parts) > 1 and names_network(client):
        raise ValueError("a network can't be combined with further attributes")
    return "+".join(sorted(parts))


def names_in(identity: str) -> list[str]:
    """Return the names of the attributes in an identity."""
    return [unquote(part.partition("=")[0]) for part in identity.split("+")]


def names_network(client: Mapping[str, str]) -> bool:
    """Return True if the attributes name a network instead of one client."""
    return any("/" in value for name, value in client.items() if canonical_name(name) == "ip")


def _address(value: str, attributes: Attributes) -> str:
    """Return the identity of an address or a network. Raises ValueError if the value is neither."""
    if "/" in value:
        try:
            return f"ip={ip_network(value)}"
        except ValueError:
            raise ValueError(f"{value!r} is not a network (for example 192.0.2.0/24)") from None
    network = attributes.network(value)
    if network is None:
        raise ValueError(f"{value!r} is not an address (for example 192.0.2.1)")
    return f"ip={network}"


class Overrides:
    """The overrides of one domain, ready to be asked.

    Args:
        overrides: the overrides. Of two limits for the same rule and identity, the later one counts.
        attributes: the attributes of the same rules file.
        clock: tells which overrides have ended.
    """

    def __init__(self, overrides: Iterable[CompiledOverride], attributes: Attributes, clock: Clock) -> None:
        self._now = clock.now
        self.in_flight = False
        """Whether one of the limits is for requests in flight."""
        self._limits: dict[tuple[str, str], CompiledOverride] = {}
        lists: dict[str, list[CompiledOverride]] = {"block": [], "exempt": []}
        for override in overrides:
            if override.kind == "limit":
                self.in_flight |= any(ALGORITHMS[quota.algorithm].in_flight for _, quota in override.counters)
                for identity in _permutations(override.identity):
                    self._limits[override.rule, identity] = override
            else:
                lists[override.kind].append(override)
        self._blocked = _Clients(lists["block"], attributes) if lists["block"] else None
        self._exempt = _Clients(lists["exempt"], attributes) if lists["exempt"] else None

    def blocks(self, request: Request) -> bool:
        """Return True if the client is blocked."""
        return self._blocked is not None and self._blocked.contain(request, self._now)

    def exempts(self, request: Request) -> bool:
        """Return True if the client is exempt from all rules."""
        return self._exempt is not None and self._exempt.contain(request, self._now)

    def counters(self, rule: str, identity: str, usual: _Counters) -> _Counters:
        """Return the counters of `rule` for an identity: those of its override, or the `usual` ones."""
        override = self._limits.get((rule, identity))
        return usual if override is None or not _is_active(override, self._now) else override.counters


class _Clients:
    """A list of clients. Finding one takes one look-up for each set of attributes that the clients are named by."""

    def __init__(self, overrides: Iterable[CompiledOverride], attributes: Attributes) -> None:
        self._address = attributes.address
        self._networks: Networks[CompiledOverride] = Networks()
        self._groups: dict[str, tuple[Identifier, dict[str, CompiledOverride]]] = {}
        for override in overrides:
            identity = override.identity
            if identity.startswith("ip=") and "/" in identity and "+" not in identity:  # as every IPv6 client
                self._networks.add([identity.removeprefix("ip=")], override)
                continue
            by = "+".join(names_in(identity))
            if by not in self._groups:
                self._groups[by] = identifier(by, attributes), {}
            self._groups[by][1][identity] = override

    def contain(self, request: Request, now: Callable[[], int]) -> bool:
        """Return True if an active override names the client of this request."""
        for by, (identify, overrides) in self._groups.items():
            override = overrides.get(identify(request, NO_PARAMETERS, "") or "")
            if override is not None and _is_active(override, now):
                return True
            if request.several and any(request.values.get(name) in TOO_MANY for name in attributes_of(by)):
                return any(_is_active(each, now) for each in overrides.values())
        if self._networks:
            return any(_is_active(override, now) for override in self._networks.find(self._address(request)))
        return False


def _is_active(override: CompiledOverride, now: Callable[[], int]) -> bool:
    return override.until == NEVER or now() < override.until


def _permutations(identity: str) -> Iterable[str]:
    """Return an identity with its parts in every order, because a rule's `by` may have any order."""
    return map("+".join, itertools.permutations(identity.split("+")))
