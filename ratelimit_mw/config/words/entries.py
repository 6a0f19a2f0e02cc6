"""`entries`: the lists of entries that a request sends to the descriptors."""

from collections.abc import Iterator, Sequence

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Invalid, Items, Place, Problems, kind
from ratelimit_mw.config.tree import Node as Written
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.client import ATTRIBUTES, CLIENT, TIER, USER
from ratelimit_mw.hints import nearest, quoted
from ratelimit_mw.identity.attributes import Attributes, Reader, canonical_name
from ratelimit_mw.identity.request import Request
from ratelimit_mw.rules.descriptors import Limit, Node, Sources

UNKNOWN = "?"
"""The value of an address that is not known: all requests without one share the counters that they meet."""

Keys = tuple[str, ...]


def read_entries(node: Written) -> tuple[Keys, ...]:
    """The lists that requests send, each a name of an attribute or a list of them. Raises `Invalid`."""
    if not isinstance(node, Items):
        hint = "as [[message_type, to_number]]"
        raise Invalid.at(None, f"must be a list of lists of attributes, not {kind(node)}", hint)
    invalid = Invalid()
    lists: list[Keys] = []
    for item in node:
        with invalid.gathering(item.place):
            lists.append(readers.each(readers.text)(item))
    invalid.finish()
    return tuple(lists)


def compile_entries(file: Values, root: Node, attributes: Attributes, problems: Problems) -> list[Sources]:
    """The lists that may end at a limit of the tree under `root`, each with what reads its values."""
    stated = file[ENTRIES]
    lists = _default(file, root, attributes) if stated is None else _stated(file, stated, attributes, problems)
    return [tuple((key, _reader(key, attributes)) for key in keys) for keys in lists if any(limits_at(root, keys))]


def warn_of_unreached(
    file: Values, root: Node, lists: Sequence[Sources], limits: Sequence[tuple[Limit, Place]], warnings: Problems
) -> None:
    """Note that there are limits which no request reaches; `check()` can still be given their entries."""
    client = file[CLIENT]
    absent = {word.key for word in (USER, TIER) if client[word] is None}
    sent = [keys for sources in lists if not absent & set(keys := tuple(key for key, _ in sources))]
    reached = {limit.key for keys in sent for limit in limits_at(root, keys)}
    apart = [(limit, place) for limit, place in limits if limit.key not in reached]
    if apart:
        limit, place = apart[0]
        more = f" (and {len(apart) - 1} more)" if len(apart) > 1 else ""
        message = f"no request sends the entries of {quoted(limit.rule.name)}{more}: only check([...]) can"
        warnings.add(place, message, "attributes: says where a request's entries come from, entries: which are sent")


def limits_at(root: Node, keys: Keys) -> Iterator[Limit]:
    """The limits at which a list of entries with these keys may end."""
    nodes = [root]
    for key in keys:
        nodes = [child for node in nodes if key in node.branches for child in node.branches[key].nodes()]
    return (node.limit for node in nodes if node.limit is not None)


def _default(file: Values, root: Node, attributes: Attributes) -> list[Keys]:
    """Each attribute alone, and all of them in the file's order.

    An attribute of this file's own is always one. Those that every request has are where a descriptor names them.
    """
    own = tuple(file[ATTRIBUTES])
    named = tuple(key for key in dict.fromkeys(_keys(root)) if key not in own and _is_attribute(key, attributes))
    return list(dict.fromkeys([*((key,) for key in own + named), own, own + named]))


def _keys(node: Node) -> Iterator[str]:
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
            problems.add(file.place("entries", n), "this list of entries is here twice")
        first.add(keys)
    return [] if problems else list(stated)


def _reader(key: str, attributes: Attributes) -> Reader:
    read = attributes.reader(key)
    if canonical_name(key) != "ip":
        return read

    def known_or_not(request: Request) -> str:
        value = read(request)
        if value is None:
            attributes.report_unknown_address()
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
    about="The lists of entries that a request sends to the descriptors, each of attributes.",
)
