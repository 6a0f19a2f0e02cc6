"""Chooses the rules for the traffic of a log: one for all requests, and a few for routes that need their own."""

import re
from array import array
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from ratelimit_mw.config.load import Examined
from ratelimit_mw.foresight.logs.formats import UnusableLog
from ratelimit_mw.foresight.suggest.behaviour import (
    HEADROOM,
    MOST,
    WRITING,
    Track,
    busiest_minute,
    extended,
    fence,
    next_round,
    quantile,
    round_limit,
    track_of,
)
from ratelimit_mw.foresight.suggest.routes import Path, fold, is_login, matches, rule_name, template
from ratelimit_mw.foresight.suggest.traffic import (
    OTHER,
    Route,
    Traffic,
    route_of,
    status_of,
    statuses_by_route,
)

DOMAIN = "app"
"""The domain of the proposal."""

LEAST_REQUESTS = 1000
LEAST_CLIENTS = 20
"""A log with less says too little."""

CONVENTION = 5
"""The limit per minute where no number can be taken from the log. It is also the smallest limit."""

_ONE_TRACK = Fraction(1, 20)
"""The share of one-track clients above which a route gets no percentile."""

_DENIED = Fraction(1, 2000)
"""The most requests of ordinary clients that one rule may deny. The rule for all requests and the one for a route may
both deny, so this is half of the 0.1 % that is promised."""

_MOST_RULES = 8
"""The most rules for routes. A person reads them."""

_BUSY = Fraction(1, 10)
"""The share of all requests that a route for reading has if it is busy."""

_LEAST_WRITES = 50
_REFUSED = (401, 403)
_LOGIN_REFUSED = Fraction(1, 10)
"""The share of refused requests (401, 403) above which a route for writing is one where clients log in."""

_NO_ROUTE = (404, 405, 410)
"""The statuses of paths that the app does not have. Scanners ask for many of them."""

_FAILED = 5
_MOSTLY = Fraction(9, 10)
"""A client of which at least so many requests to a route for writing, and this share of them, fail, is not ordinary."""

_STATIC = re.compile(
    r".*\.(?:avif|bmp|css|eot|gif|ico|jpe?g|m?js|map|mp[34]|otf|pdf|png|svg|ttf|txt|wasm|webm|webmanifest|webp|woff2?|zip)",
    re.IGNORECASE,
)
"""The ends of static files. The rule for all requests limits them."""


class MeasuredLimit(NamedTuple):
    """The limit that ordinary clients need, and how it was found.

    Attributes:
        limit: The limit per minute.
        half: The median of the ordinary clients' busiest minutes.
        most: What 99.9 % of the ordinary clients do not exceed.
        beyond: The indexes of the clients beyond the fence, each with its busiest minute. The busiest is first.
        raised: True if the limit is larger than 1.5 × `most`, so that it denies few enough requests.
    """

    limit: int
    half: int
    most: int
    beyond: tuple[tuple[int, int], ...]
    raised: bool


