"""`/auth`, asked by a real HTTP client under a real uvicorn, and compared with the middleware under the same server."""

import logging
import string
import time

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.clock import ManualClock
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.service.api import http_app
from ratelimit_mw.service.auth import Auth, original_scope
from ratelimit_mw.stores.memory import MemoryStore
from tests.service.http_service import CLIENT, START, file, ingress, nginx, service, serving, traefik
from tests.shells.asking import http_scope, serve

LOGIN = {
    "name": "login",
    "match": {"path": "/login", "methods": ["POST"]},
    "by": "ip",
    "limit": "1 per minute",
    "algorithm": "fixed_window",
}
BAN = {"after": "1 denial", "for": "1 hour"}
ORIGINALS = pytest.mark.parametrize("asked", [nginx, traefik])


@ORIGINALS
def test_auth_passes_with_the_headers_of_the_file_and_then_denies(server, asked):
    client = server.use()
    answers = [client.get("/auth", headers=asked()) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["1", "0", "0"]
    assert [answer.headers.get("x-ratelimit-status") for answer in answers] == [None, None, "429"]
    assert answers[0].content == b""
    assert answers[2].headers["retry-after"] == "40"


def test_auth_answers_403_to_nginx_and_has_the_status_of_the_rule_in_a_header(server):
    client = server.use()
    answers = [client.get("/auth?denied=403", headers=nginx()) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 403]
    assert answers[2].headers["x-ratelimit-status"] == "429"
    assert answers[2].json() == {"message": "Too many requests"}


def test_what_a_shadow_rule_would_have_denied_at_auth_is_recorded(server, caplog):
    caplog.set_level(logging.INFO, "ratelimit_mw.denials")
    client = server.use(file([{**LOGIN, "shadow": True}]))
    answers = [client.get("/auth", headers=nginx("/login", "POST")) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    found = [
        (each.rule, each.method, each.route, each.shadow) for each in caplog.records if each.name.endswith("denials")
    ]
    assert found == [("login", "POST", "/login", True)] * 2


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
def test_auth_decides_by_the_original_method_whatever_method_asks(server, method):
    client = server.use(file([LOGIN]))
    answers = [client.request(method, "/auth", headers=nginx("/login", "POST")) for _ in range(2)]
    others = [client.request(method, "/auth", headers=nginx("/login", "GET")) for _ in range(2)]
    assert [answer.status_code for answer in answers + others] == [200, 429, 200, 200]


@ORIGINALS
@pytest.mark.parametrize(
    "uri", ["/login", "/login?x=1", "//login", "/a/../login", "/lo%67in", "/login#part", "http://shop.example/login"]
)
def test_a_spelling_of_the_path_does_not_bypass_its_rule(server, asked, uri):
    client = server.use(file([LOGIN]))
    answers = [client.get("/auth", headers=asked(uri, "POST")).status_code for _ in range(2)]
    assert answers == [200, 429]


@pytest.mark.parametrize(
    "uri", ["http://shop.example/login", "http://shop.example", "http://h/a;b", "*", "login", "a/http://h/login", "?x"]
)
def test_a_uri_that_does_not_begin_with_a_slash_is_read_as_by_the_middleware(uri):
    original = [(b"x-original-method", b"GET"), (b"x-original-uri", uri.encode())]
    found = AsgiRequest(original_scope({"asgi": {}, "headers": original}))
    under_a_server = AsgiRequest(http_scope(uri.partition("?")[0]))
    assert (found.path, found.forms) == (under_a_server.path, under_a_server.forms)


CONFIGS = {
    "json": {},
    "draft": {"response": {"headers": ["ratelimit", "retry-after"], "body": ["problem", "text"]}},
    "html": {"response": {"body": ["html", "json"], "status": 503}},
    "own": {
        "response": {"header_names": {"limit": "X-Quota"}, "message": "{limit} of {rule} per {period} from {ip}"},
    },
    "no headers": {"response": {"headers": []}},
    "of a rule": {
        "rules": [{**LOGIN, "match": {"path": "/"}, "response": {"status": 420, "message": "Enhance your calm"}}]
    },
    "by header": {"rules": [{**LOGIN, "match": {"header:X-Plan": "free"}, "by": "header:X-Key"}]},
    "by host": {"rules": [{**LOGIN, "match": {"host": "shop.example"}}]},
    "throttled": {
        "rules": [
            {
                **LOGIN,
                "match": {},
                "algorithm": "token_bucket",
                "burst": 2,
                "ban": {"after": "1 denial", "for": "1 hour"},
            }
        ]
    },
    "blocked": {"overrides": [{"client": {"ip": "203.0.113.7"}, "block": True}]},
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("method", "accept"), [("GET", "*/*"), ("HEAD", "text/html"), ("GET", "text/html, */*;q=0.1")])
def test_auth_answers_as_the_middleware(server, name, method, accept):
    config = {**file(), **CONFIGS[name]}
    sent = {"X-Plan": "free", "X-Key": "k", "Accept": accept, "Host": "shop.example"}
    client = server.use(config)
    found = [answered(client.get("/auth", headers=nginx("/?q=1", method, **sent))) for _ in range(3)]

    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    with RateLimiter(config, clock=ManualClock(START)) as limiter:
        server.app = RateLimitMiddleware(app, limiter=limiter)
        forwarded = {"X-Forwarded-For": "203.0.113.7", **sent}
        expected = [answered(client.request(method, "/?q=1", headers=forwarded)) for _ in range(3)]
    assert found == expected
    assert {status for status, _, _ in found} != {200}


def answered(answer):
    """The parts of an answer that must be alike. The denial of a HEAD request has no body, so its length differs."""
    left_out = {"date", "x-ratelimit-status"} | ({"content-length"} if not answer.content else set())
    fields = sorted((name, value) for name, value in answer.headers.multi_items() if name not in left_out)
    return answer.status_code, fields, answer.content


def test_the_handler_of_the_file_makes_the_denial(server, tmp_path, monkeypatch):
    (tmp_path / "service_denials.py").write_text(
        "def denied(scope, decision):\n    return 418, {'X-Path': scope['path']}, {'rule': decision.rule}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    client = server.use(file(response={"handler": "python:service_denials:denied"}))
    answer = [client.get("/auth", headers=nginx("/tea")) for _ in range(3)][-1]
    assert (answer.status_code, answer.headers["x-path"], answer.json()) == (418, "/tea", {"rule": "everybody"})


@ORIGINALS
def test_the_host_of_the_original_request_is_known(server, asked):
    config = file([{**LOGIN, "match": {"host": "shop.example"}}])
    client = server.use(config)
    headers = asked(Host="shop.example") if asked is nginx else asked(Host="ratelimit:8080")
    answers = [client.get("/auth", headers=headers).status_code for _ in range(2)]
    assert answers == [200, 429]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Original-URI": "/"},
        {"X-Original-Method": "GET"},
        {"X-Forwarded-Uri": "/"},
        {"X-Forwarded-Method": "GET"},
    ],
    ids=lambda headers: "+".join(headers) or "none",
)
def test_auth_answers_400_with_a_sentence_if_the_original_request_is_missing(server, headers):
    made = service()
    answer = server.use(made=made).get("/auth?denied=403", headers=headers)
    assert answer.status_code == 400
    assert "X-Original-Method and X-Original-URI (nginx)" in answer.text
    assert made.refused == {"no_original_request": 1}


FORGED = [
    {"X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/free"},
    {"X-Forwarded-Uri": "/free"},
    {"X-Forwarded-Method": "GET"},
]


@pytest.mark.parametrize("forged", FORGED, ids=str)
def test_a_client_of_nginx_does_not_pass_with_the_headers_of_traefik(server, forged):
    client = server.use(file([LOGIN]))
    answers = [
        client.get("/auth?denied=403", headers={**nginx("/login", "POST"), **forged}).status_code for _ in range(2)
    ]
    assert answers == [403, 403]


@pytest.mark.parametrize(
    "forged",
    [
        {"X-Original-Method": "GET", "X-Original-URI": "/free"},
        {"X-Original-URI": "/free"},
        {"X-Original-Method": "GET"},
    ],
    ids=str,
)
def test_a_client_of_traefik_does_not_pass_with_the_headers_of_nginx(server, forged):
    made = service(file([LOGIN]))
    answer = server.use(made=made).get("/auth", headers={**traefik("/login", "POST"), **forged})
    assert answer.status_code == 403
    assert made.refused == {"contradicting_headers": 1}


NAMED = {"original": nginx, "original-url": ingress, "forwarded": traefik}
SENT = {"X-Original-URI": "/f", "X-Original-URL": "http://h/f", "X-Forwarded-Uri": "/f", "X-Forwarded-Method": "GET"}


@pytest.mark.parametrize("name", NAMED)
def test_the_set_that_the_query_names_is_read_and_the_others_are_ignored(server, name):
    client = server.use(file([LOGIN]))
    headers = {**SENT, **NAMED[name]("/login?next=%2F", "POST")}
    asked = [client.get(f"/auth?headers={name}", headers=headers).status_code for _ in range(2)]
    unnamed = client.get("/auth?denied=403", headers=headers).status_code
    assert (asked, unnamed) == ([200, 429], 403)


@pytest.mark.parametrize("name", NAMED)
def test_the_set_that_the_query_names_must_be_there(server, name):
    others = {**nginx(), **ingress(), **traefik()}
    headers = {key: value for key, value in others.items() if not key.endswith(("URI", "URL", "Uri"))}
    answer = server.use().get(f"/auth?headers={name}", headers=headers)
    assert (answer.status_code, "are missing" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://shop.example/login?a=1", ("https", "shop.example", "/login", b"a=1")),
        ("HTTP://shop.example:8080//login", ("http", "shop.example:8080", "//login", b"")),
        ("http://shop.example", ("http", "shop.example", "/", b"")),
        ("http://shop?/login", ("http", "shop?", "/login", b"")),  # the Host of a client is in this header
        ("/login?next=http://x/", ("http", None, "/login", b"next=http://x/")),
    ],
)
def test_the_url_of_ingress_nginx_has_the_scheme_the_host_and_the_path(url, expected):
    headers = [(b"x-original-method", b"GET"), (b"x-original-url", url.encode())]
    found = original_scope({"asgi": {}, "headers": headers}, "original-url")
    request = AsgiRequest(found)
    assert (found["scheme"], request.header("host"), found["path"], found["query_string"]) == expected


