"""Connections for threads and for event loops, whatever is spoken on them, and how replies of Redis are read."""

import asyncio
import contextlib
import selectors
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, Self

from ratelimit_mw.errors import ErrorReply, NoAnswer, StoreUnavailable
from ratelimit_mw.stores.redis.codec import Command, Conversation, Result, only_text, packed
from ratelimit_mw.stores.redis.faults import not_redis, refusal, unavailable

GRACE = 0.01
"""Seconds by which a deadline is extended, for a reply that has arrived while the process itself was delayed."""

HANDSHAKE_TIMEOUT = 1.0
"""Seconds that each step of connecting may take. Requests do not wait for it: connecting goes on in the background."""

FIRST_CONNECTION = 1.0
"""Seconds that requests may wait for the very first connection of a process, which takes longest."""

MAX_ITEMS = 1_000_000
"""The most items in one reply, at all depths together. The largest expected reply is a cluster's map of slots."""

_MAX_BYTES = 64 * 1024 * 1024
"""The most bytes in one text. The largest expected text is a file of rules."""

_LONGEST_LINE = 64 * 1024
_DEEPEST = 8

_TEXT, _ARRAY, _NUMBER, _STATUS, _ERROR = _KINDS = b"$*:+-"


class Reader(Protocol):
    """Reads replies from the bytes of a connection, in order."""

    last: bool
    """Whether the server has said that it closes the connection."""

    def read(self, data: bytes) -> Sequence[object]:
        """Take more bytes, and return the replies that are whole now. Raises StoreUnavailable if they are invalid."""
        ...


class Replies:
    """An incremental parser of the Redis protocol (RESP2): takes bytes as they arrive and returns whole replies.

    `items` is the most items that the arrays of one reply may have together; with 0, arrays are refused.
    """

    last = False

    def __init__(self, items: int = MAX_ITEMS) -> None:
        self._items = items
        self._left = items
        self._data = bytearray()
        self._incomplete: Generator[None, None, object] | None = None
        self._begun = False  # whether a whole reply has come. Before that, the server may be no Redis at all

    def read(self, data: bytes) -> Sequence[object]:
        """Take more bytes, and return the replies that are whole now. Error replies are returned as `ErrorReply`.

        Raises StoreUnavailable if the bytes are not a valid reply.
        """
        if self._incomplete is None and (text := only_text(data)) is not None:
            self._begun = True
            return (text,)
        self._data += data
        replies: list[object] = []
        while self._data:
            self._incomplete = self._incomplete or self._reply()
            try:
                next(self._incomplete)
                break
            except StopIteration as end:
                replies.append(end.value)
            self._incomplete, self._left, self._begun = None, self._items, True
        return replies

    def _reply(self, depth: int = 0) -> Generator[None, None, object]:
        """Read one reply. Yields where more bytes are needed."""
        data = self._data
        while (end := data.find(b"\r\n")) < 0:
            # Refuse an invalid first byte at once, because its line may never end.
            if len(data) > _LONGEST_LINE or (data and data[0] not in _KINDS):
                raise self._garbled()
            yield
        kind, line = data[0], bytes(data[1:end])
        if kind not in _KINDS:
            raise self._garbled()
        if kind == _TEXT:
            size, start = self._number(line, _MAX_BYTES), end + 2
            if size < 0:
                del data[:start]
                return None
            end = start + size
            while len(data) < end + 2:
                yield
            if data[end : end + 2] != b"\r\n":
                raise self._garbled()
            line = bytes(data[start:end])
        if kind == _ARRAY:
            items = self._number(line, MAX_ITEMS)
            del data[: end + 2]
            return None if items < 0 else (yield from self._array(items, depth))
        reply: object = line
        if kind == _NUMBER:
            reply = self._number(line)
        elif kind == _ERROR:
            reply = ErrorReply(line.decode(errors="replace"))
        del data[: end + 2]
        return reply

    def _array(self, size: int, depth: int) -> Generator[None, None, list[object]]:
        self._left -= size
        if self._left < 0 or depth >= _DEEPEST:
            raise StoreUnavailable(f"the server sent an unexpected array of {size} items")
        items = []
        for _ in range(size):
            items.append((yield from self._reply(depth + 1)))  # noqa: PERF401  a generator in a list can't yield
        return items

    def _number(self, line: bytes, most: int | None = None) -> int:
        """The number in a line. With `most`, a size: -1 stands for nil."""
        try:
            number = int(line)
        except ValueError:
            raise self._garbled() from None
        if most is not None and not -1 <= number <= most:
            raise self._garbled()
        return number

    def _garbled(self) -> StoreUnavailable:
        if not self._begun:
            return not_redis(bytes(self._data[:40]))
        return StoreUnavailable(f"the server sent an invalid reply: {bytes(self._data[:40])!r}")


