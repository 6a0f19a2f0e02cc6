"""One request for the live page, under ASGI and under WSGI, and the answer to it.

This module is internal: its names may change in any release.
"""

from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote
from wsgiref.types import StartResponse

from ratelimit_mw.http.answers import phrase
from ratelimit_mw.http.responses import Message, Send
from ratelimit_mw.identity.fields import utf8
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest


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


def asgi_visit(scope: Message) -> Visit:
    """Return the request of a scope."""
    path, root = scope.get("path") or "", (scope.get("root_path") or "").rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):  # most servers and frameworks send the whole path
        path = path[len(root) :]
    elif not root:
        path = path or "/"
    return Visit(AsgiRequest(scope), root, path)


def wsgi_visit(environ: dict[str, Any]) -> Visit:
    """Return the request of an environ."""
    root, path = utf8(environ.get("SCRIPT_NAME") or ""), environ.get("PATH_INFO") or ""
    return Visit(WsgiRequest(environ), root, path if root else path or "/")


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
