"""Where an attribute comes from: the words `header:` `cookie:` `query:` `scope:` `environ:` `python:`.

A source is compiled once. Reading it never raises: what goes wrong is logged once for each source, by
type and place only, for the message of an exception may hold the token that it was about.
"""

import binascii
import importlib
import inspect
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.identity.request import FrameworkReader, Request

logger = logging.getLogger("ratelimit_mw")

_MISSING = object()
_IDENTITY_OF_USER = ("identity", "pk", "id", "username", "display_name")
_SCHEMES = frozenset({"apikey", "basic", "bearer", "digest", "negotiate", "token"})


@dataclass(frozen=True, slots=True)
class AttributeSource:
    """One source, compiled. `read` gives a request's value or None.

    `fetch` is there for an async function only, which `read` can't call: it takes the scope. `header` is the one header
    that is read, in lower case; None where it is something else. `read_as` reads what frameworks read differently, as
    one of them does; None for what there is one way to read.
    """

    read: Callable[[Request], str | None]
    fetch: Callable[[Any], Awaitable[str | None]] | None = None
    header: str | None = None
    read_as: FrameworkReader | None = None


class _Fault:
    """Logs the first thing that goes wrong with a source, and no more."""

    __slots__ = ("logged", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self.logged = False

    def report(self, what: str) -> None:
        if not self.logged:
            self.logged = True
            logger.warning("%s counts as absent: %s (said once)", self.source, what)

    def raised(self, error: Exception) -> None:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
        self.report(f"{type(error).__name__} was raised{place}")


def compiled(text: str) -> AttributeSource:
    """The source that a rules file names, as "header:Authorization". ValueError says what is wrong with it."""
    kind, _, argument = text.partition(":")
    compiler = SOURCES.get(kind.strip())
    argument = argument.strip()
    if compiler is None or not argument:
        words = " ".join(f"{word}:" for word in SOURCES)
        raise ValueError(f"{text!r} is no source; one starts with one of {words} and goes on with a name")
    return compiler(argument, _Fault(text))


def _header(name: str, _: _Fault) -> AttributeSource:
    lower = name.lower()
    value = credential if lower == "authorization" else _stripped
    return AttributeSource(
        lambda request: value(request.header(lower)),
        header=lower,
        read_as=lambda request, framework: value(request.header_as(framework, lower)),
    )


def _stripped(header: str | None) -> str | None:
    return (header or "").strip() or None


def _cookie(name: str, _: _Fault) -> AttributeSource:
    return AttributeSource(
        lambda request: request.cookie(name) or None,
        header="cookie",
        read_as=lambda request, framework: request.cookie_as(framework, name) or None,
    )


def _query(name: str, _: _Fault) -> AttributeSource:
    return AttributeSource(
        lambda request: request.query(name) or None,
        read_as=lambda request, framework: request.query_as(framework, name) or None,
    )


def credential(authorization: str | None) -> str | None:
    """The credential of an Authorization header, in one spelling; None where there is none.

    A bearer token stands alone. Other schemes keep their name, in lower case, so that two never collide;
    Basic is decoded, for its decoders skip stray characters.
    """
    words = (authorization or "").split(None, 1)
    if len(words) < 2:
        return words[0] if words and words[0].lower() not in _SCHEMES else None
    scheme, value = words[0].lower(), words[1].strip()
    if scheme == "bearer" and len(value.split(None, 1)) == 1:
        return value
    if scheme == "basic":
        try:
            value = b64decode(value.encode("latin-1", "replace")).decode("latin-1")
        except binascii.Error:
            return f"basic? {value}"
    return f"{scheme} {value}"


def _scope(path: str, fault: _Fault) -> AttributeSource:
    return _walking(path, fault, AsgiRequest)


def _environ(path: str, fault: _Fault) -> AttributeSource:
    return _walking(path, fault, WsgiRequest)


def _walking(path: str, fault: _Fault, kind: type[AsgiRequest] | type[WsgiRequest]) -> AttributeSource:
    """Follows a dotted path into the scope or the environ; under the other interface it is absent."""
    steps = path.split(".")
    # The first key may hold dots itself, as "werkzeug.request" does: the longest that is there is meant.
    splits = [(".".join(steps[:end]), tuple(steps[end:])) for end in range(len(steps), 0, -1)]

    def read(request: Request) -> str | None:
        if not isinstance(request, kind):
            return None
        try:
            for first, others in splits:
                if first in request.context:
                    return _text(_followed(request.context[first], others), fault)
        except Exception as error:  # noqa: BLE001 - a property of the app's own objects may raise anything
            fault.raised(error)
        return None

    return AttributeSource(read)


def _followed(value: Any, steps: tuple[str, ...]) -> Any:
    """What the steps lead to, through keys and then attributes; None where a step or a login is missing."""
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
    """True of Starlette's UnauthenticatedUser, Django's AnonymousUser, and their like."""
    known = getattr(value, "is_authenticated", _MISSING)
    return known is not _MISSING and not (known() if callable(known) else known)


def _plain(value: Any) -> str | None:
    if isinstance(value, str):
        return value or None
    if isinstance(value, (int, UUID)) and not isinstance(value, bool):
        return str(value)
    return None


def _text(value: Any, fault: _Fault) -> str | None:
    """A value as an identity: text, a number, a UUID, or what identifies a user object."""
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
    fault.report(f"it gave {type(value).__name__}, which is neither text, a number, a UUID nor a known user")
    return None


def _python(target: str, fault: _Fault) -> AttributeSource:
    function = imported(target)
    if _is_async(function):

        async def fetch(context: Any) -> str | None:
            try:
                return _text(await function(context), fault)
            except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
                fault.raised(error)
                return None

        def refuse(request: Request) -> None:
            if isinstance(request, WsgiRequest):
                fault.report("an async function can't be called under WSGI")

        return AttributeSource(refuse, fetch)

    def read(request: Request) -> str | None:
        if request.context is None:
            return None
        try:
            value = function(request.context)
            if inspect.iscoroutine(value):
                value.close()
            return _text(value, fault)
        except Exception as error:  # noqa: BLE001 - the app's own function may raise anything
            fault.raised(error)
            return None

    return AttributeSource(read)


def _is_async(function: Callable[[Any], Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - an object's own method is what is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def imported(target: str) -> Callable[[Any], Any]:
    """The function at "package.module:function"; ValueError where there is none."""
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise ValueError(f"'python:{target}' names no function; write python:package.module:function")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ValueError(f"'python:{target}' can't be imported: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ValueError(
            f"'python:{target}' is no function: {module} has no callable {name!r}, "
            "or has it only below the line that makes the middleware"
        )
    function: Callable[[Any], Any] = found
    return function


SOURCES: dict[str, Callable[[str, _Fault], AttributeSource]] = {
    "header": _header,
    "cookie": _cookie,
    "query": _query,
    "scope": _scope,
    "environ": _environ,
    "python": _python,
}
"""The sources by their words. The messages and the description of `client.user` read this table, too."""
