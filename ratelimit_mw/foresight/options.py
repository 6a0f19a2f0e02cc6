"""The options of a replay."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ratelimit_mw.foresight.outcome import Denial

Config = str | os.PathLike[str] | Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to replay.

    Attributes:
        logs: The paths of the logs; "-" is standard input.
        rules: The rules.
        against: The rules to compare with. None: nothing is compared.
        form: The format of the logs, see `find_format`.
        places: Where fields are in the logs, by their names.
        since: The first time that is replayed, in microseconds since the epoch.
        until: The end: requests from this time on are not replayed.
        match: The template of the paths that are replayed. "" for all paths.
        disorder: The seconds by which a line may be behind the lines before it.
        spread: Distribute the requests of a second over it.
        hashed: Show clients only as hashes.
        what_if: The name of the only rule to make what-if curves of. If its decisions may be coupled with others, it is
            replayed at further limits, which takes up to eight times as long. None: the curves of all rules that can be
            calculated.
        on_denial: Is called with each denial.
        on_progress: Is called after each part of a log, with the numbers of lines and of bytes that were read so far.
    """

    logs: Sequence[str]
    rules: Config
    against: Config | None = None
    form: str = "auto"
    places: Mapping[str, str] = field(default_factory=dict)
    since: int = 0
    until: int | None = None
    match: str = ""
    disorder: int = 60
    spread: bool = False
    hashed: bool = False
    what_if: str | None = None
    on_denial: Callable[[Denial], None] | None = None
    on_progress: Callable[[int, int], None] | None = None
