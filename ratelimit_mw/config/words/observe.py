"""`observe`: what the log of denials has, and whether a process reports to the live page."""

from typing import Literal

from ratelimit_mw.config import kinds
from ratelimit_mw.config.word import Section, Values, Word, section_word
from ratelimit_mw.settings import ObserveSettings

_MOST = 10_000

_DENIALS = kinds.number(
    "denials",
    0,
    _MOST,
    ObserveSettings().denials,
    "The most records of denials in a minute for each rule and process. 0 writes none.",
)
_IDENTITY: Word[Literal["key", "hashed", "none"]] = kinds.choice(
    "identity",
    ("key", "hashed", "none"),
    ObserveSettings().identity,
    "How a record, and the live page, name the client: as in the key of its counter, as a hash, or not at all.",
)
_LIVE = kinds.flag(
    "live",
    "Report to the live page and to `top --watch` once a second. A process with a mounted page always does.",
)

OBSERVE = section_word(
    "observe",
    Section("Observe", "What the log of denials and the live page have.", (_DENIALS, _IDENTITY, _LIVE)),
    example="for example {denials: 10, identity: hashed}",
)


def observe_settings(file: Values) -> ObserveSettings:
    """Return the settings of the section `observe`."""
    observe = file[OBSERVE]
    return ObserveSettings(denials=observe[_DENIALS], identity=observe[_IDENTITY], live=observe[_LIVE])
