"""Who may read the live page: the token, the cookie that a login sets, and the limit on wrong attempts.

Every credential that could be a guess is counted if it is wrong: a token in a header, a token in the form, and a
cookie whose signature is wrong. The key of the signature is derived from the token, so a forged cookie is a guess of
the token, too.

This module is internal: its names may change in any release.
"""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.process_local import lazy, lock, reset_after_fork
from ratelimit_mw.stores.memory import MemoryStore

SHORTEST = 16
"""The fewest characters of a token."""
LASTS = 12 * 60 * 60
"""How long a login lasts, in seconds."""

_OF_ADDRESS = Quota("sliding_log", limit=10, period=60 * SECOND)
_OF_ALL = Quota("sliding_log", limit=100, period=60 * SECOND)
Key = TypeVar("Key")

_ROUNDS = 20_000
_MOST_COOKIES = 5
_MAX_COUNTERS = 10_000
_MAX_REMEMBERED = 1_000


class CredentialCheck(Enum):
    """The result of testing the credentials of a request."""

    ADMITTED = "admitted"
    MISSING = "missing"
    EXPIRED = "expired"
    WRONG = "wrong"
    TOO_MANY = "too many"
    """They were not tested, because there were too many wrong ones before."""


class Admission(NamedTuple):
    """Whether a request is admitted.

    Attributes:
        check: The result of testing its credentials.
        retry_after: With `TOO_MANY`, the seconds until credentials are tested again. At least 1.
    """

    check: CredentialCheck
    retry_after: int = 0


_ADMITTED = Admission(CredentialCheck.ADMITTED)
_MISSING = Admission(CredentialCheck.MISSING)
_EXPIRED = Admission(CredentialCheck.EXPIRED)
_WRONG = Admission(CredentialCheck.WRONG)


class Access:
    """Tests credentials. Threads and event loops may share it.

    After ten wrong attempts from one address within a minute, or a hundred from all addresses, no more credentials are
    tested. The right token is refused then, too, because otherwise the limits would not slow down a guesser. But the
    wrong attempts of others must not lock out the operators:

    * A cookie that this process has found right is not tested again, so a logged-in visitor stays logged in.
    * An address that has sent the right token within `LASTS` is not subject to the limit of all addresses.

    The counters are those of this process.

    Args:
        token: The token. See `fault_of`.
        clock: The clock of logins and limits. None: that of the machine.
    """

    _lock = lazy(lock)

    def __init__(self, token: str, clock: Clock | None = None) -> None:
        self._token = _hash(token)
        # Slow on purpose: with a cookie that has leaked, someone may test guesses of the token on their own machine.
        self._key = hashlib.pbkdf2_hmac("sha256", token.encode(), b"ratelimit_mw live page", _ROUNDS)
        self._clock = clock or SystemClock()
        self._store = MemoryStore(max_counters=_MAX_COUNTERS, clock=self._clock)
        self._cookies: OrderedDict[bytes, int] = OrderedDict()
        """The hashes of the cookies that were found right, and when they expire."""
        self._addresses: OrderedDict[str, int] = OrderedDict()
        """The addresses that have sent the right token, and when they are forgotten."""
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock in the child of a fork: a thread that had locked it may not exist here."""
        vars(self).pop("_lock", None)

    def admit(self, address: str, *, bearer: str | None, cookies: Sequence[str]) -> Admission:
        """Test the credentials of a request. A token takes precedence over a cookie.

        Another app of the site can set cookies of the same name, which browsers may send before that of the page. One
        right cookie is therefore enough. If none is right, they are one wrong attempt together, so only the first
        `_MOST_COOKIES` are tested.

        Args:
            address: The identity of the client's address.
            bearer: The token of the header Authorization, if the request has one.
            cookies: The values of all cookies that have the name of the page's cookie.
        """
        if bearer is not None:
            return self.test_token(address, bearer)
        if not cookies:
            return _MISSING
        tested, now = cookies[:_MOST_COOKIES], self._seconds()
        if any(self._cookies.get(_hash(cookie), 0) > now for cookie in tested):
            return _ADMITTED
        with self._lock:
            wait = self._wait(address)
            if wait:
                return wait
            ends = [self._expiry(cookie) for cookie in tested]
            for cookie, expires in zip(tested, ends, strict=True):
                if expires is not None and expires > now:
                    _remember(self._cookies, _hash(cookie), expires)
                    return _ADMITTED
            if None in ends:
                self._charge(address)
                return _WRONG
        return _EXPIRED

    def test_token(self, address: str, token: str) -> Admission:
        """Test a token that was sent in a header or in the form."""
        with self._lock:  # so that threads cannot test more tokens than the limit
            wait = self._wait(address)
            if wait:
                return wait
            if not hmac.compare_digest(_hash(token.strip()), self._token):
                self._charge(address)
                return _WRONG
            _remember(self._addresses, address, self._seconds() + LASTS)
        return _ADMITTED

    def cookie(self) -> str:
        """Return a new cookie. It is right for `LASTS` seconds."""
        expires = str(self._seconds() + LASTS)
        value = f"{expires}.{self._signature(expires)}"
        with self._lock:
            _remember(self._cookies, _hash(value), int(expires))
        return value

    def _expiry(self, cookie: str) -> int | None:
        """Return when a cookie expires, in epoch seconds. None if its signature is wrong."""
        expires, _, signature = cookie.partition(".")
        right = self._signature(expires)
        if not hmac.compare_digest(signature.encode("utf-8", "surrogatepass"), right.encode()):
            return None
        return int(expires)  # it has the right signature, so this code has written it

    def _signature(self, expires: str) -> str:
        digest = hmac.digest(self._key, expires.encode("utf-8", "surrogatepass"), "sha256")
        return urlsafe_b64encode(digest).decode().rstrip("=")

    def _wait(self, address: str) -> Admission | None:
        """Return the refusal if no credentials of this address may be tested now."""
        reply = self._store.decide(self._asks(address), commit=False)
        longest = max(outcome.retry_after for outcome in reply.outcomes)
        return Admission(CredentialCheck.TOO_MANY, -(-longest // SECOND)) if longest else None

    def _charge(self, address: str) -> None:
        """Count a wrong attempt."""
        self._store.decide(self._asks(address), commit=True)

    def _asks(self, address: str) -> list[Ask]:
        asks = [Ask(f"address:{address}", _OF_ADDRESS)]
        if self._addresses.get(address, 0) <= self._seconds():
            asks.append(Ask("all", _OF_ALL))
        return asks

    def _seconds(self) -> int:
        return self._clock.now() // SECOND


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


def _remember(known: "OrderedDict[Key, int]", key: Key, expires: int) -> None:
    """Keep the time until which a key is known. At most `_MAX_REMEMBERED` keys are kept: the latest ones."""
    known[key] = expires
    known.move_to_end(key)
    while len(known) > _MAX_REMEMBERED:
        known.popitem(last=False)
