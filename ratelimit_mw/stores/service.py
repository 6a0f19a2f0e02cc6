"""The service in the place of a store: it decides by rules of its own, and is asked over HTTP.

The key of an ask ends with a JSON object, the *question*: the attributes of a request and the domain. All questions of
a batch are one call of `/v1/check`, or of `/v1/peek`. What sends batches, and guards against a service that is away, is
what does so for Redis.

This module is internal: its names may change in any release.
"""

import asyncio
import json
import math
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import CounterError, PermanentFault, StoreUnavailable, extra
from ratelimit_mw.model import Ask, Decision, Reply, ServiceReply
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.base import DECIDE, LOOK, Store, StoreRequest
from ratelimit_mw.stores.redis.codec import Command, Conversation
from ratelimit_mw.stores.redis.connection import HANDSHAKE_TIMEOUT, BlockingConnection, StreamingConnection
from ratelimit_mw.stores.redis.endpoint import Endpoint
from ratelimit_mw.stores.redis.store import Server

with extra("asking"):
    import h11

_MOST = 100
"""The most questions in one call, see `service.checks`."""

_LONGEST = 60_000
"""The most bytes of the questions of one call. The service takes 64 KiB."""

_LARGEST = 8 * 1024 * 1024
"""The largest body of a response, in bytes."""

_LONGEST_PROBLEM = 1000
"""The most characters of a problem that a log shows."""

_CHECK, _PEEK = b"/v1/check", b"/v1/peek"

_CANNOT = (
    "the service at storage.url decides by rules of its own, so this app cannot charge, refund, reset or list its "
    "counters: ask the service itself"
)

_REFUSALS = {
    400: "compare the domain and the attributes of this file with those in the rules of the service, and both versions",
    401: "write a token of the service as the password of the storage URL, as in https://:TOKEN@host:8080",
    403: "give this app a token or a client certificate that the service accepts",
    404: "correct the host and the port of the storage URL (that of --http), or update the service",
}
"""The remedy for each status that waiting cannot heal."""

_UNKNOWN = "the rule that the app asks for by name is not in the rules of the service"

_UNLIKE = "the server does not answer as the service does"
_OTHER_SERVER = "correct the host and the port of the storage URL: this is not the HTTP port of ratelimit-mw serve"


