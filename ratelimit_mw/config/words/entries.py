"""`entries`: the lists of entries that requests send to the descriptors."""

from collections.abc import Iterator, Sequence

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Invalid, Items, Node, Place, Problems, kind
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.client import ATTRIBUTES, CLIENT, TIER, USER
from ratelimit_mw.errors import nearest, quoted
from ratelimit_mw.identity.attributes import Attributes, Reader, canonical_name
from ratelimit_mw.identity.request import Request
from ratelimit_mw.rules.descriptors import DescriptorLimit, DescriptorNode, EntryReaders

UNKNOWN = "?"
"""The value of an unknown address. All requests without an address share their counters."""

Keys = tuple[str, ...]


def read_entries(node: Node) -> tuple[Keys, ...]:
    """Read the lists of entries: each is an attribute or a list of attributes. Raises `Invalid`."""
    if not isinstance(node, Items):
        hint = "for example [[message_type, to_number]]"
        raise Invalid.at(None, f"must be a list of lists of attributes, not {kind(node)}", hint)
    invalid = Invalid()
    lists: list[Keys] = []
    for item in node:
        with invalid.gathering(item.place):
            lists.append(readers.each(readers.text)(item))
    invalid.finish()
    return tuple(lists)


UNREACHED = "no request sends the entries of"
"""The beginning of a warning that does not hold for the service: Envoy sends entries itself."""


def compile_entries(
    file: Values, root: DescriptorNode, attributes: Attributes, problems: Problems
) -> list[EntryReaders]:
    """Return the lists that can end at a limit of the tree under `root`, with the readers of their values."""
    stated = file[ENTRIES]
    lists = _default(file, root, attributes) if stated is None else _stated(file, stated, attributes, problems)
    return [tuple((key, _reader(key, attributes)) for key in keys) for keys in lists if any(limits_at(root, keys))]


def warn_of_unreachable_limits(
    file: Values,
    root: DescriptorNode,
    lists: Sequence[EntryReaders],
    limits: Sequence[tuple[DescriptorLimit, Place]],
    warnings: Problems,
) -> None:
    """Warn about limits that no request reaches. A call of `check()` can still pass their entries."""
    client = file[CLIENT]
    absent = {word.key for word in (USER, TIER) if client[word] is None}
    sent = [keys for sources in lists if not absent & set(keys := tuple(key for key, _ in sources))]
    reached = {limit.key for keys in sent for limit in limits_at(root, keys)}
    unreached = [(limit, place) for limit, place in limits if limit.key not in reached]
    if unreached:
        limit, place = unreached[0]
        more = f" (and {len(unreached) - 1} more)" if len(unreached) > 1 else ""
        message = f"{UNREACHED} {quoted(limit.rule.name)}{more}: only check([...]) can send them"
        warnings.add(
            place, message, "define the values under attributes, and the entries that requests send under entries"
        )


def limits_at(root: DescriptorNode, keys: Keys) -> Iterator[DescriptorLimit]:
    """Return the limits at which a list of entries with these keys can end."""
    nodes = [root]
    for key in keys:
        nodes = [child for node in nodes if key in node.branches for child in node.branches[key].nodes()]
    return (limit for node in nodes for limit in node.limits)


def _default(file: Values, root: DescriptorNode, attributes: Attributes) -> list[Keys]:
    """Return the lists that are sent if `entries` is not set: each attribute alone, and all in the order of the file.

    All attributes that the file defines are sent. Built-in attributes are sent if a descriptor has them as its key.
    """
    own = tuple(file[ATTRIBUTES])
    named = tuple(key for key in dict.fromkeys(_keys(root)) if key not in own and _is_attribute(key, attributes))
    return list(dict.fromkeys([*((key,) for key in own + named), own, own + named]))


def _keys(node: DescriptorNode) -> Iterator[str]:
    for key, branch in node.branches.items():
        yield key
        for child in branch.nodes():
            yield from _keys(child)


def _is_attribute(key: str, attributes: Attributes) -> bool:
    return attributes.known(key) and not key.startswith("path:")


def _stated(file: Values, stated: tuple[Keys, ...], attributes: Attributes, problems: Problems) -> list[Keys]:
    first: set[Keys] = set()
    for n, keys in enumerate(stated):
        for index, key in enumerate(keys):
            if not _is_attribute(key, attributes):
                names = [name for name in attributes.names() if name != "path:N"]
                place = file.place("entries", n, index)
                problems.add(place, f"there is no attribute {quoted(key)}", nearest(key, names))
        if keys in first:
            problems.add(file.place("entries", n), "duplicate list of entries")
        first.add(keys)
    return [] if problems else list(stated)


def _reader(key: str, attributes: Attributes) -> Reader:
    read = attributes.reader(key)
    if canonical_name(key) != "ip":
        return read

    def known_or_not(request: Request) -> str:
        value = read(request)
        if value is None:
            attributes.client_address.report_unknown(request.peer)
        return value or UNKNOWN

    return known_or_not


ENTRIES: Word[tuple[Keys, ...] | None] = Word(
    key="entries",
    read=read_entries,
    default=None,
    schema={
        "type": "array",
        "items": {"anyOf": [kinds.TEXT, {"type": "array", "items": kinds.TEXT, "minItems": 1}]},
    },
    about="The lists of entries that a request sends to the descriptors. Each entry is an attribute.",
)
