"""What a rule source is: somewhere that documents come from, now and in newer versions."""

from typing import NamedTuple, Protocol

from ratelimit_mw.config.documents import Document
from ratelimit_mw.stores.records import Listener


class Snapshot(NamedTuple):
    """The documents of one version. Two that are equal in `version` hold the same."""

    version: str
    documents: tuple[Document, ...]


class Source(Protocol):
    """Rules as they are written. `name` is for logs, and holds no password."""

    name: str
    channels: tuple[str, ...]
    """What its listener listens to; () where nobody tells of changes."""

    settling: float
    """Seconds after which documents that can't be used are fetched once more at the start: they may be half written."""

    def fetch(self) -> Snapshot:
        """The documents as they are now.

        Asked again and again: cheap where nothing has changed, and the same object then. Raises
        ConfigurationError where they can't be read.
        """
        ...

    def listener(self) -> Listener | None:
        """What a thread of its own waits with for changes; None where there are none."""
        ...

    def close(self) -> None:
        """Let go of what is held open."""
