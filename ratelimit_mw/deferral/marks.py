"""Names that nobody can invent: those of deferred requests, and the tickets of their replays. Pure.

What is not genuine is told without asking the store, so that guessing costs it nothing.
"""

import secrets
from collections.abc import Callable
from hmac import compare_digest

HEADER = "x-ratelimit-deferred"
"""In a replay: which request it is, and its ticket. In a response to one: that it did not reach the app, and why."""

_RANDOM = 24  # characters of 6 bits each
_PROOF = 12
_LENGTH = _RANDOM + _PROOF


class Marks:
    """Makes and knows the names of one set of rules. `digest` is its keyed hash."""

    def __init__(self, digest: Callable[[str], str]) -> None:
        self._digest = digest

    def request(self) -> str:
        """A name for a request. Who knows it may read what became of the request."""
        return self._signed("deferred")

    def ticket(self, request: str) -> str:
        """A ticket for one attempt to replay a request."""
        return self._signed(f"replay of {request}")

    def is_request(self, text: str) -> bool:
        """True of what `request` has made."""
        return self._genuine(text, "deferred")

    def read(self, text: str | None) -> tuple[str, str] | None:
        """The request and the ticket in the header of a replay; None where they are not genuine."""
        request, dot, ticket = (text or "").partition(".")
        return (request, ticket) if dot and self._genuine(ticket, f"replay of {request}") else None

    def _signed(self, purpose: str) -> str:
        token = secrets.token_urlsafe(_RANDOM * 3 // 4)
        return token + self._proof(token, purpose)

    def _genuine(self, text: str, purpose: str) -> bool:
        if len(text) != _LENGTH or not text.isascii():
            return False
        return compare_digest(text[_RANDOM:], self._proof(text[:_RANDOM], purpose))

    def _proof(self, token: str, purpose: str) -> str:
        return self._digest(f"{purpose} {token}")[:_PROOF]


def written(request: str, ticket: str) -> str:
    """The header of a replay."""
    return f"{request}.{ticket}"
