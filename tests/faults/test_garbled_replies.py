"""A server that answers with garbage: a port at which something else listens, a stream that lost its place."""

import asyncio
import contextlib
import resource
import socketserver
import threading

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.errors import ErrorReply, StoreUnavailable
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import open_records, open_store
from ratelimit_mw.stores.base import DECIDE
from ratelimit_mw.stores.redis.connection import Replies
from tests.support.apps import LONG

ASKS = [Ask("d:r:{x}", Quota("fixed_window", 100, LONG))]

GARBAGE = [
    pytest.param(b"*1000000000\r\n", id="an array of a billion items"),
    pytest.param(b"*4294967295\r\n", id="the largest array there is"),
    pytest.param(b"*99999999999999999999\r\n", id="a larger one"),
    pytest.param(b"*2\r\n*1000000000\r\n", id="an array in an array"),
    pytest.param(b"*1\r\n" * 100_000, id="an array in an array, and so on"),
    pytest.param(b"$999999999999\r\n", id="a text of a terabyte"),
    pytest.param(b"$-2\r\n", id="a text of less than nothing"),
    pytest.param(b"$" + b"9" * 100_000, id="a length without an end"),
    pytest.param(b":" + b"9" * 5_000 + b"\r\n", id="a number too long to read"),
    pytest.param(b"%1000000000\r\n", id="a map of another protocol"),
    pytest.param(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", id="HTTP"),
    pytest.param(b"\x15\x03\x01\x00\x02\x02\x28", id="TLS"),
    pytest.param(b"\x00" * 1_000, id="nothing but zeros"),
    pytest.param(b"$3\r\nabcdef\r\n", id="a text longer than it says"),
    pytest.param(b"*-5\r\n", id="an array of less than nothing"),
    pytest.param(b"+OK\r\n" * 1_000, id="more replies than requests"),
    pytest.param(b"-MOVED here\r\n", id="a redirection to nowhere"),
]


class _Handler(socketserver.BaseRequestHandler):
    def handle(self):
        with contextlib.suppress(OSError):
            while self.request.recv(65_536):
                self.request.sendall(self.server.garbage)


@pytest.fixture
def garbage_at():
    """Starts a server that answers everything with these bytes, and gives its port."""
    with contextlib.ExitStack() as stack:

        def start(garbage):
            server = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler))
            server.daemon_threads, server.garbage = True, garbage
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server.server_address[1]

        yield start


URLS = [
    pytest.param("redis://127.0.0.1:{}/0", id="one server"),
    pytest.param("redis://:password@127.0.0.1:{}/1", id="a server with a password"),
    pytest.param("redis+sentinel://127.0.0.1:{}/main/0", id="Sentinels"),
    pytest.param("redis+cluster://127.0.0.1:{}", id="a cluster"),
]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("url", URLS)
def test_garbage_is_a_store_that_is_away_and_takes_no_memory(garbage_at, url, garbage):
    url = url.format(garbage_at(garbage))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = open_store(StorageSettings(url=url, timeout=0.5))
    with pytest.raises(StoreUnavailable):
        store.decide(ASKS)
    store.close()

    async def awaited():
        store = open_store(StorageSettings(url=url, timeout=0.5))  # one that has not found out yet
        with pytest.raises(StoreUnavailable):
            await store.aask((ASKS, DECIDE))
        await store.aclose()

    asyncio.run(awaited())
    records = open_records(url)
    with pytest.raises(StoreUnavailable):
        records.version("d:rules")
    records.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB; a billion items are 8 GB


# ----------------------------------------------------------------------------------------------- the parser


def parsed(chunks, **options):
    """The replies in some bytes that arrive in pieces."""
    replies = Replies(**options)
    return [reply for chunk in chunks for reply in replies.read(chunk)]


def plain(reply):
    """A reply as one may compare it."""
    if isinstance(reply, ErrorReply | hiredis.ReplyError):
        return "error", str(reply)
    return [plain(item) for item in reply] if isinstance(reply, list) else reply


def written(reply):
    """A reply as a server writes it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, str):
        return b"-%s\r\n" % reply.encode()
    if isinstance(reply, bytes):
        return b"$%d\r\n%s\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(written, reply))


line = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)
reply = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40) | line,
    lambda items: st.lists(items, max_size=5),
    max_leaves=20,
)


def cut(data, places):
    places = sorted({place % (len(data) + 1) for place in places})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@given(st.lists(reply, max_size=4), st.lists(st.integers(0, 10_000), max_size=8))
def test_replies_are_read_as_hiredis_reads_them_however_they_are_cut(replies, places):
    data = b"".join(map(written, replies))
    reader = hiredis.Reader()
    reader.feed(data)
    expected = [plain(reader.gets()) for _ in replies]
    assert [plain(found) for found in parsed(cut(data, places))] == expected


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"*3\r\n", b"$5\r\n", b":1\r\n", b"\r\n", b"*-1\r\n"])))
def test_any_bytes_are_replies_or_unavailable(chunks):
    found = []
    with contextlib.suppress(StoreUnavailable):
        found = parsed(chunks)
    assert all(isinstance(each, int | bytes | list | ErrorReply | hiredis.ReplyError | None) for each in found)


@pytest.mark.parametrize(
    ("data", "items"),
    [
        pytest.param(b"*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n", 3, id="one array"),
        pytest.param(b"*2\r\n*1\r\n:1\r\n*1\r\n:2\r\n", 3, id="arrays in an array, together"),
        pytest.param(b"*1\r\n:1\r\n", 0, id="any array, where none is expected"),
    ],
)
def test_the_items_of_one_reply_are_bounded(data, items):
    with pytest.raises(StoreUnavailable, match="an unexpected array of"):
        parsed([data], items=items)


@pytest.mark.parametrize(
    ("most", "more"),
    [
        pytest.param(b"*1000000\r\n", b"*1000001\r\n", id="a million items"),
        pytest.param(b"$67108864\r\n", b"$67108865\r\n", id="a text of 64 MiB"),
        pytest.param(b"+".ljust(65_536, b"x"), b"+".ljust(65_537, b"x"), id="a line of 64 KiB"),
        pytest.param(b"*1\r\n" * 8, b"*1\r\n" * 9, id="eight arrays in each other"),
    ],
)
def test_what_a_server_announces_is_bounded_before_it_comes(most, more):
    assert parsed([most]) == []
    with pytest.raises(StoreUnavailable):
        parsed([more])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"HTTP/1.1 400", id="the beginning of a line that begins no reply"),
        pytest.param(b"$3\r\nabcde:1\r\n", id="a text without its end, before what looks like a reply"),
    ],
)
def test_what_is_no_reply_is_refused_at_once(data):
    with pytest.raises(StoreUnavailable):
        parsed([data])


def test_each_reply_has_the_whole_bound():
    assert parsed([b"*2\r\n:1\r\n:2\r\n" * 3], items=2) == [[1, 2]] * 3
