"""What a client is told: the headers of a limited response, and the whole of a denial."""

import json
import re
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Generic, NamedTuple, TypeVar

from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, SECOND
from ratelimit_mw.settings import ResponseSettings
from ratelimit_mw.verdict import Reason, Verdict

_Text = TypeVar("_Text", bound=str | bytes)

_PLACEHOLDER = re.compile(r"\{(ip|rule|limit|retry_after)\}")
_CONTENT_TYPES = {
    "json": "application/json",
    "problem": "application/problem+json",
    "text": "text/plain; charset=utf-8",
}


class _Words(NamedTuple):
    """What a client is told who is denied for one reason; None: what the file says under `response`.

    `type` is the problem's, where the file links to no other; `wait` (seconds) is what Retry-After says where no
    counter speaks, None where no waiting helps.
    """

    status: int | None
    message: str | None
    type: str = "about:blank"
    wait: int | None = None


_WORDS: dict[Reason, _Words] = {
    "limited": _Words(None, None),
    "unavailable": _Words(503, "Service temporarily unavailable", wait=1),
    "blocked": _Words(403, "Forbidden"),
}


class Denial(NamedTuple, Generic[_Text]):
    """A response in place of the app's. `body` is empty for HEAD, and the headers are those of GET."""

    status: int
    headers: list[tuple[_Text, _Text]]
    body: bytes


class Answers(Generic[_Text]):
    """The words of one configuration, in the text (WSGI) or the bytes (ASGI) of a shell's headers.

    `name` makes a header's name of its usual spelling, and `value` its value. `address` reads the client's
    address, for a message that holds {ip}.
    """

    def __init__(
        self,
        settings: ResponseSettings,
        address: Callable[[Request], str | None],
        *,
        name: Callable[[str], _Text],
        value: Callable[[str], _Text],
    ) -> None:
        self._settings = settings
        self._address = address
        self._value = value
        self.rated = "x-ratelimit" in settings.headers
        """Whether the X-RateLimit headers are wanted at all."""
        self._epoch = settings.reset == "epoch"
        self._limit, self._remaining, self._reset, self._over = (
            name(f"X-RateLimit-{word}") for word in ("Limit", "Remaining", "Reset", "Over")
        )
        self._ours = frozenset(header.lower() for header in (self._limit, self._remaining, self._reset))
        self._retry_after = name("Retry-After") if "retry-after" in settings.headers else None
        self._content_length = name("Content-Length")
        self._always = [
            (name("Content-Type"), value(_CONTENT_TYPES[settings.body])),
            (name("Cache-Control"), value("no-store")),
        ]
        self._templated = _PLACEHOLDER.search(settings.message) is not None
        self._bodies = {
            reason: _body(settings, words, words.message or settings.message) for reason, words in _WORDS.items()
        }

    def beside(self, own: Iterable[tuple[_Text, _Text]], verdict: Verdict) -> list[tuple[_Text, _Text]]:
        """The app's own headers and ours, if there is a rule that binds, in a new list.

        Where the app speaks of its own limit, ours is left out whole: half of each would state a third.
        """
        headers = list(own)
        if verdict.binding < 0:
            return headers
        ours = self._ours
        for name, _ in headers:
            if name.lower() in ours:
                return headers
        headers += self._rate(verdict)
        return headers

    def denial(self, verdict: Verdict, request: Request) -> Denial[_Text]:
        """The response to a request that `verdict` does not allow."""
        value = self._value
        reason = verdict.reason or "limited"
        words = _WORDS[reason]
        wait = words.wait if verdict.outcome is None else _seconds(verdict.outcome.retry_after)
        if self._templated and words.message is None:
            body = _body(self._settings, words, self._message(verdict, request, wait))
        else:
            body = self._bodies[reason]
        headers = [*self._always, (self._content_length, value(str(len(body))))]
        if self._retry_after is not None and wait is not None:
            headers.append((self._retry_after, value(str(wait))))
        if self.rated and verdict.binding >= 0:
            headers += self._rate(verdict)
        return Denial(words.status or self._settings.status, headers, b"" if request.method == "HEAD" else body)

    def _rate(self, verdict: Verdict) -> tuple[tuple[_Text, _Text], ...]:
        value = self._value
        binding = verdict.binding
        outcome = verdict.outcomes[binding]
        reset = outcome.reset_after + verdict.now if self._epoch else outcome.reset_after
        quota = verdict.charges[binding].ask.quota
        rate = (
            (self._limit, value(str(quota.told))),
            (self._remaining, value(str(outcome.remaining))),
            (self._reset, value(str(-(-reset // SECOND)))),
        )
        return (*rate, (self._over, value(str(quota.over)))) if binding in verdict.over else rate

    def _message(self, verdict: Verdict, request: Request, wait: int | None) -> str:
        words = {
            "ip": self._address(request) or "unknown",
            "rule": verdict.rule.name if verdict.rule else "",
            "limit": str(verdict.limit),
            "retry_after": "never" if wait is None else str(wait),
        }
        return _PLACEHOLDER.sub(lambda found: words[found[1]], self._settings.message)


def phrase(status: int) -> str:
    """The reason phrase of a status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:  # 420 and its like
        return "Denied"


def _seconds(wait: int) -> int | None:
    """What Retry-After says: whole seconds, never early and never 0; None where no waiting helps."""
    return None if wait == NEVER else max(1, -(-wait // SECOND))


def _body(settings: ResponseSettings, words: _Words, message: str) -> bytes:
    link = settings.documentation_url
    status = words.status or settings.status
    if settings.body == "text":
        return message.encode()
    fields: dict[str, object]
    if settings.body == "problem":
        fields = {"type": link or words.type, "title": phrase(status), "status": status, "detail": message}
    else:
        fields = {"message": message}
        if link:
            fields["documentation_url"] = link
    return json.dumps(fields).encode()
