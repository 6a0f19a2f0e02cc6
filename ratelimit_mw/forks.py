"""What has to begin anew in the child of a fork: locks that nobody there holds, connections that are the parent's."""

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Something that is of no use to a fork's child as it is."""

    def after_fork(self) -> None:
        """Go on in the child of a fork."""


def begins_anew(each: Forked) -> None:
    """Have `each.after_fork` called in every child that is forked while it lives."""
    _all.add(each)


_all: weakref.WeakSet[Forked] = weakref.WeakSet()


def _begin_anew() -> None:
    for each in _all:
        each.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_begin_anew)
