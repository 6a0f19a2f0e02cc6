"""A laboratory for `suggest`: traffic of which each request has a class, and what a proposal does to each class."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import cycle, islice, repeat
from typing import NamedTuple

from ratelimit_mw.cli.lint import check
from ratelimit_mw.foresight.logs.entry import LogEntry
from ratelimit_mw.foresight.requests import Requests, readings_of
from ratelimit_mw.foresight.simulation import Decider, Simulation, quiet
from ratelimit_mw.foresight.suggest import Proposal, mapping_of, propose
from ratelimit_mw.foresight.suggest.text import as_yaml
from ratelimit_mw.foresight.suggest.traffic import Traffic
from ratelimit_mw.units import SECOND
from tests.foresight.traffic import START, Sent, person

ABUSERS = ("crawlers", "fast guessers", "guessers with the form", "guessers that get 200", "spread guessers")
GROUPS = ("pollers", "paging clients")
"""Programs that are welcome. What they send to their own routes is no measure for others."""


class Mixture(NamedTuple):
    """How many clients of each class there are, and how busy they are."""

    seed: int = 0
    hours: int = 6
    shoppers: int = 600
    at_noon: float = 0.0
    """The share of the shoppers that come within ten minutes."""
    offices: int = 0
    workers: int = 20
    """The people of each office."""
    carrier: int = 0
    """The people behind the address of a carrier."""
    members: int = 0
    """The customers with a name, in three tiers: some come four and sixteen times as often as others."""
    paging: int = 0
    """The clients that page through an API."""
    per_minute: int = 60
    """The requests of each of them in a minute."""
    pollers: int = 0
    period: int = 30
    crawlers: int = 0
    crawled: int = 2000
    """The requests of each crawler."""
    crawl_gap: float = 0.5
    guessers: int = 0
    """The guessers of each of three kinds: fast ones, those that fetch the form first, and those that get 200."""
    guess_gap: float = 3.0
    tries: int = 200
    spread: int = 0
    """The addresses that guess twelve times each."""


class Labeled(NamedTuple):
    """A request and its class."""

    sent: Sent
    kind: str


def requests_of(mixture: Mixture) -> list[Labeled]:
    """The requests of a mixture, in order of time."""
    chance = random.Random(mixture.seed)
    return sorted(Labeled(sent, kind) for kind, sent in _sent(mixture, chance))


def _sent(mixture: Mixture, chance: random.Random) -> Iterator[tuple[str, Sent]]:
    """The requests of each class, one after the other. Programs begin in the first half of the log."""
    end = START + 3600 * mixture.hours
    yield from _people(mixture, chance)
    for kind, ip, gap, each in _programs(mixture, chance):
        at = START + chance.uniform(0, 1800 * mixture.hours) * (kind != "pollers")
        for method, path, status in each:
            if at < end:
                yield kind, Sent(at, ip, method, path, status)
            at += gap * (1 if kind == "pollers" else chance.uniform(0.8, 1.2))


def _people(mixture: Mixture, chance: random.Random) -> Iterator[tuple[str, Sent]]:
    for number in range(mixture.shoppers):
        if chance.random() < mixture.at_noon:
            kind, visits, begin, hours = "shoppers at noon", 1, START + 1800 * mixture.hours, 1 / 6
        else:
            kind, visits, begin, hours = "shoppers", 1 + min(int(chance.paretovariate(1.5)), 20), START, mixture.hours
        yield from ((kind, sent) for sent in person(chance, _ip(10, number), visits, begin, hours))
    shared = [("offices", _ip(11, number), 1 + number % 2) for number in range(mixture.offices)] * mixture.workers
    shared += [("a carrier", _ip(12, 0), 1)] * mixture.carrier
    for kind, ip, visits in shared:
        yield from ((kind, sent) for sent in person(chance, ip, visits, hours=mixture.hours))
    for number in range(mixture.members):
        for sent in person(chance, _ip(13, number), (2, 8, 32)[number % 3], hours=mixture.hours):
            yield "members of tiers", sent._replace(user=f"member{number}")


_Requests = Iterator[tuple[str, str, int]]
"""Methods, paths and statuses."""


def _programs(mixture: Mixture, chance: random.Random) -> Iterator[tuple[str, str, float, _Requests]]:
    """The class, the address, the seconds between two requests, and the requests of each program."""
    right, wrong, form = ("POST", "/login", 200), ("POST", "/login", 401), ("GET", "/login", 200)
    for number in range(mixture.paging):
        pages = repeat(("GET", "/api/items", 200), chance.randint(100, 400))
        yield "paging clients", _ip(14, number), 60 / mixture.per_minute, pages
    for number in range(mixture.pollers):
        polls = repeat(("GET", "/status", 200), 3600 * mixture.hours // mixture.period)
        yield "pollers", _ip(15, number), mixture.period, polls
    for number in range(mixture.crawlers):
        pages = (("GET", f"/items/{chance.randint(1, 5000)}", 200) for _ in range(mixture.crawled))
        yield "crawlers", _ip(16, number), mixture.crawl_gap, pages
    for number in range(mixture.guessers):
        gap, tries = mixture.guess_gap, mixture.tries
        yield "fast guessers", _ip(17, number), gap / 10, repeat(wrong, tries)
        yield "guessers with the form", _ip(18, number), gap / 2, islice(cycle((form, wrong)), 2 * tries)
        yield "guessers that get 200", _ip(19, number), gap, repeat(right, tries)
    for number in range(mixture.spread):
        yield "spread guessers", _ip(20, number), mixture.guess_gap, repeat(wrong, 12)


def _ip(first: int, number: int) -> str:
    return f"{first}.0.{number >> 8}.{number & 255}"


class Outcome(NamedTuple):
    """What a proposal does to a mixture.

    Attributes:
        sent: The requests of each class.
        lost: Those that the enforced proposal denies.
        beyond: The requests of abusers beyond what the busiest ordinary client sends.
        text: The proposed file.
        proposal: The proposal.
    """

    sent: Counter
    lost: Counter
    beyond: int
    text: str
    proposal: Proposal

    @property
    def ordinary_share(self) -> float:
        """The share of the requests of ordinary clients that are denied."""
        own = [kind for kind in self.sent if kind not in ABUSERS]
        return sum(self.lost[kind] for kind in own) / sum(self.sent[kind] for kind in own)

    @property
    def abusers_share(self) -> float:
        """The share of the abusers' requests beyond what ordinary clients send that are denied."""
        return min(sum(self.lost[kind] for kind in ABUSERS) / self.beyond, 1.0) if self.beyond else 1.0

    @property
    def says_why(self) -> bool:
        """True if the file says what its limits do not stop."""
        return "What these limits do not stop:" in self.text


