"""The file's schema, as pydantic models, and their errors in our own words and at their own lines.

The models say which keys there are and what each may hold; what several keys have to agree on is for
`compile`. Imported late: nothing that serves requests needs pydantic.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from ratelimit_mw.model import Priority
from ratelimit_mw.rules import responding, values
from ratelimit_mw.rules.ban import Punishment, read_ban
from ratelimit_mw.rules.cost import Cost, read_cost
from ratelimit_mw.rules.count import read_count
from ratelimit_mw.rules.descriptor_schema import Descriptors, DescriptorSection, Entries, RateLimit, Replaced
from ratelimit_mw.rules.limit_forms import Limits, read_limits
from ratelimit_mw.rules.measure import read_load
from ratelimit_mw.rules.templates import Template
from ratelimit_mw.rules.throttle import Throttle, read_throttle
from ratelimit_mw.rules.tree import Items, Map, Node, Place, Problems, kind, nearest, quoted
from ratelimit_mw.rules.wrong import Fault, Wrong
from ratelimit_mw.settings import Body, HeaderGroups, LoadSettings, Network

MOST = 1_000_000_000
"""The largest limit, burst and cost."""

_TEXT = {"type": "string"}


def _or_list(of: dict[str, Any], *, at_least: int = 1) -> dict[str, Any]:
    return {"anyOf": [of, {"type": "array", "items": of, "minItems": at_least}]}


_ONE_LIMIT = {
    "anyOf": [
        {"type": "string", "examples": ["100 per minute", "10/2s", "20 concurrent", "unlimited"]},
        {
            "type": "object",
            "properties": {"requests": {"type": "integer", "minimum": 0}, "per": _TEXT, "burst": {"type": "integer"}},
            "required": ["requests", "per"],
            "additionalProperties": False,
        },
    ]
}
_LIMIT = {
    "anyOf": [
        *_or_list(_ONE_LIMIT)["anyOf"],
        {"type": "object", "required": ["default"], "additionalProperties": _or_list(_ONE_LIMIT)},
    ]
}

_PERCENT = {"type": "string", "pattern": r"^[0-9]{1,4}(\.[0-9]{1,2})?\s*%$", "examples": ["10%", "200%"]}
_THROTTLE = {
    "anyOf": [
        {"const": "hard"},
        {"type": "object", "properties": {"soft": _PERCENT}, "required": ["soft"], "additionalProperties": False},
        {
            "type": "object",
            "properties": {
                "elastic": {
                    "type": "object",
                    "properties": {
                        "up_to": _PERCENT,
                        "below": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                    },
                    "required": ["up_to", "below"],
                    "additionalProperties": False,
                }
            },
            "required": ["elastic"],
            "additionalProperties": False,
        },
    ]
}
_STATUS = {
    "anyOf": [{"type": "integer", "minimum": 100, "maximum": 599}, {"type": "string", "examples": ["4xx", "500-599"]}]
}
_COUNT = {
    "type": "object",
    "properties": {"status": _or_list(_STATUS)},
    "required": ["status"],
    "additionalProperties": False,
}
_BAN = {
    "type": "object",
    "properties": {
        "after": {**_TEXT, "examples": ["10 denials in 1 minute", "1 denial"]},
        "for": {**_TEXT, "examples": ["10 minutes"]},
        "growing": {**_TEXT, "examples": ["2x up to 1 day"]},
    },
    "required": ["after", "for"],
    "additionalProperties": False,
}
_COST = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MOST},
        {**_TEXT, "examples": ["header:X-Cost", "python:package.module:function", "response:X-Cost"]},
    ],
    "default": 1,
}
_LOADED = {"type": "string", "pattern": "^python:", "examples": ["python:package.module:function"]}
_BAND = {
    "anyOf": [
        {"const": "never"},
        {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 2}, "minItems": 2, "maxItems": 2},
    ]
}
_LOAD = {
    "anyOf": [
        _LOADED,
        {
            "type": "object",
            "properties": {
                "source": _LOADED,
                "capacity": {"type": "integer", "minimum": 1},
                "shed": {
                    "type": "object",
                    "properties": {"low": _BAND, "normal": _BAND, "critical": _BAND},
                    "additionalProperties": False,
                    "minProperties": 1,
                },
            },
            "additionalProperties": False,
            "minProperties": 1,
        },
    ]
}

_GROUPS = _or_list({"enum": list(responding.GROUPS)}, at_least=0)
_HEADERS = {
    "anyOf": [
        *_GROUPS["anyOf"],
        {"type": "object", "properties": {"allowed": _GROUPS, "denied": _GROUPS}, "additionalProperties": False},
    ],
    "default": ["x-ratelimit", "retry-after"],
}
_BODY = {
    **_or_list({"anyOf": [{"enum": list(responding.FORMATS)}, {"type": "object", "minProperties": 1}]}),
    "default": "json",
    "examples": ["problem", ["json", "html"], {"error": {"code": "{reason}", "message": "{message}"}}],
}

Text = Annotated[str, PlainValidator(values.text), WithJsonSchema(_TEXT)]
OptionalText = Annotated[str | None, PlainValidator(values.optional_text), WithJsonSchema(_TEXT)]
Name = Annotated[
    str, PlainValidator(values.name), WithJsonSchema({**_TEXT, "minLength": 1, "maxLength": values.LONGEST_NAME})
]
WHOLE = BeforeValidator(values.whole)
Flag = Annotated[bool, BeforeValidator(values.flag)]
Duration = Annotated[
    float,
    PlainValidator(values.duration),
    WithJsonSchema({**_TEXT, "default": "100ms", "examples": ["100ms", "2s"]}),
]
Interval = Annotated[
    float | None,
    PlainValidator(values.interval),
    WithJsonSchema({**_TEXT, "default": "5s", "examples": ["5s", "1m", "off"]}),
]
Status = Annotated[int, Field(ge=400, le=599), WHOLE]
Message = Annotated[str, PlainValidator(responding.read_message), WithJsonSchema(_TEXT)]
PriorityWord = Annotated[Priority, BeforeValidator(values.one_of("critical", "normal", "low"))]
OnError = Annotated[Literal["allow", "deny", "local"], BeforeValidator(values.one_of("allow", "deny", "local"))]
Networks = Annotated[tuple[Network, ...], PlainValidator(values.each(values.network)), WithJsonSchema(_or_list(_TEXT))]
Paths = Annotated[tuple[Template, ...], PlainValidator(values.each(values.template)), WithJsonSchema(_or_list(_TEXT))]
Methods = Annotated[tuple[str, ...], PlainValidator(values.each(values.method)), WithJsonSchema(_or_list(_TEXT))]
Texts = Annotated[tuple[str, ...], PlainValidator(values.each(values.text)), WithJsonSchema(_or_list(_TEXT))]

ALGORITHMS = (
    *("fixed_window", "sliding_log", "sliding_window", "bucketed_window", "token_bucket", "leaky_bucket"),
    "concurrency",
)
Algorithm = Annotated[
    Literal[
        "fixed_window",
        "sliding_log",
        "sliding_window",
        "bucketed_window",
        "token_bucket",
        "leaky_bucket",
        "concurrency",
    ],
    BeforeValidator(values.one_of(*ALGORITHMS)),
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Storage(_Section):
    """Where the counters live."""

    url: Annotated[str, PlainValidator(values.url), WithJsonSchema(_TEXT)] = "memory://"
    timeout: Duration = Field(default_factory=lambda: 0.1)
    on_error: OnError = "allow"
    max_counters: Annotated[int, Field(ge=1, le=MOST), WHOLE] = 1_000_000
    interval: Annotated[
        float, PlainValidator(values.duration), WithJsonSchema({**_TEXT, "default": "1s", "examples": ["500ms", "5s"]})
    ] = Field(default_factory=lambda: 1.0)


class Client(_Section):
    """How a client is known."""

    trusted_proxies: Annotated[
        tuple[Network, ...],
        PlainValidator(values.each(values.network, empty=True)),
        WithJsonSchema(_or_list(_TEXT, at_least=0)),
    ] = ()
    trusted_hops: Annotated[int, Field(ge=0, le=32), WHOLE] = 0
    ip_header: Annotated[str, PlainValidator(values.header_name), WithJsonSchema(_TEXT)] = "X-Forwarded-For"
    ipv6_prefix: Annotated[int, Field(ge=1, le=128), WHOLE] = 64
    user: OptionalText = None
    tier: OptionalText = None
    secret: Text = ""


class Response(_Section):
    """What a denied client is told."""

    status: Status = 429
    headers: Annotated[HeaderGroups, PlainValidator(responding.read_headers), WithJsonSchema(_HEADERS)] = Field(
        default_factory=HeaderGroups
    )
    reset: Annotated[Literal["epoch", "delta"], BeforeValidator(values.one_of("epoch", "delta"))] = "epoch"
    body: Annotated[tuple[Body, ...], PlainValidator(responding.read_body), WithJsonSchema(_BODY)] = Field(
        default_factory=lambda: ("json",)
    )
    page: Annotated[str | None, PlainValidator(responding.read_page), WithJsonSchema(_TEXT)] = None
    message: Message = "Too many requests"
    documentation_url: Annotated[str | None, PlainValidator(responding.read_link), WithJsonSchema(_TEXT)] = None


class RuleResponse(_Section):
    """What is told otherwise where this rule denies."""

    status: Status | None = None
    message: Message | None = None
    hidden: Flag = False


class Defer(_Section):
    """How requests are put off that a rule with `on_limit: defer` would deny."""

    path: Annotated[str, PlainValidator(values.folder), WithJsonSchema(_TEXT)] = "/.ratelimit/deferred"
    max_length: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = 1_000
    max_each: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = 100
    max_body: Annotated[int, Field(ge=0, le=16_777_216), WHOLE] = 65_536
    max_attempts: Annotated[int, Field(ge=1, le=100), WHOLE] = 5
    keep: Annotated[
        float, PlainValidator(values.lasting), WithJsonSchema({**_TEXT, "default": "1d", "examples": ["1h", "2 days"]})
    ] = Field(default_factory=lambda: 86_400.0)
    below: Annotated[
        float, PlainValidator(values.share), WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
    ] = 0.7
    headers: Annotated[
        tuple[str, ...] | None,
        PlainValidator(values.each(values.header_name, empty=True)),
        WithJsonSchema(_or_list(_TEXT, at_least=0)),
    ] = None


class Match(BaseModel):
    """Which requests are meant. Further keys are attributes: header:N, cookie:N, query:N and those of the file."""

    model_config = ConfigDict(extra="allow", frozen=True)

    path: Paths | None = None
    methods: Methods | None = None
    ip: Networks | None = None
    host: Texts | None = None
    tier: Texts | None = None
    user: Texts | None = None


def _unlimited() -> Limits:
    return Limits(())


class RuleSection(_Section):
    """One rule."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={"required": ["name", "limit"]})

    name: Name = Field(default_factory=str)
    match: Match = Field(default_factory=Match)
    by: Texts = ("ip",)
    limit: Annotated[Limits, PlainValidator(read_limits), WithJsonSchema(_LIMIT)] = Field(default_factory=_unlimited)
    algorithm: Algorithm = "sliding_window"
    burst: Annotated[int, Field(ge=1, le=MOST), WHOLE] | None = None
    buckets: Annotated[int, Field(ge=1, le=1_000), WHOLE] | None = None
    max_wait: Annotated[
        float | None, PlainValidator(values.duration), WithJsonSchema({**_TEXT, "examples": ["500ms", "10s"]})
    ] = None
    max_waiting: Annotated[int, Field(ge=0, le=10_000), WHOLE] | None = None
    throttle: Annotated[Throttle | None, PlainValidator(read_throttle), WithJsonSchema(_THROTTLE)] = None
    cost: Annotated[Cost, PlainValidator(read_cost), WithJsonSchema(_COST)] = Field(default_factory=Cost)
    count: Annotated[frozenset[int] | None, PlainValidator(read_count), WithJsonSchema(_COUNT)] = None
    ban: Annotated[Punishment | None, PlainValidator(read_ban), WithJsonSchema(_BAN)] = None
    consistency: Annotated[
        Literal["strict", "lease", "write_back"], BeforeValidator(values.one_of("strict", "lease", "write_back"))
    ] = "strict"
    shards: Annotated[int, Field(ge=1, le=64), WHOLE] = 1
    replaces: Annotated[
        tuple[str, ...],
        PlainValidator(values.each(values.text, empty=True)),
        WithJsonSchema(_or_list(_TEXT, at_least=0)),
    ] = ()
    shadow: Flag = False
    on_demand: Flag = False
    messages: Annotated[Literal["close", "drop"] | None, BeforeValidator(values.one_of("close", "drop"))] = None
    priority: PriorityWord | None = None
    on_limit: Annotated[Literal["deny", "defer"], BeforeValidator(values.one_of("deny", "defer"))] = "deny"
    on_error: OnError | None = None
    response: RuleResponse = Field(default_factory=RuleResponse)


