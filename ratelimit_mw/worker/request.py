"""A deferred request, as the rules see it when its time comes."""

from collections.abc import Mapping
from typing import Any

from ratelimit_mw.deferral.envelope import Envelope
from ratelimit_mw.identity.decoding import cookies_named, parameters_named
from ratelimit_mw.identity.paths import with_dropped
from ratelimit_mw.identity.request import Again, Reading


class DeferredRequest:
    """See `identity.request.Request`. What the rules have read of it when it came, they find again.

    Only what rules read that are newer than the request is read from what was kept of it: of a cookie or a parameter
    sent twice the last one, and nothing of the scope or the environ that it once had. It is read
    again in every way in which it could be read when it came.
    """

    __slots__ = ("_envelope", "context", "doubtful", "method", "path", "readings", "rows", "values")

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self.context: dict[str, Any] = {}  # not None, for there will be a response
        self.method = envelope.method
        self.path = envelope.path
        self.readings = with_dropped((envelope.path,)) if "\ufffd" in envelope.path else ()
        self.values = dict(envelope.values)
        self.rows: tuple[Reading, ...] = envelope.rows
        self.doubtful = bool(envelope.rows)

    @property
    def peer(self) -> str | None:
        """The address at the other end of the connection that it came on."""
        return self._envelope.peer

    def header_lines(self, name: str) -> list[str]:
        """Every line of a header that was kept, in order."""
        return [value for key, value in self._envelope.headers if key == name]

    def header(self, name: str) -> str | None:
        """The first line of a header that was kept."""
        return self._envelope.header(name)

    def host(self) -> str | None:
        """The Host header."""
        return self.header("host")

    def cookie(self, name: str) -> str | None:
        """The last cookie of that name."""
        values = cookies_named(name, "; ".join(self.header_lines("cookie")))
        return values[-1] if values else None

    def query(self, name: str) -> str | None:
        """The last query parameter of that name."""
        values = parameters_named(name, self._envelope.target.partition("?")[2])
        return values[-1] if values else None

    def reread(self, names: Mapping[str, Again]) -> tuple[Reading, ...]:  # noqa: ARG002 - they were read when it came
        """The ways in which it was read when it came."""
        return self.rows
