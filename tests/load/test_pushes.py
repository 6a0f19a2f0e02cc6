"""Rules that change under load, on a real server with several worker processes."""

import asyncio
import re
import threading
import time

import httpx2 as httpx

from ratelimit_mw.config.load import Document
from ratelimit_mw.reload.database import RulesDatabase
from tests.rules.living import ASGI
from tests.support.apps import uvicorn
from tests.support.patience import eventually


def rules(number):
    """Version `number` has it in the name and the limit of each of its rules, and in what a denied client is told."""
    shut = f"{{name: shut-{number}, match: {{path: /shut}}, by: ip, limit: 0 per hour}}"
    wide = f"{{name: open-{number}, match: {{path: /}}, by: ip, limit: {1_000_000 + number} per hour}}"
    return (
        f"domain: d\nstorage: {{url: '${{COUNTERS}}', timeout: 5s}}\n"  # a busy machine is not what is tried here
        f"response: {{message: 'version {number} {{rule}} {{limit}}'}}\n"
        f"rules:\n  - {wide}\n  - {shut}\n"
    )


def broken(number):
    return rules(number).replace("per hour", "per fortnight") if number % 2 else "domain: [never closed\n"


PUSHES, WORKERS, RATE = 100, 4, 200
ANSWERS = 10  # between two pushes at least, however long a busy machine takes for them


class Pushing(threading.Thread):
    """Pushes, one in five broken; `pushed` says when each good version was there."""

    def __init__(self, database, asking):
        super().__init__()
        self.database = database
        self.asking = asking
        self.pushed = {}

    def run(self):
        # A worker watches for rules from its first request on.
        eventually(lambda: len(self.asking.workers) == WORKERS)
        for turn in range(PUSHES):
            number = self.database.list(1)[0].number + 1
            if turn % 5 == 3:  # past the check that a push makes, as another tool might
                self.database._append([Document("r.yaml", broken(number).encode())], "", "", None)
            else:
                self.database.push([Document("r.yaml", rules(number).encode())])
                self.pushed[number] = time.time()
            answered = self.asking.answered
            time.sleep(0.1)
            eventually(lambda answered=answered: self.asking.answered >= answered + ANSWERS)
        eventually(lambda: set(self.asking.workers.values()) == {max(self.pushed)})


class Asking:
    """Asks at a rate, and is `answered` so often. `faults` are answers that no version gives.

    `workers` has the version by which each worker has answered last.
    """

    def __init__(self, url):
        self.url = url
        self.faults = []
        self.workers = {}
        self.answered = 0
        self.places = asyncio.Semaphore(RATE)

    async def ask(self, client, path):
        try:
            answer = await client.get(self.url + path)
        finally:
            self.places.release()
        self.answered += 1
        if answer.status_code == (429 if path == "/shut" else 200) and self.is_of_one_version(path, answer):
            return
        self.faults.append(f"{path} {answer.status_code} {answer.text} {dict(answer.headers)}")

    def is_of_one_version(self, path, answer):
        if path == "/shut":
            _, words, name, limit = answer.json()["message"].split()
            return name == f"shut-{words}" and limit == "0"
        pid, _, name = answer.text.split()
        self.workers[pid] = number = int(name.removeprefix("open-"))
        return answer.headers["x-ratelimit-limit"] == str(1_000_000 + number)

    async def run(self, pushing):
        limits = httpx.Limits(max_keepalive_connections=0)  # a new connection each, so that every worker gets some
        async with httpx.AsyncClient(limits=limits, timeout=10) as client:
            tasks = []
            begun = time.monotonic()
            while pushing.is_alive():
                await self.places.acquire()
                tasks.append(asyncio.create_task(self.ask(client, "/shut" if len(tasks) % 4 == 0 else "/")))
                await asyncio.sleep(max(begun + len(tasks) / RATE - time.monotonic(), 0))
            await asyncio.gather(*tasks)


def lags(pushed, log):
    """The seconds from each good push until each worker was on its version or beyond, the shortest first."""
    taken = {}
    for number, pid, at in re.findall(r"rules: version (\d+) of .* is in force \| (\d+) ([\d.]+)", log):
        taken.setdefault(pid, []).append((int(number), float(at)))
    assert len(taken) == WORKERS
    return sorted(
        min((at for version, at in versions if version >= number), default=float("inf")) - when
        for number, when in pushed.items()
        for versions in taken.values()
    )


def test_a_hundred_pushes_under_load(any_server, tmp_path, monkeypatch):
    """No 5xx, no mixture of two versions, and every worker on the new one within a second of a good push."""
    monkeypatch.setenv("COUNTERS", any_server.url)
    (tmp_path / "living.py").write_text(ASGI)
    database = RulesDatabase(any_server.url)
    database.push([Document("r.yaml", rules(1).encode())])
    env = {"RULES": any_server.url, "COUNTERS": any_server.url}
    with uvicorn("living:app", workers=WORKERS, cwd=tmp_path, env=env) as app:
        asking = Asking(app.url)
        pushing = Pushing(database, asking)
        pushing.start()
        asyncio.run(asking.run(pushing))
        pushing.join()
        log = app.log
    database.close()
    assert asking.faults == []
    assert "Traceback" not in log
    assert "can't be used" in log
    assert len(pushing.pushed) == PUSHES * 4 // 5
    assert len(asking.workers) == WORKERS
    assert lags(pushing.pushed, log)[-1] < 1
