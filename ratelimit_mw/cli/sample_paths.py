"""Find a path that some templates match and others do not. Commands compare an app's routes with rules by such paths.

A template is read as an automaton: a list of steps, each of which takes one character. The search goes through the
automata of all templates at once, one character at a time, and so finds the shortest path. If there is no such path,
it finds that out, too. A parameter with a type stands for its plain values (see `path_templates`). Paths
and templates are compared in their cleaned form, without empty segments.

The search only proposes paths. Which rules apply to a path is decided by `rules.matching`, as for requests.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ratelimit_mw.rules.path_templates import Segment, Template, cleaned, parts_of, pieces_of

_DIGITS = "0123456789"
_HEX = _DIGITS + "abcdefABCDEF"
_MOST_STATES = 20_000
"""The most states that a search visits. Templates that people write need a few hundred."""


class _Step(NamedTuple):
    """One step of an automaton.

    `characters` are those that the step takes: "" for all but a slash, None for all. `loops`: the step may be repeated.
    `skips` is the number of steps that may be left out from here on; 0 if this step must be taken.
    """

    characters: str | None
    loops: bool = False
    skips: int = 0

    def takes(self, character: str) -> bool:
        if self.characters is None:
            return True
        return character in self.characters if self.characters else character != "/"


_ANYTHING = _Step(None, loops=True, skips=1)


def _many(characters: str) -> tuple[_Step, ...]:
    return _Step(characters), _Step(characters, loops=True, skips=1)


def _optional(steps: tuple[_Step, ...]) -> tuple[_Step, ...]:
    return (steps[0]._replace(skips=len(steps)), *steps[1:]) if not steps[0].skips else steps


def _uuid() -> Iterator[_Step]:
    for length in (8, 4, 4, 4, 12):
        if length != 8:
            yield _Step("-")
        yield from [_Step(_HEX)] * length


_WHOLE = _many(_DIGITS)
_STEPS: dict[str, tuple[_Step, ...]] = {
    "str": _many(""),
    "int": _WHOLE,
    "float": (*_WHOLE, _Step(".", skips=3), *_WHOLE),
    "uuid": tuple(_uuid()),
}


def _segment(segment: Segment) -> Iterator[_Step]:
    yield from map(_Step, segment.texts[0])
    for kind, text in zip(segment.kinds, segment.texts[1:], strict=True):
        yield from _STEPS[kind]
        yield from map(_Step, text)


@lru_cache(maxsize=4096)
def _steps(template: Template) -> tuple[_Step, ...]:
    """The automaton of a template's cleaned form."""
    found: list[_Step] = []
    segments, tail, _, _ = parts_of(cleaned(template))
    root = not any(segment.kinds or segment.texts[0] for segment in segments)
    for segment in () if root else segments:
        found += (_Step("/"), *_segment(segment))
    if tail is None:
        return tuple(found) or (_Step("/"),)
    if tail.folder:
        below = (_Step(""), _ANYTHING)
        return (_Step("/"), *_optional(below)) if root else (*found, *_optional((_Step("/"), *below)))
    value: tuple[_Step, ...] = (_ANYTHING,) if tail.before else (_Step(""), _ANYTHING)
    if tail.after or (root and not tail.segments):  # the value may be empty, without an empty segment
        value = _optional(value)
    found += (_Step("/"), *map(_Step, tail.before), *value, *map(_Step, tail.after))
    for segment in tail.segments:
        found += (_Step("/"), *_segment(segment))
    return tuple(found)


_State = frozenset[int]


def _from(steps: Sequence[_Step], place: int, found: set[int]) -> None:
    """Add a place and all places that are reached from it by leaving out steps."""
    found.add(place)
    if place < len(steps) and steps[place].skips:
        _from(steps, place + steps[place].skips, found)


def _start(steps: Sequence[_Step]) -> _State:
    found: set[int] = set()
    _from(steps, 0, found)
    return frozenset(found)


def _next(steps: Sequence[_Step], state: _State, character: str) -> _State:
    found: set[int] = set()
    for place in state:
        if place < len(steps) and steps[place].takes(character):
            _from(steps, place if steps[place].loops else place + 1, found)
    return frozenset(found)


@lru_cache(maxsize=65536)
def sample_path(within: tuple[Template, ...], outside: tuple[Template, ...] = ()) -> str | None:
    """Return a path that all templates of `within` match and none of `outside`; None if there is no such path.

    The path is the shortest one. It is in its cleaned form.
    """
    first = within[0]
    if any(_differ(first, other) for other in within[1:]):
        return None
    inner = [_steps(template) for template in within]
    outer = [_steps(template) for template in outside if not _differ(first, template)]
    # One character stands for all that no template names: x for a letter, a for a hex digit, 1 for a digit.
    named = {character for steps in (*inner, *outer) for step in steps for character in _named(step)}
    alphabet = [*"x1a.", *sorted(named - set("x1a./")), "/"]
    begin = tuple(map(_start, inner)), tuple(map(_start, outer))
    queue = deque([("", *begin)])
    seen = {(False, *begin)}
    while queue and len(seen) < _MOST_STATES:
        path, states, others = queue.popleft()
        slash = path.endswith("/")
        ended = not slash or path == "/"
        if ended and all(map(_is_end, inner, states)) and not any(map(_is_end, outer, others)):
            return path
        for character in _possible(inner, states, alphabet[:-1] if slash else alphabet):  # without empty segments
            after = tuple(_next(steps, state, character) for steps, state in zip(inner, states, strict=True))
            if all(after):
                beside = tuple(_next(steps, state, character) for steps, state in zip(outer, others, strict=True))
                key = character == "/", after, beside
                if key not in seen:
                    seen.add(key)
                    queue.append((path + character, after, beside))
    return None


def _differ(one: Template, other: Template) -> bool:
    """Whether two templates differ in a segment without parameters, so that no path matches both."""
    for piece, beside in zip(pieces_of(cleaned(one)), pieces_of(cleaned(other)), strict=False):
        if "*" in (piece, beside) or ":path}" in piece or ":path}" in beside:
            return False
        if piece != beside and "{" not in piece and "{" not in beside:
            return True
    return False


def _possible(inner: Sequence[Sequence[_Step]], states: Sequence[_State], alphabet: Sequence[str]) -> Sequence[str]:
    """The characters that a template can take next, if it names all of them; otherwise the whole alphabet."""
    for steps, state in zip(inner, states, strict=True):
        next_steps = [steps[place] for place in state if place < len(steps)]
        if all(step.characters for step in next_steps):
            return [each for each in alphabet if any(each in (step.characters or "") for step in next_steps)]
    return alphabet


def _named(step: _Step) -> str:
    return step.characters if step.characters and len(step.characters) == 1 else ""


def _is_end(steps: Sequence[_Step], state: _State) -> bool:
    return len(steps) in state
