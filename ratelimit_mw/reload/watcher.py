"""The retriever has the rules in force. Its thread looks for newer ones and replaces the rule set as a whole."""

import os
import random
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.config.load import Config
from ratelimit_mw.errors import ConfigurationError, StoreUnavailable
from ratelimit_mw.logs import logger
from ratelimit_mw.process_local import Repeating, lazy, lock, reset_after_fork, rlock
from ratelimit_mw.reload.controls import Controls, Setting
from ratelimit_mw.reload.source import LONGEST, Kept, Loader
from ratelimit_mw.rules.domains import Rules, UsedNames
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.base import MemoryRecords

_chance = random.Random()  # separate, so that the app's seeded random numbers are not disturbed


@dataclass(frozen=True, slots=True)
class State:
    """Which rules are in force.

    Attributes:
        source: The name of the source of the rules.
        version: The version of the rules.
        loaded_at: Since when they are in force, in epoch seconds.
        error: Why newer rules are not in force, as in the log. None if these are the newest.
        overrides: The number of overrides that are set at run time.
    """

    source: str
    version: str
    loaded_at: float
    error: str | None = None
    overrides: int = 0


class Retriever:
    """Has the `rules` in force. They are replaced as a whole, so a request must read this attribute only once.

    A daemon thread looks for newer rules and overrides every `reload` seconds or more often. The first call of `watch`
    starts it, so that it runs in the process that serves requests. The child of a fork starts its own thread.

    Raises:
        ConfigurationError: There are no usable rules to start with.
    """

    __slots__ = ("__dict__", "__weakref__", "rules", "watching")  # each request reads these two
    _lock = lazy(rlock)
    _starting = lazy(lock)

    def __init__(self, config: Config, clock: Clock | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._loader = Loader(config, environ)
        self._checks: list[Callable[[Rules], None]] = []
        self.names = UsedNames()
        """What the app has used. Newer rules must have it, too."""
        self.controls = Controls(clock or SystemClock())
        self.on_switch: Callable[[Setting], object] = lambda _setting: None
        """Is called with the setting of the kill switch, each time that it is set or ends."""
        self._begun: list[Callable[[], None]] = []
        self._watch = Repeating(
            "retriever", _weakly(self._look_again), ended=partial(_close, self._loader, self.controls)
        )
        self._tried: Kept | None = None
        """The newest documents that were tried."""
        self._used: Kept | None = None
        """The documents whose rules are in force. None for a frame whose database was never read."""
        self._refused: ConfigurationError | None = None
        """Why newer rules are not in force: they are unusable or cannot be read. None if the newest are in force."""
        self.watching = False
        self._composed = 0
        self.state = State(self._loader.name, "", time.time())
        self._inherited = False
        """True if the rules in force are those of a fork's parent. Other workers may have newer rules."""
        self._base = self.rules = rules = self._begin_rules()
        self._storage = rules.storage
        self._compose()
        reset_after_fork(self)

    def require(self, check: Callable[[Rules], None]) -> None:
        """Register a check that raises ConfigurationError for rules that cannot be used here, now or after a reload."""
        try:
            check(self.rules)
        except ConfigurationError as error:
            if not self._use_stored(error, check):
                raise
        self._checks.append(check)

    def at_watch(self, begun: Callable[[], None]) -> None:
        """Call `begun` each time that watching starts: at the first request of a process, and after `stop`.

        It must not raise. If this process already watches, it is called at once.
        """
        self._begun.append(begun)
        if self.watching:
            begun()

    def watch(self) -> None:
        """Start watching for newer rules and overrides, unless this process already does."""
        with self._starting:
            if not self.watching:
                if not self._inherited and self._refused is None and self._used is not None:
                    self._loader.store(self._used)  # now, because the app has accepted the rules
                self._begin()
                for begun in self._begun:
                    begun()
                self.watching = True  # last, so that after an asynchronous exception the next request starts it

    def stop(self) -> None:
        """Stop watching until `watch` is called again."""
        with self._starting:
            self.watching = False
            self._watch.stop()
        _close(self._loader, self.controls)

    def look(self) -> None:
        """Fetch the newest rules and overrides now. Raises ConfigurationError or StoreUnavailable."""
        self.look_for_rules()
        if self._refused is not None:
            raise self._refused
        self.look_for_overrides()

    def look_for_rules(self) -> None:
        """Fetch the newest rules. Raises ConfigurationError if they are unusable; the last good ones stay in force.

        Unusable rules raise once, until they change.
        """
        with self._lock:
            try:
                found = self._loader.fetch()
                if found == self._tried:
                    if found == self._used and self._refused is not None:
                        self._refused = None
                        self.state = replace(self.state, error=None)
                    return
                rules = self._usable(found)
            except ConfigurationError as error:
                if not (self._inherited and self._use_stored(error)):
                    self._refuse(error)
                raise
            self._adopt(found, rules)
            self._tried = found  # last: after an asynchronous exception they are loaded again
            self._loader.store(found)
            with self._starting:
                if self.watching:
                    self._begin()

    @property
    def setting(self) -> Setting:
        """The setting of the switch, as last fetched."""
        return self.controls.setting(self._base)

    def look_for_overrides(self) -> None:
        """Fetch the newest overrides and the switch. Raises StoreUnavailable."""
        with self._lock:
            try:
                self.controls.fetch(self._base)
            finally:  # the setting may have ended, even if the store does not answer
                self.on_switch(self.setting)
                # Overrides that were fetched before a failure apply, too. `_compose` makes a new rule set, so that no
                # plan from before is reused.
                if self.controls.changes != self._composed:
                    self._compose()

    def _begin(self) -> None:
        """Start the thread, unless it runs or nothing can change."""
        if self._interval() is not None and not self._watch.start():
            logger.warning("rules and overrides are not watched: can't start new thread")

    def _look_again(self) -> float | None:
        """Look for changes, in the thread. Return the seconds until the next look. None if nothing can change."""
        looks = (
            (self.look_for_overrides,) if self._base.reload is None else (self.look_for_overrides, self.look_for_rules)
        )
        for look in looks:
            try:
                look()
            except (ConfigurationError, StoreUnavailable) as error:
                logger.debug("nothing new: %s", error)  # errors in rules are logged elsewhere, and are in the state
            except Exception:
                # It continues, because it would miss later changes otherwise.
                logger.exception("the thread that looks for newer rules failed, and continues")
        seconds = self._interval()
        return None if seconds is None else seconds * _chance.uniform(0.8, 1)

    def _interval(self) -> float | None:
        """Return the longest time between two looks, in seconds. None if nothing can change."""
        seconds = self._base.reload
        spans = [] if isinstance(self.controls.records, MemoryRecords) else [LONGEST]
        if seconds is not None:
            spans = [
                min(seconds, span) for span in (*spans, *(source.longest for source in self._loader.sources)) if span
            ]
        return min(spans, default=None)

    def _begin_rules(self) -> Rules:
        """Return the rules to start with. Raises ConfigurationError if there are none.

        These are the newest rules. If a worker of a running server cannot use them, these are the rules that another
        worker has stored. A worker must start even if the database is unavailable: then no request is limited.
        """
        try:
            found = self._loader.fetch()
            rules = self._usable(found)
        except ConfigurationError as error:
            stored = self._stored()
            if stored is not None:
                kept, rules = stored
                self._note(error, kept)
                return rules
            none = self._loader.frame
            if none is None or self._tried is not None:
                raise
            logger.warning("%s: no request is limited until the rules can be read", error)
            self.state = replace(self.state, source=self._loader.name)
            return none
        self._tried = found
        self._note(None, found)
        return rules

    def _usable(self, found: Kept) -> Rules:
        """Return the rules of these documents. Raises ConfigurationError, and remembers them, if they are unusable."""
        try:
            return self._checked(found)
        except ConfigurationError:
            self._tried = found
            raise

    def _checked(self, kept: Kept, *checks: Callable[[Rules], None]) -> Rules:
        """Return the rules of these documents. Raises ConfigurationError."""
        rules = self._loader.compiled(kept)
        if self._used is not None:
            self.names.check(rules, self.rules)
        for check in (*self._checks, *checks):
            check(rules)
        return rules

    def _stored(self, *checks: Callable[[Rules], None]) -> tuple[Kept, Rules] | None:
        """Return the rules that another worker of the same server has stored. None if there are no usable ones."""
        kept = self._loader.stored()
        if kept is None or kept.rules.version == self.state.version:
            return None
        try:
            return kept, self._checked(kept, *checks)
        except ConfigurationError as error:
            logger.warning("the last good rules can't be used either: %s", error)
            return None

    def _use_stored(self, error: ConfigurationError, *checks: Callable[[Rules], None]) -> bool:
        """Put the rules that another worker of this server has stored into force. Return False if there are none.

        `error` says why the newest rules are not used.
        """
        self._inherited = False
        stored = self._stored(*checks)
        if stored is not None:
            self._adopt(*stored, error)
        return stored is not None

    def _adopt(self, found: Kept, rules: Rules, behind: ConfigurationError | None = None) -> None:
        """Put rules into force. `behind` says why they are not the newest."""
        if _fixed_settings(rules.storage) != _fixed_settings(self._storage):
            logger.warning("%s has other storage settings; they apply after a restart", self._loader.name)
        domains = {part.domain for part in self._base.parts}
        self._base = rules
        self._note(behind, found)
        if any(part.domain not in domains for part in rules.parts):
            try:
                self.controls.fetch(self._base)
            except StoreUnavailable as error:
                logger.warning("overrides at %s can't be read yet: %s", self.controls.records.name, error)
            self.on_switch(self.setting)
        self._compose()
        # A warning, because only warnings are printed where the app configures no logging.
        version, name = self.state.version, self.state.source
        logger.warning("rules: version %s of %s is in force", version, name, extra={"ratelimit_topic": "reload"})

    def _note(self, behind: ConfigurationError | None, found: Kept) -> None:
        """Record which rules are in force. `behind` says why they are not the newest, and is logged."""
        self._used, self._refused = found, behind
        text = None if behind is None else str(behind)
        self.state = State(self._loader.name, found.rules.version, time.time(), text)
        if behind is not None:
            message = (
                "rules: %s can't be used; version %s, which another worker of this server stored, is in force:\n%s"
            )
            logger.error(message, self.state.source, self.state.version, behind)

    def _refuse(self, error: ConfigurationError) -> None:
        self._refused = error
        if str(error) != self.state.error:
            message = "rules: the newest version of %s can't be used; version %s stays in force:\n%s"
            logger.error(message, self._loader.name, self.state.version, error)
            self.state = replace(self.state, error=str(error))

    def _compose(self) -> None:
        """Put the rules, with their overrides, into force in one step."""
        changes = self.controls.changes
        self.rules = self.controls.applied_to(self._base)
        self.state = replace(self.state, overrides=self.controls.count(self._base))
        self._composed = changes

    def after_fork(self) -> None:
        """Reset in the child of a fork, which does not have the parent's threads."""
        self.watching = False
        self._inherited = True


def _fixed_settings(storage: StorageSettings) -> StorageSettings:
    """Return the storage settings that a reload cannot change. `on_error` is in the compiled rules, so it can."""
    return replace(storage, on_error="")


def _weakly(look: Callable[[], float | None]) -> Callable[[], float | None]:
    """Return a function that calls a method, and returns None if the object of the method no longer exists."""
    known = weakref.WeakMethod(look)

    def call() -> float | None:
        method = known()
        return None if method is None else method()

    return call


def _close(loader: Loader, controls: Controls) -> None:
    """Close the connections that a look uses.

    The thread does it when it ends, too, because a look that runs while the watch is stopped may connect again.
    """
    loader.close()
    controls.records.close()
