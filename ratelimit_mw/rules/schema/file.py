"""A file as pydantic models: which sections and keys there are, and what each may hold.

What several keys have to agree on is for `compiling`. Imported late: nothing that serves requests needs pydantic.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, WithJsonSchema

from ratelimit_mw.rules.readers import responding, times, values
from ratelimit_mw.rules.readers.limit_forms import Limits, read_limits
from ratelimit_mw.rules.readers.limits import MOST
from ratelimit_mw.rules.readers.measure import read_load
from ratelimit_mw.rules.schema.descriptors import Descriptors, Entries
from ratelimit_mw.rules.schema.fields import (
    WHOLE,
    Duration,
    Flag,
    Interval,
    Message,
    Name,
    OnError,
    OptionalText,
    Status,
    Text,
)
from ratelimit_mw.rules.schema.json_forms import BODY, HEADERS, LIMIT, LOAD, TEXT, or_list
from ratelimit_mw.rules.schema.rule import Match, RuleSection
from ratelimit_mw.settings import Body, HeaderGroups, LoadSettings, Network


class Storage(BaseModel, extra="forbid", frozen=True):
    """Where the counters live."""

    url: Annotated[str, PlainValidator(values.url), WithJsonSchema(TEXT)] = "memory://"
    timeout: Duration = Field(default_factory=lambda: 0.1)
    on_error: OnError = "allow"
    max_counters: Annotated[int, Field(ge=1, le=MOST), WHOLE] = 1_000_000
    interval: Annotated[
        float, PlainValidator(times.duration), WithJsonSchema({**TEXT, "default": "1s", "examples": ["500ms", "5s"]})
    ] = Field(default_factory=lambda: 1.0)


class Client(BaseModel, extra="forbid", frozen=True):
    """How a client is known."""

    trusted_proxies: Annotated[
        tuple[Network, ...],
        PlainValidator(values.each(values.network, empty=True)),
        WithJsonSchema(or_list(TEXT, at_least=0)),
    ] = ()
    trusted_hops: Annotated[int, Field(ge=0, le=32), WHOLE] = 0
    ip_header: Annotated[str, PlainValidator(values.header_name), WithJsonSchema(TEXT)] = "X-Forwarded-For"
    ipv6_prefix: Annotated[int, Field(ge=1, le=128), WHOLE] = 64
    user: OptionalText = None
    tier: OptionalText = None
    secret: Text = ""


class Response(BaseModel, extra="forbid", frozen=True):
    """What a denied client is told."""

    status: Status = 429
    headers: Annotated[HeaderGroups, PlainValidator(responding.read_headers), WithJsonSchema(HEADERS)] = Field(
        default_factory=HeaderGroups
    )
    reset: Annotated[Literal["epoch", "delta"], BeforeValidator(values.one_of("epoch", "delta"))] = "epoch"
    body: Annotated[tuple[Body, ...], PlainValidator(responding.read_body), WithJsonSchema(BODY)] = Field(
        default_factory=lambda: ("json",)
    )
    page: Annotated[str | None, PlainValidator(responding.read_page), WithJsonSchema(TEXT)] = None
    message: Message = "Too many requests"
    documentation_url: Annotated[str | None, PlainValidator(responding.read_link), WithJsonSchema(TEXT)] = None


class Defer(BaseModel, extra="forbid", frozen=True):
    """How requests are put off that a rule with `on_limit: defer` would deny."""

    path: Annotated[str, PlainValidator(values.folder), WithJsonSchema(TEXT)] = "/.ratelimit/deferred"
    max_length: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = 1_000
    max_each: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = 100
    max_body: Annotated[int, Field(ge=0, le=16_777_216), WHOLE] = 65_536
    max_attempts: Annotated[int, Field(ge=1, le=100), WHOLE] = 5
    keep: Annotated[
        float, PlainValidator(times.lasting), WithJsonSchema({**TEXT, "default": "1d", "examples": ["1h", "2 days"]})
    ] = Field(default_factory=lambda: 86_400.0)
    below: Annotated[
        float, PlainValidator(values.share), WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
    ] = 0.7
    headers: Annotated[
        tuple[str, ...] | None,
        PlainValidator(values.each(values.header_name, empty=True)),
        WithJsonSchema(or_list(TEXT, at_least=0)),
    ] = None


class OverrideSection(BaseModel, extra="forbid", frozen=True, json_schema_extra={"required": ["client"]}):
    """What holds for one client instead of the rules: another limit of one rule, or a block, or an exemption."""

    client: dict[str, Text] = {}
    rule: OptionalText = None
    limit: Annotated[Limits, PlainValidator(read_limits), WithJsonSchema(LIMIT)] | None = None
    block: Flag = False
    exempt: Flag = False
    until: Annotated[int, PlainValidator(times.moment), WithJsonSchema(TEXT)] | None = None
    comment: Text = ""


class File(
    BaseModel,
    extra="forbid",
    frozen=True,
    title="ratelimit_mw rules",
    json_schema_extra={"required": ["domain"], "anyOf": [{"required": ["rules"]}, {"required": ["descriptors"]}]},
):
    """A rules file of ratelimit_mw."""

    domain: Name = Field(default_factory=str)
    storage: Storage = Field(default_factory=Storage)
    client: Client = Field(default_factory=Client)
    attributes: dict[str, Text] = {}
    response: Response = Field(default_factory=Response)
    reload: Interval = Field(default_factory=lambda: 5.0)
    shadow: Flag = False
    load: Annotated[LoadSettings, PlainValidator(read_load), WithJsonSchema(LOAD)] = Field(default_factory=LoadSettings)
    defer: Defer = Field(default_factory=Defer)
    exempt: list[Match] = []
    overrides: list[OverrideSection] = []
    rules: list[RuleSection] = []
    descriptors: Descriptors = []
    entries: Entries = None
