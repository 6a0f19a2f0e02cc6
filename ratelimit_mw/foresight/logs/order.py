"""Puts the requests of logs in order of time.

Servers write a line when a request ends, and several processes write to one log. Lines are therefore often a little
out of order.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter

from ratelimit_mw.foresight.logs.entry import Entry
from ratelimit_mw.model import SECOND

_at = itemgetter(0)
_MERGED = 1024
"""How many requests of several logs are passed on at once."""


class Order:
    """Orders the requests of one log, and counts those that came too late for it.

    The requests of each second are kept together, and a heap has the seconds. A second is passed on when a request
    comes that began more than `disorder` seconds after it.

    Args:
        disorder: The seconds by which a line may be behind the lines before it.
        spread: Distribute the requests of a second evenly over it, if their times are whole seconds. A clock of whole
            seconds makes bursts of requests that were not simultaneous.
    """

    def __init__(self, disorder: int, *, spread: bool = False) -> None:
        self.late = 0
        """The requests that were more than `disorder` seconds behind. They are taken at the last moment."""
        self._disorder = disorder
        self._spread = spread

    def ordered(self, batches: Iterable[list[Entry]]) -> Iterator[list[Entry]]:
        """Yield the requests in order of time, some at once."""
        seconds: dict[int, list[Entry]] = {}
        heap: list[int] = []
        newest, released, last = -1, -1, 0
        for batch in batches:
            for entry in batch:
                second = entry[0] // SECOND
                held = seconds.get(second)
                if held is not None:
                    held.append(entry)
                elif second <= released:
                    self.late += 1
                    yield [entry._replace(at=last)]
                else:
                    seconds[second] = [entry]
                    heapq.heappush(heap, second)
                    newest = max(newest, second)
                    while heap[0] < newest - self._disorder:
                        released = heapq.heappop(heap)
                        ready = self._sorted(seconds.pop(released))
                        last = ready[-1].at
                        yield ready
        while heap:
            yield self._sorted(seconds.pop(heapq.heappop(heap)))

    def _sorted(self, entries: list[Entry]) -> list[Entry]:
        if len(entries) == 1:
            return entries
        if not self._spread or any(entry.at % SECOND for entry in entries):
            entries.sort(key=_at)
            return entries
        return [entry._replace(at=entry.at + place * SECOND // len(entries)) for place, entry in enumerate(entries)]


def merged(streams: Sequence[Iterator[list[Entry]]]) -> Iterator[list[Entry]]:
    """Merge the requests of several logs, each of which is in order, by their times."""
    if len(streams) == 1:
        yield from streams[0]
        return
    entries = heapq.merge(*map(chain.from_iterable, streams), key=_at)
    while batch := list(islice(entries, _MERGED)):
        yield batch
