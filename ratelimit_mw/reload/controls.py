"""What operators set at run time, as it is stored and read: overrides of single clients, and the switch."""

import json
import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote

from ratelimit_mw.clock import Clock
from ratelimit_mw.model import NEVER, SECOND
from ratelimit_mw.reload.database import Setting, kept_in, strongest
from ratelimit_mw.rules.compiled import KINDS, CompiledOverride
from ratelimit_mw.rules.domains import Domains, Rules
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.stores.records import MemoryRecords, Records


class Override(NamedTuple):
    """What holds for one client. `identity` is as in a counter's key, `kind` limit, exempt or block.

    `rule` and `limit` belong to a limit. `until` and `at`, when it was set, are epoch seconds; None is for good.
    """

    domain: str
    identity: str
    kind: str
    rule: str = ""
    limit: object = None
    until: float | None = None
    comment: str = ""
    author: str = ""
    at: float = 0.0

    @property
    def name(self) -> str:
        """What it is kept under: one limit for a rule and an identity, and one block or exemption."""
        return f"{self.rule or '*'} {self.identity}"

    def text(self) -> str:
        """What is kept."""
        return json.dumps(self._asdict(), ensure_ascii=False)

    def compiled(self, rules: RuleSet) -> CompiledOverride:
        """The override for the hot path. Raises ValueError where `rules` have nothing that it can change."""
        until = NEVER if self.until is None else round(self.until * SECOND)
        if self.kind != "limit":
            return CompiledOverride(self.identity, self.kind, until)
        if rules.recompiler is None:
            raise ValueError(f"there is no rule {self.rule!r}")
        return rules.recompiler.limit(self.identity, self.rule, self.limit, until)


def key_of(domain: str) -> str:
    """The key of a domain's overrides. It begins as those of its counters do."""
    return f"{quote(domain, safe='').replace('~', '%7E')}:overrides"


def read_all(records: Records, domain: str) -> tuple[int, tuple[Override, ...]]:
    """The overrides of a domain, and their version. What can't be read is left out. Raises StoreUnavailable."""
    version, texts = records.read(key_of(domain))
    return version, overrides_in(texts, domain)


def overrides_in(texts: Mapping[str, str], domain: str) -> tuple[Override, ...]:
    """The overrides among the records of a domain. What can't be read is left out."""
    found = (_read(domain, text) for _, text in sorted(texts.items()))
    return tuple(override for override in found if override is not None)


def _read(domain: str, text: str) -> Override | None:
    try:
        kept = json.loads(text)
        override = Override(**{**kept, "domain": domain})
        until = override.until if override.until is None else float(override.until)
    except (TypeError, ValueError):
        return None
    return override._replace(until=until) if override.kind in KINDS else None


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

    def _held(self, part: RuleSet) -> Iterator[CompiledOverride]:
        for override in self._of(part):
            try:
                yield override.compiled(part)
            except ValueError as error:  # its rule may be gone, or may be another by now
                text = f"the override of {override.identity} has no effect: {error}"
                if text not in self._said:
                    self._said.add(text)
                    logger.warning("%s", text)
