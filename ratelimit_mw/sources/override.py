"""One override that was set at run time, as it is kept: by its hashed identity, never by a user's name or token."""

import json
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from ratelimit_mw.model import NEVER, SECOND
from ratelimit_mw.rules.overrides import KINDS, Held
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.stores.records import Records


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

    def compiled(self, rules: RuleSet) -> Held:
        """The override for the hot path. Raises ValueError where `rules` have nothing that it can change."""
        until = NEVER if self.until is None else round(self.until * SECOND)
        if self.kind != "limit":
            return Held(self.identity, self.kind, until)
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
