"""Find the rules that apply to a request, and the counters that they ask. This is the hot path.

An index looks up the candidates: the rules whose path, first value or network matches. Their remaining conditions
are then tested one by one. `Plans` remembers the counters of requests.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from sys import getsizeof
from typing import Any

from ratelimit_mw.identity.address import Networks
from ratelimit_mw.identity.attributes import Attributes, Reader, canonical_name
from ratelimit_mw.identity.fields import TOO_MANY
from ratelimit_mw.identity.http_request import MOST_BYTES, UNREAD, ReadFields
from ratelimit_mw.identity.identifier import NO_PARAMETERS, Parameters
from ratelimit_mw.identity.path_forms import Forms
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Ask, Charge, Rule
from ratelimit_mw.rules.compiled import CompiledRule, Counter, Matching, Overrides, Tiers
from ratelimit_mw.rules.path_matcher import PathMatcher
from ratelimit_mw.rules.path_templates import Template

_new = tuple.__new__
"""Makes a NamedTuple without a call of its Python-level `__new__`."""


Candidate = tuple[int, CompiledRule, str, Parameters, bool]
"""A rule that the index found: its rank (candidates are sorted by it), the rule, the template that matched, the path
parameters, and whether the match is strict (see `path_matcher.Hit`).
"""


def exemption(candidates: Sequence[Candidate], request: Request) -> int | None:
    """Return the rank of the exemption that applies, or None. Both forms of the path must match it.

    Exemptions have negative ranks, so they come first.
    """
    for rank, candidate, _, _, strict in candidates:
        if rank >= 0:
            return None
        if strict and applies(candidate, request):
            return rank
    return None


def replaced_by(candidates: Sequence[Candidate], request: Request) -> dict[int, str]:
    """Return the ranks of the rules that are replaced, with the name of the first rule that replaces each.

    A rule replaces others if it applies, both forms of the path match it, and it has a counter for the request.
    """
    replaced: dict[int, str] = {}
    for _, candidate, route, parameters, strict in candidates:
        if (
            candidate.replaces
            and strict
            and applies(candidate, request)
            and any(identify(request, parameters, route) is not None for identify in candidate.identifiers)
        ):
            for rank in candidate.replaces:
                replaced.setdefault(rank, candidate.rule.name)
    return replaced


def charges_of(
    candidates: Sequence[Candidate], request: Request, cost: int, tier: Reader | None, overrides: Overrides | None
) -> tuple[Charge, ...]:
    """Return the charges of a request: one for each counter of each rule that applies.

    Args:
        candidates: the rules that the index found, without those that are replaced.
        request: the request.
        cost: the cost that the caller gave. It is multiplied by the cost of the rule.
        tier: reads the tier of the request. None if no limit depends on the tier or on a function.
        overrides: the overrides of the domain. None if there are none.
    """
    found: list[Charge] = []
    for _, compiled, route, parameters, _ in candidates:
        for condition in compiled.conditions:
            if not condition.holds(request):
                break
        else:
            rule, identifiers = compiled.rule, compiled.identifiers
            counters = tuple(zip(compiled.keys, compiled.limits))  # noqa: B905  `strict` takes longer
            charged = cost * (compiled.cost if compiled.read_cost is None else compiled.read_cost(request))
            if tier is not None:
                if compiled.read_limit is not None:
                    counters = compiled.read_limit(request)
                elif compiled.tiers is not None:
                    counters = _of_tier(tier(request), compiled.tiers, counters)
            identities: Iterable[str | None]
            if len(identifiers) == 1:
                identities = (identifiers[0](request, parameters, route),)
            else:  # two entries of `by` may have the same identity; they are then one counter
                identities = dict.fromkeys([identify(request, parameters, route) for identify in identifiers])
            for identity in identities:
                if identity is not None:
                    effective = overrides.counters(rule.name, identity, counters) if overrides else counters
                    for key, quota in effective:
                        found.append(
                            _new(Charge, (rule, _new(Ask, (f"{key}{identity}}}", quota, charged, rule.shadow))))
                        )
    return tuple(found)


def _of_tier(tier: str | None, tiers: Tiers, default: tuple[Counter, ...]) -> tuple[Counter, ...]:
    """Return the counters of a tier: those of all tiers, if the request names too many."""
    return tuple(chain(default, *tiers.values())) if tier in TOO_MANY else tiers.get(tier, default)


def strictest(charges: Iterable[Charge]) -> list[Charge]:
    """Return each counter once, at its highest cost and with its strictest limit.

    The values of a request may name several tiers, whose limits are of the same counter.
    """
    found: dict[str, Charge] = {}
    for charge in charges:
        key, quota, cost, shadow = charge.ask
        known = found.get(key)
        if known is not None:
            quota = min(known.ask.quota, quota, key=lambda each: (each.limit, each.burst))
            charge = Charge(charge.rule, Ask(key, quota, max(known.ask.cost, cost), shadow))  # noqa: PLW2901
        found[key] = charge
    return list(found.values())


def applies(rule: CompiledRule, request: Request) -> bool:
    """Return True if all remaining conditions of a candidate hold."""
    return all(condition.holds(request) for condition in rule.conditions)


_Lookup = Callable[[Request], Sequence[Candidate]]


class Index:
    """Rules and exemptions, indexed by the part of `match` that is quickest to look up.

    Each one is indexed by its path templates; without templates by its first exact value; without exact values by its
    networks. A rule without any of these is always a candidate. An exemption is a rule without counters and with a
    negative rank, so it comes before all rules.

    `address` reads the client's whole address.
    """

    def __init__(self, rules: Sequence[CompiledRule], exempt: Sequence[Matching], address: Reader) -> None:
        always: list[Candidate] = []
        owned: list[tuple[int, Template]] = []
        by_value: dict[Reader, dict[str | None, list[Candidate]]] = {}
        by_network: Networks[Candidate] = Networks()
        self._by_rank: dict[int, CompiledRule] = {}
        exemptions = (_exemption(n - len(exempt), match) for n, match in enumerate(exempt))
        for each in chain(exemptions, rules):
            indexed, remaining = each.match.split()
            conditions = remaining.conditions(address)
            rule = replace(each, conditions=conditions) if conditions else each
            if rule.templates:
                owned += [(rule.rank, template) for template in rule.templates]
                self._by_rank[rule.rank] = rule
                continue
            candidate: Candidate = (rule.rank, rule, "", NO_PARAMETERS, True)
            if indexed.exact:
                ((read, wanted, _),) = indexed.exact
                table = by_value.setdefault(read, {})
                for value in set(wanted):
                    table.setdefault(value, []).append(candidate)
            elif indexed.networks:
                by_network.add(indexed.networks, candidate)
            else:
                always.append(candidate)
        self.paths = PathMatcher(owned) if owned else None
        """Finds the rules with path templates. None if no rule has any."""
        self._always = tuple(always)
        self._lookups: list[_Lookup] = [_by_value(read, table) for read, table in by_value.items()]
        if by_network:
            self._lookups.append(lambda request: by_network.find(address(request)))

    def candidates(self, request: Request) -> Sequence[Candidate]:
        """Return the rules and exemptions that the index finds, by rank. Their other conditions are not tested."""
        found: list[Candidate] = []
        if self.paths is not None:
            for owner, route, parameters, strict in self.paths.hits(request):
                found.append((owner, self._by_rank[owner], route, parameters, strict))
        for lookup in self._lookups:
            found += lookup(request)
        if not found:
            return self._always
        return found if len(found) == 1 and not self._always else sorted((*self._always, *found))

    def concerns(self, request: Request) -> bool:
        """Return True if a rule may apply to a request of this path."""
        return bool(self._always or self._lookups or (self.paths is not None and self.paths.hits(request)))


def _exemption(rank: int, match: Matching) -> CompiledRule:
    """Return the rule without counters that is found where an exemption may apply."""
    return CompiledRule(
        rank=rank,
        rule=Rule("exempt"),
        templates=match.templates,
        further=match._replace(templates=()),
        by=(),
        identifiers=(),
        keys=(),
        limits=(),
    )


def _by_value(read: Reader, table: Mapping[str | None, Sequence[Candidate]]) -> _Lookup:
    def lookup(request: Request) -> Sequence[Candidate]:
        value = read(request)
        if value in TOO_MANY:
            return list({candidate[0]: candidate for found in table.values() for candidate in found}.values())
        return table.get(value, ())

    return lookup


_MOST = 4096  # about 3 MB, and at most 20 MB if clients fill the fields of all
_LONG = 512  # characters: longer paths, or arguments of `check()`, are remembered nowhere


class Plans:
    """The plans of rules that read requests through `attributes`, and that neither the time nor the load changes.

    At most `_MOST` plans are kept; the oldest is dropped first. It is safe to use from several threads, because keys
    are texts and tuples of texts: a thread switch in Python code that hashes a key would corrupt an OrderedDict.

    Args:
        attributes: The attributes that the rules read.
        by_path: Whether the path of a request may change its plan. If not, a client has one plan for all its paths.
        by_identity: Whether the address of a client changes nothing in a plan except the identities of its counters.
    """

    def __init__(self, attributes: Iterable[Attributes], *, by_path: bool, by_identity: bool) -> None:
        # The attributes of a subclass of OrderedDict would take ten times as long to read.
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self.get = self._kept.get
        """Returns the plan for a key, or None. Raises TypeError if the key cannot be hashed."""
        self.by_path = by_path
        headers = [each.headers for each in attributes]
        self.fields = None if None in headers else ReadFields(frozenset().union(*filter(None, headers)))
        """The header fields that the rules read. None if they read more than fields, the method, path and peer."""
        without_fields = self.fields is not None and not self.fields.names
        self.by_peer = not by_path and without_fields
        """Whether the plan of a request depends on its method and its peer alone."""
        self.patterned = by_identity and without_fields
        """Whether the plans of requests differ in the address alone, if their methods and paths are the same."""
        self._marks: set[int] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def seen(self, key: Hashable) -> bool:
        """Note that a plan for this key was made, and tell whether one was made before.

        Only such a plan is worth keeping, because most clients of a public site come once. The answer is right for
        recent keys, apart from equal hashes.
        """
        marks, mark = self._marks, hash(key)
        if mark in marks:
            return True
        if len(marks) >= _MOST:
            marks.clear()
        marks.add(mark)
        return False

    def keeps(self, request: Request) -> bool:
        """Return True if the plan of a request may be kept: a preflight is known by further headers."""
        # The key has all forms. That of an absolute target is longer than the path by the name of its host.
        longest = max(map(len, request.forms.every)) if request.forms else len(request.path)
        fields = request.fields(self.fields) if self.fields is not None else ()
        return (
            request.method != "OPTIONS"
            and len(request.method) + longest <= _LONG
            and fields is not UNREAD
            and sum(map(getsizeof, fields)) <= MOST_BYTES
        )

    @staticmethod
    def keeps_given(given: Mapping[str, Any]) -> bool:
        """Return True if the plan for arguments of `check()` may be kept: they are texts, and short enough."""
        texts = [*given, *(value for value in given.values() if value is not None)]
        return all(type(text) is str for text in texts) and sum(map(len, texts)) <= _LONG

    def patterns_given(self, given: Mapping[str, Any]) -> bool:
        """Return True if clients that give such arguments may share a pattern. With two addresses, they may not."""
        return self.keeps_given(given) and [canonical_name(name) for name in given].count("ip") == 1

    def put(self, key: Hashable, plan: object) -> None:
        """Keep `plan`."""
        self._kept[key] = plan
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def read_of(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `check()` that its plan may depend on."""
        if self.by_path or "path" not in given:
            return given
        read = given.copy()
        del read["path"]
        return read

    def key(self, request: Request) -> Hashable | None:
        """Return everything in a request that its plan depends on. None if that is unknown."""
        if self.fields is None or request.values or request.context is None:
            return None
        # Without the path, the forms are one object, whose hash is known.
        forms: str | Forms = (request.forms or request.path) if self.by_path else ""
        return type(request), request.method, forms, request.peer, *request.fields(self.fields)
