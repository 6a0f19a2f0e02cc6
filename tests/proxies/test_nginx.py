"""A real nginx asks the service, by the files of examples/service."""

import signal

import httpx2
import pytest

from tests.proxies.odd import REQUESTS, fate, sent
from tests.proxies.running import project
from tests.support.patience import eventually
from tests.support.ports import free_port

MORE = """\
  - name: busy
    match: {path: /busy}
    by: ip
    limit: 1 per 10 years
    algorithm: sliding_log
    response: {status: 503}
    replaces: everything
overrides:
  - {client: {ip: 127.0.0.66}, block: true}
"""


@pytest.fixture(scope="module")
def here():
    with project() as here, here.app() as here.upstream:
        path = here.directory / "ratelimits-nginx.yaml"
        path.write_text(path.read_text() + MORE)
        yield here


@pytest.fixture(scope="module")
def nginx(here):
    """nginx with nginx.conf, and the service beside it."""
    with here.service("ratelimits-nginx.yaml"), here.nginx() as url:
        yield url


def client(url, address):
    """A client with a loopback address of its own."""
    return httpx2.Client(base_url=url, transport=httpx2.HTTPTransport(local_address=address), timeout=60)


def test_the_sixth_request_of_a_client_is_denied_and_does_not_reach_the_app(here, nginx):
    before = here.upstream.served
    with client(nginx, "127.0.0.2") as http:
        answers = [http.get("/") for _ in range(6)]
    assert [each.status_code for each in answers] == [200] * 5 + [429]
    assert here.upstream.served - before == 5
    assert [each.headers["X-RateLimit-Remaining"] for each in answers] == ["4", "3", "2", "1", "0", "0"]
    assert {each.headers["X-RateLimit-Limit"] for each in answers} == {"5"}
    assert ["Retry-After" in each.headers for each in answers] == [False] * 5 + [True]
    assert int(answers[5].headers["Retry-After"]) > 0
    assert answers[5].headers["Cache-Control"] == "no-store"
    assert answers[5].headers["Content-Type"] == "application/json"
    assert answers[5].json() == {"message": "Too many requests"}


def test_a_post_is_limited_by_its_own_rule_and_reaches_the_app_with_its_body(nginx):
    with client(nginx, "127.0.0.3") as http:
        answers = [http.post("/login?next=/", content=b"user=ann") for _ in range(4)]
        other = http.get("/login")
    assert [each.status_code for each in answers] == [200, 200, 200, 429]
    assert answers[0].text == "POST /login?next=/ user=ann"
    assert other.headers["X-RateLimit-Limit"] == "5"
    assert other.headers["X-RateLimit-Remaining"] == "4"


def test_a_forged_address_is_not_believed(nginx):
    with client(nginx, "127.0.0.4") as http:
        answers = [http.get("/", headers={"X-Forwarded-For": f"203.0.113.{last}"}) for last in range(6)]
    assert [each.status_code for each in answers] == [200] * 5 + [429]


def test_a_client_cannot_claim_to_ask_for_another_path(nginx):
    forged = {"X-Original-URI": "/other", "X-Original-Method": "GET", "X-Original-URL": "http://shop.example/other"}
    forged |= {"X-Forwarded-Uri": "/other", "X-Forwarded-Method": "GET"}
    with client(nginx, "127.0.0.6") as http:
        answers = [http.post("/login", headers=forged).status_code for _ in range(4)]
    assert answers == [200, 200, 200, 429]


def test_a_header_that_the_service_cannot_read_does_not_lift_the_limits(nginx):
    answers = [sent(nginx, REQUESTS["a vertical tab in a header"], "127.0.0.7").splitlines(True)[0] for _ in range(2)]
    assert answers == [b"HTTP/1.1 429 Too Many Requests\r\n"] * 2, "nginx passes the vertical tab on"


