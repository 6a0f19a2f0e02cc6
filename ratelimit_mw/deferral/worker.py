"""The worker that replays deferred requests while the load is low."""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from ratelimit_mw.decision.engine import without_max_wait
from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.decision.settlement import Account
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.deferral.queue import Queue
from ratelimit_mw.deferral.replay import Answer, DeferredRequest, Target
from ratelimit_mw.deferral.stored_request import HEADER, Entry, Job, StoredRequest, unpacked, written
from ratelimit_mw.errors import Lost, NotSent, StoreUnavailable, Unsendable
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import NEVER, SECOND

_log = logging.getLogger("ratelimit_mw")

T = TypeVar("T")

_SOON = 1.0
"""Seconds until a request is tried again that has not reached the app: it was away, or had no time."""

_LONGEST = 300.0
"""Seconds between two attempts at most; each failure doubles them."""

_UNREADABLE = "what was kept of it can't be read"

_TRIED_AGAIN = frozenset({429, *range(500, 600)})


class Worker:
    """Carries out what lies in the queue of `limiter`, at `target`; `at_once` requests are under way at most.

    A request is replayed when its client's limits allow it, which are charged then, and when the app has time. It is
    tried again where the app answered that it failed (5xx, 429) or did not receive it. Where its result is not known
    (it took longer than `timeout` seconds, the connection broke, a worker died), it is reported as unknown and is never
    sent again by itself. The requests of one identity keep their order.

    One look into an empty queue takes `listen` seconds, which is the longest until a worker hears that it is to stop.
    """

    def __init__(
        self, limiter: RateLimiter, target: Target, *, at_once: int = 8, timeout: float = 30.0, listen: float = 1.0
    ) -> None:
        self._limiter = limiter
        self._target = target
        self._timeout = timeout
        self._idle = 2 * timeout + 2
        self._listen = listen
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._places = asyncio.Semaphore(at_once)
        self._stopping = False
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._timers: set[asyncio.Task[None]] = set()
        self._looked_for_dead = 0.0
        self._away = False
        self._mislaid = False
        self._rules = limiter.rules
        # A connection of its own: a listener blocks all other users of its connection.
        self._listener = limiter.deferrals.another_queue(self._rules)

    def stop(self) -> None:
        """Take no more requests; `run` returns when those under way are settled."""
        self._stopping = True

    async def run(self) -> None:
        """Work until `stop`."""
        while not self._stopping:
            await self._places.acquire()
            entry = await self._next()
            if entry is None:
                self._places.release()
            else:
                task = asyncio.ensure_future(self._carry_out(entry))
                self._under_way[task] = entry.number
                task.add_done_callback(self._done)
        if self._under_way:
            await asyncio.wait(self._under_way)
        for timer in self._timers:
            timer.cancel()
        await self._leave()

    def _done(self, task: "asyncio.Task[None]") -> None:
        del self._under_way[task]
        self._places.release()
        error = task.exception()
        if error is not None:
            away = isinstance(error, StoreUnavailable)
            self._mislaid = self._mislaid or away  # what fails here for another reason would fail again at once
            _log.error("worker: a request has to be taken up again: %s", error, exc_info=None if away else error)

    @property
    def _queue(self) -> Queue:
        return self._limiter.deferrals.queue(self._rules)

    async def _next(self) -> Entry | None:
        """The next request to try; None after a while without one."""
        self._rules = self._limiter.engine.current()
        try:
            left = await asyncio.to_thread(self._queue.promote)
            entry = await self._mislaid_entry() if self._mislaid else None
            if entry is None and time.monotonic() >= self._looked_for_dead + self._idle / 4:
                entry = await asyncio.to_thread(self._queue.claim, self._name, self._idle)
                if entry is None:  # else the worker that left one may have left more
                    self._looked_for_dead = time.monotonic()
                elif entry.number in self._under_way.values():  # it is our own, and a slow one
                    entry = None
            if entry is None:
                seconds = self._listen if left is None else min(max(left, 0.001), self._listen)
                entry = await asyncio.to_thread(self._listener.next, self._name, seconds)
        except StoreUnavailable as error:
            if not self._away:
                _log.warning("worker: the queue is away (%s)", error)
            self._away = self._mislaid = True  # it may have answered, and the answer was lost
            await asyncio.sleep(_SOON)
            return None
        if self._away:
            _log.warning("worker: the queue is back")
            self._away = False
        return entry

    async def _mislaid_entry(self) -> Entry | None:
        """A request that this worker was handed and does not know of."""
        handed_out = await asyncio.to_thread(self._queue.handed_out, self._name)
        known = self._under_way.values()
        entry = next((entry for entry in handed_out if entry.number not in known), None)
        self._mislaid = entry is not None
        return entry

    async def _carry_out(self, entry: Entry) -> None:
        try:
            job = await asyncio.to_thread(self._queue.load, entry.id)
        except ValueError:
            await self._settle(entry, "parked", {"reason": _UNREADABLE})
            return
        if job is None:
            await asyncio.to_thread(self._queue.forget, entry)
        elif job.state == "running":
            await self._settle(entry, "unknown", {"reason": "its worker stopped while it was under way"})
        elif job.state == "queued":
            await self._try(entry, job)
        else:
            await asyncio.to_thread(self._queue.forget, entry)

    async def _try(self, entry: Entry, job: Job) -> None:
        left = self._rules.defer.keep - job.age / SECOND
        if left < 0:
            await self._settle(entry, "parked", {"reason": "its limit did not allow it in time"})
            return
        try:
            envelope = unpacked(job.request)
        except ValueError:
            await self._settle(entry, "parked", {"reason": _UNREADABLE})
            return
        verdict = await self._decided(envelope)
        if verdict.allowed:
            await self._replay(entry, job, envelope, verdict)
        elif verdict.outcome is None:  # blocked by an operator, or the store is away
            await self._postpone(entry, _LONGEST if verdict.reason == "blocked" else _SOON)
        elif verdict.outcome.retry_after == NEVER:
            await self._settle(entry, "parked", {"reason": "its limit will never allow it"})
        else:
            # No longer than it is kept: then it is reported.
            await self._postpone(entry, min(verdict.outcome.retry_after / SECOND, left + _SOON))

    async def _decided(self, envelope: StoredRequest) -> Verdict:
        """What its client's limits say now. It does not wait, so other requests may go first."""
        request = DeferredRequest(envelope)
        if self._rules.attributes.awaited:
            await self._rules.attributes.resolve(request)
        engine = self._limiter.engine
        plan = engine.planner.plan(self._rules, request)
        if self._rules.waiting and plan.asks:
            plan = Plan(without_max_wait(plan.charges))
        return await engine.aexecute(plan, self._rules)

    async def _replay(self, entry: Entry, job: Job, envelope: StoredRequest, verdict: Verdict) -> None:
        settlement = self._limiter.engine.settlement
        account = settlement.account(verdict)
        ticket = self._limiter.deferrals.marks(self._rules).ticket(entry.id)
        attempt = 0
        try:
            attempt = await asyncio.to_thread(self._queue.begin, entry, ticket)
            if not attempt:  # another worker has taken it over
                await self._give_back(account)
                return
            more = {HEADER: written(entry.id, ticket)}
            if envelope.header("idempotency-key") is None:
                more["idempotency-key"] = entry.id
            async with asyncio.timeout(self._timeout):
                answer = await self._target.send(envelope, job.body, more, self._rules.defer.max_body)
        except NotSent as error:
            await self._give_back(account)
            _log.warning("worker: the app is away (%s)", error)
            await self._postpone(entry, _SOON, counted=False)
        except Unsendable as error:
            await self._give_back(account)
            await self._settle(entry, "parked", {"reason": f"it can't be sent: {error}"})
        except StoreUnavailable:  # whether it has begun or not: it was not sent
            await self._give_back(account)
            await self._postpone(entry, _SOON)
        except (Lost, TimeoutError) as error:
            reason = f"no answer within {self._timeout:g} s" if isinstance(error, TimeoutError) else str(error)
            await self._settle(entry, "unknown", {"reason": f"the result of the app is not known: {reason}"})
        else:
            await self._conclude(entry, attempt, account, answer)
        finally:
            await settlement.asettle(account, account.end())

    async def _conclude(self, entry: Entry, attempt: int, account: Account, answer: Answer) -> None:
        said = answer.headers.get(HEADER)
        if said == "busy":
            await self._give_back(account)
            await self._postpone(entry, _SOON, counted=False)
            return
        if said == "stale":
            await self._give_back(account)  # another worker has taken it over, and reports it
            return
        await self._limiter.engine.settlement.asettle(account, account.conclude(answer.status, answer.headers.get))
        shown: dict[str, str | bytes | int] = {
            "status": answer.status,
            "type": answer.headers.get("content-type", ""),
            **({} if answer.body is None else {"answer": answer.body}),
        }
        if answer.status not in _TRIED_AGAIN:
            await self._settle(entry, "done", shown)
        elif attempt < self._rules.defer.max_attempts:
            await self._postpone(entry, min(2.0 ** (attempt - 1), _LONGEST))
        else:
            reason = f"it failed {attempt} time{'s' * (attempt != 1)}"
            await self._settle(entry, "parked", {"reason": reason, **shown})

    async def _give_back(self, account: Account) -> None:
        await self._limiter.engine.settlement.asettle(account, account.back(None))

    async def _postpone(self, entry: Entry, seconds: float, *, counted: bool = True) -> None:
        await self._insist(lambda: self._queue.postpone(entry, seconds, counted=counted))
        if seconds < self._listen:  # sooner than the next look into the queue
            timer = asyncio.ensure_future(self._promote_in(seconds))
            self._timers.add(timer)
            timer.add_done_callback(self._timers.discard)

    async def _promote_in(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        try:
            await asyncio.to_thread(self._queue.promote)
        except StoreUnavailable:
            return  # the next look will tell

    async def _settle(self, entry: Entry, state: str, fields: Mapping[str, str | bytes | int]) -> None:
        if state != "done":
            _log.warning("worker: %s is %s: %s", entry.id, state, fields["reason"])
        if not await self._insist(lambda: self._queue.settle(entry, state, fields)):
            _log.warning("worker: %s is %s, but another worker has reported it otherwise", entry.id, state)

    async def _insist(self, say: Callable[[], T]) -> T:
        """Report the result to the queue. It tries again while the store is away: only this worker has the result."""
        give_up = time.monotonic() + self._idle
        while True:
            try:
                return await asyncio.to_thread(say)
            except StoreUnavailable:
                if time.monotonic() > give_up:
                    raise
            await asyncio.sleep(_SOON)

    async def _leave(self) -> None:
        try:
            if not await asyncio.to_thread(self._queue.handed_out, self._name):  # else it is left to be claimed
                await asyncio.to_thread(self._queue.leave, self._name)
        except StoreUnavailable:
            _log.debug("worker: the group is not told that %s has left", self._name)
        self._listener.close()
