"""Chooses the rules for the traffic of a log: one for all requests, one by user, and a few for routes.

* `traffic` keeps the requests of each client.
* `clients` finds the routes, and the clients that are not people.
* `limits` calculates the limits that ordinary clients need, and what they deny.
* `text` writes the rules as a rules file, with their reasons.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

from ratelimit_mw.config.load import Examined
from ratelimit_mw.foresight.logs.formats import UnusableLog
from ratelimit_mw.foresight.suggest.clients import (
    VALUES,
    WORDS,
    WRITING,
    Clients,
    Path,
    Poll,
    Site,
    Track,
    is_login,
    template,
)
from ratelimit_mw.foresight.suggest.limits import (
    LEAST_CLIENTS,
    LEAST_GROUP,
    Consequence,
    Denials,
    Limit,
    Uses,
    denials,
    limits_of,
)
from ratelimit_mw.foresight.suggest.traffic import Route, Traffic
from ratelimit_mw.foresight.wording import counted
from ratelimit_mw.units import DAY, HOUR, MINUTE, spell_period

DOMAIN = "app"
"""The domain of the proposal."""

LEAST_REQUESTS = 1000
"""A log with less says too little."""

PERIODS = (MINUTE, HOUR, DAY)
"""The periods of limits."""

_ONE_TRACK = 20
"""The one-track clients are too many for a percentile if they are more than one in so many clients of a route."""

_FEW = 10
"""The clients of a route are few for its requests if they send so many each."""

_MINORITY = 3
"""The percentage of the clients from which on a minority is not left out."""

_DENIED = 8000
"""Of so many requests of ordinary clients, one rule may deny one. All rules together deny at most one in a thousand."""

_MOST_RULES = 8
"""The most rules. A person reads them."""

_LEAST_REQUESTS = 50
"""The least requests to a route by which it gets a rule, unless clients log in there."""

_MULTIPLES = (("--strict", Fraction(2, 3)), ("", Fraction(1)), ("--loose", Fraction(2)))
"""The limits whose consequences are stated, and what is appended to the name of the rule."""

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, kw_only=True)
class ProposedRule:
    """One rule of the proposal.

    Attributes:
        name: The name.
        by: What it counts by: "ip" or "user".
        route: The method and the route. None: all requests.
        limits: The limits, the shortest period first.
        reason: Why there is a convention, or a rule for this route. "" if the limits say it.
        replaces: The names of the rules that do not apply where this one does.
        effects: What the strict limits deny in this log, what those of the rule deny, and what the loose ones deny.
        room_for: The busy clients that the limits have room for, because they do what the others do.
        guesses: What the rule denies to the one-track clients of the route.
    """

    name: str = ""
    by: str = "ip"
    route: Route | None = None
    limits: Sequence[Limit]
    reason: str = ""
    replaces: Sequence[str] = ()
    effects: Sequence[Consequence] = ()
    room_for: Sequence[str] = ()
    guesses: Consequence = field(default_factory=Consequence)

    def texts(self, factor: Fraction = Fraction(1)) -> tuple[str, ...]:
        """Return a multiple of the limits as a rules file has them."""
        return tuple(f"{each.times(factor)} per {spell_period(each.period)}" for each in self.limits)

    def mapping(self, *, enforce: bool) -> dict[str, object]:
        """Return the rule as a rules file has it. Without `enforce`, it is a shadow rule."""
        found: dict[str, object] = {"name": self.name}
        if self.route is not None:
            found["match"] = {"path": template(self.route.path), "methods": [self.route.method]}
        texts = self.texts()
        found |= {"by": self.by, "limit": texts[0] if len(texts) == 1 else [*texts]}
        if self.replaces:
            found["replaces"] = [*self.replaces]
        return found if enforce else {**found, "shadow": True}


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The rules that are proposed, and what was found on the way.

    Attributes:
        rules: The rules. The first one is for all requests.
        unruled: The routes that were looked at and have no rule of their own, each with the reason.
        polls: The clients that ask for one page at regular intervals.
        beyond: The clients far beyond the others, over all requests, each with its busiest minute, its requests, and
            those that the rule for all requests denies. The busiest is first.
        heavy: The number of clients that need far more than the others, and are too many to be left out.
        ordinary: The clients that every number was taken from.
        clients: The number of clients that were looked at.
    """

    rules: Sequence[ProposedRule]
    unruled: Sequence[tuple[Route, str]] = ()
    polls: Mapping[str, Poll] = field(default_factory=dict)
    beyond: Sequence[tuple[str, int, int, int]] = ()
    heavy: int = 0
    ordinary: frozenset[str] = frozenset()
    clients: int = 0


