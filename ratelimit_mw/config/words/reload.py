"""`reload` and `rules: {source: …}`: how often newer rules are looked for, and where they are if not in the file."""

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Invalid, Items, Map, Problems
from ratelimit_mw.config.word import Word
from ratelimit_mw.config.words.storage import read_source_url
from ratelimit_mw.hints import quoted
from ratelimit_mw.units import SECOND


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
