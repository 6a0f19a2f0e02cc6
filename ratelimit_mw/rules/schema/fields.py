"""The types of the values in a file's sections: each with its reader, and with what an editor is told of it."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from ratelimit_mw.model import Priority
from ratelimit_mw.rules.paths.templates import Template
from ratelimit_mw.rules.readers import responding, times, values
from ratelimit_mw.rules.schema.json_forms import TEXT, or_list
from ratelimit_mw.settings import Network

Text = Annotated[str, PlainValidator(values.text), WithJsonSchema(TEXT)]
OptionalText = Annotated[str | None, PlainValidator(values.optional_text), WithJsonSchema(TEXT)]
Name = Annotated[
    str, PlainValidator(values.name), WithJsonSchema({**TEXT, "minLength": 1, "maxLength": values.LONGEST_NAME})
]
WHOLE = BeforeValidator(values.whole)
Flag = Annotated[bool, BeforeValidator(values.flag)]
Duration = Annotated[
    float,
    PlainValidator(times.duration),
    WithJsonSchema({**TEXT, "default": "100ms", "examples": ["100ms", "2s"]}),
]
Interval = Annotated[
    float | None,
    PlainValidator(times.interval),
    WithJsonSchema({**TEXT, "default": "5s", "examples": ["5s", "1m", "off"]}),
]
Status = Annotated[int, Field(ge=400, le=599), WHOLE]
Message = Annotated[str, PlainValidator(responding.read_message), WithJsonSchema(TEXT)]
PriorityWord = Annotated[Priority, BeforeValidator(values.one_of("critical", "normal", "low"))]
OnError = Annotated[Literal["allow", "deny", "local"], BeforeValidator(values.one_of("allow", "deny", "local"))]
Networks = Annotated[tuple[Network, ...], PlainValidator(values.each(values.network)), WithJsonSchema(or_list(TEXT))]
Paths = Annotated[tuple[Template, ...], PlainValidator(values.each(values.template)), WithJsonSchema(or_list(TEXT))]
Methods = Annotated[tuple[str, ...], PlainValidator(values.each(values.method)), WithJsonSchema(or_list(TEXT))]
Texts = Annotated[tuple[str, ...], PlainValidator(values.each(values.text)), WithJsonSchema(or_list(TEXT))]
Matched = Annotated[
    tuple[str, ...],
    PlainValidator(values.each(values.filled)),
    WithJsonSchema(or_list({**TEXT, "minLength": 1, "pattern": r"\S"})),
]
"""What an attribute of a request has to be."""
