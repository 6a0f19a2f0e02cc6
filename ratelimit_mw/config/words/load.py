"""`load` and `priority`: how the load of the process is measured, and which requests are shed (denied) under load.

A load of 0 means that the process is idle, and 1 that it has no capacity left. Each priority has a band of two loads.
At the first load, the first requests of the priority are shed. From the second load on, all of them are shed.
`decision.load` measures the load, and `decision.shedding` decides.
"""

from itertools import pairwise
from math import inf
from typing import cast

from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Items, Node, Problems, Scalar, unlike
from ratelimit_mw.config.word import Section, Values, Word, section_word
from ratelimit_mw.errors import Invalid
from ratelimit_mw.model import Priority
from ratelimit_mw.settings import Band, Bands, LoadSettings

PRIORITIES: tuple[Priority, ...] = ("low", "normal", "critical")
"""The priorities, in ascending order. Requests of the first are shed first."""


def _read_load(node: Node) -> LoadSettings:
    """Read a function, or the section."""
    if isinstance(node, Scalar) and node.text:
        return LoadSettings(*kinds.read_function(node))
    settings: LoadSettings = _SECTION.read(node)
    return settings


def _check(load: Values, problems: Problems) -> None:
    if load.has_key("source") and "capacity" in load:
        message = "can't be combined with source: the capacity is only used if the package measures the load itself"
        problems.add(load.key_place("capacity"), message, "remove one of the two")


def _read_band(node: Node) -> Band:
    """Read the loads at which shedding begins and is complete. Both are infinite for `never`."""
    if isinstance(node, Scalar) and node.text == "never":
        return inf, inf
    loads = [each.value for each in node if isinstance(each, Scalar)] if isinstance(node, Items) else []
    if [type(load) in (int, float) for load in loads] != [True, True]:
        hint = "for example [0.7, 0.85]: above 0.7 some requests are shed, from 0.85 all; or write never"
        raise unlike(node, "two loads", hint)
    begins, ends = cast("list[float]", loads)
    if not (0 <= begins <= 1 and begins <= ends <= 2):
        message = f"{_format_band((begins, ends))} is out of range"
        raise Invalid(message, "the first must be from 0 to 1, and the second from the first to 2")
    return begins, ends


def _check_bands(shed: Values, problems: Problems) -> None:
    """Report a priority that would be shed after a higher one."""
    for lower, higher in pairwise(_BANDS):
        if not shed.dropped and any(first > second for first, second in zip(shed[lower], shed[higher], strict=True)):
            bands = _format_band(shed[lower]), _format_band(shed[higher])
            message = f"{lower.key} {bands[0]} would be shed after {higher.key} {bands[1]}"
            problems.add(shed.node.place, message, f"no number of {lower.key} may be above that of {higher.key}")


def _format_band(band: Band) -> str:
    return "never" if band[0] == inf else f"[{band[0]:g}, {band[1]:g}]"


_BANDS: tuple[Word[Band], ...] = tuple(
    Word(
        key=priority,
        read=_read_band,
        default=band,
        shown_default=list(band),
        schema={
            "anyOf": [
                {"const": "never"},
                {
                    "type": "array",
                    "items": {"type": "number", "minimum": 0, "maximum": 2},
                    "minItems": 2,
                    "maxItems": 2,
                },
            ]
        },
        about=f"The loads at which the first and all requests of {priority} priority are shed.",
    )
    for priority, band in Bands()._asdict().items()
)

_SECTION = Section(
    "Load",
    "Where the load of the process comes from, and from which load on requests of each priority are shed.",
    (
        Word(
            key="source",
            read=kinds.read_function,
            default=(None, ""),
            schema=kinds.FUNCTION,
            about="A function that returns the load.",
            unset="the package measures the load",
        ),
        kinds.number(
            "capacity",
            1,
            1_000_000,
            None,
            "The number of requests in flight that is a full load.",
            unset="a default for ASGI or WSGI",
        ),
        section_word(
            "shed",
            Section(
                "Shed",
                "The load at which the first requests of a priority are shed, and the load at which all are.",
                _BANDS,
                make=Bands,
                check=_check_bands,
                example="for example {low: [0.7, 0.85], normal: [0.9, 1], critical: never}",
                whole=True,
            ),
        ),
    ),
    make=lambda source, capacity, shed: LoadSettings(source[0], source[1], capacity, shed),
    check=_check,
    example="write python:package.module:function, or {capacity: 100}",
    whole=True,
)

LOAD: Word[LoadSettings] = Word(
    key="load",
    read=_read_load,
    default=LoadSettings(),
    schema=lambda shared: {"anyOf": [kinds.FUNCTION, _SECTION.as_schema(shared)]},
    about="Where the load of the process comes from, and from which load on requests of each priority are shed.",
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
