"""From a source to rules: a file may say that they are elsewhere, and then both are watched."""

import logging
import os
from collections.abc import Mapping
from contextlib import nullcontext

from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.rules.breath import breathing
from ratelimit_mw.rules.documents.document import Config
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.load import load_documents
from ratelimit_mw.sources import open_source
from ratelimit_mw.sources.base import Snapshot, Source

logger = logging.getLogger("ratelimit_mw")


class Rulebook:
    """The rules of a configuration. `version` is theirs, `refused` whether the newest ones can't be used."""

    def __init__(self, config: Config, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._source = open_source(config)
        self._further: Source | None = None
        self._further_url: str | None = None
        self._frame: Snapshot | None = None
        self._tried: tuple[Snapshot | None, ...] = ()
        self._said: set[str] = set()
        self.version = ""
        self.refused = False

    @property
    def name(self) -> str:
        """Where the rules are."""
        return (self._further or self._source).name

    @property
    def sources(self) -> tuple[Source, ...]:
        """What is to be watched: the source, and the one that it names."""
        return (self._source, self._further) if self._further else (self._source,)

    def load(self) -> Rules | None:
        """The rules, or None where the newest are those that were returned, or refused, the last time.

        Raises ConfigurationError where they can't be had, or can't be used.
        """
        top = _fetched(self._source)
        if top is not self._frame:
            if self._tried == (top,):
                return None
            self._tried = (top,)
            rules = self._compiled(top)
            if rules.source is None:
                self._follow(None)
                self._frame = None
                self.version = top.version
                return rules
            self._follow(rules.source)
            self._frame = top
            if not self.version:
                return self._begin(top, rules)
        return self._load_further(top)

    def _begin(self, frame: Snapshot, none: Rules) -> Rules:
        """Start, and if need be without rules: a worker has to come up while the database is away."""
        try:
            return self._load_further(frame) or none
        except ConfigurationError as error:
            if self.refused:
                raise
            logger.warning("%s: nothing is limited until it is there", error)
            self._tried = ()
            return none

    def _load_further(self, frame: Snapshot) -> Rules | None:
        """The rules that the frame says are elsewhere."""
        if self._further is None:
            return None
        snapshot = _fetched(self._further)
        if self._tried == (frame, snapshot):
            return None
        self._tried = (frame, snapshot)
        rules = self._compiled(snapshot, frame)
        self.version = snapshot.version
        return rules

    def close(self) -> None:
        """Let go of what the sources hold open."""
        for source in self.sources:
            source.close()

    def _compiled(self, snapshot: Snapshot, frame: Snapshot | None = None) -> Rules:
        self.refused = True
        around = frame.documents[0] if frame else None
        with breathing() if self.version else nullcontext():  # at the start nobody is served yet
            rules = load_documents(snapshot.documents, environ=self._environ, frame=around, said=self._said)
        self.refused = False
        return rules

    def _follow(self, url: str | None) -> None:
        if url != self._further_url:
            if self._further is not None:
                self._further.close()
            self._further, self._further_url = None if url is None else open_source(url), url


def _fetched(source: Source) -> Snapshot:
    snapshot = source.fetch()
    if not snapshot.documents:
        message = f"the rules database {source.name} is empty"
        raise ConfigurationError([Problem(message, hint="fill it with: ratelimit-mw rules push")])
    return snapshot
