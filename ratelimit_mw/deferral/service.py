"""The deferral service of a limiter: its queue, and the pages that it responds with."""

import json
import time
from base64 import b64encode
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.deferral.stored_request import HEADER, DeferredStatus, StoredRequest, Tokens, unpacked
from ratelimit_mw.errors import ConfigurationError, Problem, StoreUnavailable
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, SECOND
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.settings import DeferSettings
from ratelimit_mw.stores import STORES
from ratelimit_mw.tally import Tally

if TYPE_CHECKING:
    from ratelimit_mw.deferral.queue import Queue

_ALWAYS = [
    ("Content-Type", "application/json"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),  # the page contains the body of a response
]

_MESSAGES = {
    "queued": "the request waits until its limit allows it",
    "running": "the request is in progress",
    "done": "the response is below",
    "parked": "the request was given up; an operator may retry it",
    "unknown": "the result is not known; the request may have been applied",
}


class Page(NamedTuple):
    """A response of the middleware, in place of the app's response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def accepted_page(location: str, wait: int) -> Page:
    """Return the response to a deferred request: its status page is at `location`; ask again in `wait` seconds."""
    page = _page(202, {"state": "queued", "message": _MESSAGES["queued"], "location": location})
    page.headers.extend((("Location", location), ("Retry-After", str(wait))))
    return page


def status_page(status: DeferredStatus | None) -> Page:
    """Return the status page of a request. None stands for an unknown or expired request."""
    if status is None:
        return _page(404, {"message": "unknown or expired request"})
    fields: dict[str, Any] = {"state": status.state, "message": _MESSAGES.get(status.state, "")}
    if status.reason:
        fields["reason"] = status.reason
    if status.status:
        fields["response"] = {"status": status.status, "content_type": status.kind, **_content(status.answer)}
    return _page(200, fields)


def busy_page() -> Page:
    """Return the response to a replay that must be repeated later, because the load is high. Nothing was done."""
    page = _page(503, {"message": "the load is too high"})
    page.headers.extend(((HEADER, "busy"), ("Retry-After", "1")))
    return page


def stale_page() -> Page:
    """Return the response to a replay whose attempt is over. Nothing was done."""
    page = _page(409, {"message": "this attempt is over"})
    page.headers.append((HEADER, "stale"))
    return page


def unavailable_page() -> Page:
    """Return the response if the store is unavailable, so the status of a request is unknown."""
    page = _page(503, {"message": "Service temporarily unavailable"})
    page.headers.append(("Retry-After", "1"))
    return page


def method_not_allowed_page() -> Page:
    """Return the response to a method other than GET and HEAD."""
    page = _page(405, {"message": "Method not allowed"})
    page.headers.append(("Allow", "GET, HEAD"))
    return page


def _page(status: int, fields: dict[str, Any]) -> Page:
    body = json.dumps(fields).encode()
    return Page(status, [*_ALWAYS, ("Content-Length", str(len(body)))], body)


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
    """The queue at a storage URL, as the middlewares use it. Methods that ask the queue block."""

    def __init__(self, url: str, clock: Clock | None, tally: Tally | None = None) -> None:
        self.url = url
        self._tally = tally or Tally()
        self.clock = clock
        self._opened: tuple[tuple[str, DeferSettings], Queue] | None = None
        self._tokens: tuple[Rules, Tokens] | None = None
        self._unavailable_until = 0.0

    def require(self, rules: Rules) -> None:
        """Check that rules that defer have a queue. Raises ConfigurationError if the storage is not a Redis."""
        scheme = self.url.partition(":")[0]
        if rules.deferring and not STORES[scheme].server:
            names = ", ".join(rule.name for rule in rules.rules if rule.defers)
            message = f"on_limit: defer ({names}) needs a queue that outlives this process and that workers can reach"
            raise ConfigurationError([Problem(message, hint=f"set storage.url to a Redis; it is {scheme}:// now")])

    def admits(self, request: Request, rules: Rules) -> bool:
        """Return True for a replay, which its worker has already charged. It must still `arrive`."""
        return self.tokens(rules).read(request.header(HEADER)) is not None

    def page(self, request: Request, rules: Rules) -> Page | None:
        """Return the page for a request to the folder of status pages, or None for any other request."""
        folder, slash, name = request.path.rpartition("/")
        if not slash or folder != rules.defer.path:
            return None
        if request.method not in ("GET", "HEAD"):
            return method_not_allowed_page()
        if not self.tokens(rules).is_request(name):
            return status_page(None)
        try:
            return status_page(self.queue(rules).status(name))
        except (StoreUnavailable, ValueError):  # ValueError: the stored status is unreadable
            return unavailable_page()

    def arrive(self, request: Request, rules: Rules, load: float) -> StoredRequest | Page:
        """Return the stored request of a valid replay, or the page for the worker if the replay must not go on."""
        found = self._arrived(request, rules, load)
        self._tally.deferred(None, "replayed" if isinstance(found, StoredRequest) else "returned")
        return found

    def _arrived(self, request: Request, rules: Rules, load: float) -> StoredRequest | Page:
        token = self.tokens(rules).read(request.header(HEADER))
        if token is None:
            return stale_page()
        if load >= rules.defer.below:
            return busy_page()
        try:
            packed = self.queue(rules).arrive(*token)
        except StoreUnavailable:
            return busy_page()  # the ticket may be used up, but the app did not get the request
        try:
            return stale_page() if packed is None else unpacked(packed)
        except ValueError:  # the stored request is unreadable
            return stale_page()

    def may_defer(self, verdict: Verdict, request: Request, rules: Rules, length: str | None) -> bool:
        """Return True if all rules that deny the request defer, and its method and its length allow it.

        `length` is the value of the Content-Length header.
        """
        if verdict.local or not _deferred(verdict) or request.method in _NEVER_DEFERRED:
            return False
        if request.path.rpartition("/")[0] == rules.defer.path:
            return False
        return not length or (length.isascii() and length.isdigit() and int(length[:20]) <= rules.defer.max_body)

    def put(
        self, verdict: Verdict, rules: Rules, stored: StoredRequest, body: bytes, *, lane: str, root: str
    ) -> Page | None:
        """Queue a request and return the page that says so, or None if the request must be refused.

        A request is refused if it cannot be replayed unchanged, or if the queue is full or unavailable. Requests of
        one `lane` are replayed in order. `root` is the path at which the app is mounted.
        """
        page = self._queued(verdict, rules, stored, body, lane=lane, root=root)
        self._tally.deferred(verdict.rule, "refused" if page is None else "queued")
        return page

    def _queued(
        self, verdict: Verdict, rules: Rules, stored: StoredRequest, body: bytes, *, lane: str, root: str
    ) -> Page | None:
        if time.monotonic() < self._unavailable_until or not stored.replayable():
            return None
        tokens = self.tokens(rules)
        name = tokens.request()
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

    def lane(self, request: Request, rules: Rules) -> str | None:
        """Return the lane of a request: a hash of the key of the first counter that defers. None if none defers."""
        for charge in rules.plan(request):
            if charge.rule.defers:
                return _owner(rules).attributes.digest(charge.ask.key)
        return None

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

        return Queue(self.url, _owner(rules).domain, rules.defer, self.clock)

    def close(self) -> None:
        """Close the queue's connections."""
        if self._opened is not None:
            self._opened[1].close()


def _owner(rules: Rules) -> Rules:
    """Return the rules that own the queue: those of the first file that defers. A new file then does not move it."""
    return next((part for part in rules.parts if part.deferring), rules)


def _deferred(verdict: Verdict) -> bool:
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