_IDLE = 0.05
"""Seconds of idleness after which a connection is checked before use, because the server may have closed it."""


NO_ANSWER = "no answer within the deadline"
NO_CONNECTION = "no connection within the deadline"
UNASKED = "unexpected reply from the server"

_SOCKET_PACKAGES = ("ratelimit_mw", "socket", "ssl", "gevent", "eventlet")
"""The packages whose exceptions come from the socket."""


_READ_SIZE = 65_536
"""The most bytes to read at once."""


Pack = Callable[[Sequence[Command]], bytes]
"""Returns the bytes of a pipeline of commands."""


class BlockingConnection(ABC):
    """A connection for threads, whatever is spoken on it. Only one thread may use it at a time.

    Every failure is a StoreUnavailable.

    Args:
        replies: reads the replies of the server.
        pack: see `Pack`.
        failure: returns the StoreUnavailable for an exception of the socket.
    """

    def __init__(
        self, replies: Reader, pack: Pack = packed, failure: Callable[[Exception], StoreUnavailable] = unavailable
    ) -> None:
        self._socket: Any = None
        self._replies = replies
        self._pack = pack
        self._failure = failure
        self._used = 0.0

    @abstractmethod
    def connect(self) -> Self:
        """Connect, do what must precede the first request, and return this connection."""

    @abstractmethod
    def close(self) -> None:
        """Close the socket. A thread that waits for its reply fails at once."""

    def carry(self, conversation: Conversation, deadline: float) -> list[Result]:
        """Carry out `conversation` with the server and return its result. `deadline` is by the monotonic clock.

        If this is interrupted, the connection must be closed, because a reply may still come.
        """
        pipeline = next(conversation)
        try:
            while True:
                pipeline = conversation.send(self._exchange(pipeline, deadline))
        except StopIteration as end:
            result: list[Result] = end.value
            return result

    def ask(self, command: Command, within: float) -> Any:
        """The reply to one command, outside of requests, in `within` seconds. An error reply is raised."""
        (reply,) = self.ask_all((command,), within)
        if isinstance(reply, ErrorReply):
            raise refusal(str(reply))
        return reply

    def ask_all(self, pipeline: Sequence[Command], within: float) -> list[Any]:
        """The replies to several commands, which are sent together. Error replies are returned as values."""
        return self._exchange(pipeline, time.monotonic() + within)

    def _exchange(self, pipeline: Sequence[Command], deadline: float) -> list[object]:
        """Send a pipeline of commands in one write and return the replies. Error replies are returned as values."""
        sock = self._socket
        late = False
        replies: list[object] = []
        try:
            _limit(sock, max(deadline - GRACE - time.monotonic(), GRACE))
            sock.sendall(self._pack(pipeline))
            while len(replies) < len(pipeline):
                left = deadline - GRACE - time.monotonic()
                if left <= 0:
                    if late:
                        raise NoAnswer(NO_ANSWER)
                    late, left = True, GRACE  # only once, because a slow reply could extend it again and again
                _limit(sock, left)
                try:
                    data = sock.recv(_READ_SIZE)
                except TimeoutError as error:
                    if late or _is_foreign(error):
                        raise
                    continue  # with the grace: what has come is read, also if this process was delayed
                if not data:
                    raise ConnectionError("the server closed the connection")
                replies += self._replies.read(data)
        except OSError as error:
            if _is_foreign(error):
                raise
            raise (NoAnswer(NO_ANSWER) if isinstance(error, TimeoutError) else self._failure(error)) from error
        except AttributeError:  # the socket is None: another thread closed the connection
            raise StoreUnavailable("the connection was closed") from None
        self._used = time.monotonic()
        if len(replies) > len(pipeline):
            raise StoreUnavailable(UNASKED)
        return replies

    @property
    def usable(self) -> bool:
        """Whether the connection is open; False if the server has closed it, or has said that it will."""
        sock = self._socket
        if sock is None or sock.fileno() < 0 or self._replies.last:
            return False
        if time.monotonic() - self._used < _IDLE:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            return not selector.select(0)  # no reply is expected, so readable means closed


def _limit(sock: Any, seconds: float) -> None:
    """Let the socket wait for `seconds`, more or less half of the grace.

    It is mostly set already. To set it is a call of the system, during which another thread takes the interpreter.
    """
    known = sock.gettimeout()
    if not known or abs(seconds - known) > GRACE / 2:
        sock.settimeout(seconds)


