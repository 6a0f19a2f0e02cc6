"""One rule of a file as a pydantic model, and what it matches: which keys there are, and what each may hold."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, WithJsonSchema

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.rules.documents.tree import Node
from ratelimit_mw.rules.readers import times, values
from ratelimit_mw.rules.readers.ban import Punishment, read_ban
from ratelimit_mw.rules.readers.cost import Cost, read_cost
from ratelimit_mw.rules.readers.count import read_count
from ratelimit_mw.rules.readers.limit_forms import Limits, read_limits
from ratelimit_mw.rules.readers.limits import MOST
from ratelimit_mw.rules.readers.throttle import Throttle, read_throttle
from ratelimit_mw.rules.schema.fields import (
    WHOLE,
    Flag,
    Matched,
    Message,
    Methods,
    Name,
    Networks,
    OnError,
    Paths,
    PriorityWord,
    Status,
    Texts,
)
from ratelimit_mw.rules.schema.json_forms import BAN, COST, COUNT, LIMIT, TEXT, THROTTLE, or_list


class _OneOfAlgorithms:
    """The JSON Schema of an algorithm's name, made when it is asked for."""

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, Any]:
        return {"enum": list(ALGORITHMS), "type": "string"}


def _read_algorithm(node: Node) -> str:
    return values.one_of(*ALGORITHMS)(node)


Algorithm = Annotated[str, PlainValidator(_read_algorithm), _OneOfAlgorithms()]


class RuleResponse(BaseModel, extra="forbid", frozen=True):
    """What is told otherwise where this rule denies."""

    status: Status | None = None
    message: Message | None = None
    hidden: Flag = False


class Match(BaseModel, extra="allow", frozen=True):
    """Which requests are meant. Further keys are attributes: header:N, cookie:N, query:N and those of the file."""

    path: Paths | None = None
    methods: Methods | None = None
    ip: Networks | None = None
    host: Matched | None = None
    tier: Matched | None = None
    user: Matched | None = None


def _unlimited() -> Limits:
    return Limits(())


class RuleSection(BaseModel, extra="forbid", frozen=True, json_schema_extra={"required": ["name", "limit"]}):
    """One rule."""

    name: Name = Field(default_factory=str)
    match: Match = Field(default_factory=Match)
    by: Texts = ("ip",)
    limit: Annotated[Limits, PlainValidator(read_limits), WithJsonSchema(LIMIT)] = Field(default_factory=_unlimited)
    algorithm: Algorithm = "sliding_window"
    burst: Annotated[int, Field(ge=1, le=MOST), WHOLE] | None = None
    buckets: Annotated[int, Field(ge=1, le=1_000), WHOLE] | None = None
    max_wait: Annotated[
        float | None, PlainValidator(times.duration), WithJsonSchema({**TEXT, "examples": ["500ms", "10s"]})
    ] = None
    max_waiting: Annotated[int, Field(ge=0, le=10_000), WHOLE] | None = None
    throttle: Annotated[Throttle | None, PlainValidator(read_throttle), WithJsonSchema(THROTTLE)] = None
    cost: Annotated[Cost, PlainValidator(read_cost), WithJsonSchema(COST)] = Field(default_factory=Cost)
    count: Annotated[frozenset[int] | None, PlainValidator(read_count), WithJsonSchema(COUNT)] = None
    ban: Annotated[Punishment | None, PlainValidator(read_ban), WithJsonSchema(BAN)] = None
    consistency: Annotated[
        Literal["strict", "lease", "write_back"], BeforeValidator(values.one_of("strict", "lease", "write_back"))
    ] = "strict"
    shards: Annotated[int, Field(ge=1, le=64), WHOLE] = 1
    replaces: Annotated[
        tuple[str, ...],
        PlainValidator(values.each(values.text, empty=True)),
        WithJsonSchema(or_list(TEXT, at_least=0)),
    ] = ()
    shadow: Flag = False
    on_demand: Flag = False
    messages: Annotated[Literal["close", "drop"] | None, BeforeValidator(values.one_of("close", "drop"))] = None
    priority: PriorityWord | None = None
    on_limit: Annotated[Literal["deny", "defer"], BeforeValidator(values.one_of("deny", "defer"))] = "deny"
    on_error: OnError | None = None
    response: RuleResponse = Field(default_factory=RuleResponse)
