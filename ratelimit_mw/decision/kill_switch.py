"""The kill switch: everything off, or everything in shadow; by the environment, or at run time."""

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.model import SECOND, Charge
from ratelimit_mw.reload.controls import key_of
from ratelimit_mw.reload.database import NAME, WORDS, Setting
from ratelimit_mw.reload.override_list import in_seconds
from ratelimit_mw.reload.watcher import Retriever
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.stores.records import Records

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
        return [Charge(replace(rule, quota_group=""), ask._replace(shadow=True)) for rule, ask in charges]


def _by(setting: Setting) -> str:
    said = [part for part in (setting.author, setting.comment) if part]
    return f" ({': '.join(said)})" if said else ""


class Switch:
    """The switch that operators turn at run time, in every process that shares the storage.

    Of a configuration with several domains, all are switched; a process in which one of its domains is `off` is off as
    a whole. `RATELIMIT_MW` in a process's environment wins there, `on` included.
    """

    def __init__(self, retriever: Retriever, switch: KillSwitch, clock: Clock | None = None) -> None:
        self._retriever = retriever
        self._switch = switch
        self._clock = clock or SystemClock()

    @property
    def records(self) -> Records:
        """Where it is kept."""
        return self._retriever.records

    @property
    def setting(self) -> Setting:
        """What holds in this process now, as last heard; nothing is asked."""
        return self._switch.setting

    def kept(self) -> Setting:
        """What operators have set it to, asked of the storage; whatever the environment says. StoreUnavailable."""
        self._retriever.look_for_overrides()
        return self._retriever.setting

    def set(self, word: str, *, duration: str | float | None = None, comment: str = "", author: str = "") -> Setting:
        """Turn it `off` (everything passes, uncounted), to `shadow` (all is counted, nothing denied) or `on`.

        It holds for `duration`, seconds or as "2h", or until it is turned again; here at once, and in other processes
        within a second. Raises ValueError for what can't be, and StoreUnavailable.
        """
        if word not in WORDS:
            raise ValueError(f"the switch can be on, off or shadow, not {word!r}")
        if word == "on" and duration is not None:
            raise ValueError("on is for good: say when off or shadow ends instead")
        until = None if duration is None else self._clock.now() / SECOND + in_seconds(duration)
        setting = Setting(word, until, comment, author, time.time())
        for part in self._retriever.rules.parts:
            if word == "on":
                self.records.write(key_of(part.domain), {}, [NAME])
            else:
                self.records.write(key_of(part.domain), {NAME: setting.text()})
        return self.kept()

    async def aset(
        self, word: str, *, duration: str | float | None = None, comment: str = "", author: str = ""
    ) -> Setting:
        """The awaitable twin of `set`."""
        return await asyncio.to_thread(self.set, word, duration=duration, comment=comment, author=author)

    async def akept(self) -> Setting:
        """The awaitable twin of `kept`."""
        return await asyncio.to_thread(self.kept)
