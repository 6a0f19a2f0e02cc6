"""A bounded mapping that drops the entry that was put longest ago.

This module is internal: its names may change in any release.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRU(OrderedDict[K, V]):
    """At most `most` values by their keys; whichever was put longest ago is forgotten first, one at a time.

    Any thread may use it: the worst that two can do to each other is to forget too soon. That is with keys that are
    hashed and compared without Python code, as texts and tuples of them are: in the middle of such code another thread
    may come, and an OrderedDict does not survive it. `get` is the dict's own, for it stands on the hot path.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> None:
        """Remember `value`."""
        self.pop(key, None)  # put anew, it is the newest
        self[key] = value
        while len(self) > self._most:
            self.popitem(last=False)

    def drop(self, key: K) -> None:
        """Forget it."""
        self.pop(key, None)
