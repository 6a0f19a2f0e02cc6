"""The index of rules: those that may apply to a request are looked up, and not searched for."""

from collections.abc import Callable, Mapping, Sequence

from ratelimit_mw.identity.attributes import Reader
from ratelimit_mw.identity.request import Request
from ratelimit_mw.rules.candidates import Candidate, Program, program
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.conditions import Matching, Networks
from ratelimit_mw.rules.paths.match import NO_PARAMETERS, PathMatcher
from ratelimit_mw.rules.paths.templates import Template
from ratelimit_mw.slices import checkpoint

_Lookup = Callable[[Request], Sequence[Candidate]]


class Index:
    """Rules and exemptions, filed under what a request is looked up by. `address` reads a client's.

    An exemption is a rule without counters: its rank is negative, so it comes before all others.
    """

    def __init__(self, rules: Sequence[CompiledRule], exempt: Sequence[Matching], address: Reader) -> None:
        always: list[Candidate] = []
        owned: list[tuple[int, Template]] = []
        by_value: dict[Reader, dict[str | None, list[Candidate]]] = {}
        by_network: Networks[Candidate] = Networks()
        programs: dict[int, Program] = {}
        for rank, match, rule in (
            *((n - len(exempt), match, None) for n, match in enumerate(exempt)),
            *((rule.rank, rule.match, rule) for rule in rules),
        ):
            checkpoint()
            # A rule is found by the first of these that it has; the rest of its match is tried one by one.
            if match.templates:
                tried = match
            elif match.exact:
                tried = match._replace(exact=match.exact[1:])
            else:
                tried = match._replace(networks=())
            candidate: Candidate = (rank, program(rule, tried.conditions(address)), "", NO_PARAMETERS, True)
            if match.templates:
                owned += [(rank, template) for template in match.templates]
                programs[rank] = candidate[1]
            elif match.exact:
                table = by_value.setdefault(match.exact[0].read, {})
                for value in set(match.exact[0].values):
                    table.setdefault(value, []).append(candidate)
            elif match.networks:
                by_network.add(match.networks, candidate)
            else:
                always.append(candidate)
        self.paths = PathMatcher(owned) if owned else None
        """What finds the rules that go by the path; None where none does."""
        self._programs = programs
        self._always = tuple(always)
        self._lookups: list[_Lookup] = [_by_value(read, table) for read, table in by_value.items()]
        if by_network:
            self._lookups.append(lambda request: by_network.find(address(request)))

    def candidates(self, request: Request) -> Sequence[Candidate]:
        """The rules and exemptions that may apply, less their further conditions; exemptions first."""
        found: list[Candidate] = []
        if self.paths is not None:
            for owner, route, parameters, strict in self.paths.hits(request):
                found.append((owner, self._programs[owner], route, parameters, strict))
        for lookup in self._lookups:
            found += lookup(request)
        return sorted((*self._always, *found)) if found else self._always

    def concerns(self, request: Request) -> bool:
        """Whether some rule may come to apply to a request of this path."""
        return bool(self._always or self._lookups or (self.paths is not None and self.paths.hits(request)))

    @property
    def pieces(self) -> list[object]:
        """What is large of it."""
        return [self.paths, self._lookups, self._always, self._programs]


def _by_value(read: Reader, table: Mapping[str | None, Sequence[Candidate]]) -> _Lookup:
    return lambda request: table.get(read(request), ())
