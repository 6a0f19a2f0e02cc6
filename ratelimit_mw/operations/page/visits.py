"""One request for the live page, under ASGI and under WSGI, its token, and the answer to it.

This module is internal: its names may change in any release.
"""

import hashlib
import hmac
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from wsgiref.types import StartResponse

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.http.answers import phrase
from ratelimit_mw.http.responses import Message, Send
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.stores.memory import MemoryStore


class PageAnswer(NamedTuple):
    """A response. `headers` has only the headers of this response, not those that all responses share."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Visit:
    """A request for the page.

    Attributes:
        request: The request, as rules read it.
        method: The method.
        path: The path below the one under which the page is mounted. A proxy may show both under another one.
    """

    def __init__(self, request: AsgiRequest | WsgiRequest, path: str) -> None:
        self.request = request
        self.method = request.method
        self.path = path or "/"

    @property
    def token(self) -> str | None:
        """The token of the header Authorization: after Bearer, or the password of Basic. None if there is neither."""
        scheme, _, rest = (self.request.header("authorization") or "").strip().partition(" ")
        if scheme.lower() == "bearer":
            return rest
        if scheme.lower() != "basic":
            return None
        try:
            return b64decode(rest.strip(), validate=True).decode("utf-8", "replace").partition(":")[2]
        except ValueError:
            return ""  # it is no token, but an attempt


def asgi_visit(scope: Message) -> Visit:
    """Return the request of a scope."""
    path, root = scope.get("path") or "", (scope.get("root_path") or "").rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):  # most servers and frameworks send the whole path
        path = path[len(root) :]
    return Visit(AsgiRequest(scope), path)


def wsgi_visit(environ: dict[str, Any]) -> Visit:
    """Return the request of an environ."""
    return Visit(WsgiRequest(environ), environ.get("PATH_INFO") or "")


def text_answer(status: int, text: str, *headers: tuple[str, str]) -> PageAnswer:
    """Return an answer that is one sentence."""
    return PageAnswer(status, [("Content-Type", "text/plain; charset=utf-8"), *headers], f"{text}\n".encode())


async def send_asgi(answer: PageAnswer, common: Mapping[str, str], method: str, send: Send) -> None:
    """Send an answer under ASGI, with the headers that all answers have."""
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in _headers(answer, common)]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})


def send_wsgi(
    answer: PageAnswer, common: Mapping[str, str], method: str, start_response: StartResponse
) -> Iterable[bytes]:
    """Send an answer under WSGI, with the headers that all answers have."""
    start_response(f"{answer.status} {phrase(answer.status)}", _headers(answer, common))
    return [b"" if method == "HEAD" else answer.body]


def _headers(answer: PageAnswer, common: Mapping[str, str]) -> list[tuple[str, str]]:
    own = {name for name, _ in answer.headers}
    defaults = [(name, value) for name, value in common.items() if name not in own]
    return [*answer.headers, *defaults, ("Content-Length", str(len(answer.body)))]


SHORTEST = 16
"""The fewest characters of a token."""

_ATTEMPTS = Quota("sliding_log", limit=10, period=60 * SECOND)
_MAX_COUNTERS = 10_000


_CHALLENGE = ("WWW-Authenticate", 'Basic realm="live page", charset="UTF-8"')  # so that browsers ask for the token


class PageAccess:
    """Tests tokens. Threads and event loops may share it.

    After ten wrong attempts from one address within a minute, none from it is admitted. The right token is refused
    then, too, because otherwise the limit would not slow down a guesser. The counters are those of this process.

    Args:
        token: The token. See `fault_of`.
        clock: The clock of the limit. None: that of the machine.
    """

    def __init__(self, token: str, clock: Clock | None = None) -> None:
        self._token = _hash(token)
        self._store = MemoryStore(max_counters=_MAX_COUNTERS, clock=clock or SystemClock())

    def refusal(self, address: str, token: str | None) -> PageAnswer | None:
        """Return the answer to a visitor whose token is not right. None if it is.

        Args:
            address: The identity of the client's address.
            token: The token. None if the request has none, which is not an attempt.
        """
        if token is None:
            text = "Send the token as 'Authorization: Bearer TOKEN', or as the password of HTTP Basic."
            return text_answer(401, text, _CHALLENGE)
        right = hmac.compare_digest(_hash(token.strip()), self._token)
        (outcome,) = self._store.decide([Ask(f"address:{address}", _ATTEMPTS)], commit=not right).outcomes
        if not outcome.allowed:
            seconds = -(-outcome.retry_after // SECOND)
            text = f"Too many wrong attempts. Try again in {seconds} s."
            return text_answer(429, text, ("Retry-After", str(seconds)))
        return None if right else text_answer(401, "The token is not right.", _CHALLENGE)


def fault_of(token: object) -> str:
    """Return what is wrong with a token, or ""."""
    if not isinstance(token, str):
        return f"the token is {type(token).__name__}, not a text"
    if len(token) < SHORTEST:
        return f"the token has {len(token)} character{'s' * (len(token) != 1)}: it must have at least {SHORTEST}"
    if not (token.isascii() and token.isprintable()) or token != token.strip():
        return "the token has a character that a header cannot send: only printable ASCII without spaces around it can"
    return ""


def _hash(text: str) -> bytes:
    """Return the hash of a text of a client. A comparison of hashes does not tell the length of the right text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
