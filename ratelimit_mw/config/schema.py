"""The JSON Schema of a rules file, made from the tables of words. Editors complete and check files with it."""

from typing import Any

from ratelimit_mw.config.file import FILE

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a rules file."""
    sections: dict[str, Any] = {}
    FILE.as_schema(sections)
    file = sections.pop(FILE.title)
    return {"$schema": DIALECT, "title": "ratelimit_mw rules", **file, "$defs": sections}
