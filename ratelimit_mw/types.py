"""The types of what public functions return, for annotations. Apps get these objects and do not make them.

The values that a store of your own gets and returns are here, too.
"""

from ratelimit_mw.decision.acquiring import LimitedBlock
from ratelimit_mw.decision.explanation import CounterState, Explanation, RuleExplanation
from ratelimit_mw.decision.kill_switch import Switch
from ratelimit_mw.http.answers import DenialResponse
from ratelimit_mw.http.handle import AsyncHandle, BlockingHandle, Enforced
from ratelimit_mw.http.limits_in_code import LimitOptions
from ratelimit_mw.model import Ask, ListsDecision, ListStatus, Outcome, Quota, Reply
from ratelimit_mw.reload.controls import Override, OverrideList, Setting
from ratelimit_mw.reload.watcher import State
from ratelimit_mw.rules.inline import ByName
from ratelimit_mw.snapshots import Distribution, HitsSnapshot, RuleSnapshot, Snapshot
from ratelimit_mw.stores.base import Intent, Store
from ratelimit_mw.tally import Tally

__all__ = [
    "Ask",
    "AsyncHandle",
    "BlockingHandle",
    "ByName",
    "CounterState",
    "DenialResponse",
    "Distribution",
    "Enforced",
    "Explanation",
    "HitsSnapshot",
    "Intent",
    "LimitOptions",
    "LimitedBlock",
    "ListStatus",
    "ListsDecision",
    "Outcome",
    "Override",
    "OverrideList",
    "Quota",
    "Reply",
    "RuleExplanation",
    "RuleSnapshot",
    "Setting",
    "Snapshot",
    "State",
    "Store",
    "Switch",
    "Tally",
]