class _Responses:
    """Reads the responses of the service from the bytes of a connection. Each is a pair of its status and its body."""

    def __init__(self) -> None:
        self.last = False
        """Whether the service closes the connection after the last response."""
        self._parser = h11.Connection(h11.CLIENT)
        self._status = 0
        self._body = bytearray()
        self._expect()

    def read(self, data: bytes) -> Sequence[object]:
        """Take more bytes, and return the responses that are whole now.

        Raises:
            StoreUnavailable: The bytes are not a response of the service.
        """
        found: list[object] = []
        try:
            self._parser.receive_data(data)
            while not self.last and (event := self._parser.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    self._status = event.status_code
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > _LARGEST:
                        raise StoreUnavailable("the service sent a body that is too large")
                elif isinstance(event, h11.EndOfMessage):
                    found.append((self._status, bytes(self._body)))
                    self._body.clear()
                    self._expect_next()
        except h11.RemoteProtocolError as error:
            raise PermanentFault(f"the server does not speak HTTP: {error}", _OTHER_SERVER) from None
        return found

    def _expect_next(self) -> None:
        if self._parser.their_state is h11.DONE:
            self._parser.start_next_cycle()
            self._expect()
        else:
            self.last = True

    def _expect(self) -> None:
        """Tell the parser of a request. It reads a response to one alone, and requests are written without it."""
        self._parser.send(_REQUEST)
        self._parser.send(_END)


_REQUEST = h11.Request(method=b"POST", target=_CHECK, headers=[(b"Host", b"service"), (b"Content-Length", b"0")])
_END = h11.EndOfMessage()


class _Address(Endpoint):
    """Where the service is, and how it is asked. See `Endpoint`.

    Args:
        url: The storage URL. The password is the token. The options are `ssl_ca_certs`, `ssl_certfile` and
            `ssl_keyfile`. Their files are read for each connection, because certificates may be renewed.
        trial: The question that tries the service. It has all attributes that will be sent, so that a service that
            does not know one of them is away.
        patience: Seconds for each step of connecting.

    Raises:
        ValueError: An option is unknown.
    """

    def __init__(self, url: str, trial: str, patience: float) -> None:
        parts = urlsplit(url)
        self.patience = patience
        self.host = parts.hostname or ""
        self.tls = parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._ca = options.pop("ssl_ca_certs", None)
        self._certificate = options.pop("ssl_certfile", None)
        self._key = options.pop("ssl_keyfile", None)
        if options:
            raise ValueError(f"unknown option {next(iter(options))!r}; known: ssl_ca_certs, ssl_certfile, ssl_keyfile")
        token = unquote(parts.password or "")
        lines = [f"Host: {self.name.rpartition('/')[2]}", "Content-Type: application/json"]
        lines += [f"Authorization: Bearer {token}"] if token else []
        self._head = "".join([f"{line}\r\n" for line in lines]).encode("latin-1")
        self.introduction: Sequence[Command] = ((_PEEK, b'{"checks":[%b],"rows":true}' % trial.encode()),)
        """What is asked first on a connection. It charges nothing."""

    def connect(self) -> BlockingConnection:
        """See `Endpoint`."""
        return _Blocking(self).connect()

    async def aconnect(self) -> StreamingConnection:
        """See `Endpoint`."""
        return await _Streaming(self).connect()

    def packed(self, pipeline: Sequence[Command]) -> bytes:
        """The bytes of calls, which are pairs of a path and a body."""
        call = b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b"
        return b"".join([call % (path, self._head, len(body), body) for path, body in pipeline])

    def context(self) -> ssl.SSLContext | None:
        """What TLS needs. None for plain text. Raises StoreUnavailable if a file cannot be used."""
        if not self.tls:
            return None
        try:
            made = ssl.create_default_context(cafile=self._ca)
            if self._certificate is not None:
                made.load_cert_chain(self._certificate, self._key)
        except OSError as error:
            raise PermanentFault(f"the files of TLS cannot be used: {error}", "correct ssl_… in storage.url") from None
        return made

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """The failure for an exception of the socket or of TLS."""
        text = str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            return PermanentFault(text, "name the authority of the service's certificate with ssl_ca_certs")
        if isinstance(error, ssl.SSLError):
            return PermanentFault(text, "https:// is for a port with TLS, and may need ssl_certfile and ssl_keyfile")
        return StoreUnavailable(text)


class _Blocking(BlockingConnection):
    """A connection to the service for threads."""

    def __init__(self, address: _Address) -> None:
        super().__init__(_Responses(), address.packed, address.unavailable)
        self._address = address

    def connect(self) -> Self:
        """See `BlockingConnection`."""
        address = self._address
        try:
            context = address.context()
            sock = self._socket = socket.create_connection((address.host, address.port), address.patience)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self._socket = context.wrap_socket(sock, server_hostname=address.host)
            _require_decisions(self.ask_all(address.introduction, address.patience))
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            self.close()
            raise address.unavailable(error) from error
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """See `BlockingConnection`."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()


class _Streaming(StreamingConnection):
    """A connection to the service for the tasks of one event loop."""

    def __init__(self, address: _Address) -> None:
        super().__init__(_Responses(), address.patience, address.packed)
        self._address = address

    async def connect(self) -> Self:
        """See `StreamingConnection`."""
        address = self._address
        context = await asyncio.to_thread(address.context)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(address.patience):
                place = address.host, address.port
                self._transport, _ = await loop.create_connection(lambda: self, *place, ssl=context)
        except (OSError, UnicodeError) as error:  # also TimeoutError
            raise address.unavailable(error) from error
        await self._introduce(address.introduction, _require_decisions)
        return self


class ServiceStore(Server):
    """Asks the service at `url`, within `timeout` seconds for each question. See `Server`, and `_Address`.

    It only decides and looks: it has no counters that could be charged, refunded, forgotten or listed.

    Raises:
        ValueError: An option of the URL is unknown.
    """

    decides = True
    remote = False  # no deny cache, leases and shards: the counters are the service's

    def __init__(self, url: str, trial: str, *, timeout: float = 0.1) -> None:
        self._trial = trial
        address = _Address(url, trial, max(HANDSHAKE_TIMEOUT, timeout))
        super().__init__(address, address.name, timeout=timeout)

    def ask(self, request: StoreRequest, timeout: float | None = None) -> Reply:
        """See `Store`. Raises RuntimeError for all that is no decision."""
        _require_deciding(request)
        return super().ask(request, timeout)

    async def aask(self, request: StoreRequest) -> Reply:
        """The awaitable twin of `ask`."""
        _require_deciding(request)
        return await super().aask(request)

    def keys(self, prefix: str) -> Iterator[str]:  # noqa: ARG002  of `Store`
        """Raises RuntimeError."""
        raise RuntimeError(_CANNOT)

    def _converse(self, requests: Sequence[StoreRequest]) -> Conversation:
        return _converse(requests)

    def _decide_apart(self, domain: str) -> float:  # noqa: ARG002  the question has it
        return self._decide_alone(([Ask(self._trial, NOTHING)], LOOK))


def _require_deciding(request: StoreRequest) -> None:
    if request[1] is not DECIDE and not request[1].decides:
        raise RuntimeError(_CANNOT)


def open_store(settings: StorageSettings, clock: Clock | None) -> Store:
    """The store for https:// and http://."""
    if clock is not None:
        raise ValueError("the service has a clock of its own: a test with a clock needs another storage")
    return ServiceStore(settings.url, settings.trial, timeout=settings.timeout)


def _converse(requests: Sequence[StoreRequest]) -> Conversation:
    """Ask the questions of all requests, in as few calls as possible."""
    calls: list[Command] = []
    sizes: list[int] = []
    order: list[int] = []
    for path, commit in ((_CHECK, True), (_PEEK, False)):
        asked = [(place, ask) for place, (asks, intent) in enumerate(requests) if intent[0] is commit for ask in asks]
        order += [place for place, _ in asked]
        for batch in _batches([_question(ask) for _, ask in asked]):
            calls.append((path, '{{"checks":[{}],"rows":true}}'.format(",".join(batch)).encode()))
            sizes.append(len(batch))
    responses = yield calls
    answers = [_decisions_of(response, size) for response, size in zip(responses, sizes, strict=True)]
    rules = {name: facts for _, known in answers for name, facts in known.items()}
    replies: list[list[Any]] = [[] for _ in requests]
    for place, decision in zip(order, chain.from_iterable([decisions for decisions, _ in answers]), strict=True):
        replies[place].append(decision)
    return [ServiceReply.of(each, rules) if None not in each else CounterError(_UNKNOWN) for each in replies]


def _question(ask: Ask) -> str:
    question = ask.key[ask.key.index("{") :]
    return question if ask.cost == 1 else f'{question[:-1]},"cost":{ask.cost}}}'


def _batches(questions: Sequence[str]) -> Iterator[Sequence[str]]:
    """The questions of each call. They are ASCII."""
    batch: list[str] = []
    room = _LONGEST
    for question in questions:
        room -= len(question)
        if batch and (room < 0 or len(batch) == _MOST):
            yield batch
            batch, room = [], _LONGEST - len(question)
        batch.append(question)
    if batch:
        yield batch


def _decisions_of(response: Any, number: int) -> tuple[Sequence[Decision | None], Mapping[str, Any]]:
    """The decisions of a response, and what it says of their rules. None is for a rule that the service does not have.

    Raises StoreUnavailable if there are none.
    """
    status, body = response
    if status in _REFUSALS:
        raise PermanentFault(f"the service refuses to decide ({status}): {_problem(body)}", _REFUSALS[status])
    if status != 200:
        raise StoreUnavailable(f"the service answered with status {status}")
    try:
        answer = json.loads(body.decode())  # as UTF-8 alone, which has no half of a surrogate pair
        if b"\\u" in body:  # an error if it is half of a surrogate pair, which no page and no metric could show
            json.dumps(answer, ensure_ascii=False).encode()
        decisions = [None if each is None else _decision(each) for each in answer["rows"]]
        rules = answer.get("rules", {})
        if len(decisions) == number and all(map(_is_plausible, rules.values())):
            return decisions, rules
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise PermanentFault(_UNLIKE, _OTHER_SERVER) from error
    raise PermanentFault(_UNLIKE, _OTHER_SERVER)


_FIELDS = len(Decision._fields)
_FAR = 10**15
_LONG = 10**9  # the most seconds that a thread can sleep are 9e9
_OVERS = (None, "soft", "elastic")
_REASONS = (None, "limited", "banned", "unavailable", "blocked", "shed")
_TEXT_OR_NULL = {str, type(None)}
_new = partial(tuple.__new__, Decision)


def _is_plausible(facts: dict[str, Any]) -> bool:
    """Whether this is what the denials of a rule may say."""
    status, message = facts.get("status"), facts.get("message")
    return (status is None or (type(status) is int and 400 <= status < 600)) and type(message) in _TEXT_OR_NULL


def _decision(row: list[Any]) -> Decision:
    """The decision in a row, see `service.checks.as_row`. A newer service may have added fields."""
    del row[_FIELDS:]
    allowed, rule, limit, remaining, reset_after, wait, delay, reset_at, over, policies, reason, used, period = row
    whole = 0 if rule is None else limit | remaining | used  # below 0 if one is, and an error if one is no integer
    if wait is None:
        row[5], wait = math.inf, 0
    length = 0 if period is None else period
    times = 0 <= reset_after < _FAR and 0 <= reset_at < _FAR and 0 <= wait < _FAR and 0 <= length < _FAR
    if not (times and 0 <= delay < _LONG and 0 <= whole < _FAR):
        raise ValueError("a number is negative, or too large")  # what is no number raises TypeError
    if type(allowed) is not bool or over not in _OVERS or reason not in _REASONS or type(rule) not in _TEXT_OR_NULL:
        raise TypeError("a value has another type")
    row[9] = () if policies is None else tuple(map(_decision, policies))
    if policies is None:
        row[9] = (_new(row),)
    return _new(row)


def _require_decisions(responses: Sequence[Any]) -> None:
    """Raise StoreUnavailable if the responses to the introduction of a connection are no decisions."""
    for response in responses:
        _decisions_of(response, 1)


def _problem(body: bytes) -> str:
    """The first problem that the body of the service names, if it can be a line of the log."""
    try:
        problem = str(json.loads(body)["problems"][0])[:_LONGEST_PROBLEM]
    except (ValueError, TypeError, LookupError, RecursionError):
        problem = ""
    return problem if problem and problem.isprintable() else "it does not say why"
