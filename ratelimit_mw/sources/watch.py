"""A thread that looks for what is new, waits, and looks again."""

import logging
import threading
import weakref
from collections.abc import Callable

from ratelimit_mw.errors import ConfigurationError, StoreUnavailable
from ratelimit_mw.sources.base import Source
from ratelimit_mw.stores.records import Listener

logger = logging.getLogger("ratelimit_mw")

Pause = tuple[float, tuple[str, ...]] | None
"""How long to wait before the next look, and for what to listen; None where nobody wants to know any more."""


class Watch:
    """Watches a source, or without one the overrides, as long as somebody holds whose methods `look` and `pause` are.

    Waits with `listener`, which it closes in the end.
    """

    def __init__(
        self,
        look: Callable[[], None],
        pause: Callable[[Source | None], Pause],
        source: Source | None,
        listener: Listener,
    ) -> None:
        self.source = source
        self._look = weakref.WeakMethod(look)
        self._pause = weakref.WeakMethod(pause)
        self._listener = listener
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ratelimit_mw retriever", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def begin(self) -> None:
        """Start the thread; where there can be no more threads, that is logged."""
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads
            logger.warning("rules and overrides are not watched: %s", error)

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._listener.wake()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set() and (pause := self._round()) is not None:
                self._listener.wait(*pause)
        finally:
            self._listener.close()

    def _round(self) -> Pause:
        """Look once."""
        look, pause = self._look(), self._pause()
        if look is None or pause is None:
            return None
        try:
            look()
        except (ConfigurationError, StoreUnavailable) as error:
            logger.debug("nothing new: %s", error)  # what is wrong with rules is said, and kept in the state
        except Exception:
            logger.exception("the retriever failed, and goes on")  # else all that follows would never be seen
        return pause(self.source)
