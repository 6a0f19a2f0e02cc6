"""`storage`, `reload`, `rules: {source: …}` and `observe`: where counters and rules are, and what a process reports."""

from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Items, Map, Node, Problems, Scalar
from ratelimit_mw.config.word import Section, Word, section_word
from ratelimit_mw.config.words.limit import MOST
from ratelimit_mw.errors import Invalid, quoted
from ratelimit_mw.settings import ObserveSettings, StorageSettings
from ratelimit_mw.stores import STORES, check_url

POLICIES = ("allow", "deny", "local")
"""The decisions that are possible while the store is unavailable."""


def read_url(node: Node) -> str:
    """Read a storage URL. Messages show only its scheme, because the rest may contain a password."""
    address = kinds.read_text(node)
    check_url(address)
    return address


def read_source_url(node: Node) -> str:
    """Read the URL of a rules database. It is a storage URL, but only a server can keep the rules."""
    address = read_url(node)
    scheme = address.partition(":")[0]
    if not STORES[scheme].server:
        raise Invalid(f"rules can't be in {scheme}://", "for example redis://localhost:6379/0")
    return address


STORAGE: Word[StorageSettings] = section_word(
    "storage",
    Section(
        "Storage",
        "Where the counters are.",
        (
            kinds.text("url", "The URL of the store, such as redis://localhost:6379/0.", "memory://", read_url),
            kinds.duration("timeout", "1ms", "1m", "100ms", "The time that one decision may wait for the store."),
            kinds.choice(
                "on_error", POLICIES, "allow", "The decision while the store is unavailable. A rule may have its own."
            ),
            kinds.number("max_counters", 1, MOST, 1_000_000, "The most counters in memory:// and lmdb://."),
            kinds.duration(
                "interval", "1ms", "1m", "1s", "How often a process synchronises its own decisions with the store."
            ),
            kinds.flag(
                "required",
                "Whether the first start of a server fails if the store is away, or if the file of lmdb:// cannot be"
                " used.",
            ),
        ),
        make=StorageSettings,
        example="for example {url: redis://localhost:6379/0}",
    ),
)


def names_service(tree: Map) -> bool:
    """Return True if `storage.url` names a service. The file then needs no rules."""
    storage = tree.get("storage")
    url = storage.get("url") if isinstance(storage, Map) else None
    kind = STORES.get(url.text.partition("://")[0]) if isinstance(url, Scalar) else None
    return kind is not None and kind.decides


def take_source(tree: Map, allowed: tuple[str, ...], problems: Problems) -> str | None:
    """Take the URL of `rules: {source: …}` out of a file, and leave an empty list of rules in its place.

    Args:
        tree: The file.
        allowed: The keys that a file with a source may have. All others are reported and removed.
        problems: Receives the errors.

    Returns:
        The URL. None if the rules are in the file itself.
    """
    rules = tree.get("rules")
    if not isinstance(rules, Map) or "source" not in rules.keys_at:
        return None
    for key, place in rules.keys_at.items():
        if key != "source":
            problems.add(place, f"unknown key {quoted(key)}", "rules are a list, or {source: redis://…}")
    source = problems.read(read_source_url, rules["source"], None) if "source" in rules else None
    tree["rules"] = Items(rules.place)
    for key, place in tree.keys_at.items():
        if key not in allowed:
            hint = f"this file may only have {', '.join(allowed)}"
            problems.add(place, f"the key {quoted(key)} must be in the rules at the source", hint)
            tree.pop(key, None)
    return source


def _read_reload(node: Node) -> float | None:
    """Read how often to look, in seconds. None for `off`."""
    if kinds.read_text(node) == "off":
        return None
    try:
        return kinds.seconds("100ms", "1h")(node)
    except Invalid as error:
        raise Invalid(str(error), f"{error.hint}, or off") from None


RELOAD: Word[float | None] = Word(
    key="reload",
    read=_read_reload,
    default=5.0,
    shown_default="5s",
    schema={**kinds.TEXT, "examples": ["5s", "1m", "off"]},
    about="How often the package checks for newer rules. off disables the check.",
)

OBSERVE: Word[ObserveSettings] = section_word(
    "observe",
    Section(
        "Observe",
        "What the log of denials and the live page have.",
        (
            kinds.number(
                "denials",
                0,
                10_000,
                ObserveSettings().denials,
                "The most records of denials in a minute for each rule and process. 0 writes none.",
            ),
            kinds.choice(
                "identity",
                ("key", "hashed", "none"),
                ObserveSettings().identity,
                "How a record, and the live page, name the client: as in the key of its counter, as a hash, or not at"
                " all.",
            ),
            kinds.flag(
                "live",
                "Report to the live page and to `top --watch` once a second. A process with a mounted page always"
                " does.",
            ),
        ),
        make=ObserveSettings,
        example="for example {denials: 10, identity: hashed}",
    ),
)
