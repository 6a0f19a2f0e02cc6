"""The app as it is served where requests are put off, under WSGI."""

from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.deferral.envelope import of_wsgi
from ratelimit_mw.deferral.front import Front
from ratelimit_mw.deferral.marks import HEADER
from ratelimit_mw.deferral.page import Page
from ratelimit_mw.identity.wsgi import WsgiRequest
from ratelimit_mw.response.answers import phrase
from ratelimit_mw.rules.domains import Rules

_MARK = f"HTTP_{HEADER.upper().replace('-', '_')}"


class Deferral:
    """What stands before `app`: pages of ours, replays, and the way into the queue. `load` is that of the process."""

    def __init__(self, app: WSGIApplication, front: Front, load: Callable[[Rules], float]) -> None:
        self._app = app
        self._front = front
        self._load = load
        self.admits = front.admits
        """True of a replay, which a worker has charged already."""

    def put_off(self, verdict: Verdict, rules: Rules, request: WsgiRequest) -> Page | None:
        """Queue a request that was denied; None where it stays denied."""
        environ = request.context
        length = environ.get("CONTENT_LENGTH")
        if not self._front.may_put_off(verdict, request, rules, length):
            return None
        lane = self._front.lane(request, rules)
        if lane is None:
            return None
        body = _body(environ, length, rules.defer.max_body)
        if body is None:
            return None
        envelope = of_wsgi(request, rules.defer.headers)
        root = environ.get("SCRIPT_NAME") or ""
        return self._front.put(verdict, rules, envelope, body, lane=lane, root=root)

    def serve(self, rules: Rules, request: WsgiRequest, start_response: StartResponse) -> Iterable[bytes]:
        """What the app responds, unless a page of ours is asked for, or a replay is none any more."""
        page = self._page(rules, request)
        if page is None:
            return self._app(request.context, start_response)
        return respond(page, request.method, start_response)

    def _page(self, rules: Rules, request: WsgiRequest) -> Page | None:
        environ, front = request.context, self._front
        if front.admits(request, rules):
            arrived = front.arrive(request, rules, self._load(rules))
            if isinstance(arrived, Page):
                return arrived
            environ["REMOTE_ADDR"] = arrived.peer or ""
            environ["wsgi.url_scheme"] = arrived.scheme
            environ.pop(_MARK, None)
        elif request.path.startswith(rules.defer.path):
            return front.page(request, rules)
        return None


def respond(found: Page, method: str, start_response: StartResponse) -> Iterable[bytes]:
    """Respond with a page of ours."""
    start_response(f"{found.status} {phrase(found.status)}", found.headers)
    return [b"" if method == "HEAD" else found.body]


def _body(environ: dict[str, Any], length: str | None, most: int) -> bytes | None:
    """The whole body; None where it is longer than that, cut short, or of a length that nobody can know."""
    if length:
        wanted = int(length)
    elif environ.get("wsgi.input_terminated"):
        wanted = most + 1
    else:
        return b"" if "HTTP_TRANSFER_ENCODING" not in environ else None
    parts: list[bytes] = []
    while wanted > 0:
        part: bytes = environ["wsgi.input"].read(wanted)
        if not part:
            break
        parts.append(part)
        wanted -= len(part)
    body = b"".join(parts)
    complete = wanted == 0 if length else len(body) <= most
    return body if complete else None
