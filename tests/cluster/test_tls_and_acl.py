"""TLS to every server of a group, and a user who may do no more than he has to.

The wheels' servers speak no TLS, so each has a proxy before it that does, and names that one to its clients.
"""

import asyncio
import ssl
from contextlib import ExitStack

import pytest
import trustme

from ratelimit_mw import RateLimiter
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import open_records, open_store
from ratelimit_mw.stores.base import DECIDE
from tests.cluster.nodes import keys_in
from tests.support.apps import LONG
from tests.support.patience import eventually
from tests.support.proxy import Proxy

QUOTA = Quota("fixed_window", 100, LONG)
ACL = "~d:* +@read +@write -@dangerous +eval +evalsha +time +cluster|slots"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A context for servers, and the file of the authority that clients are to trust."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    file = tmp_path_factory.mktemp("authority") / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    return context, file


def opened(url):
    return open_store(StorageSettings(url=url, timeout=5))


def left(store, key):
    """What remains of a counter, asked by a thread and then by a task."""

    async def awaited():
        reply = await store.aask(([Ask(key, QUOTA)], DECIDE))
        return reply.outcomes[0].remaining

    return store.decide([Ask(key, QUOTA)]).outcomes[0].remaining, asyncio.run(awaited())


def answers_only(url, *, to, over):
    """Decisions and records work at `url`, and not at its like without TLS."""
    with_tls = f"{url}?tls=true&ssl_ca_certs={over}"
    store = opened(with_tls)
    assert [left(store, key) for key in to] == [(99, 98)] * len(to)
    store.close()
    records = open_records(with_tls)
    assert records.write("d:texts", {"a": "b"}) == 1
    assert records.read("d:texts") == (1, {"a": "b"})
    records.close()
    for refused in (url, f"{url}?tls=true"):  # in clear, and with an authority that nobody knows
        store = opened(refused)
        with pytest.raises(StoreUnavailable):
            store.decide([Ask(to[0], QUOTA)])
        store.close()


def test_tls_to_the_sentinels_and_to_their_master(fresh_sentinels, authority):
    context, file = authority
    with ExitStack() as stack:
        master = stack.enter_context(Proxy(fresh_sentinels.master.port, tls=context))
        before = [stack.enter_context(Proxy(each.port, tls=context)) for each in fresh_sentinels.sentinels]
        for sentinel in fresh_sentinels.sentinels:  # which can't ask after the proxy themselves, and must not mind
            sentinel.admin.execute_command("SENTINEL", "MONITOR", "other", "127.0.0.1", master.port, 2)
            sentinel.admin.execute_command("SENTINEL", "SET", "other", "down-after-milliseconds", 3_600_000)
        url = "redis+sentinel://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in before) + "/other/0"
        answers_only(url, to=["d:r:{x}"], over=file)
        assert master.connections >= 2


def test_tls_to_every_node_of_a_cluster(fresh_cluster, authority):
    context, file = authority
    masters = fresh_cluster.nodes[:3]
    keys = [keys_in(1, lambda slot, n=n: slot * 3 // 16_384 == n)[0] for n in range(3)]
    with ExitStack() as stack:
        before = [stack.enter_context(Proxy(node.port, tls=context)) for node in masters]
        for node, proxy in zip(masters, before, strict=True):
            node.config("cluster-announce-port", proxy.port)
        told = {proxy.port for proxy in before}
        eventually(
            lambda: all(
                {row[2][1] for row in node.admin.execute_command("CLUSTER", "SLOTS")} == told for node in masters
            )
        )
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in before[:1])
        answers_only(url, to=keys, over=file)
        assert all(proxy.connections >= 2 for proxy in before)


def used(url):
    """What an app and its operator do: decide, look, forget, list, override, and hear of it."""
    rules = {
        "domain": "d",
        "storage": {"url": url, "timeout": "5s", "on_error": "deny"},
        "rules": [
            {"name": algorithm, "limit": "100 per hour", "algorithm": algorithm}
            for algorithm in ("fixed_window", "sliding_window", "sliding_log", "bucketed_window", "token_bucket")
        ],
    }
    client = {"ip": "192.0.2.1"}
    with RateLimiter(rules) as limiter:
        assert limiter.check(client).remaining == 99
        limiter.overrides.set({"ip": "192.0.2.2"}, block=True)
        assert not limiter.check({"ip": "192.0.2.2"}).allowed
        limiter.reset(client)
        assert asyncio.run(limiter.acheck(client)).remaining == 99
    store = opened(url)
    assert len(list(store.keys("d:"))) >= 5
    store.close()


def test_acl_on_a_cluster(fresh_cluster):
    for node in fresh_cluster.nodes:
        node.admin.execute_command("ACL", "SETUSER", "ann", "on", ">p/w", *ACL.split())
        node.admin.execute_command("ACL", "SETUSER", "default", "off")
    used(fresh_cluster.url.replace("://", "://ann:p%2Fw@"))
    assert [node.admin.execute_command("ACL", "LOG") for node in fresh_cluster.nodes] == [[]] * 6


def test_acl_on_a_sentinel_s_master(fresh_sentinels):
    master = fresh_sentinels.master
    master.admin.execute_command("ACL", "SETUSER", "ann", "on", ">p/w", *ACL.split())
    used(fresh_sentinels.url.replace("://", "://ann:p%2Fw@"))
    assert master.admin.execute_command("ACL", "LOG") == []
