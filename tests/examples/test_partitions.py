"""The seed's URL shortener: 100 short URLs an hour for a user, and 3 a minute on any one partition."""

import re
import shutil

import httpx
import yaml

from ratelimit_mw import ManualClock, RateLimiter
from tests.support.apps import ROOT, uvicorn

GUIDE = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "rules.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
RULES = ROOT / "examples" / "partitions.yaml"
CREATE = {"path": "/urls", "method": "POST", "user": "ada"}


def test_three_a_minute_on_each_partition_and_a_hundred_an_hour_on_all(any_server, monkeypatch, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.read_text("utf-8").replace("storage:", "storage:\n  timeout: 5s"), "utf-8")
    clock = ManualClock()
    partitions = []
    for shard in ("a", "b"):
        monkeypatch.setenv("SHARD", shard)
        partitions.append(RateLimiter(rules, storage=any_server.url, clock=clock))
    per_minute = []
    denied_by = set()
    for _ in range(20):
        for partition in partitions:
            decisions = [partition.check(CREATE) for _ in range(5)]
            per_minute.append(sum(decision.allowed for decision in decisions))
            denied_by |= {decision.rule for decision in decisions if not decision.allowed}
        clock.advance(60)
    for partition in partitions:
        partition.close()
    assert per_minute == [3] * 33 + [1] + [0] * 6
    assert denied_by == {"create-a", "create-b", "create"}


def test_two_partitions_over_http_share_a_redis(any_server, tmp_path, monkeypatch):
    shutil.copy(ROOT / "examples" / "starlette_app.py", tmp_path)
    shutil.copy(RULES, tmp_path / "ratelimits.yaml")
    answers = {}
    for shard in ("a", "b"):
        environment = {"SHARD": shard, "REDIS_URL": any_server.url}
        with (
            uvicorn("starlette_app:app", cwd=tmp_path, env=environment) as app,
            httpx.Client(base_url=app.url, headers={"Authorization": "Bearer ada"}) as client,
        ):
            answers[shard] = [client.post("/urls").status_code for _ in range(4)]
    assert answers == {shard: [404, 404, 404, 429] for shard in ("a", "b")}


def test_the_snippet_of_the_guide_is_this_file():
    (snippet,) = [text for text in GUIDE if "SHARD" in text]
    assert yaml.safe_load(snippet) == yaml.safe_load(RULES.read_text())
