"""The endpoints of `/v1` and those of health, asked by a real client under a real uvicorn."""

import asyncio
import json
import math
from contextlib import suppress

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_mw.service.api import http_app
from tests.service.http_service import CLIENT, file, service, serving
from tests.shells.asking import exchange, http_scope

RULES = file(
    [
        {"name": "by_ip", "by": "ip", "limit": "2 per minute", "algorithm": "fixed_window"},
        {"name": "login", "match": {"path": "/login"}, "by": "ip", "limit": "1 per hour", "response": {"status": 420}},
    ],
    descriptors=[{"key": "tenant", "rate_limit": {"unit": "minute", "requests_per_unit": 1}}],
    attributes={"plan": "header:X-Plan"},
)
IP = {"attributes": {"ip": "203.0.113.7"}}
TENANT = {"entries": [["tenant", "acme"]]}


@pytest.fixture
def made():
    return service(RULES)


def test_check_charges_and_answers_200_for_both_outcomes(client):
    answers = [client.post("/v1/check", json=IP) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert [answer.json()["allowed"] for answer in answers] == [True, True, False]
    denied = answers[2].json()
    assert (denied["rule"], denied["limit"], denied["remaining"], denied["retry_after"]) == ("by_ip", 2, 0, 40.0)
    assert (denied["reason"], [each["rule"] for each in denied["policies"]]) == ("limited", ["by_ip"])


def test_check_answers_with_the_status_of_the_denial_if_asked(client):
    answers = [client.post("/v1/check?status=429", json=IP) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].headers["retry-after"] == "40"
    login = {"attributes": {"ip": "203.0.113.9", "path": "/login"}}
    assert [client.post("/v1/check?status=429", json=login).status_code for _ in range(2)] == [200, 420]


def test_check_takes_the_entries_of_a_descriptor(client):
    assert [client.post("/v1/check", json=TENANT).json()["allowed"] for _ in range(2)] == [True, False]


def test_check_takes_a_cost_and_a_domain(client):
    asked = {**IP, "cost": 2, "domain": "shop"}
    assert [client.post("/v1/check", json=asked).json()["allowed"] for _ in range(2)] == [True, False]


def test_check_takes_up_to_100_checks_and_decides_them_in_order(client):
    answer = client.post("/v1/check", json={"checks": [IP, TENANT, IP, IP, *[{**IP, "cost": 0}] * 96]})
    allowed = [each["allowed"] for each in answer.json()["decisions"]]
    assert (len(allowed), allowed[:4]) == (100, [True, True, True, False])


def test_a_rule_is_asked_by_its_name_with_a_key_and_an_unknown_one_has_a_row_of_null(client):
    login = {"attributes": {}, "rule": "login", "key": "ann"}
    answers = [client.post(f"/v1/{path}", json=login).json() for path in ("peek", "check", "check", "reset", "check")]
    assert [answer.get("allowed") for answer in answers] == [True, True, False, None, True]
    assert client.post("/v1/explain", json=login).json()["decision"]["rule"] == "login"
    rows = client.post("/v1/check", json={"checks": [IP, {**IP, "rule": "gone"}, login], "rows": True}).json()["rows"]
    assert [row and row[:2] for row in rows] == [[True, "by_ip"], None, [False, "login"]]


def test_a_cost_that_never_fits_has_no_retry_after(client):
    answer = client.post("/v1/check?status=429", json={**IP, "cost": 3})
    assert (answer.status_code, answer.json()["retry_after"]) == (429, None)
    assert "retry-after" not in answer.headers
    assert math.inf not in answer.json().values()


def test_peek_charges_nothing(client):
    answers = [client.post("/v1/peek", json=IP).json() for _ in range(4)]
    assert [answer["allowed"] for answer in answers] == [True] * 4
    several = client.post("/v1/peek", json={"checks": [IP, TENANT]}).json()
    assert [each["allowed"] for each in several["decisions"]] == [True, True]


def test_explain_says_why_and_charges_nothing(client):
    asked = {"attributes": {"ip": "203.0.113.7", "path": "/login"}}
    found = [client.post("/v1/explain", json=asked).json() for _ in range(3)][-1]
    assert found["decision"]["allowed"] is True
    assert [rule["status"] for rule in found["rules"] if rule["name"] in {"by_ip", "login"}] == ["applies", "applies"]


def test_reset_resets_the_counters_of_a_client(client):
    before = [client.post("/v1/check", json=IP).json()["allowed"] for _ in range(3)]
    assert client.post("/v1/reset", json=IP).json() == {"reset": True}
    assert (before, client.post("/v1/check", json=IP).json()["allowed"]) == ([True, True, False], True)


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        ([], ["must be an object with attributes or entries"]),
        ({}, ["must have either attributes or entries"]),
        ({**IP, **TENANT}, ["must have either attributes or entries"]),
        ({**IP, "cost": -1}, ["cost: must be a whole number of at least 0"]),
        ({**IP, "cost": True}, ["cost: must be a whole number of at least 0"]),
        ({**IP, "cost": 1.5, "domain": 7}, ["cost: must be", "domain: must be a string or null"]),
        ({**IP, "domain": "hunter2"}, ["domain: the rules do not have this domain"]),
        ({**IP, "rule": "hunter2", "key": "k"}, ["rule: the rules do not have this rule"]),
        ({**IP, "key": "k"}, ["key: needs a rule"]),
        ({**IP, "rule": ["by_ip"], "key": 5}, ["rule: the value must be a string", "key: the value must be a string"]),
        ({**IP, "hunter2": 1}, ["the key #"]),
        ({"attributes": {"hunter2": "x"}}, ["attributes[#"]),
        ({"attributes": {"ip": 5, "user": None}}, ["attributes.ip: the value must be", "attributes.user: the value"]),
        ({"attributes": {"user": "x" * 4097}}, ["attributes.user: the value is longer than 4096 bytes"]),
        ({"attributes": {"user": "\ud800"}}, ["attributes.user: the value has half of a surrogate pair"]),
        ({"attributes": {f"header:x{n}": "x" for n in range(33)}}, ["attributes: must be an object of at most 32"]),
        ({"entries": {"k": "v"}}, ["entries: must be a list of 1 to 32 entries"]),
        ({"entries": []}, ["entries: must be a list of 1 to 32 entries"]),
        ({"entries": [["k", "v"]] * 33}, ["entries: must be a list of 1 to 32 entries"]),
        ({"entries": [["k"], "kv", ["k", 1]]}, ["entries[0]: must", "entries[1]: must", "entries[2]: the value must"]),
        ({"checks": []}, ["checks: must be a list of 1 to 100 checks"]),
        ({"checks": [IP] * 101}, ["checks: must be a list of 1 to 100 checks"]),
        ({"checks": [IP, {}, {**IP, "cost": "2"}], "hunter2": 1}, ["the key #", "checks[1]: must", "checks[2].cost:"]),
    ],
    ids=lambda value: "",
)
def test_all_problems_of_a_body_are_reported_without_what_was_sent(client, made, body, problems):
    answer = client.post("/v1/check", content=json.dumps(body))
    found = answer.json()["problems"]
    assert answer.status_code == 400
    assert [text[: len(start)] for text, start in zip(found, problems, strict=True)] == problems
    assert "hunter2" not in answer.text
    assert made.refused == {"bad_request": 1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"attributes": {}, "cost": NaN}',
        b"[" * 60_000,
        b"1" * 5000,
        b'"\\ud800"',
        b"null",
    ],
    ids=lambda body: repr(body[:10]),
)
@pytest.mark.parametrize("path", ["/v1/check", "/json"])
def test_a_body_that_is_not_a_check_is_400(client, path, body):
    answer = client.post(path, content=body)
    assert (answer.status_code, len(answer.json()["problems"])) == (400, 1)


