"""`RateLimiter`, the class that apps call. It connects the rules, the store and the engine, and returns decisions.

Apps import `RateLimiter` from `ratelimit_mw`. This module is internal.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary, ref

from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.acquiring import LimitedBlock, acquisition, checked_timeout
from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.kill_switch import Switch
from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.decision.storage import Storage
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import ConfigurationError
from ratelimit_mw.identity.request import Arguments, Request
from ratelimit_mw.logs import logger
from ratelimit_mw.model import Decision, EntryList, ListsDecision
from ratelimit_mw.reload.controls import OverrideList, in_thread
from ratelimit_mw.reload.watcher import Retriever, State
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.rules.domains import Rules, unknown_domain
from ratelimit_mw.rules.inline import UNSET, ByName, Key, named_rule
from ratelimit_mw.rules.preflights import preflight_key
from ratelimit_mw.stores import Store, open_records
from ratelimit_mw.stores.base import Steps, adrive, drive, forget_request
from ratelimit_mw.tally import Tally

if TYPE_CHECKING:
    from ratelimit_mw.decision.explanation import Explanation
    from ratelimit_mw.envoy.lists import ListsRequest


T = TypeVar("T")

LIMITERS: "WeakKeyDictionary[RateLimiter, bool]" = WeakKeyDictionary()
"""Internal. The limiters of this process, and whether each is open. One that is closed may be used again."""

_EXAMINED = 100
"""How many blocking calls are examined for an event loop."""


_MAX_FORGOTTEN = 50
"""The most counters that one call makes the store forget, so that no call takes long."""


class RateLimiter:
    """Decides which requests may pass, by the rules of one configuration and the counters of one store.

    Threads and event loops may share one limiter. It is safe after a fork. Close it with `close()` or `aclose()`, or
    use it as a context manager, with `with` or `async with`. Newer rules are loaded without a restart.

    Args:
        config: The rules: the path of a YAML file or of a folder of files, a mapping of the same shape, or the URL of
            a rules database.
        storage: Where the counters are: a URL, or a store of your own (see `Store`). It takes precedence over
            `storage.url` in the rules. A store of your own is not closed with the limiter.
        clock: A `ManualClock`, for tests. None: decisions use the clock of the store.

    Raises:
        ConfigurationError: The rules cannot be used. The error has every problem found.
    """

    followers: ClassVar[tuple[Callable[["RateLimiter", Rules], None], ...]] = ()
    """Internal. What other parts call with a limiter and each version of its rules, before the rules are in force."""

    def __init__(
        self,
        config: str | os.PathLike[str] | Mapping[str, object],
        *,
        storage: str | Store | None = None,
        clock: Clock | None = None,
    ) -> None:
        try:
            self._retriever = retriever = Retriever(config, clock)
            self._storage = Storage(retriever.rules, storage, clock)
        except ConfigurationError as error:
            # A server prints the traceback above the problems, and they are in the file, not in this package.
            raise error.with_traceback(None) from None
        self.clock = clock
        """Internal. The user's clock. None for that of the store."""
        # Overrides are stored with the counters. With a store object, they are stored at the URL of the rules.
        retriever.controls.records = open_records(self._storage.url)
        self.engine = Engine(retriever, self._storage, clock)
        """Internal. The engine that the middlewares ask."""
        self.overrides: OverrideList = OverrideList(retriever, clock)
        """The overrides for single clients at run time (limits, blocks and exemptions)."""
        self.switch: Switch = Switch(retriever, self.engine.planner.switch, clock)
        """The kill switch, which turns all limits off, or to shadow, at run time."""
        self._kept: dict[type, object] = {}
        self._closers: list[Callable[[], None]] = []
        self._unexamined = _EXAMINED if self.engine.waits else 0
        retriever.require(_follow(ref(self)))
        LIMITERS[self] = True

    @property
    def tally(self) -> Tally:
        """What this process has counted: requests, rules and denials by outcome, and more. See `Tally.snapshot`."""
        return self.engine.tally

    @property
    def rules(self) -> Rules:
        """Internal. The compiled rules in force."""
        return self._retriever.rules

    @property
    def state(self) -> State:
        """The version of the rules in force, since when it is in force, and why a newer version is not."""
        return self._retriever.state

    @property
    def storage_url(self) -> str:
        """Internal. The URL of the store. If a store object was given, the URL in the rules."""
        return self._storage.url

    def kept(self, kind: type[T], make: Callable[[], T]) -> T:
        """Internal. Return the object of class `kind` that another part keeps with this limiter. `make` makes it."""
        found = self._kept.get(kind) or self._kept.setdefault(kind, make())
        return cast("T", found)

    def require(self, check: Callable[[Rules], None]) -> None:
        """Internal. Refuse rules for which `check` raises ConfigurationError, those in force and all later ones."""
        self._retriever.require(check)

    def at_first_request(self, begun: Callable[[], None]) -> None:
        """Internal. Call `begun` at the first request of this process and of each forked one. It must not raise."""
        self._retriever.at_watch(begun)

    def at_close(self, closer: Callable[[], None]) -> None:
        """Internal. Call `closer` when the limiter is closed."""
        self._closers.append(closer)

    def reload(self) -> None:
        """Read the newest rules and overrides now.

        Raises:
            ConfigurationError: The newest rules cannot be used. The last good rules stay in force.
            StoreUnavailable: The overrides cannot be read.
        """
        self._retriever.look()

    areload = in_thread(reload)

    def check(
        self, attributes: Arguments, cost: int = 1, *, domain: str | None = None, **named: Unpack[ByName]
    ) -> Decision:
        """Decide on a request and charge it if it is allowed.

        Args:
            attributes: The attributes of the request, by the names that rules use: `remote_address` or `ip`, `user`,
                `tier`, `method`, `path`, `host`, `header:N`, `cookie:N`, `query:N`, `path:N` and the attributes of the
                rules file. An attribute that is missing matches no `match`. A list of (key, value) pairs is one
                Envoy descriptor: only the `descriptors` are asked, and its depth must be exact.
            cost: What the request charges, as a multiple of the `cost` of each rule. A whole number from 0.
            domain: The domain whose rules are asked, if the rules have several. None asks all of them.
            named: The keyword arguments `rule`, `key` and `limit`: only the rule of this name is asked, whether or not
                its `match` holds. It counts by `key` in place of its `by`, with `limit` in place of its `limit`.

        Returns:
            The decision. If the store is unavailable, it follows from the `on_error` of the rules.

        Raises:
            LookupError: The rules do not have this domain or this rule.
            ValueError: The cost is negative or is not a whole number, an attribute is unknown, or the rule cannot have
                this limit.
            TypeError: The key or the limit has another type, or is given without a rule.
        """
        if self._unexamined:
            self._examine_loop("check")
        rules, plan = self._plan(attributes, cost, domain, named)
        conclusion = self.engine.take(plan, rules)
        if isinstance(conclusion, tuple):
            return plan.decision_of(conclusion)
        return self._checked(conclusion, rules, attributes)

    async def acheck(
        self, attributes: Arguments, cost: int = 1, *, domain: str | None = None, **named: Unpack[ByName]
    ) -> Decision:
        """Do what `check` does, awaitable."""
        rules, plan = self._plan(attributes, cost, domain, named)
        conclusion = await self.engine.atake(plan, rules)
        if isinstance(conclusion, tuple):
            return plan.decision_of(conclusion)
        return self._checked(conclusion, rules, attributes)

    def check_lists(
        self, domain: str, lists: Sequence[EntryList | Sequence[tuple[str, str]]], *, hits: int = 1
    ) -> ListsDecision:
        """Decide on a request of several lists of entries (Envoy descriptors), in one call to the store.

        The request is allowed if all lists are allowed. Otherwise only the lists with `hits` of their own are charged.
        If several lists lead to the same counter, it is charged the sum of their hits. The `rules` of the domain apply,
        too. The entries of all lists are their attributes; if two entries have one key, the first counts. A rule is
        charged once, with the largest hits of all lists.

        Args:
            domain: The domain whose rules are asked.
            lists: The lists, each as an `EntryList`, or as its (key, value) pairs alone.
            hits: What each list without `hits` charges. A whole number from 0.

        Returns:
            The decision, and one status for each list, in order.

        Raises:
            LookupError: The rules do not have this domain.
            ValueError: There are no lists, or hits, an entry or a limit are invalid.
        """
        asked = self._lists(domain, lists, hits)
        if asked.refunds:
            drive(self._storage.store, asked.giving_back())
        return asked.decided(self.engine.execute(asked.plan, asked.rules))

    async def acheck_lists(
        self, domain: str, lists: Sequence[EntryList | Sequence[tuple[str, str]]], *, hits: int = 1
    ) -> ListsDecision:
        """Do what `check_lists` does, awaitable."""
        asked = self._lists(domain, lists, hits)
        if asked.refunds:
            await adrive(self._storage.store, asked.giving_back())
        return asked.decided(await self.engine.aexecute(asked.plan, asked.rules))

    def peek(
        self, attributes: Arguments, cost: int = 1, *, domain: str | None = None, **named: Unpack[ByName]
    ) -> Decision:
        """Return what `check` would decide now, without charging anything.

        Args:
            attributes: As for `check`.
            cost: As for `check`.
            domain: As for `check`.
            named: As for `check`.

        Raises:
            LookupError: The rules do not have this domain or this rule.
            ValueError: The cost is negative or is not a whole number, an attribute is unknown, or the rule cannot have
                this limit.
            TypeError: The key or the limit has another type, or is given without a rule.
        """
        if self._unexamined:
            self._examine_loop("peek")
        rules, plan = self._plan(attributes, cost, domain, named, commit=False)
        return self.engine.execute(plan, rules, commit=False).decision

    async def apeek(
        self, attributes: Arguments, cost: int = 1, *, domain: str | None = None, **named: Unpack[ByName]
    ) -> Decision:
        """Do what `peek` does, awaitable."""
        rules, plan = self._plan(attributes, cost, domain, named, commit=False)
        return (await self.engine.aexecute(plan, rules, commit=False)).decision

    def acquire(
        self,
        attributes: Arguments,
        cost: int = 1,
        *,
        timeout: float,
        domain: str | None = None,
        **named: Unpack[ByName],
    ) -> Decision:
        """Decide on a request as `check` does, but wait until it is allowed and its turn has come.

        A denied request is tried again after its `retry_after`. If that is after the timeout, the denial is returned
        at once, because no waiting helps. A limit that may open earlier (`count`, elastic, leases) is tried once more
        at the timeout. A bucket assigns no turn that comes after the timeout.

        Under a `ManualClock`, the clock is moved instead of sleeping.

        Args:
            attributes: As for `check`.
            cost: As for `check`.
            timeout: The longest wait in seconds. 0 tries once. `math.inf` waits as long as it takes.
            domain: As for `check`.
            named: As for `check`.

        Returns:
            The last decision. It is a denial if there was no place before the timeout.

        Raises:
            LookupError: The rules do not have this domain or this rule.
            ValueError: The cost is negative or is not a whole number, an attribute is unknown, the rule cannot have
                this limit, or the timeout is negative.
            TypeError: The key or the limit has another type, or is given without a rule.
        """
        if self._unexamined:
            self._examine_loop("acquire")
        steps = self._acquisition(lambda: self._plan(attributes, cost, domain, named), timeout)
        return self._checked(*drive(self._storage.store, steps), attributes)

    async def aacquire(
        self,
        attributes: Arguments,
        cost: int = 1,
        *,
        timeout: float,  # noqa: ASYNC109 - at the timeout it returns a denial, and does not raise
        domain: str | None = None,
        **named: Unpack[ByName],
    ) -> Decision:
        """Do what `acquire` does, awaitable."""
        steps = self._acquisition(lambda: self._plan(attributes, cost, domain, named), timeout)
        return self._checked(*await adrive(self._storage.store, steps), attributes)

    def limited(
        self,
        rule: str,
        attributes: Arguments,
        cost: int = 1,
        *,
        timeout: float = 0.0,
        domain: str | None = None,
        key: Key = UNSET,
        limit: str | None = None,
    ) -> LimitedBlock:
        """Put a block of code under one rule, as in `with limiter.limited("export", {"user": "ann"}):`.

        It works with `with` and with `async with`, in any code. The block gets the decision (`as decision`). The
        `match` of the rule is ignored. A place in flight (`N concurrent`) is held until the block ends.

        Args:
            rule: The name of the rule. A rule that is only for such blocks has `on_demand: true`.
            attributes: As for `check`. A counter whose attribute is missing does not apply.
            cost: As for `check`.
            timeout: The longest wait for a place in seconds, as for `acquire`. 0 does not wait.
            domain: As for `check`.
            key: What the rule counts by in place of its `by`, as for `check`.
            limit: A limit in place of the rule's, in the form of a rules file, such as "5 per hour".

        Raises:
            LimitExceeded: The rule denies the block. This and the errors of `check` are raised when the block begins.
            LookupError: There is no rule of this name.
            ValueError: The timeout is negative.
            TypeError: The key or the limit has another type.
        """
        checked_timeout(timeout)
        asked = named_rule(rule, key, limit)

        def plan() -> tuple[Rules, Plan]:
            rules, planner = self._rules_of(domain), self.engine.planner
            return rules, planner.admit(rules, planner.request_of(rules, attributes), cost, asked, holding=True)

        return LimitedBlock(self.engine, self._storage.store, lambda: self._acquisition(plan, timeout), attributes)

    def explain(
        self, attributes: Arguments | Request, cost: int = 1, *, domain: str | None = None, **named: Unpack[ByName]
    ) -> "Explanation":
        """Explain what `check` would decide now: each rule, its counters, and what would let the request pass.

        Nothing is charged.

        Args:
            attributes: As for `check`. Inside the package, a request.
            cost: As for `check`.
            domain: As for `check`.
            named: As for `check`.

        Raises:
            LookupError: The rules do not have this domain or this rule.
            ValueError: The cost is negative or is not a whole number, an attribute is unknown, or the rule cannot have
                this limit.
            TypeError: The key or the limit has another type, or is given without a rule.
        """
        rules = self._rules_of(domain)
        request = rules.attributes.request_of(attributes)
        return drive(self._storage.store, self._explaining(rules, request, cost, named))

    async def aexplain(
        self, attributes: Arguments | Request, cost: int = 1, *, domain: str | None = None, **named: Unpack[ByName]
    ) -> "Explanation":
        """Do what `explain` does, awaitable."""
        rules = self._rules_of(domain)
        request = rules.attributes.request_of(attributes)
        if rules.attributes.awaited:
            await rules.attributes.resolve(request)
        return await adrive(self._storage.store, self._explaining(rules, request, cost, named))

    def reset(self, attributes: Arguments, *, domain: str | None = None, **named: Unpack[ByName]) -> None:
        """Forget the counters that `check` would ask for these attributes, and those of the CORS preflights with them.

        Args:
            attributes: As for `check`.
            domain: As for `check`.
            named: As for `check`.

        Raises:
            LookupError: The rules do not have this domain or this rule.
            ValueError: An attribute is unknown, or the rule cannot have this limit.
            TypeError: The key or the limit has another type, or is given without a rule.
            StoreUnavailable: The store does not answer.
        """
        keys = self._keys(attributes, domain, named)
        if keys:
            self._storage.local.forget(keys)
            self._storage.store.forget(keys)

    async def areset(self, attributes: Arguments, *, domain: str | None = None, **named: Unpack[ByName]) -> None:
        """Do what `reset` does, awaitable."""
        keys = self._keys(attributes, domain, named)
        if keys:
            self._storage.local.forget(keys)
            await self._storage.store.aask(forget_request(keys))

    def reset_all(self) -> None:
        """Reset all counters to unused and lift all bans, for example between two tests.

        On Redis, only the keys of the limiter's domains are deleted. They are found with SCAN, which examines every key
        of the database, 500 at a time: about a second for a million keys of any owner. Requests are served
        during that time, but another process may deny by what it remembers for up to five seconds. Requests in flight,
        deferred requests, overrides and the switch stay.

        Raises:
            StoreUnavailable: The store does not answer. Some counters may already be reset.
        """
        self._storage.settle()
        for store in (self._storage.store, self._storage.local):
            for part in self.rules.parts:
                keys = [key for key in store.keys(f"{part.key}:") if key.endswith("}")]
                for start in range(0, len(keys), _MAX_FORGOTTEN):
                    store.forget(keys[start : start + _MAX_FORGOTTEN])

    areset_all = in_thread(reset_all)

    def close(self) -> None:
        """Stop looking for newer rules and close the connections to the store. A second call does nothing."""
        self._stop()
        self._storage.close()

    async def aclose(self) -> None:
        """Do what `close` does, awaitable."""
        self._stop()
        await self._storage.aclose()

    def _stop(self) -> None:
        LIMITERS[self] = False
        self._retriever.stop()
        for close in self._closers:
            close()

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

    def _rules_of(self, domain: str | None) -> Rules:
        """The rules of one domain, or all. The domain counts as used. Raises LookupError if it is unknown."""
        rules = self.engine.current()
        if domain is None:
            return rules
        found = rules.of(domain)
        if found is None:
            raise LookupError(str(unknown_domain(domain, rules)))
        if rules.source is None:
            self.engine.planner.names.domains.add(domain)
        return found

    def _examine_loop(self, method: str) -> None:
        """Log once, among the first calls, that a blocking method is called in an event loop."""
        self._unexamined -= 1
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self._unexamined = 0
        logger.warning(
            "limiter.%s() was called in a running event loop, and blocks it until the store has answered: write "
            "await limiter.a%s(…) (logged once)",
            method,
            method,
        )

    def _acquisition(self, plan: Callable[[], tuple[Rules, Plan]], timeout: float) -> Steps[tuple[Verdict, Rules]]:
        return acquisition(self.engine, plan, self.clock, checked_timeout(timeout))

    def _checked(self, verdict: Verdict, rules: Rules, attributes: Arguments) -> Decision:
        if not verdict.simple:
            self.engine.report(verdict, rules, attributes)
        return verdict.decision

    def _plan(
        self, attributes: Arguments, cost: int, domain: str | None, named: ByName, *, commit: bool = True
    ) -> tuple[Rules, Plan]:
        rules, asked = self._rules_of(domain), named_rule(**named) if named else None
        return rules, self.engine.planner.plan_given(rules, attributes, cost, asked, commit=commit)

    def _lists(self, domain: str, lists: Sequence[EntryList | Sequence[tuple[str, str]]], hits: int) -> "ListsRequest":
        from ratelimit_mw.envoy.lists import ListsRequest  # imported late: most apps do not use it

        self._require_rules("check_lists()")
        return ListsRequest(self.engine, self._rules_of(domain), lists, hits)

    def _explaining(self, rules: Rules, request: Request, cost: int, named: ByName) -> "Steps[Explanation]":
        from ratelimit_mw.decision.explanation import explaining  # imported late: most apps do not use it

        self._require_rules("explain()")
        return explaining(self.engine, rules, request, cost, named_rule(**named) if named else None)

    def _require_rules(self, method: str) -> None:
        if self.rules.asking is not None:
            raise RuntimeError(
                f"{method} needs the rules, which only the service at storage.url has: ask the service itself"
            )

    def _keys(self, attributes: Arguments, domain: str | None, named: ByName) -> list[str]:
        rules = self._rules_of(domain)
        request = rules.attributes.request_of(attributes)
        by_name = self.engine.planner.by_name
        charges = by_name(named_rule(**named), rules, request, 1, holding=True) if named else rules.plan(request)
        keys = [] if charges is BLOCKED else [charge.ask.key for charge in charges]
        return list(dict.fromkeys([*keys, *map(preflight_key, keys)]))


def _follow(limiter: "ref[RateLimiter]") -> Callable[[Rules], None]:
    """A check that shows each version of the rules to the followers."""

    def check(rules: Rules) -> None:
        known = limiter()
        if known is not None:
            for follow in known.followers:
                follow(known, rules)

    return check
