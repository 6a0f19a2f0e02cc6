"""Plans remembered: requests of which the rules see the same ask the same."""

from collections.abc import Hashable, Iterable
from typing import Any

from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.request import Request
from ratelimit_mw.recent import Recent

_MOST = 4096  # about 3 MB
_LONG = 512  # characters: longer texts are remembered nowhere


class Plans(Recent[Hashable, Any]):
    """The plans of rules that read requests through `attributes`, and that neither the time nor the load changes."""

    def __init__(self, attributes: Iterable[Attributes]) -> None:
        super().__init__(_MOST)
        read: set[str] | None = set()
        for each in attributes:
            read = None if read is None or each.headers is None else read | each.headers
        self._headers = None if read is None else tuple(sorted(read))

    def key(self, request: Request) -> Hashable | None:
        """All of a request that its plan may follow from; None where that can't be told, or is too much."""
        headers, method, path = self._headers, request.method, request.path
        # A preflight is known by further headers; what has values already got them from elsewhere, as in check().
        if headers is None or len(method) + len(path) > _LONG or method == "OPTIONS" or request.values:
            return None
        if request.context is None or request.readings:
            return None
        if not headers:
            return type(request), method, path, request.peer
        lines = [tuple(request.header_lines(name)) for name in headers]
        if request.doubtful:  # there is more to it than these lines
            return None
        if sum(len(line) + 1 for each in lines for line in each) > _LONG:  # an empty line takes room, too
            return None
        return type(request), method, path, request.peer, *lines
