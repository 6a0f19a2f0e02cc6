"""Deferred requests: a request over its limit is queued in Redis instead of refused, and a worker replays it later.

This module decides on requests by rules that defer, and has the queue and the pages that an app needs.

The middlewares get the verdict, and what must serve the request: its app, or a page in place of the app.

This package is internal: its names may change in any release.
"""

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote
from wsgiref.types import WSGIApplication

from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.decision.waiting import waiting_at_most
from ratelimit_mw.deferral.queue import (
    HEADER,
    DeferredStatus,
    Queue,
    StoredRequest,
    Tokens,
    of_asgi,
    of_wsgi,
    random_id,
)
from ratelimit_mw.errors import ConfigurationError, Problem, StoreUnavailable
from ratelimit_mw.http.responses import App, ReadyResponse, Receive
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.identity.request import Request
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import NEVER, SECOND
from ratelimit_mw.process_local import lazy, lock
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.settings import DeferSettings
from ratelimit_mw.stores import STORES

T = TypeVar("T")

_ALWAYS = (
    ("Content-Type", "application/json"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),  # the page contains the body of a response
)

_MESSAGES = {
    "queued": "the request waits until its limit allows it",
    "running": "the request is in progress",
    "done": "the response is below",
    "parked": "the request was given up; an operator may retry it",
    "unknown": "the result is not known; the request may have been applied",
}


def _page(status: int, fields: str | Mapping[str, object], *headers: tuple[str, str]) -> ReadyResponse:
    """Return a page. `fields` are its JSON, or its message alone."""
    body = json.dumps({"message": fields} if isinstance(fields, str) else fields).encode()
    return ReadyResponse(status, (*_ALWAYS, *headers), body)


UNKNOWN = _page(404, "unknown or expired request")
UNAVAILABLE = _page(503, "Service temporarily unavailable", ("Retry-After", "1"))
NOT_ALLOWED = _page(405, "Method not allowed", ("Allow", "GET, HEAD"))
STALE = _page(409, "this attempt is over", (HEADER, "stale"))
"""For a replay whose attempt is over. Nothing was done."""
HOPELESS = _page(503, "the limit will never allow the request", (HEADER, "never"))
"""For a replay that the limits never allow. Nothing was done."""

_SOON = 1.0  # seconds until a request is tried again if the app or the store is unavailable or busy
_BLOCKED = 300.0  # and if an operator has blocked the client


def later_page(seconds: float = _SOON) -> ReadyResponse:
    """Return the response to a replay that must be repeated after this time. Nothing was done."""
    return _page(503, "the app does not take the request now", (HEADER, f"{seconds:.6f}"))


def accepted_page(location: str, wait: int) -> ReadyResponse:
    """Return the response to a deferred request: its status page is at `location`; ask again in `wait` seconds."""
    fields = {"state": "queued", "message": _MESSAGES["queued"], "location": location}
    return _page(202, fields, ("Location", location), ("Retry-After", str(wait)))


def status_page(status: DeferredStatus) -> ReadyResponse:
    """Return the status page of a request."""
    fields: dict[str, Any] = {"state": status.state, "message": _MESSAGES.get(status.state, "")}
    if status.reason:
        fields["reason"] = status.reason
    if status.status:
        fields["response"] = {"status": status.status, "content_type": status.kind, **_content(status.answer)}
    return _page(200, fields)


def _content(answer: bytes | None) -> dict[str, str]:
    """Return the body of a response as JSON fields, or no field if the body was too long to be kept."""
    if answer is None:
        return {}
    try:
        return {"body": answer.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(answer).decode()}


_NEVER_DEFERRED = frozenset({"HEAD", "OPTIONS", "TRACE", "CONNECT"})
_PAUSE = 1.0  # seconds for which the queue is not asked after it did not answer


