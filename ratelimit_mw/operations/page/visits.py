"""One request for the live page, under ASGI and under WSGI, and the answer to it.

The page itself is written once, as a generator of steps (`Steps`). A step is work that ASGI and WSGI do
differently: call the guard, read the body, or call a function that may take a while (in a thread under ASGI).

This module is internal: its names may change in any release.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, MutableMapping
from inspect import iscoroutine
from typing import Any, NamedTuple, cast
from urllib.parse import quote
from wsgiref.types import StartResponse

from ratelimit_mw.http.answers import phrase
from ratelimit_mw.http.responses import asyncio_runs
from ratelimit_mw.identity.decoding import utf8
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LONGEST_BODY = 4096
"""The most bytes of a body that is read. The form of the login is shorter."""


class Answer(NamedTuple):
    """A response. `headers` has only the headers of this response, not those that all responses share."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class AskGuard(NamedTuple):
    """A step: call the guard. Its result is whether the guard has returned True."""

    guard: Callable[[Any], object]


class ReadBody(NamedTuple):
    """A step: read the whole body. Its result is None if the body is longer than `LONGEST_BODY`."""


class Work(NamedTuple):
    """A step: call a function that may wait for the store. Its result is what the function returns.

    Under ASGI, requests that come while the function runs share the result of that run.
    """

    function: Callable[[], Any]


Steps = Generator[AskGuard | ReadBody | Work, Any, Answer]


class Visit:
    """A request for the page.

    Attributes:
        request: The request, as rules read it.
        method: The method.
        root: Where the page is mounted, as in `/_limits`, or "".
        path: The path below that. "" if the request has no slash after the root.
        secure: Whether the browser has sent the request over https.
    """

    def __init__(self, request: AsgiRequest | WsgiRequest, root: str, path: str, scheme: str) -> None:
        self.request = request
        self.method = request.method
        self.root = root.rstrip("/")
        self.path = path
        # No proxy needs to be trusted for this: a client that lies gets a cookie that it does not send back.
        forwarded = (request.header("x-forwarded-proto") or "").partition(",")[0]
        self.secure = "https" in (scheme, forwarded.strip().lower())

    @property
    def bearer(self) -> str | None:
        """The token of the header Authorization. None if there is none, or one for another scheme."""
        scheme, _, token = (self.request.header("authorization") or "").strip().partition(" ")
        return token if scheme.lower() == "bearer" else None

    def cookies(self, name: str) -> list[str]:
        """Return the values of all cookies of this name, in the order of the request."""
        lines = self.request.header_lines("cookie")
        pairs = [pair.strip().partition("=") for line in lines for pair in line.split(";")]
        return [value for key, _, value in pairs if key == name]

    @property
    def cookie_path(self) -> str:
        """The path of the page's cookie: where the page is mounted."""
        return quote(self.root, safe="/~") or "/"

    @property
    def with_slash(self) -> str:
        """The address of the page, relative to a request without a slash at its end."""
        return f"./{quote(self.root.rpartition('/')[2], safe='~')}/"


class AsgiVisit(Visit):
    """A request under ASGI.

    Args:
        scope: The scope of the request.
        receive: The function of the server.
        running: The work that is under way in threads, by its function. All requests of one page share it.
    """

    def __init__(self, scope: Scope, receive: Receive, running: "Running") -> None:
        path, root = scope.get("path") or "", (scope.get("root_path") or "").rstrip("/")
        if root and (path == root or path.startswith(f"{root}/")):  # most servers and frameworks send the whole path
            path = path[len(root) :]
        elif not root:
            path = path or "/"
        super().__init__(AsgiRequest(scope), root, path, scope.get("scheme") or "http")
        self._receive = receive
        self._running = running

    async def answer(self, steps: Steps) -> Answer | None:
        """Run the steps. Return None if the client is gone before the end of its body."""
        result: object = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return cast("Answer", end.value)
            if isinstance(step, Work):
                result = await self._running.result(step.function)
            elif isinstance(step, AskGuard):
                admits = step.guard(self.request.context)
                result = (await admits if isinstance(admits, Awaitable) else admits) is True
            else:
                try:
                    result = await self._body()
                except ConnectionResetError:
                    return None

    async def _body(self) -> bytes | None:
        if _length(self.request.header("content-length")) > LONGEST_BODY:
            return None
        body = b""
        part: bytes
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ConnectionResetError
            part = message.get("body", b"")
            body += part
            if len(body) > LONGEST_BODY:
                return None
            if not message.get("more_body"):
                return body


