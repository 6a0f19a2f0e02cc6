"""A real Envoy asks the service, by the files of examples/service."""

import re
import shlex
import signal
import time

import httpx2
import pytest
import yaml

from tests.proxies.odd import REQUESTS, fate, sent
from tests.proxies.running import project, run
from tests.proxies.wire import request, rls_pb2
from tests.support.apps import ROOT
from tests.support.patience import eventually
from tests.support.ports import free_port

grpc = pytest.importorskip("grpc", reason="the extra serve is not installed")
rls_pb2_grpc = pytest.importorskip("envoy.service.ratelimit.v3.rls_pb2_grpc", reason="xds-protos is not installed")

YEAR = 365 * 86_400
PAGE = ROOT / "docs" / "beside-your-proxy.md"


@pytest.fixture(scope="module")
def here():
    with project() as here, here.app() as here.upstream:
        yield here


@pytest.fixture(scope="module")
def service(here):
    with here.service("ratelimits.yaml") as service:
        yield service


@pytest.fixture(scope="module")
def envoy(here, service):
    """Envoy with envoy.yaml, beside the service."""
    with here.envoy("envoy.yaml") as envoy:
        yield envoy


def ask(envoy, path, times, client):
    """Send requests from a loopback address of their own, which Envoy sends as `remote_address`."""
    with httpx2.Client(base_url=envoy.url, transport=httpx2.HTTPTransport(local_address=client), timeout=60) as http:
        return [http.get(path) for _ in range(times)]


def statuses(answers):
    return [answer.status_code for answer in answers]


def asked(here, descriptor):
    """The answer of the service itself, without Envoy."""
    with grpc.insecure_channel(f"127.0.0.1:{here.port[18081]}") as channel:
        return rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit(request([descriptor]), timeout=60)


def test_the_fourth_request_of_a_client_is_denied_and_does_not_reach_the_app(here, envoy):
    before = here.upstream.served
    answers = ask(envoy, "/", 5, "127.0.0.2")
    assert statuses(answers) == [200, 200, 200, 429, 429]
    assert here.upstream.served - before == 3
    assert answers[3].headers["x-envoy-ratelimited"] == "true"
    assert statuses(ask(envoy, "/", 1, "127.0.0.3")) == [200]


def test_envoy_writes_the_headers_of_the_draft_and_the_true_retry_after(envoy):
    answers = ask(envoy, "/", 4, "127.0.0.4")
    assert [each.headers["x-ratelimit-limit"] for each in answers] == [f'3, 3;w={YEAR};name="by_address"'] * 4
    assert [each.headers["x-ratelimit-remaining"] for each in answers] == ["2", "1", "0", "0"]
    assert ["retry-after" in each.headers for each in answers] == [False, False, False, True]
    left = YEAR - time.time() % YEAR
    assert abs(int(answers[3].headers["retry-after"]) - left) < 120
    assert answers[3].headers["x-ratelimit-reset"] == answers[3].headers["retry-after"]


def test_of_two_descriptors_both_are_charged_or_none(envoy):
    logins = ask(envoy, "/login", 4, "127.0.0.5")
    assert statuses(logins) == [200, 200, 429, 429]
    others = ask(envoy, "/", 2, "127.0.0.5")
    assert statuses(others) == [200, 429], "the denied logins were not charged to the address"


def test_a_query_does_not_avoid_the_limit_of_a_path(envoy):
    paths = ["/login", "/login?a=1", "/login?a=2"]
    assert [statuses(ask(envoy, path, 1, "127.0.0.7")) for path in paths] == [[200], [200], [429]]


def test_no_odd_request_passes_without_being_counted(envoy):
    fates = {name: fate(sent(envoy.url, data, f"127.0.2.{n}")) for n, (name, data) in enumerate(REQUESTS.items(), 1)}
    assert [name for name in fates if fates[name] == "missed"] == []
    assert sum(each == "counted" for each in fates.values()) >= 10


def test_an_entry_that_a_client_made_too_long_is_denied(here, envoy):
    assert asked(here, f"agent={'a' * 5000}").overall_code == rls_pb2.RateLimitResponse.OVER_LIMIT


def test_a_limit_that_is_sent_along_applies(envoy):
    answers = ask(envoy, "/batch", 3, "127.0.0.6")
    assert statuses(answers) == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-limit"] == f"2, 2;w={YEAR}"


def test_the_log_of_the_service_has_no_warning_about_entries_that_envoy_sends(service, envoy):
    assert "ready: " in service.log
    assert "entries" not in service.log


