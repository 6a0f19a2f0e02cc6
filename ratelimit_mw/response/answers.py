"""What a client is told: the headers of a limited response, and the whole of a denial."""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Generic, NamedTuple, TypeVar

from ratelimit_mw.decision.verdict import Reason, Verdict
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, SECOND
from ratelimit_mw.response.accept import preferred
from ratelimit_mw.response.bodies import Said, filled, format_of, is_constant
from ratelimit_mw.response.policies import Policies
from ratelimit_mw.response.rate_fields import RateFields
from ratelimit_mw.settings import ResponseSettings

_Text = TypeVar("_Text", bound=str | bytes)


class _Problem(NamedTuple):
    """A type of problem (RFC 9457), and its title; none where that of the status says it all."""

    type: str
    title: str | None = None


_TYPES = "https://iana.org/assignments/http-problem-types"
_NO_TYPE = _Problem("about:blank")
_QUOTA = _Problem(f"{_TYPES}#quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded")
_CAPACITY = _Problem(
    f"{_TYPES}#temporary-reduced-capacity", "Request cannot be satisfied due to temporary server capacity constraints"
)
_ABNORMAL = _Problem(
    f"{_TYPES}#abnormal-usage-detected", "Request not satisfied due to detection of abnormal request pattern"
)


class _Answer(NamedTuple):
    """What a client is told who is denied for one reason; None: what the rule says, or else the file.

    `wait` (seconds) is what Retry-After says where neither a counter nor the verdict does, None where no waiting helps.
    """

    status: int | None
    message: str | None
    problem: _Problem
    wait: int | None = None


_ANSWERS: dict[Reason, _Answer] = {
    "limited": _Answer(None, None, _QUOTA),
    "banned": _Answer(None, None, _ABNORMAL),
    "unavailable": _Answer(503, "Service temporarily unavailable", _CAPACITY, wait=1),
    "blocked": _Answer(403, "Forbidden", _NO_TYPE),
    "shed": _Answer(503, "Too busy at the moment", _CAPACITY),
}


class Denial(NamedTuple, Generic[_Text]):
    """A response in place of the app's. `body` is empty for HEAD, and the headers are those of GET."""

    status: int
    headers: list[tuple[_Text, _Text]]
    body: bytes


class Answers(Generic[_Text]):
    """The words of one configuration, in the text (WSGI) or the bytes (ASGI) of a shell's headers.

    `name` makes a header's name of its usual spelling, and `value` its value. `address` reads the client's
    address, for what holds {ip}.
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
        self._policies = policies = Policies()
        epoch = settings.reset == "epoch"
        headers = settings.headers
        self._allowed = RateFields(headers.allowed, policies, epoch=epoch, name=name, value=value)
        self._denied = RateFields(headers.denied, policies, epoch=epoch, name=name, value=value)
        self.rated = self._allowed.wanted
        """Whether an allowed response says anything of its limit."""
        self._retry_after = name("Retry-After") if "retry-after" in headers.denied else None
        self._content_length = name("Content-Length")
        self._formats = [format_of(body, settings.page) for body in settings.body]
        self._accepted = [made.accepted for made in self._formats]
        always = [(name("Cache-Control"), value("no-store"))]
        if len(self._formats) > 1:
            always.append((name("Vary"), value("Accept")))
        self._always = [[(name("Content-Type"), value(made.content_type)), *always] for made in self._formats]
        self._kept: dict[tuple[int, Reason, bool, int, str], bytes] = {}

    def beside(self, own: Iterable[tuple[_Text, _Text]], verdict: Verdict) -> list[tuple[_Text, _Text]]:
        """The app's own headers and ours, if there is a rule that binds, in a new list.

        Where the app speaks of its own limit, ours is left out whole: half of each would state a third.
        """
        headers = list(own)
        if verdict.binding < 0:
            return headers
        ours = self._allowed.names
        for name, _ in headers:
            if name.lower() in ours:
                return headers
        headers += self._allowed.lines(verdict)
        return headers

    def denial(self, verdict: Verdict, request: Request) -> Denial[_Text]:
        """The response to a request that `verdict` does not allow."""
        value = self._value
        reason = verdict.reason or "limited"
        answer, settings, rule, outcome = _ANSWERS[reason], self._settings, verdict.rule, verdict.outcome
        spoken = verdict.wait if outcome is None else outcome.retry_after
        wait = answer.wait if outcome is None and not spoken else _seconds(spoken)
        status = answer.status or (rule and rule.status) or settings.status
        message = answer.message or (rule and rule.message) or settings.message
        place = preferred(",".join(request.header_lines("accept")), self._accepted) if len(self._formats) > 1 else 0
        hidden = rule is not None and rule.hidden
        key = place, reason, hidden, status, message
        body = self._kept.get(key)
        if body is None:
            made = self._formats[place]
            body = made.render(self._said(verdict, request, reason, status=status, message=message, wait=wait))
            if made.constant and is_constant(message):
                self._kept[key] = body
        headers = [*self._always[place], (self._content_length, value(str(len(body))))]
        if self._retry_after is not None and wait is not None and not hidden:
            headers.append((self._retry_after, value(str(wait))))
        if verdict.binding >= 0:
            headers += self._denied.lines(verdict)
        return Denial(status, headers, b"" if request.method == "HEAD" else body)

    def _said(
        self, verdict: Verdict, request: Request, reason: Reason, *, status: int, message: str, wait: int | None
    ) -> Said:
        rule, title = verdict.rule, phrase(status)
        words: dict[str, str | int | None] = {
            "ip": self._address(request),
            "rule": rule.name if rule else None,
            "limit": verdict.limit,
            "retry_after": wait,
        }
        words |= {"message": filled(message, words), "status": status, "title": title, "reason": reason}
        if rule and rule.hidden:
            return Said(words, *_NO_TYPE)
        type_of_problem, heading = _ANSWERS[reason].problem
        return Said(words, type_of_problem, heading, self._policies.violated(verdict), self._settings.documentation_url)


def phrase(status: int) -> str:
    """The reason phrase of a status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:  # 420 and its like
        return "Denied"


def _seconds(wait: int) -> int | None:
    """What Retry-After says: whole seconds, never early and never 0; None where no waiting helps."""
    return None if wait == NEVER else max(1, -(-wait // SECOND))
