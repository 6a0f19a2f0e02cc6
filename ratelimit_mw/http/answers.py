"""Makes the denials (status, headers and body) and the rate-limit headers of all responses.

The headers are X-RateLimit-* and the two fields of the IETF draft (draft-ietf-httpapi-ratelimit-headers).
"""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.bodies import BodyContent, filled, format_of, is_constant, preferred
from ratelimit_mw.decision.planning import NO_PLAN, Plan
from ratelimit_mw.decision.verdict import Conclusion, Reason, Verdict
from ratelimit_mw.http.handler import DenialHandler
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, SECOND, Outcome, Quota, Row, Rule
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.units import spell_period

_MAX_POLICIES = 1_000  # policies in the cache of one configuration
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class Policy(NamedTuple):
    """A policy of the IETF draft: one limit of one rule.

    Attributes:
        name: the name of the policy, in printable ASCII.
        policy_item: its item in the field RateLimit-Policy.
        limit_prefix: how its item in the field RateLimit begins, up to the number that remains.
        full: the size of the bucket; 0 for other algorithms.
        interval: the microseconds in which a bucket regains one unit; 0 for other algorithms.
        timed: whether it is known when more of the limit will be available. It is not for requests in flight.
    """

    name: str
    policy_item: str
    limit_prefix: str
    full: int = 0
    interval: int = 0
    timed: bool = True

    def limit_item(self, outcome: Outcome) -> str:
        """The item of the field RateLimit. Its parameter `t`, in whole seconds, is left out if it is unknown."""
        item = f"{self.limit_prefix}{outcome.remaining}"
        if not self.timed or outcome.retry_after == NEVER:
            return item
        return f"{item};t={-(-self._until_more(outcome) // SECOND)}"

    def _until_more(self, outcome: Outcome) -> int:
        """The microseconds until more of the limit is available."""
        _, remaining, reset_after, retry_after, _ = outcome
        if not outcome.allowed:  # `t` must not be earlier than Retry-After
            return min(reset_after, retry_after)
        if not self.interval or not reset_after:
            return reset_after
        soon = (reset_after - 1) % self.interval + 1
        return soon if remaining else max(soon, reset_after - (self.full - 1) * self.interval)


class Policies:
    """A cache of the policies of the IETF draft. Each policy is made when it is first needed."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Rule, Quota, Policy]] = {}

    def of(self, rule: Rule, quota: Quota) -> Policy:
        """The policy of one limit of a rule."""
        # By identity, because hashing the rule or the quota would take longer than everything else. The entry holds
        # both, so that their ids cannot be reused.
        key = id(rule), id(quota)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_POLICIES:  # overrides and elastic limits make new quotas
                self._known.clear()
            known = self._known[key] = rule, quota, _policy(rule, quota)
        return known[2]

    def reported(self, verdict: Verdict) -> dict[str, tuple[Policy, Outcome]]:
        """The policies to report to the client, each with the outcome of its counter, by name in the order of the file.

        If a policy has several counters (`by: [ip, user]`), the tightest one is reported.
        """
        reported: dict[str, tuple[Policy, Outcome]] = {}
        for rule, quota, outcome in _visible(verdict):
            policy = self.of(rule, quota)
            other = reported.get(policy.name)
            if other is None or _tightness(outcome) < _tightness(other[1]):
                reported[policy.name] = policy, outcome
        return reported

    def violated(self, verdict: Verdict) -> list[str]:
        """The names of the policies that deny the request."""
        return list(
            dict.fromkeys(
                self.of(rule, quota).name for rule, quota, outcome in _visible(verdict) if not outcome.allowed
            )
        )


def _visible(verdict: Verdict) -> Iterator[tuple[Rule, Quota, Outcome]]:
    """The outcomes that clients may see: none of hidden rules, and of shadow rules only the binding one."""
    for place, ((rule, ask), outcome) in enumerate(zip(verdict.charges, verdict.outcomes, strict=True)):
        if not rule.hidden and (not ask.shadow or place == verdict.binding):
            yield rule, ask.quota, outcome


def _tightness(outcome: Outcome) -> tuple[bool, int, int]:
    """A sort key: denials first, then the least remaining, then the latest reset."""
    return outcome.allowed, outcome.remaining, -outcome.reset_after


def _policy(rule: Rule, quota: Quota) -> Policy:
    concurrent = ALGORITHMS[quota.algorithm].in_flight
    name = rule.name
    if rule.several:
        name += " concurrent" if concurrent else f" per {spell_period(quota.period)}"
    name = quote(name, _PRINTABLE, errors="replace")  # a String of RFC 9651 has only printable ASCII
    item = _string(name)
    if concurrent:
        return Policy(name, f'{item};q={quota.shown_limit};qu="concurrent-requests"', f"{item};r=", timed=False)
    policy_item = f"{item};q={quota.shown_limit};w={-(-quota.period // SECOND)}"
    if not quota.burst:
        return Policy(name, policy_item, f"{item};r=")
    return Policy(name, policy_item, f"{item};r=", quota.burst - quota.spare, -(-quota.period // quota.limit))


def _string(text: str) -> str:
    """A String of RFC 9651."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_Text = TypeVar("_Text", bound=str | bytes)

