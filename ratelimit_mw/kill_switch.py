"""The kill switch: rate limiting turned off, or made to deny nothing, from outside the app."""

import os
from collections.abc import Sequence
from dataclasses import replace

from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.model import Charge
from ratelimit_mw.rules.ruleset import BLOCKED

SWITCH = "RATELIMIT_MW"
"""Its name in the environment: `off` lets everything pass uncounted, `shadow` counts and denies nothing."""


class KillSwitch:
    """The switch as the environment has it when this is made. Raises ConfigurationError for a word that is none."""

    def __init__(self) -> None:
        word = os.environ.get(SWITCH, "").strip().lower()
        if word not in ("", "on", "off", "shadow"):
            raise ConfigurationError([Problem(f"{SWITCH}={word!r} in the environment is not off or shadow")])
        self._off = word == "off"
        self.thrown = word in ("off", "shadow")
        """Whether plans have to be shown to it at all."""
        self.note = f"{SWITCH}={word} is set" if self.thrown else ""
        """What there is to say of it to people."""

    def left(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        """What is left of a plan once the switch is thrown."""
        if self._off or charges is BLOCKED:
            return ()
        return [Charge(replace(rule, quota=""), ask._replace(shadow=True)) for rule, ask in charges]
