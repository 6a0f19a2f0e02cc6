"""The decision maker: a request's plan, one call to the store, and what follows from it."""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ratelimit_mw.account import Account, Move
from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import ConfigurationError, Problem, StoreUnavailable
from ratelimit_mw.explanation import Explanation, explain
from ratelimit_mw.identity.entries import EntriesRequest
from ratelimit_mw.identity.request import Request
from ratelimit_mw.in_flight import InFlight
from ratelimit_mw.late import late, lock
from ratelimit_mw.meter import Meter
from ratelimit_mw.model import SECOND, Ask, Charge, Decision, Reply
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import BLOCKED, RuleSet
from ratelimit_mw.settings import ResponseSettings, StorageSettings
from ratelimit_mw.sources.override_list import OverrideList
from ratelimit_mw.sources.retriever import Retriever, State
from ratelimit_mw.stores import Store, deciding_here, open_store
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.records import open_records
from ratelimit_mw.verdict import Verdict
from ratelimit_mw.waiting import Waiting, impatient, most_waiting

if TYPE_CHECKING:
    from ratelimit_mw.stores.leases import Leases

_log = logging.getLogger("ratelimit_mw")

SWITCH = "RATELIMIT_MW"
"""The environment's kill switch: `off` lets everything pass uncounted, `shadow` counts and denies nothing."""

_MOST = 10**15
"""A cost beyond this is as good as this one: no limit comes near, and every store can carry it."""

_PAUSE = 60 * SECOND
"""Between two lines about one shadow rule: no client can flood the log."""

Given = Mapping[str, str] | Sequence[tuple[str, str]]
"""What `check` is given: attributes by their names, or one list of entries."""

_FREE = Verdict((), None)
_REFUSED = Verdict((), None, unavailable=True)
_BLOCKED = Verdict((), None, blocked=True)