def tried(mixture: Mixture) -> Outcome:
    """Propose rules for a mixture, enforce them, and count what they deny."""
    requests = requests_of(mixture)
    entries = [
        LogEntry(int(at) * SECOND, ip, method, path, status, extra=(None if user == "-" else user,))
        for (at, ip, method, path, status, user), _ in requests
    ]
    traffic = Traffic()
    traffic.add(entries)
    proposal = propose(traffic, check, enforce=True)
    lost: Counter[str] = Counter()
    with quiet(), closing(Simulation(mapping_of(proposal.rules, enforce=True))) as simulation:
        readings = readings_of(simulation.rules, ("ip", "user").__contains__, ())
        decider = Decider(simulation, Requests(readings.values(), ["user"]), hashed=False)
        for entry, (_, kind) in zip(entries, requests, strict=True):
            lost[kind] += not decider.decide(entry).allowed
    text = as_yaml(proposal, traffic, [], enforce=True)
    return Outcome(Counter(kind for _, kind in requests), lost, _beyond(requests), text, proposal)


def _beyond(requests: list[Labeled]) -> int:
    """How many requests abusers send beyond what the busiest ordinary client sends, in each hour or in each minute.

    The measure of guessers are the logins of ordinary clients, that of crawlers are all of their requests.
    """
    found: Counter[bool] = Counter()
    for logins in (True, False):
        wanted = [each for each in requests if not logins or (each.sent.method, each.sent.path) == ("POST", "/login")]
        best: Counter[str] = Counter()
        for seconds in (60, 3600):
            ordinary: Counter[tuple[str, int]] = Counter()
            abusers: Counter[tuple[str, int]] = Counter()
            for sent, kind in wanted:
                key = sent.ip, int(sent.at) // seconds
                if kind in ABUSERS:
                    if logins is (kind != "crawlers"):
                        abusers[key] += 1
                elif kind not in GROUPS:
                    ordinary[key] += 1
            most = max(ordinary.values(), default=0)
            beyond: Counter[str] = Counter()
            for (ip, _), number in abusers.items():
                beyond[ip] += max(number - most, 0)
            best |= beyond
        found[logins] = best.total()
    return found.total()


NAMED = {
    "a plain shop": Mixture(seed=1, shoppers=300),
    "offices, a carrier; a crawler": Mixture(seed=2, shoppers=300, offices=3, carrier=80, crawlers=1),
    "paging clients, pollers; a crawler": Mixture(seed=3, shoppers=300, paging=40, pollers=3, period=5, crawlers=1),
    "a rush at noon, members in tiers; guessers": Mixture(seed=4, shoppers=300, at_noon=0.6, members=40, guessers=3),
    "guessers from 300 addresses": Mixture(seed=5, shoppers=300, spread=300),
}
"""The mixtures of the table in docs/suggest.md."""


def table() -> str:
    """The table of docs/suggest.md."""
    lines = [
        "| mixture | requests | ordinary clients lose | abusers lose, of those beyond ordinary use | rules |",
        "|---|---|---|---|---|",
    ]
    for name, mixture in NAMED.items():
        outcome = tried(mixture)
        abused = f"{100 * outcome.abusers_share:.0f} % of {outcome.beyond:,}" if outcome.beyond else "–"
        lines.append(
            f"| {name} | {outcome.sent.total():,} | {100 * outcome.ordinary_share:.3f} % | {abused} | "
            f"{len(outcome.proposal.rules)} |"
        )
    return "\n".join(lines) + "\n"
