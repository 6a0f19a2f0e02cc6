"""One response under WSGI, followed to its end, where something is to be settled by it."""

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any
from wsgiref.types import StartResponse

from ratelimit_mw.decision.account import Account
from ratelimit_mw.decision.settlement import Settlement

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]

_FAILED = 500


class Following:
    """Follows an app's response, and settles the request's account: by its status, and when all of it was sent.

    The status settles before the first part of the body goes out, so that it is done when the client reads it. An app
    that raises, or that ends without a response, is answered for with 500; one whose server never asked for its
    response gets nothing back.
    """

    def __init__(self, settlement: Settlement, account: Account, start_response: StartResponse) -> None:
        self._settlement = settlement
        self._account = account
        self._start_response = start_response
        self._status = 0
        self._headers: list[tuple[str, str]] = []

    def serve(self, app: Callable[[StartResponse], Iterable[bytes]]) -> Iterable[bytes]:
        """The response of `app`; its own iterable where nothing is to be settled any more."""
        try:
            body = app(self.start_response)
        except BaseException as error:
            if isinstance(error, Exception):
                self.conclude(_FAILED)
            self.end()
            raise
        if not self._status:  # it starts to respond when it is asked for the first part
            return _Body(body, self)
        self.conclude(self._status)
        return _Body(body, self) if self._account.holds else body

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: _ExcInfo | None = None
    ) -> Callable[[bytes], object]:
        """Pass on what the app starts with; our own headers tell already what will remain."""
        self._status, self._headers = int(status[:3]), headers
        self._account.show(self._status, self._header)
        return self._start_response(status, headers, exc_info) if exc_info else self._start_response(status, headers)

    def conclude(self, status: int) -> None:
        """Settle what depends on the status that the app has started with, or on this one if it never did."""
        self._settlement.settle(self._account, self._account.conclude(self._status or status, self._header))

    def end(self) -> None:
        """Give back what was held."""
        self._settlement.settle(self._account, self._account.end())

    def _header(self, name: str) -> str | None:
        return next((value for key, value in self._headers if key.lower() == name), None)


class _Body:
    """The app's iterable, part by part as it gives them."""

    def __init__(self, body: Iterable[bytes], following: Following) -> None:
        self._body = body
        self._following = following
        self._parts: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._parts is None:
            self._parts = iter(self._body)
        try:
            part = next(self._parts)
        except Exception:  # StopIteration among them: there will be no other status
            self._following.conclude(_FAILED)
            raise
        self._following.conclude(_FAILED)
        return part

    def close(self) -> None:
        """The server is done with it."""
        try:
            close: Any = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            if self._parts is not None:
                self._following.conclude(_FAILED)
            self._following.end()


class Ending:
    """The app's iterable, and what is to be done when the server is done with it, or has forgotten it.

    Doing that twice must be the same as once.
    """

    def __init__(self, body: Iterable[bytes], then: Callable[[], object]) -> None:
        self._body = body
        self._then: Callable[[], object] | None = then

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """The server is done with it."""
        try:
            close: Any = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._end()

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        then = self._then
        if then is not None:
            then()
            self._then = None  # last: where an exception from elsewhere comes before, it is done again