class OverrideSection(_Section):
    """What holds for one client instead of the rules: another limit of one rule, or a block, or an exemption."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={"required": ["client"]})

    client: dict[str, Text] = {}
    rule: OptionalText = None
    limit: Annotated[Limits, PlainValidator(read_limits), WithJsonSchema(_LIMIT)] | None = None
    block: Flag = False
    exempt: Flag = False
    until: Annotated[int, PlainValidator(values.moment), WithJsonSchema(_TEXT)] | None = None
    comment: Text = ""


class File(_Section):
    """A rules file of ratelimit_mw."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        title="ratelimit_mw rules",
        json_schema_extra={"required": ["domain"], "anyOf": [{"required": ["rules"]}, {"required": ["descriptors"]}]},
    )

    domain: Name = Field(default_factory=str)
    storage: Storage = Field(default_factory=Storage)
    client: Client = Field(default_factory=Client)
    attributes: dict[str, Text] = {}
    response: Response = Field(default_factory=Response)
    reload: Interval = Field(default_factory=lambda: 5.0)
    shadow: Flag = False
    load: Annotated[LoadSettings, PlainValidator(read_load), WithJsonSchema(_LOAD)] = Field(
        default_factory=LoadSettings
    )
    defer: Defer = Field(default_factory=Defer)
    exempt: list[Match] = []
    overrides: list[OverrideSection] = []
    rules: list[RuleSection] = []
    descriptors: Descriptors = []
    entries: Entries = None


