"""Who sends a request, as Django knows it: a request with the user who is logged in."""

import logging
from typing import Any

from django.urls import Resolver404, resolve

from ratelimit_mw.identity.asgi import AsgiRequest
from ratelimit_mw.identity.wsgi import DjangoRequest

_log = logging.getLogger("ratelimit_mw")
_said: set[str] = set()


class Environ(DjangoRequest):
    """A request under WSGI, whose user is looked up when a rule asks for it."""

    __slots__ = ("_visit",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit.environ)
        self._visit = visit
        _read_changes(self, visit)

    @property
    def user(self) -> str | None:
        """The primary key of the user who is logged in; None where nobody is."""
        return user_of(self._visit)


class Scope(AsgiRequest):
    """A request under ASGI; see `Environ`."""

    __slots__ = ("_visit",)

    framework = "django"

    def __init__(self, visit: Any) -> None:
        super().__init__(visit.scope)
        if visit.script_name and visit.script_name != visit.scope.get("root_path"):  # by FORCE_SCRIPT_NAME
            self._read(visit.scope.get("path") or "/", visit.script_name)
        self._visit = visit
        _read_changes(self, visit)

    @property
    def user(self) -> str | None:
        """See `Environ.user`."""
        return user_of(self._visit)


def _read_changes(request: Environ | Scope, visit: Any) -> None:
    """Read the method and the path as Django routes them: a middleware before this one may have changed both.

    Bytes that are not UTF-8 stay merged in `request.path`; Django tells them apart.
    """
    request.method = (visit.method or "GET").upper()
    path = visit.path_info or "/"
    found = request.readings or (request.path,)
    if path not in found:
        if "\N{REPLACEMENT CHARACTER}" in request.path:
            request.readings = (*found, path)
        else:
            request.path, request.readings = path, (path, *found)


def visitor(visit: Any) -> Environ | Scope:
    """The request as rules read it."""
    return Scope(visit) if hasattr(visit, "scope") else Environ(visit)


def user_of(visit: Any) -> str | None:
    """The primary key of whoever is logged in, by the session or as the view's REST framework finds out.

    It may ask the database, and so it blocks. What goes wrong is logged once and means that nobody is.
    """
    try:
        user: Any = getattr(visit, "user", None)
        if user is None or not user.is_authenticated:
            user = _by_rest_framework(visit)
        key = user.pk if user is not None and user.is_authenticated else None
    except Exception as error:  # noqa: BLE001 - a backend of the project's own may raise anything
        kind = type(error).__name__
        if kind not in _said:
            _said.add(kind)
            _log.warning("the user of a request counts as absent: %s was raised (said once)", kind)
        return None
    return None if key is None else str(key)


def _by_rest_framework(visit: Any) -> Any:
    """Whom the view's own authenticators recognise; the view will ask them again, for it is its request."""
    try:
        view = resolve(visit.path_info, getattr(visit, "urlconf", None)).func
    except Resolver404:
        return None
    kind: Any = getattr(view, "cls", None)
    if not hasattr(kind, "initialize_request"):
        return None
    from rest_framework.exceptions import APIException

    made: Any = kind(**getattr(view, "initkwargs", {}))
    made.action_map = getattr(view, "actions", None) or {}
    missing = object()
    before = getattr(visit, "user", missing)
    try:
        made.request = made.initialize_request(visit)
        return made.request.user
    except APIException:  # a token that is not valid: the view says so
        return None
    finally:  # which the framework writes
        if before is missing:
            vars(visit).pop("user", None)
        else:
            visit.user = before
