"""Reads the newest documents of a configuration from their sources, and compiles them."""

import os
from collections.abc import Mapping

from ratelimit_mw.config.load import Config, load_documents
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.reload.server_files import Kept, LastGood
from ratelimit_mw.reload.source import FilesSource, MappingSource, RulesSnapshot, Source
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores import STORES


def open_source(config: Config) -> Source:
    """Return the source of a file, a folder, a mapping or a URL. Raises ConfigurationError for a malformed URL."""
    if isinstance(config, Mapping):
        return MappingSource(config)
    path = os.fspath(config)
    scheme, separator, _ = path.partition("://")
    if not separator or scheme not in STORES or STORES[scheme].decides:
        return FilesSource(path)
    from ratelimit_mw.reload.database import RulesDatabase  # imported late: redis-py takes a while

    try:
        return RulesDatabase(path)
    except ValueError as error:
        raise ConfigurationError([Problem(f"rules: {error}")]) from None


class Loader:
    """Reads the rules of a configuration. It remembers its own documents, but not which rules are in force.

    If the configuration has `rules: {source: …}`, it is the *frame* of the rules that are in the database at that URL.
    The sections of the frame, such as `storage`, apply to these rules.
    """

    def __init__(self, config: Config, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._source = open_source(config)
        self._database: Source | None = None
        self._url: str | None = None
        self._top: RulesSnapshot | None = None
        self._own: Rules | ConfigurationError | None = None
        """The rules of the configuration itself, or why it is unusable."""
        self._is_mapping = isinstance(config, Mapping)
        self._last_good = LastGood(config)
        self._logged: set[str] = set()

    @property
    def name(self) -> str:
        """The name of the source in logs."""
        return (self._database or self._source).name

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources to watch: the configuration, and the database if the configuration names one."""
        return (self._source, self._database) if self._database else (self._source,)

    @property
    def frame(self) -> Rules | None:
        """The rules of a frame alone. They limit nothing. None if the configuration names no database."""
        return None if self._own is None or isinstance(self._own, ConfigurationError) or not self._url else self._own

    def fetch(self) -> Kept:
        """Return the newest documents. Raises ConfigurationError if they cannot be read."""
        top = _fetched(self._source)
        if top is not self._top:
            own: Rules | ConfigurationError
            try:
                own = self._compiled(top)
                self._use_database(own.source)
            except ConfigurationError as error:
                own = error
            self._top, self._own = top, own
        if self._database is None or isinstance(self._own, ConfigurationError):
            return Kept(None, top)
        return Kept(top, _fetched(self._database))

    def compiled(self, kept: Kept) -> Rules:
        """Return the rules of these documents. Raises ConfigurationError if they are unusable."""
        if kept.rules is self._top and self._own is not None:
            if isinstance(self._own, ConfigurationError):
                raise self._own
            return self._own
        return self._compiled(kept.rules, kept.frame)

    def store(self, kept: Kept) -> None:
        """Store rules that can be used, for workers that the same server starts later."""
        self._last_good.store(kept._replace(frame=None) if self._is_mapping else kept, self._url)

    def stored(self) -> Kept | None:
        """Return the rules that another worker of the same server has stored. None if there are none."""
        kept = self._last_good.load(self._url)
        return kept._replace(frame=self._top) if kept is not None and self._is_mapping else kept

    def close(self) -> None:
        """Close the sources."""
        for source in self.sources:
            source.close()

    def _compiled(self, snapshot: RulesSnapshot, frame: RulesSnapshot | None = None) -> Rules:
        around = frame.documents[0] if frame else None
        return load_documents(snapshot.documents, environ=self._environ, frame=around, logged=self._logged)

    def _use_database(self, url: str | None) -> None:
        if url != self._url:
            if self._database is not None:
                self._database.close()
            self._database, self._url = None if url is None else open_source(url), url


def _fetched(source: Source) -> RulesSnapshot:
    snapshot = source.fetch()
    if not snapshot.documents:
        message = f"the rules database {source.name} is empty"
        raise ConfigurationError([Problem(message, hint="fill it with: ratelimit-mw rules push")])
    return snapshot