class DeferralService:
    """The queue at the storage URL of a limiter, as the middlewares use it. Methods that ask the queue block.

    Args:
        limiter: The limiter. It closes the queue when it is closed.
    """

    _asking = lazy(lock)

    def __init__(self, limiter: RateLimiter) -> None:
        self._url = limiter.storage_url
        self._tally = limiter.engine.tally
        self._clock = limiter.clock
        self._load = limiter.engine.load
        self._opened: tuple[tuple[str, DeferSettings], Queue] | None = None
        self._unavailable_until = 0.0
        limiter.at_close(self._close)

    def require(self, rules: Rules) -> None:
        """Check that rules that defer have a queue. Raises ConfigurationError if the storage is not a Redis."""
        scheme = self._url.partition(":")[0]
        if rules.deferring and not STORES[scheme].server:
            names = ", ".join(rule.name for rule in rules.rules if rule.defers)
            message = f"on_limit: defer ({names}) needs a queue that outlives this process and that workers can reach"
            raise ConfigurationError([Problem(message, hint=f"set storage.url to a Redis; it is {scheme}:// now")])

    def status_asked(self, request: Request, rules: Rules) -> Callable[[], ReadyResponse] | None:
        """Return what makes the status page that a request asks for. None if it asks for none."""
        folder, _, name = request.path.rpartition("/")
        return partial(self._status, request.method, name, rules) if folder == rules.defer.path else None

    def _status(self, method: str, name: str, rules: Rules) -> ReadyResponse:
        if method not in ("GET", "HEAD"):
            return NOT_ALLOWED
        try:
            status = self._asked(rules, lambda queue: queue.status(name))
        except (StoreUnavailable, ValueError):  # ValueError: the stored status is unreadable
            return UNAVAILABLE
        return UNKNOWN if status is None else status_page(status)

    def replay_token(self, request: Request, rules: Rules) -> tuple[str, str] | None:
        """Return the id and the ticket that a worker has sent with a replay. None for any other request."""
        header = request.header(HEADER)
        return None if header is None else self.tokens(rules).read(header)

    def replay(self, token: tuple[str, str], rules: Rules) -> ReadyResponse | StoredRequest:
        """Return the stored request of a replay, which is to be decided, or the page that answers the worker."""
        found = self._stored(token, rules)
        if isinstance(found, ReadyResponse):
            self._tally.deferred(None, "returned")
        return found

    def _stored(self, token: tuple[str, str], rules: Rules) -> ReadyResponse | StoredRequest:
        if self._load(rules) >= rules.defer.below:
            return later_page()
        try:
            return self._asked(rules, lambda queue: queue.arrive(*token)) or STALE
        except StoreUnavailable:
            return later_page()  # the ticket may be used up, but the app did not get the request
        except ValueError:  # the stored request is unreadable
            return STALE

    def refused_replay(self, verdict: Verdict) -> ReadyResponse | None:
        """Return the page that answers the worker if the limits deny the replay. None if the app must get it."""
        self._tally.deferred(None, "replayed" if verdict.allowed else "returned")
        if verdict.allowed:
            return None
        if verdict.outcome is None:  # blocked by an operator, or the store is away
            return later_page(_BLOCKED if verdict.reason == "blocked" else _SOON)
        wait = verdict.outcome.retry_after
        return HOPELESS if wait == NEVER else later_page(wait / SECOND)

    def lane(self, verdict: Verdict, request: Request, rules: Rules, length: str | None) -> str | None:
        """Return the lane of a denied request: a hash of the key of the first counter that defers.

        None if the request must not be deferred: a rule that denies it does not defer, or its method or its length does
        not allow it. `length` is the value of the Content-Length header.
        """
        if verdict.local or not _defers(verdict) or request.method in _NEVER_DEFERRED:
            return None
        # A number may have thousands of zeros before it, which int() does not read.
        if length and not (
            length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= rules.defer.max_body
        ):
            return None
        if self.status_asked(request, rules) is not None:
            return None
        keys = (charge.ask.key for charge in rules.plan(request) if charge.rule.defers)
        key = next(keys, None)
        return None if key is None else _owner(rules).attributes.digest(key)

    def put(
        self, verdict: Verdict, rules: Rules, stored: StoredRequest, body: bytes, *, lane: str, root: str
    ) -> ReadyResponse | None:
        """Queue a request and return the page that says so, or None if the request must be refused.

        A request is refused if it cannot be replayed unchanged, or if the queue is full or unavailable. Requests of
        one `lane` are replayed in order. `root` is the path at which the app is mounted.
        """
        page = self._queued(verdict, rules, stored, body, lane=lane, root=root) if stored.replayable() else None
        self._tally.deferred(verdict.rule, "refused" if page is None else "queued")
        return page

    def _queued(
        self, verdict: Verdict, rules: Rules, stored: StoredRequest, body: bytes, *, lane: str, root: str
    ) -> ReadyResponse | None:
        name = random_id()
        fields: dict[str, str | bytes] = {
            "request": stored.packed(),
            "body": body,
            "rule": verdict.rule.name if verdict.rule else "",
        }
        try:
            if not self._asked(rules, lambda queue: queue.put(name, lane, fields)):
                return None
        except StoreUnavailable:
            return None
        wait = verdict.outcome.retry_after if verdict.outcome else verdict.wait
        mount = quote(root.strip("/"), safe="/")
        location = f"{'/' if mount else ''}{mount}{rules.defer.path}/{name}"
        return accepted_page(location, max(1, -(-wait // SECOND)))

    def _asked(self, rules: Rules, ask: Callable[[Queue], T]) -> T:
        """Return what `ask` returns. Raises StoreUnavailable, and at once if the queue did not answer just before."""
        with self._asking:  # if the queue does not answer, only the first of the waiting threads asks it
            if time.monotonic() < self._unavailable_until:
                raise StoreUnavailable("the queue did not answer a moment ago")
            try:
                return ask(self.queue(rules))
            except StoreUnavailable:
                self._unavailable_until = time.monotonic() + _PAUSE
                raise

    def tokens(self, rules: Rules) -> Tokens:
        """Return the object that makes and checks the tokens of these rules."""
        return Tokens(_owner(rules).attributes.digest)

    def queue(self, rules: Rules) -> Queue:
        """Return the queue for these rules. It is opened again if their settings have changed."""
        opened, wanted = self._opened, (_owner(rules).domain, rules.defer)
        if opened is None or opened[0] != wanted:
            if opened is not None:
                opened[1].close()
            opened = self._opened = wanted, self.separate_queue(rules)
        return opened[1]

    def separate_queue(self, rules: Rules) -> Queue:
        """Open the same queue over a separate connection. The caller must close it."""
        return Queue(self._url, _owner(rules).domain, rules.defer, self._clock)

    def _close(self) -> None:
        if self._opened is not None:
            self._opened[1].close()


def deferrals_of(limiter: RateLimiter) -> DeferralService:
    """Return the deferral service of a limiter. All of its middlewares share it."""
    return limiter.kept(DeferralService, lambda: DeferralService(limiter))


def _owner(rules: Rules) -> RuleSet:
    """Return the rules that own the queue: those of the first file that defers. A new file then does not move it."""
    return next((part for part in rules.parts if any(rule.defers for rule in part.rules)), rules.parts[0])


def _defers(verdict: Verdict) -> bool:
    """Return True if every counter that denies defers and may admit the request later.

    A request that was shed has no outcomes. `lane` decides whether it is deferred.
    """
    if verdict.reason == "shed":
        return True
    if verdict.reason != "limited" or verdict.rule is None or not verdict.rule.defers:
        return False
    denials = [
        (charge.rule, outcome)
        for charge, outcome in zip(verdict.charges, verdict.outcomes, strict=False)
        if not outcome.allowed and not charge.ask.shadow
    ]
    return all(rule.defers and outcome.retry_after != NEVER for rule, outcome in denials)


_HEADER = HEADER.encode()
_UNDECIDED = Verdict((), None)


class _Deferral:
    """What the middlewares of ASGI and WSGI share.

    Args:
        limiter: The limiter of the middleware.

    Raises:
        ConfigurationError: A rule defers, but the storage has no queue.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        self._engine = limiter.engine
        self._service = deferrals_of(limiter)
        limiter.require(self._service.require)

    def _plan(self, request: Request, rules: Rules) -> Plan:
        """Return the plan of a replay. It does not wait for its turn at a bucket: the worker sends it again instead."""
        plan = self._engine.planner.plan(rules, request)
        waits, planner = rules.waiting and plan.asks, self._engine.planner
        return planner.plan_of(waiting_at_most(plan.charges, 0), direct=False) if waits else plan


class AsgiDeferral(_Deferral):
    """Decides for an ASGI middleware. See `_Deferral` for arguments."""

    async def decide(self, app: App, request: AsgiRequest, rules: Rules, receive: Receive) -> tuple[Verdict, App]:
        """Return the verdict on a request, and what must serve it: `app` or a page.

        A denied request that is now in the queue has a page. `app` must not serve any other denied request.
        """
        scope = request.context
        if scope["type"] != "http":
            return await self._engine.adecide(request, rules=rules), app
        token = self._service.replay_token(request, rules)
        if token is None:
            verdict = await self._engine.adecide(request, rules=rules)
            page = await self._page(verdict, request, rules, receive)
            return verdict, app if page is None else page.asgi
        found = await asyncio.to_thread(self._service.replay, token, rules)
        if isinstance(found, ReadyResponse):
            return _UNDECIDED, found.asgi
        scope["client"] = (found.peer, 0) if found.peer else None
        scope["scheme"] = found.scheme
        scope["headers"] = [line for line in scope["headers"] if line[0].lower() != _HEADER]
        found.restore(request)
        if rules.attributes.awaited:
            await rules.attributes.resolve(request)
        verdict = await self._engine.aexecute(self._plan(request, rules), rules)
        refused = self._service.refused_replay(verdict)
        return verdict, app if refused is None else refused.asgi

    async def _page(
        self, verdict: Verdict, request: AsgiRequest, rules: Rules, receive: Receive
    ) -> ReadyResponse | None:
        service = self._service
        if verdict.allowed:
            asked = service.status_asked(request, rules)
            return None if asked is None else await asyncio.to_thread(asked)
        lane = service.lane(verdict, request, rules, request.header("content-length"))
        body = None if lane is None else await _body(receive, rules.defer.max_body)
        if lane is None or body is None:
            return None
        stored = of_asgi(request, rules.defer.headers)
        root = request.context.get("root_path") or ""
        return await asyncio.to_thread(service.put, verdict, rules, stored, body, lane=lane, root=root)


async def _body(receive: Receive, most: int) -> bytes | None:
    """Read the whole body. None if it is longer than `most` bytes or the client disconnects before its end."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        most -= len(parts[-1])
        if most < 0:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


_WSGI_HEADER = f"HTTP_{HEADER.upper().replace('-', '_')}"


class WsgiDeferral(_Deferral):
    """Decides for a WSGI middleware. See `_Deferral` for arguments."""

    def decide(self, app: WSGIApplication, request: WsgiRequest, rules: Rules) -> tuple[Verdict, WSGIApplication]:
        """Return the verdict on a request, and what must serve it: `app` or a page. See `AsgiDeferral.decide`."""
        environ = request.context
        token = self._service.replay_token(request, rules)
        if token is None:
            verdict = self._engine.decide_in_turn(request, rules=rules)
            page = self._page(verdict, request, rules)
            return verdict, app if page is None else page.wsgi
        found = self._service.replay(token, rules)
        if isinstance(found, ReadyResponse):
            return _UNDECIDED, found.wsgi
        environ["REMOTE_ADDR"] = found.peer or ""
        environ["wsgi.url_scheme"] = found.scheme
        environ.pop(_WSGI_HEADER, None)
        found.restore(request)
        verdict = self._engine.execute(self._plan(request, rules), rules)
        refused = self._service.refused_replay(verdict)
        return verdict, app if refused is None else refused.wsgi

    def _page(self, verdict: Verdict, request: WsgiRequest, rules: Rules) -> ReadyResponse | None:
        service, environ = self._service, request.context
        if verdict.allowed:
            asked = service.status_asked(request, rules)
            return asked and asked()
        length = environ.get("CONTENT_LENGTH")
        lane = service.lane(verdict, request, rules, length)
        body = None if lane is None else _wsgi_body(environ, length, rules.defer.max_body)
        if lane is None or body is None:
            return None
        stored = of_wsgi(request, rules.defer.headers)
        root = environ.get("SCRIPT_NAME") or ""
        return service.put(verdict, rules, stored, body, lane=lane, root=root)


def _wsgi_body(environ: dict[str, Any], length: str | None, most: int) -> bytes | None:
    """Read the whole body. None if it is longer than `most` bytes, incomplete, or of unknown length."""
    if length:
        left = int(length)
    elif environ.get("wsgi.input_terminated"):
        left = most + 1
    else:
        return b"" if "HTTP_TRANSFER_ENCODING" not in environ else None
    parts: list[bytes] = []
    while left > 0:
        part: bytes = environ["wsgi.input"].read(left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    body = b"".join(parts)
    complete = left == 0 if length else len(body) <= most
    return body if complete else None
