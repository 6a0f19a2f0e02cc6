"""`storage` and `on_error`: where the counters live; `reload` and `rules: {source: …}`: where rules come from."""

from typing import Literal

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Invalid, Items, Map, Node, Problems
from ratelimit_mw.config.word import Section, Values, Word, section_word
from ratelimit_mw.config.words.limit import MOST
from ratelimit_mw.errors import nearest, quoted
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import SCHEMES
from ratelimit_mw.units import SECOND

POLICIES = ("allow", "deny", "local")
"""What may hold while the store is unavailable."""


def read_url(node: Node) -> str:
    """A storage URL. Messages show no more than its scheme, for the rest may hold a password."""
    address = readers.text(node)
    scheme, separator, _ = address.partition("://")
    if not separator:
        raise Invalid.at(None, "this is no storage URL", "as memory:// or redis://localhost:6379/0")
    if scheme not in SCHEMES:
        meant = scheme.replace("rediss+", "redis+")
        hint = f"for TLS say {meant}://…?tls=true" if meant in SCHEMES else nearest(scheme, SCHEMES)
        raise Invalid.at(None, f"there is no storage {quoted(scheme)}", hint)
    return address


def read_source_url(node: Node) -> str:
    """The URL of a rules database: that of a storage which processes share."""
    address = read_url(node)
    if address.startswith("memory:"):
        raise Invalid.at(None, "rules come from a Redis, not from memory://", "as redis://localhost:6379/0")
    return address


def storage_settings(file: Values) -> StorageSettings:
    """The settings of the section."""
    storage = file[STORAGE]
    return StorageSettings(
        url=storage[_URL],
        timeout=storage[_TIMEOUT] / SECOND,
        on_error=storage[STORAGE_ON_ERROR],
        max_counters=storage[_MAX_COUNTERS],
        interval=storage[_INTERVAL] / SECOND,
    )


_URL = kinds.text("url", "Which store: its address, as redis://localhost:6379/0.", "memory://", read_url)
_TIMEOUT = kinds.duration("timeout", "1ms", "1m", "100ms", "The time that one decision may wait for the store.")
STORAGE_ON_ERROR: Word[Literal["allow", "deny", "local"]] = kinds.choice(
    "on_error", POLICIES, "allow", "What holds while the store is unavailable; a rule may say otherwise."
)
_MAX_COUNTERS = kinds.number("max_counters", 1, MOST, 1_000_000, "How many counters memory:// holds at most.")
_INTERVAL = kinds.duration(
    "interval", "1ms", "1m", "1s", "How often a process settles with the store what it decided by itself."
)

STORAGE = section_word(
    "storage",
    Section("Storage", "Where the counters live.", (_URL, _TIMEOUT, STORAGE_ON_ERROR, _MAX_COUNTERS, _INTERVAL)),
    example="as {url: redis://localhost:6379/0}",
)


def take_source(tree: Map, beside: tuple[str, ...], problems: Problems) -> str | None:
    """The URL in `rules: {source: …}`, which is replaced by no rules; None where the rules are in the file.

    Beside a source only the sections in `beside` may stand.
    """
    rules = tree.get("rules")
    if not isinstance(rules, Map) or "source" not in rules.keys_at:
        return None
    source: str | None = None
    for key, place in rules.keys_at.items():
        if key != "source":
            problems.add(place, f"unknown key {quoted(key)}", "rules are a list, or {source: redis://…}")
    if "source" in rules:
        try:
            source = read_source_url(rules["source"])
        except Invalid as invalid:
            problems.add_all(invalid, rules["source"].place)
    tree["rules"] = Items(rules.place)
    for key, place in tree.keys_at.items():
        if key not in beside:
            hint = f"here stand {', '.join(beside[:-1])}"
            problems.add(place, f"{quoted(key)} belongs to the rules at the source", hint)
            tree.pop(key, None)
    return source


def seconds(interval: int | None) -> float | None:
    """The interval in seconds; None for never."""
    return None if interval is None else interval / SECOND


RELOAD: Word[int | None] = Word(
    key="reload",
    read=readers.duration("100ms", "1h", off=True, example="5s, 1m"),
    default=5 * SECOND,
    shown_default="5s",
    schema={**kinds.TEXT, "examples": ["5s", "1m", "off"]},
    about="How often newer rules are looked for; off for never.",
)