class WsgiVisit(Visit):
    """A request under WSGI.

    Args:
        environ: The environ of the request.
    """

    def __init__(self, environ: dict[str, Any]) -> None:
        root, path = utf8(environ.get("SCRIPT_NAME") or ""), environ.get("PATH_INFO") or ""
        super().__init__(WsgiRequest(environ), root, path if root else path or "/", environ["wsgi.url_scheme"])

    def answer(self, steps: Steps) -> Answer:
        """Run the steps."""
        result: object = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return cast("Answer", end.value)
            if isinstance(step, Work):
                result = step.function()
            elif isinstance(step, AskGuard):
                admits = step.guard(self.request.context)
                if iscoroutine(admits):
                    admits.close()
                    raise TypeError("the guard of the live page is an async function, which WSGI cannot await")
                result = admits is True
            else:
                result = self._body()

    def _body(self) -> bytes | None:
        environ = self.request.context
        left = _length(environ.get("CONTENT_LENGTH"))
        if left > LONGEST_BODY:
            return None
        if not environ.get("CONTENT_LENGTH") and environ.get("wsgi.input_terminated"):
            left = LONGEST_BODY + 1  # of a chunked body, which other servers do not end
        body = b""
        while left > 0:
            part: bytes = environ["wsgi.input"].read(left)
            if not part:
                break
            body += part
            left -= len(part)
        return None if len(body) > LONGEST_BODY else body


class Running:
    """The work that is under way in threads of an event loop. Each function runs once at a time."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[asyncio.AbstractEventLoop, Callable[[], Any]], asyncio.Task[Any]] = {}

    async def result(self, function: Callable[[], Any]) -> Any:
        """Return what the function returns, or what a run that is under way returns."""
        if not asyncio_runs():  # under trio only a limiter in memory works, which waits for no store
            return function()
        key = asyncio.get_running_loop(), function
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(asyncio.to_thread(function))
            task.add_done_callback(lambda _: self._tasks.pop(key))
        return await asyncio.shield(task)  # one client that goes away does not end the work for the others


def text_answer(status: int, text: str, *headers: tuple[str, str]) -> Answer:
    """Return an answer that is one sentence."""
    return Answer(status, [("Content-Type", "text/plain; charset=utf-8"), *headers], f"{text}\n".encode())


def _length(text: str | None) -> int:
    """Return the length of a body by its header. 0 without one, and more than is read for one that is not a number."""
    if not text:
        return 0
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else LONGEST_BODY + 1


async def send_asgi(answer: Answer, common: Mapping[str, str], method: str, send: Send) -> None:
    """Send an answer under ASGI, with the headers that all answers have."""
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in _headers(answer, common)]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})


def send_wsgi(answer: Answer, common: Mapping[str, str], method: str, start_response: StartResponse) -> Iterable[bytes]:
    """Send an answer under WSGI, with the headers that all answers have."""
    start_response(f"{answer.status} {phrase(answer.status)}", _headers(answer, common))
    return [b"" if method == "HEAD" else answer.body]


def _headers(answer: Answer, common: Mapping[str, str]) -> list[tuple[str, str]]:
    own = {name for name, _ in answer.headers}
    defaults = [(name, value) for name, value in common.items() if name not in own]
    return [*answer.headers, *defaults, ("Content-Length", str(len(answer.body)))]
