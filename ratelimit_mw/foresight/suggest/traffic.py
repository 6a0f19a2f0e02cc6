"""The requests of a log by client, in bounded memory.

A log may have ten million requests of a million clients, and 125 000 paths are told apart.
"""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple
from urllib.parse import unquote_to_bytes
from zlib import crc32

from ratelimit_mw.foresight.logs import Log
from ratelimit_mw.foresight.logs.entry import LogEntry, Unreadable
from ratelimit_mw.foresight.logs.formats import UnusableLog
from ratelimit_mw.identity.address import canonical, masked
from ratelimit_mw.identity.path_forms import cleaned, path_of_target
from ratelimit_mw.settings import ClientSettings

INT, UUID, ANY = "{int}", "{uuid}", "{any}"
"""The segments that stand for values: whole numbers, UUIDs, and any other text. A literal segment has no brace."""

OTHER = (ANY,) * 17
"""The path of requests whose own path is too long, or came when the table of paths was full. No rule is for it."""

_MOST_SEGMENTS = 16
_LONGEST_SEGMENT = 60
_SHORTEST_UUID = 32
_MOST_REQUESTS = 10_000_000
_MOST_CLIENTS = 1_000_000
_MOST_PATHS = 100_000
_MOST_PARENTS = 25_000
"""The places for paths without their last segment, when there is no place left for whole paths."""

_MOST_CACHED = 50_000
_LONGEST_CACHED = 300
"""The most characters of a target that is remembered. Clients may write much longer ones, all of them different."""