class ProposedRule(NamedTuple):
    """One rule of the proposal.

    Attributes:
        name: The name.
        route: The method and the route. None: all requests.
        limit: The limit per minute.
        measure: How the limit was found. None for a convention.
        reason: Why there is a convention. "" if there is a measure.
    """

    name: str
    route: Route | None
    limit: int
    measure: MeasuredLimit | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The rules that are proposed, and what was found on the way.

    Attributes:
        rules: The rules. The first one is for all requests.
        unruled: The routes that were looked at and have no rule of their own, each with the reason.
        tracks: The one-track clients, sorted by name.
        beyond: The clients far beyond the others, over all requests, each with its busiest minute.
        ordinary: The clients that every number was taken from.
        clients: The number of clients that were looked at.
    """

    rules: Sequence[ProposedRule]
    unruled: Sequence[tuple[Route, str]] = ()
    tracks: Mapping[str, Track] = field(default_factory=dict)
    beyond: Sequence[tuple[str, int]] = ()
    ordinary: frozenset[str] = frozenset()
    clients: int = 0

    def mapping(self, *, enforce: bool) -> dict[str, object]:
        """Return the rules as a rules file has them. Without `enforce`, they are shadow rules."""
        return _mapping(self.rules, enforce=enforce)


def _mapping(rules: Sequence[ProposedRule], *, enforce: bool) -> dict[str, object]:
    return {"domain": DOMAIN, "rules": [_rule_mapping(rule, enforce=enforce) for rule in rules]}


def _rule_mapping(rule: ProposedRule, *, enforce: bool) -> dict[str, object]:
    found: dict[str, object] = {"name": rule.name}
    if rule.route is not None:
        found["match"] = {"path": template(rule.route.path), "methods": [rule.route.method]}
    found |= {"by": "ip", "limit": f"{rule.limit} per minute"}
    return found if enforce else {**found, "shadow": True}


class _Uses:
    """How clients use the requests of one rule, in columns: there may be 250 000 clients.

    Attributes:
        clients: The indexes of the clients.
        peaks: The busiest minute of each.
        requests: The requests of each.
        failed: Those of them that failed (status 400 and above).
    """

    def __init__(self) -> None:
        self.clients, self.peaks, self.requests, self.failed = (array("I") for _ in range(4))

    def add(self, client: int, times: Sequence[int], failed: int = 0) -> None:
        self.clients.append(client)
        self.peaks.append(busiest_minute(times))
        self.requests.append(len(times))
        self.failed.append(failed)

    def mostly_failing(self) -> Iterator[int]:
        """Yield the clients of which nearly all requests failed."""
        for client, requests, failed in zip(self.clients, self.requests, self.failed, strict=True):
            if failed >= _FAILED and failed >= _MOSTLY * requests:
                yield client

    def measure(self, left_out: Container[int], *, strict: bool = False) -> MeasuredLimit | None:
        """Return the limit that ordinary clients need. None if too few clients are not `left_out`.

        Args:
            left_out: The clients that are not ordinary, however busy they are.
            strict: Leave out all clients above the fence. Otherwise only those that come after a gap.
        """
        columns = zip(self.peaks, self.requests, self.clients, strict=True)
        kept = sorted(each for each in columns if each[2] not in left_out)
        if len(kept) < LEAST_CLIENTS:
            return None
        everything = [peak for peak, _, _ in kept]
        edge = fence(everything)
        if not strict:
            edge = extended(edge, everything)
        ordinary = [each for each in kept if each[0] <= edge]
        peaks = [peak for peak, _, _ in ordinary]
        most = quantile(peaks, MOST)
        limit = max(round_limit(most * HEADROOM), CONVENTION)
        needed = _covering(ordinary)
        beyond = tuple((client, peak) for peak, _, client in reversed(kept[len(ordinary) :]))
        return MeasuredLimit(max(limit, next_round(needed)), quantile(peaks, 500), most, beyond, needed > limit)

    def above(self, limit: int, left_out: Container[int]) -> int:
        """Return the requests of the clients whose busiest minute is above a limit."""
        columns = zip(self.peaks, self.requests, self.clients, strict=True)
        return sum(requests for peak, requests, client in columns if peak > limit and client not in left_out)


def _covering(ordinary: Sequence[tuple[int, int, int]]) -> int:
    """Return the smallest peak such that the clients above it have few enough requests.

    A limit denies nothing to a client whose busiest minute is within it, so it denies fewer requests than these.
    """
    allowed = _DENIED * sum(requests for _, requests, _ in ordinary)
    above = 0
    for peak, requests, _ in reversed(ordinary):
        above += requests
        if above > allowed:
            return peak
    return 1


Check = Callable[[Mapping[str, object]], Examined]
"""Examines rules as `ratelimit-mw check` does."""


def propose(traffic: Traffic, check: Check) -> Proposal:
    """Return the rules for the traffic of a log. `check` must find nothing wrong with them.

    Raises:
        UnusableLog: The log has fewer than 1 000 requests or 20 clients.
    """
    clients = traffic.clients
    if traffic.requests < LEAST_REQUESTS:
        found = _counted(traffic.requests, "request")
        raise UnusableLog(f"the log has {found}, but {LEAST_REQUESTS:,} are needed")
    if len(clients) < LEAST_CLIENTS:
        raise UnusableLog(
            f"the log has {_counted(len(clients), 'client')}, but {LEAST_CLIENTS} are needed. Behind a proxy, a log "
            "may have the address of the proxy: `--field ip=…` says where that of the client is"
        )
    return _Analysis(traffic, clients).proposal(check)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


class _Analysis:
    """Looks at each client once, and then at each route that may need a rule."""

    def __init__(self, traffic: Traffic, clients: Sequence[str]) -> None:
        self._routes = traffic.routes
        self._clients = clients
        self._total = traffic.requests
        self._candidates = _candidates(traffic)
        self._overall = _Uses()
        self._uses = [_Uses() for _ in self._candidates]
        self._tracks: dict[int, Track] = {}
        asked = self._rules_by_route()
        for index, client in enumerate(clients):
            requests = traffic.of(client)
            self._overall.add(index, [at for at, _ in requests])
            track = track_of(requests)
            if track is not None:
                self._tracks[index] = track
            own: dict[int, list[int]] = {}
            failed: dict[int, int] = {}
            for at, packed in requests:
                for place in asked[route_of(packed)]:
                    own.setdefault(place, []).append(at)
                    failed[place] = failed.get(place, 0) + (status_of(packed) >= 400)
            for place, times in own.items():
                self._uses[place].add(index, times, failed[place])
        self._guessing = {index for index, track in self._tracks.items() if self._guesses(track)}

    def _rules_by_route(self) -> list[tuple[int, ...]]:
        """Return the places of the candidates that match the requests of each route of the traffic."""
        groups: dict[tuple[str, int], list[tuple[int, Path]]] = {}
        for place, (candidate, _) in enumerate(self._candidates):
            groups.setdefault((candidate.method, len(candidate.path)), []).append((place, candidate.path))
        return [
            tuple(place for place, path in groups.get((route.method, len(route.path)), ()) if matches(path, route.path))
            for route in self._routes
        ]

    def _guesses(self, track: Track) -> bool:
        """Return True if a one-track client may guess secrets: it is refused, or it writes to a login."""
        route = self._routes[track.route]
        return track.fails or (route.method in WRITING and is_login(route.path))

    def proposal(self, check: Check) -> Proposal:
        """Return the proposal."""
        overall = self._overall.measure(self._guessing)
        if overall is None:
            raise UnusableLog(f"fewer than {LEAST_CLIENTS} clients of the log do more than one thing")
        rules = [ProposedRule("everything", None, overall.limit, overall)]
        unruled: list[tuple[Route, str]] = []
        names = {"everything"}
        far = {client for client, _ in overall.beyond}
        for (route, login), uses in zip(self._candidates, self._uses, strict=True):
            found = self._rule(route, uses, overall, login=login)
            if isinstance(found, str):
                unruled.append((route, found))
            elif found is not None and len(rules) <= _MOST_RULES:
                rule = found._replace(name=rule_name(route.method, route.path, names))
                if _is_useful(rules, rule, check):
                    names.add(rule.name)
                    rules.append(rule)
                    if rule.measure is not None:
                        far |= {client for client, _ in rule.measure.beyond}
                    if route.method in WRITING:
                        far.update(uses.mostly_failing())
        clients = self._clients
        return Proposal(
            rules=rules,
            unruled=unruled,
            tracks={clients[index]: track for index, track in self._tracks.items()},
            beyond=[(clients[index], peak) for index, peak in overall.beyond],
            ordinary=frozenset(
                client for index, client in enumerate(clients) if index not in far and index not in self._guessing
            ),
            clients=len(clients),
        )

    def _rule(self, route: Route, uses: _Uses, overall: MeasuredLimit, *, login: bool) -> ProposedRule | str | None:
        """Return the rule for a route, or the reason why it has none. None if that is not worth a line."""
        here = [
            self._tracks[client]
            for client in uses.clients
            if client in self._tracks and self._is_on(self._tracks[client], route)
        ]
        if len(here) > _ONE_TRACK * len(uses.clients):
            return self._convention(route, uses, here, overall, login=login)
        left_out = set(self._guessing)
        if route.method in WRITING:
            left_out.update(uses.mostly_failing())
        measure = uses.measure(left_out, strict=login)
        if measure is not None and (route.method in WRITING or 2 * measure.limit <= overall.limit):
            return ProposedRule("", route, measure.limit, measure) if measure.limit < overall.limit else None
        if measure is None and login and overall.limit > CONVENTION:
            few = f"fewer than {LEAST_CLIENTS} ordinary addresses send this"
            left_out.update(client for client, _ in overall.beyond)
            if uses.above(CONVENTION, left_out) > _DENIED * sum(uses.requests):
                return f"{few}, and often more than {CONVENTION} per minute"
            return ProposedRule("", route, CONVENTION, reason=f"not derived from ordinary use: {few}")
        return None

    def _convention(
        self, route: Route, uses: _Uses, here: Sequence[Track], overall: MeasuredLimit, *, login: bool
    ) -> ProposedRule | str | None:
        """Return the rule for a route where many clients do nothing else: its percentiles would be theirs."""
        number = f"{len(here)} of {len(uses.clients)} addresses"
        refused = 2 * sum(track.fails for track in here) > len(here)
        if not login:
            if not refused:
                return f"{number} send this and little else, with success: programs, whose needs the log does not tell"
            left_out = self._guessing | {client for client, _ in overall.beyond}
            if uses.above(CONVENTION, left_out) > _DENIED * self._total:
                return f"{number} send this and little else, and are refused; but others often need it"
        if overall.limit <= CONVENTION:
            return None
        reason = f"not derived from ordinary use: {number} send this and little else"
        return ProposedRule("", route, CONVENTION, reason=reason + (", and are refused" if refused else ""))

    def _is_on(self, track: Track, route: Route) -> bool:
        own = self._routes[track.route]
        return own.method == route.method and matches(route.path, own.path)


def _is_useful(rules: Sequence[ProposedRule], rule: ProposedRule, check: Check) -> bool:
    """Return True if `check` finds nothing wrong with the rules and this one, such as that it can never deny."""
    examined = check(_mapping([*rules, rule], enforce=True))
    return not examined.problems and not examined.warnings


def _candidates(traffic: Traffic) -> list[tuple[Route, bool]]:
    """Return the routes that may need a rule, and if clients log in there: logins, routes for writing, busy ones."""
    weights: dict[Path, int] = {}
    statuses = dict(statuses_by_route(traffic.counts()))
    for index, by_status in statuses.items():
        path = traffic.routes[index].path
        existing = sum(number for status, number in by_status.items() if status not in _NO_ROUTE)
        if existing and path != OTHER and not _is_static(path):
            weights[path] = weights.get(path, 0) + existing
    folded = fold(weights)
    totals: dict[Route, list[int]] = {}  # requests, and those that were refused
    for index, by_status in statuses.items():
        method, path = traffic.routes[index]
        if path in folded and any(status not in _NO_ROUTE for status in by_status):
            total = totals.setdefault(Route(method, folded[path]), [0, 0])
            total[0] += by_status.total()
            total[1] += sum(by_status[status] for status in _REFUSED)
    logins, writes, reads = [], [], []
    for route, (requests, refused) in sorted(totals.items(), key=lambda item: (-item[1][0], item[0])):
        if route.method in WRITING and (is_login(route.path) or refused >= _LOGIN_REFUSED * requests):
            logins.append((route, True))
        elif route.method in WRITING and requests >= _LEAST_WRITES:
            writes.append((route, False))
        elif route.method == "GET" and requests >= _BUSY * traffic.requests:
            reads.append((route, False))
    return [*logins[:_MOST_RULES], *writes[:_MOST_RULES], *reads[:_MOST_RULES]]


def _is_static(path: Path) -> bool:
    return bool(path) and _STATIC.fullmatch(path[-1]) is not None
