"""Reading access logs, and replaying a million lines of them, in one process.

The lines are those of two logs: one is generated, and the other repeats the public log of a small site, if it is there
(see docs/replay.md). Both are the same in every run.
"""

import gzip
import random
import re
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.measure import Effort, Figure, Run, alone, in_turn
from ratelimit_mw.cli.replay import rarely_collecting
from ratelimit_mw.foresight.logs.entry import Unreadable
from ratelimit_mw.foresight.logs.formats import NAMED
from ratelimit_mw.foresight.logs.patterns import PatternFormat
from ratelimit_mw.foresight.replay import Options, replay

LINES = 1_000_000
CLIENTS = 50_000
ONE = [{"name": "everything", "by": "ip", "limit": "60 per minute"}]
FIVE = [
    *ONE,
    {"name": "hourly", "by": "ip", "limit": "1000 per hour", "algorithm": "fixed_window"},
    {"name": "steady", "by": "ip", "limit": "120 per minute", "algorithm": "token_bucket"},
    {"name": "exact", "by": "ip", "limit": "30 per 10 seconds", "algorithm": "sliding_log"},
    {"name": "all", "by": "global", "limit": "5000 per second", "algorithm": "fixed_window", "shadow": True},
]
SAMPLE = next(
    (path for above in Path(__file__).parents if (path := above / "shared/logs/semicomplete.log.gz").is_file()), None
)
HAND_WRITTEN = re.compile(r'(\S+) \S+ (\S+) \[([^\]]+)\] "([^"]*)" (\d{3}) (\S+) "([^"]*)" "([^"]*)"')
_BLOCK = 1 << 18
_AGENT = '"https://example.com/start" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)"'


def generated(lines: int) -> Iterator[str]:
    """A log of 150 requests a second: clients by Zipf's law, and lines that are out of order by up to five seconds."""
    chance = random.Random(16)
    weights = [1 / rank for rank in range(1, CLIENTS + 1)]
    clients = chance.choices(range(CLIENTS), weights, k=lines)
    start = datetime(2026, 3, 1, tzinfo=UTC)
    for place, client in enumerate(clients):
        at = start + timedelta(seconds=place // 150 + chance.randrange(5))
        address = f"10.{client >> 16}.{client >> 8 & 255}.{client & 255}"
        path = f"/items/{client % 97}?page={place % 7}"
        yield f'{address} - - [{at:%d/%b/%Y:%H:%M:%S %z}] "GET {path} HTTP/1.1" 200 {place % 9999} {_AGENT}\n'


def tiled(lines: int) -> Iterator[str]:
    """The public log, again and again, each time four days later."""
    assert SAMPLE is not None
    with gzip.open(SAMPLE, "rt", encoding="latin-1") as file:
        read = file.readlines()
    day = re.compile(r"\[(\d\d/\w{3}/\d{4})")
    for number in range(lines // len(read)):
        for line in read:
            found = day.search(line)
            later = datetime.strptime(found[1], "%d/%b/%Y") + timedelta(days=4 * number)  # noqa: DTZ007
            yield f"{line[: found.start(1)]}{later:%d/%b/%Y}{line[found.end(1) :]}"


LOGS = {"generated": generated} | ({"a public log, repeated": tiled} if SAMPLE else {})


def reading(effort: Effort) -> Iterator[Figure]:
    """Lines that are read in a second of one processor, beside a regular expression that is written by hand."""
    contestants = {"ours": (read_by_format, effort.part(200_000)), "theirs": (read_by_hand, effort.part(200_000))}
    taken = in_turn(contestants, effort.rounds(5))
    theirs = sorted(taken["theirs"])[len(taken["theirs"]) // 2]
    note = f"a regular expression written by hand, line by line: {theirs:,.0f}/s"
    yield alone("read combined: lines", taken["ours"], "/s", at_least=150_000, note=note)


def read_by_format(lines: int) -> Run:
    """Read `combined` as a replay does."""
    data = "".join(generated(lines)).encode()

    def run() -> float:
        reader = PatternFormat("combined", NAMED["combined"]).reader(["status"], Unreadable())
        begun, place, count = time.process_time(), 0, 0
        while place < len(data):
            end = data.rfind(b"\n", place, place + _BLOCK) + 1
            count += len(reader.read(data[place:end]))
            place = end
        assert count == lines
        return lines / (time.process_time() - begun)

    return run


def read_by_hand(lines: int) -> Run:
    """Match each line by a regular expression. No time is read."""
    data = "".join(generated(lines)).encode()

    def run() -> float:
        begun = time.process_time()
        count = sum(1 for line in data.decode().splitlines() if HAND_WRITTEN.match(line).groups())
        assert count == lines
        return lines / (time.process_time() - begun)

    return run


def million_lines(effort: Effort) -> Iterator[Figure]:
    """CPU time of a replay of a million lines. A quick run takes a part of them and multiplies the time."""
    for name, lines_of in LOGS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "access.log"
            with path.open("w", encoding="latin-1") as file:
                file.writelines(lines_of(effort.part(LINES)))
            contestants = {rules: (replaying, str(path), rules) for rules in ("one", "five")}
            taken = in_turn(contestants, 1)
        yield alone(f"one rule by ip, {name}", taken["one"], "ms", at_most=12_000)
        yield alone(f"five rules, {name}", taken["five"], "ms", at_most=35_000)


def replaying(path: str, rules: str) -> Run:
    """Replay a log by one or five rules, as the command does."""
    config = {"domain": "shop", "rules": ONE if rules == "one" else FIVE}

    def run() -> float:
        begun = time.process_time()
        with rarely_collecting():
            result = replay(Options(logs=[path], rules=config))
        return (time.process_time() - begun) * 1000 * LINES / result.outcome.requests

    return run
