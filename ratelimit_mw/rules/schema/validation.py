"""A file's tree against the schema: its values, and what is wrong in our own words and at its own line."""

from typing import Any

from pydantic import BaseModel, ValidationError

from ratelimit_mw.rules.documents.tree import Items, Location, Map, Node, Problems, kind, nearest, node_at, quoted
from ratelimit_mw.rules.readers.wrong import Fault, Wrong
from ratelimit_mw.rules.schema.descriptors import DescriptorSection, RateLimit, Replaced
from ratelimit_mw.rules.schema.file import Client, Defer, File, OverrideSection, Response, Storage
from ratelimit_mw.rules.schema.rule import Match, RuleResponse, RuleSection

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