def test_no_odd_request_passes_without_being_counted(nginx):
    fates = {name: fate(sent(nginx, data, f"127.0.2.{n}")) for n, (name, data) in enumerate(REQUESTS.items(), 1)}
    assert [name for name in fates if fates[name] == "missed"] == []
    assert [name for name in fates if fates[name] == "refused"] == [
        "an encoded zero byte",  # by nginx itself
        "a vertical tab in a header",
    ]


def test_nginx_asks_as_ingress_nginx_does_with_the_url_of_the_request():
    with project() as here, here.app() as app, here.service("ratelimits-nginx.yaml"):
        here.edit("nginx.conf", "headers=original&", "headers=original-url&")
        here.edit(
            "nginx.conf",
            "X-Original-URI $asked_uri",
            'X-Original-URL "$scheme://$http_host$request_uri"',
        )
        with here.nginx() as url, client(url, "127.0.0.2") as http:
            forged = {"X-Original-URI": "/other", "X-Original-URL": "http://shop.example/other"}
            answers = [http.post("/login?a=b", headers=forged).status_code for _ in range(4)]
            assert (answers, app.served) == ([200, 200, 200, 429], 3)
            assert http.get("/").status_code == 200


def test_a_denial_has_the_status_of_its_rule(nginx):
    with client(nginx, "127.0.0.5") as http:
        first, second = (http.get("/busy") for _ in range(2))
    assert (first.status_code, first.headers["X-RateLimit-Limit"]) == (200, "1")
    assert (second.status_code, second.json()) == (503, {"message": "Try again"})
    assert second.headers["X-RateLimit-Remaining"] == "0"
    assert int(second.headers["Retry-After"]) > 0
    assert second.headers["Cache-Control"] == "no-store"


def test_a_blocked_client_gets_403(nginx):
    with client(nginx, "127.0.0.66") as http:
        blocked = http.get("/")
    assert (blocked.status_code, blocked.json()) == (403, {"message": "Forbidden"})
    assert not {"X-RateLimit-Limit", "Retry-After"} & blocked.headers.keys()


def test_a_rule_that_denies_without_its_store_answers_503():
    away = free_port()
    with project() as here, here.app():
        here.edit("ratelimits-nginx.yaml", "domain: shop", "domain: shop\nstorage: {on_error: deny}")
        flags = ["--storage", f"redis://127.0.0.1:{away}/0"]
        with here.service("ratelimits-nginx.yaml", *flags), here.nginx() as url:
            answer = httpx2.get(url)
    assert (answer.status_code, answer.json()) == (503, {"message": "Try again"})
    assert answer.headers["Retry-After"] == "1"


@pytest.mark.parametrize(
    ("line", "frozen", "killed"),
    [
        pytest.param("", 503, 200, id="requests are denied if the service is late, and pass if it is away"),
        pytest.param(
            "error_page 500 = @undecided;", 500, 500, id="requests get a 500 without the line that fails open"
        ),
    ],
)
def test_nginx_decides_while_the_service_is_frozen_or_killed(line, frozen, killed):
    with project(patience=None) as here, here.app():
        here.edit("nginx.conf", line, "")
        service = here.serve("ratelimits-nginx.yaml")
        try:
            with here.nginx() as url, client(url, "127.0.0.2") as http:
                eventually(lambda: http.get("/").status_code == 429)
                service.signal(signal.SIGSTOP)
                late = http.get("/")
                assert (late.status_code, late.headers.get("Retry-After")) == (frozen, "1" if frozen == 503 else None)
                service.signal(signal.SIGCONT)
                eventually(lambda: http.get("/").status_code == 429)
                service.signal(signal.SIGKILL)
                service.child.wait()
                assert http.get("/").status_code == killed
        finally:
            service.end()


def test_a_request_that_the_app_does_not_answer_is_not_sent_again(here, nginx):
    before = here.upstream.served
    with client(nginx, "127.0.0.10") as http:
        answer = http.post("/hangs-up", content=b"order=1")
    assert (answer.status_code, here.upstream.served - before) == (502, 1)