def mapping_of(rules: Sequence[ProposedRule], *, enforce: bool) -> dict[str, object]:
    """Return rules as a rules file has them. Without `enforce`, they are shadow rules."""
    found: dict[str, object] = {"domain": DOMAIN}
    if any(rule.by == "user" for rule in rules):
        found["client"] = {"user": USER}
    return {**found, "rules": [rule.mapping(enforce=enforce) for rule in rules]}


USER = "header:Authorization"
"""The source of the user in a proposal. Logs have the user of HTTP Basic, unless an app puts another one there."""

Examine = Callable[[Mapping[str, object]], Examined]
"""Examines rules as `ratelimit-mw check` does."""


def propose(traffic: Traffic, check: Examine, *, enforce: bool = False) -> Proposal:
    """Return the rules for the traffic of a log. `check` must find nothing wrong with them.

    Args:
        traffic: The traffic.
        check: Examines rules.
        enforce: State what the rules deny when they are enforced, and a request that one of them denies is charged to
            none. Otherwise they are shadow rules, each of which denies by itself.

    Raises:
        UnusableLog: The log has fewer than 1 000 requests or 20 clients.
    """
    clients = traffic.clients
    if traffic.requests < LEAST_REQUESTS:
        found = counted(traffic.requests, "request")
        raise UnusableLog(f"the log has {found}, but {LEAST_REQUESTS:,} are needed")
    if len(clients) < LEAST_CLIENTS:
        raise UnusableLog(
            f"the log has {counted(len(clients), 'client')}, but {LEAST_CLIENTS} are needed. Behind a proxy, a log "
            "may have the address of the proxy: `--field ip=…` says where that of the client is"
        )
    return _Analysis(traffic, check).proposal(enforce=enforce)


class _Scope(NamedTuple):
    """A rule, the clients that it counts, and how they use its requests."""

    rule: ProposedRule
    clients: Clients
    uses: Uses
    tracks: Sequence[int] = ()
    nameless: int = 0
    lost: Counter[str] | None = None

    def above(self, factor: Fraction) -> set[str]:
        """Return the clients that a multiple of the limits would deny."""
        found = self.uses.above([(each.times(factor), each.period) for each in self.rule.limits])
        return {self.clients.names[client] for client in found}

    def stated(self, found: Denials) -> "_Scope":
        """Return the same with what the rule and its alternatives deny."""
        requests = sum(self.uses.requests) + self.nameless
        clients = len(self.uses.clients) + bool(self.nameless)
        effects = []
        for name, factor in _MULTIPLES:
            lost = found[self.rule.name + name]
            effects.append(Consequence(self.rule.texts(factor), lost.total(), requests, len(lost), clients))
        own, names = found[self.rule.name], self.clients.names
        room = {client for limit in self.rule.limits for client in limit.raised_for} & self.clients.alike
        sent = dict(zip(self.uses.clients, self.uses.requests, strict=True))
        guessed = [own[f"ip={names[client]}"] for client in self.tracks]
        guesses = Consequence(
            denied=sum(guessed),
            requests=sum(sent[client] for client in self.tracks),
            limited=sum(map(bool, guessed)),
            clients=len(guessed),
        )
        room_for = [names[client] for client in sorted(room)]
        return self._replace(rule=replace(self.rule, effects=effects, room_for=room_for, guesses=guesses), lost=own)

    def beyond(self) -> set[int]:
        """Return the clients that the limits have no room for."""
        return {client for limit in self.rule.limits for client, _ in limit.beyond}

    def denied(self, client: int) -> int:
        """Return how many requests of a client the rule denies."""
        return self.lost[f"{self.rule.by}={self.clients.names[client]}"] if self.lost else 0


