"""`observe`: what the log of denials has."""

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
    "How a record names the client: as in the key of its counter, as a hash, or not at all.",
)

OBSERVE = section_word(
    "observe",
    Section("Observe", "What the log of denials has.", (_DENIALS, _IDENTITY)),
    example="for example {denials: 10, identity: hashed}",
)


def observe_settings(file: Values) -> ObserveSettings:
    """Return the settings of the section `observe`."""
    observe = file[OBSERVE]
    return ObserveSettings(denials=observe[_DENIALS], identity=observe[_IDENTITY])
