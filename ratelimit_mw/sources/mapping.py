"""Rules given in code: they never change."""

from collections.abc import Mapping

from ratelimit_mw.config.documents import Document
from ratelimit_mw.sources.base import Snapshot


class MappingSource:
    """A mapping of the shape of a rules file."""

    channels: tuple[str, ...] = ()
    settling = 0.0

    def __init__(self, rules: Mapping[str, object]) -> None:
        self.name = "a mapping"
        self._snapshot = Snapshot("given", (Document("", rules),))

    def fetch(self) -> Snapshot:
        """See `Source`."""
        return self._snapshot

    def listener(self) -> None:
        """See `Source`."""
        return

    def close(self) -> None:
        """Nothing is held open."""
