"""Where rules come from, and the table of what says so."""

import os
from collections.abc import Callable, Mapping

from ratelimit_mw.config.documents import Config
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.sources.base import Snapshot, Source
from ratelimit_mw.sources.files import FilesSource
from ratelimit_mw.sources.mapping import MappingSource

__all__ = ["SCHEMES", "Snapshot", "Source", "open_source"]


def _database(url: str) -> Source:
    from ratelimit_mw.sources.database import RulesDatabase  # imported late: redis-py takes a while

    return RulesDatabase(url)


SCHEMES: dict[str, Callable[[str], Source]] = dict.fromkeys(
    ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster"), _database
)
"""What opens a source, by the scheme of its URL."""


def open_source(config: Config) -> Source:
    """The source of a file, a folder, a mapping or a URL. Raises ConfigurationError for a URL that can't be read."""
    if isinstance(config, Mapping):
        return MappingSource(config)
    path = os.fspath(config)
    scheme, separator, _ = path.partition("://")
    if not separator or scheme not in SCHEMES:
        return FilesSource(path)
    try:
        return SCHEMES[scheme](path)
    except ValueError as error:
        raise ConfigurationError([Problem(f"rules: {error}")]) from None
