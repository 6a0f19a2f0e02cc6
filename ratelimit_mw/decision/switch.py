"""The switch as an operator handles it: what it is set to, and another setting."""

import asyncio
import time

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.decision.kill_switch import KillSwitch
from ratelimit_mw.model import SECOND
from ratelimit_mw.sources.override import key_of
from ratelimit_mw.sources.override_list import in_seconds
from ratelimit_mw.sources.retriever import Retriever
from ratelimit_mw.sources.setting import NAME, WORDS, Setting
from ratelimit_mw.stores.records import Records


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
