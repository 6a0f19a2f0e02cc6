"""Credentials in headers, cookies and queries: all spellings that a decoder takes for one of them are one identity.

Decoders of base64 skip characters that are not in its alphabet, read `+/` as `-_`, ignore what follows the padding, and
drop the unused bits of the last character. A signature is covered by nothing, so a client can respell it as often as it
likes. All that is before a signature is covered by it, as text, and has a single valid spelling.
"""

import binascii
import re
from base64 import b64decode
from urllib.parse import unquote

_SCHEMES = frozenset({"apikey", "basic", "bearer", "digest", "negotiate", "token"})
_CLIENT_OF = {"digest": ("username", "username*"), "oauth": ("oauth_consumer_key",)}
_AWS = "aws4-"  # SigV4 and SigV4A

# One parameter of an Authorization header: name=value or name="value". Each match takes at least one character, and
# possessive quantifiers prevent backtracking: the time is linear.
_PARAMETER = re.compile(
    r"""[\s,]*+ ([^\s=,]*+) \s*+ (?: = \s*+ (?: "((?:[^"\\]|\\.)*+)"? | ([^\s,]*+) ) )?+""", re.VERBOSE | re.DOTALL
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)

SHORTEST = 27
"""The fewest characters of a signature. HMAC-SHA1 has as many, and no common signature is shorter."""

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_URLSAFE = str.maketrans("+/", "-_")
_STRAY = re.compile(r"[^A-Za-z0-9_=-]+")
_PLAIN = re.compile(r"[A-Za-z0-9_-]*")
# By the number of characters modulo 4: the last character, with its unused bits cleared. Decoders refuse a remainder
# of 1, and 0 has no unused bits.
_LAST = {
    2: {character: _ALPHABET[n & ~0b1111] for n, character in enumerate(_ALPHABET)},
    3: {character: _ALPHABET[n & ~0b11] for n, character in enumerate(_ALPHABET)},
}

# What is before a complete padding. Of each four characters, "=" is ignored after the first, and one of them after the
# second. Possessive quantifiers make the time linear.
_READ = re.compile(r"(?:=*+[^=]=*+[^=]=?[^=][^=])*+ =*+ (?:[^=]=*+(?:[^=](?:=?[^=])?)?)?", re.VERBOSE)

_MOST_PARAMETERS = 64

_TIME = 6
"""The characters of the time in a value that was signed with its time, until 2106."""


def reduced(value: str) -> str:
    """Return the one spelling of a signed value. Any other value is returned as it is.

    A signed value has segments that `.` or `:` separates. The last one is a signature: at least `SHORTEST` characters
    of base64. It is written without stray characters, padding and unused bits, in the URL-safe alphabet. A `:` in a
    signature that follows a `.` is a stray character, because the decoder of a JSON Web Token skips it.
    """
    head, separator, last = value.rpartition(".")
    signature = _signature(last) if separator else None
    if signature is None:
        head, separator, last = value.rpartition(":")
        signature = _signature(last) if separator and "." not in last else None
    return value if signature is None else f"{head}{separator}{signature}"


def _signature(text: str) -> str | None:
    """Return the one spelling of a signature. None if the text is not one."""
    if len(text) < SHORTEST:
        return None
    if not _PLAIN.fullmatch(text):
        text = _before_padding(_STRAY.sub("", text.translate(_URLSAFE)))
    rest = len(text) % 4
    if len(text) < SHORTEST or rest == 1:
        return None
    return text[:-1] + _LAST[rest][text[-1]] if rest else text


def _before_padding(text: str) -> str:
    """Return the characters that Python's decoder reads: those before a complete padding."""
    read = _READ.match(text)
    return read[0].replace("=", "") if read else ""


def is_session(value: str) -> bool:
    """Return True for a reduced value that was signed with its time, as itsdangerous and Django sign sessions.

    Such a value changes while its user stays.
    """
    end = max(value.rfind("."), value.rfind(":"))
    start = end - _TIME - 1
    return start > 0 and value[start] in ".:" and len(value) - end > SHORTEST


def credential(authorization: str | None) -> str | None:
    """Return whose credential an Authorization header has, or None if it has none.

    * A bearer token is returned without its scheme. Other schemes keep their name in lower case, so that credentials
      of two schemes never collide.
    * Basic and Digest count by the user name, OAuth 1 by the consumer key and SigV4 by the access key. The rest of
      these headers differs between requests, or is a password: with it, each guess would have a new budget.
    * All headers of a scheme that cannot be decoded, have too many parameters or name several clients count as one.
    """
    words = (authorization or "").split(None, 1)
    if not words:
        return None
    scheme = words[0].lower()
    if "." in scheme or ":" in scheme:  # no scheme, but a token, whose decoder may skip blanks
        return (authorization or "").strip()
    if len(words) < 2:
        return words[0] if scheme not in _SCHEMES else None
    value = words[1].strip()
    if scheme == "bearer" and (len(value.split(None, 1)) == 1 or len(reduced(value).split(None, 1)) == 1):
        return value
    if scheme == "basic":
        return _basic_user(value)
    names = ("credential",) if scheme.startswith(_AWS) else _CLIENT_OF.get(scheme)
    return f"{scheme} {value}" if names is None else _client(scheme, value, names)


def _basic_user(value: str) -> str | None:
    """Return the user of Basic credentials. None if the name is empty: the password is then a key of its own."""
    try:
        # Surplus padding is ignored, and missing padding is added, as lenient decoders do.
        decoded = b64decode(value.encode("latin-1", "replace") + b"==").decode("latin-1")
    except binascii.Error:
        return "basic?"  # the "?" keeps it apart from a decoded name
    user = decoded.partition(":")[0]
    return f"basic {user}" if user else None


def _client(scheme: str, value: str, names: tuple[str, ...]) -> str:
    """Return the client that a parameter of the header names. Without the parameter, the value is an opaque token."""
    found: set[str] = set()
    position = read = 0
    while position < len(value):
        read += 1
        if read > _MOST_PARAMETERS:
            return f"{scheme}?"
        parameter = _PARAMETER.match(value, position)
        if parameter is None:
            break
        position = parameter.end()
        name = parameter[1].lower()
        if name in names:
            text = (parameter[3] or "") if parameter[2] is None else _ESCAPE.sub(r"\1", parameter[2])
            found.add(unquote(text.rpartition("'")[2]) if name.endswith("*") else text)  # UTF-8''ann, of RFC 8187
    if not found:
        return f"{scheme} {value}"
    if len(found) > 1:
        return f"{scheme}?"
    client = found.pop()
    if scheme == "oauth":
        client = unquote(client)  # the signature is computed over the decoded key
    elif scheme.startswith(_AWS):
        client = client.partition("/")[0]  # the rest is the date and the place that the signature is for
    return f"{scheme} {client}"
