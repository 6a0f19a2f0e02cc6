"""The retriever: fetches newer rules and overrides beside the requests, and swaps them in whole."""

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.errors import ConfigurationError, StoreUnavailable
from ratelimit_mw.late import late, lock, rlock
from ratelimit_mw.model import SECOND
from ratelimit_mw.rules.document import Config
from ratelimit_mw.rules.domains import Domains, Rules
from ratelimit_mw.rules.overrides import Held
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.sources.base import Source
from ratelimit_mw.sources.override import Override, key_of, overrides_in
from ratelimit_mw.sources.rulebook import Rulebook
from ratelimit_mw.sources.setting import Setting, kept_in, strongest
from ratelimit_mw.stores.records import Listener, MemoryRecords, Records

logger = logging.getLogger("ratelimit_mw")

_chance = random.Random()  # its own: a thread of ours is not to disturb what an app draws from the shared one
_REST = 0.0003
"""Seconds in which others have their turn."""

_LONGEST = 0.8
"""Seconds between two looks for what operators set: a switch works within one, whether or not pub/sub reaches."""


@dataclass(frozen=True, slots=True)
class State:
    """What rules are in force: of which `version` of which `source`, since when (epoch seconds).

    `error` says why newer ones are not, in the words of the log; None where these are the newest. `overrides`
    counts those that were set at run time.
    """

    source: str
    version: str
    loaded_at: float
    error: str | None = None
    overrides: int = 0


