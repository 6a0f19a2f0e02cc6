"""Tells the clients that a limit would hit: what each of them does, and if it is more like a program or a person.

The judgement is a hint for the reader. It is given with its reason, and is `unclear` if little speaks for either.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

from ratelimit_mw.model import SECOND
from ratelimit_mw.units import spell_period

C = TypeVar("C")

Kind = Literal["program", "person", "unclear"]

NO_AGENT = "no user agent"
_UNKNOWN = "an unknown user agent"

_BROWSERS = {
    name: re.compile(pattern)
    for name, pattern in {
        "Edge": r"Edg(?:e|A|iOS)?/",
        "Opera": r"OPR/|Opera",
        "Samsung Internet": r"SamsungBrowser/",
        "Firefox": r"Firefox/|FxiOS/",
        "Chrome": r"Chrome/|CriOS/|Chromium/",
        "Safari": r"Version/[\d.]+ .{0,100}Safari/",
        "Internet Explorer": r"MSIE |Trident/",
    }.items()
}
"""The browsers, in the order in which they are looked for: most browsers also name those that they resemble."""

_PROGRAM = re.compile(
    r"(?<![A-Za-z0-9_.-])("
    r"[A-Za-z0-9_.-]{0,40}(?:bot|crawl|spider|slurp|scrap|fetch|monitor|feed|reader|archiver)[A-Za-z0-9_.-]{0,40}"
    r"|curl|Wget|python-[a-z]+|Python|aiohttp|httpx|Go-http-client|Java|okhttp|Apache-HttpClient|libwww-perl|Ruby|PHP"
    r"|Guzzle\w{0,20}|axios|node|undici|PostmanRuntime|HTTPie|k6|kube-probe|GoogleHC|ELB-HealthChecker|Prometheus"
    r"|facebookexternalhit|HeadlessChrome|PhantomJS)(?=[/ ;),]|$)",
    re.IGNORECASE,
)
_FIRST = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,40}")
_LONGEST = 400

LEAST = 20
"""A client with fewer requests is not judged by what it does: chance could make it look so."""


def agent_of(text: str) -> str:
    """Return the family of a user agent: the name of a browser, or that of a program with "/" behind it."""
    text = text[:_LONGEST]
    if not text:
        return NO_AGENT
    program = _PROGRAM.search(text)
    if program is not None:
        return f"{program[1][:40]}/"
    browser = next((name for name, pattern in _BROWSERS.items() if pattern.search(text)), None)
    first = _FIRST.match(text)
    if browser is not None or first is None or first[0] == "Mozilla":
        return browser or _UNKNOWN
    return f"{first[0]}/"


def regular_period(gaps: Sequence[int]) -> int:
    """Return the median time between requests if the middle 80 % of all times between them are near it, otherwise 0.

    Near is a tenth of the median, or the second by which the clock of most logs is inexact. A period below two seconds
    can therefore not be told from chance.

    Args:
        gaps: The times between two requests, ascending, in microseconds. Fewer than 19 say too little.
    """
    if len(gaps) < LEAST - 1:
        return 0
    median, tenth = gaps[len(gaps) // 2], len(gaps) // 10
    near = max(median // 10, SECOND)
    regular = median - gaps[tenth] <= near and gaps[-1 - tenth] - median <= near
    return median if regular and median >= 2 * SECOND else 0


class Having(NamedTuple):
    """What a log has, so that a browser without it is unusual.

    Attributes:
        parts: Requests for images, styles and scripts.
        agents: User agents.
    """

    parts: bool
    agents: bool


class Facts(NamedTuple):
    """What a log tells of one client of a rule.

    Attributes:
        requests: The requests from which the rest is known. Of a very busy client, these are its first ones.
        paths: The paths that it requests most, with their numbers. If none is frequent, its folders, as "/blog/*".
        statuses: The statuses that it gets most.
        agents: The families of its user agents.
        parts: The share of its requests for images, styles and scripts.
        period: The time between two requests in microseconds, if it is regular. 0 if it is not.
    """

    requests: int
    paths: Sequence[tuple[str, int]]
    statuses: Sequence[tuple[int, int]]
    agents: Sequence[tuple[str, int]]
    parts: float
    period: int


class Client(NamedTuple):
    """A client that a limit would hit.

    Attributes:
        client: Its name.
        last: The index of the highest limit of the curve that denies one of its requests.
        peak: Its requests in its busiest window.
        requests: Its requests that the rule was asked for.
        paths: The paths that it requests most, each with its share, as a text.
        statuses: The same for the statuses.
        agent: The family of its user agent, as a text.
        kind: What it is like.
        reason: Why.
    """

    client: str
    last: int
    peak: int
    requests: int
    paths: str
    statuses: str
    agent: str
    kind: Kind
    reason: str


def client_of(name: str, last: int, peak: int, facts: Facts, having: Having) -> Client:
    """Return a client with what is known of it.

    Args:
        name: The name of the client.
        last: See `Client`.
        peak: See `Client`.
        facts: What the log tells of it.
        having: What the log has.
    """
    kind, reason = judge(facts, having)
    number = facts.requests
    others = len(facts.agents) - 1
    agent = facts.agents[0][0].rstrip("/") + (f" and {others} more" if others > 0 else "")
    statuses = [(str(status) if status else "none", many) for status, many in facts.statuses]
    return Client(
        name, last, peak, number, _shares(facts.paths, number), _shares(statuses, number), agent, kind, reason
    )


def judge(facts: Facts, having: Having) -> tuple[Kind, str]:
    """Return what a client is like, and why. See `client_of` for the arguments."""
    number = facts.requests
    agent, most = facts.agents[0]
    path, on_path = facts.paths[0]
    alike = 0 if path.endswith("*") else on_path
    status, with_status = facts.statuses[0]
    browsers = [name for name, _ in facts.agents if name in _BROWSERS]
    if agent.endswith("/") and most >= number / 2:
        return "program", f"its user agent says {agent.rstrip('/')}"
    if number < LEAST:
        return "unclear", f"{number} request{'s tell' if number != 1 else ' tells'} too little"
    if 400 <= status < 500 and min(with_status, alike) >= 0.9 * number:
        return "program", f"it asks for one path again and again, and gets {status}"
    if facts.period:
        return "program", f"a request every {spell_period(round(facts.period / SECOND) * SECOND).removeprefix('1 ')}"
    if agent == NO_AGENT and having.agents:
        return "program", "no user agent, which every browser has"
    if len(browsers) >= _SEVERAL:
        return "unclear", f"{len(browsers)} browsers behind one address, as in an office"
    if alike >= 0.95 * number:
        return "unclear", "one path only: a page that asks by itself, or a program"
    if browsers and facts.parts >= 0.1:
        return "person", "a browser that loads images, styles and scripts, too"
    if browsers and having.parts and facts.parts < 0.01:
        return "program", f"it says {agent}, but loads no images, styles or scripts"
    return "unclear", "nothing tells them apart here"


MOST_NAMED = 300
"""The most clients of a curve that are named."""

_MOST_OF_STEP = 50
"""The most of them for which the same limit of the curve is the highest that hits them."""


def fair(clients: Sequence[C], step: Callable[[C], int], most: int) -> list[C]:
    """Return the first clients of each step, in their order: as many of each as there is room for.

    Args:
        clients: The clients.
        step: Returns the step of a client.
        most: The most clients.
    """
    sizes = Counter(map(step, clients)).values()
    room = next((each for each in range(_MOST_OF_STEP, 1, -1) if sum(min(each, size) for size in sizes) <= most), 1)
    seen: Counter[int] = Counter()
    found: list[C] = []
    for client in clients:
        seen[step(client)] += 1
        if seen[step(client)] <= room:
            found.append(client)
    return found


_SEVERAL = 3
"""From so many families of browsers on, a client is probably several people."""


def _shares(counted: Sequence[tuple[str, int]], number: int) -> str:
    """Return what is most frequent with its share, as "/a 80 %, /b 20 %"."""
    shares = [(text, round(100 * many / max(number, 1))) for text, many in counted]
    if len(shares) == 1 and shares[0][1] == 100:
        return shares[0][0]
    return ", ".join(f"{text} {share or '<1'} %" for text, share in shares)