@pytest.mark.parametrize("path", ["/v1/check", "/v1/peek", "/v1/explain", "/v1/reset", "/json"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_beyond_64_kib_is_413(client, made, path, chunked):
    body = b" " * (64 * 1024 + 1)
    answer = client.post(path, content=iter([body[:40_000], body[40_000:]]) if chunked else body)
    assert answer.status_code == 413
    assert made.refused == {"body_too_long": 1}


def test_a_body_of_several_megabytes_is_refused(client, made):
    reset = httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError  # by when the client notices it
    with httpx.Client(base_url=client.base_url) as other, suppress(*reset):
        assert other.post("/v1/check", content=b" " * 3_000_000).status_code == 413
    assert made.refused == {"body_too_long": 1}


def test_a_body_of_64_kib_is_read(client):
    body = json.dumps(IP).encode()
    assert client.post("/v1/check", content=body + b" " * (64 * 1024 - len(body))).status_code == 200


@pytest.mark.parametrize("query", ["?status=500", "?status=", "?colour=red", "?status=429&status=429"])
def test_a_parameter_of_check_that_is_wrong_is_400(client, query):
    assert client.post(f"/v1/check{query}", json=IP).status_code == 400


def test_several_checks_have_no_status_of_their_own(client):
    assert client.post("/v1/check?status=429", json={"checks": [IP]}).status_code == 400


def test_the_endpoints_need_a_token_if_the_service_has_any(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("check check-0123456789\nadmin admin-0123456789\n")
    made = service(RULES, token_file=tokens)
    expected = {"/v1/check": (401, 200, 200), "/v1/peek": (401, 200, 200), "/v1/explain": (401, 403, 200)}
    expected |= {"/v1/reset": (401, 403, 200)}
    with serving(http_app(made)) as client:
        headers = [{"Authorization": f"Bearer {token}"} for token in ("no-0123456789abc", "check-0123456789")]
        headers.append({"Authorization": "Bearer admin-0123456789"})
        found = {
            path: tuple(client.post(path, json=IP, headers=each).status_code for each in headers) for path in expected
        }
        health = {client.get(path).status_code for path in ("/livez", "/readyz", "/healthcheck")}
        denied = client.post("/v1/check", json=IP)
    made.limiter.close()
    assert (found, health) == (expected, {200})
    assert (denied.status_code, denied.headers["www-authenticate"]) == (401, "Bearer")
    assert made.refused == {"unauthorized": 7}


def test_a_page_in_a_browser_may_not_ask(client, made):
    answer = client.post("/v1/reset", json=IP, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403
    assert made.refused == {"browser": 1}


@pytest.mark.parametrize(("started", "draining", "ready"), [(False, False, 503), (True, False, 200), (True, True, 503)])
def test_the_service_is_ready_from_its_start_until_it_drains(client, made, started, draining, ready):
    made.started, made.draining = started, draining
    assert client.get("/readyz").status_code == ready
    assert client.get("/healthcheck").status_code == (200 if ready == 200 else 500)
    assert client.get("/livez").status_code == 200


@pytest.mark.parametrize(("on_error", "allowed"), [("allow", True), ("deny", False), ("local", True)])
def test_the_rules_decide_while_the_store_is_away(on_error, allowed):
    rule = {"name": "r", "by": "ip", "limit": "2 per minute", "on_error": on_error}
    made = service(file([rule], storage={"timeout": "100ms"}), storage="redis://127.0.0.1:1/0")
    with serving(http_app(made)) as client:
        found = client.post("/v1/check?status=429", json=IP)
        others = [client.post(path, json=IP).status_code for path in ("/v1/peek", "/v1/explain", "/v1/reset")]
    made.limiter.close()
    assert (found.json()["allowed"], found.status_code) == (allowed, 200 if allowed else 503)
    assert others == [200, 503, 503]


KEYS = st.sampled_from(
    ["attributes", "entries", "cost", "domain", "checks", "ip", "path", "user", "descriptors", "key", "value", "limit"]
) | st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.binary(max_size=80) | VALUES.map(lambda value: json.dumps(value).encode())


@pytest.fixture(scope="module")
def endpoint():
    made = service({**RULES, "client": CLIENT})
    yield http_app(made)
    made.limiter.close()


@given(
    path=st.sampled_from(["/v1/check", "/v1/peek", "/v1/explain", "/v1/reset", "/json"]),
    body=BODIES,
    headers=st.lists(st.tuples(st.sampled_from([b"content-type", b"content-length", b"x-a"]), st.binary(max_size=9))),
    query=st.binary(max_size=9),
)
@settings(max_examples=100)
def test_no_bytes_in_a_request_make_the_api_fail(endpoint, path, body, headers, query):
    scope = http_scope(path, method="POST", headers=headers, query_string=query)
    message = {"type": "http.request", "body": body, "more_body": False}
    start, *_ = asyncio.run(exchange(endpoint, scope, [message]))
    assert start["status"] in {200, 400, 413, 429}
