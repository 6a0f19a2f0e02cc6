"""What operators have set at run time, as last fetched: the overrides of each domain, and the switch."""

import logging
from collections.abc import Iterator

from ratelimit_mw.clock import Clock
from ratelimit_mw.model import SECOND
from ratelimit_mw.rules.domains import Domains, Rules
from ratelimit_mw.rules.overrides import Held
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.sources.override import Override, key_of, overrides_in
from ratelimit_mw.sources.setting import Setting, kept_in, strongest
from ratelimit_mw.stores.records import MemoryRecords, Records

logger = logging.getLogger("ratelimit_mw")


class Controls:
    """What operators have set for the domains of some rules. `records` is where it is kept, `clock` tells its end."""

    def __init__(self, clock: Clock) -> None:
        self.records: Records = MemoryRecords()
        self._clock = clock
        self._overrides: dict[str, tuple[int, tuple[Override, ...]]] = {}
        self._settings: dict[str, Setting] = {}
        self._said: set[str] = set()
        self.changes = 0
        """How often something was fetched that is new."""

    def fetch(self, rules: Rules) -> None:
        """Fetch what is newest. Raises StoreUnavailable."""
        for part in rules.parts:
            key = key_of(part.domain)
            known, _ = self._overrides.get(part.domain, (0, ()))
            if self.records.version(key) != known:
                version, texts = self.records.read(key)
                overrides = overrides_in(texts, part.domain)
                self._settings[part.domain] = kept_in(texts, self.records.name)
                self.changes += 1
                self._overrides[part.domain] = version, overrides  # last: what is interrupted before is fetched again

    def setting(self, rules: Rules) -> Setting:
        """What the switch is set to."""
        kept = [self._settings[part.domain] for part in rules.parts if part.domain in self._settings]
        return strongest(kept, self._clock.now() / SECOND)

    def count(self, rules: Rules) -> int:
        """How many overrides there are."""
        return sum(len(self._of(part)) for part in rules.parts)

    def applied_to(self, rules: Rules) -> Rules:
        """The same rules, with what overrides them."""
        parts = [part.overridden(self._held(part), self._clock) for part in rules.parts]
        return rules.overridden(parts) if isinstance(rules, Domains) else parts[0]

    def _of(self, part: RuleSet) -> tuple[Override, ...]:
        return self._overrides.get(part.domain, (0, ()))[1]

    def _held(self, part: RuleSet) -> Iterator[Held]:
        for override in self._of(part):
            try:
                yield override.compiled(part)
            except ValueError as error:  # its rule may be gone, or may be another by now
                text = f"the override of {override.identity} has no effect: {error}"
                if text not in self._said:
                    self._said.add(text)
                    logger.warning("%s", text)
