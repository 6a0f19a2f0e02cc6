"""Generated logs: people, programs that ask at regular intervals, crawlers, and programs that guess passwords."""

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

START = 1_772_366_400


class Sent(NamedTuple):
    """One request of a generated log."""

    at: float
    ip: str
    method: str
    path: str
    status: int
    user: str = "-"


def person(random, ip, visits, begin=START, hours: float = 6):
    """Visits of a few minutes: pages with their images, now and then a login, an order or a search."""
    for _ in range(visits):
        at = begin + random.uniform(0, hours * 3600)
        for _ in range(random.randint(1, 6)):
            page = random.choice(["/", f"/items/{random.randint(1, 900)}", f"/users/{random.randint(1, 300)}/photos"])
            yield Sent(at, ip, "GET", page, 200)
            for image in range(random.randint(0, 3)):
                yield Sent(at + 1, ip, "GET", f"/static/{image}.png", 200)
            at += random.uniform(3, 90)
        if random.random() < 0.6:
            yield Sent(at, ip, "POST", "/login", 401 if random.random() < 0.1 else 302)
            at += 5
        if random.random() < 0.3:
            yield Sent(at, ip, "POST", "/orders", 201)


def people(random, number, hours=6):
    """Many people. A few come far more often than most, as in Zipf's law."""
    for rank in range(1, number + 1):
        visits = 1 + min(int(random.paretovariate(1.2)), 40)
        yield from person(random, f"10.{rank >> 16}.{rank >> 8 & 255}.{rank & 255}", visits, hours=hours)


def guesser(ip, number, gap, status=401, *, path="/login", begin=START):
    """A program that guesses passwords, at an interval of `gap` seconds."""
    for each in range(number):
        yield Sent(begin + each * gap, ip, "POST", path, status)


def poller(ip, number, gap, path="/status", begin=START):
    """A program that asks for one page at an interval of `gap` seconds."""
    for each in range(number):
        yield Sent(begin + each * gap, ip, "GET", path, 200)


def crawler(random, ip, number, begin=START):
    """A program that asks for all pages, several in a second."""
    for each in range(number):
        yield Sent(begin + each / 4, ip, "GET", f"/items/{random.randint(1, 5000)}", 200)


def line(sent):
    """One line of a log in the format `combined`."""
    time = datetime.fromtimestamp(sent.at, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return f'{sent.ip} - {sent.user} [{time}] "{sent.method} {sent.path} HTTP/1.1" {sent.status} 5 "-" "a"\n'


def write(path: Path, *parts):
    """Write the requests of all parts in order of time. Return the path as a text."""
    requests = sorted(sent for part in parts for sent in part)
    path.write_text("".join(map(line, requests)))
    return str(path)


def site(seed, number=400):
    """The requests of the people of one site."""
    return list(people(random.Random(seed), number))
