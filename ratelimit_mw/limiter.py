"""RateLimiter: what an app calls. It has the rules and the store of an engine, and speaks in decisions."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.kill_switch import Switch
from ratelimit_mw.decision.planning import Arguments, Plan, described, of_domain, planned
from ratelimit_mw.decision.storage import Storage
from ratelimit_mw.deferral.service import DeferralService
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Decision
from ratelimit_mw.reload.override_list import OverrideList
from ratelimit_mw.reload.watcher import Retriever, State
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.preflights import preflight_key, sent_with_preflights
from ratelimit_mw.settings import ResponseSettings
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.records import open_records

if TYPE_CHECKING:
    from ratelimit_mw.decision.explanation import Explanation, Question


class RateLimiter:
    """Decides what may pass, by the rules in `config`, over counters in one store.

    `config` is a path to a rules file or to a folder of them, a mapping of the same shape, or the URL of a rules
    database; newer rules are taken up without a restart. `storage`, a URL or a store object, wins over the file's.
    `clock` (a `ManualClock`) replaces the store's own, for tests. Raises ConfigurationError
    with every problem found. Threads and event loops may share one limiter; it is safe after a fork.
    """

    def __init__(
        self,
        config: str | os.PathLike[str] | Mapping[str, object],
        *,
        storage: str | Store | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._retriever = retriever = Retriever(config, clock)
        self._storage = Storage(retriever.rules, storage, clock)
        if not self._storage.url.startswith("memory:"):
            # Overrides lie where the counters do; a store object has no room for them, so the rules' URL holds then.
            retriever.keep_overrides(open_records(self._storage.url))
        self.engine = Engine(retriever, self._storage, clock)
        """What the middlewares ask: it takes requests, and gives verdicts."""
        self.deferrals = DeferralService(self._storage.url, clock)
        """The queue of deferred requests, for rules that defer at their limit."""
        self.overrides = OverrideList(retriever, clock)
        """What holds for single clients instead of the rules, changed at run time: limits, blocks, exemptions."""
        self.switch = Switch(retriever, self.engine.planner.switch, clock)
        """Turns everything off, or to shadow, at run time."""
        self.shadow_denials: Counter[str] = self.engine.shadows.denials
        """How often each shadow rule would have denied, by its name."""
        self.shadow_bans: Counter[str] = self._storage.bans.shadows
        """How many bans each shadow rule would have begun, by its name."""
        self.shed: Counter[str] = self.engine.planner.shedder.counts
        """How many requests of each priority were shed."""

    @property
    def rules(self) -> Rules:
        """The rules in force."""
        return self._retriever.rules

    @property
    def state(self) -> State:
        """Which version of the rules is in force, since when, and why a newer one is not."""
        return self._retriever.state

    @property
    def response(self) -> ResponseSettings:
        """What a denied client is told."""
        return self._retriever.rules.response

    @property
    def in_memory(self) -> bool:
        """Whether the counters are in this process's memory alone."""
        return self._storage.in_memory

    def require(self, check: Callable[[Rules], None]) -> None:
        """Refuse rules for which `check` raises ConfigurationError: those in force, and all that come later."""
        self._retriever.require(check)

    def reload(self) -> None:
        """Fetch the newest rules and overrides now.

        Raises ConfigurationError where the rules can't be used, and then the last good ones stay in force;
        StoreUnavailable where the overrides can't be read.
        """
        self._retriever.look()

    async def areload(self) -> None:
        """The awaitable twin of `reload`."""
        await asyncio.to_thread(self.reload)

    def check(self, attributes: Arguments, cost: int = 1, *, domain: str | None = None) -> Decision:
        """Decide on a request that has these attributes, and charge it `cost` if it is allowed.

        Attributes go by the names that rules use: `remote_address` (or `ip`), `user`, `path`, `header:N` …; what
        is not given matches no `match`. A list of (key, value) pairs in place of a mapping is one list of entries:
        the `descriptors` alone are asked, at its exact depth. `domain` asks one file of a folder alone; an unknown
        one limits nothing. Raises ValueError for a negative cost.
        """
        rules, plan = self._plan(attributes, cost, domain)
        return self.engine.execute(plan, rules).decision

    async def acheck(self, attributes: Arguments, cost: int = 1, *, domain: str | None = None) -> Decision:
        """The awaitable twin of `check`."""
        rules, plan = self._plan(attributes, cost, domain)
        return (await self.engine.aexecute(plan, rules)).decision

    def peek(self, attributes: Arguments, cost: int = 1, *, domain: str | None = None) -> Decision:
        """Whether `check` would allow it now, and how the counters stand; nothing is charged."""
        rules, plan = self._plan(attributes, cost, domain, commit=False)
        return self.engine.execute(plan, rules, commit=False).decision

    async def apeek(self, attributes: Arguments, cost: int = 1, *, domain: str | None = None) -> Decision:
        """The awaitable twin of `peek`."""
        rules, plan = self._plan(attributes, cost, domain, commit=False)
        return (await self.engine.aexecute(plan, rules, commit=False)).decision

    def explain(self, attributes: Arguments | Request, cost: int = 1, *, domain: str | None = None) -> "Explanation":
        """Why `check` would decide as it would now: each rule, its counters, and what would have to change.

        Nothing is charged. In place of attributes it takes a request, as those of `ratelimit_mw.identity`.
        """
        rules = of_domain(self.engine.current(), domain)
        question = self._question(rules, described(rules, attributes), cost)
        try:
            reply = self._storage.store.decide(question.asks, commit=False) if question.asks else None
        except StoreUnavailable as error:
            return question.unanswered(error)
        return question.answered(reply)

    async def aexplain(
        self, attributes: Arguments | Request, cost: int = 1, *, domain: str | None = None
    ) -> "Explanation":
        """The awaitable twin of `explain`."""
        rules = of_domain(self.engine.current(), domain)
        request = described(rules, attributes)
        if rules.attributes.awaited:
            await rules.attributes.resolve(request)
        question = self._question(rules, request, cost)
        try:
            reply = await self._storage.store.adecide(question.asks, commit=False) if question.asks else None
        except StoreUnavailable as error:
            return question.unanswered(error)
        return question.answered(reply)

    def reset(self, attributes: Arguments, *, domain: str | None = None) -> None:
        """Forget the counters that `check` would ask for these attributes, and those of CORS preflights beside them.

        Raises StoreUnavailable.
        """
        keys = self._keys(attributes, domain)
        if keys:
            self._storage.local.forget(keys)
            self._storage.store.forget(keys)

    async def areset(self, attributes: Arguments, *, domain: str | None = None) -> None:
        """The awaitable twin of `reset`."""
        keys = self._keys(attributes, domain)
        if keys:
            self._storage.local.forget(keys)
            await self._storage.store.aforget(keys)

    def close(self) -> None:
        """Look for newer rules no more, and let go of the store's connections, unless the store was handed in."""
        self._retriever.stop()
        self.deferrals.close()
        self._storage.close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        self._retriever.stop()
        self.deferrals.close()
        await self._storage.aclose()

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

    def _plan(self, attributes: Arguments, cost: int, domain: str | None, *, commit: bool = True) -> tuple[Rules, Plan]:
        rules = self.engine.current()
        if domain is not None:
            rules = of_domain(rules, domain)
        return rules, self.engine.planner.plan_given(rules, attributes, cost, commit=commit)

    def _question(self, rules: Rules, request: Request, cost: int) -> "Question":
        from ratelimit_mw.decision.explanation import Question  # imported late: most apps never ask

        return Question(self.engine, rules, request, cost)

    def _keys(self, attributes: Arguments, domain: str | None) -> list[str]:
        rules = of_domain(self.engine.current(), domain)
        keys = _keys_asked(rules, attributes)
        beside = list(keys)
        if isinstance(attributes, Mapping):  # the preflights of this client come without its credentials
            beside += _keys_asked(
                rules, {name: text for name, text in attributes.items() if sent_with_preflights(name)}
            )
        return list(dict.fromkeys([*keys, *map(preflight_key, beside)]))


def _keys_asked(rules: Rules, attributes: Arguments) -> list[str]:
    charges = planned(rules, described(rules, attributes), 1)
    return [] if charges is BLOCKED else [charge.ask.key for charge in charges]
