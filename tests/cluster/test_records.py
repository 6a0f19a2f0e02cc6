"""Rules and overrides on a cluster and behind Sentinels: wherever the key's slot or the master is."""

import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.config.load import Document
from ratelimit_mw.reload.database import RulesDatabase
from ratelimit_mw.stores import open_records
from tests.rules.living import limit_of, text
from tests.support.patience import eventually

RULES = {
    "domain": "d",
    "storage": {"timeout": "5s"},
    "reload": "1h",
    "rules": [{"name": "r", "by": "ip", "limit": "5 per hour"}],
}


@pytest.fixture(params=["cluster", "sentinels"])
def url(request):
    return request.getfixturevalue(request.param).url


def test_overrides_reach_the_other_processes(url):
    with RateLimiter(RULES, storage=url) as one, RateLimiter(RULES, storage=url) as other:
        one.check({"ip": "192.0.2.1"})
        one.reload()

        other.overrides.set({"ip": "192.0.2.1"}, rule="r", limit="9 per hour")
        eventually(lambda: limit_of(one) == 9)
        assert other.overrides.remove({"ip": "192.0.2.1"}, rule="r")
        eventually(lambda: limit_of(one) == 5)


def test_rules_come_from_there(url):
    database = RulesDatabase(f"{url}#apart")
    database.push([Document("r.yaml", text("7 per minute").encode())])
    with RateLimiter(f"{url}#apart") as limiter:
        assert limit_of(limiter) == 7
    database.close()


def test_every_key_is_found_whichever_node_has_it(cluster):
    records = open_records(cluster.url)
    for number in range(30):
        assert records.write(f"k{number}", {"a": str(number)}) == 1
    assert [records.read(f"k{number}")[1]["a"] for number in range(30)] == [str(number) for number in range(30)]
    records.close()


def test_nodes_that_are_gone_are_passed_over(fresh_cluster):
    records = open_records(fresh_cluster.url)
    records.write("k", {"a": "1"})
    fresh_cluster.nodes[0].kill()
    eventually(lambda: _written(records), every=0.1)
    records.close()


def _written(records):
    from ratelimit_mw.errors import StoreUnavailable

    try:
        return records.write("k", {"a": "2"})
    except StoreUnavailable:
        return 0
