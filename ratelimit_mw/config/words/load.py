"""`load` and `priority`: how the load of the process is measured, and which requests are shed (denied) under load.

A load of 0 means that the process is idle, and 1 that it has no capacity left. Each priority has a band of two loads.
At the first load, the first requests of the priority are shed. From the second load on, all of them are shed.
`decision.load` measures the load, and `decision.shedding` decides.
"""

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
from ratelimit_mw.rules.compiled import ANY, CompiledRule
from ratelimit_mw.settings import Band, Bands, LoadSettings

PRIORITIES: tuple[Priority, ...] = ("low", "normal", "critical")
"""The priorities, in ascending order. Requests of the first are shed first."""

_KEY, _NOTHING = ("",), (NOTHING,)
"""The counter of a rule with a priority. A plan has a rule once for each counter, so the rule needs one."""


def priority_rules(rules: Sequence[CompiledRule], attributes: Attributes) -> tuple[CompiledRule, ...]:
    """Return the rules of the classifier, which finds the priority of a request without charging it.

    These are the rules with a priority, and the rules that replace one of them. The last rule applies to every request.
    It is a shadow rule if no rule with a priority is enforced.
    """
    prioritised = [rule for rule in rules if rule.rule.priority is not None]
    ranks = {rule.rank for rule in prioritised}
    enforced = any(not rule.rule.shadow and not rule.on_demand for rule in prioritised)
    return (
        *(
            replace(
                rule,
                keys=_KEY if rule.rank in ranks else (),
                limits=_NOTHING if rule.rank in ranks else (),
                tiers=None,
                cost=0,
                read_cost=None,
                read_limit=None,
            )
            for rule in rules
            if rule.rank in ranks or rule.replaces & ranks
        ),
        CompiledRule(
            rank=len(rules),
            rule=Rule("", shadow=not enforced),
            further=ANY,
            by=("global",),
            identifiers=(identifier("global", attributes),),
            keys=_KEY,
            limits=_NOTHING,
            tiers=None,
            cost=0,
            replaces=frozenset(),
        ),
    )


_KEYS = ("source", "capacity", "shed")
_SOURCE = "write python:package.module:function"
_FORM = f"{_SOURCE}, or {{capacity: 100}}"
_SHED_FORM = "for example {low: [0.7, 0.85], normal: [0.9, 1], critical: never}"
_BAND_FORM = "for example [0.7, 0.85]: above 0.7 some requests are shed, from 0.85 all; or write never"


def read_load(node: Node) -> LoadSettings:
    """Read the settings of `load`. Raises `Invalid` with every error in them, or if the function can't be imported."""
    if isinstance(node, Scalar):
        return _from_source(node, _FORM)
    if isinstance(node, Items) or not (node or node.keys_at):
        raise Invalid.at(None, f"must be a source of the load or a mapping, not {kind(node)}", _FORM)
    invalid = Invalid()
    readers.report_unknown_keys(node, _KEYS, invalid)
    if "source" in node and "capacity" in node:
        message = "can't be combined with source: the capacity is only used if the package measures the load itself"
        invalid.add(node.keys_at["capacity"], message, "remove one of the two")
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
    """Import the function that reports the load. `form` is the hint if the text does not name a function."""
    name = readers.text(node).strip() if isinstance(node, Scalar) else ""
    scheme, _, target = name.partition(":")
    if scheme != "python" or not target:
        raise Invalid.at(node.place, f"{quoted(name) if name else kind(node)} is not a source of the load", form)
    try:
        return LoadSettings(imported(target.strip()), name)
    except ValueError as error:
        raise Invalid.at(node.place, str(error)) from None


def _capacity(node: Node) -> int:
    """Read the number of requests in flight at which the load is 1."""
    invalid = Invalid()
    found = 1
    with invalid.gathering(node.place):
        found = readers.whole(node)
    invalid.finish()
    if not 1 <= found <= 1_000_000:
        raise Invalid.at(node.place, f"a capacity of {found} is out of range", "from 1 to 1000000")
    return found


def read_shed(node: Node) -> Bands:
    """Read the bands of `shed`. A band that is not set has its default. Raises `Invalid`."""
    if not isinstance(node, Map) or not (node or node.dropped):
        raise Invalid.at(node.place, f"must be a mapping of priorities, not {kind(node)}", _SHED_FORM)
    invalid = Invalid()
    bands = Bands()
    for priority, value in node.items():
        if priority not in Bands._fields:
            hint = nearest(priority, Bands._fields)
            invalid.add(node.keys_at[priority], f"unknown key {quoted(priority)}", hint)
            continue
        with invalid.gathering():
            bands = bands._replace(**{priority: _band(value)})
    invalid.finish()
    for (lower, band), (higher, next_band) in pairwise(bands._asdict().items()):
        if any(first > second for first, second in zip(band, next_band, strict=True)):
            message = f"{lower} {_format_band(band)} would be shed after {higher} {_format_band(next_band)}"
            raise Invalid.at(node.place, message, f"no number of {lower} may be above that of {higher}")
    return bands


def _band(node: Node) -> Band:
    """Read the loads at which shedding begins and is complete. Both are infinite for `never`."""
    if isinstance(node, Scalar) and node.text == "never":
        return inf, inf
    loads = [each.value for each in node if isinstance(each, Scalar)] if isinstance(node, Items) else []
    numbers = [float(load) for load in loads if isinstance(load, int | float) and not isinstance(load, bool)]
    if not isinstance(node, Items) or not len(node) == len(numbers) == 2:
        raise Invalid.at(node.place, f"must be two loads, not {kind(node)}", _BAND_FORM)
    begins, ends = numbers
    if not (0 <= begins <= 1 and begins <= ends <= 2):
        message = f"{_format_band((begins, ends))} is out of range"
        raise Invalid.at(node.place, message, "the first must be from 0 to 1, and the second from the first to 2")
    return begins, ends


def _format_band(band: Band) -> str:
    return "never" if band[0] == inf else f"[{band[0]:g}, {band[1]:g}]"


def warn_of_unused_shedding(tree: Map, problems: Problems) -> None:
    """Warn about a `shed` that has no effect, because no rule has a priority."""
    load = tree.get("load")
    if isinstance(load, Map) and "shed" in load:
        problems.add(load["shed"].place, "has no effect: no rule has a priority")


def _fields(rule: Values, _file: Values) -> dict[str, Priority | None]:
    return {"priority": rule[PRIORITY]}


_SOURCE_SCHEMA = {"type": "string", "pattern": "^python:", "examples": ["python:package.module:function"]}
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
            _SOURCE_SCHEMA,
            {
                "type": "object",
                "properties": {
                    "source": _SOURCE_SCHEMA,
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
    about="Where the load of the process comes from, and from which load on requests of each priority are shed.",
)

PRIORITY: Word[Priority | None] = kinds.choice(
    "priority",
    ("critical", "normal", "low"),
    cast("Priority | None", None),
    "How important the rule's requests are. Under load, requests of low priority are shed first.",
    unset="`normal`, unless another rule of the request has a priority",
    compared=True,
    fields=_fields,
)
