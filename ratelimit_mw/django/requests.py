"""Requests of Django in the form that rules read, and their users. This module is internal."""

import logging
from functools import cache
from typing import Any
from weakref import ref

from django.urls import Resolver404, resolve

from ratelimit_mw.identity.app_routes import of_django
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.identity.path_forms import Forms, Routing

_log = logging.getLogger("ratelimit_mw")


class Environ(WsgiRequest):
    """A Django request under WSGI. Its user is looked up when a rule needs it."""

    __slots__ = ("_visit",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit.environ)
        self._visit = ref(visit)  # it refers to the handle, which refers to this request
        _read_changes(self, visit)

    @property
    def user(self) -> str | None:
        """The primary key of the logged-in user; None if no user is logged in."""
        return user_of(self._visit())

    def app_route(self) -> str | None:
        """The template of the view's URL pattern."""
        return _route_of(self)


class Scope(AsgiRequest):
    """A Django request under ASGI; see `Environ`."""

    __slots__ = ("_visit",)

    def __init__(self, visit: Any) -> None:
        super().__init__(visit.scope, routing=Routing(visit.script_name or ""))  # FORCE_SCRIPT_NAME or `root_path`
        self._visit = ref(visit)  # it refers to the handle, which refers to this request
        _read_changes(self, visit)

    @property
    def user(self) -> str | None:
        """See `Environ.user`."""
        return user_of(self._visit())

    def app_route(self) -> str | None:
        """See `Environ.app_route`."""
        return _route_of(self)


def _route_of(request: Environ | Scope) -> str:
    return of_django(request.path, getattr(request._visit(), "urlconf", None))  # noqa: SLF001 - one of our own


def _read_changes(request: Environ | Scope, visit: Any) -> None:
    """Read the method and the path as Django routes them, because an earlier middleware may have changed both.

    In `request.path`, all bytes that are not UTF-8 are the same character. Django keeps them distinct.
    """
    request.method = (visit.method or "GET").upper()
    path = visit.path_info or "/"
    if path != request.path:
        every, _ = request.forms or Forms((request.path,), ())
        ordered = (*every, path) if "\N{REPLACEMENT CHARACTER}" in request.path else (path, *every)
        request.path, request.forms = path, Forms(tuple(dict.fromkeys(ordered)), (path,))


def visitor(visit: Any) -> Environ | Scope:
    """The request in the form that rules read."""
    return Scope(visit) if hasattr(visit, "scope") else Environ(visit)


def user_of(visit: Any) -> str | None:
    """The primary key of the logged-in user; None if there is none.

    The user is found by the session or by the authenticators of a REST framework view. This may query the database, so
    it blocks. An error is logged once and means that no user is logged in. So does None in place of a request that has
    ended.
    """
    if visit is None:
        return None
    try:
        user: Any = getattr(visit, "user", None)
        if user is None or not user.is_authenticated:
            user = _by_rest_framework(visit)
        key = user.pk if user is not None and user.is_authenticated else None
    except Exception as error:  # noqa: BLE001 - a backend of the project's own may raise anything
        _log_absent(type(error).__name__)
        return None
    return None if key is None else str(key)


@cache
def _log_absent(kind: str) -> None:
    """Log that the user of a request counts as absent. It is done once for each kind of exception."""
    _log.warning("the user of a request counts as absent: %s was raised (logged once)", kind)


def _by_rest_framework(visit: Any) -> Any:
    """The user that the authenticators of the view recognise. The view itself authenticates again later."""
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
    except APIException:  # for example an invalid token, which the view will answer
        return None
    finally:  # the framework has set `user` of the request
        if before is missing:
            vars(visit).pop("user", None)
        else:
            visit.user = before