_SECTIONS: dict[tuple[str, ...], type[BaseModel]] = {
    (): File,
    ("storage",): Storage,
    ("client",): Client,
    ("response",): Response,
    ("defer",): Defer,
    ("rules",): RuleSection,
    ("rules", "response"): RuleResponse,
    ("descriptors",): DescriptorSection,
    ("descriptors", "rate_limit"): RateLimit,
    ("descriptors", "rate_limit", "replaces"): Replaced,
    ("overrides",): OverrideSection,
}
_REQUIRED: dict[type[BaseModel], tuple[str, ...]] = {
    File: ("domain", "rules"),
    RuleSection: ("name", "limit"),
    OverrideSection: ("client",),
}

Location = tuple[str | int, ...]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a rules file, for editors."""
    return {"$schema": GenerateJsonSchema.schema_dialect, **File.model_json_schema(schema_generator=_JsonSchema)}


class _JsonSchema(GenerateJsonSchema):
    """Without what pydantic would add: a null that is refused, and titles that say the key again."""

    def nullable_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: Any) -> dict[str, Any]:
        made = super().default_schema(schema)
        return {key: value for key, value in made.items() if key != "default" or value not in (None, "", [])}

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - what is overridden has it
        return False


def check(tree: Map, problems: Problems) -> tuple[File, Map]:
    """The file's values, and the tree less everything that could not be used and so has its default."""
    _report_missing(tree, File, problems)
    for key, model in (("rules", RuleSection), ("overrides", OverrideSection)):
        entries = tree.get(key)
        for entry in entries if isinstance(entries, Items) else ():
            if isinstance(entry, Map):
                _report_missing(entry, model, problems)
    try:
        return File.model_validate(tree), tree
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    for error in errors:
        _report(tree, error["loc"], error, problems)
    usable = _without(tree, [error["loc"] for error in errors])
    return File.model_validate(usable), usable


