"""A configuration given in code, as a mapping, to the same tree that a file becomes."""

import math
from collections.abc import Mapping

from ratelimit_mw.rules.documents.environment import expand
from ratelimit_mw.rules.documents.scalars import plain
from ratelimit_mw.rules.documents.tree import Items, Map, Node, Place, Problems, Scalar
from ratelimit_mw.rules.documents.yaml_tree import DEEPEST


def convert(config: Mapping[str, object], environ: Mapping[str, str], problems: Problems) -> Node:
    """The tree of `config`. A place has no line here, only its dotted name.

    A text that holds `${NAME}` is read as it would be in a file, and typed after that.
    """
    return _Converter(environ, problems).node(config, "", 1)


class _Converter:
    def __init__(self, environ: Mapping[str, str], problems: Problems) -> None:
        self._environ = environ
        self._problems = problems
        self._order = 0

    def node(self, value: object, path: str, depth: int) -> Node:
        self._order += 1
        place = Place(order=self._order, path=path)
        if depth > DEEPEST:
            self._problems.add(place._replace(path=""), f"nested more than {DEEPEST} levels deep")
            return Scalar("", None, place, unusable=True)
        if isinstance(value, Mapping):
            return self._map(value, place, depth)
        if isinstance(value, (list, tuple)):
            items = Items(place)
            for index, item in enumerate(value):
                items.put(self.node(item, f"{path}[{index}]", depth + 1))
            return items
        return self._scalar(value, place)

    def _map(self, given: Mapping[object, object], place: Place, depth: int) -> Map:
        mapping = Map(place)
        for key, value in given.items():
            if not isinstance(key, str):
                self._problems.add(place, f"a key must be text, not {key!r}")
                continue
            path = f"{place.path}.{key}" if place.path else key
            mapping.put(key, place, self.node(value, path, depth + 1))
        return mapping

    def _scalar(self, value: object, place: Place) -> Scalar:
        if isinstance(value, str):
            text, wrong = expand(value, self._environ)
            for message in wrong:
                self._problems.add(place, message)
            return Scalar(text, text if text == value else plain(text), place, unusable=bool(wrong))
        if value is None:
            return Scalar("", None, place)
        if isinstance(value, bool):
            return Scalar(str(value).lower(), value, place)
        if isinstance(value, int):
            return Scalar(f"{value:#x}" if abs(value) > 10**30 else str(value), value, place)
        if isinstance(value, float):
            # A text, so that whatever wants a number refuses what is none.
            return Scalar(str(value), value if math.isfinite(value) else str(value), place)
        self._problems.add(place, f"must be text, a number, a list or a mapping, not a {type(value).__name__}")
        return Scalar("", None, place, unusable=True)