def test_the_command_of_the_page_asks_as_envoy_does(here, service):
    (command,) = re.findall(r"^\$ ratelimit-mw (ask --domain .*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    grpc_address = f"127.0.0.1:{here.port[18081]}"
    codes = [run(*shlex.split(command), "--grpc", grpc_address).returncode for _ in range(3)]
    assert codes == [0, 0, 1], "its second descriptor admits two requests"
    assert run("ask", "--health", "--grpc", grpc_address).returncode == 0


def test_envoy_finds_the_service_healthy(envoy):
    eventually(lambda: envoy.stat("cluster.ratelimit.health_check.success"))
    assert envoy.stat("cluster.ratelimit.membership_healthy") == 1
    assert envoy.stat("cluster.ratelimit.health_check.failure") == 0


def test_the_service_writes_the_headers_and_the_body():
    with (
        project() as here,
        here.app(),
        here.service("ratelimits.yaml", "--headers", "rules", "--body"),
        here.envoy("envoy-headers-by-service.yaml") as envoy,
    ):
        answers = ask(envoy, "/", 4, "127.0.0.2")
    assert statuses(answers) == [200, 200, 200, 429]
    assert [each.headers["x-ratelimit-limit"] for each in answers] == ["3"] * 4
    assert [each.headers["x-ratelimit-remaining"] for each in answers] == ["2", "1", "0", "0"]
    assert int(answers[3].headers["retry-after"]) > 0
    assert answers[3].headers["content-type"] == "application/json"
    assert answers[3].json() == {"message": "Too many requests"}
    assert answers[2].text == "GET /"


PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute"


def test_hits_of_a_descriptor_admit_no_more_than_the_limit_and_are_given_back():
    def with_hits(**hits):
        config = yaml.safe_load((here.directory / "envoy.yaml").read_text())
        (listener,) = config["static_resources"]["listeners"]
        (host,) = listener["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
        asked = {"actions": [{"remote_address": {}}], "hits_addend": hits}
        host["routes"] = host["routes"][-1:]
        host["typed_per_filter_config"] = {"envoy.filters.http.ratelimit": {"@type": PER_ROUTE, "rate_limits": [asked]}}
        (here.directory / "hits.yaml").write_text(yaml.safe_dump(config))
        return here.envoy("hits.yaml")

    with project() as here, here.app(), here.service("ratelimits.yaml"):
        with with_hits(number=2) as envoy:
            answers = ask(envoy, "/", 3, "127.0.0.2")
            assert statuses(answers) == [200, 429, 429], "2 of 3, then 4, which makes a debt"
        with with_hits(number=4, is_negative_hits=True) as envoy:
            (answer,) = ask(envoy, "/", 1, "127.0.0.2")
            assert (answer.status_code, answer.headers["x-ratelimit-remaining"]) == (200, "3")


def test_headers_do_not_say_0_while_the_store_is_away():
    with project() as here, here.app():
        nowhere = f"redis://127.0.0.1:{free_port()}/0"
        with here.service("ratelimits.yaml", "--storage", nowhere), here.envoy("envoy.yaml") as envoy:
            answers = ask(envoy, "/", 5, "127.0.0.2")
    assert statuses(answers) == [200] * 5
    assert [name for each in answers for name in each.headers if "ratelimit" in name] == []


def test_tokens_are_charged_when_the_response_is_over_and_may_go_into_debt():
    with (
        project() as here,
        here.app(),
        here.service("ratelimits-tokens.yaml"),
        here.envoy("envoy-tokens.yaml") as envoy,
        httpx2.Client(base_url=envoy.url, timeout=60) as http,
    ):
        used = 'data: {"usage": {"total_tokens": 70}}\n\ndata: [DONE]'  # the app answers with what it was sent

        def eventually_left(user, tokens):  # Envoy charges after the response
            eventually(lambda: http.get("/", headers={"X-User": user}).headers["x-ratelimit-remaining"] == tokens)

        assert http.post("/", content=used, headers={"X-User": "ann"}).status_code == 200
        eventually_left("ann", "30")
        assert http.post("/", content=used, headers={"X-User": "ann"}).status_code == 200
        eventually_left("ann", "0")
        assert http.post("/", content=used, headers={"X-User": "ann"}).status_code == 429
        with http.stream("POST", "/goes-on", content="data: a\n\ndata: b", headers={"X-User": "bob"}) as answer:
            next(answer.iter_bytes())  # and the client leaves
        eventually_left("bob", "98")
        assert "Invalid hits_addend" not in envoy.log


@pytest.mark.parametrize(
    ("config", "status"),
    [
        pytest.param("envoy.yaml", 200, id="failure_mode_deny false: requests pass"),
        pytest.param("envoy-headers-by-service.yaml", 500, id="failure_mode_deny true: requests are denied"),
    ],
)
def test_envoy_decides_while_the_service_is_frozen_or_killed(config, status):
    with project(patience=None) as here, here.app():
        service = here.serve("ratelimits.yaml")
        try:
            with here.envoy(config) as envoy:
                eventually(lambda: statuses(ask(envoy, "/", 1, "127.0.0.2")) == [429])
                service.signal(signal.SIGSTOP)
                assert statuses(ask(envoy, "/", 1, "127.0.0.3")) == [status]
                service.signal(signal.SIGCONT)
                eventually(lambda: statuses(ask(envoy, "/", 1, "127.0.0.2")) == [429])
                remaining = asked(here, "0 remote_address=127.0.0.3").statuses[0].limit_remaining
                assert remaining == 3, "a call that Envoy no longer waits for charges nothing"
                service.signal(signal.SIGKILL)
                service.child.wait()
                assert statuses(ask(envoy, "/", 2, "127.0.0.2")) == [status] * 2
                service.end()
                service = here.serve("ratelimits.yaml")
                eventually(lambda: statuses(ask(envoy, "/", 1, "127.0.0.2")) == [429])
        finally:
            service.end()
