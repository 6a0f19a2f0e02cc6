"""The method ShouldRateLimit: from the bytes of a request to the bytes of its answer. It knows no transport.

This module is internal: its names may change in any release.
"""

import logging
from collections.abc import Callable, Sequence

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.envoy.lists import ListsRequest, NotRefundable
from ratelimit_mw.http.answers import LatestAnswers
from ratelimit_mw.logs import Once
from ratelimit_mw.model import ListStatus
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.service.messages import DecodedRequest, Header, Refused, TooLong, Writer, go_headers, passed, read
from ratelimit_mw.service.state import Service
from ratelimit_mw.stores.base import adrive

logger = logging.getLogger("ratelimit_mw.service")

_LONGEST_KEPT = 512
"""The longest message whose plan is kept, in bytes."""


class NotPermitted(Refused):
    """The request gives hits back, and its caller may not do so."""


class ShouldRateLimit:
    """Answers requests. Each is one plan and one call to the store.

    Args:
        service: What the servers of the process share.
    """

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self._service = service
        self._engine = service.limiter.engine
        self._max_message = settings.max_message
        self._headers = settings.headers
        self._body = settings.body
        self._bare = settings.headers == "off" and not settings.body
        self._writer = Writer()
        self._answers = LatestAnswers[str](name=str, value=str)
        self._once = Once()

    async def answer(self, data: bytes, may_refund: Callable[[], bool] = bool) -> bytes:
        """Decide on the request in `data`, charge it if it is allowed, and return the response.

        Args:
            data: The bytes of the request.
            may_refund: Tells whether the caller may give hits back. It is asked only for such a request.

        Raises:
            Refused: The request cannot be decided. It is counted, and nothing was charged.
        """
        engine = self._engine
        rules = engine.current()
        # Proxies ask the same again: the plan of a request is kept, as `check` keeps it.
        plans = None if engine.planner.switch.thrown else rules.plans
        asked: ListsRequest | None = plans.get(data) if plans is not None else None
        if asked is None:
            request = self._read(data)
            found = rules.of(request.domain)
            if found is None:
                self._service.unknown_domains += 1
                self._service.warn("unknown domain", "a request passed without a limit: no rules have its domain")
                return passed(len(request.lists))
            asked = self._planned(found, request)
            if (
                plans is not None
                and len(data) <= _LONGEST_KEPT
                and plans.seen(data)
                and not engine.planner.switch.thrown  # it may have been turned during the call
            ):
                plans.put(data, asked)
        if asked.refunds:
            if not may_refund():
                self._service.refuse("the caller may not refund hits")
                raise NotPermitted("is_negative_hits needs a token or a certificate")
            await adrive(engine.storage.store, asked.giving_back())
        plan = asked.plan
        verdict = await engine.aexecute(plan, asked.rules)
        if verdict.charges is not plan.charges and plan.asks and (verdict.local or not verdict.outcomes):
            self._service.errors["redis_error"] += 1
        if plans is None and verdict.shadowed:
            self._service.shadowed += _only_the_switch_admits(verdict)
        statuses = asked.statuses(verdict)
        if self._bare:
            return self._writer.write(verdict.allowed, statuses)
        return self._writer.write(verdict.allowed, statuses, *self._added(asked, verdict, statuses))

    def _read(self, data: bytes) -> DecodedRequest:
        try:
            if len(data) > self._max_message:
                raise TooLong("the message is too long")
            return read(data)
        except Refused as error:
            self._refuse(str(error))
            raise

    def _planned(self, rules: Rules, request: DecodedRequest) -> ListsRequest:
        try:
            return ListsRequest(self._engine, rules, request.lists, request.hits)
        except NotRefundable as error:
            about = str(error)  # it names a rule of the file
            self._once(logger.warning, "is_negative_hits is refused: %s (logged once)", about, about=about)
            self._refuse("hits cannot be given back")
            raise Refused("hits cannot be given back to the limit of a descriptor") from None
        except ValueError:
            self._refuse("the entries are invalid")
            raise Refused("the entries are invalid") from None  # the error has what a client sent

    def _refuse(self, reason: str) -> None:
        self._service.refuse(reason)
        self._service.errors["service_error"] += 1

    def _added(
        self, asked: ListsRequest, verdict: Verdict, statuses: Sequence[ListStatus]
    ) -> tuple[list[Header], bytes]:
        """Return what the proxy adds to its response: the headers, and the body of a denial."""
        answers = self._answers.of(asked.rules)
        added: list[Header] = []
        if verdict.allowed:
            body = b""
            if self._headers == "rules":
                added = answers.add_headers((), verdict)
        else:
            denial = answers.denial(verdict, asked.request)
            body = denial.body if self._body else b""
            for name, value in denial.headers:
                about_body = name.lower().startswith("content-")
                if (body and name.lower() == "content-type") or (self._headers == "rules" and not about_body):
                    added.append((name, value))
        if self._headers == "go":
            added += go_headers(statuses)
        return added, body


def _only_the_switch_admits(verdict: Verdict) -> bool:
    """True if a limit denies the request that would be enforced if the switch were on."""
    pairs = zip(verdict.charges, verdict.outcomes, strict=True)
    return any(not (outcome.allowed or rule.shadow) for (rule, _), outcome in pairs)
