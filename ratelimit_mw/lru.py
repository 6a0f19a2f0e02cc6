"""A bounded mapping that drops the entry that was put longest ago.

This module is internal: its names may change in any release.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRU(OrderedDict[K, V]):
    """At most `most` values by key. The entry that was put longest ago is dropped first, one at a time.

    It is safe to use from several threads; at worst, an entry is dropped too early. Keys must be hashed and compared
    without Python code, as texts and tuples of texts are: a thread switch inside such code would corrupt an
    OrderedDict. `get` is the method of the dict itself, because it is on the hot path.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> None:
        """Store `value` as the newest entry."""
        self.pop(key, None)  # so that the key becomes the newest
        self[key] = value
        while len(self) > self._most:
            self.popitem(last=False)

    def drop(self, key: K) -> None:
        """Remove the value of `key`, if there is one."""
        self.pop(key, None)
