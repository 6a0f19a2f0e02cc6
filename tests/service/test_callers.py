"""What the log says of callers: those that are refused, an unknown domain, and a service that is open to all."""

import grpc
import httpx
import pytest

from ratelimit_mw.service.messages import METHOD
from ratelimit_mw.service.ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest
from tests.support.patience import WITHIN, eventually
from tests.support.service import OK, RULES, Serving, asking, request, rules_at

MOST = 10
"""The lines about one subject in a minute."""


def lines_of(service, text):
    return [line for line in service.lines if text in line]


def test_anyone_may_ask_a_service_that_allows_it_and_the_rest_needs_a_token(tmp_path):
    flags = "--allow-anyone", "--grpc", "0.0.0.0:0", "--http", "0.0.0.0:0"
    with Serving(rules_at(tmp_path, RULES), *flags) as service:
        assert lines_of(service, "WARNING --allow-anyone: every caller")
        with grpc.insecure_channel(service.grpc.replace("0.0.0.0", "127.0.0.1")) as channel:
            answer = asking(channel)(request("shop", [("user", "ann")]), timeout=WITHIN)
        assert answer.overall_code == OK
        url = service.http.replace("0.0.0.0", "127.0.0.1")
        body = {"entries": [["user", "ann"]]}
        paths = ("check", "peek", "explain", "reset")
        statuses = [httpx.post(f"{url}/v1/{path}", json=body, timeout=WITHIN).status_code for path in paths]
        assert statuses == [200, 200, 403, 403]
        assert httpx.get(f"{service.admin}/stats", timeout=WITHIN).status_code == 200, "this port is on loopback"


def test_refused_callers_and_unknown_domains_are_logged_at_most_ten_times_a_minute(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("check 0123456789abcdef\n")
    with (
        Serving(rules_at(tmp_path, RULES), "--token-file", str(tokens)) as service,
        grpc.insecure_channel(service.grpc) as channel,
        httpx.Client(timeout=WITHIN) as client,
    ):
        for _ in range(MOST + 5):
            with pytest.raises(grpc.RpcError):
                asking(channel)(request("shop", [("user", "ann")]), timeout=WITHIN)
            assert client.post(f"{service.http}/v1/check", json={}).status_code == 401
            service.ask(request("hunter2", [("a", "b")]), metadata=[("authorization", "Bearer 0123456789abcdef")])
        subjects = (
            "a caller at 127.0.0.1 was refused: gRPC needs a token",
            "a caller at 127.0.0.1 was refused: this needs a token for 'check'",
            "a request passed without a limit: no rules have its domain",
        )
        for each in subjects:
            eventually(lambda: len(lines_of(service, each)) == MOST)  # noqa: B023 - it is called in this round
        service.process.terminate()
        service.ended()
    assert [len(lines_of(service, each)) for each in subjects] == [MOST] * 3
    assert not lines_of(service, "hunter2")


@pytest.mark.parametrize(
    ("flags", "shown", "code"),
    [
        pytest.param(["--allow-anyone"], None, "PERMISSION_DENIED", id="anyone may ask, and shows no token"),
        pytest.param(["--allow-anyone"], "check", "OK", id="anyone may ask, and this one shows a token"),
        pytest.param([], "check", "OK", id="the token of a proxy"),
    ],
)
def test_hits_are_given_back_to_callers_with_a_token(tmp_path, flags, shown, code):
    tokens = tmp_path / "tokens"
    tokens.write_text("check 0123456789abcdef\n")
    sent = RateLimitRequest(domain="shop")
    entry = RateLimitDescriptor.Entry(key=b"user", value=b"ann")
    sent.descriptors.add(entries=[entry], is_negative_hits=True).hits_addend.value = 1
    words = {} if shown is None else {"authorization": "Bearer 0123456789abcdef"}
    with (
        Serving(rules_at(tmp_path, RULES), "--token-file", str(tokens), *flags) as service,
        grpc.insecure_channel(service.grpc) as channel,
    ):
        try:
            _, call = channel.unary_unary(METHOD).with_call(
                sent.SerializeToString(), timeout=WITHIN, metadata=list(words.items())
            )
        except grpc.RpcError as error:
            call = error
        found = {"entries": [{"key": "user", "value": "ann"}], "isNegativeHits": True}
        asked = {"domain": "shop", "descriptors": [found]}
        status = httpx.post(f"{service.http}/json", json=asked, headers=words, timeout=WITHIN).status_code
    assert (call.code().name, status) == (code, 200 if code == "OK" else 403)
