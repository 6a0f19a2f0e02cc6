"""Hints for messages: the valid word that is nearest to a mistyped one, and how a text is quoted."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

_OTHER_NAMES = {
    **dict.fromkeys(("rate", "rate_limit", "quota"), "limit"),
    **dict.fromkeys(("key", "identifier", "key_func"), "by"),
    **dict.fromkeys(("address", "client_ip", "ip_address", "remote_addr"), "ip"),
    **dict.fromkeys(("exclude", "skip", "whitelist", "allowlist"), "exempt"),
}
"""What other limiters call a word of ours."""


def near(word: str, valid: Iterable[str], other_names: Mapping[str, str] = _OTHER_NAMES) -> str:
    """The hint for a mistyped `word`: the valid one that is near to it or means the same; "" where there is none.

    `other_names` maps what other limiters call a thing to our word for it.
    """
    spelled = {choice.lower(): choice for choice in valid}
    meant = other_names.get(word.lower().replace("-", "_"), "")
    found = [choice for choice in spelled if choice == meant or sorted(choice) == sorted(word.lower())]
    found = found or get_close_matches(word.lower(), spelled, n=1, cutoff=0.67)
    return f"did you mean '{spelled[found[0]]}'?" if found else ""


def nearest(word: str, valid: Iterable[str]) -> str:
    """As `near`, but all the valid words where none is near."""
    choices = list(valid)
    return near(word, choices) or f"known: {', '.join(choices)}"


def quoted(text: str, longest: int = 60) -> str:
    """`text` as a message shows it: in quotes, cut short, control characters escaped."""
    return repr(text if len(text) <= longest else text[: longest - 1] + "…")
