"""What a server says, read from its bytes: a parser of RESP2 that bounds what it takes up. No I/O here.

hiredis makes room for as many items as the header of an array announces. A header that promises a billion of them (a
garbled stream, a port at which something else listens) costs it gigabytes, and the process minutes.
"""

from ratelimit_mw.errors import StoreUnavailable

PENDING = object()
"""What `Replies.get` returns until the next reply is there as a whole."""

MOST_ITEMS = 1_000_000
"""Items of one reply, at all depths together. The largest that is asked for is a cluster's table of slots."""

_MOST_BYTES = 64 * 1024 * 1024
"""Bytes of one text. The largest that is asked for is a file of rules."""

_LONGEST_LINE = 64 * 1024
_DEEPEST = 8

_TEXT, _ARRAY, _NUMBER, _STATUS, _ERROR = b"$*:+-"


class ErrorReply(Exception):
    """An error that a server answered with."""


class Replies:
    """Takes bytes as they arrive, and gives the replies in them, one at a time.

    `items` is how many items the arrays of one reply may have together; 0 takes no arrays at all.
    """

    def __init__(self, items: int = MOST_ITEMS) -> None:
        self._items = items
        self._data = bytearray()
        self._open: list[tuple[list[object], int]] = []
        """The arrays that are not complete, the outermost first, and how many items each is to have."""
        self._left = items

    def only(self, data: bytes) -> bytes | None:
        """The text that these bytes are, as nearly always where one reply is awaited; else None, and they are fed."""
        if data[:1] == b"$" and not self._data and not self._open:
            start = data.find(b"\r\n", 1, 12) + 2
            if (
                1 < start < len(data) - 1
                and data[1 : start - 2] == b"%d" % (len(data) - start - 2)
                and data[-2:] == b"\r\n"
            ):
                return data[start:-2]
        self._data += data
        return None

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._data += data

    def get(self) -> object:
        """The next reply, an error as an ErrorReply; or PENDING. Raises StoreUnavailable for what is no reply."""
        if not self._data:
            return PENDING
        while True:
            value = self._next()
            if value is PENDING:
                return PENDING
            if type(value) is _Header:
                if self._begin(value.items):
                    continue
                value = []
            while self._open:
                items, wanted = self._open[-1]
                items.append(value)
                if len(items) < wanted:
                    break
                self._open.pop()
                value = items
            else:
                self._left = self._items
                return value

    def _begin(self, items: int) -> bool:
        """Open an array; False for one that is empty, and so complete."""
        self._left -= items
        if self._left < 0 or len(self._open) >= _DEEPEST:
            raise StoreUnavailable(f"the server sent an array of {items} items, which nothing has asked for")
        if items:
            self._open.append(([], items))
        return items > 0

    def _next(self) -> object:
        """The next text, number, error or nil, the header of the next array, or PENDING."""
        data = self._data
        end = data.find(b"\r\n")
        if end < 0:
            # What no reply begins with is refused at once: a line of it may never end.
            if len(data) > _LONGEST_LINE or (data and data[0] not in b"$*:+-"):
                raise self._garbled()
            return PENDING
        kind = data[0]
        if kind == _TEXT:
            size = self._size(end, _MOST_BYTES)
            if size < 0:
                del data[: end + 2]
                return None
            start = end + 2
            end = start + size
            if len(data) < end + 2:
                return PENDING
            if data[end : end + 2] != b"\r\n":
                raise self._garbled()
            value: object = bytes(data[start:end])
        elif kind == _ARRAY:
            size = self._size(end, MOST_ITEMS)
            value = _Header(size) if size >= 0 else None
        elif kind == _NUMBER:
            value = self._number(end)
        elif kind == _STATUS:
            value = bytes(data[1:end])
        elif kind == _ERROR:
            value = ErrorReply(data[1:end].decode(errors="replace"))
        else:
            raise self._garbled()
        del data[: end + 2]
        return value

    def _size(self, end: int, most: int) -> int:
        size = self._number(end)
        if not -1 <= size <= most:
            raise self._garbled()
        return size

    def _number(self, end: int) -> int:
        try:
            return int(self._data[1:end])
        except ValueError:
            raise self._garbled() from None

    def _garbled(self) -> StoreUnavailable:
        return StoreUnavailable(f"the server sent something that is no reply: {bytes(self._data[:40])!r}")


class _Header:
    """The beginning of an array."""

    __slots__ = ("items",)

    def __init__(self, items: int) -> None:
        self.items = items
