"""The kill switch: rate limiting turned off, or made to deny nothing, from outside the app."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.model import SECOND, Charge
from ratelimit_mw.rules.overrides import BLOCKED
from ratelimit_mw.sources.setting import WORDS, Setting

_log = logging.getLogger("ratelimit_mw")

SWITCH = "RATELIMIT_MW"
"""Its name in the environment: `off` lets everything pass uncounted, `shadow` counts and denies nothing."""

_MEANINGS = {
    "on": "the switch is on again: limits hold",
    "shadow": "the switch is at shadow: all is counted, and nothing denied",
    "off": "the switch is off: everything passes, uncounted",
}


class KillSwitch:
    """The switch as the environment has it when this is made, else as operators `turn` it.

    Raises ConfigurationError for a word that is none.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        word = os.environ.get(SWITCH, "").strip().lower()
        if word not in ("", *WORDS):
            raise ConfigurationError([Problem(f"{SWITCH}={word!r} in the environment is not off or shadow")])
        self._clock = clock or SystemClock()
        self._fixed = bool(word)
        self._setting = Setting(word, source="environment") if word else Setting()
        self.thrown = word in WORDS[1:]
        """Whether plans have to be shown to it at all."""

    @property
    def setting(self) -> Setting:
        """What holds now."""
        setting = self._setting
        return setting if setting.lasts(self._clock.now() / SECOND) else Setting()

    def turn(self, setting: Setting) -> None:
        """Do what operators say, where the environment says nothing."""
        if not self._fixed and setting != self._setting:
            if setting.word != self._setting.word:
                _log.warning("%s%s", _MEANINGS[setting.word], _by(setting))
            self.thrown = setting.word != "on"
            self._setting = setting  # last: a thread that is interrupted before turns it again

    @property
    def note(self) -> str:
        """What there is to say of it to people; nothing where it is on."""
        setting = self.setting
        if setting.word == "on":
            return ""
        if self._fixed:
            return f"{SWITCH}={setting.word} is set"
        return f"{_MEANINGS[setting.word]}{_by(setting)}"

    def left(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        """What is left of a plan once the switch is thrown."""
        word = self.setting.word
        if word == "on":  # it has ended
            return charges
        if word == "off" or charges is BLOCKED:
            return ()
        return [Charge(replace(rule, quota=""), ask._replace(shadow=True)) for rule, ask in charges]


def _by(setting: Setting) -> str:
    said = [part for part in (setting.author, setting.comment) if part]
    return f" ({': '.join(said)})" if said else ""