def _report_missing(section: Map, model: type[BaseModel], problems: Problems) -> None:
    for key in _REQUIRED[model]:
        if key not in section.keys_at and not (key == "rules" and "descriptors" in section.keys_at):
            problems.add(section.place, f"the key '{key}' is missing")


def _report(tree: Map, location: Location, error: Any, problems: Problems) -> None:
    node = node_at(tree, location)
    if error["type"] == "extra_forbidden":
        parent = node_at(tree, location[:-1])
        model = _section(location[:-1])
        key = str(location[-1])
        place = parent.keys_at[key] if isinstance(parent, Map) else node.place
        hint = _home_of(key, location) or nearest(key, model.model_fields)
        problems.add(place, f"unknown key {quoted(key)}", hint)
        return
    for fault in _faults(node, error):
        problems.add(fault.place or node.place, fault.message, fault.hint)


def _home_of(key: str, location: Location) -> str:
    """Where a key belongs that stands in the wrong section."""
    homes: dict[str, type[BaseModel]] = {
        "storage": Storage,
        "client": Client,
        "response": Response,
        "defer": Defer,
    }
    if location[0] == "rules":
        homes = {"match": Match, **homes}
    elif location[0] not in homes and len(location) > 1:
        return ""  # descriptors have keys of their own
    else:
        homes = {"a rule: indent it": RuleSection, **homes}
    return next((f"it is a key of {home}" for home, model in homes.items() if key in model.model_fields), "")


