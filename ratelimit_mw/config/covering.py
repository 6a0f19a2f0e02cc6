"""Whether one `match` holds wherever another does. Where that is not certain, the answer is no."""

from ratelimit_mw.rules.conditions import Matching
from ratelimit_mw.rules.paths.segments import matcher
from ratelimit_mw.rules.paths.templates import Segment, Template
from ratelimit_mw.settings import Network


def covers(wider: Matching, narrower: Matching) -> bool:
    """True where every request that `narrower` matches is one that `wider` matches."""
    return (
        _within(narrower.methods, wider.methods)
        and _networks(wider.networks, narrower.networks)
        and all(
            any(own.read is other.read and set(other.values) <= set(own.values) for other in narrower.exact)
            for own in wider.exact
        )
        and _paths(wider.templates, narrower.templates)
    )


def _within(narrower: tuple[str, ...], wider: tuple[str, ...]) -> bool:
    return not wider or (bool(narrower) and set(narrower) <= set(wider))


def _networks(wider: tuple[Network, ...], narrower: tuple[Network, ...]) -> bool:
    return not wider or (bool(narrower) and all(any(_holds(own, other) for own in wider) for other in narrower))


def _holds(wider: Network, narrower: Network) -> bool:
    return (
        wider.version == narrower.version
        and wider.prefixlen <= narrower.prefixlen
        and narrower.network_address in wider
    )


def _paths(wider: tuple[Template, ...], narrower: tuple[Template, ...]) -> bool:
    if not wider:
        return True
    held = _forms(wider)
    return bool(narrower) and all(any(_template(own, other) for own in held) for other in _forms(narrower))


def _forms(templates: tuple[Template, ...]) -> list[Template]:
    """The templates, and those without a slash at the end that they match as well: a path is tried cleaned, too."""
    return list(dict.fromkeys([*templates, *(each.cleaned for each in templates)]))


def _template(wider: Template, narrower: Template) -> bool:
    head = wider.segments
    if wider.tail is None:
        return (
            narrower.tail is None
            and len(head) == len(narrower.segments)
            and all(map(_segment, head, narrower.segments))
        )
    if wider.tail == narrower.tail and len(head) == len(narrower.segments):
        return all(map(_segment, head, narrower.segments))
    # What is left may be anything: all paths that go on behind the head, and for a folder those that end with it too.
    folder = wider.tail.folder
    anything = folder or (not wider.tail.before and not wider.tail.after and not wider.tail.segments)
    known = len(narrower.segments) + (narrower.tail is not None and not narrower.tail.folder)
    needed = len(head) + (not folder)
    return anything and known >= needed and all(map(_segment, head, narrower.segments))


def _segment(wider: Segment, narrower: Segment) -> bool:
    if wider == narrower:
        return True
    if not narrower.kinds:
        return matcher(wider)(narrower.texts[0]) is not None
    return wider == _ANY_ONE


_ANY_ONE = Segment(("", ""), ("str",))
