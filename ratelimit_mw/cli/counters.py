"""Commands about counters: `show`, `top` and `reset`."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Annotated
from urllib.parse import unquote

import typer

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import (
    DEFAULT_CONFIG,
    Attribute,
    Config,
    Ip,
    Json,
    Most,
    Storage,
    Tier,
    User,
    attributes,
    fail,
    open_limiter,
    require_known,
    say_list,
    say_result,
    shared_store,
    with_retries,
)
from ratelimit_mw.cli.watch import watch
from ratelimit_mw.decision.explanation import seconds
from ratelimit_mw.errors import nearest
from ratelimit_mw.foresight.wording import counted
from ratelimit_mw.identity.address import UNKNOWN_ADDRESS
from ratelimit_mw.identity.attributes import canonical_name
from ratelimit_mw.identity.identifier import NO_PARAMETERS, attributes_of
from ratelimit_mw.model import SECOND, Ask, Outcome, Quota
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.preflights import is_preflight_key, preflight_key, preflight_quota
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.stores import Store
from ratelimit_mw.units import spell_period

_BATCH = 100


@dataclass(frozen=True, slots=True)
class CounterRow:
    """The state of one counter.

    Attributes:
        rule: The name of its rule.
        identity: The client, as in its key.
        client: The same for people, without escapes.
        limit: Its limit, as text.
        algorithm: The algorithm that counts it. `ban` for the counter of the denials before a ban.
        remaining: How much of the limit is left.
        used: The share of the limit that is used, from 0 to 1.
        reset_after: The seconds until it is as if unused. For a ban that has begun, the seconds until its end.
        key: Its key in the store.
    """

    rule: str
    identity: str
    client: str
    limit: str
    algorithm: str
    remaining: int
    used: float
    reset_after: float
    key: str


class CounterIndex:
    """Maps the keys of counters to their rules and quotas, by the rules in force."""

    def __init__(self, rules: Rules) -> None:
        self._known: dict[str, tuple[RuleSet, str, CompiledRule | None, Quota]] = {}
        for part in rules.parts:
            for rule in part.compiled:
                for key, quota in rule.counters:
                    self._known[key] = part, rule.rule.name, rule, quota
                    if not ALGORITHMS[quota.algorithm].in_flight:
                        self._known[preflight_key(key)] = part, rule.rule.name, rule, preflight_quota(quota)
                    if (penalty := quota.penalty) is not None:
                        self._known[penalty.prefix] = part, rule.rule.name, rule, penalty.quota
            for limit in part.descriptors.limits if part.descriptors else ():
                if limit.quota is not None:
                    self._known[limit.key] = part, limit.rule.name, None, limit.quota
                    self._known[preflight_key(limit.key)] = part, limit.rule.name, None, preflight_quota(limit.quota)

    def prefixes(self, rule: str) -> dict[str, CompiledRule | None]:
        """Return the prefixes of the keys of a rule's counters, each with its compiled rule (None for a descriptor).

        End the command if there is no rule with that name and a limit.
        """
        found = {key: compiled for key, (_, name, compiled, _) in self._known.items() if name == rule}
        if not found:
            fail(f"there is no rule {rule!r} with a limit ({nearest(rule, self.names())})", Exit.USAGE)
        return found

    def names(self) -> list[str]:
        """Return the names of all rules that have counters."""
        return list(dict.fromkeys(name for _, name, _, _ in self._known.values()))

    def read(self, key: str) -> tuple[str, str, Quota] | None:
        """Return the rule name, the identity and the quota of a key. None if no rule in force has the key."""
        prefix, brace, rest = key.partition("{")
        if prefix + brace not in self._known:
            return None
        part, name, rule, quota = self._known[prefix + brace]
        identity = rest.removesuffix("}")
        if rule is not None:
            own = dict(part.counters_of(rule, identity))
            if is_preflight_key(key):
                own = {preflight_key(each): preflight_quota(limit) for each, limit in own.items()}
            quota = own.get(prefix + brace, quota)
        return name, identity, quota


def chosen(index: CounterIndex, rules: Rules, rule: str, client: Mapping[str, str]) -> list[str]:
    """Return the keys of a rule's counters for the client with these attributes, those of its preflights included.

    End the command if there are none.
    """
    require_known(rules, client)
    keys: list[str] = []
    for prefix, compiled in index.prefixes(rule).items():
        if compiled is not None:
            keys += [f"{prefix}{identity}}}" for identity in _identities(rules, compiled, client)]
    if not keys:
        by = dict.fromkeys(entry for compiled in index.prefixes(rule).values() if compiled for entry in compiled.by)
        what = f"it counts by {', '.join(by)}" if by else "it is a descriptor"
        fail(f"no counter of '{rule}' depends on {' or '.join(client)}: {what}", Exit.USAGE)
    return keys


def _identities(rules: Rules, rule: CompiledRule, client: Mapping[str, str]) -> list[str]:
    part = next(part for part in rules.parts if rule in part.compiled)
    names = set(map(canonical_name, client))
    found: dict[str, None] = {}
    for template in rule.match.templates or (None,):
        for by, identify in zip(rule.by, rule.identifiers, strict=True):
            if not names & {canonical_name(name) for name in attributes_of(by)}:
                continue
            identity = identify(part.attributes.request_from(client), NO_PARAMETERS, template or "")
            if identity is not None and UNKNOWN_ADDRESS not in identity:
                found[identity] = None
    return list(found)


def keys_of(store: Store, index: CounterIndex, rule: str | None) -> Iterator[str]:
    """Return the keys of a rule's counters, those of earlier limits included. If `rule` is None, those of all rules."""
    names = index.names() if rule is None else [rule]
    # A key is domain:rule:algorithm and window:{identity}. The prefix ends after the rule.
    prefixes = dict.fromkeys(key.rsplit(":", 2)[0] + ":" for name in names for key in index.prefixes(name))
    return chain.from_iterable(map(store.keys, prefixes))


