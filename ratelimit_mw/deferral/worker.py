"""The worker that replays deferred requests while the load is low."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import httpx

from ratelimit_mw.deferral import deferrals_of
from ratelimit_mw.deferral.queue import (
    HEADER,
    Queue,
    QueuedRequest,
    QueueEntry,
    StoredRequest,
    replay_header,
)
from ratelimit_mw.errors import Lost, NotSent, StoreUnavailable, Unsendable
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.logs import logger
from ratelimit_mw.model import SECOND

T = TypeVar("T")

_SOON = 1.0
"""Seconds until a request is tried again if the app was unavailable or busy."""

_MAX_WAIT = 300.0
"""The longest time between two attempts, in seconds. The time starts at one second and doubles with each failure."""

_RETRIED_STATUSES = frozenset({429, *range(500, 600)})

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class AppResponse(NamedTuple):
    """A response. `body` is None if it was too long to be kept. The names in `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None


class Target:
    """The app at a URL. Proxies of the environment are not used.

    Args:
        url: The URL of the app.
        transport: What sends the requests, for tests. None: connections to the URL.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)  # a request on an idle connection may be lost
        self._client = httpx.AsyncClient(limits=limits, timeout=None, trust_env=False, transport=transport)  # noqa: S113  the worker has one
        self._base = httpx.URL(url)

    async def send(self, stored: StoredRequest, body: bytes, more: Mapping[str, str], most: int) -> AppResponse:
        """Send a request once, with additional headers (`more`). Return the response, with at most `most` bytes of it.

        Raises:
            NotSent: The request did not reach the app.
            Unsendable: The stored request is not a valid HTTP request.
            Lost: The result is unknown. It is also unknown if the call is cancelled.
        """
        request = _request(self._base, stored, body, more)
        try:
            response = await self._client.send(request, stream=True)
            try:
                kept: list[bytes] | None = []
                length = 0
                async for part in response.aiter_bytes():
                    length += len(part)
                    kept = None if kept is None or length > most else [*kept, part]
            finally:
                await response.aclose()
        except _NOT_SENT as error:
            raise NotSent(str(error)) from error
        except httpx.LocalProtocolError as error:  # a header or the method is refused, before anything is sent
            raise Unsendable(type(error).__name__) from error  # its text may have the value of the header
        except httpx.HTTPError as error:
            raise Lost(type(error).__name__) from error
        return AppResponse(response.status_code, response.headers, None if kept is None else b"".join(kept))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _request(base: httpx.URL, stored: StoredRequest, body: bytes, more: Mapping[str, str]) -> httpx.Request:
    """Build the HTTP request. Raises Unsendable if the stored request is not a valid one."""
    try:
        lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in stored.headers]
        lines += [(name.encode(), value.encode()) for name, value in more.items()]
        lines.append((b"accept-encoding", b"identity"))  # so that the stored response is readable
        url = base.copy_with(raw_path=base.raw_path.rstrip(b"/") + stored.target.encode("latin-1"))
        return httpx.Request(stored.method, url, headers=lines, content=body or None)
    except Exception as error:  # whatever is wrong with the stored request, it was not sent
        raise Unsendable(type(error).__name__) from error


class Worker:
    """Replays the requests in the queue of `limiter` to `target`.

    The middleware of the app decides on each replay. It refuses one that the limits of the client do not allow, and any
    while the app is busy, and says when to repeat it. A request is also tried again if the app failed (5xx, 429) or did
    not receive it. Its result may be unknown: it took longer than `timeout`, the connection broke, or a worker died.
    Such a request is reported as unknown and is not sent again automatically. The requests of one identity keep their
    order.

    Args:
        limiter: the limiter that has deferred the requests.
        target: sends the requests to the app.
        at_once: the largest number of requests that run at the same time.
        timeout: seconds to wait for a response.
        listen: seconds to wait for an entry in an empty queue. A worker notices `stop` within this time.
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
        self._slots = asyncio.Semaphore(at_once)
        self._stopping = False
        self._running: dict[asyncio.Task[None], str] = {}
        self._looked_for_dead = 0.0
        self._unavailable = False
        self._rules = limiter.rules
        # A connection of its own: a listener blocks all other users of its connection.
        self._listener = deferrals_of(limiter).separate_queue(self._rules)

    def stop(self) -> None:
        """Take no more requests. `run` returns when the running requests are settled."""
        self._stopping = True

    async def run(self) -> None:
        """Replay requests until `stop` is called."""
        while not self._stopping:
            await self._slots.acquire()
            entry = await self._next()
            if entry is None:
                self._slots.release()
            else:
                task = asyncio.ensure_future(self._carry_out(entry))
                self._running[task] = entry.number
                task.add_done_callback(self._done)
        if self._running:
            await asyncio.wait(self._running)
        await self._leave()

    def _done(self, task: "asyncio.Task[None]") -> None:
        del self._running[task]
        self._slots.release()
        error = task.exception()
        if error is not None:
            trace = None if isinstance(error, StoreUnavailable) else error
            logger.error(
                "worker: a request was interrupted, and a worker will claim it again: %s", error, exc_info=trace
            )

    @property
    def _queue(self) -> Queue:
        return deferrals_of(self._limiter).queue(self._rules)

    async def _next(self) -> QueueEntry | None:
        """Wait for the next entry. Return None if none comes within `listen` seconds."""
        self._rules = self._limiter.engine.current()
        try:
            left = await asyncio.to_thread(self._queue.promote)
            entry = None
            if time.monotonic() >= self._looked_for_dead + self._idle / 4:
                entry = await asyncio.to_thread(self._queue.claim, self._name, self._idle)
                if entry is None:  # else there may be more entries that a worker has lost
                    self._looked_for_dead = time.monotonic()
                elif entry.number in self._running.values():  # an entry of this worker that is slow
                    entry = None
            if entry is None:
                seconds = self._listen if left is None else min(max(left, 0.001), self._listen)
                entry = await asyncio.to_thread(self._listener.next, self._name, seconds)
        except StoreUnavailable as error:
            if not self._unavailable:
                logger.warning("worker: the queue is away (%s)", error)
            self._unavailable = True
            await asyncio.sleep(_SOON)
            return None
        if self._unavailable:
            logger.warning("worker: the queue is back")
            self._unavailable = False
        return entry

    async def _carry_out(self, entry: QueueEntry) -> None:
        try:
            job = await asyncio.to_thread(self._queue.load, entry.id)
        except ValueError:
            await self._settle(entry, "parked", {"reason": "the stored request can't be read"})
            return
        if job is not None and job.state == "running":
            await self._settle(entry, "unknown", {"reason": "the worker stopped while the request was in progress"})
        elif job is not None and job.state == "queued":
            await self._try(entry, job)
        else:
            await asyncio.to_thread(self._queue.forget, entry)

    async def _try(self, entry: QueueEntry, job: QueuedRequest) -> None:
        left = self._rules.defer.keep - job.age / SECOND
        if left < 0:
            await self._settle(entry, "parked", {"reason": "the limit did not allow the request in time"})
            return
        ticket = deferrals_of(self._limiter).tokens(self._rules).ticket(entry.id)
        attempt = 0
        try:
            attempt = await asyncio.to_thread(self._queue.begin, entry, ticket)
            if not attempt:  # another worker has taken it over
                return
            more = {HEADER: replay_header(entry.id, ticket)}
            if "idempotency-key" not in dict(job.request.headers):
                more["idempotency-key"] = entry.id
            async with asyncio.timeout(self._timeout):
                answer = await self._target.send(job.request, job.body, more, self._rules.defer.max_body)
        except NotSent as error:
            logger.warning("worker: the app is away (%s)", error)
            await self._postpone(entry, _SOON, counted=False)
        except Unsendable as error:
            await self._settle(entry, "parked", {"reason": f"the request can't be sent: {error}"})
        except StoreUnavailable:  # the attempt may have begun, but the request was not sent
            await self._postpone(entry, _SOON)
        except (Lost, TimeoutError) as error:
            reason = f"no response within {self._timeout:g} s" if isinstance(error, TimeoutError) else str(error)
            await self._settle(entry, "unknown", {"reason": f"the result is not known: {reason}"})
        else:
            # The request is tried again at the end of its retention at the latest, so that its status is reported.
            await self._conclude(entry, attempt, answer, left + _SOON)

    async def _conclude(self, entry: QueueEntry, attempt: int, answer: AppResponse, most: float) -> None:
        """Report the response to an attempt. One that the middleware refused is repeated within `most` seconds."""
        refusal = answer.headers.get(HEADER)
        if refusal == "stale":  # another worker has taken it over, and reports it
            return
        if refusal == "never":
            await self._settle(entry, "parked", {"reason": "the limit will never allow the request"})
            return
        if refusal is not None:
            await self._postpone(entry, min(float(refusal), most), counted=False)
            return
        shown: dict[str, str | bytes | int] = {
            "status": answer.status,
            "type": answer.headers.get("content-type", ""),
            **({} if answer.body is None else {"answer": answer.body}),
        }
        if answer.status not in _RETRIED_STATUSES:
            await self._settle(entry, "done", shown)
        elif attempt < self._rules.defer.max_attempts:
            await self._postpone(entry, min(2.0 ** (attempt - 1), _MAX_WAIT))
        else:
            reason = f"the request failed {attempt} time{'s' * (attempt != 1)}"
            await self._settle(entry, "parked", {"reason": reason, **shown})

    async def _postpone(self, entry: QueueEntry, seconds: float, *, counted: bool = True) -> None:
        await self._report(lambda: self._queue.postpone(entry, seconds, counted=counted))

    async def _settle(self, entry: QueueEntry, state: str, fields: Mapping[str, str | bytes | int]) -> None:
        if state != "done":
            logger.warning("worker: %s is %s: %s", entry.id, state, fields["reason"])
        if not await self._report(lambda: self._queue.settle(entry, state, fields)):
            logger.warning("worker: %s is %s, but another worker has already reported another result", entry.id, state)

    async def _report(self, report: Callable[[], T]) -> T:
        """Report a result to the queue. Retry while the store is unavailable: only this worker has the result."""
        give_up = time.monotonic() + self._idle
        while True:
            try:
                return await asyncio.to_thread(report)
            except StoreUnavailable:
                if time.monotonic() > give_up:
                    raise
            await asyncio.sleep(_SOON)

    async def _leave(self) -> None:
        try:
            if not await asyncio.to_thread(self._queue.pending, self._name):  # else another worker must claim them
                await asyncio.to_thread(self._queue.leave, self._name)
        except StoreUnavailable:
            logger.debug("worker: %s could not leave the consumer group", self._name)
        self._listener.close()
