"""The certificates of the ports, and the files that are read again when they change.

A connection uses the certificates that are there when it begins. uvicorn and grpcio ask for them at each handshake, so
that neither has to open its port again.

This module is internal: its names may change in any release.
"""

import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.service.settings import Settings

logger = logging.getLogger("ratelimit_mw.service")


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
            logger.error("%s can't be used, so those from before stay in force: %s", self._what, error)  # noqa: TRY400  the error has all reasons
        else:
            if not at_once:
                logger.info("%s have changed, and are in force", self._what)

    def _state(self) -> list[object]:
        """Return what differs when a file is changed or replaced, also as the target of a symbolic link."""
        found: list[object] = []
        for path in self._files:
            try:
                about = path.stat()
                # A permission changes the time of the change alone, not that of the content.
                found.append((about.st_ctime_ns, about.st_size, about.st_ino))
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
