"""Folds the paths of a log to routes: the templates that rules match, such as `/users/{name}/orders/{id:int}`."""

import re
from collections.abc import Mapping, Sequence

from ratelimit_mw.foresight.suggest.traffic import ANY, INT, UUID

Path = tuple[str, ...]

_VALUES = (INT, UUID, ANY)

_MOST_CHILDREN = 50
"""The most different texts after one parent that are still names of routes. More are values, such as names of users."""

_MOST_AT_ROOT = 100
"""The same for the first segment. Sites have many pages there."""

_OWN_SHARE = 0.02
"""A text with this share of its parent's requests keeps its name among many values, as `/users/me`."""

_SPELLED = {INT: ("id", ":int"), UUID: ("id", ":uuid"), ANY: ("name", "")}

_LOGIN = re.compile(
    "2fa|auth|authenticate|authorize|login|logon|mfa|oauth2?|otp|passw(?:or)?d|register|sessions?|sign(?:in|up)|token|xmlrpc"
)
"""The words in a path that stand for a login, or for another route where secrets are guessed."""

_WORDS = re.compile("[^a-z0-9]+")


def fold(paths: Mapping[Path, int]) -> dict[Path, Path]:
    """Return the route of each path.

    Args:
        paths: The number of requests of each path.
    """
    found: dict[Path, Path] = {}
    _descend(sorted(paths), (), paths, found)
    return found


def _descend(members: Sequence[Path], route: Path, paths: Mapping[Path, int], found: dict[Path, Path]) -> None:
    """Find the next segment of the routes of paths that have the same route so far."""
    depth = len(route)
    children: dict[str, list[Path]] = {}
    for path in members:
        if len(path) == depth:
            found[path] = route
        else:
            children.setdefault(path[depth], []).append(path)
    names = [name for name in children if name not in _VALUES]
    if len(names) > (_MOST_CHILDREN if depth else _MOST_AT_ROOT):
        weights = {name: sum(paths[path] for path in below) for name, below in children.items()}
        least = _OWN_SHARE * sum(weights.values())
        for name in names:
            if weights[name] < least:
                children.setdefault(ANY, []).extend(children.pop(name))
    for name, below in children.items():
        _descend(below, (*route, name), paths, found)


def matches(route: Path, path: Path) -> bool:
    """Return True if the template of `route` matches the requests of `path`."""
    return len(route) == len(path) and all(own in (ANY, other) for own, other in zip(route, path, strict=True))


def template(route: Path) -> str:
    """Return the template of a route, as in `match.path`."""
    names: set[str] = set()
    pieces: list[str] = []
    for segment in route:
        if segment not in _SPELLED:
            pieces.append(segment)
            continue
        name, kind = _SPELLED[segment]
        own = next(each for number in range(1, 99) if (each := f"{name}{number if number > 1 else ''}") not in names)
        names.add(own)
        pieces.append(f"{{{own}{kind}}}")
    return "/" + "/".join(pieces)


def is_login(route: Path) -> bool:
    """Return True if a segment has a word for a login, such as `login`, `wp-login.php` or `sign-in`."""
    for segment in route:
        words = [word for word in _WORDS.split(segment.lower()) if word]
        if any(map(_LOGIN.fullmatch, (*words, "".join(words)))):
            return True
    return False


def rule_name(method: str, route: Path, taken: set[str]) -> str:
    """Return a name for a rule that is not `taken`, such as `post-login`. It has letters, digits and `-` only."""
    texts = (method, *(segment for segment in route if segment not in _VALUES))
    words = [word for text in texts for word in _WORDS.split(text.lower()) if word]
    base = "-".join(words if len(words) > 1 else (*words, "home"))[:40].strip("-")
    return next(name for number in range(1, 99) if (name := base if number == 1 else f"{base}-{number}") not in taken)
