"""A list of entries as `check()` is given it: what a request is to descriptors."""

from collections.abc import Iterable, Sequence

from ratelimit_mw.identity.mapping import MappingRequest

Entry = tuple[str, str]
"""A key and its value."""


class EntriesRequest(MappingRequest):
    """One list of entries, in order, and no attributes. Raises ValueError for what is no (key, value) pair."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[Sequence[str | None]]) -> None:
        super().__init__({})
        self.entries: tuple[Entry, ...] = tuple([_entry(entry) for entry in entries])


def _entry(entry: Sequence[str | None]) -> Entry:
    if isinstance(entry, str) or len(entry) != 2:
        raise ValueError(f"a list of entries is made of (key, value) pairs, and this is no pair: {entry!r:.80}")
    key, value = entry
    return str(key), "" if value is None else str(value)
