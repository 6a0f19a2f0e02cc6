"""The script that decides: one text, of which a call sends the parts that it needs.

Lua makes the functions of a script anew in each call, which for a request that travels alone is as much work as its
decision. So there is one script for each set of algorithms that are asked together, with or without what only several
counters of one request need; an app's rules bring up a handful.
"""

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS, lua

SEVERAL = 1
"""The part for requests that want more than to take from one counter."""

NUMBERS = {name: number for number, name in enumerate((*ALGORITHMS, "ban"), 1)}
"""What the algorithms are called on the wire. Their parts are `1 << number`."""

_REFUNDS = "\nrefunds["
"""Where the second half of an algorithm's file begins, which is for `SEVERAL` alone."""

_CONSTANTS = f"local {', '.join(NUMBERS).upper()} = {', '.join(map(str, NUMBERS.values()))}"


class Script(NamedTuple):
    """A script, and what the server calls it."""

    text: str
    digest: str


@cache
def script(parts: int) -> Script:
    """The script of these parts, a sum of bits."""
    several = bool(parts & SEVERAL)
    if parts & 1 << NUMBERS["concurrency"]:
        parts |= 1 << NUMBERS["bucketed_window"]  # by which it counts
    algorithms = [lua(name) for name, number in NUMBERS.items() if parts & 1 << number]
    if not several:
        algorithms = [text.partition(_REFUNDS)[0] for text in algorithms]
    ours = ["common", "several", "decide"] if several else ["common", "decide"]
    text = "\n".join([_CONSTANTS, lua("arithmetic"), *algorithms, *map(_own, ours)])
    # Redis names scripts so; nothing secret hangs on it.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _own(name: str) -> str:
    return files("ratelimit_mw.stores.redis").joinpath(f"{name}.lua").read_text(encoding="utf-8")
