"""A request as `check()` describes it: attributes by name, and nothing behind them."""

from collections.abc import Mapping
from types import MappingProxyType

from ratelimit_mw.identity.request import Again, Reading


class MappingRequest:
    """Attributes given by hand. What is not given is absent: there is no header, cookie or scope to ask.

    `values` holds the attributes under their canonical names, `raw` the headers, cookies and query
    parameters among them, which are read like those of any request: `tier: header:X-Plan` finds a given
    "header:X-Plan".
    """

    __slots__ = ("context", "doubtful", "method", "path", "raw", "readings", "rows", "values")

    def __init__(
        self,
        values: dict[str, str | None],
        raw: Mapping[str, str] = MappingProxyType({}),
        *,
        method: str = "",
        path: str = "",
    ) -> None:
        self.context = None
        self.doubtful = False
        self.rows: tuple[Reading, ...] = ()
        self.values = values
        self.raw = raw
        self.method = method
        self.path = path
        self.readings: tuple[str, ...] = ()

    @property
    def peer(self) -> None:
        """None: an address that was given stands in `values`."""
        return

    def header_lines(self, name: str) -> list[str]:
        """The header as one line, if it was given."""
        value = self.header(name)
        return [] if value is None else [value]

    def header(self, name: str) -> str | None:
        """A header, if it was given as "header:N"."""
        return self.raw.get(f"header:{name}")

    def cookie(self, name: str) -> str | None:
        """A cookie, if it was given as "cookie:N"."""
        return self.raw.get(f"cookie:{name}")

    def query(self, name: str) -> str | None:
        """A query parameter, if it was given as "query:N"."""
        return self.raw.get(f"query:{name}")

    def host(self) -> str | None:
        """A host, if it was given as "header:host"."""
        return self.header("host")

    def reread(self, names: Mapping[str, Again]) -> tuple[Reading, ...]:  # noqa: ARG002 - no name is in doubt
        """None: what was given by hand is read in one way."""
        return ()