def read(store: Store, index: CounterIndex, keys: Iterable[str]) -> Iterator[CounterRow]:
    """Yield the states of these counters. Keys that no rule in force has are skipped."""
    found = ((key, known) for key in keys if (known := index.read(key)) is not None)
    while batch := list(islice(found, _BATCH)):
        asks = [Ask(key, quota, 0) for key, (_, _, quota) in batch]
        outcomes = with_retries(partial(store.decide, asks, commit=False)).outcomes
        for (key, known), outcome in zip(batch, outcomes, strict=True):
            yield _found(key, known, outcome)


def _found(key: str, known: tuple[str, str, Quota], outcome: Outcome) -> CounterRow:
    name, identity, quota = known
    capacity = quota.burst or quota.limit
    of_denials = ALGORITHMS[quota.algorithm].count_denial is not None
    counted = "denials " if of_denials else "preflights " if is_preflight_key(key) else ""
    return CounterRow(
        name,
        identity,
        unquote(identity),
        f"{quota.shown_limit} {counted}per {spell_period(quota.period)}",
        quota.algorithm,
        outcome.remaining,
        1.0 if capacity == 0 else max(0.0, 1 - outcome.remaining / capacity),
        (outcome.retry_after if of_denials and not outcome.allowed else outcome.reset_after) / SECOND,
        key,
    )


def show(
    rule: Annotated[str, typer.Argument(help="The rule's name.")],
    *,
    ip: Ip = None,
    user: User = None,
    tier: Tier = None,
    attribute: Attribute = None,
    most: Most = 20,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show the counters of a rule, for one client or for all. The fullest is the first. Nothing is charged.

    The counters of a client's CORS preflights are shown if it has sent some.

    If a limit depends on the tier, the default limit is shown.
    """
    client = attributes(ip, user, tier, attribute)
    with _opened(config, storage) as (rules, index, store):
        keys = chosen(index, rules, rule, client) if client else keys_of(store, index, rule)
        found = read(store, index, keys)
        shown = (each for each in found if (each.used and each.reset_after) or not is_preflight_key(each.key))
        _print_fullest(shown, most, as_json=as_json)


@contextmanager
def _opened(config: str, storage: str | None) -> Iterator[tuple[Rules, CounterIndex, Store]]:
    """Yield the rules, the index of their counters, and the store that has them."""
    with open_limiter(config, storage) as limiter, closing(shared_store(limiter.rules, storage)) as store:
        yield limiter.rules, CounterIndex(limiter.rules), store


def _print_fullest(found: Iterable[CounterRow], most: int, *, as_json: bool) -> None:
    """Print the counters that are closest to their limit, one per line. The closest is the first."""
    counters = heapq.nsmallest(most, found, key=lambda each: (-each.used, -each.reset_after, each.key))
    columns = ("rule", "client", "limit", "algorithm", ">used", ">left", ">as if unused in")
    empty = "no counters: no request has been counted lately"
    say_list({"counters": counters}, columns, map(_row, counters), empty=empty, as_json=as_json)


def _row(counter: CounterRow) -> tuple[object, ...]:
    return (
        counter.rule,
        counter.client,
        counter.limit,
        counter.algorithm,
        f"{counter.used:.0%}",
        counter.remaining,
        seconds(counter.reset_after),
    )


def top(
    *,
    most: Most = 20,
    watched: Annotated[
        bool, typer.Option("--watch", help="Show what the app's processes report, each second: see the live page.")
    ] = False,
    denied: Annotated[bool, typer.Option("--denied", help="With --watch: show only who is limited.")] = False,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show the counters of all rules that are closest to their limit. Nothing is charged.

    All counters in the store are read, in batches. If a limit depends on the tier, the default limit is shown.

    With --watch, no counters are read, but what the processes of the app report: rates, rules and who is limited.
    """
    if watched:
        watch(config, storage, denied=denied, most=most, as_json=as_json)
        return
    if denied:
        fail("--denied needs --watch", Exit.USAGE)
    with _opened(config, storage) as (_, index, store):
        _print_fullest(read(store, index, keys_of(store, index, None)), most, as_json=as_json)


_RESET_BATCH = 200


def reset(
    rule: Annotated[str | None, typer.Argument(help="The rule's name.")] = None,
    *,
    ip: Ip = None,
    user: User = None,
    tier: Tier = None,
    attribute: Attribute = None,
    everything: Annotated[bool, typer.Option("--all", help="Reset the counters of all rules.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Reset the counters of a rule, for one client, or after a confirmation for all.

    The counters of a client's CORS preflights are reset, too. A process that remembers a denial may repeat it for up to
    five seconds.
    """
    client = attributes(ip, user, tier, attribute)
    if (rule is None) != everything or (everything and client):
        fail("give a rule, and optionally a client; or give only --all", Exit.USAGE)
    with _opened(config, storage) as (rules, index, store):
        if rule is not None and client:
            keys = chosen(index, rules, rule, client)
        else:
            keys = list(keys_of(store, index, rule))
            if keys and not yes:
                whose = repr(rule) if rule else "all rules"
                typer.confirm(f"Reset {len(keys)} counters of {whose}?", abort=True, err=True)
        for start in range(0, len(keys), _RESET_BATCH):
            with_retries(partial(store.forget, keys[start : start + _RESET_BATCH]))
    say_result({"reset": keys}, f"{counted(len(keys), 'counter')} reset", as_json=as_json)
