"""`shadow` and `on_error`: whether a rule is enforced, and what holds while the store is unavailable."""

from typing import Literal

from ratelimit_mw.config import kinds
from ratelimit_mw.config.word import Word
from ratelimit_mw.config.words.storage import POLICIES, STORAGE, STORAGE_ON_ERROR

SHADOW: Word[bool] = kinds.flag(
    "shadow",
    "The rule is counted and reported, and never enforced.",
    compared=True,
    fields=lambda rule, file: {"shadow": rule[SHADOW] or file[SHADOW_FILE]},
)

SHADOW_FILE: Word[bool] = kinds.flag(
    "shadow", "Nothing in this file is enforced: every rule is counted and reported only."
)

ON_ERROR: Word[Literal["allow", "deny", "local"] | None] = kinds.choice(
    "on_error",
    POLICIES,
    None,
    "What holds while the store is unavailable; that of storage, if it is not set.",
    compared=True,
    fields=lambda rule, file: {"on_error": rule[ON_ERROR] or file[STORAGE][STORAGE_ON_ERROR]},
)
