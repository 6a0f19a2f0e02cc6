"""The script that decides: one text, of which a call sends the parts that it needs.

Lua makes the functions of a script anew in each call, which for a request that travels alone is as much work as its
decision. So there is one script for each set of algorithms that are asked together, with or without what only several
counters of one request need; an app's rules bring up a handful.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ratelimit_mw.algorithms import PARTS, Part, lua

SEVERAL = 1
"""The part for requests that want more than to take from one counter."""

_REFUNDS = "\nrefunds["
"""Where the second half of an algorithm's file begins, which is for `SEVERAL` alone."""


class Script(NamedTuple):
    """A script, and what the server calls it."""

    text: bytes
    digest: bytes


@cache
def script(parts: int) -> Script:
    """The script of these parts, a sum of bits: `SEVERAL`, and the bits of each algorithm."""
    several = bool(parts & SEVERAL)
    needed = [part for part in PARTS.values() if parts & 1 << part.number]
    algorithms = [part.lua for part in needed]
    if not several:
        algorithms = [text.partition(_REFUNDS)[0] for text in algorithms]
    ours = ["common", "several", "decide"] if several else ["common", "decide"]
    text = "\n".join([_constants(needed), lua("arithmetic"), *algorithms, *map(_own, ours)])
    # Redis names scripts so; nothing secret hangs on it.
    encoded = text.encode()
    return Script(encoded, hashlib.sha1(encoded, usedforsecurity=False).hexdigest().encode())


def _constants(needed: Sequence[Part]) -> str:
    """The numbers by the names that the Lua files have for them; several.lua knows that of a ban."""
    constants = dict.fromkeys((*needed, PARTS["ban"]))
    return "\n".join(f"local {part.constant} = {part.number}" for part in constants)


def _own(name: str) -> str:
    return files("ratelimit_mw.stores.redis").joinpath(f"{name}.lua").read_text(encoding="utf-8")
