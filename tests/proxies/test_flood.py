"""A flood of requests that are costly to decide on lifts no limit behind a real nginx."""

import contextlib
import http.client
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.proxies.running import project

RULES = """\
domain: shop
client: {secret: an-example-only, trusted_proxies: [127.0.0.0/8], user: cookie:session}
response: {headers: [x-ratelimit, retry-after], reset: delta}
rules:
  - {name: everything, by: ip, limit: 3 per 10 years, algorithm: sliding_log}
  - {name: session, by: user, limit: 3 per 10 years, algorithm: sliding_log}
  - {name: key, match: {"query:kind": a}, by: "query:key", limit: 3 per 10 years, algorithm: sliding_log}
"""

CONNECTIONS, EACH, BYSTANDER = 30, 10, 16
COOKIE = "; ".join(f'session="{n:04d}\\"a=b' for n in range(500))[:7900]
QUERY = "&".join(f"key=%{n % 90 + 16:02x};kind=a" for n in range(500))[:7900]
"""Ambiguous, and nearly as long as nginx passes on: 8 kB in a line."""


def send(port, address, number, target, *cookies):
    """The statuses of this many requests on one connection, one after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(address, 0))
    with contextlib.closing(connection):
        statuses = []
        for _ in range(number):
            connection.putrequest("GET", target)
            for cookie in cookies:
                connection.putheader("Cookie", cookie)
            connection.endheaders()
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        return statuses


@pytest.fixture
def flooded():
    """A function: the statuses that the flood and a bystander got at the same time, and what reached the app."""

    def run(**options):
        with project(**options) as here, here.app() as app, ThreadPoolExecutor(CONNECTIONS) as pool:
            (here.directory / "ratelimits-nginx.yaml").write_text(RULES)
            with here.service("ratelimits-nginx.yaml"), here.nginx():
                port = here.port[18088]
                sent = [
                    pool.submit(send, port, "127.0.0.9", EACH, f"/flood?{QUERY}", *[COOKIE] * 3)
                    for _ in range(CONNECTIONS)
                ]
                bystander = send(port, "127.0.0.8", BYSTANDER, "/")
                flood = [status for each in sent for status in each.result()]
            return Counter(flood), Counter(bystander), app.served

    return run


def test_a_flood_admits_no_request_over_the_limit_although_the_service_may_be_late(flooded):
    flood, bystander, served = flooded(patience=None)
    assert {*flood, *bystander} <= {200, 429, 503}
    assert (flood[200] <= 3, bystander[200] <= 3) == (True, True)
    assert served == flood[200] + bystander[200]


def test_a_flood_is_limited_and_its_bystander_is_served_if_nginx_waits(flooded):
    decided = Counter({200: 3, 429: CONNECTIONS * EACH - 3}), Counter({200: 3, 429: BYSTANDER - 3}), 6
    assert flooded() == decided
