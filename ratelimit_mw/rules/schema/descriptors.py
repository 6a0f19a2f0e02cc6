"""The section `descriptors` as pydantic models: the keys of envoyproxy/ratelimit's files, and what each may hold.

As there, a key with nothing behind it is as good as absent. What several keys have to agree on is for
`compiling`.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, WithJsonSchema

from ratelimit_mw.rules.documents.tree import Items, Map, Node, Scalar, kind, near
from ratelimit_mw.rules.readers import values
from ratelimit_mw.rules.readers.limits import UNITS
from ratelimit_mw.rules.readers.wrong import Wrong

T = TypeVar("T")

MOST = 2**32 - 1
"""The largest limit: what envoyproxy/ratelimit can hold."""

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean", "default": False}


def _or_absent(read: Callable[[Any], T], absent: Callable[[], T]) -> Callable[[Any], T]:
    def reader(node: Node) -> T:
        empty = isinstance(node, Scalar) and node.value is None
        return absent() if empty else read(node)

    return reader


def _text(node: Node) -> str:
    if isinstance(node, Scalar) and isinstance(node.value, float):
        raise Wrong.at(None, f"must be text, not {kind(node)}", "quote it if it is meant as text")
    return values.text(node)


def _unit(node: Node) -> int:
    word = values.text(node)
    if word.lower() not in UNITS:
        hint = near(word, UNITS)
        raise Wrong.at(None, f"must be one of {', '.join(UNITS)}, not {kind(node)}", hint)
    return UNITS[word.lower()]


def _metadata(node: Node) -> None:
    """Any mapping: it is for metrics, and nothing is decided by it."""
    if not isinstance(node, Map):
        raise Wrong.at(None, f"must be a mapping, not {kind(node)}")


Text = Annotated[str, PlainValidator(_or_absent(_text, str)), WithJsonSchema(_TEXT)]
Flag = Annotated[bool, PlainValidator(_or_absent(values.flag, bool)), WithJsonSchema(_FLAG)]
Unit = Annotated[
    int | None,
    PlainValidator(_or_absent(_unit, lambda: None)),
    WithJsonSchema({"enum": [form for unit in UNITS for form in (unit, unit.upper(), unit.capitalize())]}),
]
Metadata = Annotated[None, PlainValidator(_or_absent(_metadata, lambda: None)), WithJsonSchema({"type": "object"})]


def _itself(node: Any) -> Any:
    return node


class Replaced(BaseModel, extra="forbid", frozen=True, json_schema_extra={"required": ["name"]}):
    """One name in `replaces`."""

    name: Text = ""


class RateLimit(BaseModel, extra="forbid", frozen=True):
    """A limit: so many requests in each unit of time, or none."""

    unit: Unit = None
    requests_per_unit: Annotated[int, Field(ge=0, le=MOST), BeforeValidator(values.whole)] | None = None
    unlimited: Flag = False
    name: Text = ""
    replaces: Annotated[list[Replaced], BeforeValidator(_or_absent(_itself, list))] = []


class DescriptorSection(BaseModel, extra="forbid", frozen=True, json_schema_extra={"required": ["key"]}):
    """One descriptor: what an entry has to be, its limit, and the descriptors of the entry after it."""

    key: Text = ""
    value: Text = ""
    rate_limit: Annotated[RateLimit | None, BeforeValidator(_or_absent(_itself, lambda: None))] = None
    shadow_mode: Flag = False
    quota_mode: Flag = False
    detailed_metric: Flag = False
    value_to_metric: Flag = False
    share_threshold: Flag = False
    metadata: Metadata = None
    descriptors: "Descriptors" = []


Descriptors = Annotated[list[DescriptorSection], BeforeValidator(_or_absent(_itself, list))]

DescriptorSection.model_rebuild()


def read_entries(node: Node) -> tuple[tuple[str, ...], ...]:
    """The lists of entries that requests send, each a name of an attribute or a list of them."""
    if not isinstance(node, Items):
        hint = "as [[message_type, to_number]]"
        raise Wrong.at(None, f"must be a list of lists of attributes, not {kind(node)}", hint)
    wrong = Wrong()
    lists: list[tuple[str, ...]] = []
    for item in node:
        try:
            lists.append(values.each(values.text)(item))
        except Wrong as error:
            for fault in error.faults:
                wrong.add(fault.place or item.place, fault.message, fault.hint)
    wrong.finish()
    return tuple(lists)


Entries = Annotated[
    tuple[tuple[str, ...], ...] | None,
    PlainValidator(read_entries),
    WithJsonSchema({"type": "array", "items": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}}),
]