_MOST_NUMBERS = 4096
_ROUNDED_UP = SECOND - 1


class _Lines(dict[int, tuple[_Text, _Text]]):
    """The lines of one header by its number. Most responses of one second have the numbers of earlier ones."""

    def __init__(self, name: _Text, number: Any) -> None:
        super().__init__()
        self._name = name
        self._number = number

    def __missing__(self, number: int) -> tuple[_Text, _Text]:
        if len(self) >= _MOST_NUMBERS:
            self.clear()
        line = self[number] = self._name, self._number % number
        return line


_Problem = tuple[str, str | None]
"""A problem type (RFC 9457) and its title. Without a title, that of the status is used."""


_TYPES = "https://iana.org/assignments/http-problem-types"
_NO_TYPE = "about:blank", None
_QUOTA = f"{_TYPES}#quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded"
_CAPACITY = (
    f"{_TYPES}#temporary-reduced-capacity",
    "Request cannot be satisfied due to temporary server capacity constraints",
)
_ABNORMAL = (f"{_TYPES}#abnormal-usage-detected", "Request not satisfied due to detection of abnormal request pattern")


class _Answer(NamedTuple):
    """The answer to a request that is denied for one reason.

    Attributes:
        status: the status code; None for that of the rule or the file.
        message: the message; None for that of the rule or the file.
        problem: the problem type.
        wait: the value of Retry-After, in seconds, if neither a counter nor the verdict has one; None for no header.
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


class DenialResponse(NamedTuple, Generic[_Text]):
    """A response that replaces that of the app. For HEAD, the body is empty and the headers are those of GET."""

    status: int
    headers: list[tuple[_Text, _Text]]
    body: bytes


class Answers(Generic[_Text]):
    """Makes the denials and the rate-limit headers by the `response` section of the rules.

    Args:
        rules: the rules.
        name: makes the name of a header, as text (WSGI) or bytes (ASGI), from its usual spelling.
        value: makes the value of a header, as text or bytes.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        name: Callable[[str], _Text],
        value: Callable[[str], _Text],
    ) -> None:
        self.rules = rules
        self._settings = settings = rules.response
        self._value = value
        self._policies = Policies()
        self._classic = "x-ratelimit" in settings.headers
        self._draft = "ratelimit" in settings.headers
        self._epoch = settings.reset == "epoch"
        limit, self._remaining, reset, self._over = map(name, settings.header_names)
        self._number: Any = value("%d")
        self._limits = _Lines(limit, self._number)
        self._resets = _Lines(reset, self._number)
        self._policy, self._rate_limit = name("RateLimit-Policy"), name("RateLimit")
        classic, draft = (limit, self._remaining, reset), (self._policy, self._rate_limit)
        self._names = frozenset(
            field.lower() for field in (*(classic if self._classic else ()), *(draft if self._draft else ()))
        )
        """The names of the rate-limit headers, in lower case."""
        self._shortest = min(map(len, self._names), default=0)
        self.rated = bool(self._names)
        """Whether responses have rate-limit headers."""
        self._retry_after = name("Retry-After") if "retry-after" in settings.headers else None
        self._content_length = name("Content-Length")
        self._formats = [format_of(body) for body in settings.body]
        self._accepted = [made.accepted for made in self._formats]
        always = [(name("Cache-Control"), value("no-store"))]
        if len(self._formats) > 1:
            always.append((name("Vary"), value("Accept")))
        self._always = [[(name("Content-Type"), value(made.content_type)), *always] for made in self._formats]
        self._handler = settings.handler and DenialHandler(settings.handler, name=name, value=value)
        self._bodies: dict[tuple[int, Reason, bool, int, str], bytes] = {}

    def denial(self, verdict: Verdict, request: Request) -> DenialResponse[_Text]:
        """The response to a request that `verdict` denies."""
        value = self._value
        reason = verdict.reason or "limited"
        answer, settings, rule, binding = _ANSWERS[reason], self._settings, verdict.rule, verdict.binding
        retry_after = verdict.wait if rule is None else verdict.rows[binding][3]
        wait = answer.wait if rule is None and not retry_after else _seconds(retry_after)
        status = answer.status or (rule and rule.status) or settings.status
        message = answer.message or (rule and rule.message) or settings.message
        place = preferred(",".join(request.header_lines("accept")), self._accepted) if len(self._formats) > 1 else 0
        hidden = rule is not None and rule.hidden
        key = place, reason, hidden, status, message
        body = self._bodies.get(key)
        if body is None:
            made = self._formats[place]
            body = made.render(self._content(verdict, request, reason, status=status, message=message, wait=wait))
            if made.constant and is_constant(message):
                self._bodies[key] = body
        headers = [*self._always[place], (self._content_length, value(str(len(body))))]
        if self._retry_after is not None and wait is not None and not hidden:
            headers.append((self._retry_after, value(str(wait))))
        headers += self.add_headers((), verdict)
        if self._handler is not None:
            status, headers, body = self._handler.answer(request.context, verdict.decision, (status, headers, body))
        return DenialResponse(status, headers, b"" if request.method == "HEAD" else body)

    def add_headers(
        self, own: Iterable[tuple[_Text, _Text]], conclusion: Conclusion, plan: Plan = NO_PLAN
    ) -> list[tuple[_Text, _Text]]:
        """A new list with the app's own headers and, if a counter binds that is not hidden, the rate-limit headers.

        If the app has set one of the rate-limit headers, none is added, because a mixture of two limits would be wrong.

        Args:
            own: the app's own headers.
            conclusion: what was concluded on the request.
            plan: the plan, if the conclusion is no verdict.
        """
        headers = [*own]
        row: Row
        if isinstance(conclusion, tuple):
            (now, rows, _), terms, over = conclusion, plan.shape.terms, None
            if len(rows) == 1:
                row, size = rows[0], terms[0][1]
            else:
                binding = plan.shape.binding(rows)
                row, size = rows[binding], terms[binding][1]
        else:
            binding, charges, now = conclusion.binding, conclusion.charges, conclusion.now
            if binding >= 0 and charges[binding].rule.hidden:
                binding = conclusion.shown
            if binding < 0:
                return headers
            row, quota = conclusion.rows[binding], charges[binding].ask.quota
            size, over = quota.shown_size, quota.over if binding in conclusion.over else None
        ours, shortest = self._names, self._shortest
        for name, _ in headers:
            if len(name) >= shortest and name.lower() in ours:  # most names are shorter than all of ours
                return headers
        if self._classic:
            _, remaining, reset, _, _ = row
            if self._epoch:
                reset += now
            headers += (
                self._limits[size],
                (self._remaining, self._number % remaining),
                self._resets[(reset + _ROUNDED_UP) // SECOND],
            )
            if over is not None:
                headers.append((self._over, self._value(over)))
        if self._draft:
            value = self._value
            reported = self._policies.reported(plan.verdict_of(conclusion)).values()
            policies = ", ".join([policy.policy_item for policy, _ in reported])
            limits = ", ".join([policy.limit_item(outcome) for policy, outcome in reported])
            headers += (self._policy, value(policies)), (self._rate_limit, value(limits))
        return headers

    def _content(
        self, verdict: Verdict, request: Request, reason: Reason, *, status: int, message: str, wait: int | None
    ) -> BodyContent:
        rule, title = verdict.rule, phrase(status)
        words: dict[str, str | int | None] = {
            "ip": self.rules.attributes.address(request),
            "rule": rule.name if rule else None,
            "limit": verdict.limit,
            "period": _period(verdict),
            "retry_after": wait,
        }
        words |= {"message": filled(message, words), "status": status, "title": title, "reason": reason}
        if rule and rule.hidden:
            return BodyContent(words, *_NO_TYPE)
        type_of_problem, heading = _ANSWERS[reason].problem
        return BodyContent(
            words, type_of_problem, heading, self._policies.violated(verdict), self._settings.documentation_url
        )


class LatestAnswers(Generic[_Text]):
    """The answers that the rules in force configure. They are made when rules are first used, and after each reload.

    The arguments are those of `Answers`.
    """

    def __init__(self, *, name: Callable[[str], _Text], value: Callable[[str], _Text]) -> None:
        self._name = name
        self._value = value
        self._latest: Answers[_Text] | None = None  # those of the rules that were asked for last

    def of(self, rules: Rules) -> Answers[_Text]:
        """The answers of these rules. Threads may share this object."""
        answers = self._latest
        if answers is None or answers.rules.response is not rules.response:
            answers = Answers(rules, name=self._name, value=self._value)
        elif answers.rules is not rules:  # they have other overrides, or another section has changed
            answers = copy(answers)
            answers.rules = rules
        self._latest = answers
        return answers


_PHRASES = {status.value: status.phrase for status in HTTPStatus}


def phrase(status: int) -> str:
    """The reason phrase of a status; "Denied" if it has none, because it is not registered, such as 420."""
    return _PHRASES.get(status, "Denied")


def _period(verdict: Verdict) -> str | None:
    """The unit of the limit that denies, such as "minute" or "2 hours". None if it has none."""
    if verdict.binding < 0:
        return None
    quota = verdict.charges[verdict.binding].ask.quota
    return None if ALGORITHMS[quota.algorithm].in_flight else spell_period(quota.period)


def _seconds(wait: int) -> int | None:
    """The value of Retry-After: whole seconds, rounded up and at least 1; None if no waiting helps."""
    return None if wait == NEVER else max(1, -(-wait // SECOND))
