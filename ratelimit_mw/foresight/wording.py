"""What a result is in words: the sentence, the times and the notes, for the terminal and for the report."""

from datetime import UTC, datetime

from ratelimit_mw.foresight.clients import printable
from ratelimit_mw.foresight.replay import Result
from ratelimit_mw.model import SECOND

CAVEAT = (
    "The log's clients did not know of these limits. Clients that wait for Retry-After send fewer requests, and others "
    "try again."
)


def utc(at: int, *, exact: bool = False) -> str:
    """Return a time in UTC, to the second, or exactly as in ISO 8601. `at` is in microseconds since the epoch."""
    time = datetime.fromtimestamp(at // SECOND, UTC).replace(microsecond=at % SECOND)
    return time.isoformat().replace("+00:00", "Z") if exact else time.strftime("%Y-%m-%d %H:%M:%S")


def sentence(result: Result) -> str:
    """Return the result in one sentence."""
    outcome = result.outcome
    clients = spelled(len(outcome.limited), at_least=outcome.limited.full)
    text = f"{outcome.denied:,} of {outcome.requests:,} requests would have been denied"
    if outcome.denied:
        text += f", of {clients} client{'s' * (len(outcome.limited) != 1)}"
    return text + "."


def spelled(number: int, *, at_least: bool = False) -> str:
    """Return a number with commas, after "≥" if it may be larger."""
    return f"{'≥ ' if at_least else ''}{number:,}"


def share(part: int, whole: int) -> str:
    """Return a share in percent. One that is small, but not zero, does not look like zero."""
    return "<0.01 %" if 0 < part * 20_000 < whole else f"{100 * part / max(whole, 1):.2f} %"


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
    if result.without_request:
        found.append(f"{result.without_request:,} lines have no request, for example after a failed TLS handshake.")
    if result.unreadable:
        found.append(f"{result.unreadable:,} of {result.lines:,} lines could not be read{':' if result.shown else '.'}")
        found += [f"  {printable(line)}" for line in result.shown]
    return found
