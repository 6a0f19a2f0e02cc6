"""Loads the newest usable rules."""

import logging
import os
import time
from collections.abc import Callable, Mapping

from ratelimit_mw.config.documents import Config
from ratelimit_mw.config.load import load_documents
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.reload.last_good import Kept, LastGood
from ratelimit_mw.reload.source import FilesSource, MappingSource, Snapshot, Source
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores import STORES

__all__ = ["Snapshot", "Source", "open_source"]


def open_source(config: Config) -> Source:
    """Return the source of a file, a folder, a mapping or a URL. Raises ConfigurationError for a malformed URL."""
    if isinstance(config, Mapping):
        return MappingSource(config)
    path = os.fspath(config)
    scheme, separator, _ = path.partition("://")
    if not separator or scheme not in STORES:
        return FilesSource(path)
    from ratelimit_mw.reload.database import RulesDatabase  # imported late: redis-py takes a while

    try:
        return RulesDatabase(path)
    except ValueError as error:
        raise ConfigurationError([Problem(f"rules: {error}")]) from None


logger = logging.getLogger("ratelimit_mw")


_TRIES = 5
"""How many times an unusable file is read at the start while it keeps changing."""


class Rulebook:
    """The rules of a configuration, and where they come from.

    If the configuration has `rules: {source: …}`, it is the *frame* of the rules that are in the database at that URL.
    The sections of the frame, such as `storage`, apply to these rules.

    Attributes:
        version: The version of the rules that were returned last.
        refused: True if the newest rules are unusable.
        used: The text of the rules that were returned last.
        behind: Why these rules are not the newest. None if they are.
    """

    def __init__(self, config: Config, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._source = open_source(config)
        self._database_source: Source | None = None
        self._database_url: str | None = None
        self._frame: Snapshot | None = None
        self._tried: tuple[Snapshot | None, ...] = ()
        self._logged: set[str] = set()
        self.used: Kept | None = None
        self.behind: ConfigurationError | None = None
        self._is_mapping = isinstance(config, Mapping)
        self._last_good = LastGood(config)
        self.version = ""
        self.refused = False

    @property
    def name(self) -> str:
        """The name of the source in logs."""
        return (self._database_source or self._source).name

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources to watch: the configuration, and the database if the configuration names one."""
        return (self._source, self._database_source) if self._database_source else (self._source,)

    def begin(self) -> Rules:
        """Return the rules to start with. Raises ConfigurationError.

        An unusable file may be half written. It is read again after the settling time, as long as it changes, but only
        a few times.
        """
        refused = ConfigurationError([])
        for _ in range(_TRIES):
            try:
                rules = self.load()
            except ConfigurationError as error:
                refused = error
                if not self._source.settling:
                    break
                time.sleep(self._source.settling)
            else:
                if rules is not None:
                    return rules
                break  # the file has not changed since it was refused
        raise refused

    def load(self) -> Rules | None:
        """Return the newest rules. None if they were already returned or refused.

        Raises ConfigurationError if they cannot be read or are unusable.
        """
        self.behind = None
        top = _fetched(self._source)
        if top is not self._frame:
            if self._tried == (top,):
                return None
            self._tried = (top,)
            rules = self._compiled(top)
            if rules.source is None:
                self._use_database(None)
                self._frame = None
                self.version = top.version
                self.used = Kept(None, top)
                return rules
            self._use_database(rules.source)
            self._frame = top
            if not self.version:
                return self._begin(top, rules)
        return self._load_from_database(top)

    def forget(self) -> None:
        """Load the newest rules again at the next call, even if they have not changed."""
        self._tried, self._frame, self.refused = (), None, False

    def _begin(self, frame: Snapshot, none: Rules) -> Rules:
        """Return the rules to start with: the newest, those of another worker, or `none` (which limits nothing).

        A worker must start even if the database is unavailable.
        """
        try:
            return self._load_from_database(frame) or none
        except ConfigurationError as error:
            if self.refused:
                raise
            self._tried = ()
            rules = self.load_last_good()
            if rules is not None:
                self.behind = error
                return rules
            logger.warning("%s: no request is limited until the rules can be read", error)
            return none

    def _load_from_database(self, frame: Snapshot) -> Rules | None:
        """Return the newest rules of the database. None if they were already returned or refused."""
        if self._database_source is None:
            return None
        snapshot = _fetched(self._database_source)
        if self._tried == (frame, snapshot):
            return None
        self._tried = (frame, snapshot)
        rules = self._compiled(snapshot, frame)
        self.version = snapshot.version
        self.used = Kept(None if self._is_mapping else frame, snapshot)
        return rules

    def store_last_good(self) -> None:
        """Store the rules that were returned last, for workers that the same server starts later."""
        if self.used is not None:
            self._last_good.store(self.used, self._database_url)

    def load_last_good(self, *checks: Callable[[Rules], None]) -> Rules | None:
        """Return the rules that another worker of the same server has stored. None if there are no usable ones.

        Each of `checks` may raise ConfigurationError for rules that cannot be used in this process.
        """
        kept = self._last_good.load(self._database_url)
        if kept is None or kept.rules.version == self.version:
            return None
        refused = self.refused
        try:
            rules = self._compiled(kept.rules, self._frame if self._is_mapping else kept.frame)
            for check in checks:
                check(rules)
        except ConfigurationError as error:
            logger.warning("the last good rules can't be used either: %s", error)
            return None
        finally:
            self.refused = refused
        self.version = kept.rules.version
        self.used = kept
        return rules

    def close(self) -> None:
        """Close the sources."""
        for source in self.sources:
            source.close()

    def _compiled(self, snapshot: Snapshot, frame: Snapshot | None = None) -> Rules:
        self.refused = True
        around = frame.documents[0] if frame else None
        rules = load_documents(snapshot.documents, environ=self._environ, frame=around, logged=self._logged)
        self.refused = False
        return rules

    def _use_database(self, url: str | None) -> None:
        if url != self._database_url:
            if self._database_source is not None:
                self._database_source.close()
            self._database_source, self._database_url = None if url is None else open_source(url), url


def _fetched(source: Source) -> Snapshot:
    snapshot = source.fetch()
    if not snapshot.documents:
        message = f"the rules database {source.name} is empty"
        raise ConfigurationError([Problem(message, hint="fill it with: ratelimit-mw rules push")])
    return snapshot
