"""The hints for what users of other limiters write: their keys, and limits such as "5r/s" or "100 requests per minute".

Such a key or text is an error. The hint is the same in the notation of a rules file.
"""

import re

from ratelimit_mw.units import SHORT_UNITS, UNITS

_TOGETHER = "write the number and the time in one text, for example limit: 100 per minute"
_DOMAIN = "the domain is the first part of every key"

_KEYS: tuple[tuple[str, str, str], ...] = (
    ("", "enabled ratelimit_enabled", "to disable all rules, start the app with RATELIMIT_MW=off"),
    ("", "strategy ratelimit_strategy", "each rule has its algorithm"),
    ("", "headers_enabled ratelimit_headers_enabled", "write response: {headers: […]}"),
    ("", "key_prefix ratelimit_key_prefix prefix", _DOMAIN),
    ("storage", "type host port db password", "write them as url: redis://:password@host:6379/0"),
    ("storage", "prefix key_prefix", _DOMAIN),
    ("storage", "uri redis redis_url storage_uri", "did you mean 'url'?"),
    ("client", "ip", "write the header as ip_header, for example X-Forwarded-For, and your proxies as trusted_proxies"),
    ("rules", "max requests average capacity window windowms window_ms period per interval", _TOGETHER),
    ("rules", "duration unit second minute hour day", _TOGETHER),
    ("rules", "url uri route endpoint location", "write the path under match, for example match: {path: /login}"),
    ("rules", "method", "write the methods under match, for example match: {methods: [POST]}"),
    (
        "rules",
        "nodelay delay",
        "a token_bucket admits its burst at once, a leaky_bucket spreads it: write one of them as algorithm",
    ),
    (
        "rules",
        "enabled disabled skip dry_run block",
        "a rule is always enforced, unless it has shadow: true; to disable it, remove it",
    ),
    ("rules", "error_message", "write it under response, for example response: {message: Slow down}"),
    (
        "rules",
        "exempt exclude whitelist allowlist",
        "it belongs to the file, not to a rule: write exempt: [{path: /health}] beside rules",
    ),
)
"""The section, keys of other limiters, and the hint."""

_HINTS = {(section, key): hint for section, keys, hint in _KEYS for key in keys.split()}


def key_elsewhere(key: str, section: str) -> str:
    """Return the hint for a key that other limiters have in `section` ("" is the file). "" if there is none."""
    return _HINTS.get((section, key.lower()), "")


# 5r/s, 100 requests per minute, 100 a minute
_NEARLY = re.compile(
    r"([0-9]{1,9})\s*(?:r|reqs?|requests?|hits?|calls?|times?)?\s*(?:per|/|an?\b|every|each|in)"
    r"\s*([0-9]{1,9}\s*)?([a-z]+)\s*",
    re.IGNORECASE,
)
_RPS = re.compile(r"([0-9])\s*rp([smhd])\b", re.IGNORECASE)
_NEARLY_CONCURRENT = re.compile(r"([0-9]{1,9})\s*con?c+ur+[ea]nt(?:ly|s)?\b\s*(?:requests?\b\s*)?", re.IGNORECASE)
# What people write after a limit, instead of the key `by`: 100 per minute per ip.
_BY = {"ip": "ip", "client": "ip", "address": "ip", "user": "user", "host": "host", "path": "path", "method": "method"}
_WHOSE = re.compile(rf"(?:per|by|for|from|/)\s*(?:(?:an?|each|every)\s+)?({'|'.join(_BY)})\b\s*", re.IGNORECASE)
_BETWEEN = re.compile(r"(?:and\b|[;,|&+\s])*", re.IGNORECASE)


def correction(text: str) -> str:
    """Return the hint for a text that is similar to one or several limits. "" if it is not.

    The hint repeats all of the text: a user who follows it must not lose one of two limits.
    """
    limits: list[str] = []
    whose: set[str] = set()
    text = _RPS.sub(r"\1 per \2", text)
    position = _between(text, 0)
    while position < len(text):
        found = _NEARLY.match(text, position) or _NEARLY_CONCURRENT.match(text, position)
        if found is None:
            return ""
        if found.re is _NEARLY_CONCURRENT:
            limits.append(f"{found[1]} concurrent")
        elif _is_unit(found[3]):
            limits.append(f"{found[1]} per {found[2] or ''}{found[3]}")
        else:
            return ""
        owner = _WHOSE.match(text, found.end())
        if owner is not None:
            whose.add(_BY[owner[1].lower()])
        position = _between(text, (owner or found).end())
    if not limits or len(whose) > 1:
        return ""
    by = "".join(f", and by: {name}" for name in whose)
    return f"did you mean '{'; '.join(limits)}'{by}?"


def _between(text: str, position: int) -> int:
    """Return the position of the next limit in `text`."""
    separators = _BETWEEN.match(text, position)
    return separators.end() if separators is not None else position


def _is_unit(word: str) -> bool:
    return word.lower() in SHORT_UNITS or word.lower().removesuffix("s") in UNITS
