import json
from contextlib import closing
from pathlib import Path

import pytest

from ratelimit_mw.deferral.queue import Queue
from ratelimit_mw.settings import DeferSettings

RULES = "domain: shop\nrules:\n  - {name: reports, limit: 5 per minute, on_limit: defer}\n"
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param([], "Missing option", id="no target"),
        pytest.param(["--to", "127.0.0.1:8000"], "'127.0.0.1:8000' is not the URL of an app", id="no URL"),
    ],
)
def test_a_worker_needs_an_app(run, words, said):
    Path("ratelimits.yaml").write_text(RULES)
    code, _, error = run("worker", "ratelimits.yaml", "--storage", NOWHERE, *words)
    assert code == 2
    assert said in error


@pytest.mark.parametrize("words", [["worker", "ratelimits.yaml", "--to", "http://127.0.0.1:9"], ["deferred", "list"]])
def test_there_has_to_be_a_queue(run, words):
    code, _, error = run(*words, "--storage", NOWHERE)
    assert (code, "ratelimits.yaml: no rule says on_limit: defer" in error) == (2, True)
    Path("ratelimits.yaml").write_text(RULES)
    code, _, error = run(*words)
    assert (code, "set storage.url to a Redis" in error) == (2, True)


def test_parked_requests_are_listed_and_queued_again(run, any_server):
    Path("ratelimits.yaml").write_text(RULES)
    here = ("--storage", any_server.url)
    assert run("deferred", "list", *here)[:2] == (0, "0 queued or running, 0 parked\n")
    with closing(Queue(any_server.url, "shop", DeferSettings())) as queue:
        queue.promote()
        for name, state in (("a" * 36, "parked"), ("b" * 36, "unknown")):
            queue.put(name, name, {"request": "{}", "body": "secret"})
            entry = queue.next("w", 1.0)
            queue.begin(entry, "t")
            queue.settle(entry, state, {"reason": f"it is {state}", "status": 500, "answer": b"secret"})
        code, printed, _ = run("deferred", "list", *here)
        assert (code, "secret" in printed) == (0, False)
        assert [line.split()[0] for line in printed.splitlines()] == ["0", "request", "a" * 36, "b" * 36]
        listed = json.loads(run("deferred", "list", "--json", *here)[1])
        assert [(found["id"], found["reason"]) for found in listed["parked"]] == [
            ("a" * 36, "it is parked"),
            ("b" * 36, "it is unknown"),
        ]
        assert run("deferred", "retry", *here)[0] == 2
        assert run("deferred", "retry", "--all", *here)[:2] == (0, f"{'a' * 36}: queued again\n")
        assert list(queue.parked()) == ["b" * 36], "an unknown request is queued again by its name alone"
        assert run("deferred", "retry", "b" * 36, *here)[:2] == (0, f"{'b' * 36}: queued again\n")
        assert run("deferred", "retry", "b" * 36, *here)[:2] == (1, f"{'b' * 36}: is not parked\n")


def test_a_queue_that_is_away_is_said(run):
    Path("ratelimits.yaml").write_text(RULES)
    code, _, error = run("deferred", "list", "--storage", NOWHERE)
    assert (code, "the store does not answer" in error) == (3, True)
