"""Finds the format of a log: the one that `--format` names, or the one that its first lines have."""

import re
from collections.abc import Mapping, Sequence

from ratelimit_mw.foresight.logs.entry import TIMES, LogEntry, Unreadable, is_private
from ratelimit_mw.foresight.logs.patterns import PatternFormat
from ratelimit_mw.foresight.logs.structured import (
    FIELDS_LINE,
    PRODUCTS,
    NamedFormat,
    Places,
    columns_of,
    csv_places,
    delimiter_of,
    looks_like_json,
    product_of,
    w3c_places,
)
from ratelimit_mw.identity.address import canonical

_COMBINED = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"'
)

NAMED = {
    "combined": _COMBINED,
    "common": '%h %l %u %t "%r" %>s %b',
    "main": f'{_COMBINED} "$http_x_forwarded_for"',
    "vhost_combined": '%V:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i"',
    "uvicorn": '[$time_local] $remote_addr:$remote_port - "$request" $status',
    "ingress-nginx": f"{_COMBINED} $request_length $request_time [$proxy_upstream_name] [$proxy_alternative]",
    "traefik": f'{_COMBINED.replace("$time_local", "$begin_local")} $number "$router" "$server" ${{milliseconds}}ms',
    "haproxy": "$syslog$remote_addr:$remote_port [$begin_haproxy] $frontend $backend $phases$milliseconds $status "
    '$sent $cookie $set_cookie $ended $connections $queues$captured "$request"',
    "envoy": '[$begin_iso8601] "$request" $status $flags $received $sent $milliseconds $upstream "$forwarded_for" '
    '"$http_user_agent" "$request_id" "$host" "$upstream_host"',
    "istio": '[$begin_iso8601] "$request" $status $flags $details $terminated "$failure" $received $sent $milliseconds '
    '$upstream "$forwarded_for" "$http_user_agent" "$request_id" "$host" "$upstream_host" $cluster $outgoing $local '
    "$remote $server_name $route",
    "alb": "$type $time_iso8601 $elb $remote_addr:$remote_port $target $before $during $after $status $target_status "
    '$received $sent "$request" "$http_user_agent"',
}
"""The formats with a name. `combined` is that of nginx, Apache, gunicorn and many others. `main` is in nginx's own
configuration file, `vhost_combined` in Debian's of Apache. `uvicorn` is what `UVICORN` configures. The others are those
that proxies and load balancers write if they are not told otherwise."""

WORDS = ("auto", *NAMED, "json", "csv", "w3c")
"""What `--format` takes. Any other text is a format with variables."""

_DETECTED = (
    *("ingress-nginx", "traefik", "alb", "istio", "envoy", "haproxy"),
    *("main", "vhost_combined", "combined", "common", "uvicorn"),
)
"""The order in which formats are tried: those with more fields first."""

_UVICORN_LINE = re.compile(r'\w+: +\S+ - "[A-Z]+ \S+ HTTP/[0-9.]+" [0-9]{3} .*')

UVICORN = """\
{"version": 1, "disable_existing_loggers": false,
 "formatters": {"access": {"format": "[%(asctime)s] %(message)s", "datefmt": "%d/%b/%Y:%H:%M:%S %z"}},
 "handlers": {"access": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "access"}},
 "loggers": {"uvicorn.access": {"level": "INFO", "handlers": ["access"], "propagate": false}}}"""
"""A `--log-config` for uvicorn: its access log with the time."""


LineFormat = PatternFormat | NamedFormat


class UnusableLog(ValueError):
    """A log cannot be used: its format is not known, or it has too little or too much for what is asked.

    Args:
        message: What is wrong, for the user.
        usage: True if the arguments are wrong, not the log.
    """

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


def find_format(wanted: str, sample: Sequence[str], places: Mapping[str, str], *, lenient: bool = False) -> LineFormat:
    """Return the format of a log.

    Args:
        wanted: A word of `WORDS`, or a format with variables.
        sample: The first lines of the log, at most 1 000.
        places: Where further fields are, by their names: `--field`.
        lenient: Leave out of the sample what is not like most of it.

    Raises:
        UnusableLog: At least 90 % of the sample must be in the format, and no known format has so many.
    """
    lines = [line for line in sample if line and not line.isspace()]
    if not lines:
        raise UnusableLog("the log is empty, or its lines are longer than 1 MiB")
    try:
        if wanted == "auto":
            return _detected(_alike(lines) if lenient else lines, places)
        return _named(wanted, lines, places)
    except UnusableLog:
        raise
    except ValueError as error:
        raise UnusableLog(f"--format: {error}", usage=True) from error