def _section(location: Location) -> type[BaseModel]:
    steps = tuple(step for step in location if isinstance(step, str))
    while steps[:2] == ("descriptors", "descriptors"):
        steps = steps[1:]
    return _SECTIONS[steps]


def _faults(node: Node, error: Any) -> list[Fault]:
    raised = error.get("ctx", {}).get("error")
    if isinstance(raised, Wrong):
        return raised.faults
    bounds = error.get("ctx", {})
    if "ge" in bounds:
        return [Fault(None, f"{kind(node)} is too small", f"at least {bounds['ge']}")]
    if "le" in bounds:
        return [Fault(None, f"{kind(node)} is too large", f"at most {bounds['le']}")]
    wanted = "a list" if error["type"] == "list_type" else "a mapping"
    hints = {"storage": "as {url: redis://localhost:6379/0}", "rules": "a rule begins with '- name:'"}
    hint = "" if node.place.path not in hints or kind(node) == "empty" else hints[node.place.path]
    return [Fault(None, f"must be {wanted}, not {kind(node)}", hint)]


def node_at(tree: Node, location: Location) -> Node:
    """The node at a location, or the innermost one that is left around it."""
    for step in location:
        if isinstance(tree, Map):
            tree = tree.get(str(step), tree)
        elif isinstance(tree, Items) and isinstance(step, int):
            tree = tree[step]
    return tree


def _without(tree: Map, locations: list[Location]) -> Map:
    """A copy of `tree` without what stands at `locations`; a list keeps an empty mapping in its place."""
    copy = _copied_map(tree)
    for location in locations:
        parent = node_at(copy, location[:-1])
        step = location[-1]
        if isinstance(parent, Map):
            parent.pop(str(step), None)
            parent.dropped.add(str(step))
        elif isinstance(parent, Items) and isinstance(step, int):
            parent[step] = stand_in = Map(parent[step].place)
            stand_in.dropped.add("")
    return copy


def _copied_map(node: Map) -> Map:
    copy = Map(node.place)
    copy.keys_at = node.keys_at
    copy.dropped = set(node.dropped)
    copy.update((key, _copied(value)) for key, value in node.items())
    return copy


def _copied(node: Node) -> Node:
    if isinstance(node, Map):
        return _copied_map(node)
    if isinstance(node, Items):
        items = Items(node.place)
        items.extend(_copied(item) for item in node)
        return items
    return node


def place_of(node: Node, *steps: str | int) -> Place:
    """Where the value at the end of `steps` stands, or what is left of it."""
    return node_at(node, steps).place
