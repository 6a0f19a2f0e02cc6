"""The sources of attributes: `header:` `cookie:` `query:` `scope:` `environ:` `python:`.

A source is compiled once. Reading it never raises. The first error of each source is logged. The log names only the
type and the place of an exception, because its message may contain a secret token.
"""

import importlib
import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from ratelimit_mw.errors import Invalid
from ratelimit_mw.identity.credentials import credential
from ratelimit_mw.identity.fields import TOO_MANY, Cookie, Parameter, Values
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.identity.request import Request
from ratelimit_mw.logs import Once, logger

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of RFC 9110, section 5.6.2."""

_MISSING = object()
# Attributes that identify a user object, most reliable first.
_IDENTITY_OF_USER = ("identity", "pk", "id", "username", "display_name")


@dataclass(frozen=True, slots=True)
class AttributeSource:
    """One compiled source."""

    read: Callable[[Request], Values]
    """Reads all values from a request. () if it is absent."""
    fetch: Callable[[Any], Awaitable[str | None]] | None = None
    """Calls an async function with the ASGI scope. None for a source that `read` can read."""
    header: str | None = None
    """The only header that is read, in lower case. None if anything else is read."""
    from_client: bool = False
    """The client writes the value, which may be a signed credential. See `identity.credentials`."""


_Report = Callable[[str], None]
"""Logs the first error of a source."""


def described(error: Exception) -> str:
    """Describe an exception by its type and by the line that raised it. Its message may contain a secret."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__} was raised{place}"


def compiled(text: str) -> AttributeSource:
    """Compile a source of a rules file, as "header:Authorization".

    Raises `Invalid`, with a message for the user, if the text is not a source or names no function.
    """
    kind, _, argument = text.partition(":")
    compiler = SOURCES.get(kind.strip())
    argument = argument.strip()
    if compiler is None or not argument:
        words = " ".join(f"{word}:" for word in SOURCES)
        raise Invalid(f"{text!r} is not a source; write one of {words} followed by a name")
    return compiler(argument, partial(Once(), logger.warning, "%s counts as absent: %s (logged once)", text))


def _header(name: str, _: _Report) -> AttributeSource:
    if not HEADER_NAME.fullmatch(name):
        raise Invalid(f"no header is called {name!r}: write letters, digits and hyphens, as X-Tenant")
    lower = name.lower()
    if lower != "authorization":
        return AttributeSource(lambda request: request.headers(lower), header=lower, from_client=True)

    def read(request: Request) -> Values:
        values = request.headers(lower)
        return values if values is TOO_MANY else tuple(dict.fromkeys(filter(None, map(credential, values))))

    return AttributeSource(read, header=lower, from_client=True)


def _cookie(name: str, _: _Report) -> AttributeSource:
    cookie = Cookie(name)
    return AttributeSource(lambda request: request.cookies(cookie), header="cookie", from_client=True)


def _query(name: str, _: _Report) -> AttributeSource:
    parameter = Parameter(name)
    return AttributeSource(lambda request: request.parameters(parameter), from_client=True)


def _one(value: str | None) -> Values:
    return () if value is None else (value,)


def _from_context(path: str, report: _Report, kind: type[AsgiRequest] | type[WsgiRequest]) -> AttributeSource:
    """Follow a dotted path into the scope or the environ. The value is absent under the other interface."""
    steps = path.split(".")
    # The first key may contain dots, as "werkzeug.request" does. The longest key that is present is used.
    splits = [(".".join(steps[:end]), tuple(steps[end:])) for end in range(len(steps), 0, -1)]

    def read(request: Request) -> str | None:
        if not isinstance(request, kind):
            return None
        try:
            for first, others in splits:
                if first in request.context:
                    return _text(_followed(request.context[first], others), report)
        except Exception as error:  # noqa: BLE001 - a property of the app's own objects may raise anything
            report(described(error))
        return None

    return AttributeSource(lambda request: _one(read(request)))


def _followed(value: Any, steps: tuple[str, ...]) -> Any:
    """Follow the steps as keys or attributes. None if a step is missing or a user on the way is not logged in."""
    for step in steps:
        if value is None or _anonymous(value):
            return None
        value = _step(value, step)
    return value


def _step(value: Any, step: str) -> Any:
    try:
        return value[step]
    except (KeyError, TypeError, IndexError, AttributeError):
        return getattr(value, step, None)


def _anonymous(value: Any) -> bool:
    """Return True for Starlette's UnauthenticatedUser, Django's AnonymousUser and similar objects."""
    authenticated = getattr(value, "is_authenticated", _MISSING)
    return authenticated is not _MISSING and not (authenticated() if callable(authenticated) else authenticated)


def _plain(value: Any) -> str | None:
    """Return text, whole numbers and UUIDs as text, and None for anything else."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, (int, UUID)) and not isinstance(value, bool):
        return str(value)
    return None


def _text(value: Any, report: _Report) -> str | None:
    """Convert a value to an identity: text, a number, a UUID, or what identifies a user object."""
    plain = _plain(value)
    if plain is not None or value is None or isinstance(value, str) or _anonymous(value):
        return plain
    if hasattr(value, "is_authenticated"):
        for name in _IDENTITY_OF_USER:
            try:
                plain = _plain(getattr(value, name, None))
            except NotImplementedError:  # Starlette's BaseUser leaves these to its subclasses
                continue
            if plain is not None:
                return plain
    report(f"a value of type {type(value).__name__} is not text, a number, a UUID or a known user object")
    return None


def _python(target: str, report: _Report) -> AttributeSource:
    function = imported(target)
    if is_async(function):

        async def fetch(context: Any) -> str | None:
            try:
                return _text(await function(context), report)
            except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
                report(described(error))
                return None

        def refuse(request: Request) -> Values:
            if isinstance(request, WsgiRequest):
                report("an async function can't be called under WSGI")
            return ()

        return AttributeSource(refuse, fetch)

    def read(request: Request) -> str | None:
        if request.context is None:
            return None
        try:
            value = function(request.context)
            if inspect.iscoroutine(value):
                value.close()
            return _text(value, report)
        except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
            report(described(error))
            return None

    return AttributeSource(lambda request: _one(read(request)))


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if a function, or the call of an object, is async."""
    call = getattr(function, "__call__", None)  # noqa: B004 - the method itself is examined
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def imported(target: str) -> Callable[..., Any]:
    """Import the function at "package.module:function". Raises `Invalid`, with a message for the user, if it fails."""
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise Invalid(f"'python:{target}' does not name a function; write python:package.module:function")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise Invalid(f"'python:{target}' can't be imported: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise Invalid(
            f"'python:{target}' is not a function: {module} has no callable {name!r}, "
            "or defines it after the line that makes the middleware"
        )
    function: Callable[..., Any] = found
    return function


SOURCES: dict[str, Callable[[str, _Report], AttributeSource]] = {
    "header": _header,
    "cookie": _cookie,
    "query": _query,
    "scope": partial(_from_context, kind=AsgiRequest),
    "environ": partial(_from_context, kind=WsgiRequest),
    "python": _python,
}
"""The compiler of each kind of source. Messages and the description of `client.user` list these words."""
