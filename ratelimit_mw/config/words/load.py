"""`load`, and the `priority` of a rule: how the process's load is known, and which requests are shed under it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import cast

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Invalid, Items, Map, Node, Problems, Scalar, kind
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.errors import nearest, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.identifier import identifier
from ratelimit_mw.identity.sources import imported
from ratelimit_mw.model import Priority, Rule
from ratelimit_mw.rules.compiled import CompiledRule, Matching
from ratelimit_mw.settings import Band, Bands, LoadSettings

PRIORITIES: tuple[Priority, ...] = ("low", "normal", "critical")
"""In ascending order."""

_SPOKEN = (("", NOTHING),)


def priority_rules(rules: Sequence[CompiledRule], attributes: Attributes) -> tuple[CompiledRule, ...]:
    """The rules of a classifier: those with a priority, and those in whose place they do not apply."""
    stated = [rule for rule in rules if rule.rule.priority is not None]
    ranks = {rule.rank for rule in stated}
    enforced = any(not rule.rule.shadow and not rule.on_demand for rule in stated)
    return (
        *(
            replace(rule, counters=_SPOKEN if rule.rank in ranks else (), tiers=None, cost=0, weigh=None)
            for rule in rules
            if rule.rank in ranks or rule.replaces & ranks
        ),
        CompiledRule(
            rank=len(rules),
            rule=Rule("", shadow=not enforced),
            match=Matching(),
            by=("global",),
            identifiers=(identifier("global", attributes),),
            counters=_SPOKEN,
            tiers=None,
            cost=0,
            replaces=frozenset(),
        ),
    )


_KEYS = ("source", "capacity", "shed")
_SOURCE = "write python:package.module:function"
_FORM = f"{_SOURCE}, or {{capacity: 100}}"
_SHED_FORM = "as {low: [0.7, 0.85], normal: [0.9, 1], critical: never}"
_BAND_FORM = "as [0.7, 0.85]: some from the first on, all from the second; or never"


def read_load(node: Node) -> LoadSettings:
    """The settings that `node` states. Raises `Invalid`, also where the function can't be imported."""
    if isinstance(node, Scalar):
        return _from_source(node, _FORM)
    if isinstance(node, Items) or not (node or node.keys_at):
        raise Invalid.at(None, f"must say where the load comes from, not {kind(node)}", _FORM)
    invalid = Invalid()
    for key in node:
        if key not in _KEYS:
            invalid.add(node.keys_at[key], f"unknown key {quoted(key)}", nearest(key, _KEYS))
    if "source" in node and "capacity" in node:
        why = "a source says the load itself: there is no capacity to measure it by"
        invalid.add(node.keys_at["capacity"], why, "leave one of them out")
    source, capacity, bands = LoadSettings(), None, Bands()
    with invalid.gathering():
        source = _from_source(node["source"], _SOURCE) if "source" in node else source
    with invalid.gathering():
        capacity = _capacity(node["capacity"]) if "capacity" in node else None
    with invalid.gathering():
        bands = read_shed(node["shed"]) if "shed" in node else bands
    invalid.finish()
    return LoadSettings(source.source, source.name, capacity, bands)


def _from_source(node: Node, form: str) -> LoadSettings:
    name = readers.text(node).strip() if isinstance(node, Scalar) else ""
    scheme, _, target = name.partition(":")
    if scheme != "python" or not target:
        raise Invalid.at(node.place, f"{quoted(name) if name else kind(node)} is no source of a load", form)
    try:
        return LoadSettings(imported(target.strip()), name)
    except ValueError as error:
        raise Invalid.at(node.place, str(error)) from None


def _capacity(node: Node) -> int:
    invalid = Invalid()
    found = 1
    with invalid.gathering(node.place):
        found = readers.whole(node)
    invalid.finish()
    if not 1 <= found <= 1_000_000:
        raise Invalid.at(node.place, f"a capacity of {found} is out of range", "from 1 to 1000000")
    return found


def read_shed(node: Node) -> Bands:
    """The bands that `node` states; the others have their defaults. Raises `Invalid`."""
    if not isinstance(node, Map) or not (node or node.dropped):
        raise Invalid.at(node.place, f"must say when which priority is shed, not {kind(node)}", _SHED_FORM)
    invalid = Invalid()
    bands = Bands()
    for priority, stated in node.items():
        if priority not in Bands._fields:
            hint = nearest(priority, Bands._fields)
            invalid.add(node.keys_at[priority], f"unknown key {quoted(priority)}", hint)
            continue
        with invalid.gathering():
            bands = bands._replace(**{priority: _band(stated)})
    invalid.finish()
    for (lower, band), (higher, next_band) in pairwise(bands._asdict().items()):
        if any(first > second for first, second in zip(band, next_band, strict=True)):
            message = f"{lower} would be shed after {higher}: {_spelled(band)} against {_spelled(next_band)}"
            raise Invalid.at(node.place, message, f"{lower} begins and ends no later than {higher}")
    return bands


def _band(node: Node) -> Band:
    if isinstance(node, Scalar) and node.text == "never":
        return inf, inf
    loads = [each.value for each in node if isinstance(each, Scalar)] if isinstance(node, Items) else []
    numbers = [float(load) for load in loads if isinstance(load, int | float) and not isinstance(load, bool)]
    if not isinstance(node, Items) or not len(node) == len(numbers) == 2:
        raise Invalid.at(node.place, f"must be two loads, not {kind(node)}", _BAND_FORM)
    begins, ends = numbers
    if not (0 <= begins <= 1 and begins <= ends <= 2):
        message = f"{_spelled((begins, ends))} is out of range"
        raise Invalid.at(node.place, message, "the first from 0 to 1, the second from there to 2")
    return begins, ends


def _spelled(band: Band) -> str:
    return "never" if band[0] == inf else f"[{band[0]:g}, {band[1]:g}]"


def warn_of_idle_shedding(tree: Map, problems: Problems) -> None:
    """Note that the file says when to shed requests, where no rule has a priority."""
    load = tree.get("load")
    if isinstance(load, Map) and "shed" in load:
        problems.add(load["shed"].place, "sheds nothing, for no rule has a priority")


def _fields(rule: Values, _file: Values) -> dict[str, Priority | None]:
    return {"priority": rule[PRIORITY]}


_LOADED = {"type": "string", "pattern": "^python:", "examples": ["python:package.module:function"]}
_BAND_SCHEMA = {
    "anyOf": [
        {"const": "never"},
        {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 2}, "minItems": 2, "maxItems": 2},
    ]
}

LOAD: Word[LoadSettings] = Word(
    key="load",
    read=read_load,
    default=LoadSettings(),
    schema={
        "anyOf": [
            _LOADED,
            {
                "type": "object",
                "properties": {
                    "source": _LOADED,
                    "capacity": {"type": "integer", "minimum": 1},
                    "shed": {
                        "type": "object",
                        "properties": {"low": _BAND_SCHEMA, "normal": _BAND_SCHEMA, "critical": _BAND_SCHEMA},
                        "additionalProperties": False,
                        "minProperties": 1,
                    },
                },
                "additionalProperties": False,
                "minProperties": 1,
            },
        ]
    },
    about="How the process's load is known, and at which loads requests of each priority are shed.",
)

PRIORITY: Word[Priority | None] = kinds.choice(
    "priority",
    ("critical", "normal", "low"),
    cast("Priority | None", None),
    "How important the rule's requests are: under load, those of low priority are shed first.",
    compared=True,
    fields=_fields,
)
