"""A `match` to templates and conditions, and a `by` to identifiers."""

import re
from collections.abc import Iterator

from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.identifier import Identifier, attributes_of, identifier
from ratelimit_mw.rules.breath import breathe
from ratelimit_mw.rules.conditions import Exact, Matching
from ratelimit_mw.rules.documents.tree import Map, Node, Problems, nearest, place_of, quoted
from ratelimit_mw.rules.paths.templates import Template, apart_from_floats
from ratelimit_mw.rules.readers import values
from ratelimit_mw.rules.readers.wrong import Wrong
from ratelimit_mw.rules.schema.rule import Match

_WITH_PORT = re.compile(r"[^:]:[0-9]+$")
_ELSEWHERE = {"method": "write methods", "remote_address": "write ip"}
_KEYS = ("path", "methods", "ip", "host", "tier", "user", "header:N", "cookie:N", "query:N")
_WITHOUT_ATTRIBUTE = ("global", "route", "connection")


def compile_match(match: Match, node: Node, attributes: Attributes, problems: Problems) -> Matching:
    """What `match`, which stands at `node`, asks of a request."""
    breathe()
    exact: list[Exact] = []
    if match.host:
        for host in match.host:
            if _WITH_PORT.search(host):
                problems.add(place_of(node, "host"), f"{quoted(host)}: a host is matched without its port")
            elif not host.strip("."):
                problems.add(place_of(node, "host"), f"{quoted(host)} is no name of a host", "as api.example.com")
        exact.append(Exact(attributes.reader("host"), tuple(host.lower().rstrip(".") for host in match.host), "host"))
    exact += [
        Exact(attributes.reader(name), wanted, name) for name in ("tier", "user") if (wanted := getattr(match, name))
    ]
    for key, value in (match.model_extra or {}).items():
        found = _attribute(key, value, node, attributes, problems)
        if found is not None:
            exact.append(found)
    return Matching(match.path or (), tuple(exact), match.ip or (), match.methods or ())


def ints_apart_from_floats(*listed: tuple[Matching, ...]) -> Iterator[tuple[Matching, ...]]:
    """The same lists. Where the file has a float at the place of an int, the int no longer matches 7.0."""
    apart = apart_from_floats(template for matches in listed for match in matches for template in match.templates)
    for matches in listed:
        yield tuple(
            match._replace(templates=tuple(apart.get(each, each) for each in match.templates)) if apart else match
            for match in matches
        )


def _attribute(key: str, value: Node, node: Node, attributes: Attributes, problems: Problems) -> Exact | None:
    place = node.keys_at[key] if isinstance(node, Map) else value.place
    if key in _ELSEWHERE:
        problems.add(place, f"unknown key {quoted(key)}", _ELSEWHERE[key])
    elif key.startswith("path:"):
        problems.add(place, f"unknown key {quoted(key)}", "write the value into match.path, in place of the parameter")
    elif not attributes.known(key):
        custom = [name for name in attributes.names() if name not in (*_ELSEWHERE, "path:N")]
        problems.add(place, f"unknown key {quoted(key)}", nearest(key, dict.fromkeys((*_KEYS, *custom))))
    else:
        try:
            return Exact(attributes.reader(key), values.each(values.filled)(value), key)
        except Wrong as wrong:
            for fault in wrong.faults:
                problems.add(fault.place or value.place, fault.message, fault.hint)
    return None


def compile_by(
    by: tuple[str, ...], templates: tuple[Template, ...], node: Node, attributes: Attributes, problems: Problems
) -> tuple[Identifier, ...]:
    """One identifier for each entry of `by`, which stands at `node`."""
    identifiers: list[Identifier] = []
    seen: set[str] = set()
    for index, entry in enumerate(by):
        place = place_of(node, index)
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
            found.append(
                ("'route' is the template that matched, and this rule has no match.path", "add one, or write path")
            )
        elif part.startswith("path:") and templates and part.removeprefix("path:") not in parameters:
            message = f"no template of match.path has the parameter {{{part.removeprefix('path:')}}}"
            found.append(
                (message, nearest(part, [f"path:{name}" for name in sorted(parameters)]) if parameters else "")
            )
        elif part not in _WITHOUT_ATTRIBUTE and not attributes.known(part):
            names = [*(name for name in attributes.names() if name != "remote_address"), *_WITHOUT_ATTRIBUTE]
            found.append((f"there is no attribute {quoted(part)}", _instead(part) or nearest(part, names)))
    return found


def _instead(part: str) -> str:
    """The hint for what is meant for several attributes, or for a header's name."""
    if re.search("[,&]| and ", part):
        return "write [ip, user] for a counter each, ip+user for one of both, user|ip for the first there is"
    return f"did you mean 'header:{part}'?" if re.match("x-|authorization$", part, re.IGNORECASE) else ""
