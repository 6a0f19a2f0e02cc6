"""The reference of the public names, api/*.md, one page a module, from their docstrings.

The modules and their names are those of the tables in reference.md.
"""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin

from django.conf import settings

REFERENCE = Path(__file__).with_name("reference.md")

HIDDEN = {
    "EntryList": {"read"},
    "Distribution": {"plus"},
    "Intent": {"decides"},
    "Override": {"compiled", "name", "text"},
    "OverrideList": {"records"},
    "RateLimitThrottle": {"limit_of", "rule_of"},
    "RateLimiter": {
        *("at_close", "at_first_request", "clock", "engine", "require", "response"),
        *("rules", "storage_url"),
    },
    "Reply": {"admits"},
    "Setting": {"lasts", "text"},
    "Tally": {
        *("after_fork", "answered", "banned", "cell", "counters", "deferred", "due", "failed"),
        *(
            "hit",
            "hits_of",
            "measured",
            "near",
            "passed",
            "passes",
            "passes_of",
            "refused",
            "reset",
            "shed",
            "store",
            "totals",
        ),
        *("trace", "traced", "tracers", "watchers"),
    },
}
"""What the package itself uses of public classes."""

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):\n((?:    .*\n?|\n)*)", re.MULTILINE)
_ITEM = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
_HEADINGS = {"Args": "Arguments", "Attributes": "Attributes"}


def public() -> dict[str, list[str]]:
    """The names of each public module, as reference.md lists them."""
    rows = re.findall(r"^\| \[`(ratelimit_mw[.a-z_]*)`\]\S+ \| `(.*)` \|$", REFERENCE.read_text("utf-8"), re.MULTILINE)
    return {module: names.split("` `") for module, names in rows}


def pages() -> dict[str, str]:
    """The text of each page, by the path of its file."""
    if not settings.configured:
        settings.configure()  # Django REST framework reads them when it is imported
    return {f"api/{module}.md": page(module, names) for module, names in public().items()}


def page(module: str, names: list[str]) -> str:
    """The page of one module."""
    found = importlib.import_module(module)
    shown_there = {} if module == "ratelimit_mw" else vars(importlib.import_module("ratelimit_mw"))
    entries = [
        f"## {name}\n\nSee [`ratelimit_mw.{name}`](ratelimit_mw.md#{name.lower()}).\n"
        if shown_there.get(name) is getattr(found, name)
        else _entry(name, getattr(found, name))
        for name in names
    ]
    return "\n".join([f"# {module}\n", f"{_summary(found)}\n", *entries])


def members(found: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class."""
    hidden = HIDDEN.get(found.__name__, ())
    for name, member in vars(found).items() if inspect.isclass(found) else ():
        plain = getattr(member, "__func__", member)
        public = not name.startswith("_") and name not in hidden and not _summary(plain).startswith("Internal.")
        if public and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield name, plain


def _entry(name: str, found: Any) -> str:
    """A class, a function or an exception, with its arguments, errors and members."""
    sections = dict(_SECTION.findall(inspect.getdoc(found) or ""))
    lines = [f"## {name}\n"]
    if "Args" in sections or not inspect.isclass(found):
        lines.append(f"`{name}{_signature(found)}`\n")
    lines.append(f"{_summary(found)}\n")
    for title, heading in _HEADINGS.items():
        items = _ITEM.findall(sections.get(title, ""))
        shown = [f"* `{item}`: {_joined(about)}" for item, about in items if item not in HIDDEN.get(name, ())]
        lines += [f"{heading}:\n", *shown, ""] if shown else []
    raised = [f"`{error}`" for error, _ in _ITEM.findall(sections.get("Raises", ""))]
    if raised:
        lines.append(f"Raises {', '.join(raised)}.\n")
    for heading, shown in (("Settings", _flags(found)), ("Methods and properties", _members(dict(members(found))))):
        lines += [f"{heading}:\n", *shown, ""] if shown else []
    return "\n".join(lines)


def _flags(found: Any) -> list[str]:
    """A line for each setting of `ratelimit-mw serve`."""
    fields = dataclasses.fields(found) if dataclasses.is_dataclass(found) else ()
    flags = {each.name: each.metadata["flag"] for each in fields if "flag" in each.metadata}
    return [
        f"* `{name}`: {flag.about}" + (f" Default: `{flag.default}`." if flag.default is not None else "")
        for name, flag in flags.items()
    ]


def _members(found: dict[str, Any]) -> list[str]:
    """A line for each member. The line of a blocking method names its awaitable twin."""
    lines = []
    for name, member in found.items():
        if name[0] == "a" and name[1:] in found:
            continue
        twin = f", `a{name}`" if f"a{name}" in found else ""
        signature = "" if isinstance(member, property) else _signature(member)
        lines.append(f"* `{name}{signature}`{twin}: {_summary(member)}")
    return lines


def _signature(found: Any) -> str:
    """The names of the arguments, with the defaults, without types. Options (`Unpack[…]`) are shown by their names."""
    shown: list[inspect.Parameter] = []
    for each in inspect.signature(found).parameters.values():
        if each.kind is inspect.Parameter.VAR_KEYWORD and get_origin(each.annotation) is Unpack:
            (options,) = get_args(each.annotation)
            shown += [inspect.Parameter(name, each.KEYWORD_ONLY, default=...) for name in options.__annotations__]
        elif each.name not in {"self", "cls"}:
            shown.append(each.replace(annotation=inspect.Parameter.empty))
    return re.sub(r"<\S+ object at \w+>|Ellipsis", "…", str(inspect.Signature(shown)))


def _summary(found: Any) -> str:
    """The first paragraph of a docstring."""
    return _joined((inspect.getdoc(found) or "").partition("\n\n")[0])


def _joined(text: str) -> str:
    return " ".join(text.split())
