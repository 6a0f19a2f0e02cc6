"""What operators have set the switch to, as it is kept: beside a domain's overrides, whose version counts it."""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

NAME = "switch"
"""What it is kept under. An override's name has a blank in it."""

WORDS = ("on", "shadow", "off")
"""From the strictest on: limits hold; all is counted and nothing denied; everything passes, uncounted."""


class Setting(NamedTuple):
    """What the switch is set to. `until` and `at`, when that was, are epoch seconds; None is for good.

    `source` says who has: "environment", or where operators keep it; empty where nobody has.
    """

    word: str = "on"
    until: float | None = None
    comment: str = ""
    author: str = ""
    at: float = 0.0
    source: str = ""

    def text(self) -> str:
        """What is kept."""
        kept = self._asdict()
        del kept["source"]
        return json.dumps(kept, ensure_ascii=False)

    def lasts(self, now: float) -> bool:
        """Whether it has not ended by `now`, epoch seconds."""
        return self.until is None or now < self.until


def kept_in(texts: Mapping[str, str], source: str) -> Setting:
    """The setting among the records of a domain; on, where there is none that can be read."""
    try:
        setting = Setting(**{**json.loads(texts.get(NAME, "{}")), "source": source})
        until = setting.until if setting.until is None else float(setting.until)
    except (TypeError, ValueError):
        return Setting()
    return setting._replace(until=until) if setting.word in WORDS[1:] else Setting()


def strongest(settings: Iterable[Setting], now: float) -> Setting:
    """What holds for a process with several domains: what lets most pass of all that has not ended by `now`."""
    standing = [setting for setting in settings if setting.lasts(now)]
    return max(standing, key=lambda setting: WORDS.index(setting.word), default=Setting())
