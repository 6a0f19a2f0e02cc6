"""Readers of times: from a node of the tree to seconds, or to a moment. Each raises `Wrong`."""

from datetime import UTC, datetime

from ratelimit_mw.rules.documents.tree import Node, Scalar, quoted
from ratelimit_mw.rules.readers.limits import Malformed, parse_duration, parse_period
from ratelimit_mw.rules.readers.values import text
from ratelimit_mw.rules.readers.wrong import Wrong


def duration(node: Node) -> float:
    """Seconds, from 1 ms to 1 minute."""
    try:
        seconds = parse_duration(text(node))
    except Malformed as error:
        raise Wrong.at(None, str(error), error.hint) from None
    if not 0.001 <= seconds <= 60:
        raise Wrong.at(None, f"{quoted(text(node))} is out of range", "from 1ms to 1m")
    return seconds


def lasting(node: Node) -> float:
    """Seconds, from 1 second to 30 days."""
    written = text(node)
    try:
        seconds = parse_period(written) / 1_000_000
    except Malformed:
        raise Wrong.at(None, f"{quoted(written)} is no time", "as 1h, 12 hours or 2 days") from None
    if not 1 <= seconds <= 30 * 86_400:
        raise Wrong.at(None, f"{quoted(written)} is out of range", "from 1s to 30 days")
    return seconds


def interval(node: Node) -> float | None:
    """Seconds, from 100 ms to 1 hour; None for `off`."""
    if isinstance(node, Scalar) and node.text == "off":
        return None
    written = text(node)
    try:
        seconds = parse_duration(written) if written.endswith("ms") else parse_period(written) / 1_000_000
    except Malformed:
        raise Wrong.at(None, f"{quoted(written)} is no interval", "as 5s, 1m or off") from None
    if not 0.1 <= seconds <= 3600:
        raise Wrong.at(None, f"{quoted(text(node))} is out of range", "from 100ms to 1h, or off")
    return seconds


def moment(node: Node) -> int:
    """A day or a time as ISO 8601 writes it, in UTC where it does not say; in microseconds since the epoch."""
    try:
        found = datetime.fromisoformat(text(node))
    except ValueError:
        raise Wrong.at(None, f"{quoted(text(node))} is no time", "as 2026-12-31 or 2026-12-31T18:00:00Z") from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000_000)