_UUID = re.compile("[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
_HEX = re.compile("(?=.*[0-9])[0-9a-fA-F]{8,}")
_TOKEN = re.compile("(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9_=-]{20,}")
# What a template cannot hold as a text: braces, stars, other dialects, escapes (paths are decoded once), `?` and `#`.
_NOT_LITERAL = re.compile(r"[{}*?#<>\\^$]|^:|%[0-9A-Fa-f]{2}|://|\A\.{1,2}\Z")

_NEVER = 1 << 63

# What else is packed beside the time of a request: 17 bits of its path's hash, 20 of its user, 10 of its status, and 17
# of its route.
_USER = 17
_STATUS = 37
_ROUTE = 47
_HASH = (1 << _USER) - 1
_MOST_USERS = (1 << _STATUS - _USER) - 1

IPV6_PREFIX = ClientSettings("").ipv6_prefix
"""The bits of an IPv6 address that identify a client, as in a rules file that does not set them."""


class Route(NamedTuple):
    """A method, and a path whose values are `INT`, `UUID` or `ANY`."""

    method: str
    path: tuple[str, ...]


LoggedRequest = tuple[int, int]
"""One request: its time in microseconds since the epoch, and the rest, packed in one number.

The rest has the index of its route in `Traffic.routes`, its status, the index of its user in `Traffic.users`, and a
hash of its path.
"""

by_time = itemgetter(0)
"""Reads the time of a request."""


def route_of(packed: int) -> int:
    """Return the index of the route of a request."""
    return packed >> _ROUTE


def user_of(packed: int) -> int:
    """Return the index of the user of a request. 0 stands for none."""
    return packed >> _USER & _MOST_USERS


def page_of(packed: int) -> int:
    """Return what tells the pages of a site apart: the route of a request, and the hash of its path."""
    return packed >> _ROUTE << _USER | packed & _HASH


def status_of(packed: int) -> int:
    """Return the status of a request. 0 if the log does not have it."""
    return packed >> _STATUS & 1023


class Traffic:
    """The requests of each client.

    Args:
        since: The first time that is used, in microseconds since the epoch.
        until: The end: requests from this time on are not used.
    """

    def __init__(self, since: int = 0, until: int | None = None) -> None:
        self.requests = 0
        self.skipped = 0
        """The requests before `since`, or from `until` on."""
        self.without_address = 0
        """The requests without an address that can be read. They belong to no client."""
        self.formats: list[str] = []
        """The formats of the logs, in their order."""
        self.unreadable = Unreadable()
        """The lines that could not be read, or have no request."""
        self.limited_before = 0
        """The requests with the status 429."""
        self.first = self.last = 0
        self.routes: list[Route] = [Route("", OTHER)]
        self.users: list[str] = [""]
        """The users, as the logs have them. The first stands for none."""
        self._since, self._until = since, until if until is not None else _NEVER
        self._clients: dict[str, array[int]] = {}
        self._by_text: dict[str, array[int]] = {}
        self._nameless = array("Q")
        self._numbers: dict[Route, int] = {}
        self._user_numbers: dict[str | None, int] = {None: 0}
        self._tracks: dict[tuple[str, str], int] = {}

    @property
    def clients(self) -> list[str]:
        """The clients, sorted."""
        return sorted(self._clients)

    @property
    def lines(self) -> int:
        """All lines: requests, and those that could not be read."""
        return self.requests + self.skipped + self.unreadable.lines

    def read(
        self,
        paths: Sequence[str],
        form: str = "auto",
        places: Mapping[str, str] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        *,
        lenient: bool = False,
    ) -> None:
        """Add the requests of logs.

        Args:
            paths: The paths of the logs; "-" is standard input.
            form: The format of the logs, see `find_format`.
            places: Where fields are in the logs, by their names.
            on_progress: Is called after each part of a log, with the numbers of requests and of bytes that were read.
            lenient: Find the format of a log of which much cannot be read.

        Raises:
            UnusableLog: The format of a log is not known, it has no addresses, or the logs are too large.
            OSError: A log cannot be read.
        """
        with ExitStack() as stack:
            users = False
            logs = [stack.enter_context(closing(Log(path, self.unreadable))) for path in paths]
            for log in logs:
                found = log.detect(form, places or {}, lenient=lenient)
                self.formats.append(found.name)
                if not found.has("ip"):
                    text = f"{log.path} has no address of the client. `--field ip=…` says where it is"
                    raise UnusableLog(text)
                users = users or found.has("user")
            for log in logs:
                for batch in log.entries(("user", "status") if users else ("status",)):
                    self.add(batch)
                    if on_progress is not None:
                        on_progress(self.requests + self.skipped, sum(each.position for each in logs))

    def add(self, batch: Sequence[LogEntry]) -> None:
        """Add requests, in any order. Raises UnusableLog if they are too many."""
        since, until, by_text, tracks = self._since, self._until, self._by_text, self._tracks
        used = [each for each in batch if since <= each[0] < until]
        self.skipped += len(batch) - len(used)
        if not used:
            return
        times = [each[0] for each in used]
        self.first = min(self.first or until, *times)
        self.last = max(self.last, *times)
        self.requests += len(used)
        self.limited_before += sum([each[4] == 429 for each in used])
        users = self._user_numbers
        for at, ip, method, target, status, _, extra, *_ in used:
            held = by_text.get(ip)
            if held is None:
                held = self._client(ip)
            if held is self._nameless:
                self.without_address += 1
            track = tracks.get((method, target))
            if track is None:
                track = self._track(method, target)
            if extra and extra[0] is not None:
                user = users.get(extra[0])
                if user is None:
                    user = users[extra[0]] = len(self.users)
                    self.users.append(extra[0])
                track |= user << _USER
            held.append(at)
            held.append(track | status << _STATUS)
        if self.requests > _MOST_REQUESTS or max(len(self._clients), len(self.users)) > _MOST_CLIENTS:
            most = f"{_MOST_REQUESTS:,} requests or {_MOST_CLIENTS:,} clients"
            raise UnusableLog(f"the log has more than {most}: choose a part of it with --since and --until")

    def of(self, client: str) -> list[LoggedRequest]:
        """Return the requests of a client, in order of time. "" stands for those without an address."""
        held = self._clients[client] if client else self._nameless
        found = list(zip(held[::2], held[1::2], strict=True))
        found.sort(key=by_time)
        return found

    def size(self, client: str) -> int:
        """Return the number of requests of a client."""
        return len(self._clients[client]) // 2

    def counts_of(self, client: str) -> Counter[tuple[int, int]]:
        """Return how many requests of a client each pair of a route's index and a status has."""
        held = self._clients[client] if client else self._nameless
        found = Counter(packed >> _STATUS for packed in held[1::2])
        return Counter({(packed >> _ROUTE - _STATUS, packed & 1023): number for packed, number in found.items()})

    def statuses(self) -> dict[int, Counter[int]]:
        """Return how many requests each route has by status, by the index of the route."""
        found: dict[int, Counter[int]] = {}
        for client in ("", *self._clients):
            for (route, status), number in self.counts_of(client).items():
                found.setdefault(route, Counter())[status] += number
        return found

    def by_user(self) -> "Traffic":
        """Return the same traffic, with the users as clients. Requests without a user are left out."""
        found = Traffic()
        found.routes, found.first, found.last = self.routes, self.first, self.last
        for client in ("", *self.clients):
            for at, packed in self.of(client):
                if user := user_of(packed):
                    found.requests += 1
                    found._clients.setdefault(self.users[user], array("Q")).extend((at, packed))
        return found

    def _client(self, text: str) -> "array[int]":
        """Return the requests of the client with this address."""
        address = canonical(text)
        if address is None:
            return self._nameless
        held = self._clients.setdefault(masked(address, IPV6_PREFIX), array("Q"))
        if len(self._by_text) >= 2 * _MOST_CLIENTS:
            self._by_text.clear()
        self._by_text[text] = held
        return held

    def _track(self, method: str, target: str) -> int:
        """Return the index of the route in the upper bits, and the hash of the path in the lower ones."""
        path = target.partition("?")[0]
        verb = "GET" if method == "HEAD" else method
        whole = path_of(path)
        number = self._number(Route(verb, segments_of(whole)))
        track = number << _ROUTE | crc32(whole.encode("utf-8", "replace")) & _HASH
        if len(self._tracks) >= _MOST_CACHED:
            self._tracks.clear()
        if len(target) <= _LONGEST_CACHED:
            self._tracks[method, target] = track
        return track

    def _number(self, route: Route) -> int:
        """Return the index of a route, or of its parent with `ANY` if the table is full, or of `OTHER`."""
        number = self._numbers.get(route)
        if number is None and len(self._numbers) >= _MOST_PATHS:
            route = Route(route.method, (*route.path[:-1], ANY))
            number = self._numbers.get(route)
        if number is None:
            if len(self._numbers) >= _MOST_PATHS + _MOST_PARENTS:
                return 0
            number = self._numbers[route] = len(self.routes)
            self.routes.append(route)
        return number


def path_of(written: str) -> str:
    """Return the path of a request line as rules see it: decoded once, and in its cleaned form."""
    path = written
    if "%" in path or not path.isascii():
        path = unquote_to_bytes(path.encode("latin-1", "replace")).decode("utf-8", "replace")
    if not path.startswith("/"):  # a proxy may have logged a whole URL
        path = path_of_target(path)
    return cleaned(path)


def segments_of(path: str) -> tuple[str, ...]:
    """Return the segments of a cleaned path. Those that are values by their form are `INT`, `UUID` or `ANY`."""
    pieces = path[1:].split("/") if len(path) > 1 else []
    if len(pieces) > _MOST_SEGMENTS:
        return OTHER
    return tuple([INT if piece.isdigit() and piece.isascii() else _kind(piece) for piece in pieces])


@lru_cache(maxsize=65_536)
def _kind(piece: str) -> str:
    """Return the kind of a segment that is no whole number."""
    if len(piece) >= _SHORTEST_UUID and _UUID.fullmatch(piece):
        return UUID
    if (
        len(piece) > _LONGEST_SEGMENT
        or not piece.isprintable()
        or _HEX.fullmatch(piece)
        or _TOKEN.fullmatch(piece)
        or _NOT_LITERAL.search(piece)
    ):
        return ANY
    return piece
