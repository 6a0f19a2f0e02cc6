"""What a replay finds in words: the names of clients, the sentence, the times and the notes."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple
from urllib.parse import unquote

from ratelimit_mw.foresight.results import Curve, DeniedClient, Difference, Heaviest, Result, RuleResult, RulesOutcome
from ratelimit_mw.identity.request import Request
from ratelimit_mw.identity.sources import SOURCES
from ratelimit_mw.model import SECOND
from ratelimit_mw.rules.domains import Rules

CAVEAT = (
    "The log's clients did not know of these limits. Clients that wait for Retry-After send fewer requests, and others "
    "try again."
)

_EVERYONE = "all clients"
_LONGEST = 80
"""The most characters of a value that a client has written."""

Namer = Callable[[str, Request | None], str]
"""Returns the name of a client: its arguments are the identity of a counter, and a request of the client."""


def namer(rules: Rules, *, hashed: bool) -> Namer:
    """Return a function that names a client.

    A plain name has the address, and the user as the log has it. What may be a secret (a header, a cookie, a query
    parameter, or a user that is read from one of them) is a hash, as in the key of the counter.

    Args:
        rules: The rules.
        hashed: Every name is a hash.
    """
    digest = rules.parts[0].attributes.digest
    if hashed:
        return lambda identity, _request: digest(identity)
    secret = _is_secret(rules.client.user)

    def name(identity: str, request: Request | None) -> str:
        if identity == "*":
            return _EVERYONE
        parts = [part.partition("=") for part in identity.split("+")]
        return "+".join(f"{unquote(key)}={_value(key, value, request, secret=secret)}" for key, _, value in parts)

    return name


def _value(key: str, value: str, request: Request | None, *, secret: bool) -> str:
    if request is not None and (key == "path" or (key == "user" and not secret)):
        value = request.values.get(key) or value
    return printable(value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…")


def printable(text: str) -> str:
    """Return a text that a client has written without characters that a terminal or a spreadsheet would obey.

    Control characters, and those that change the direction of writing, are shown as escapes.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _is_secret(source: str | None) -> bool:
    """Return True if the user is read from what a client sends, and may therefore be a token."""
    return source is not None and source.partition(":")[0].strip() in SOURCES


