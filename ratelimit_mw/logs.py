"""The logger of the package, which lines are logged, and the name in front of lines that no handler formats.

Servers such as uvicorn and gunicorn configure their own loggers only. Python then prints the warnings of all other
loggers to stderr, without their name (`logging.lastResort`). A reader could not tell that such a line is about rate
limits. So each line gets the name of its logger, but only if the app has no handler for the record: handlers get the
message unchanged, because their format has the name.

Importing this module does so. It adds no handler, and sets no level. It is internal: its names may change in any
release.
"""

import logging
from collections.abc import Callable, Hashable
from typing import Any

from ratelimit_mw.model import SECOND
from ratelimit_mw.process_local import lazy, lock

logger = logging.getLogger("ratelimit_mw")
"""The logger of the package."""

_MINUTE = 60 * SECOND

_MAX_SUBJECTS = 1_000
"""The most subjects whose lines are counted. Reloads may bring new names of rules for ever."""


class LineLimit:
    """Limits the lines about one subject, such as a rule, to so many in a minute. No client can flood the log then.

    Threads may share it. The child of a fork counts from 0.
    """

    _counting = lazy(lock)
    _counts = lazy(dict[str, list[int]])  # the start of the minute, and the lines since then

    def omitted(self, subject: str, most: int, now: int) -> int | None:
        """Count a line. Return how many lines were omitted since the last one, or None if this one is omitted, too.

        Args:
            subject: What the line is about.
            most: The most lines in a minute.
            now: The time in microseconds.
        """
        count = self._counts.get(subject)
        if count is not None and count[1] >= most and abs(now - count[0]) < _MINUTE:
            count[1] += 1  # without the lock, as in `ratelimit_mw.tally`
            return None
        with self._counting:
            began, number = self._counts.get(subject, (now, 0))
            omitted = 0
            if abs(now - began) >= _MINUTE:
                began, omitted, number = now, max(number - most, 0), 0
            if number == 0 and len(self._counts) >= _MAX_SUBJECTS:
                self._counts.clear()
            self._counts[subject] = [began, number + 1]
        return omitted if number < most else None

    def reset(self) -> None:
        """Allow the next lines as if there were none before."""
        with self._counting:
            self._counts.clear()


class Once:
    """Logs each message once. Threads may share it."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, Hashable]] = set()

    def __call__(
        self, log: Callable[..., None], message: str, *arguments: object, about: Hashable = None, **options: Any
    ) -> None:
        """Log a message, unless that was done before.

        Args:
            log: The method of a logger, such as its `warning`.
            message: The message, with a place for each of the arguments.
            arguments: The arguments.
            about: The message is logged once for each of these.
            options: Further arguments of `log`.
        """
        if (message, about) not in self._logged:
            self._logged.add((message, about))
            log(message, *arguments, stacklevel=2, **options)


def name_lines(record: logging.LogRecord) -> bool:
    """Put the name of the logger in front of each line of a record, if no handler will format it.

    A message may have several lines, such as one for each problem of a rules file.

    Returns:
        True. It is a filter of a logger, and keeps every record.
    """
    if not logger.hasHandlers():
        record.msg, record.args = "\n".join([f"{logger.name}: {line}" for line in record.getMessage().splitlines()]), ()
    return True


# The logger of denials is left out: its records are below the level that Python prints without a handler.
logger.addFilter(name_lines)