class _Analysis:
    """Looks at all clients, and then at the routes that may need a rule."""

    def __init__(self, traffic: Traffic, check: Examine) -> None:
        self._traffic, self._check = traffic, check
        span = traffic.last - traffic.first
        self._periods = [period for period in PERIODS if period == MINUTE or 2 * period <= span]
        self._site = Site(traffic)
        self._clients = clients = Clients(traffic, self._site, self._periods)
        sizes = enumerate(clients.overall.requests)
        strange = clients.guessers | clients.unlike
        self._spare = sum(size for client, size in sizes if client not in strange) // (_DENIED * len(self._periods))

    def proposal(self, *, enforce: bool) -> Proposal:
        """Return the proposal."""
        site, clients = self._site, self._clients
        groups, left_out, heavy = self._split(clients)
        routes = [*groups, *(route for route in self._candidates() if route not in groups)]
        special = site.matched_by([*groups])
        asked = [
            (*(() if matched else (0,)), *(place + 1 for place in places))
            for matched, places in zip(special, site.matched_by(routes), strict=True)
        ]
        everything, *own = clients.uses(asked, len(routes) + 1)
        nameless: Counter[int] = Counter()
        for (raw, _), number in self._traffic.counts_of("").items():
            nameless.update(dict.fromkeys(asked[raw], number))
        members = {client for group in groups.values() for client in group}
        limits = limits_of(everything, left_out, clients.alike | members, self._spare)
        if not limits:
            raise UnusableLog(f"fewer than {LEAST_CLIENTS} clients of the log do more than one thing")
        overall = ProposedRule(name="everything", limits=limits)
        scopes = [_Scope(overall, clients, everything, nameless=nameless[0]), *self._users(asked)]
        unruled: list[tuple[Route, str]] = []
        replaced = [scope.rule.name for scope in scopes]
        for place, number in enumerate(routes, 1):
            route, uses, tracks = site.routes[number], own[place - 1], clients.tracks.get(number, {})
            if number in groups:
                found: ProposedRule | None = self._group(uses, groups[number], replaced)
            else:
                found = self._guarded(route, uses, left_out, tracks)
            if found is not None:
                name = rule_name(route.method, route.path, {scope.rule.name for scope in scopes})
                rules = [scope.rule for scope in scopes]
                useful = self._useful(rules, replace(found, route=route, name=name))
                if isinstance(useful, str):
                    unruled.append((route, useful))
                else:
                    scopes.append(_Scope(useful, clients, uses, [*tracks], nameless[place]))
        scopes = [scope for scope in self._stated(scopes, enforce=enforce) if _is_needed(scope.rule)]
        names, sizes = clients.names, clients.overall.requests
        far = {client for scope in scopes if scope.clients is clients for client in scope.beyond()}
        minutes = dict(zip(clients.overall.clients, clients.overall.peaks[0], strict=True))
        beyond = sorted(scopes[0].beyond() - clients.guessers, key=lambda client: (-minutes[client], client))
        strange = clients.guessers.union(far, *map(set, clients.tracks.values()))
        return Proposal(
            rules=[scope.rule for scope in scopes],
            unruled=unruled,
            polls={names[client]: poll for client, poll in sorted(clients.polls.items())},
            beyond=[(names[client], minutes[client], sizes[client], scopes[0].denied(client)) for client in beyond],
            heavy=heavy,
            ordinary=frozenset(name for client, name in enumerate(names) if client not in strange),
            clients=len(names),
        )

    def _split(self, clients: Clients) -> tuple[dict[int, list[int]], set[int], int]:
        """Return the groups, by route, the clients that no number is taken from, and how many heavy ones are neither.

        A heavy client does not do what the others do, and needs more than their limits. Heavy clients that send mostly
        to one route are a group, with a rule of its own, if they are a minority, or if they ask at regular intervals.
        Other heavy clients are left out, unless they are a minority, too.
        """
        left_out = clients.guessers | clients.unlike
        limits = limits_of(clients.overall, left_out, clients.alike, self._spare)
        heavy = {
            client for limit in limits for client, _ in limit.beyond if client in clients.unlike
        } - clients.guessers
        by_route: dict[int, list[int]] = {}
        for client in sorted(heavy & clients.main.keys()):
            if is_login(self._site.routes[clients.main[client]].path):
                continue  # who sends much to a login is no group that needs room
            by_route.setdefault(clients.main[client], []).append(client)
        groups: dict[int, list[int]] = {}
        for route, members in sorted(by_route.items()):
            polling = [client for client in members if client in clients.polls]
            if self._is_minority(members, clients) or polling:
                groups[route] = members if self._is_minority(members, clients) else polling
        rest = heavy.difference(*groups.values())
        if not self._is_minority(rest, clients):
            return groups, left_out, 0
        return groups, left_out - rest, len(rest)

    @staticmethod
    def _is_minority(members: Collection[int], clients: Clients) -> bool:
        others = len(clients.names) - len(clients.guessers)
        return len(members) >= LEAST_GROUP and 100 * len(members) >= _MINORITY * others

    def _users(self, asked: Sequence[Sequence[int]]) -> Iterator[_Scope]:
        """Yield the rule by user, if the log has users."""
        if len(self._traffic.users) <= LEAST_CLIENTS:
            return
        users = Clients(self._traffic.by_user(), self._site, self._periods)
        own, *_ = users.uses([each[:1] if each[:1] == (0,) else () for each in asked], 1)
        groups, left_out, _ = self._split(users)
        limits = limits_of(own, left_out.difference(*map(set, groups.values())), users.alike, self._spare)
        if limits:
            yield _Scope(ProposedRule(name="each-user", by="user", limits=limits), users, own)

    def _candidates(self) -> list[int]:
        """Return the routes that may need a rule: those with a telling name, or guesses. The busiest is first."""
        found = []
        for number, requests in self._site.requests.items():
            method, path = self._site.routes[number]
            guesses = sum(track.requests for track in self._clients.tracks.get(number, {}).values())
            named = is_login(path) and (method in WRITING or requests >= _LEAST_REQUESTS)
            if named or guesses >= _LEAST_REQUESTS:
                found.append((-requests, number))
        return [number for _, number in sorted(found)]

    def _group(self, uses: Uses, members: Sequence[int], replaced: Sequence[str]) -> ProposedRule:
        """Return the rule for a route to which a group of clients sends most of its requests."""
        others = set(uses.clients).difference(members)
        regular = all(client in self._clients.polls for client in members)
        what = "ask for this at regular intervals" if regular else "send little else, and far more than the others"
        return ProposedRule(
            limits=limits_of(uses, others, self._clients.alike, self._spare, least=1),
            reason=f"{_share(len(members), len(self._clients.names))} {what}",
            replaces=replaced,
        )

    def _guarded(
        self, route: Route, uses: Uses, left_out: set[int], tracks: Mapping[int, Track]
    ) -> ProposedRule | None:
        """Return the rule for a route where clients log in or guess. None if its clients are like those elsewhere."""
        requests, clients = sum(uses.requests), len(uses.clients)
        ordinary = sum(client not in tracks and client not in left_out for client in uses.clients)
        named = is_login(route.path)
        if _ONE_TRACK * len(tracks) > clients:
            why = f"{_share(len(tracks), clients)} send this with one status"
        elif named and requests >= _FEW * clients:
            why = f"its {counted(clients, 'client')} are few for {requests:,} requests"
        elif ordinary < LEAST_CLIENTS:
            why = f"fewer than {LEAST_CLIENTS} ordinary clients send this"
        else:
            why = ""
        if not (tracks or route.method in WRITING or (why and named)):
            return None
        trusted = self._clients.alike.difference(tracks)
        limits = limits_of(uses, {*tracks, *left_out}, trusted, self._spare, convention=bool(why))
        return ProposedRule(limits=limits, reason=f"not derived from ordinary use: {why}" if why else "")

    def _useful(self, rules: Sequence[ProposedRule], rule: ProposedRule) -> ProposedRule | str:
        """Return a rule without the limits that can never deny beside others, or the reason why it is not proposed."""
        if len(rules) >= _MOST_RULES:
            return f"the proposal has {_MOST_RULES} rules already"
        if not rule.replaces:
            wider = {each.period: each.limit for each in rules[0].limits}
            rule = replace(
                rule, limits=[each for each in rule.limits if each.limit < wider.get(each.period, _NO_LIMIT)]
            )
        if rule.limits:
            examined = self._check(mapping_of([*rules, rule], enforce=True))
            if not examined.problems and not examined.warnings:
                return rule
        return "its clients need as much as the other rules allow"

    def _stated(self, scopes: Sequence[_Scope], *, enforce: bool) -> list[_Scope]:
        """Return the same with what each rule and its alternatives deny."""
        strict = min(factor for _, factor in _MULTIPLES)
        heavy = {
            by: {each for scope in scopes if scope.rule.by == by for each in scope.above(strict)}
            for by in ("ip", "user")
        }
        config = mapping_of([scope.rule for scope in scopes], enforce=False)
        config["rules"] = [each for scope in scopes for each in _variants(scope.rule)]
        found = denials(self._traffic, config, heavy["ip"], heavy["user"])
        if enforce:
            config = mapping_of([scope.rule for scope in scopes], enforce=True)
            found = {**found, **denials(self._traffic, config, heavy["ip"], heavy["user"])}
        return [scope.stated(found) for scope in scopes]


def _variants(rule: ProposedRule) -> Iterator[dict[str, object]]:
    """Yield a rule and its alternatives, as shadow rules."""
    for name, factor in _MULTIPLES:
        found = rule.mapping(enforce=False) | {"name": rule.name + name, "limit": [*rule.texts(factor)]}
        if rule.replaces:
            found["replaces"] = [other + more for other in rule.replaces for more, _ in _MULTIPLES]
        yield found


def _is_needed(rule: ProposedRule) -> bool:
    """Return True if a rule denies something, or protects a login that may be attacked later."""
    writes = rule.route is None or rule.route.method in WRITING
    return writes or bool(rule.replaces) or any(effect.denied for effect in rule.effects[:2])


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {counted(whole, 'client')}"


def rule_name(method: str, route: Path, taken: set[str]) -> str:
    """Return a name for a rule that is not `taken`, such as `post-login`. It has letters, digits and `-` only."""
    texts = (method, *(segment for segment in route if segment not in VALUES))
    words = [word for text in texts for word in WORDS.split(text.lower()) if word]
    base = "-".join(words if len(words) > 1 else (*words, "home"))[:40].strip("-")
    return next(name for number in range(1, 99) if (name := base if number == 1 else f"{base}-{number}") not in taken)
