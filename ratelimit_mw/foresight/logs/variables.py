"""The variables of nginx's `log_format` and the directives of Apache's `LogFormat`: their meaning and form."""

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from ratelimit_mw.foresight.logs.times import TimeReader, common_time, epoch_time, iso_time, strftime_time


class Variable(NamedTuple):
    """One variable of a format.

    Attributes:
        name: How the format writes it, as "$remote_addr" or "%h".
        field: What it tells, see `entry.FIELDS`. "" for what no rule needs.
        pattern: The regular expression of its text. "": anything up to the text that follows it.
        read: Reads a time.
    """

    name: str
    field: str = ""
    pattern: str = ""
    read: TimeReader | None = None


_DAY = r"[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})? [+-][0-9]{4}"
_ISO = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]++(?:Z|[+-][0-9:]{4,6})?"
_NUMBER = r"[0-9.]++|-"
_STATUS = r"[0-9]{3}|-"
_USER = r"[^\n]*?"  # may have spaces; only one variable of a format is so free, so the search stays linear
_UPSTREAM = r"[0-9., :-]*?"  # one number for each server that was tried
_PATH = r'[^? "\\\n]*+'
_QUERY = r'(?:\?[^ "\\\n]*+)?'

_NGINX = {
    variable.name: variable
    for variable in (
        Variable("$remote_addr", "ip"),
        Variable("$realip_remote_addr"),
        Variable("$proxy_protocol_addr"),
        Variable("$remote_user", "user", _USER),
        Variable("$time_local", "end", _DAY, common_time),
        Variable("$time_iso8601", "end", _ISO, iso_time),
        Variable("$msec", "end", r"[0-9.]++", epoch_time),
        Variable("$request", "request"),
        Variable("$request_method", "method"),
        Variable("$request_uri", "target"),
        Variable("$uri", "path"),
        Variable("$document_uri", "path"),
        Variable("$args", "query"),
        Variable("$query_string", "query"),
        Variable("$status", "status", _STATUS),
        Variable("$host", "host"),
        Variable("$http_host", "host"),
        Variable("$request_time", "duration", _NUMBER),
        Variable("$body_bytes_sent", "", _NUMBER),
        Variable("$bytes_sent", "", _NUMBER),
        Variable("$request_length", "", _NUMBER),
    )
}
_NGINX_FAMILIES = (("$http_", "header:"), ("$cookie_", "cookie:"))

_APACHE = {
    variable.name: variable
    for variable in (
        Variable("%h", "ip"),
        Variable("%a", "ip"),
        Variable("%u", "user", _USER),
        Variable("%t", "time", rf"\[(?:{_DAY})\]", lambda text: common_time(text[1:-1])),
        Variable("%r", "request"),
        Variable("%m", "method"),
        Variable("%U", "path", _PATH),
        Variable("%q", "query", _QUERY),
        Variable("%s", "status", _STATUS),
        Variable("%v"),
        Variable("%V", "host"),
        Variable("%D", "duration_us", _NUMBER),
        Variable("%T", "duration", _NUMBER),
        Variable("%b", "", _NUMBER),
        Variable("%B", "", _NUMBER),
        Variable("%O", "", _NUMBER),
        Variable("%I", "", _NUMBER),
    )
}
_APACHE_UNITS = {"s": "duration", "ms": "duration_ms", "us": "duration_us"}

_NGINX_TOKEN = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_APACHE_TOKEN = re.compile(r"%(?:%|[!0-9,]*([<>]?)(?:\{([^}]*)\})?(\^?[A-Za-z]{1,2}?))")


def parts_of(text: str) -> list[str | Variable]:
    """Return the texts and the variables of a format, in order.

    Args:
        text: The format, or the whole line of the configuration that defines it (`log_format …;`, `LineFormat …`).

    Raises:
        ValueError: The text has no variables of either server.
    """
    text = _unquoted(text.strip())
    found = list(_merged(_nginx(text) if "$" in text else _apache(text)))
    if not any(isinstance(part, Variable) for part in found):
        raise ValueError(f"{text!r:.200} is no format: it has no variables such as $remote_addr or %h")
    return found


def _unquoted(text: str) -> str:
    """Return the format in a line of a configuration."""
    directive = text.partition(" ")[0].lower()
    if directive not in ("log_format", "logformat"):
        return text
    words = shlex.split(text.rstrip(";"))
    if directive == "logformat":
        return words[1] if len(words) > 1 else ""
    return "".join(word for word in words[2:] if not word.startswith("escape="))


def _merged(parts: Iterator[str | Variable]) -> Iterator[str | Variable]:
    """Join texts that follow each other, and leave out empty ones."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text


def _nginx(text: str) -> Iterator[str | Variable]:
    end = 0
    for token in _NGINX_TOKEN.finditer(text):
        yield text[end : token.start()]
        end = token.end()
        yield nginx_variable(f"${token[1] or token[2]}")
    yield text[end:]


def nginx_variable(name: str) -> Variable:
    """Return the variable of nginx with this name, which begins with "$"."""
    known = _NGINX.get(name)
    if known is not None:
        return known
    for prefix, field in _NGINX_FAMILIES:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return Variable(name, field + (rest.replace("_", "-") if prefix == "$http_" else rest))
    return Variable(name, "", _UPSTREAM if name.startswith("$upstream_") and name.endswith("_time") else "")


def _apache(text: str) -> Iterator[str | Variable]:
    text = text.replace('\\"', '"').replace("\\t", "\t")
    end = 0
    for token in _APACHE_TOKEN.finditer(text):
        yield text[end : token.start()]
        end = token.end()
        yield "%" if token[0] == "%%" else _apache_variable(token[0], token[2], token[3])
    yield text[end:]


def _apache_variable(written: str, argument: str | None, letter: str) -> Variable:
    if argument is None:
        known = _APACHE.get(f"%{letter}", Variable(written))
        return known._replace(name=written)
    if letter == "i":
        name = argument.lower()
        return Variable(written, "host" if name == "host" else f"header:{name}")
    if letter == "C":
        return Variable(written, f"cookie:{argument}")
    if letter == "t":
        return _apache_time(written, argument)
    if letter == "T":
        return Variable(written, _APACHE_UNITS.get(argument, ""), _NUMBER)
    return Variable(written)  # also %{c}a, the address of the proxy


def _apache_time(written: str, argument: str) -> Variable:
    """Return the variable of `%{argument}t`. Apache logs the start of a request, unless the argument says `end:`."""
    ends = argument.startswith("end:")
    field, form = "end" if ends else "time", argument.removeprefix("end:").removeprefix("begin:")
    if form in ("sec", "msec", "usec"):
        return Variable(written, field, r"[0-9]++", epoch_time)
    if form in ("msec_frac", "usec_frac"):  # a part of a time that another variable has
        return Variable(written, "", r"[0-9]++")
    texts = [re.escape(text) for text in re.split("%[A-Za-z]", form)]
    return Variable(written, field, r"[A-Za-z0-9:/+.-]+?".join(texts), strftime_time(form))