def test_only_three_sets_have_a_name(server):
    answer = server.use().get("/auth?headers=nginx", headers=nginx())
    assert (answer.status_code, "original, original-url, forwarded" in answer.text) == (400, True)


def test_two_different_lines_of_a_header_are_refused_unless_it_is_of_a_set_that_is_ignored(server):
    client = server.use()
    lines = [*nginx("/login", "POST").items(), ("X-Original-URI", "/free")]
    others = [*nginx("/login").items(), ("X-Forwarded-Uri", "/a"), ("X-Forwarded-Uri", "/b")]
    assert client.get("/auth", headers=lines).status_code == 403
    assert client.get("/auth?headers=original", headers=lines).status_code == 403
    assert client.get("/auth?headers=original", headers=others).status_code == 200


@ORIGINALS
def test_the_url_of_ingress_nginx_beside_another_set_is_refused(server, asked):
    headers = {**asked(), "X-Original-URL": "http://shop.example/"}
    assert server.use().get("/auth?denied=403", headers=headers).status_code == 403


def test_a_client_behind_a_trusted_proxy_does_not_choose_its_address(server):
    client = server.use()
    statuses = [
        client.get("/auth", headers=nginx(ip=f"192.0.2.{number}, 203.0.113.7")).status_code for number in range(3)
    ]
    assert statuses == [200, 200, 429]


