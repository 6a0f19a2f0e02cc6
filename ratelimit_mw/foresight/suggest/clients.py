"""The clients of a traffic and the routes that they use: who does what the others do, and who guesses or crawls.

A route is a template that rules match, such as `/users/{name}/orders/{id:int}`.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from ratelimit_mw.foresight.clients import regular_period
from ratelimit_mw.foresight.suggest.limits import Uses, quantile
from ratelimit_mw.foresight.suggest.traffic import (
    ANY,
    INT,
    OTHER,
    UUID,
    LoggedRequest,
    Route,
    Traffic,
    page_of,
    route_of,
    status_of,
)
from ratelimit_mw.units import DAY

Path = tuple[str, ...]

VALUES = (INT, UUID, ANY)
"""The segments that stand for values."""

_MOST_CHILDREN = 50
"""The most different texts after one parent that are still names of routes. More are values, such as names of users."""

_MOST_AT_ROOT = 100
"""The same for the first segment. Sites have many pages there."""

_OWN_SHARE = 0.02
"""A text with this share of its parent's requests keeps its name among many values, as `/users/me`."""

_SPELLED = {INT: ("id", ":int"), UUID: ("id", ":uuid"), ANY: ("name", "")}

_LOGIN = re.compile(
    "2fa|accounts?|admin|administrator|auth|authenticate|authorize|login|logon|mfa|oauth2?|otp|passw(?:or)?d|register|reset|"
    "sessions?|sign(?:in|up)|token|xmlrpc"
)
"""The words in a path that stand for a login, or for another route where secrets are guessed."""

WORDS = re.compile("[^a-z0-9]+")
"""What stands between two words."""

WRITING = ("POST", "PUT", "PATCH", "DELETE")
"""The methods that change something. A route with such a method may be one where secrets are guessed."""

_NO_ROUTE = (404, 405, 410)
"""The statuses of paths that the app does not have. Scanners ask for many of them."""

_STATIC = re.compile(
    r".*\.(?:avif|bmp|css|eot|gif|ico|jpe?g|m?js|map|mp[34]|otf|pdf|png|svg|ttf|txt|wasm|webm|webmanifest|webp|woff2?|zip)",
    re.IGNORECASE,
)
"""The ends of static files. All of them are one route, and the rule for all requests limits them."""

UNRULED = 2
"""The first routes of a site, which have no rule of their own: paths that the app does not have, and static files."""


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
    names = [name for name in children if name not in VALUES]
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
        words = [word for word in WORDS.split(segment.lower()) if word]
        if any(map(_LOGIN.fullmatch, (*words, "".join(words)))):
            return True
    return False


class Site:
    """The routes of a traffic: its paths, folded to templates.

    Attributes:
        routes: The routes.
        of: The index in `routes` of each route in `Traffic.routes`.
        requests: The requests of each route.
    """

    def __init__(self, traffic: Traffic) -> None:
        statuses = traffic.statuses()
        existing: dict[int, int] = {}
        weights: dict[Path, int] = {}
        for index, by_status in sorted(statuses.items()):
            path = traffic.routes[index].path
            number = sum(each for status, each in by_status.items() if status not in _NO_ROUTE)
            number = number or by_status.total() * is_login(path)
            if number and path != OTHER and not _is_static(path):
                existing[index] = number
                weights[path] = weights.get(path, 0) + number
        folded = fold(weights)
        self.routes = [Route("", OTHER), Route("", ("static",))]
        numbers: dict[Route, int] = {}
        self.of: list[int] = []
        self.requests: Counter[int] = Counter()
        for index, route in enumerate(traffic.routes):
            number = int(_is_static(route.path))
            if index in existing:
                number = numbers.setdefault(Route(route.method, folded[route.path]), len(self.routes))
                if number == len(self.routes):
                    self.routes.append(Route(route.method, folded[route.path]))
            self.of.append(number)
            self.requests[number] += statuses[index].total() if index in statuses else 0
        self._raw = traffic.routes

    def matched_by(self, wanted: Sequence[int]) -> list[tuple[int, ...]]:
        """Return, for each route in `Traffic.routes`, the places in `wanted` of the routes whose templates match it."""
        groups: dict[tuple[str, int], list[tuple[int, Path]]] = {}
        for place, number in enumerate(wanted):
            route = self.routes[number]
            groups.setdefault((route.method, len(route.path)), []).append((place, route.path))
        return [
            tuple(place for place, path in groups.get((route.method, len(route.path)), ()) if matches(path, route.path))
            for route in self._raw
        ]

    def guessed(self, number: int, status: int) -> bool:
        """Return True if a client that gets this status only may guess on a route: it is refused, or logs in."""
        method, path = self.routes[number]
        refused = 400 <= status < 500
        if is_login(path):
            return refused or method in WRITING
        return refused and number >= UNRULED and (method in WRITING or status not in _NO_ROUTE)