class Retriever:
    """Holds the `rules` in force, each version whole: a request reads the attribute once, and goes by what it got.

    A daemon thread for each source that can change looks every `reload` seconds or a little sooner, and at once where
    a change is published. They begin with the first call of `watch`, in the process that serves; a fork's child
    begins its own.
    Raises ConfigurationError where there are no rules to begin with.
    """

    _lock = late(rlock)
    _starting = late(lock)

    def __init__(self, config: Config, clock: Clock | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._clock = clock or SystemClock()
        self._book = Rulebook(config, environ)
        self._checks: list[Callable[[Rules], None]] = []
        self._records: Records = MemoryRecords()
        self._overrides: dict[str, tuple[int, tuple[Override, ...]]] = {}
        self._settings: dict[str, Setting] = {}
        self._switch: Callable[[Setting], None] = _nobody
        self._watches: dict[Source | None, _Watch] = {}
        self._said: set[str] = set()
        self._refused: ConfigurationError | None = None
        self.watching = False
        rules = self._book.load()
        if rules is None:  # a source that has something to say says it the first time
            raise ConfigurationError([])
        self._base = self.rules = rules
        self.state = State(self._book.name, self._book.version, time.time())
        self._storage = rules.storage
        self._compose()
        _retrievers.add(self)

    @property
    def records(self) -> Records:
        """Where overrides are kept."""
        return self._records

    def keep_overrides(self, records: Records) -> None:
        """Read overrides from `records`, where a memory of this process's own was before."""
        self._records = records

    def connect(self, switch: Callable[[Setting], None]) -> None:
        """Have `switch` called with what operators set the switch to, each time that they do and when it ends."""
        self._switch = switch

    def require(self, check: Callable[[Rules], None]) -> None:
        """Have `check` raise ConfigurationError for rules that can't be used here, now or later."""
        check(self.rules)
        self._checks.append(check)

    def watch(self) -> None:
        """Begin to look for newer rules and overrides, if that has not begun in this process."""
        with self._starting:
            if not self.watching:
                self.watching = True
                self._watch_sources()
                if not isinstance(self._records, MemoryRecords):
                    self._begin(_Watch(self, self._records.listener(), self.look_for_overrides, None))

    def stop(self) -> None:
        """Look no more, until `watch` is called again."""
        with self._starting:
            watches, self._watches, self.watching = self._watches, {}, False
        for watch in watches.values():
            watch.stop()
        self._book.close()
        self._records.close()

    def look(self) -> None:
        """Fetch what is newest, now. Raises ConfigurationError where it can't be used, and StoreUnavailable."""
        self.look_for_rules()
        if self._refused is not None:
            raise self._refused
        self.look_for_overrides()

    def look_for_rules(self) -> None:
        """Fetch the newest rules. Raises ConfigurationError where they can't be used; the last good ones stay."""
        with self._lock:
            try:
                rules = self._book.load()
                if rules is not None:
                    self._book.refused = True
                    for check in self._checks:
                        check(rules)
                    self._book.refused = False
            except ConfigurationError as error:
                self._refuse(error)
                raise
            if rules is not None:
                self._adopt(rules)
                with self._starting:
                    if self.watching:
                        self._watch_sources()
            elif not self._book.refused and self._refused is not None:
                self._refused = None
                self.state = replace(self.state, error=None)

    @property
    def setting(self) -> Setting:
        """What operators have set the switch to, as last fetched."""
        kept = [self._settings[part.domain] for part in self._base.parts if part.domain in self._settings]
        return strongest(kept, self._clock.now() / SECOND)

    def look_for_overrides(self) -> None:
        """Fetch what operators have set: the newest overrides, and the switch. Raises StoreUnavailable."""
        with self._lock:
            try:
                changed = self._fetch_overrides()
            finally:  # it ends by itself, also while nobody answers
                self._switch(self.setting)
            if changed:  # and then the rules are new, so that no plan made meanwhile is remembered
                self._compose()

    def overrides(self, domain: str) -> tuple[Override, ...]:
        """The overrides of a domain that were set at run time, as last fetched."""
        return self._overrides.get(domain, (0, ()))[1]

    def pause(self, source: Source | None) -> tuple[float, tuple[str, ...]] | None:
        """How long to wait before the next look, and for what to listen; None where `source` is not watched any more.

        The source of overrides is None.
        """
        seconds = self._base.reload
        if source is None:
            longest = _LONGEST if seconds is None else min(seconds, _LONGEST)
            return longest * _chance.uniform(0.8, 1), tuple(key_of(part.domain) for part in self._base.parts)
        if seconds is None or source not in self._book.sources:
            return None
        return seconds * _chance.uniform(0.8, 1), source.channels

    def _watch_sources(self) -> None:
        """Begin to watch the sources of rules that are not watched yet."""
        for source in self._book.sources:
            listener = source.listener() if source not in self._watches else None
            if listener is not None:
                self._begin(_Watch(self, listener, self.look_for_rules, source))

    def _begin(self, watch: "_Watch") -> None:
        if self._base.reload is not None or watch.source is None:
            self._watches[watch.source] = watch
            watch.begin()

    def _fetch_overrides(self) -> bool:
        changed = False
        for part in self._base.parts:
            key = key_of(part.domain)
            known, _ = self._overrides.get(part.domain, (0, ()))
            if self._records.version(key) != known:
                version, texts = self._records.read(key)
                self._overrides[part.domain] = version, overrides_in(texts, part.domain)
                self._settings[part.domain] = kept_in(texts, self._records.name)
                changed = True
        return changed

    def _adopt(self, rules: Rules) -> None:
        if _of_the_store(rules.storage) != _of_the_store(self._storage):
            logger.warning("%s wants another storage: that takes a restart, and until then it stays", self._book.name)
        domains = {part.domain for part in self._base.parts}
        pieces = [piece for part in self._base.parts for piece in part.pieces]
        self._base = rules
        self._refused = None
        self.state = State(self._book.name, self._book.version, time.time())
        if any(part.domain not in domains for part in rules.parts):
            try:
                self._fetch_overrides()
            except StoreUnavailable as error:
                logger.warning("overrides at %s can't be read (%s): they come later", self._records.name, error)
            self._switch(self.setting)
        self._compose()
        logger.info("rules: version %s of %s is in force", self._book.version, self._book.name)
        while pieces:
            pieces.pop()
            time.sleep(_REST)

    def _refuse(self, error: ConfigurationError) -> None:
        self._refused = error
        if str(error) != self.state.error:
            self.state = replace(self.state, error=str(error))
            message = "rules: the newest of %s can't be used, and version %s stays in force:\n%s"
            logger.error(message, self._book.name, self.state.version, error)

    def _compose(self) -> None:
        """Put the rules and what overrides them into force, at once."""
        parts = [part.overridden(self._held(part), self._clock) for part in self._base.parts]
        number = sum(len(self.overrides(part.domain)) for part in parts)
        self.rules = self._base.overridden(parts) if isinstance(self._base, Domains) else parts[0]
        self.state = replace(self.state, overrides=number)

    def _held(self, part: RuleSet) -> Iterator[Held]:
        for override in self.overrides(part.domain):
            try:
                yield override.compiled(part)
            except ValueError as error:  # its rule may be gone, or may be another by now
                text = f"the override of {override.identity} has no effect: {error}"
                if text not in self._said:
                    self._said.add(text)
                    logger.warning("%s", text)

    def after_fork(self) -> None:
        """Go on in the child of a fork, where the threads are not."""
        _inherited.append(self._watches)
        vars(self).pop("_lock", None)
        vars(self).pop("_starting", None)
        self._watches = {}
        self.watching = False


class _Watch:
    """A thread that looks, waits, and looks again, as long as somebody holds the retriever."""

    def __init__(
        self, retriever: Retriever, listener: Listener, look: Callable[[], None], source: Source | None
    ) -> None:
        self.source = source
        self._retriever = weakref.ref(retriever)
        self._look = weakref.WeakMethod(look)
        self._listener = listener
        self._stopped = threading.Event()

    def begin(self) -> None:
        try:
            threading.Thread(target=self._run, name="ratelimit_mw retriever", daemon=True).start()
        except RuntimeError as error:  # no more threads
            logger.warning("rules and overrides are not watched: %s", error)

    def stop(self) -> None:
        self._stopped.set()
        self._listener.wake()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set() and (pause := self._round()) is not None:
                self._listener.wait(*pause)
        finally:
            self._listener.close()

    def _round(self) -> tuple[float, tuple[str, ...]] | None:
        """Look once. How long to wait then, and for what; None where nobody wants to know any more."""
        look, retriever = self._look(), self._retriever()
        if look is None or retriever is None:
            return None
        try:
            look()
        except (ConfigurationError, StoreUnavailable) as error:
            logger.debug("nothing new: %s", error)  # what is wrong with rules is said, and kept in the state
        except Exception:
            logger.exception("the retriever failed, and goes on")  # else all that follows would never be seen
        return retriever.pause(self.source)


def _nobody(_setting: Setting) -> None:
    """Whom the switch is told while nobody has asked for it."""


def _of_the_store(storage: StorageSettings) -> StorageSettings:
    """What can't be changed without a restart: all but the policy, which the rules have taken over."""
    return replace(storage, on_error="")


_retrievers: weakref.WeakSet[Retriever] = weakref.WeakSet()
_inherited: list[object] = []
"""What a fork's child got from its parent and must neither use nor close."""


def _begin_anew() -> None:
    for retriever in _retrievers:
        retriever.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_begin_anew)
