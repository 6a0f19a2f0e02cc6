"""One request for the live page, under ASGI and under WSGI, and the answer to it.

The page itself is written once, as a generator of steps (`Steps`). A step is work that ASGI and WSGI do
differently: call the guard, or call a function that may take a while (in a thread under ASGI).

This module is internal: its names may change in any release.
"""

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, MutableMapping
from inspect import iscoroutine
from typing import Any, NamedTuple, cast
from urllib.parse import quote
from wsgiref.types import StartResponse

from ratelimit_mw.http.answers import phrase
from ratelimit_mw.http.responses import asyncio_runs
from ratelimit_mw.identity.fields import utf8
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Answer(NamedTuple):
    """A response. `headers` has only the headers of this response, not those that all responses share."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class AskGuard(NamedTuple):
    """A step: call the guard. Its result is whether the guard has returned True."""

    guard: Callable[[Any], object]


class Work(NamedTuple):
    """A step: call a function that may wait for the store. Its result is what the function returns.

    Under ASGI, requests that come while the function runs share the result of that run.
    """

    function: Callable[[], Any]


Steps = Generator[AskGuard | Work, Any, Answer]


class Visit:
    """A request for the page.

    Attributes:
        request: The request, as rules read it.
        method: The method.
        root: Where the page is mounted, as in `/_limits`, or "".
        path: The path below that. "" if the request has no slash after the root.
    """

    def __init__(self, request: AsgiRequest | WsgiRequest, root: str, path: str) -> None:
        self.request = request
        self.method = request.method
        self.root = root.rstrip("/")
        self.path = path

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

    @property
    def with_slash(self) -> str:
        """The address of the page, relative to a request without a slash at its end."""
        return f"./{quote(self.root.rpartition('/')[2], safe='~')}/"


class AsgiVisit(Visit):
    """A request under ASGI.

    Args:
        scope: The scope of the request.
        running: The work that is under way in threads, by its function. All requests of one page share it.
    """

    def __init__(self, scope: Scope, running: "Running") -> None:
        path, root = scope.get("path") or "", (scope.get("root_path") or "").rstrip("/")
        if root and (path == root or path.startswith(f"{root}/")):  # most servers and frameworks send the whole path
            path = path[len(root) :]
        elif not root:
            path = path or "/"
        super().__init__(AsgiRequest(scope), root, path)
        self._running = running

    async def answer(self, steps: Steps) -> Answer:
        """Run the steps."""
        result: object = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return cast("Answer", end.value)
            if isinstance(step, Work):
                result = await self._running.result(step.function)
            else:
                admits = step.guard(self.request.context)
                result = (await admits if isinstance(admits, Awaitable) else admits) is True


class WsgiVisit(Visit):
    """A request under WSGI.

    Args:
        environ: The environ of the request.
    """

    def __init__(self, environ: dict[str, Any]) -> None:
        root, path = utf8(environ.get("SCRIPT_NAME") or ""), environ.get("PATH_INFO") or ""
        super().__init__(WsgiRequest(environ), root, path if root else path or "/")

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
            else:
                admits = step.guard(self.request.context)
                if iscoroutine(admits):
                    admits.close()
                    raise TypeError("the guard of the live page is an async function, which WSGI cannot await")
                result = admits is True


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
