"""A request in the queue: its place, what lies there, and what became of it."""

from typing import NamedTuple


class Entry(NamedTuple):
    """A request's place in the stream, by which whoever was handed it speaks of it."""

    id: str
    lane: str
    number: str


class Job(NamedTuple):
    """A request as it lies in the queue. `age` is how long it has lain there by the store's clock, in microseconds."""

    state: str
    request: bytes
    body: bytes
    attempts: int
    age: int


class Fate(NamedTuple):
    """What became of a request: `queued`, `running`, `done`, `parked`, or `unknown` (it may have been applied).

    `status`, `kind` (its Content-Type) and `answer` are of the response; `answer` is None where it was too long.
    """

    state: str
    status: int = 0
    kind: str = ""
    answer: bytes | None = None
    reason: str = ""
    since: int = 0
    attempts: int = 0
