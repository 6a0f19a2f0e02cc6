"""Who may ask the service: the tokens of `--token-file`, and what each of them allows.

The file has one token on each line, behind its role:

    # who            the token, at least 16 characters
    check            5pXQm0aH1mQGm3kq
    admin            vT2cVb8yWq0Lr7Zd

A `check` token asks for decisions. An `admin` token may also reset and explain counters, and read the admin port. A
caller sends it as `Authorization: Bearer TOKEN`. Empty lines, and lines that begin with `#`, are ignored.

This module is internal: its names may change in any release.
"""

import re
from collections.abc import Sequence
from hmac import compare_digest
from pathlib import Path
from typing import Literal, NamedTuple

from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.service.settings import Settings

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
    except OSError as error:
        raise ConfigurationError([Problem(f"the tokens cannot be read: {error.strerror}", name)]) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError([Problem("the tokens cannot be read: the file is not ASCII text", name)]) from error
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
