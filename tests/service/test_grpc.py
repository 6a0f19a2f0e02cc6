"""The gRPC port of a real process: decisions, health, limits of inputs, deadlines, and `ratelimit-mw ask`."""

import asyncio
import json
import signal
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from ratelimit_mw import RateLimiter
from ratelimit_mw.cli.app import app
from ratelimit_mw.service.access import Access
from ratelimit_mw.service.grpc_server import GrpcServer
from ratelimit_mw.service.messages import METHOD
from ratelimit_mw.service.settings import Address, Settings
from ratelimit_mw.service.should_rate_limit import ShouldRateLimit
from ratelimit_mw.service.state import Service
from tests.support.service import OK, OVER_LIMIT, RULES, Response, Serving, asking, request, rules_at


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with Serving(rules_at(tmp_path_factory.mktemp("grpc"), RULES), "--max-message", "2KiB") as serving:
        yield serving


@pytest.fixture(scope="module")
def channel(service):
    with grpc.insecure_channel(service.grpc) as opened:
        yield opened


def run(*words):
    result = CliRunner().invoke(app, ["ask", *words], env={"COLUMNS": "100", "NO_COLOR": "1"})
    return result.exit_code, result.stdout, result.stderr


def test_a_client_is_denied_above_its_limit(service):
    answers = [service.ask(request("shop", [("user", "ann")])) for _ in range(4)]
    assert [answer.overall_code for answer in answers] == [OK, OK, OK, OVER_LIMIT]
    assert [answer.statuses[0].limit_remaining for answer in answers] == [2, 1, 0, 0]


def test_the_time_of_each_call_is_measured(service):
    def measured():
        name = 'ratelimit_service_response_time_seconds_%s{grpc_method="ShouldRateLimit"}'
        lines = dict(line.rsplit(" ", 1) for line in httpx.get(f"{service.admin}/metrics").text.splitlines())
        return [float(lines[name % part]) for part in ("count", "sum")]

    calls, seconds = measured()
    for _ in range(3):
        service.ask(request("shop", [("user", "timed")]))
    later = measured()
    assert later[0] == calls + 3
    assert seconds < later[1] < seconds + 90


def test_calls_at_once_admit_exactly_the_limit(service):
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: service.ask(request("shop", [("user", "many")])), range(30)))
    assert sorted(answer.overall_code for answer in answers) == [OK] * 3 + [OVER_LIMIT] * 27


@pytest.mark.parametrize(
    ("data", "code", "details"),
    [
        (b"\xff", "INVALID_ARGUMENT", "the message is malformed"),
        (b"", "INVALID_ARGUMENT", "the domain is empty"),
        (b"\x0a\x04shop", "INVALID_ARGUMENT", "there are no descriptors"),
    ],
)
def test_what_cannot_be_read_is_an_invalid_argument(channel, data, code, details):
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(METHOD)(data, timeout=30)
    assert (raised.value.code().name, raised.value.details()) == (code, details)


def test_a_message_that_a_client_made_too_long_is_denied(service):
    answer = service.ask(request("shop", [("user", "v" * 2049)]))
    assert (answer.overall_code, len(answer.statuses)) == (OVER_LIMIT, 0)