class RateLimiter:
    """Decides what may pass, by the rules in `config`, over counters in one store.

    `config` is a path to a rules file or to a folder of them, a mapping of the same shape, or the URL of a rules
    database; newer rules are taken up without a restart. `storage`, a URL or a store object, wins over the file's.
    `clock` (a `ManualClock`) replaces the store's own, for tests. Raises ConfigurationError
    with every problem found. Threads and event loops may share one limiter; it is safe after a fork.
    """

    _accounts = late(lock)

    def __init__(
        self,
        config: str | os.PathLike[str] | Mapping[str, object],
        *,
        storage: str | Store | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._retriever = Retriever(config, clock)
        rules = self._retriever.rules
        self._owned = storage is None or isinstance(storage, str)
        self._store = self._open(rules.storage, storage, clock)
        self._clock, self._interval = clock, rules.storage.interval
        self._leases: Leases | None = None
        self._retriever.require(self._decide_here)
        self._local = MemoryStore(max_counters=rules.storage.max_counters, clock=clock)
        self._switch = os.environ.get(SWITCH, "").strip().lower()
        if self._switch not in ("", "on", "off", "shadow"):
            raise ConfigurationError([Problem(f"{SWITCH}={self._switch!r} in the environment is not off or shadow")])
        self.overrides = OverrideList(self._retriever, clock)
        """What holds for single clients instead of the rules, changed at run time: limits, blocks, exemptions."""
        self.shadow_denials: Counter[str] = Counter()
        """How often each shadow rule would have denied, by its name."""
        self._shadow_said: dict[str, int] = {}
        self._waiting = Waiting()
        self._in_flight = InFlight(self._store, clock)
        self._in_flight_here = InFlight(self._local, clock)
        self._unknown: set[str] = set()
        self._meter: Meter | None = None

    @property
    def rules(self) -> Rules:
        """The rules in force."""
        return self._retriever.rules

    @property
    def state(self) -> State:
        """Which version of the rules is in force, since when, and why a newer one is not."""
        return self._retriever.state

    def current(self) -> Rules:
        """The rules in force, as a request reads them: once. From the first request on they are kept up to date."""
        retriever = self._retriever
        if not retriever.watching:
            retriever.watch()
        return retriever.rules

    def require(self, check: Callable[[Rules], None]) -> None:
        """Refuse rules for which `check` raises ConfigurationError: those in force, and all that come later."""
        self._retriever.require(check)

    def meter(self, rules: Rules) -> Meter:
        """What measures the load of this process, as `rules` say."""
        meter = self._meter
        if meter is None or (meter.settings is not rules.load and meter.settings != rules.load):
            meter = self._meter = Meter(rules.load)
        return meter

    def reload(self) -> None:
        """Fetch the newest rules and overrides now.

        Raises ConfigurationError where the rules can't be used, and then the last good ones stay in force;
        StoreUnavailable where the overrides can't be read.
        """
        self._retriever.look()

    async def areload(self) -> None:
        """The awaitable twin of `reload`."""
        await asyncio.to_thread(self.reload)

    @property
    def response(self) -> ResponseSettings:
        """What a denied client is told."""
        return self._retriever.rules.response

    def check(self, attributes: Given, cost: int = 1, *, domain: str | None = None) -> Decision:
        """Decide on a request that has these attributes, and charge it `cost` if it is allowed.

        Attributes go by the names that rules use: `remote_address` (or `ip`), `user`, `path`, `header:N` …; what
        is not given matches no `match`. A list of (key, value) pairs in place of a mapping is one list of entries:
        the `descriptors` alone are asked, at its exact depth. `domain` asks one file of a folder alone; an unknown
        one limits nothing. Raises ValueError for a negative cost.
        """
        rules = self._rules_of(domain)
        return self.decide(_given(rules, attributes), cost, rules=rules).decision

    async def acheck(self, attributes: Given, cost: int = 1, *, domain: str | None = None) -> Decision:
        """The awaitable twin of `check`."""
        rules = self._rules_of(domain)
        return (await self.adecide(_given(rules, attributes), cost, rules=rules)).decision

    def peek(self, attributes: Given, cost: int = 1, *, domain: str | None = None) -> Decision:
        """Whether `check` would allow it now, and how the counters stand; nothing is charged."""
        rules = self._rules_of(domain)
        return self.decide(_given(rules, attributes), cost, commit=False, rules=rules).decision

    async def apeek(self, attributes: Given, cost: int = 1, *, domain: str | None = None) -> Decision:
        """The awaitable twin of `peek`."""
        rules = self._rules_of(domain)
        return (await self.adecide(_given(rules, attributes), cost, commit=False, rules=rules)).decision

    def explain(self, attributes: Given | Request, cost: int = 1, *, domain: str | None = None) -> Explanation:
        """Why `check` would decide as it would now: each rule, its counters, and what would have to change.

        Nothing is charged. In place of attributes it takes a request, as those of `ratelimit_mw.identity`.
        """
        rules = self._rules_of(domain)
        request = _given(rules, attributes)
        asks = self._asks(rules, request, cost)
        try:
            reply = self._store.decide(asks, commit=False) if asks else None
        except StoreUnavailable as error:
            return self._explained(rules, request, cost, None, str(error))
        return self._explained(rules, request, cost, reply)

    async def aexplain(self, attributes: Given | Request, cost: int = 1, *, domain: str | None = None) -> Explanation:
        """The awaitable twin of `explain`."""
        rules = self._rules_of(domain)
        request = _given(rules, attributes)
        if rules.attributes.awaited:
            await rules.attributes.resolve(request)
        asks = self._asks(rules, request, cost)
        try:
            reply = await self._store.adecide(asks, commit=False) if asks else None
        except StoreUnavailable as error:
            return self._explained(rules, request, cost, None, str(error))
        return self._explained(rules, request, cost, reply)

    def reset(self, attributes: Given, *, domain: str | None = None) -> None:
        """Forget the counters that `check` would ask for these attributes. Raises StoreUnavailable."""
        keys = self._keys(attributes, domain)
        if keys:
            self._local.forget(keys)
            self._store.forget(keys)

    async def areset(self, attributes: Given, *, domain: str | None = None) -> None:
        """The awaitable twin of `reset`."""
        keys = self._keys(attributes, domain)
        if keys:
            self._local.forget(keys)
            await self._store.aforget(keys)

    def decide(
        self,
        request: Request,
        cost: int = 1,
        *,
        commit: bool = True,
        rules: Rules | None = None,
        rule: str | None = None,
    ) -> Verdict:
        """Decide on a request, for a shell that blocks. `rules` are what `current` gave it.

        With `rule`, by the rule of that name alone, whether or not its `match` holds.
        """
        rules = rules or self.current()
        if rules.settling and self._clock:
            self._renew()
        return self._decide(self._plan(rules, request, cost, rule), commit)

    def account(self, verdict: Verdict) -> Account:
        """What the request of a verdict has taken, and can give back."""
        if verdict.account is None:
            with self._accounts:
                if verdict.account is None:
                    store = self._local if verdict.local else self._store
                    in_flight = self._in_flight_here if verdict.local else self._in_flight
                    verdict.account = Account(verdict, store, in_flight)
        account: Account = verdict.account
        return account

    def settle(self, account: Account, moves: Sequence[Move]) -> None:
        """Carry out what an account says. What can't be returned stays charged, and what can't be charged is free."""
        for move in moves:
            with suppress(StoreUnavailable):
                if move.charged_at is None:
                    account.charged(move, account.store.charge(move.asks))
                else:
                    account.store.refund(move.asks, move.charged_at)

    async def asettle(self, account: Account, moves: Sequence[Move]) -> None:
        """The awaitable twin of `settle`."""
        for move in moves:
            with suppress(StoreUnavailable):
                if move.charged_at is None:
                    account.charged(move, await account.store.acharge(move.asks))
                else:
                    await account.store.arefund(move.asks, move.charged_at)

    def decide_in_turn(
        self, request: Request, cost: int = 1, *, rules: Rules | None = None, rule: str | None = None
    ) -> Verdict:
        """Decide on a request, and return when its turn has come: for a shell that has a thread for each request.

        Where as many threads wait as may, a request that would have to wait is denied.
        """
        rules = rules or self.current()
        if rules.settling and self._clock:
            self._renew()
        charges = self._plan(rules, request, cost, rule)
        most = most_waiting(charges) if rules.waiting else None
        if most is None:
            return self._decide(charges, commit=True)
        if not self._waiting.enter(most):
            return self._decide(impatient(charges), commit=True)
        try:
            verdict = self._decide(charges, commit=True)
            if verdict.delay:
                self.account(verdict)  # what is held is held while it waits
                time.sleep(verdict.delay / SECOND)
        finally:
            self._waiting.leave()
        return verdict

    def _decide(self, charges: Sequence[Charge], commit: bool) -> Verdict:
        if not charges:
            return _FREE
        if charges is BLOCKED:
            return _BLOCKED
        try:
            reply = self._store.decide([charge.ask for charge in charges], commit=commit)
        except StoreUnavailable:
            return self._without_store(charges, commit)
        verdict = self._conclude(charges, reply, commit)
        if commit and verdict.shadowed and verdict.owed:
            with suppress(StoreUnavailable):  # what can't be returned stays charged
                self._store.refund(verdict.owed, reply.now)
        return verdict

    async def adecide(
        self,
        request: Request,
        cost: int = 1,
        *,
        commit: bool = True,
        rules: Rules | None = None,
        rule: str | None = None,
    ) -> Verdict:
        """The awaitable twin of `decide`, for a shell that awaits."""
        if rules is None:
            rules = self.current()
        if rules.attributes.awaited:
            await rules.attributes.resolve(request)
        if rules.settling and self._clock:
            await asyncio.to_thread(self._renew)
        charges = self._plan(rules, request, cost, rule)
        if not charges:
            return _FREE
        if charges is BLOCKED:
            return _BLOCKED
        try:
            reply = await self._store.adecide([charge.ask for charge in charges], commit=commit)
        except StoreUnavailable:
            return self._without_store(charges, commit)
        verdict = self._conclude(charges, reply, commit)
        if commit and verdict.shadowed and verdict.owed:
            with suppress(StoreUnavailable):
                await self._store.arefund(verdict.owed, reply.now)
        return verdict

    def close(self) -> None:
        """Look for newer rules no more, and let go of the store's connections, unless the store was handed in."""
        self._retriever.stop()
        self._in_flight.stop()
        self._in_flight_here.stop()
        if self._owned:
            self._store.close()
        elif self._leases:
            self._leases.settle()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        self._retriever.stop()
        self._in_flight.stop()
        self._in_flight_here.stop()
        if self._owned:
            await self._store.aclose()
        elif self._leases:
            await self._leases.asettle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _open(self, given: StorageSettings, storage: str | Store | None, clock: Clock | None) -> Store:
        if storage is not None and not isinstance(storage, str):
            if not isinstance(storage, Store):
                raise TypeError(f"storage takes a URL or a store, not {type(storage).__name__}")
            self._keep_overrides(given.url)
            return storage
        settings = given if storage is None else replace(given, url=storage)
        try:
            store = open_store(settings, clock)
        except ValueError as error:
            raise ConfigurationError([Problem(f"storage: {error}")]) from None
        if isinstance(store, MemoryStore) and clock is None:
            _log.warning(
                "ratelimit_mw: storage is memory://: each process counts for itself, and a restart forgets; to share "
                "the counters, set storage.url in the rules, or storage= in code, as in redis://localhost:6379/0"
            )
        self._keep_overrides(settings.url)
        return store

    def _decide_here(self, rules: Rules) -> None:
        """Put before the store what keeps counters in the process or spreads them, once some rule wants it."""
        if self._leases is None and not isinstance(self._store, MemoryStore):
            quotas = (quota for part in rules.parts for rule in part.compiled for quota in rule.quotas)
            self._store, self._leases = deciding_here(self._store, quotas, self._clock, interval=self._interval)

    def _keep_overrides(self, url: str) -> None:
        """Overrides lie where the counters do; a store object has no room for them, so the rules' URL holds then."""
        if not url.startswith("memory:"):
            self._retriever.keep_overrides(open_records(url))

    def _rules_of(self, domain: str | None) -> Rules:
        rules = self.current()
        return rules if domain is None else rules.of(domain) or _no_rules(rules, domain)

    def _plan(self, rules: Rules, request: Request, cost: int, name: str | None = None) -> Sequence[Charge]:
        """What `request` has to ask; with `name`, of that rule alone."""
        if type(cost) is not int or cost != 1:
            cost = whole(cost)
        charges = _planned(rules, request, cost) if name is None else self._planned_by(name, rules, request, cost)
        if self._switch:
            charges = self._switched(charges)
        if rules.settling and (name is not None or request.context is None) and charges is not BLOCKED:
            # Nothing tells when what was asked for by a call has ended.
            charges = [charge for charge in charges if charge.ask.quota.algorithm != "concurrency"]
        if rules.elastic and charges and charges is not BLOCKED:
            return self.meter(rules).stretched(charges)
        return charges

    def _switched(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        """What the kill switch leaves of a plan."""
        if self._switch == "off" or (self._switch == "shadow" and charges is BLOCKED):
            return ()
        if self._switch == "shadow":
            return [Charge(replace(rule, quota=""), ask._replace(shadow=True)) for rule, ask in charges]
        return charges

    def _renew(self) -> None:
        """Renew what is in flight by a clock that is moved by hand, for no thread knows when it moves."""
        self._in_flight.renew()
        self._in_flight_here.renew()

    def _planned_by(self, name: str, rules: Rules, request: Request, cost: int) -> Sequence[Charge]:
        """The plan of one rule; of one that there is not, nothing."""
        charges = rules.plan_rule(name, request, cost)
        if charges is None:
            if name not in self._unknown and len(self._unknown) < 100:
                self._unknown.add(name)
                _log.error("the app asks for the rule %r, which there is not: it is not limited (said once)", name)
            return ()
        return charges

    def _asks(self, rules: Rules, request: Request, cost: int) -> list[Ask]:
        charges = self._plan(rules, request, cost)
        return [] if charges is BLOCKED else [charge.ask for charge in charges]

    def _explained(
        self, rules: Rules, request: Request, cost: int, reply: Reply | None, error: str = ""
    ) -> Explanation:
        charges = self._plan(rules, request, cost)
        if charges is BLOCKED:
            verdict = _BLOCKED
        elif error:
            verdict = self._without_store(charges, commit=False)
        else:
            verdict = Verdict(charges, reply)
        note = f"{SWITCH}={self._switch} is set" if self._switch in ("off", "shadow") else ""
        return explain(rules.parts, request, cost, verdict, note=note, error=error)

    def _keys(self, attributes: Given, domain: str | None) -> list[str]:
        rules = self._rules_of(domain)
        charges = _planned(rules, _given(rules, attributes), 1)
        return [] if charges is BLOCKED else [charge.ask.key for charge in charges]

    def _conclude(self, charges: Sequence[Charge], reply: Reply, commit: bool) -> Verdict:
        verdict = Verdict(charges, reply)
        if commit and verdict.shadowed:
            self._count_shadows(verdict)
        return verdict

    def _count_shadows(self, verdict: Verdict) -> None:
        for (rule, ask), outcome in zip(verdict.charges, verdict.outcomes, strict=True):
            if ask.shadow and not outcome.allowed and not rule.quota:
                self.shadow_denials[rule.name] += 1
                if abs(verdict.now - self._shadow_said.get(rule.name, -_PAUSE)) >= _PAUSE:
                    self._shadow_said[rule.name] = verdict.now
                    so_far = self.shadow_denials[rule.name]
                    _log.info("shadow rule %s would have denied a request (%d so far)", rule.name, so_far)

    def _without_store(self, charges: Sequence[Charge], commit: bool) -> Verdict:
        """What each rule's `on_error` makes of a store that is away; deny wins."""
        if any(rule.on_error == "deny" and (rule.quota or not ask.shadow) for rule, ask in charges):
            return _REFUSED
        local = [charge for charge in charges if charge.rule.on_error == "local"]
        if not local:
            return _FREE
        reply = self._local.decide([charge.ask for charge in local], commit=commit)
        verdict = self._conclude(local, reply, commit)
        verdict.local = True
        if commit and verdict.owed:
            self._local.refund(verdict.owed, reply.now)
        return verdict


def _planned(rules: Rules, request: Request, cost: int) -> Sequence[Charge]:
    if isinstance(request, EntriesRequest):
        return rules.plan_entries(request.entries, cost)
    return rules.plan(request, cost)


def _given(rules: Rules, attributes: Given | Request) -> Request:
    if isinstance(attributes, Mapping):
        return rules.attributes.given(attributes)
    return EntriesRequest(attributes) if isinstance(attributes, Sequence) else attributes


def _no_rules(rules: Rules, domain: str) -> RuleSet:
    """Of a domain that there is not."""
    return RuleSet(
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


def given_or_made(
    config: str | os.PathLike[str] | Mapping[str, object] | None,
    limiter: RateLimiter | None,
    storage: str | Store | None,
) -> RateLimiter:
    """The limiter that a middleware is to use. Raises TypeError unless it gets exactly one of config and limiter."""
    if config is not None and limiter is None:
        return RateLimiter(config, storage=storage)
    if limiter is None or config is not None:
        raise TypeError("RateLimitMiddleware takes either a config or a limiter: exactly one of them")
    if storage is not None:
        raise TypeError("RateLimitMiddleware takes storage with a config only: a limiter has its own")
    if not isinstance(limiter, RateLimiter):
        raise TypeError(f"limiter takes a RateLimiter, not {type(limiter).__name__}; rules are given as config")
    return limiter
