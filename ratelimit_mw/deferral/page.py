"""What a client is told of a deferred request: that it is one, and what became of it. Pure."""

import json
from base64 import b64encode
from typing import Any, NamedTuple

from ratelimit_mw.deferral.fate import Fate
from ratelimit_mw.deferral.marks import HEADER

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
    "unknown": "it was under way when nobody could say any more what became of it: it may have been applied",
}


class Page(NamedTuple):
    """A response in place of the app's."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def accepted(location: str, wait: int) -> Page:
    """The request was put off: what becomes of it is told at `location`, a good moment to ask is in `wait` seconds."""
    page = _page(202, {"state": "queued", "message": _SAYINGS["queued"], "location": location})
    page.headers.extend((("Location", location), ("Retry-After", str(wait))))
    return page


def told(fate: Fate | None) -> Page:
    """What became of a request; None: of one that there is not, or was too long ago."""
    if fate is None:
        return _page(404, {"message": "there is no such request, or it was too long ago"})
    fields: dict[str, Any] = {"state": fate.state, "message": _SAYINGS.get(fate.state, "")}
    if fate.reason:
        fields["reason"] = fate.reason
    if fate.status:
        fields["response"] = {"status": fate.status, "content_type": fate.kind, **_content(fate.answer)}
    return _page(200, fields)


def busy() -> Page:
    """To a replay: nothing was done, for now is not the time."""
    page = _page(503, {"message": "not now"})
    page.headers.extend(((HEADER, "busy"), ("Retry-After", "1")))
    return page


def stale() -> Page:
    """To a replay: nothing was done, for this attempt is over."""
    page = _page(409, {"message": "this attempt is over"})
    page.headers.append((HEADER, "stale"))
    return page


def away() -> Page:
    """Nobody can tell what became of a request now."""
    page = _page(503, {"message": "Service temporarily unavailable"})
    page.headers.append(("Retry-After", "1"))
    return page


def only_get() -> Page:
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
