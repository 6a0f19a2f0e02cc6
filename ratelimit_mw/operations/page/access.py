"""Who may read the live page: the token, and the limit on wrong attempts.

This module is internal: its names may change in any release.
"""

import hashlib
import hmac

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.operations.page.visits import PageAnswer, text_answer
from ratelimit_mw.stores.memory import MemoryStore

SHORTEST = 16
"""The fewest characters of a token."""

_ATTEMPTS = Quota("sliding_log", limit=10, period=60 * SECOND)
_MAX_COUNTERS = 10_000


_CHALLENGE = ("WWW-Authenticate", 'Basic realm="live page", charset="UTF-8"')  # so that browsers ask for the token


class PageAccess:
    """Tests tokens. Threads and event loops may share it.

    After ten wrong attempts from one address within a minute, none from it is admitted. The right token is refused
    then, too, because otherwise the limit would not slow down a guesser. The counters are those of this process.

    Args:
        token: The token. See `fault_of`.
        clock: The clock of the limit. None: that of the machine.
    """

    def __init__(self, token: str, clock: Clock | None = None) -> None:
        self._token = _hash(token)
        self._store = MemoryStore(max_counters=_MAX_COUNTERS, clock=clock or SystemClock())

    def refusal(self, address: str, token: str | None) -> PageAnswer | None:
        """Return the answer to a visitor whose token is not right. None if it is.

        Args:
            address: The identity of the client's address.
            token: The token. None if the request has none, which is not an attempt.
        """
        if token is None:
            text = "Send the token as 'Authorization: Bearer TOKEN', or as the password of HTTP Basic."
            return text_answer(401, text, _CHALLENGE)
        right = hmac.compare_digest(_hash(token.strip()), self._token)
        (outcome,) = self._store.decide([Ask(f"address:{address}", _ATTEMPTS)], commit=not right).outcomes
        if not outcome.allowed:
            seconds = -(-outcome.retry_after // SECOND)
            text = f"Too many wrong attempts. Try again in {seconds} s."
            return text_answer(429, text, ("Retry-After", str(seconds)))
        return None if right else text_answer(401, "The token is not right.", _CHALLENGE)


def fault_of(token: object) -> str:
    """Return what is wrong with a token, or ""."""
    if not isinstance(token, str):
        return f"the token is {type(token).__name__}, not a text"
    if len(token) < SHORTEST:
        return f"the token has {len(token)} character{'s' * (len(token) != 1)}: it must have at least {SHORTEST}"
    if not (token.isascii() and token.isprintable()) or token != token.strip():
        return "the token has a character that a header cannot send: only printable ASCII without spaces around it can"
    return ""


def _hash(text: str) -> bytes:
    """Return the hash of a text of a client. A comparison of hashes does not tell the length of the right text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
