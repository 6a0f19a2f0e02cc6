"""`/json`: proto3-JSON as Envoy's own messages write and read it."""

import json

import pytest
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2 as descriptors
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf import json_format

from ratelimit_mw.service.api import http_app
from tests.service.http_service import CLIENT, service, serving

CONFIG = {
    "domain": "shop",
    "client": CLIENT,
    "descriptors": [
        {"key": "ip", "rate_limit": {"unit": "minute", "requests_per_unit": 2, "name": "by_address"}},
        {"key": "tenant", "value": "gold", "rate_limit": {"unlimited": True}},
    ],
}
OK, OVER_LIMIT = rls_pb2.RateLimitResponse.OK, rls_pb2.RateLimitResponse.OVER_LIMIT


@pytest.fixture
def made():
    return service(CONFIG)


def rate_limit_request(**fields):
    """A request of Envoy with two descriptors. `fields` are further fields of the first one."""
    first = descriptors.RateLimitDescriptor(entries=[{"key": "ip", "value": "192.0.2.1"}], **fields)
    second = descriptors.RateLimitDescriptor(entries=[{"key": "tenant", "value": "gold"}])
    return rls_pb2.RateLimitRequest(domain="shop", descriptors=[first, second], hits_addend=1)


def answer_of(response):
    return json_format.Parse(response.content, rls_pb2.RateLimitResponse())


@pytest.mark.parametrize("snake_case", [False, True])
def test_envoys_own_json_is_read_and_written(client, snake_case):
    asked = json_format.MessageToDict(rate_limit_request(), preserving_proto_field_name=snake_case)
    assert ("hits_addend" in asked) is snake_case
    responses = [client.post("/json", json=asked) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    found = [answer_of(response) for response in responses]
    assert [each.overall_code for each in found] == [OK, OK, OVER_LIMIT]
    first, second = found[2].statuses
    assert (first.code, first.current_limit.requests_per_unit, first.current_limit.name) == (
        OVER_LIMIT,
        2,
        "by_address",
    )
    assert first.current_limit.unit == rls_pb2.RateLimitResponse.RateLimit.MINUTE
    assert first.duration_until_reset.seconds == 40
    assert second.limit_remaining == 2**32 - 1


def test_the_answer_is_as_the_go_service_writes_it(client):
    asked = '{"domain": "shop", "descriptors": [{"entries": [{"key": "ip", "value": "192.0.2.2"}]}]}'
    assert client.post("/json", content=asked).json() == {
        "overallCode": "OK",
        "statuses": [
            {
                "code": "OK",
                "currentLimit": {"name": "by_address", "requestsPerUnit": 2, "unit": "MINUTE"},
                "limitRemaining": 1,
                "durationUntilReset": "40s",
            }
        ],
    }


def test_an_unlimited_status_has_no_limit_and_no_time(client):
    asked = {"domain": "shop", "descriptors": [{"entries": [{"key": "tenant", "value": "gold"}]}]}
    (status,) = client.post("/json", json=asked).json()["statuses"]
    assert status == {"code": "OK", "limitRemaining": 2**32 - 1}


@pytest.mark.parametrize("unit", ["HOUR", 3])
@pytest.mark.parametrize("number", [1, "1", 1.0])
def test_a_limit_that_is_sent_along_replaces_that_of_the_file(client, unit, number):
    entry = {"key": "ip", "value": f"{unit}{number!r}"}
    descriptor = {"entries": [entry], "limit": {"requestsPerUnit": number, "unit": unit}, "hitsAddend": "1"}
    asked = {"domain": "shop", "descriptors": [descriptor]}
    statuses = [client.post("/json", json=asked).status_code for _ in range(3)]
    assert statuses == [200, 429, 429]


def test_hits_of_0_take_nothing(client):
    asked = json_format.MessageToDict(rate_limit_request(hits_addend={"value": 0}))
    assert [client.post("/json", json=asked).status_code for _ in range(4)] == [200] * 4


def test_a_denial_has_the_headers_and_the_body_of_the_service():
    made = service(CONFIG, headers="rules", body=True)
    with serving(http_app(made)) as client:
        asked = json_format.MessageToDict(rate_limit_request())
        found = [answer_of(client.post("/json", json=asked)) for _ in range(3)][-1]
    made.limiter.close()
    assert found.raw_body == b'{"message": "Too many requests"}'
    assert "Retry-After" in {header.key for header in found.response_headers_to_add}


def test_an_unknown_domain_passes_and_is_counted(client, made):
    asked = json_format.MessageToDict(rate_limit_request()) | {"domain": "other"}
    assert client.post("/json", json=asked).json()["overallCode"] == "OK"
    assert made.unknown_domains == 1


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(["hunter2"], id="no object"),
        pytest.param({"domain": 7}, id="no text"),
        pytest.param({"domain": "\ud800"}, id="half of a surrogate pair"),
        pytest.param({"colour": "hunter2"}, id="an unknown field"),
        pytest.param({"hitsAddend": -1}, id="below 0"),
        pytest.param({"hitsAddend": True}, id="no number"),
        pytest.param({"descriptors": [{"entries": [{"key": "ip", "value": 5}]}]}, id="no text in an entry"),
        pytest.param({"descriptors": [{"entries": ["hunter2"]}]}, id="no entry"),
        pytest.param({"descriptors": [{"entries": {}}]}, id="no list"),
        pytest.param({"descriptors": [{"hitsAddend": "hunter2"}]}, id="no number of hits"),
        pytest.param({"descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}, id="no unit"),
        pytest.param({"descriptors": [{"limit": {"requestsPerUnit": 2**32}}]}, id="above 32 bits"),
    ],
)
def test_what_is_no_request_is_400_without_what_was_sent(client, made, asked):
    answer = client.post("/json", content=json.dumps(asked))
    assert answer.status_code == 400
    (problem,) = answer.json()["problems"]
    assert problem.startswith("the body is not the request of ShouldRateLimit as proto3-JSON")
    assert "hunter2" not in problem
    assert made.refused == {"bad_request": 1}


@pytest.mark.parametrize(
    "asked",
    [
        {"descriptors": [{"entries": []}]},
        {"domain": "shop"},
        {"domain": "shop", "descriptors": [{"limit": {"requestsPerUnit": 1}}]},
        {"domain": "shop", "descriptors": [{"entries": [{"key": "k", "value": "v" * 5000}]}]},
    ],
)
def test_a_request_that_grpc_refuses_is_400(client, asked):
    answer = client.post("/json", json=asked)
    assert (answer.status_code, len(answer.json()["problems"])) == (400, 1)


def test_null_is_an_absent_field(client):
    asked = {"domain": "shop", "descriptors": [{"entries": [{"key": "ip", "value": None}], "limit": None}]}
    assert client.post("/json", json=asked).status_code == 200
