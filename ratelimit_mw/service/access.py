"""Who may ask the service: the tokens of `--token-file`, the certificates of the ports, and the reading of both again.

The file of tokens has one token on each line, behind its role:

    # who            the token, at least 16 characters
    check            5pXQm0aH1mQGm3kq
    admin            vT2cVb8yWq0Lr7Zd

A `check` token asks for decisions. An `admin` token may also reset and explain counters, and read the admin port. A
caller sends it as `Authorization: Bearer TOKEN`. Empty lines, and lines that begin with `#`, are ignored.

A connection uses the certificates that are there when it begins. uvicorn and grpcio ask for them at each handshake, so
that neither has to open its port again.

This module is internal: its names may change in any release.
"""

import logging
import re
import ssl
from collections.abc import Callable, Iterable, Sequence
from hmac import compare_digest
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.service.settings import Settings

logger = logging.getLogger("ratelimit_mw.service")

Role = Literal["check", "admin"]
Right = Literal["check", "refund", "admin"]
"""`check`: ask for decisions. `refund`: give hits back, too. `admin`: everything."""

_ROLES: tuple[Role, ...] = ("check", "admin")
_SHORTEST = 16
_LONGEST = 4096
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # b64token of RFC 6750, so that every token fits into a header
_FORM = "a line is 'check TOKEN' or 'admin TOKEN'"


class Token(NamedTuple):
    """A token of the file."""

    role: Role
    secret: bytes


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Return the tokens of a file. See the module for its form.

    Raises:
        ConfigurationError: The file cannot be read, or a line cannot be used. It carries every problem, with its line.
            No message contains a token.
    """
    name = str(path)
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "the file is not ASCII text"
        raise ConfigurationError([Problem(f"the tokens cannot be read: {why}", name)]) from error
    tokens: list[Token] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        fault = _fault(words, tokens)
        if fault:
            # The number is in the sentence, because commands show the line that a problem names, with its token.
            problems.append(Problem(f"line {number}: {fault}", name, hint=_FORM))
        else:
            role: Role = "admin" if words[0] == "admin" else "check"
            tokens.append(Token(role, words[1].encode()))
    if not tokens and not problems:
        problems.append(Problem("the file has no token", name, hint=_FORM))
    if problems:
        raise ConfigurationError(problems)
    return tuple(tokens)


def _fault(words: Sequence[str], known: Sequence[Token]) -> str:
    """Return what is wrong with a line, or ""."""
    if len(words) != 2:
        return f"the line has {len(words)} word{'s' * (len(words) != 1)}, not a role and a token"
    if words[0] not in _ROLES:
        return "the first word is not a role"
    if not _SHORTEST <= len(words[1]) <= _LONGEST:
        return f"the token has {len(words[1])} characters: it must have {_SHORTEST} to {_LONGEST}"
    if not _TOKEN.fullmatch(words[1]):
        return "the token has a character other than letters, digits and . _ ~ + / = -"
    if any(compare_digest(token.secret, words[1].encode()) for token in known):
        return "the token is in the file already"
    return ""


class Access:
    """Who may ask.

    With a token file, each caller needs a token. Without it, the ports are on loopback or require client certificates
    (`Settings.read` refuses other ports), and all callers may do everything.

    With `--allow-anyone`, all callers may ask for decisions. For the rest, they need a token or a certificate.

    Args:
        settings: The settings.

    Raises:
        ConfigurationError: The token file cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self.file = settings.token_file
        self._tokens: tuple[Token, ...] = ()
        self.by_token = self.file is not None and not settings.allow_anyone
        """Whether callers need a token to ask for decisions. If not, `allows` need not be asked about that."""
        self._all_known = not settings.allow_anyone or settings.client_ca is not None
        self.read()

    def read(self) -> None:
        """Read the token file again, if there is one. From then on, only its tokens are valid.

        Raises:
            ConfigurationError: The token file cannot be used. The tokens from before stay valid.
        """
        if self.file is not None:
            self._tokens = read_tokens(self.file)

    def allows(self, right: Right, authorization: str | None) -> bool:
        """Return True if a caller with this header `authorization` (as in `Bearer TOKEN`) has this right."""
        if right == "check" and not self.by_token:
            return True
        if self.file is None:
            return self._all_known
        scheme, _, text = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        given = text.strip().encode("utf-8", "replace")
        allowed = False
        for role, secret in self._tokens:  # all of them, so that the time does not tell which one is the right one
            if compare_digest(secret, given) and (right != "admin" or role == "admin"):
                allowed = True
        return allowed


