"""The deferral service of a limiter: its queue, and the pages that it responds with."""

import json
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.deferral.stored_request import HEADER, DeferredStatus, StoredRequest, Tokens, random_id, unpacked
from ratelimit_mw.errors import ConfigurationError, Problem, StoreUnavailable
from ratelimit_mw.http.responses import ReadyResponse
from ratelimit_mw.identity.request import Request
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import NEVER, SECOND
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.settings import DeferSettings
from ratelimit_mw.stores import STORES

if TYPE_CHECKING:
    from ratelimit_mw.deferral.queue import Queue

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

    def __init__(self, limiter: RateLimiter) -> None:
        self._url = limiter.storage_url
        self._tally = limiter.engine.tally
        self._clock = limiter.clock
        self._load = limiter.engine.load
        self._opened: tuple[tuple[str, DeferSettings], Queue] | None = None
        self._tokens: tuple[Rules, Tokens] | None = None
        self._unavailable_until = 0.0
        limiter.engine.tally.at_close(self._close)

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
            status = self.queue(rules).status(name)
        except (StoreUnavailable, ValueError):  # ValueError: the stored status is unreadable
            return UNAVAILABLE
        return UNKNOWN if status is None else status_page(status)

    def replay_token(self, request: Request, rules: Rules) -> tuple[str, str] | None:
        """Return the id and the ticket that a worker has sent with a replay. None for any other request."""
        return self.tokens(rules).read(request.header(HEADER))

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
            packed = self.queue(rules).arrive(*token)
        except StoreUnavailable:
            return later_page()  # the ticket may be used up, but the app did not get the request
        try:
            return STALE if packed is None else unpacked(packed)
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
        if length and not (length.isascii() and length.isdigit() and int(length[:20]) <= rules.defer.max_body):
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
        page = self._queued(verdict, rules, stored, body, lane=lane, root=root)
        self._tally.deferred(verdict.rule, "refused" if page is None else "queued")
        return page

    def _queued(
        self, verdict: Verdict, rules: Rules, stored: StoredRequest, body: bytes, *, lane: str, root: str
    ) -> ReadyResponse | None:
        if time.monotonic() < self._unavailable_until or not stored.replayable():
            return None
        name = random_id()
        fields: dict[str, str | bytes] = {
            "request": stored.packed(),
            "body": body,
            "rule": verdict.rule.name if verdict.rule else "",
        }
        try:
            if not self.queue(rules).put(name, lane, fields):
                return None
        except StoreUnavailable:
            self._unavailable_until = time.monotonic() + _PAUSE
            return None
        wait = verdict.outcome.retry_after if verdict.outcome else verdict.wait
        mount = quote(root.strip("/"), safe="/")
        location = f"{'/' if mount else ''}{mount}{rules.defer.path}/{name}"
        return accepted_page(location, max(1, -(-wait // SECOND)))

    def tokens(self, rules: Rules) -> Tokens:
        """Return the object that makes and checks the tokens of these rules."""
        made = self._tokens
        if made is None or made[0] is not rules:
            made = self._tokens = rules, Tokens(_owner(rules).attributes.digest)
        return made[1]

    def queue(self, rules: Rules) -> "Queue":
        """Return the queue for these rules. It is opened again if their settings have changed."""
        opened, wanted = self._opened, (_owner(rules).domain, rules.defer)
        if opened is None or opened[0] != wanted:
            if opened is not None:
                opened[1].close()
            opened = self._opened = wanted, self.separate_queue(rules)
        return opened[1]

    def separate_queue(self, rules: Rules) -> "Queue":
        """Open the same queue over a separate connection. The caller must close it."""
        from ratelimit_mw.deferral.queue import Queue  # imported lazily, because importing redis-py is slow

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