def _is_static(path: Path) -> bool:
    return bool(path) and _STATIC.fullmatch(path[-1]) is not None


_CAP = 900
"""The thousandths of the clients whose requests count in full for what the crowd does."""

_SHARE = 3
"""Programs send so many times the share of requests to a login that the others send, if its status does not tell."""

_LEAST_TRACK = 10
"""A client with fewer requests is not said to do one thing only, because chance could make it look so."""

_COMMON = 3
"""A route is common if those who use it send at least one of so many requests."""

_PER_SPAN = 20
_LEAST_SPANS = 20
"""Requests are steady or not in at least so many spans of time, which have so many requests each on average."""

_LEFT_OUT = 20
"""A client does something else if it leaves out routes that have one of so many requests."""

_EXPECTED = 20
"""The requests to a route that a client must have sent, if it did what the others do, to be compared there."""


class Track(NamedTuple):
    """What a client does on one route, if nearly all of its requests there have one status.

    Attributes:
        status: The status.
        requests: The number of its requests to the route.
    """

    status: int
    requests: int


class Poll(NamedTuple):
    """What a client asks for at regular intervals.

    Attributes:
        route: The index of the route in the traffic.
        period: The time between two requests, in microseconds.
        requests: The number of these requests.
    """

    route: int
    period: int
    requests: int


def track_of(statuses: Mapping[int, int]) -> Track | None:
    """Return what a client does on a route if at least 90 % of at least 10 requests have one status, otherwise None."""
    requests = sum(statuses.values())
    number, status = max((number, status) for status, number in statuses.items())
    return Track(status, requests) if requests >= _LEAST_TRACK and 10 * number >= 9 * requests else None


def poll_of(requests: Sequence[LoggedRequest]) -> Poll | None:
    """Return what a client polls: one page, with success, in at least 20 and 90 % of its requests. Otherwise None.

    In a period of more than a day, a log shows too few requests.
    """
    number, page = max((number, page) for page, number in Counter(page_of(packed) for _, packed in requests).items())
    if 10 * number < 9 * len(requests):
        return None
    own = [(at, packed) for at, packed in requests if page_of(packed) == page]
    period = regular_period(sorted(after - before for (before, _), (after, _) in pairwise(own)))
    fails = 2 * sum(status_of(packed) >= 400 for _, packed in own) > number
    return Poll(route_of(own[0][1]), period, number) if 0 < period <= DAY and not fails else None


