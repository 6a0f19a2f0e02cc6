"""The kill switch turns all limits off or into shadow limits, through the environment or at run time."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.errors import ConfigurationError, Problem, near
from ratelimit_mw.logs import logger
from ratelimit_mw.model import SECOND, Charge
from ratelimit_mw.reload.controls import SWITCH_RECORD, SWITCH_WORDS, Setting, in_seconds, in_thread, key_of
from ratelimit_mw.reload.watcher import Retriever
from ratelimit_mw.rules.compiled import BLOCKED

SWITCH = "RATELIMIT_MW"
"""The environment variable: `off` admits all requests uncounted, `shadow` counts all requests and denies none."""

_MEANINGS = {
    "on": "the switch is on again: limits apply",
    "shadow": "the switch is at shadow: all requests are counted, none is denied",
    "off": "the switch is off: everything passes, uncounted",
}


_forced: Setting | None = None
"""The setting that applies instead of the setting of each switch. None outside of tests."""


def force(setting: Setting | None) -> Setting | None:
    """Let this setting apply instead of the setting of each switch, from its next `update` on. For tests.

    Returns the setting that applied so before. None is no setting.
    """
    global _forced
    before, _forced = _forced, setting
    return before


class KillSwitch:
    """The setting of the switch in this process.

    If `RATELIMIT_MW` is set when the object is made, that setting is final. Otherwise operators change it (`turn`).

    Args:
        clock: the clock by which a setting expires; None for the system's.

    Raises:
        ConfigurationError: the variable is neither `on`, `off` nor `shadow`.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        word = os.environ.get(SWITCH, "").strip().lower()
        if word not in ("", *SWITCH_WORDS):
            message = f"{SWITCH}={word!r} in the environment is not on, off or shadow"
            raise ConfigurationError([Problem(message, hint=near(word, SWITCH_WORDS))])
        self._clock = clock or SystemClock()
        self._fixed = bool(word)
        self._setting = Setting(word, source="environment") if word else Setting()
        self.thrown = False
        """Whether the switch is not `on`. Plans must then pass through `apply`."""
        self.update()

    def update(self) -> None:
        """Set `thrown` by the setting that applies."""
        self.thrown = (_forced or self._setting).word != "on"

    @property
    def setting(self) -> Setting:
        """The setting in force now."""
        setting = _forced or self._setting
        return setting if setting.lasts(self._clock.now() / SECOND) else Setting()

    def turn(self, setting: Setting) -> None:
        """Apply the setting of the operators, unless the environment has set the switch."""
        if not self._fixed and setting != self._setting:
            if setting.word != self._setting.word:
                logger.warning("%s%s", _MEANINGS[setting.word], _by(setting))
            self.thrown = (_forced or setting).word != "on"
            self._setting = setting  # last, so that an interrupted call is repeated in full

    @property
    def note(self) -> str:
        """The setting in words; empty if the switch is on."""
        setting = self.setting
        if setting.word == "on":
            return ""
        if self._fixed:
            return f"{SWITCH}={setting.word} is set"
        return f"{_MEANINGS[setting.word]}{_by(setting)}"

    def apply(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        """The charges of a plan under the current setting: none if it is off, shadow charges if it is at shadow."""
        word = self.setting.word
        if word == "on":  # the setting has expired
            return charges
        if word == "off" or charges is BLOCKED:
            return ()
        return [Charge(replace(rule, quota_group=""), ask._replace(shadow=True)) for rule, ask in charges]


def _by(setting: Setting) -> str:
    details = [part for part in (setting.author, setting.comment) if part]
    return f" ({': '.join(details)})" if details else ""


class Switch:
    """The switch that operators turn at run time, for all processes that share the storage.

    It applies to all domains of the configuration. If one of the domains is `off`, the whole process is off. The
    variable `RATELIMIT_MW` takes precedence in its process, even if it is `on`.
    """

    def __init__(self, retriever: Retriever, switch: KillSwitch, clock: Clock | None = None) -> None:
        self._retriever = retriever
        self._switch = switch
        self._clock = clock or SystemClock()

    @property
    def setting(self) -> Setting:
        """The setting in force in this process, as last read. Does not access the storage."""
        return self._switch.setting

    def kept(self) -> Setting:
        """The setting in the storage, whatever the environment says. Raises StoreUnavailable."""
        self._retriever.look_for_overrides()
        return self._retriever.setting

    def set(self, word: str, *, duration: str | float | None = None, comment: str = "", author: str = "") -> Setting:
        """Turn the switch. This process applies it at once, other processes within a second.

        Args:
            word: `off` (admit all requests, uncounted), `shadow` (count all, deny none) or `on`.
            duration: how long the setting holds, in seconds or as text ("2h"); None for until it is turned again.
            comment: why it was turned; shown in logs.
            author: who turned it; shown in logs.

        Raises:
            ValueError: an unknown word, or `on` with a duration.
            StoreUnavailable: the setting could not be written.
        """
        if word not in SWITCH_WORDS:
            raise ValueError(f"the switch can be on, off or shadow, not {word!r}")
        if word == "on" and duration is not None:
            raise ValueError("on takes no duration: give off or shadow a duration instead")
        until = None if duration is None else self._clock.now() / SECOND + in_seconds(duration)
        setting = Setting(word, until, comment, author, time.time())
        records = self._retriever.controls.records
        for part in self._retriever.rules.parts:
            if word == "on":
                records.write(key_of(part.domain), {}, [SWITCH_RECORD])
            else:
                records.write(key_of(part.domain), {SWITCH_RECORD: setting.text()})
        return self.kept()

    aset, akept = in_thread(set), in_thread(kept)  # noqa: A003  the method is meant