class ReadAgain:
    """Calls a reader when one of its files has changed.

    Args:
        what: What the files hold, for the log, such as "the tokens".
        files: The files. None stands for a file that is not used.
        read: Reads them. If it raises a ConfigurationError, what it has read before stays in use.
    """

    def __init__(self, what: str, files: Iterable[Path | None], read: Callable[[], None]) -> None:
        self._what = what
        self._files = [path for path in files if path is not None]
        self._read = read
        self._seen = self._state()

    def look(self, *, at_once: bool = False) -> None:
        """Read the files if they have changed since the last look, or in any case if `at_once`."""
        state = self._state()
        if not self._files or (state == self._seen and not at_once):
            return
        self._seen = state
        try:
            self._read()
        except ConfigurationError as error:
            logger.error("%s can't be used, so the previous ones stay in force: %s", self._what, error)  # noqa: TRY400  the error has all reasons
        else:
            if not at_once:
                logger.info("%s have changed, and are in force", self._what)

    def _state(self) -> list[object]:
        """Return the content of each file, or why it cannot be read."""
        found: list[object] = []
        for path in self._files:
            try:
                found.append(path.read_bytes())
            except OSError as error:
                found.append(error.errno)
        return found


class Certificate(NamedTuple):
    """What the service shows and trusts, PEM.

    Attributes:
        chain: The certificate chain.
        key: Its key.
        client_ca: The authorities of clients. None if clients need no certificate.
    """

    chain: bytes
    key: bytes
    client_ca: bytes | None


class Certificates:
    """The certificates of TCP ports. `--tls-cert` must be set.

    Args:
        settings: The settings.

    Raises:
        ConfigurationError: The files cannot be used. It has every problem found.
    """

    def __init__(self, settings: Settings) -> None:
        self.files = settings.tls_cert, settings.tls_key, settings.client_ca
        self.refused: Callable[[str], object] = str
        """Called with the reason of each failed handshake of HTTP, a constant such as CERTIFICATE_VERIFY_FAILED."""
        self.read()

    def read(self) -> None:
        """Read the files again. New connections use what they have.

        Raises:
            ConfigurationError: The files cannot be used, or do not fit. Those from before stay in use.
        """
        chain, key, client_ca = self.files
        problems: list[Problem] = []
        contexts = {False: self._context(), True: self._context()}
        before = self._contents()
        for context in contexts.values():
            try:
                context.load_cert_chain(chain or "", key, password=_no_password)
            except (OSError, ValueError) as error:
                flags = "--tls-cert and --tls-key: they must be a certificate chain and its key without a password"
                problems = [Problem(f"{flags}, in PEM ({_reason(error)})")]
        if client_ca is not None:
            try:
                contexts[True].load_verify_locations(client_ca)
                contexts[True].verify_mode = ssl.CERT_REQUIRED
            except (OSError, ValueError) as error:
                text = "--client-ca: it must be certificates of authorities, in PEM"
                problems.append(Problem(f"{text} ({_reason(error)})"))
        if not problems and before != self._contents():
            problems = [Problem("the certificates were just being replaced")]  # the next look reads them
        if problems or before is None:
            raise ConfigurationError(problems)
        self.latest = before
        self._contexts = contexts

    def context(self, *, of_clients: bool) -> ssl.SSLContext:
        """Return a context for a server. Each connection gets the certificates that are there when it begins.

        Args:
            of_clients: Whether clients need a certificate, if there is a `--client-ca`.
        """
        found = _Current(ssl.PROTOCOL_TLS_SERVER)
        found.current = lambda: self._contexts[of_clients]
        return found

    def _contents(self) -> Certificate | None:
        """Return what the files have. None if one of them cannot be read."""
        try:
            chain, key, client_ca = (None if path is None else path.read_bytes() for path in self.files)
        except OSError:
            return None
        return Certificate(chain or b"", key or b"", client_ca)

    def _context(self) -> ssl.SSLContext:
        certificates = self

        class Handshake(ssl.SSLObject):
            """Says why a client is refused. asyncio does not."""

            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except ssl.SSLError as error:
                    certificates.refused(error.reason or "unknown")
                    raise

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sslobject_class = Handshake
        return context


class _Current(ssl.SSLContext):
    """A context that passes each connection to the context of now."""

    current: Callable[[], ssl.SSLContext]

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.current().wrap_bio(*args, **options)


def _no_password() -> str:
    raise ValueError("the key has a password")  # without this callback, the process would wait for one to be typed


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