def test_header_names_with_underscores_are_not_the_headers_of_a_proxy(server):
    client = server.use(file([LOGIN]))
    forged = {"X_Original_URI": "/free", "X_Original_Method": "GET", "X_Forwarded_Uri": "/free"}
    statuses = [client.get("/auth", headers={**nginx("/login", "POST"), **forged}).status_code for _ in range(2)]
    assert statuses == [200, 429]


@pytest.mark.parametrize(("query", "status"), [("", 414), ("?denied=403", 403)])
def test_a_uri_beyond_16_kib_is_denied(server, query, status):
    made = service()
    client = server.use(made=made)
    longest, longer = "/" + "a" * (16 * 1024 - 1), "/" + "a" * (16 * 1024)
    assert client.get(f"/auth{query}", headers=nginx(longest)).status_code == 200
    refused = client.get(f"/auth{query}", headers=nginx(longer))
    assert (refused.status_code, refused.headers["x-ratelimit-status"]) == (status, "414")
    assert made.refused == {"uri_too_long": 1}


UNTRUSTED = {**CLIENT, "trusted_proxies": ["192.0.2.0/24"]}


def test_an_untrusted_proxy_is_logged_once_and_its_clients_count_as_one(server, caplog):
    client = server.use(file(client=UNTRUSTED))
    with caplog.at_level(logging.ERROR, "ratelimit_mw"):
        statuses = [client.get("/auth", headers=nginx(ip=f"203.0.113.{number}")).status_code for number in range(3)]
    assert statuses == [200, 200, 429]
    (record,) = [each for each in caplog.records if "client.trusted_proxies" in each.getMessage()]
    assert record.levelno == logging.ERROR
    assert "203.0.113" not in record.getMessage()


