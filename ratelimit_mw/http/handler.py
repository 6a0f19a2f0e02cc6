"""`response.handler`: a function of the app that makes the responses of denials.

The function gets the ASGI scope or the WSGI environ, and the `Decision`. It returns (status, headers, body). None, also
in place of one of the three, stands for what the rules file configures.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from ratelimit_mw.config.kinds import TOKEN
from ratelimit_mw.errors import Invalid
from ratelimit_mw.identity.sources import described
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.model import Decision
from ratelimit_mw.settings import HandlerSettings

_Text = TypeVar("_Text", bound=str | bytes)

_VALUE = re.compile(r"[\t\x20-\x7e]*")
"""The value of a header: printable ASCII. A line break would begin another header."""

_WITHOUT_BODY = (204, 205, 304)
_OWN = ("content-length", "transfer-encoding")

_OF_THE_CONNECTION = (
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailers",
    "upgrade",
)  # fmt: skip
"""Headers that only a server may send (hop-by-hop headers, PEP 3333). Some servers fail if an app sends one."""


class DenialHandler(Generic[_Text]):
    """Calls the handler of a `response` section. What it cannot use is logged once, and the configured answer is sent.

    Args:
        settings: the function and its name.
        name: makes the name of a header, as text (WSGI) or bytes (ASGI), from its usual spelling.
        value: makes the value of a header, as text or bytes.
    """

    def __init__(
        self, settings: HandlerSettings, *, name: Callable[[str], _Text], value: Callable[[str], _Text]
    ) -> None:
        self._function, self._called = settings
        self._name = name
        self._value = value
        self._once = Once()

    def answer(
        self, context: Any, decision: Decision, configured: tuple[int, list[tuple[_Text, _Text]], bytes]
    ) -> tuple[int, list[tuple[_Text, _Text]], bytes]:
        """Return the status, the headers and the body of a denial.

        Args:
            context: the ASGI scope or the WSGI environ.
            decision: the decision that denies the request.
            configured: the response that the rules file configures.
        """
        try:
            made: Any = self._function(context, decision)
            return configured if made is None else self._changed(made, configured)
        except Invalid as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
            problem = described(error)
        message = "response.handler %s: %s; the configured response is sent (logged once)"
        self._once(logger.error, message, self._called, problem)
        return configured

    def _changed(
        self, made: Any, configured: tuple[int, list[tuple[_Text, _Text]], bytes]
    ) -> tuple[int, list[tuple[_Text, _Text]], bytes]:
        if not isinstance(made, tuple) or len(made) != 3:
            raise Invalid(f"it returned {type(made).__name__}, not (status, headers, body) or None")
        status, headers, body = configured
        if made[0] is not None:
            status = _status(made[0])
        own = _headers(made[1])
        if made[2] is not None:
            body, kind = _body(made[2])
            if not any(name.lower() == "content-type" for name, _ in own):
                own.append(("Content-Type", kind))
            own.append(("Content-Length", str(len(body))))
        replaced = {self._name(name).lower() for name, _ in own}
        kept = [(name, value) for name, value in headers if name.lower() not in replaced]
        return status, [*kept, *((self._name(name), self._value(value)) for name, value in own)], body


def _status(status: object) -> int:
    if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 599 or status in _WITHOUT_BODY:
        raise Invalid(f"{status!r:.50} is not a status from 200 to 599 of a response with a body")
    return int(status)


def _headers(headers: object) -> list[tuple[str, str]]:
    """Return the names and values. A value is not quoted in errors: it may be secret."""
    if headers is None:
        return []
    if not isinstance(headers, Mapping):
        raise Invalid(f"headers are {type(headers).__name__}, not a mapping")
    found = []
    for name, value in headers.items():
        if not isinstance(name, str) or not TOKEN.fullmatch(name):
            raise Invalid("the name of a header is not a token of RFC 9110")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise Invalid(f"the value of the header {name} is not printable ASCII text")
        if name.lower() in _OWN:
            raise Invalid(f"the header {name} is made from the body")
        if name.lower() in _OF_THE_CONNECTION:
            raise Invalid(f"only the server sends the header {name}")
        found.append((name, value.strip()))  # servers refuse blanks around a value
    return found


def _body(body: object) -> tuple[bytes, str]:
    """Return the body and its content type."""
    if isinstance(body, bytes):
        return body, "application/octet-stream"
    if isinstance(body, str):
        return body.encode("utf-8", "replace"), "text/plain; charset=utf-8"
    if isinstance(body, Mapping | list):
        try:
            text = json.dumps(body)
            if "Infinity" in text or "NaN" in text:  # JSON has null for the `retry_after` of what is never allowed
                text = json.dumps(json.loads(text, parse_constant=lambda _: None))
            return text.encode(), "application/json"
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid("the body has a value that JSON does not have") from error
    raise Invalid(f"the body is {type(body).__name__}, not text, bytes, a mapping or a list")
