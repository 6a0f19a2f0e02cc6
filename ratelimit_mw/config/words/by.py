"""`by`: what a rule counts by."""

import re

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.config.word import Values
from ratelimit_mw.hints import nearest, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.identifier import Identifier, attributes_of, identifier
from ratelimit_mw.rules.paths.templates import Template

_WITHOUT_ATTRIBUTE = ("global", "route", "connection")


def compile_by(
    rule: Values, templates: tuple[Template, ...], attributes: Attributes, problems: Problems
) -> tuple[Identifier, ...]:
    """One identifier for each entry of the rule's `by`."""
    identifiers: list[Identifier] = []
    seen: set[str] = set()
    for index, entry in enumerate(rule[BY]):
        place = rule.place("by", index)
        faults = list(_faults(entry, templates, attributes))
        for message, hint in faults:
            problems.add(place, message, hint)
        spelling = entry.replace("remote_address", "ip").replace(" ", "")
        if spelling in seen:
            problems.add(place, f"{quoted(entry)} is in the list twice")
        seen.add(spelling)
        if not faults:
            identifiers.append(identifier(entry, attributes))
    return tuple(identifiers)


def _faults(entry: str, templates: tuple[Template, ...], attributes: Attributes) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    parameters = {name for template in templates for name in template.names}
    for part in attributes_of(entry):
        if not part:
            hint = "as ip+user, user|ip, or global" if entry.strip() else "as ip, user or global"
            return [(f"{quoted(entry)} lacks an attribute", hint)]
        if part == "route" and not templates:
            message = "'route' is the template that matched, and this rule has no match.path"
            found.append((message, "add one, or write path"))
        elif part.startswith("path:") and templates and part.removeprefix("path:") not in parameters:
            message = f"no template of match.path has the parameter {{{part.removeprefix('path:')}}}"
            known = [f"path:{name}" for name in sorted(parameters)]
            found.append((message, nearest(part, known) if known else ""))
        elif part not in _WITHOUT_ATTRIBUTE and not attributes.known(part):
            names = [*(name for name in attributes.names() if name != "remote_address"), *_WITHOUT_ATTRIBUTE]
            found.append((f"there is no attribute {quoted(part)}", _instead(part) or nearest(part, names)))
    return found


def _instead(part: str) -> str:
    """The hint for what is meant for several attributes, or for a header's name."""
    if re.search("[,&]| and ", part):
        return "write [ip, user] for a counter each, ip+user for one of both, user|ip for the first there is"
    return f"did you mean 'header:{part}'?" if re.match("x-|authorization$", part, re.IGNORECASE) else ""


BY = kinds.several(
    "by",
    readers.text,
    "What is counted by: ip, user, tier, path, route, method, host, header:N, cookie:N, query:N, path:N, global, any"
    " attribute; a+b for a pair, a|b for the first that is present, a list for a counter each.",
    default=("ip",),
    shown_default="ip",
    compared=True,
)
