"""Deferral as the rest of the package sees it: the queue of a limiter, and the status pages."""

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

if TYPE_CHECKING:
    from ratelimit_mw.deferral.queue import Queue

_ALWAYS = [
    ("Content-Type", "application/json"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),  # an answer's body stands in it
]

_SAYINGS = {
    "queued": "it waits until the limit allows it",
    "running": "it is under way",
    "done": "the response is below",
    "parked": "it was given up; an operator may try it again",
    "unknown": "its result was lost while it was under way: it may have been applied",
}


class Page(NamedTuple):
    """A response in place of the app's."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def accepted_page(location: str, wait: int) -> Page:
    """The request was put off: its status page is `location`; ask again in `wait` seconds."""
    page = _page(202, {"state": "queued", "message": _SAYINGS["queued"], "location": location})
    page.headers.extend((("Location", location), ("Retry-After", str(wait))))
    return page


def told_page(fate: DeferredStatus | None) -> Page:
    """What became of a request; None: of one that there is not, or was too long ago."""
    if fate is None:
        return _page(404, {"message": "there is no such request, or it was too long ago"})
    fields: dict[str, Any] = {"state": fate.state, "message": _SAYINGS.get(fate.state, "")}
    if fate.reason:
        fields["reason"] = fate.reason
    if fate.status:
        fields["response"] = {"status": fate.status, "content_type": fate.kind, **_content(fate.answer)}
    return _page(200, fields)


def busy_page() -> Page:
    """To a replay: nothing was done, for now is not the time."""
    page = _page(503, {"message": "not now"})
    page.headers.extend(((HEADER, "busy"), ("Retry-After", "1")))
    return page


def stale_page() -> Page:
    """To a replay: nothing was done, for this attempt is over."""
    page = _page(409, {"message": "this attempt is over"})
    page.headers.append((HEADER, "stale"))
    return page


def away_page() -> Page:
    """The store is away, so the status of a request is not known now."""
    page = _page(503, {"message": "Service temporarily unavailable"})
    page.headers.append(("Retry-After", "1"))
    return page


def only_get_page() -> Page:
    """There is nothing but to read."""
    page = _page(405, {"message": "Method not allowed"})
    page.headers.append(("Allow", "GET, HEAD"))
    return page


def _page(status: int, fields: dict[str, Any]) -> Page:
    body = json.dumps(fields).encode()
    return Page(status, [*_ALWAYS, ("Content-Length", str(len(body)))], body)


def _content(answer: bytes | None) -> dict[str, str]:
    """The body of a response, as JSON can hold it; nothing where it was too long to be kept."""
    if answer is None:
        return {}
    try:
        return {"body": answer.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(answer).decode()}


_NEVER_PUT_OFF = frozenset({"HEAD", "OPTIONS", "TRACE", "CONNECT"})
_PAUSE = 1.0  # seconds that a queue is left alone after it did not answer


class DeferralService:
    """The queue at a storage URL as a middleware sees it. Methods that ask it block; each of them may be slow."""

    def __init__(self, url: str, clock: Clock | None) -> None:
        self.url = url
        self.clock = clock
        self._made: tuple[tuple[str, DeferSettings], Queue] | None = None
        self._marks: tuple[Rules, Tokens] | None = None
        self._left_alone_until = 0.0

    def require(self, rules: Rules) -> None:
        """Refuse rules that defer where there is nowhere to put requests. Raises ConfigurationError."""
        if rules.deferring and self.url.startswith("memory:"):
            names = ", ".join(rule.name for rule in rules.rules if rule.defers)
            message = f"on_limit: defer ({names}) needs a queue that outlives this process and that workers can reach"
            raise ConfigurationError([Problem(message, hint="set storage.url to a Redis; it is memory:// now")])

    def admits(self, request: Request, rules: Rules) -> bool:
        """True of a replay, which a worker has charged to the counters already; it has to `arrive` yet."""
        return self.marks(rules).read(request.header(HEADER)) is not None

    def page(self, request: Request, rules: Rules) -> Page | None:
        """The page that is asked for, if it is one of ours."""
        folder, slash, name = request.path.rpartition("/")
        if not slash or folder != rules.defer.path:
            return None
        if request.method not in ("GET", "HEAD"):
            return only_get_page()
        if not self.marks(rules).is_request(name):
            return told_page(None)
        try:
            return told_page(self.queue(rules).look(name))
        except (StoreUnavailable, ValueError):  # the latter where somebody has spoilt it
            return away_page()

    def arrive(self, request: Request, rules: Rules, load: float) -> StoredRequest | Page:
        """The request that a replay stands for, whose attempt may go on; or what its worker is told instead."""
        mark = self.marks(rules).read(request.header(HEADER))
        if mark is None:
            return stale_page()
        if load >= rules.defer.below:
            return busy_page()
        try:
            packed = self.queue(rules).arrive(*mark)
        except StoreUnavailable:
            return busy_page()  # the ticket may be used up, but the app has not heard of it
        try:
            return stale_page() if packed is None else unpacked(packed)
        except ValueError:  # somebody has spoilt it
            return stale_page()

    def may_put_off(self, verdict: Verdict, request: Request, rules: Rules, length: str | None) -> bool:
        """True where whatever denies the request defers it, and it is of a kind and a length that can be put off."""
        if verdict.local or not _deferred(verdict) or request.method in _NEVER_PUT_OFF:
            return False
        if request.path.rpartition("/")[0] == rules.defer.path:
            return False
        return not length or (length.isascii() and length.isdigit() and int(length[:20]) <= rules.defer.max_body)

    def put(
        self, verdict: Verdict, rules: Rules, envelope: StoredRequest, body: bytes, *, lane: str, root: str
    ) -> Page | None:
        """Queue a request and say so; None where it has to be refused after all.

        None also where it could not be sent again as it came, and where the queue is full or away.
        `root` is what the app is mounted at. Of one `lane` requests are tried in their order.
        """
        if time.monotonic() < self._left_alone_until or not envelope.replayable():
            return None
        marks = self.marks(rules)
        name = marks.request()
        fields: dict[str, str | bytes] = {
            "request": envelope.packed(),
            "body": body,
            "rule": verdict.rule.name if verdict.rule else "",
        }
        try:
            if not self.queue(rules).put(name, lane, fields):
                return None
        except StoreUnavailable:
            self._left_alone_until = time.monotonic() + _PAUSE
            return None
        wait = verdict.outcome.retry_after if verdict.outcome else verdict.wait
        mount = quote(root.strip("/"), safe="/")
        location = f"{'/' if mount else ''}{mount}{rules.defer.path}/{name}"
        return accepted_page(location, max(1, -(-wait // SECOND)))

    def lane(self, request: Request, rules: Rules) -> str | None:
        """Whose request it is, as the first counter tells that defers; None where none does."""
        for charge in rules.plan(request):
            if charge.rule.defers:
                return _home(rules).attributes.digest(charge.ask.key)
        return None

    def marks(self, rules: Rules) -> Tokens:
        """What makes and knows names by these rules."""
        made = self._marks
        if made is None or made[0] is not rules:
            made = self._marks = rules, Tokens(_home(rules).attributes.digest)
        return made[1]

    def queue(self, rules: Rules) -> "Queue":
        """The queue as these rules want it."""
        made, wanted = self._made, (_home(rules).domain, rules.defer)
        if made is None or made[0] != wanted:
            if made is not None:
                made[1].close()
            made = self._made = wanted, self.another_queue(rules)
        return made[1]

    def another_queue(self, rules: Rules) -> "Queue":
        """The same queue over a connection of its own, which is its owner's to close."""
        from ratelimit_mw.deferral.queue import Queue  # imported late: redis-py takes a while

        return Queue(self.url, _home(rules).domain, rules.defer, self.clock)

    def close(self) -> None:
        """Let go of the queue's connections."""
        if self._made is not None:
            self._made[1].close()


def _home(rules: Rules) -> Rules:
    """The rules whose queue it is: of several files the first that defer, so that one that joins them moves nothing."""
    return next((part for part in rules.parts if part.deferring), rules)


def _deferred(verdict: Verdict) -> bool:
    """True where every counter that denies defers, and some time will be right; of what is shed the `lane` tells."""
    if verdict.reason == "shed":
        return True
    if verdict.reason != "limited" or verdict.rule is None or not verdict.rule.defers:
        return False
    denying = [
        (charge.rule, outcome)
        for charge, outcome in zip(verdict.charges, verdict.outcomes, strict=False)
        if not outcome.allowed and not charge.ask.shadow
    ]
    return all(rule.defers and outcome.retry_after != NEVER for rule, outcome in denying)
