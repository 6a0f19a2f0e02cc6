r"""Find the values of a named cookie, query parameter, header or host, by one scan in linear time.

Parsers read malformed texts differently: the first or the last of two cookies, up to a comma or beyond it. Each value
that one of them reads counts. A request with more than `MOST_VALUES` of them, or with a longer text than `_MOST_TEXT`,
has the values `TOO_MANY`, which all such requests share.

All work on characters is done by functions of C, so that a text of 64 KiB costs little more than a short one. Escapes
are decoded by the codec `unicode_escape`: `%41` is written as `\x41`, and `\101` in a cookie is one of its own.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from urllib.parse import unquote

from ratelimit_mw.errors import Invalid
from ratelimit_mw.identity.credentials import reduced

Values = tuple[str, ...]
"""All values that stand behind a name. () if it is absent."""

SHARED, BY_ADDRESS = "\ud800", "\ud801"
"""In place of too many values: the identity that all such requests share, and the client's address.

They are lone surrogates, which no decoded text has.
"""

TOO_MANY: Values = (SHARED, BY_ADDRESS)
"""The values behind a name that has too many. Both satisfy every condition on the name."""

_MOST_KEPT = 256  # characters in Host lines whose names are kept, so that clients cannot fill the memory
MOST_VALUES = 4
MOST_LINES = 32
"""Header lines, cookies or parameters of one name, also if they are equal."""
_MOST_SPELLINGS = 16  # of at most four values: with and without what follows a comma, percent signs decoded or not
_MOST_TEXT = 65536
_MOST_ESCAPES = 64  # irregular percent signs, which are decoded one by one
_MOST_MARKS = 2048  # in a cookie: commas, which count twice, and backslashes; a browser sends at most 4 KiB of it

# Whatever may stand before or after the name of a cookie: separators, blanks, controls, and what is not ASCII.
_AROUND = bytes(code if 33 <= code < 127 and code not in b",;" else ord(";") for code in range(256))
# Values that no parser cuts, strips or decodes.
_PLAIN = re.compile(r"[!#$&'()*+\-./0-9:<=>?@A-Z\[\]^_`a-z{|}~]*+")
_NEXT_COOKIE = re.compile(r',\s*+[^\s=;,"]++\s*+=')
_NEXT_PARAMETER = re.compile(r";[^;=]++=")
_REGULAR = re.compile(r'[^\\]*+(?:\\(?:["\\]|[0-3][0-7][0-7])[^\\]*+)*+')
_HOST = re.compile(r"(?:\[[^\[\]]*+\]|[^:@\[\]]*+)(?::[0-9]*+)?")
_STRAY = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Escaped separators are decoded to characters that are no bytes, and these are replaced when the fields are cut.
_ESCAPED = (("%26", r"\u0126"), ("%3B", r"\u013b"), ("%3b", r"\u013b"), ("%3D", r"\u013d"), ("%3d", r"\u013d"))
_STAND_INS = (("\u0126", "&"), ("\u013b", ";"), ("\u013d", "="))

_Readings = Sequence[str]
"""What parsers read of one occurrence of a name. The first one is its value; the others are spellings of it."""


def _collected(occurrences: Iterable[_Readings | None]) -> Values:
    """Return the distinct values of all occurrences, then their other spellings. None is an unreadable occurrence."""
    values: dict[str, None] = {}
    spellings: dict[str, None] = {}
    for place, readings in enumerate(occurrences):
        if readings is None or place >= MOST_LINES:
            return TOO_MANY
        if readings[0]:
            values[readings[0]] = None
        for reading in readings:
            if reading:
                spellings[reading] = None
        if len(values) > MOST_VALUES or len(spellings) > _MOST_SPELLINGS:
            return TOO_MANY
    return tuple(values | spellings)


def header_values(lines: Sequence[str] | None, *repeated: Sequence[str]) -> Values:
    """Return the values of a header, one a line. None: too many lines.

    The lines of each of `repeated` are read as one text, too, with commas between them, as some frameworks join them.
    A decoder of base64 skips the commas.
    """
    if lines is None or sum(map(len, lines)) > _MOST_TEXT:
        return TOO_MANY
    if len(lines) == 1 and lines[0].isascii():  # the common case
        text = lines[0].strip()
        return (text,) if text else ()
    occurrences = [_texts(line.strip()) for line in lines]
    for joined in repeated:
        occurrences[-1] += _texts(",".join(joined).strip())
    return _collected(occurrences)


def host_name(host: str) -> str | None:
    """Return the name in a Host header: lower case, without the port and the trailing dot. None if it is empty."""
    name, bracket, _ = host.strip().lower().rpartition("]")
    return f"{name}]" if bracket else host.strip().lower().partition(":")[0].rstrip(".") or None


def host_values(lines: Sequence[str] | None) -> Values:
    """Return the names in the lines of a Host header. None: too many lines.

    A malformed line is a name of its own, too: parsers disagree about it, so no exemption may hold for it.
    """
    if lines is None or (size := sum(map(len, lines))) > _MOST_TEXT:
        return TOO_MANY
    return _kept_names(*lines) if size <= _MOST_KEPT else _names(*lines)


def _names(*lines: str) -> Values:
    names = ((line.strip().lower(), host_name(line) or "") for line in lines)
    return _collected((name,) if _HOST.fullmatch(text) else (name, text) for text, name in names)


_kept_names = lru_cache(maxsize=1024)(_names)  # a site has few names


class Cookie:
    """Finds the cookies of one name. Raises `Invalid`, with a message for the user, if no cookie has such a name."""

    __slots__ = ("_pattern", "name")

    def __init__(self, name: str) -> None:
        encoded = name.encode("utf-8", "replace")
        if b";" in encoded.translate(_AROUND) or "=" in name or '"' in name:
            raise Invalid(
                f'no cookie is called {name!r}: write printable ASCII characters without blanks and without = ; , "'
            )
        self.name = name
        self._pattern = re.compile(b";" + re.escape(encoded) + b";*+=")

    def values(self, lines: Sequence[str] | None) -> Values:
        """Return the cookies in these lines of the Cookie header, which are one text. None: too many lines."""
        if lines is None or sum(map(len, lines)) + len(lines) > _MOST_TEXT:
            return TOO_MANY
        occurrences = self._occurrences(";".join(lines))
        return _collected(occurrences if len(lines) < 2 else chain(occurrences, self._respelt(",".join(lines))))

    def _respelt(self, text: str) -> Iterator[_Readings | None]:
        """Yield the signed values in lines that a framework has joined by commas: a decoder skips the commas."""
        for readings in self._occurrences(text):
            respelt = [each for each in readings if reduced(each) != each] if readings else readings
            if respelt != []:
                yield respelt

    def _occurrences(self, text: str) -> Iterator[_Readings | None]:
        searched = f";{text}".encode("latin-1", "replace").translate(_AROUND)
        closing = text.replace("\\\\", "..").replace('\\"', "..") if "\\" in text else text
        for match in self._pattern.finditer(searched):
            yield _cookie_readings(text, match.end() - 1, closing)


def _cookie_readings(text: str, start: int, closing: str) -> _Readings | None:
    """Return what parsers read of the cookie whose value starts there. None if it has too many irregular escapes.

    `closing` is the text without escaped quotes, of the same length.
    """
    end = text.find(";", start)
    field = text[start:] if end < 0 else text[start:end]
    if _PLAIN.fullmatch(field):
        return (field,)
    stripped = field.strip()
    quoted = stripped[:1] == '"'
    if 2 * stripped.count(",") + quoted * text.count("\\") > _MOST_MARKS:
        return None
    further = _NEXT_COOKIE.search(stripped)
    found: list[str | None] = []
    opened = start + len(field) - len(field.lstrip()) + 1
    closed = closing.find('"', opened) if quoted else -1
    if closed >= 0:
        found.append(_unescaped(text[opened:closed]))  # it may hold semicolons
    if further is not None:
        found.append(_unquoted(stripped[: further.start()].rstrip()))
    if closed < 0 or closed - opened != len(stripped) - 2:
        found.append(_unquoted(stripped))
    if not quoted:
        found.append(field.strip(" \t"))
        found += stripped.split(None, 1)[:1]  # Python's SimpleCookie ends a cookie at a blank
    readings: dict[str, None] = {}
    for raw in dict.fromkeys(found):
        if raw is None:
            return None
        for reading in _texts(raw):
            decoded = _percent_decoded(reading)
            if decoded is None:
                return None
            readings |= dict.fromkeys((reading, reading.strip(), decoded))
    return tuple(readings)


def _unquoted(text: str) -> str | None:
    return _unescaped(text[1:-1]) if len(text) > 1 and text[0] == text[-1] == '"' else text


def _unescaped(text: str) -> str | None:
    """Decode the escapes of a quoted cookie, of which an octal one is a byte. None if one is irregular."""
    if "\\" not in text:
        return text
    return text.encode("raw_unicode_escape").decode("unicode_escape") if _REGULAR.fullmatch(text) else None


def _percent_decoded(text: str) -> str | None:
    """Decode percent signs in a text, as `unquote` does. None if too many are irregular."""
    if "%" not in text:
        return text
    if text.isascii():
        decoded = _bytes_of(text.replace("\\", "\\\\"))
        return None if decoded is None else decoded.encode("latin-1").decode("utf-8", "replace")
    return unquote(text) if text.count("%") <= _MOST_ESCAPES else None


def _bytes_of(text: str) -> str | None:
    r"""Decode percent signs to bytes as latin-1. The text is ASCII, with its backslashes doubled."""
    try:
        return _decoded_escapes(text)
    except UnicodeDecodeError:  # a percent sign without two digits
        text, stray = _STRAY.subn("%25", text, _MOST_ESCAPES + 1)
        return _decoded_escapes(text) if stray <= _MOST_ESCAPES else None


def _decoded_escapes(text: str) -> str:
    return text.replace("%", "\\x").encode("ascii").decode("unicode_escape")


def utf8(text: str) -> str:
    """Decode as UTF-8 a text that a server decoded as latin-1. Bytes that are not UTF-8 become U+FFFD."""
    return _texts(text)[-1]


def _texts(raw: str) -> tuple[str, ...]:
    """Return a text, which a server decoded as latin-1, as UTF-8. If it is not UTF-8: as it is, and with U+FFFD."""
    if raw.isascii():
        return (raw,)
    try:
        encoded = raw.encode("latin-1")
    except UnicodeEncodeError:  # the server decoded it as UTF-8 already
        return (raw,)
    try:
        return (encoded.decode("utf-8"),)
    except UnicodeDecodeError:
        return raw, encoded.decode("utf-8", "replace")


class Parameter:
    """Finds the query parameters of one name."""

    __slots__ = ("_needles", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        decoded = (name.encode("utf-8", "replace").decode("latin-1"), name)  # the second where a server takes latin-1
        for stand_in, separator in _STAND_INS:
            decoded = (decoded[0].replace(separator, stand_in), decoded[1].replace(separator, stand_in))
        self._needles = [f"{separator}{each}=" for each in dict.fromkeys(decoded) for separator in "&;"]

    def values(self, query: str) -> Values:
        """Return the parameters in a query string, which is decoded as latin-1."""
        if not query:
            return ()
        text = _decoded_query(query) if len(query) <= _MOST_TEXT else None
        return TOO_MANY if text is None else _collected(self._occurrences(text))

    def _occurrences(self, text: str) -> Iterator[_Readings | None]:
        for needle in self._needles:
            place = text.find(needle)
            while place >= 0:
                yield _parameter_readings(text, place + len(needle))
                place = text.find(needle, place + 1)


def _decoded_query(query: str) -> str | None:
    """Return a query string with an & before it, decoded to bytes as latin-1. None if it is too irregular.

    Escaped separators are replaced by the characters of `_STAND_INS`.
    """
    text = "&" + query.replace("+", " ")
    if "%" not in text:
        return text
    if not text.isascii():
        return None
    text = text.replace("\\", "\\\\")
    for escape, stand_in in _ESCAPED:
        text = text.replace(escape, stand_in)
    return _bytes_of(text)


def _parameter_readings(text: str, start: int) -> _Readings:
    """Return what parsers read of the parameter whose value starts there."""
    end = text.find("&", start)
    field = text[start:] if end < 0 else text[start:end]
    further = _NEXT_PARAMETER.search(field) if ";" in field else None
    readings: list[str] = []
    for raw in (field,) if further is None else (field[: further.start()], field):
        value = raw
        for stand_in, separator in _STAND_INS:
            value = value.replace(stand_in, separator)
        readings += _texts(value)
    return readings
