"""The JSON Schema of a rules file, with which editors complete and check it."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from ratelimit_mw.rules.schema.file import File


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
