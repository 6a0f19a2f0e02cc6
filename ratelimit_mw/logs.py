"""The name of the logger in front of lines that no handler formats.

Servers such as uvicorn and gunicorn configure their own loggers only. Python then prints the warnings of all other
loggers to stderr, without their name (`logging.lastResort`). A reader could not tell that such a line is about rate
limits. So each line gets the name of its logger, but only if the app has no handler for the record: handlers get the
message unchanged, because their format has the name.

This module adds no handler, and sets no level. It is internal: its names may change in any release.
"""

import logging

_NAME = "ratelimit_mw"


def install() -> None:
    """Name the lines of the package's logger. A second call does nothing.

    The logger of denials is left out: its records are below the level that Python prints without a handler.
    """
    logger = logging.getLogger(_NAME)
    if name_lines not in logger.filters:
        logger.addFilter(name_lines)


def name_lines(record: logging.LogRecord) -> bool:
    """Put the name of the logger in front of each line of a record, if no handler will format it.

    A message may have several lines, such as one for each problem of a rules file.

    Returns:
        True. It is a filter of a logger, and keeps every record.
    """
    if not logging.getLogger(_NAME).hasHandlers():
        record.msg, record.args = "\n".join([f"{_NAME}: {line}" for line in record.getMessage().splitlines()]), ()
    return True
