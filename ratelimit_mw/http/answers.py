"""Words the answers to requests: the status, headers and body of denials, and the rate-limit headers.

The headers are X-RateLimit-* and the two fields of the IETF draft (draft-ietf-httpapi-ratelimit-headers).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.bodies import Said, filled, format_of, is_constant, preferred
from ratelimit_mw.decision.verdict import Reason, Verdict
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, SECOND, Outcome, Quota, Rule
from ratelimit_mw.settings import ResponseSettings
from ratelimit_mw.units import spell_period

_MOST_KNOWN = 1_000
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class Policy(NamedTuple):
    """One policy: its `name`, what is stated of it (an item of RateLimit-Policy), and how that of RateLimit begins.

    `full` is what a bucket holds and `interval` (microseconds) the time in which one of it comes back; both are 0 for
    other algorithms. What is in flight comes back at no known time: it is not `timed`.
    """

    name: str
    stated: str
    begins: str
    full: int = 0
    interval: int = 0
    timed: bool = True

    def stands(self, outcome: Outcome) -> str:
        """The item of the RateLimit field. `t`, in whole seconds, is left out if it is unknown."""
        item = f"{self.begins}{outcome.remaining}"
        if not self.timed or outcome.retry_after == NEVER:
            return item
        return f"{item};t={-(-self._until_more(outcome) // SECOND)}"

    def _until_more(self, outcome: Outcome) -> int:
        _, remaining, reset_after, retry_after, _ = outcome
        if not outcome.allowed:  # `t` must not be earlier than Retry-After
            return min(reset_after, retry_after)
        if not self.interval or not reset_after:
            return reset_after
        soon = (reset_after - 1) % self.interval + 1
        return soon if remaining else max(soon, reset_after - (self.full - 1) * self.interval)


class Policies:
    """The policies of the IETF draft for the rules that requests meet. Each is made when it is first needed."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Rule, Quota, Policy]] = {}

    def of(self, rule: Rule, quota: Quota) -> Policy:
        """The policy of the limit of a rule."""
        # By identity, because hashing the rule or the quota would take longer than everything else. The entry holds
        # both, so that their ids cannot be reused.
        key = id(rule), id(quota)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:  # overrides and elastic limits make new quotas
                self._known.clear()
            known = self._known[key] = rule, quota, _policy(rule, quota)
        return known[2]

    def told(self, verdict: Verdict) -> dict[str, tuple[Policy, Outcome]]:
        """What a client is told: each policy by its name, in the order of the file, and how it stands.

        Of several counters of one policy (`by: [ip, user]`) it is told of the tightest.
        """
        told: dict[str, tuple[Policy, Outcome]] = {}
        for rule, quota, outcome in _visible(verdict):
            policy = self.of(rule, quota)
            other = told.get(policy.name)
            if other is None or _tightness(outcome) < _tightness(other[1]):
                told[policy.name] = policy, outcome
        return told

    def violated(self, verdict: Verdict) -> list[str]:
        """The names of the policies that deny."""
        return list(
            dict.fromkeys(
                self.of(rule, quota).name for rule, quota, outcome in _visible(verdict) if not outcome.allowed
            )
        )


def _visible(verdict: Verdict) -> Iterator[tuple[Rule, Quota, Outcome]]:
    for place, ((rule, ask), outcome) in enumerate(zip(verdict.charges, verdict.outcomes, strict=True)):
        if not rule.hidden and (not ask.shadow or place == verdict.binding):
            yield rule, ask.quota, outcome


def _tightness(outcome: Outcome) -> tuple[bool, int, int]:
    return outcome.allowed, outcome.remaining, -outcome.reset_after


def _policy(rule: Rule, quota: Quota) -> Policy:
    concurrent = ALGORITHMS[quota.algorithm].in_flight
    name = rule.name
    if rule.several:
        name += " concurrent" if concurrent else f" per {spell_period(quota.period)}"
    name = _printable(name)
    item = _string(name)
    if concurrent:
        return Policy(name, f'{item};q={quota.shown_limit};qu="concurrent-requests"', f"{item};r=", timed=False)
    stated = f"{item};q={quota.shown_limit};w={-(-quota.period // SECOND)}"
    if not quota.burst:
        return Policy(name, stated, f"{item};r=")
    return Policy(name, stated, f"{item};r=", quota.burst - quota.spare, -(-quota.period // quota.limit))


def _printable(name: str) -> str:
    """`name` as a String of RFC 9651: characters other than printable ASCII are percent-encoded."""
    return quote(name, _PRINTABLE, errors="replace")


def _string(text: str) -> str:
    """A String of RFC 9651."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_Text = TypeVar("_Text", bound=str | bytes)


class RateFields(Generic[_Text]):
    """The lines of these `groups` of headers, "x-ratelimit" and "ratelimit", in a shell's text or bytes.

    With `epoch`, X-RateLimit-Reset is a time of day, else a time from now; RateLimit always tells a time from now.
    """

    def __init__(
        self,
        groups: Sequence[str],
        policies: Policies,
        *,
        epoch: bool,
        name: Callable[[str], _Text],
        value: Callable[[str], _Text],
    ) -> None:
        self._classic = "x-ratelimit" in groups
        self._draft = "ratelimit" in groups
        self._policies = policies
        self._epoch = epoch
        self._value = value
        self._limit, self._remaining, self._reset, self._over = (
            name(f"X-RateLimit-{word}") for word in ("Limit", "Remaining", "Reset", "Over")
        )
        self._policy, self._standing = name("RateLimit-Policy"), name("RateLimit")
        self.wanted = self._classic or self._draft
        """Whether any headers are configured."""
        classic, draft = (self._limit, self._remaining, self._reset), (self._policy, self._standing)
        self.names = frozenset(
            field.lower() for field in (*(classic if self._classic else ()), *(draft if self._draft else ()))
        )
        """The names of the headers, in lower case."""

    def lines(self, verdict: Verdict) -> list[tuple[_Text, _Text]]:
        """The header lines for a response to a request for which a rule binds; empty if every such rule is hidden."""
        binding = verdict.binding
        rule, ask = verdict.charges[binding]
        if rule.hidden:
            binding = verdict.shown
            if binding < 0:
                return []
            ask = verdict.charges[binding].ask
        value = self._value
        lines = []
        if self._classic:
            _, remaining, reset, _, _ = verdict.outcomes[binding]
            if self._epoch:
                reset += verdict.now
            lines = [
                (self._limit, value(str(ask.quota.shown_limit))),
                (self._remaining, value(str(remaining))),
                (self._reset, value(str(-(-reset // SECOND)))),
            ]
            if binding in verdict.over:
                lines.append((self._over, value(str(ask.quota.over))))
        if self._draft:
            told = self._policies.told(verdict).values()
            lines.append((self._policy, value(", ".join([policy.stated for policy, _ in told]))))
            lines.append((self._standing, value(", ".join([policy.stands(outcome) for policy, outcome in told]))))
        return lines


class _Problem(NamedTuple):
    """A problem type (RFC 9457) and its title; both empty if the status says it all."""

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
    """A response in place of the app's. For HEAD, `body` is empty, and the headers are those of GET."""

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
        """Whether allowed responses have rate-limit headers."""
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
        """The response to a request that `verdict` denies."""
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
    """The reason phrase of a status; "Unknown" if it has none."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:  # not a registered status, such as 420
        return "Denied"


def _seconds(wait: int) -> int | None:
    """The value of Retry-After: whole seconds, rounded up and at least 1; None if no waiting helps."""
    return None if wait == NEVER else max(1, -(-wait // SECOND))