def utc(at: int, *, exact: bool = False) -> str:
    """Return a time in UTC, to the second, or exactly as in ISO 8601. `at` is in microseconds since the epoch."""
    time = datetime.fromtimestamp(at // SECOND, UTC).replace(microsecond=at % SECOND)
    return time.isoformat().replace("+00:00", "Z") if exact else time.strftime("%Y-%m-%d %H:%M:%S")


def sentence(result: Result) -> str:
    """Return the result in one sentence, and what shadow rules would deny in a second one."""
    outcome = result.outcome
    shadows = [rule.shadow for rule in outcome.rules.values()]
    text = f"{outcome.denied:,} of {outcome.requests:,} requests would have been denied{_of(outcome.limited)}"
    if any(shadows):
        alone = ": all rules are in shadow" if all(shadows) else ""
        requests = counted(outcome.shadow_denied, "request" if all(shadows) else "more request")
        text += f"{alone}. The shadow rules would deny {requests}{_of(outcome.shadowed)}"
    return text + "."


def counted(number: int, what: str) -> str:
    """Return a number of things: "1 client", "2 clients"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def _of(clients: Heaviest[str]) -> str:
    return f", of {_clients(clients)}" if len(clients) else ""


def _clients(clients: Heaviest[str]) -> str:
    return f"{spelled(len(clients), at_least=clients.full)} client{'s' * (len(clients) != 1)}"


class Change(NamedTuple):
    """What other rules deny, or allow, in addition, in words.

    Attributes:
        word: "denied" or "allowed".
        requests: How many requests.
        clients: How many clients.
        most: The clients with the most of these requests, each with their number.
        further: The number of other clients.
    """

    word: str
    requests: str
    clients: str
    most: list[tuple[str, str]]
    further: int


def changes(difference: Difference, most: int) -> Iterator[Change]:
    """Yield how two sets of rules differ, with at most so many clients for each change."""
    for word, clients in (("denied", difference.newly_denied), ("allowed", difference.newly_allowed)):
        named = [(client, spelled(seen.at_least, at_least=seen.error > 0)) for client, seen in clients.most(most)]
        yield Change(word, counted(clients.total, "request"), _clients(clients), named, len(clients) - len(named))


def spelled(number: int, *, at_least: bool = False) -> str:
    """Return a number with commas, after "≥" if it may be larger."""
    return f"{'≥ ' if at_least else ''}{number:,}"


def written_numbers(digits: Sequence[int], highest: Fraction | int) -> list[int]:
    """Return the whole numbers that people write, ascending, up to the first that is at least `highest`.

    Args:
        digits: The first two digits of these numbers, ascending, from 10 on.
        highest: The last number, or one below it.
    """
    decades = range(len(str(int(highest))) + 1)
    numbers = [each * 10**decade for decade in decades for each in digits]
    found = [number // 10 for number in numbers if number % 10 == 0]
    return found[: bisect_left(found, highest) + 1]


def share(part: int, whole: int) -> str:
    """Return a share in percent. One that is small, but not zero, does not look like zero."""
    return "<0.01 %" if 0 < part * 20_000 < whole else f"{100 * part / max(whole, 1):.2f} %"


def rule_cells(outcome: RulesOutcome, rules: Sequence[RuleResult]) -> tuple[list[str], list[list[str]]]:
    """Return a table of rules without their names: the columns, and the cells of each rule.

    The name of a column with numbers begins with ">".
    """
    extra = [name for name in ("delayed", "over") if any(getattr(each, name) for each in rules)]
    columns = [">requests", ">denied", ">share", ">clients", *(f">{name}" for name in extra), "worst minute"]
    rows = [
        [
            f"{each.asked:,}",
            f"{each.denied:,}",
            share(each.denied, each.asked) if each.asked else "",
            spelled(each.clients, at_least=outcome.clients.full) if each.denied else "",
            *(f"{getattr(each, name):,}" for name in extra),
            "" if each.worst is None else f"{each.worst[0]:,} at {utc(each.worst[1])[:-3]}",
        ]
        for each in rules
    ]
    return columns, rows


def client_cells(client: DeniedClient) -> tuple[str, str, str]:
    """Return the number of denials of a client, and the times of the first and the last one."""
    return spelled(client.denied, at_least=not client.certain), utc(client.first), utc(client.last)


def limit_cells(curve: Curve) -> list[list[str]]:
    """Return the cells of each limit: the limit, and the requests and the clients that it denies, with their shares."""
    return [
        [f"{limit:,}", f"{denied:,}", share(denied, curve.requests), f"{clients:,}", share(clients, curve.all_clients)]
        for limit, denied, clients in zip(curve.limits, curve.denied, curve.clients, strict=True)
    ]


def notes(result: Result) -> list[str]:
    """Return what must be known to read the result, as lines."""
    outcome = result.outcome
    found = [CAVEAT] if outcome.denied or any(rule.denied for rule in outcome.rules.values()) else []
    if result.limited_before:
        found.append(
            f"{result.limited_before:,} requests have the status 429 in the log: a limit was in force already."
        )
    if result.late:
        found.append(f"{result.late:,} lines were out of order by more than --disorder, and were replayed late.")
    unreadable = result.unreadable
    if unreadable.without_request:
        found.append(f"{unreadable.without_request:,} lines have no request, for example after a failed TLS handshake.")
    if result.unaddressed:
        found.append(f"{result.unaddressed}.")
    if unreadable.count:
        end = ":" if unreadable.shown else "."
        found.append(f"{unreadable.count:,} of {result.lines:,} lines could not be read{end}")
        found += [f"  {printable(line)}" for line in unreadable.shown]
    return found
