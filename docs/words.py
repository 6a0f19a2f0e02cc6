"""The reference of every YAML word, words.md, from the tables of words."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ratelimit_mw.config.file import FILE, json_schema
from ratelimit_mw.config.word import Section
from ratelimit_mw.config.words.selection import BY_VALUES

_HEAD = """\
# YAML reference

Every word of the rules file, with the values that it takes. The default is **bold**. `make docs` makes this page from
the tables in `ratelimit_mw/config`. [Writing rules](rules.md) shows how the words work together.
"""

_BY = """\
### What a rule counts by

The values of `by`. `a+b` is one counter for each pair, `a|b` is the first that is present, and a list has one counter
for each of its items. Names under `attributes` are values too. If the value of a request is absent, the request is not
counted by it.

"""


def page() -> str:
    """The page: one list for each section of the rules file."""
    schema = json_schema()
    sections = {FILE.title: schema, **schema["$defs"]}
    unset = {
        (name, word.key): word.unset
        for name, section in _tables(FILE, {}).items()
        for word in section.words.values()
        if word.unset
    }
    parts = [_HEAD]
    for name, found in sections.items():
        parts.append(_section(name, found, sections, unset))
        if name == "Rule":
            parts.append(_BY + "".join(f"* `{value}`: {about}\n" for value, about in BY_VALUES.items()))
    return "\n".join(parts)


def _tables(section: Section, found: dict[str, Section]) -> dict[str, Section]:
    """A section and all sections in it, by their titles."""
    if section.title not in found:
        found[section.title] = section
        for word in section.words.values():
            if word.section is not None:
                _tables(word.section, found)
    return found


def _section(
    name: str, schema: Mapping[str, Any], sections: Mapping[str, Any], unset: Mapping[tuple[str, str], str]
) -> str:
    rows = [
        f"* `{word}`: {found['description']} ({'**required**; ' * (word in schema.get('required', ()))}"
        f"{_value(found, unset.get((name, word), ''))})"
        for word, found in schema.get("properties", {}).items()
    ]
    places = ", ".join(f"`{place}`" for place in _places(name, sections) if place != name.lower())
    about = f"{schema['description']} Written at {places}." if places else schema["description"]
    other = [] if schema.get("additionalProperties") is False else ["", "Other keys are allowed."]
    return "\n".join([f"## {name}", "", about, *other, "", *rows, ""])


def _places(name: str, sections: Mapping[str, Any]) -> Iterator[str]:
    """The words whose value is the section `name`, with the section that each stands in."""
    for other, schema in sections.items():
        for word, found in schema.get("properties", {}).items():
            if f'"#/$defs/{name}"' in json.dumps(found):
                yield word if other == FILE.title else f"{other}.{word}"


def _value(found: Mapping[str, Any], otherwise: str) -> str:
    """The values that a word takes. The default is bold, or what holds if the word is not set."""
    takes = _takes(found)
    default = f"`{_yaml(found['default'])}`" if "default" in found else otherwise
    if default in takes.split():
        return takes.replace(default, f"**{default}**", 1)
    return f"{takes}; **{default}**" if default else takes


def _takes(schema: Mapping[str, Any]) -> str:
    """The values that a schema takes, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{_yaml(schema['const'])}`"
    if "enum" in schema:
        return _values(schema["enum"])
    for combined in ("anyOf", "oneOf"):
        if combined in schema:
            return _alternatives(schema[combined]) + _examples(schema)
    kind = schema.get("type")
    if kind == "array":
        return f"a list: {_takes(schema.get('items', {}))}"
    if kind == "object":
        return _mapping(schema) + _examples(schema)
    names = {"boolean": "`true` `false`", "integer": "a whole number", "number": "a number", "string": "text"}
    return names.get(kind, "any value") + _range(schema) + _examples(schema)


def _values(values: Sequence[Any]) -> str:
    """The values of an enumeration. Of spellings in small and in capital letters, the small one is enough."""
    small = [value for value in values if value == str(value).lower()]
    more = "" if len(small) == len(values) else ", also in capitals"
    return " ".join(f"`{_yaml(value)}`" for value in small) + more


def _alternatives(schemas: Sequence[Mapping[str, Any]]) -> str:
    """One of several schemas. What was said of one is not repeated in those that hold it."""
    found: list[str] = []
    for text in map(_takes, schemas):
        so_far = ", or ".join(found)
        shorter = text.replace(so_far, "such values").replace("a list: such values", "a list") if so_far else text
        if shorter not in found:
            found.append(shorter)
    return ", or ".join(found)


def _mapping(schema: Mapping[str, Any]) -> str:
    named = [f"`{key}`: {_takes(value)}" for key, value in schema.get("properties", {}).items()]
    other = schema.get("additionalProperties")
    if isinstance(other, Mapping):
        named.append(f"any key: {_takes(other)}")
    return f"a mapping ({'; '.join(named)})" if named else "a mapping"


def _range(schema: Mapping[str, Any]) -> str:
    if "exclusiveMinimum" in schema:
        least = f"above {schema['exclusiveMinimum']}"
    else:
        least = f"from {schema['minimum']}" if "minimum" in schema else ""
    most = f"to {schema['maximum']}" if "maximum" in schema else ""
    return "".join(f" {bound}" for bound in (least, most) if bound)


def _examples(schema: Mapping[str, Any]) -> str:
    found = list(dict.fromkeys(_yaml(example) for example in schema.get("examples", ())))
    return f", as {' '.join(f'`{example}`' for example in found)}" if found else ""


def _yaml(value: object) -> str:
    """A value as YAML writes it in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    if isinstance(value, str):
        return f"'{value}'" if not value or value[0] in "{[" else value
    return json.dumps(value)
