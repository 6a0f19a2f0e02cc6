"""A real Caddy asks the service, by the configuration of docs/beside-your-proxy.md."""

import re

import httpx2
import pytest

from tests.proxies.running import project
from tests.support.apps import ROOT

(SITES,) = re.findall(
    r"^```text\n(shop\.example\.com \{.*?)^```$",
    (ROOT / "docs" / "beside-your-proxy.md").read_text("utf-8"),
    re.MULTILINE | re.DOTALL,
)
FORGED = {
    "X-Forwarded-For": "203.0.113.9",
    "X-Forwarded-Method": "GET",
    "X-Forwarded-Uri": "/other",
    "X-Original-Method": "GET",
    "X-Original-URI": "/other",
    "X-Original-URL": "http://shop.example/other",
}


@pytest.fixture(scope="module")
def here():
    with project() as here, here.app() as here.upstream:
        yield here


def client(url, address):
    """A client with a loopback address of its own."""
    return httpx2.Client(base_url=url, transport=httpx2.HTTPTransport(local_address=address), timeout=60)


def test_caddy_passes_what_the_rules_allow_and_answers_a_denial_as_it_is(here):
    with here.service("ratelimits-nginx.yaml") as service, here.caddy(SITES) as url:
        with client(url, "127.0.0.2") as http:
            answers = [http.get("/") for _ in range(6)]
        with client(url, "127.0.0.3") as http:
            logins = [http.post("/login?next=/", headers=FORGED, content=b"user=ann").status_code for _ in range(4)]
            other = http.post("/x", content=b"hello")
        served = here.upstream.served
        service.end()
        with client(url, "127.0.0.4") as http:
            away = http.get("/").status_code
    assert [each.status_code for each in answers] == [200] * 5 + [429]
    assert answers[5].json() == {"message": "Too many requests"}
    assert (answers[5].headers["X-RateLimit-Limit"], answers[5].headers["Cache-Control"]) == ("5", "no-store")
    assert int(answers[5].headers["Retry-After"]) > 0
    assert (logins, other.text, away, served) == ([200, 200, 200, 429], "POST /x hello", 502, 9)