def test_a_method_of_another_name_is_unimplemented(channel):
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/Other")(b"", timeout=30)
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_the_health_of_each_name_is_serving_and_of_others_unknown(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"):
        asked = health_pb2.HealthCheckRequest(service=name)
        assert stub.Check(asked, timeout=30).status == health_pb2.HealthCheckResponse.SERVING
        assert next(stub.Watch(asked, timeout=30)).status == health_pb2.HealthCheckResponse.SERVING
    other = health_pb2.HealthCheckRequest(service="other")
    assert next(stub.Watch(other, timeout=30)).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    with pytest.raises(grpc.RpcError) as raised:
        stub.Check(other, timeout=30)
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_health_has_at_most_1000_watches_at_once(service, channel):
    """They need no token. Those that end make room for others, and checks and decisions go on."""
    asked, stub = health_pb2.HealthCheckRequest(), health_pb2_grpc.HealthStub(channel)
    watches = [stub.Watch(asked, timeout=60) for _ in range(1000)]
    try:
        assert all(next(watch).status == health_pb2.HealthCheckResponse.SERVING for watch in watches)
        with pytest.raises(grpc.RpcError) as raised:
            next(stub.Watch(asked, timeout=60))
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.Check(asked, timeout=60).status == health_pb2.HealthCheckResponse.SERVING
        assert service.ask(request("shop", [("user", "watched")])).overall_code == OK
    finally:
        for watch in watches:
            watch.cancel()


def test_ask_shows_each_descriptor_and_exits_with_0_or_1(service):
    words = "--grpc", service.grpc, "--domain", "shop", "user=eve", "tenant=gold"
    passed = [run(*words) for _ in range(3)]
    assert [code for code, *_ in passed] == [0, 0, 0]
    lines = passed[0][1].splitlines()
    assert lines[0] == "OK"
    assert lines[2].split()[:6] == ["user=eve", "OK", "3", "per", "year", "2"]
    assert lines[3].split() == ["tenant=gold", "OK", "unlimited"]
    code, out, _ = run(*words)
    assert (code, out.splitlines()[0]) == (1, "OVER_LIMIT")


def test_ask_with_no_hits_charges_nothing_and_prints_json(service):
    words = "--grpc", service.grpc, "--domain", "shop", "--hits", "0", "--json", "user=json"
    code, out, _ = [run(*words) for _ in range(5)][-1]
    (found,) = json.loads(out)["statuses"]
    assert (code, found["limitRemaining"]) == (0, 3)
    assert found["currentLimit"] == {"name": "by_user", "requestsPerUnit": 3, "unit": "YEAR"}


def test_ask_sends_hits_in_the_field_of_envoy_and_gives_them_back(service):
    def left(*words):
        code, out, _ = run("--grpc", service.grpc, "--domain", "shop", "user=hits", "--json", *words)
        return code, json.loads(out)["statuses"][0].get("limitRemaining", 0)

    found = [left(*words) for words in ((), ("--hits", "0"), ("--hits", "9"), ("--hits", "0"), ("--hits", "-9"))]
    assert found == [(0, 2), (0, 2), (1, 0), (1, 0), (0, 2)]  # 9 are charged, and make a debt, as a descriptor's own


def test_ask_is_a_health_probe(service):
    assert run("--grpc", service.grpc, "--health")[:2] == (0, "serving\n")
    assert run("--grpc", service.grpc, "--health", "--json")[:2] == (
        0,
        '{\n  "schema_version": 1,\n  "serving": true\n}\n',
    )


def test_ask_says_why_there_is_no_answer(service, tmp_path):
    code, _, err = run("--grpc", f"unix:{tmp_path / 'none'}", "--health")
    assert code == 3
    assert "UNAVAILABLE" in err
    code, _, err = run("--grpc", service.grpc, "--domain", "shop", *["user=x"] * 101)
    told = err.partition(": ")[2]
    assert (code, told) == (
        3,
        f"{service.grpc}: INVALID_ARGUMENT: there are more than 100 descriptors\n",
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["user=x"], "write a --domain and the descriptors to ask for, or --health"),
        (["--domain", "shop"], "write a --domain and the descriptors to ask for, or --health"),
        (["--domain", "shop", "user"], "'user' is not KEY=VALUE"),
        (["--health", "--grpc", "off"], "--grpc: there is no service at 'off'"),
        (["--health", "--grpc", "x:y"], "'x:y' is not HOST:PORT, PORT, unix:PATH or off"),
        (["--health", "--cert", __file__], "--cert needs --key and --server-ca"),
    ],
)
def test_ask_refuses_wrong_usage(words, why):
    assert run(*words) == (2, "", f"ratelimit-mw: {why}\n")


class Abandoned(Exception):
    """The handler has ended the call."""


class Late:
    """The context of a call whose client no longer waits."""

    def __init__(self, left, *, cancelled=False):
        self._left, self._cancelled = left, cancelled

    def time_remaining(self):
        return self._left

    def cancelled(self):
        return self._cancelled

    async def abort(self, code, _text):
        raise Abandoned(code)


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(Late(0.0), id="its deadline is over"),
        pytest.param(Late(-0.1), id="its deadline was over when it arrived"),
        pytest.param(Late(None, cancelled=True), id="its client cancelled it"),
    ],
)
def test_a_call_whose_client_no_longer_waits_charges_nothing(tmp_path, context):
    settings = Settings(rules=str(rules_at(tmp_path, RULES)))
    state = Service(settings, RateLimiter(settings.rules), Access(settings))
    late = request("shop", [("user", "late")])

    async def call():
        server = GrpcServer(state, Address())
        with pytest.raises(Abandoned) as raised:
            await server._should_rate_limit(late.SerializeToString(), context)
        return raised.value, await ShouldRateLimit(state).answer(late.SerializeToString())

    error, answer = asyncio.run(call())
    assert error.args == (grpc.StatusCode.DEADLINE_EXCEEDED,)
    assert Response.FromString(answer).statuses[0].limit_remaining == 2
    assert state.refused == {"the deadline is over": 1}


def test_calls_that_wait_while_the_process_is_frozen_are_all_answered(service, channel):
    """grpc rejects at random what is beyond 1000 waiting calls, unless it is told otherwise."""
    service.signal(signal.SIGSTOP)
    try:
        calls = [asking(channel).future(request("shop", [("user", "burst")]), timeout=60) for _ in range(4000)]
    finally:
        service.signal(signal.SIGCONT)
    codes = [call.result().overall_code for call in calls]
    assert (codes.count(OK), codes.count(OVER_LIMIT)) == (3, 3997)


def test_a_call_with_long_metadata_is_decided(service):
    """A proxy that traces passes on headers of its client, which must not make the question fail."""
    for size in (7_000, 12_000, 60_000):
        metadata = [("tracestate", "x" * size)]
        answers = [service.ask(request("shop", [("user", f"trace{size}")]), metadata=metadata) for _ in range(4)]
        assert [answer.overall_code for answer in answers] == [OK, OK, OK, OVER_LIMIT]


def test_the_response_is_readable_by_both_of_envoys_clients(service, channel):
    sent = request("shop", [("user", "both")])
    assert Response.FromString(channel.unary_unary(METHOD)(sent.SerializeToString())).statuses[0].limit_remaining == 2