def _one_pipeline(pipeline: Sequence[Command]) -> Any:
    """A conversation of one pipeline, whose result is the list of replies."""
    return (yield pipeline)


def _is_foreign(error: BaseException) -> bool:
    """Whether a signal handler raised the exception. Many raise TimeoutError, which is not a failure of the store."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _SOCKET_PACKAGES


Done = Callable[[list[Result] | StoreUnavailable], None]
"""Receives the result of a conversation, or the failure that ended it."""


class _Ongoing:
    """A conversation under way, with the replies so far to its last pipeline of `asked` commands."""

    __slots__ = ("asked", "conversation", "done", "replies")

    def __init__(self, conversation: Conversation, done: Done) -> None:
        self.conversation = conversation
        self.done = done
        self.asked = 0
        self.replies: list[object] = []


class StreamingConnection(asyncio.Protocol, ABC):
    """A connection for the tasks of one event loop, whatever is spoken on it. Several conversations may be under way.

    The server replies in the order of the commands.

    Args:
        replies: reads the replies of the server.
        patience: seconds for each step of connecting.
        pack: see `Pack`.
    """

    def __init__(self, replies: Reader, patience: float, pack: Pack = packed) -> None:
        self._pack = pack
        self._patience = patience
        self._transport: Any = None
        self._ended: StoreUnavailable | None = None
        self._replies = replies
        self._ongoing: deque[_Ongoing] = deque()

    @abstractmethod
    async def connect(self) -> Self:
        """Connect, do what must precede the first request, and return this connection."""

    @property
    def usable(self) -> bool:
        """Whether the connection is open; False if the server has closed it, or has said that it will."""
        return self._ended is None and not self._replies.last

    def carry(self, conversation: Conversation, done: Done) -> None:
        """Carry out `conversation` with the server. `done` is called with its result or with the failure."""
        if self._ended:
            done(self._ended)
        else:
            self._send(next(conversation), _Ongoing(conversation, done))

    def close(self, reason: StoreUnavailable) -> None:
        """Close the socket without waiting. Conversations under way fail with `reason`."""
        if self._ended is None:
            self._ended = reason
            with contextlib.suppress(RuntimeError):  # the event loop is closed, and its transports with it
                self._transport.abort()
            while self._ongoing:
                self._ongoing.popleft().done(reason)

    def data_received(self, data: bytes) -> None:
        """Pass each complete reply to its conversation."""
        try:
            for reply in self._replies.read(data):
                if self._ended is None:
                    self._receive(reply)
        except StoreUnavailable as error:
            self.close(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all conversations: the connection is closed."""
        self.close(unavailable(exc) if exc else StoreUnavailable("the server closed the connection"))

    async def _introduce(self, pipeline: Sequence[Command], check: Callable[[Sequence[object]], object]) -> None:
        """Send the first commands. A failure closes the connection, also one that `check` raises about the replies."""
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def done(result: object) -> None:
            if not answered.done():
                answered.set_result(result)

        self.carry(_one_pipeline(pipeline), done)
        reason = StoreUnavailable("the server does not answer a new connection")
        try:
            async with asyncio.timeout(self._patience):
                replies: Any = await answered
            if isinstance(replies, StoreUnavailable):
                reason = replies
                raise reason
            check(replies)
        except TimeoutError:
            self.close(reason)
            raise reason from None
        except BaseException:
            self.close(reason)
            raise

    def _send(self, pipeline: Sequence[Command], ongoing: _Ongoing) -> None:
        ongoing.asked, ongoing.replies = len(pipeline), []
        self._ongoing.append(ongoing)
        self._transport.write(self._pack(pipeline))

    def _receive(self, reply: object) -> None:
        if not self._ongoing:
            # A server with too many clients, for example, sends an error unasked and closes the connection.
            self.close(StoreUnavailable(str(reply) if isinstance(reply, ErrorReply) else UNASKED))
            return
        ongoing = self._ongoing[0]
        ongoing.replies.append(reply)
        if len(ongoing.replies) < ongoing.asked:
            return
        self._ongoing.popleft()
        try:
            pipeline = ongoing.conversation.send(ongoing.replies)
        except StopIteration as last:
            result = last.value
        except StoreUnavailable as error:
            result = error
        else:
            self._send(pipeline, ongoing)
            return
        ongoing.done(result)  # not while an exception is handled, because tasks continue here and may raise their own