def _alike(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines that are JSON, or in the format with a name that most lines have. All lines if these are few."""
    found = [[line for line in lines if line.lstrip().startswith("{")]]
    found += [list(filter(PatternFormat(name, NAMED[name]).fits, lines)) for name in _DETECTED]
    most = max(found, key=len)
    return most if 10 * len(most) >= len(lines) else lines


def _named(wanted: str, lines: Sequence[str], places: Mapping[str, str]) -> LineFormat:
    if wanted == "json":
        return _json(lines, places)
    if wanted == "csv":
        return _csv(lines[0], places)
    if wanted == "w3c":
        return _w3c(lines, places)
    if wanted in NAMED:
        return PatternFormat(wanted, NAMED[wanted], places)
    if "$" not in wanted and "%" not in wanted:
        words = ", ".join(WORDS)
        raise UnusableLog(f"--format: {wanted!r} is neither one of {words} nor a format with variables", usage=True)
    return PatternFormat("the given format", wanted, places)


def _detected(lines: Sequence[str], places: Mapping[str, str]) -> LineFormat:
    if looks_like_json(lines):
        return _json(lines, places)
    if any(line.startswith(FIELDS_LINE) for line in lines):
        return _w3c(lines, places)
    doubt = ""
    for name in _DETECTED:
        if _fits(PatternFormat(name, NAMED[name]), lines):
            form = PatternFormat(name, NAMED[name], places)
            found = _not_an_address(form, lines)
            if found is None:
                return form
            doubt = doubt or (
                f"the lines look like {name!r}, but have {found!r:.80} in place of an address ({form.place('ip')}). "
            )
    if sum(1 for line in lines if _UVICORN_LINE.fullmatch(line.strip())) * 2 > len(lines):
        raise UnusableLog(
            "this is uvicorn's default format, whose lines have no time. Save this as log.json, start uvicorn with "
            f"--log-config log.json, and replay what it writes from then on:\n{UVICORN}"
        )
    columns = csv_places(columns_of(lines[0], delimiter_of(lines[0])))
    if len(lines) > 1 and _usable(columns):
        return _csv(lines[0], places)
    raise UnusableLog(
        f"the format of the log is unknown: {doubt}Set --format to the log_format of nginx or the LogFormat of Apache. "
        f"The first line is: {lines[0].strip():.200}"
    )


def read_sample(form: LineFormat, lines: Sequence[str], wanted: Sequence[str] = ()) -> list[LogEntry]:
    """Return the requests of the first lines of a log."""
    text = "".join(f"{line.rstrip(chr(10))}\n" for line in lines)
    return form.reader(wanted, Unreadable()).read(text.encode("utf-8", "replace"))


def _not_an_address(form: LineFormat, lines: Sequence[str]) -> str | None:
    """Return what stands in place of an address, if this is more than a tenth of the lines, otherwise None."""
    ips = [entry.ip for entry in read_sample(form, lines)]
    strange = [ip for ip in ips if canonical(ip) is None] if form.has("ip") else []
    return strange[0] if 10 * len(strange) > len(ips) else None


_FORWARDED = "header:x-forwarded-for"


def proxied(form: LineFormat, sample: Sequence[str]) -> str:
    """Return a sentence if all lines have the address of one proxy, and that of the client beside it. Otherwise "".

    Args:
        form: The format of the lines.
        sample: The first lines of a log.
    """
    entries = read_sample(form, sample, (_FORWARDED,)) if form.has("ip") and form.has(_FORWARDED) else []
    if len({entry.ip for entry in entries}) != 1 or not is_private(entries[0].ip):
        return ""
    if not any(canonical((entry.extra[0] or "").rpartition(",")[2]) for entry in entries):
        return ""
    place = form.place(_FORWARDED)
    return (
        f"all of the first lines have the private address {entries[0].ip}, which is that of a proxy. `--field "
        f"ip={place.lstrip('$')}` takes the address that it forwards, and `trusted_proxies` in the rules does so, too"
    )


def _fits(form: LineFormat, lines: Sequence[str]) -> bool:
    return 10 * sum(map(form.fits, lines)) >= 9 * len(lines)


def _usable(places: Mapping[str, object]) -> bool:
    """Return True if these fields have the time and the target of a request."""
    return not places.keys().isdisjoint(TIMES) and not places.keys().isdisjoint(("request", "target", "path"))


def _merged(known: Places, given: Mapping[str, str], problem: str) -> Places:
    """Return where fields are: where they are given, or else known. Raises UnusableLog if they are too few."""
    timed = not given.keys().isdisjoint(TIMES)
    places = {field: names for field, names in known.items() if not (timed and field in TIMES)}
    places |= {field: (place,) for field, place in given.items()}
    if not _usable(places):
        raise UnusableLog(problem)
    return places


def _json(lines: Sequence[str], places: Mapping[str, str]) -> LineFormat:
    product = product_of(lines)
    merged = _merged(
        PRODUCTS[product] if product else {},
        places,
        f"the lines are JSON, but not that of {', '.join(PRODUCTS)}: say where the fields are, with --field time=NAME "
        f"--field ip=NAME --field method=NAME --field target=NAME. The first line is: {lines[0].strip():.200}",
    )
    form = NamedFormat(f"json ({product})" if product else "json", merged)
    if not _fits(form, lines):
        raise UnusableLog(
            "fewer than 90 % of the first lines have the time and the request where --field says. "
            f"The first line is: {lines[0].strip():.200}"
        )
    return form


def _w3c(lines: Sequence[str], places: Mapping[str, str]) -> LineFormat:
    header = next((line for line in lines if line.startswith(FIELDS_LINE)), "")
    merged = _merged(
        w3c_places(header.removeprefix(FIELDS_LINE).split()),
        places,
        "the line `#Fields:` of this log, if it has one, does not name the time and the request (date, time and "
        f"cs-uri-stem). The first line is: {lines[0].strip():.200}",
    )
    return NamedFormat("w3c", merged, commented=True)


def _csv(header: str, places: Mapping[str, str]) -> LineFormat:
    delimiter = delimiter_of(header)
    columns = columns_of(header, delimiter)
    unknown = [place for place in places.values() if place not in columns and not place.isdigit()]
    if unknown:
        raise UnusableLog(f"--field: unknown column {unknown[0]!r}; the columns are {', '.join(columns)}", usage=True)
    merged = _merged(
        csv_places(columns),
        places,
        "no column is known to have the time, or the request: say where they are, with --field time=COLUMN "
        f"--field ip=COLUMN --field target=COLUMN. The columns are {', '.join(columns)}",
    )
    return NamedFormat("csv", merged, delimiter)
