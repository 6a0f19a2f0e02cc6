"""`load` and `priority`: how the load of the process is measured, and which requests are shed (denied) under load.

A load of 0 means that the process is idle, and 1 that it has no capacity left. `decision.load` measures it, and
`decision.shedding` decides which requests are shed.
"""

from typing import cast

from ratelimit_mw.config import kinds
from ratelimit_mw.config.word import Section, Word
from ratelimit_mw.model import Priority
from ratelimit_mw.settings import LoadSettings

_SECTION = Section(
    "Load",
    "How the package measures the load of the process.",
    (
        kinds.number(
            "capacity",
            1,
            1_000_000,
            None,
            "The number of requests in flight that is a full load.",
            unset="a default for ASGI or WSGI",
        ),
    ),
    make=LoadSettings,
    example="write python:package.module:function, or {capacity: 100}",
    whole=True,
)

LOAD: Word[LoadSettings] = Word(
    key="load",
    read=kinds.function_or(_SECTION, LoadSettings),
    default=LoadSettings(),
    schema=lambda shared: {"anyOf": [kinds.FUNCTION, _SECTION.as_schema(shared)]},
    about="How the load of the process is measured, or a function that returns it.",
    section=_SECTION,
)

PRIORITY: Word[Priority | None] = kinds.choice(
    "priority",
    ("critical", "normal", "low"),
    cast("Priority | None", None),
    "How important the rule's requests are. Under load, requests of low priority are shed first.",
    unset="`normal`, unless another rule of the request has a priority",
    compared=True,
    fields=lambda priority: {"priority": priority},
)