def test_strict_proxies_refuse_an_untrusted_proxy(server):
    made = service(file(client=UNTRUSTED), strict_proxies=True)
    answer = server.use(made=made).get("/auth?denied=403", headers=nginx())
    assert answer.status_code == 400
    assert "client.trusted_proxies" in answer.text
    assert made.refused == {"untrusted_proxy": 1}


def test_a_token_admits_a_proxy_that_is_not_trusted(server, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("check 0123456789abcdef\n")
    client = server.use(file(client=UNTRUSTED), token_file=tokens)
    wrong = [{}, {"X-RateLimit-Token": "0123456789abcdeg"}, {"Authorization": "Bearer 0123456789abcdef"}]
    assert [client.get("/auth", headers=nginx(**each)).status_code for each in wrong] == [401] * 3
    assert client.get("/auth", headers=nginx(**{"X-RateLimit-Token": "0123456789abcdef"})).status_code == 200


def test_a_trusted_proxy_needs_no_token(server, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("check 0123456789abcdef\n")
    assert server.use(token_file=tokens).get("/auth", headers=nginx()).status_code == 200


def test_a_proxy_that_is_trusted_by_its_hop_alone_needs_a_token(server, tmp_path):
    """`trusted_hops` trusts every peer, so without a token every machine could charge the counters of others."""
    tokens = tmp_path / "tokens"
    tokens.write_text("check 0123456789abcdef\n")
    client = server.use(file(client={"secret": "s", "trusted_hops": 1}), token_file=tokens)
    assert client.get("/auth", headers=nginx()).status_code == 401
    own = [client.get("/auth", headers=nginx(**{"X-RateLimit-Token": "0123456789abcdef"})) for _ in range(3)]
    assert [answer.status_code for answer in own] == [200, 200, 429]
    other = client.get("/auth", headers=nginx(ip="203.0.113.8", **{"X-RateLimit-Token": "0123456789abcdef"}))
    assert other.status_code == 200


def test_a_proxy_may_ask_over_a_unix_socket(tmp_path_factory, caplog):
    path = tmp_path_factory.mktemp("s") / "s"
    made = service(file(client={"secret": "s", "trusted_hops": 1}))
    with serving(http_app(made), uds=path) as client:
        statuses = [client.get("/auth", headers=nginx()).status_code for _ in range(3)]
        others = client.get("/auth", headers=nginx(ip="203.0.113.8")).status_code
    made.limiter.close()
    assert (statuses, others) == ([200, 200, 429], 200)
    assert caplog.records == []


def test_a_proxy_on_a_unix_socket_that_is_not_trusted_is_refused_if_proxies_are_strict(tmp_path_factory):
    path = tmp_path_factory.mktemp("s") / "s"
    made = service(strict_proxies=True)
    with serving(http_app(made), uds=path) as client:
        assert client.get("/auth", headers=nginx()).status_code == 400
    made.limiter.close()


def test_the_domain_parameter_asks_one_domain(server, tmp_path):
    for name, number in (("shop", 1), ("blog", 2)):
        shared = "client: {secret: s, trusted_proxies: [127.0.0.1]}" if name == "blog" else ""
        rule = f"{{name: all, by: ip, limit: {number} per minute, algorithm: fixed_window}}"
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\n{shared}\nrules: [{rule}]\n")
    made = service(str(tmp_path))
    client = server.use(made=made)
    asked = {name: [client.get(f"/auth?domain={name}", headers=nginx()) for _ in range(3)] for name in ("shop", "blog")}
    assert [answer.status_code for answer in asked["shop"]] == [200, 429, 429]
    assert [answer.status_code for answer in asked["blog"]] == [200, 200, 429]
    unknown = client.get("/auth?domain=secret-name&denied=403", headers=nginx())
    assert (unknown.status_code, "secret-name" in unknown.text) == (400, False)
    assert made.refused == {"unknown_domain": 1}


@pytest.mark.parametrize(
    "query", ["denied=404", "denied=", "colour=red", "denied=403&denied=403", "domain=%ff", "x", "a" * 2000]
)
def test_a_parameter_that_is_wrong_is_400_with_a_sentence(server, query):
    answer = server.use().get(f"/auth?{query}", headers=nginx())
    assert answer.status_code == 400
    assert answer.text.strip()
    assert "colour" not in answer.text


@pytest.mark.parametrize(("on_error", "status"), [("allow", 200), ("deny", 503), ("local", 200)])
def test_the_rules_decide_while_the_store_is_away(server, on_error, status):
    rule = {"name": "r", "by": "ip", "limit": "2 per minute", "on_error": on_error}
    made = service(file([rule], storage={"timeout": "100ms"}), storage="redis://127.0.0.1:1/0")
    answers = {server.use(made=made).get("/auth", headers=nginx()).status_code for _ in range(2)}
    assert answers == {status}


class Remote(MemoryStore):
    """A store that must be awaited on an event loop."""

    waits = True

    def ask(self, _request):
        raise AssertionError("asked on the event loop")

    async def aask(self, request):
        return super().ask(request)


def test_a_store_that_waits_is_awaited(server):
    client = server.use(storage=Remote(clock=ManualClock(START)))
    assert [client.get("/auth", headers=nginx()).status_code for _ in range(3)] == [200, 200, 429]


def test_a_function_that_must_be_awaited_finds_the_user(server, tmp_path, monkeypatch):
    (tmp_path / "service_users.py").write_text("async def user(scope):\n    return 'ann'\n")
    monkeypatch.syspath_prepend(tmp_path)
    rule = {"name": "r", "by": "user", "limit": "1 per minute"}
    client = server.use(file([rule], client={**CLIENT, "user": "python:service_users:user"}))
    answers = [client.get("/auth", headers=nginx(ip=f"203.0.113.{number}")) for number in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]


def test_services_that_share_a_redis_share_their_counters(server, any_server):
    statuses = []
    for _ in range(3):
        client = server.use(storage=any_server.url)
        statuses.append(client.get("/auth", headers=nginx()).status_code)
    assert statuses == [200, 200, 429]


def test_a_rule_that_needs_the_response_is_ignored(server):
    kinds = [{"count": {"status": 401}}, {"limit": "1 concurrent", "algorithm": None}, {"cost": "response:X-Cost"}]
    rules = [
        {key: value for key, value in {**LOGIN, "match": {}, "name": f"r{rank}", **kind}.items() if value is not None}
        for rank, kind in enumerate(kinds)
    ]
    client = server.use(file(rules), ignore_unservable=True)
    assert [client.get("/auth", headers=nginx()).status_code for _ in range(3)] == [200] * 3


def test_a_request_that_must_wait_is_answered_when_its_turn_has_come(server):
    rule = {"name": "r", "by": "ip", "limit": "20 per second", "algorithm": "leaky_bucket", "max_wait": "1s"}
    client = server.use(file([rule]))
    begun = time.monotonic()
    answers = [client.get("/auth", headers=nginx()) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert time.monotonic() - begun > 0.149  # the clock stands still, so the turns are after 0, 50 and 100 ms


def test_requests_are_shed_under_load(server, tmp_path, monkeypatch):
    (tmp_path / "service_load.py").write_text("def load():\n    return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    rule = {"name": "r", "by": "ip", "limit": "20 per minute", "priority": "low"}
    client = server.use(file([rule], load="python:service_load:load"))
    answer = client.get("/auth", headers=nginx())
    assert (answer.status_code, answer.headers["x-ratelimit-status"]) == (503, "503")


NAMES = st.sampled_from(
    [
        *("x-original-method", "x-original-uri", "x-forwarded-method", "x-forwarded-uri", "x-forwarded-host"),
        "x-original-url",
        *("x-forwarded-for", "host", "cookie", "authorization", "accept", "x-ratelimit-token", "x-request-start"),
    ]
)
VALUES = st.binary(max_size=60) | st.text(string.printable, max_size=40).map(str.encode)


@pytest.fixture(scope="module")
def curious():
    """An endpoint whose rules read all parts of a request."""
    rules = [
        {**LOGIN, "name": "a", "match": {"path": "/{x}/y"}, "by": ["ip", "cookie:c"], "limit": "1000 per minute"},
        {**LOGIN, "name": "b", "match": {"host": "h"}, "by": "query:q", "limit": "1000 per minute"},
        {**LOGIN, "name": "c", "match": {}, "by": "user|ip", "limit": "5 per minute"},
    ]
    config = file(rules, client={**CLIENT, "user": "header:Authorization"}, response={"body": ["json", "html"]})
    made = service(config)
    yield Auth(made, PlainTextResponse("elsewhere"))
    made.limiter.close()


QUERIES = st.binary(max_size=30) | st.sampled_from([b"headers=" + name.encode() for name in NAMED])


@given(headers=st.lists(st.tuples(NAMES, VALUES), max_size=12), query=QUERIES)
@settings(max_examples=150)
def test_no_bytes_in_headers_make_auth_fail(curious, headers, query):
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/auth",
        "raw_path": b"/auth",
        "query_string": query,
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "headers": [(name.encode(), value) for name, value in headers],
    }
    start, body = serve(curious, scope)
    assert start["status"] in {200, 400, 403, 414, 429}
    length = dict(start["headers"])[b"content-length"]
    assert int(length) == len(body["body"])


def test_a_failed_proxy_leaves_no_client_text_in_the_log(server, caplog):
    client = server.use(file([LOGIN]))
    with caplog.at_level(logging.DEBUG, "ratelimit_mw"):
        for uri in ("/login?token=hunter2", "/hunter2"):
            for _ in range(2):
                client.post("/auth", headers=nginx(uri, "POST", Cookie="hunter2", Authorization="hunter2"))
        client.get("/auth", headers={"Cookie": "hunter2"})
        client.get("/auth", headers={**nginx("/hunter2"), **traefik("/other-hunter2")})
    assert caplog.records
    assert not any("hunter2" in record.getMessage() for record in caplog.records)


def test_a_response_of_auth_keeps_the_connection(server):
    client = server.use()
    with httpx.Client(base_url=client.base_url, limits=httpx.Limits(max_connections=1)) as single:
        statuses = [single.post("/auth", headers=nginx(), content=b"x" * 10).status_code for _ in range(3)]
        heads = [single.get("/auth", headers=nginx(method="HEAD")).status_code for _ in range(2)]
    assert (statuses, heads) == ([200, 200, 429], [429, 429])