def is_steady(times: Sequence[int]) -> bool:
    """Return True if requests come as evenly as those of a program: about as many in each of at least 20 spans of time.

    People come and go. The variance of their numbers in equal spans is at least the mean, as in a Poisson process.
    """
    spans = len(times) // _PER_SPAN
    if spans < _LEAST_SPANS:
        return False
    whole = times[-1] - times[0] + 1
    numbers = Counter((at - times[0]) * spans // whole for at in times)
    # With S for the sum of squares and n for all requests: 3 (S / spans - (n / spans)²) < n / spans.
    squares = sum(number * number for number in numbers.values())
    return 3 * (squares * spans - len(times) ** 2) < len(times) * spans


Likeness = Literal["alike", "unlike", "unknown"]
"""Whether a client does what the others do. Unknown: it sent too little, or the others do too few different things."""


class Crowd:
    """What most clients do: the share of each route in their requests.

    The requests of a client count up to a cap, so that no client decides what the others do.

    Args:
        cap: The most requests of a client that count.
    """

    def __init__(self, cap: int) -> None:
        self.clients = 0
        """The clients that were added."""
        self._cap = cap
        self._weights: Counter[int] = Counter()
        self._reach: Counter[int] = Counter()
        self._total = 0

    def add(self, counts: Mapping[int, int]) -> None:
        """Add the requests of one client, by route."""
        size = sum(counts.values())
        own = min(size, self._cap)
        self.clients += 1
        self._total += 1000 * own
        for route, number in counts.items():
            self._weights[route] += 1000 * own * number // size
            self._reach[route] += 1000 * own

    def often(self, route: int, number: int, size: int, times: int) -> bool:
        """Return True if `number` of `size` requests are more than so many times the share that a route has."""
        return number * self._total > times * self._weights[route] * size

    @cached_property
    def _common(self) -> list[tuple[int, int]]:
        """The common routes, after all clients were added: the weight of each, and the route. The heaviest is first."""
        common = [route for route, reach in self._reach.items() if _COMMON * reach >= self._total]
        return sorted([(self._weights[route], route) for route in common], reverse=True)

    def likeness(self, counts: Mapping[int, int]) -> Likeness:
        """Return whether a client with these requests, by route, does what the others do on the common routes.

        People do so, and also many people behind one address. A program that fetches pages, or guesses, leaves out what
        others do: of routes that have at least 5 % of their requests, it has less than a quarter of their share.
        """
        size, compared, left_out = sum(counts.values()), 0, 0
        for weight, route in self._common:
            if weight * size < _EXPECTED * self._total:
                break
            compared += 1
            if 4 * counts.get(route, 0) * self._total < weight * size:
                left_out += weight
        if _LEFT_OUT * left_out >= self._total:
            return "unlike"
        return "alike" if compared > 1 else "unknown"


class Clients:
    """The clients of a traffic, by their indexes.

    Args:
        traffic: The traffic.
        site: Its routes.
        periods: The periods of the limits.

    Attributes:
        names: The clients, sorted.
        overall: How they use all requests.
        tracks: The one-track clients of each route that may guess there.
        guessers: The clients that guess on a route, and do not do what the others do.
        alike: The clients that do what the others do, and sent enough to see this.
        unlike: The clients that do something else.
        polls: What clients ask for at regular intervals.
        main: The route that has at least 80 % of the requests of a client.
    """

    def __init__(self, traffic: Traffic, site: Site, periods: Sequence[int]) -> None:
        self.names = traffic.clients
        self._traffic, self._site = traffic, site
        self.overall = Uses(periods, lambda client: [at for at, _ in traffic.of(self.names[client])])
        self.tracks: dict[int, dict[int, Track]] = {}
        self.guessers: set[int] = set()
        self.alike: set[int] = set()
        self.unlike: set[int] = set()
        self.polls: dict[int, Poll] = {}
        self.main: dict[int, int] = {}
        crowd = self._look()
        self._compare(crowd)

    def _look(self) -> Crowd:
        """Look at each client by itself, and return what most of them do."""
        sizes = sorted(self._traffic.size(name) for name in self.names)
        cap = quantile(sizes, _CAP) if sizes else 1
        everyone, mixed = Crowd(cap), Crowd(cap)
        for client, name in enumerate(self.names):
            requests = self._traffic.of(name)
            self.overall.add(client, [at for at, _ in requests])
            counts: Counter[int] = Counter()
            statuses: dict[int, Counter[int]] = {}
            for (raw, status), number in self._traffic.counts_of(name).items():
                route = self._site.of[raw]
                counts[route] += number
                statuses.setdefault(route, Counter())[status] += number
            found = False
            for route, by_status in statuses.items():
                track = track_of(by_status)
                if track is not None and self._site.guessed(route, track.status):
                    self.tracks.setdefault(route, {})[client] = track
                    found = True
            number, route = max((number, route) for route, number in counts.items())
            if len(requests) >= _LEAST_TRACK and 5 * number >= 4 * len(requests) and route >= UNRULED:
                self.main[client] = route
                found = True
                poll = poll_of(requests) if self._site.routes[route].method not in WRITING else None
                if poll is not None:
                    self.polls[client] = poll
            counts.pop(0, None)
            everyone.add(counts)
            if not found:
                mixed.add(counts)
        return mixed if 2 * mixed.clients >= everyone.clients else everyone

    def _compare(self, crowd: Crowd) -> None:
        """Compare each client with what most of them do."""
        for client, size in enumerate(self.overall.requests):
            counts: Counter[int] = Counter()
            for (raw, _), number in self._traffic.counts_of(self.names[client]).items():
                counts[self._site.of[raw]] += number
            likeness = crowd.likeness(counts)
            main = self.main.get(client)
            apart = likeness == "unlike" or (main is not None and crowd.often(main, counts[main], size, 2))
            if apart or is_steady(self.overall.times(client)):
                self.unlike.add(client)
            elif likeness == "alike":
                self.alike.add(client)
            for route, tracks in self.tracks.items():
                track = tracks.get(client)
                if track is not None:
                    if track.status < 400 and not crowd.often(route, track.requests, size, _SHARE):
                        del tracks[client]  # it logs in as often as the others, for its size
                    elif client not in self.alike:
                        self.guessers.add(client)

        if 2 * len(self.unlike) > len(self.names):
            self.unlike.clear()  # the clients have so little in common that no number could be taken from the others

    def uses(self, asked: Sequence[Sequence[int]], number: int) -> list[Uses]:
        """Return how the clients use the requests of some rules.

        Args:
            asked: The places of the rules that apply to each route in `Traffic.routes`.
            number: The number of rules.
        """

        def times(place: int) -> Callable[[int], Sequence[int]]:
            of = self._traffic.of
            return lambda client: [at for at, packed in of(self.names[client]) if place in asked[route_of(packed)]]

        found = [Uses(self.overall.periods, times(place)) for place in range(number)]
        for client, name in enumerate(self.names):
            own: dict[int, list[int]] = {}
            for at, packed in self._traffic.of(name):
                for place in asked[route_of(packed)]:
                    own.setdefault(place, []).append(at)
            for place, moments in own.items():
                found[place].add(client, moments)
        return found
